//! What a run says, at its loudest: every frame, and no password, body or property.

use std::time::Duration;

use distributary::broker::{Broker, BrokerConfig};
use distributary::flow::Secret;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::{Connection, Sender, Session};
use fe2o3_amqp_types::messaging::{ApplicationProperties, Message, Properties};

use super::run::{Lab, until};

const PASSWORD: &str = "s3cret-p4ssword";
const BODY: &str = "b0dy-of-a-message";
const PROPERTY: &str = "pr0perty-of-a-message";

#[track_caller]
fn keeps_quiet(text: &str) {
    for private in [PASSWORD, BODY, PROPERTY] {
        let said = text.lines().find(|line| line.contains(private));
        assert_eq!(said, None, "{private} was said");
    }
}

fn broker() -> Broker {
    let config = BrokerConfig {
        user: Some("app".into()),
        password: Some(Secret::new(PASSWORD)),
        auto_create: false,
        queues: vec!["orders".into()],
        ..BrokerConfig::default()
    };
    let broker = Broker::start_on_thread(config).expect("a broker");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = Connection::builder()
            .container_id("sender")
            .sasl_profile(SaslProfile::Plain { username: "app".into(), password: PASSWORD.into() })
            .open(broker.url().as_str())
            .await
            .expect("a connection");
        let mut session = Session::begin(&mut connection).await.expect("a session");
        let mut sender = Sender::attach(&mut session, "sender", "orders").await.expect("a link");
        for n in 0..5 {
            let message = Message::builder()
                .properties(Properties::builder().message_id(format!("m-{n}")).build())
                .application_properties(ApplicationProperties::builder().insert("token", PROPERTY).build())
                .value(BODY.to_owned())
                .build();
            sender.send(message).await.expect("accepted");
        }
        let _ = sender.close().await;
        let _ = session.end().await;
        let _ = connection.close().await;
    });
    broker
}

/// Reads bodies as numbers, which they are not: all go to the dead letter, with the reason.
fn topology(lab: &Lab, broker: &Broker, queue: &str, login: &str) {
    let url = broker.url();
    let text = format!(
        "topology: quiet
receivers:
  orders: {{ type: amqp, url: \"{}\", queue: {queue}, max_messages: 5{login} }}
translators:
  parsed: {{ from: orders, type: csv, columns: {{ n: int64 }}, keep: [properties] }}
sinks:
  lake: {{ from: parsed, type: delta, table: lake }}
dead_letter: {{ type: parquet, path: rejected }}
checkpoint: {{ interval: 200ms, store: state }}
",
        if login.is_empty() { url.replace("amqp://", &format!("amqp://app:{PASSWORD}@")) } else { url }
    );
    lab.write("topology.yaml", &text);
}

#[test]
fn the_loudest_log_shows_every_frame_and_nothing_private() {
    for filter in ["amqp.frames=trace", "trace"] {
        let (lab, broker) = (Lab::new(), broker());
        topology(&lab, &broker, "orders", "");
        let ended = lab.run(&["start", "topology.yaml", "--log", filter]);
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        assert!(ended.text.contains("rejected 5"), "{}", ended.text);
        keeps_quiet(&ended.text);
        let frames: Vec<_> = ended.text.lines().filter(|line| line.contains("amqp::frames")).collect();
        for (way, words) in [
            ("sent", "protocol header 3.1.0.0"),
            ("received", "sasl-mechanisms offered=PLAIN"),
            ("sent", "sasl-init mechanism=PLAIN"),
            ("received", "sasl-outcome code=Ok"),
            ("sent", "open container-id=quiet/orders/0/"),
            ("received", "open container-id=distributary-embedded-broker"),
            ("sent", "begin"),
            ("received", "begin"),
            ("sent", "attach name=orders/0/"),
            ("received", "attach name=orders/0/"),
            ("sent", "flow handle=0"),
            ("received", "transfer handle=0 delivery-id=4"),
            ("sent", "disposition role=receiver first="),
            ("sent", "detach handle=0"),
            ("received", "detach handle=0"),
            ("sent", "end"),
            ("sent", "close"),
        ] {
            let found = frames.iter().any(|line| line.contains(&format!(" {way} ")) && line.contains(words));
            assert!(found, "no '{way} … {words}' in\n{}", frames.join("\n"));
        }
        assert!(
            frames.iter().all(|line| line.contains("partition=orders/0") && line.contains("broker=amqp://127.0.0.1:"))
        );
    }
}

#[test]
fn nothing_is_printed_of_frames_that_nobody_asked_for() {
    let (lab, broker) = (Lab::new(), broker());
    topology(&lab, &broker, "orders", "");
    let ended = lab.run(&["start", "topology.yaml", "--log", "debug"]);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(!ended.text.contains("amqp::frames"), "{}", ended.text);
    keeps_quiet(&ended.text);
}

#[test]
fn refusals_checks_and_the_state_show_no_secret() {
    let (lab, broker) = (Lab::new(), broker());
    for (queue, login, why) in [
        ("orders", format!(", user: ghost, password: \"{PASSWORD}\""), "wrong user or password"),
        ("nowhere", format!(", user: app, password: \"{PASSWORD}\""), "(amqp:not-found"),
    ] {
        topology(&lab, &broker, queue, &login);
        let ended = lab.run(&["start", "topology.yaml", "--log", "trace"]);
        assert_eq!(ended.code, Some(1), "{}", ended.text);
        assert!(ended.text.contains(why), "{}", ended.text);
        keeps_quiet(&ended.text);
    }
    topology(&lab, &broker, "orders", "");
    assert_eq!(lab.run(&["start", "topology.yaml"]).code, Some(0));
    for words in [&["check", "topology.yaml"][..], &["state", "topology.yaml", "show"]] {
        let mut process = lab.start_with(words, |command| command.stdout(std::process::Stdio::piped()));
        let out = std::io::read_to_string(process.stdout()).expect("text");
        assert!(out.contains("quiet") || out.contains("orders/0"), "{out}");
        let ended = process.wait(Duration::from_secs(60));
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        keeps_quiet(&(ended.text + &out));
    }
    // A mistake beside the secret.
    let text = std::fs::read_to_string(lab.path("topology.yaml")).expect("the file");
    lab.write("topology.yaml", &text.replace("max_messages: 5", "max_messages: many"));
    let ended = lab.run(&["check", "topology.yaml"]);
    assert_eq!(ended.code, Some(78), "{}", ended.text);
    keeps_quiet(&ended.text);
    until(Duration::from_secs(60), "the links to be closed", || (broker.queue("orders").consumers == 0).then_some(()));
}
