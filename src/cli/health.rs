//! `runtime health`: asks a running process whether it lives and is ready, for probes.
//!
//! One GET each, over a plain socket: a probe runs every few seconds and needs no more of HTTP.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::Args;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Exit, aside, fail, print};
use crate::units::Span;

pub(super) const EXAMPLE: &str = "Examples:
  runtime health                                 is it ready? (exit code 0 or 1, and the reasons)
  runtime health --live                          is it alive? (for probes that restart the process)
  runtime health --url http://10.0.0.7:9464";

/// No answer of ours is longer.
const LONGEST: u64 = 1 << 20;

/// Where a topology listens that was told no other place.
const DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

#[derive(Args)]
pub(super) struct Arguments {
    /// Where the topology's `telemetry.listen` is. Left out: where RUNTIME_TELEMETRY says, or port 9464 of this machine.
    #[arg(long, env = "RUNTIME_HEALTH_URL", value_name = "URL")]
    url: Option<String>,
    /// Ask only whether it lives: that a broker is away makes it not ready, and a restart would not help.
    #[arg(long)]
    live: bool,
    /// How long it may take to answer.
    #[arg(long, default_value = "3s", value_name = "DURATION")]
    timeout: Span,
}

pub(super) fn run(arguments: &Arguments) -> Exit {
    let Arguments { url, live, timeout } = arguments;
    let url = url.clone().unwrap_or_else(|| here(std::env::var("RUNTIME_TELEMETRY").ok().as_deref()));
    let host = match host(&url) {
        Ok(host) => host,
        Err(why) => return fail(Exit::Usage, why),
    };
    let asked = aside(async {
        let asking = async {
            let (is_live, _) = get(&host, "/live").await?;
            let ready = if *live { None } else { Some(get(&host, "/ready").await?) };
            Ok((is_live, ready))
        };
        tokio::time::timeout(timeout.0, asking).await.unwrap_or_else(|_| Err(format!("no answer within {timeout}")))
    });
    match asked.map_err(|error| error.to_string()).and_then(|asked| asked) {
        Err(why) => {
            fail(Exit::Failed, format!("{url}: {why}; is a topology running, with 'telemetry: {{ listen: {host} }}'?"))
        }
        Ok((false, _)) => fail(Exit::Failed, format!("{url} is not alive: restart it")),
        Ok((true, None)) => print("live\n"),
        Ok((true, Some((true, _)))) => print("ready\n"),
        Ok((true, Some((false, body)))) => {
            print(&format!("not ready\n{}", reasons(&body)));
            Exit::Failed
        }
    }
}

/// Where this machine's topology is, if it was told to listen at `telemetry`.
fn here(telemetry: Option<&str>) -> String {
    let mut asked = telemetry.and_then(|address| address.parse().ok()).unwrap_or(DEFAULT);
    // One that listens everywhere is asked over the loopback interface.
    if asked.ip().is_unspecified() {
        asked.set_ip(if asked.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    format!("http://{asked}")
}

/// Host and port of a URL.
fn host(url: &str) -> Result<String, String> {
    let rest = match url.split_once("://") {
        Some(("http", rest)) => rest,
        None => url,
        Some((scheme, _)) => {
            return Err(format!("'{scheme}' cannot be asked: the endpoints speak http, write http://127.0.0.1:9464"));
        }
    };
    let host = rest.strip_suffix('/').unwrap_or(rest);
    if host.is_empty() || host.contains(['/', '?', '#', '@']) || host.contains(char::is_whitespace) {
        return Err(format!("'{url}' is not an address of host and port: write http://127.0.0.1:9464"));
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(if has_port { host.to_owned() } else { format!("{host}:80") })
}

/// Whether the answer is 200, and its body.
async fn get(host: &str, path: &str) -> Result<(bool, String), String> {
    let said = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(host).await.map_err(said)?;
    // HTTP/1.0: the answer ends with the connection.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(said)?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).await.map_err(said)?;
    read(&String::from_utf8_lossy(&answer)).ok_or_else(|| format!("what answers {path} is no runtime of ours"))
}

/// The status and the body of an answer: 200 is yes, 503 is no, anything else is somebody else.
fn read(answer: &str) -> Option<(bool, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut words = head.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let yes = match words.next()? {
        "200" => true,
        "503" => false,
        _ => return None,
    };
    Some((yes, body.to_owned()))
}

/// The reasons in the body of `/ready`, a line each.
fn reasons(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let reasons = body["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str);
    reasons.map(|reason| format!("  {reason}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_where_this_machine_was_told_to_listen() {
        assert_eq!(here(None), "http://127.0.0.1:9464");
        assert_eq!(here(Some("0.0.0.0:9000")), "http://127.0.0.1:9000");
        assert_eq!(here(Some("10.0.0.7:9000")), "http://10.0.0.7:9000");
        assert_eq!(here(Some("[::]:9000")), "http://[::1]:9000");
    }

    #[test]
    fn addresses_as_people_write_them() {
        for (url, expected) in [
            ("http://127.0.0.1:9464", "127.0.0.1:9464"),
            ("http://localhost:1/", "localhost:1"),
            ("[::1]:9464", "[::1]:9464"),
            ("http://host", "host:80"),
        ] {
            assert_eq!(host(url).as_deref(), Ok(expected));
        }
        for (url, says) in
            [("https://h", "speak http"), ("http://", "host and port"), ("http://h/ready", "host and port")]
        {
            assert!(host(url).expect_err(url).contains(says), "{url}");
        }
    }

    #[test]
    fn answers_are_read_and_others_refused() {
        let no =
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{\"ready\":false,\"reasons\":[\"a\",\"b\"]}";
        let (ready, body) = read(no).expect("an answer");
        assert!(!ready);
        assert_eq!(reasons(&body), "  a\n  b\n");
        assert_eq!(read("HTTP/1.0 200 OK\r\n\r\nx"), Some((true, "x".to_owned())));
        for other in ["", "HTTP/1.1 404 Not Found\r\n\r\n", "AMQP\0\0\r\n\r\n", "HTTP/1.1 200 OK"] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(reasons("no json"), "");
    }
}
