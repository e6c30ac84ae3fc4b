//! The HTTP endpoints: `/metrics`, `/live`, `/ready` and `/version`.
//!
//! `/live` turns red when the process should be restarted, `/ready` when a person should look; it says why, and what gets
//! out of it. Read-only, without authentication: it shows no configuration and no message, and listens where the topology
//! says, on the loopback interface unless somebody chose otherwise.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::{App, HttpResponse, HttpResponseBuilder, HttpServer, web};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Telemetry;

/// How the program is, asked at each request.
pub trait Health: Send + Sync {
    /// Whether it can still do its work; `false`: restart the process.
    fn live(&self) -> bool;

    /// Why it is not doing all of its work now: a sentence each, with what gets out of it. Empty: it is ready.
    fn not_ready(&self) -> Vec<String>;
}

/// What runs here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Version {
    /// The program's name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The topology's name.
    pub topology: String,
    /// A hash of the topology, to tell whether two processes run the same one.
    pub config_hash: String,
}

impl Version {
    /// This program with this topology.
    pub fn of(telemetry: &Telemetry, config_hash: impl Into<String>) -> Self {
        Self {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            topology: telemetry.topology().to_owned(),
            config_hash: config_hash.into(),
        }
    }
}

struct State {
    telemetry: Telemetry,
    health: Arc<dyn Health>,
    version: Version,
}

/// Takes the port, so that a taken one is known before anything else has begun. Who asks is answered by [`serve`].
///
/// # Errors
/// What is wrong with the address, and what to do.
pub fn bind(listen: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(listen).map_err(|e| {
        let context = format!("cannot listen on {listen} for telemetry: {e}; choose another telemetry.listen");
        io::Error::new(e.kind(), context)
    })
}

/// The server on a port that was taken. It must be polled; it ends soon after `shutdown`, when the requests under way are
/// answered.
pub fn serve(
    listener: TcpListener,
    telemetry: Telemetry,
    health: Arc<dyn Health>,
    config_hash: impl Into<String>,
    shutdown: CancellationToken,
) -> io::Result<impl Future<Output = io::Result<()>> + Send + 'static> {
    let version = Version::of(&telemetry, config_hash);
    let state = web::Data::new(State { telemetry, health, version });
    let server = HttpServer::new(move || {
        App::new()
            .app_data(state.clone())
            .route("/metrics", web::get().to(metrics))
            .route("/live", web::get().to(live))
            .route("/ready", web::get().to(ready))
            .route("/version", web::get().to(version_))
            .default_service(web::to(nothing_here))
    })
    .workers(1)
    .disable_signals()
    .shutdown_signal(shutdown.cancelled_owned())
    .shutdown_timeout(1)
    .listen(listener)?;
    Ok(server.run())
}

async fn metrics(state: web::Data<State>) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(state.telemetry.render(state.health.not_ready().is_empty()))
}

async fn live(state: web::Data<State>) -> HttpResponse {
    let live = state.health.live();
    well(live).json(json!({ "live": live }))
}

async fn ready(state: web::Data<State>) -> HttpResponse {
    let reasons = state.health.not_ready();
    well(reasons.is_empty()).json(json!({ "ready": reasons.is_empty(), "reasons": reasons }))
}

async fn version_(state: web::Data<State>) -> HttpResponse {
    HttpResponse::Ok().json(&state.version)
}

async fn nothing_here() -> HttpResponse {
    HttpResponse::NotFound().body("nothing here; there are /metrics, /live, /ready and /version\n")
}

fn well(well: bool) -> HttpResponseBuilder {
    HttpResponse::build(if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    struct Fixed {
        live: bool,
        reasons: Mutex<Vec<String>>,
    }

    impl Health for Fixed {
        fn live(&self) -> bool {
            self.live
        }

        fn not_ready(&self) -> Vec<String> {
            self.reasons.lock().expect("reasons").clone()
        }
    }

    /// Status line and body.
    async fn get(address: SocketAddr, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("answered");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        (head.lines().next().expect("a status line").to_owned(), body.to_owned())
    }

    #[test]
    fn answers_what_it_is_asked_and_ends_when_told() {
        let done = async {
            let telemetry = Telemetry::new("orders");
            telemetry.partition(&"lake".into(), 0).received.add(3);
            let health = Arc::new(Fixed { live: true, reasons: Mutex::default() });
            let shutdown = CancellationToken::new();
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let listener = bind(any).expect("bound");
            let address = listener.local_addr().expect("bound");
            let server = serve(listener, telemetry, health.clone(), "c0ffee", shutdown.clone()).expect("served");
            let server = tokio::spawn(server);

            let (status, body) = get(address, "/metrics").await;
            assert!(status.contains("200"), "{status}");
            assert!(
                body.contains("distributary_received_total{topology=\"orders\",component=\"lake\",partition=\"0\"} 3")
            );
            assert!(get(address, "/live").await.0.contains("200"));
            assert!(get(address, "/ready").await.0.contains("200"));
            health.reasons.lock().expect("reasons").push("orders/0 is parked: run `state reset`".into());
            let ready = |body: &str, value: u8| {
                assert!(body.contains(&format!("distributary_ready{{topology=\"orders\"}} {value}\n")), "{body}");
            };
            ready(&body, 1);
            ready(&get(address, "/metrics").await.1, 0);
            let (status, body) = get(address, "/ready").await;
            assert!(status.contains("503"), "{status}");
            let body: Value = serde_json::from_str(&body).expect("json");
            assert_eq!(body, json!({ "ready": false, "reasons": ["orders/0 is parked: run `state reset`"] }));
            let (_, body) = get(address, "/version").await;
            let body: Value = serde_json::from_str(&body).expect("json");
            assert_eq!(body["topology"], "orders");
            assert_eq!(body["config_hash"], "c0ffee");
            assert!(get(address, "/").await.0.contains("404"));

            let taken = bind(address).expect_err("taken");
            assert!(taken.to_string().contains(&address.to_string()), "{taken}");

            shutdown.cancel();
            tokio::time::timeout(Duration::from_secs(30), server)
                .await
                .expect("ends")
                .expect("no panic")
                .expect("no error");
            assert!(TcpStream::connect(address).await.is_err(), "still listening");
        };
        actix_web::rt::System::new().block_on(done);
    }
}
