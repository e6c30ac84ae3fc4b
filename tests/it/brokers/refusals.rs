//! What a broker refuses: each a clear line with the place, the broker's own words and the way out, and no secret.

use super::server::{self, Kind, PASSWORD, Server, USER};
use crate::process::cli::{Printed, runtime};
use crate::process::run::Lab;

/// What `runtime` says of a topology that reads this queue as this user.
fn said(server: &Server, arguments: &[&str], queue: &str, login: Option<(&str, &str)>) -> Printed {
    let lab = Lab::new();
    let login = login.map_or(String::new(), |(user, password)| format!(", user: {user}, password: {password}"));
    lab.write(
        "topology.yaml",
        &format!(
            "topology: refused
receivers:
  some: {{ type: amqp, url: \"amqp://127.0.0.1:{}\", queue: \"{queue}\"{login} }}
translators:
  plain: {{ from: some, type: text }}
sinks:
  lake: {{ from: plain, type: delta, table: lake }}
checkpoint: {{ store: state }}
",
            server.port()
        ),
    );
    runtime(&lab, arguments)
}

const START: [&str; 2] = ["start", "topology.yaml"];
const PROBE: [&str; 3] = ["check", "topology.yaml", "--connect"];

/// What a start and a check have to say.
pub fn clear_lines(kind: Kind) {
    let server = Server::start(kind);
    let known = Some((USER, PASSWORD));
    let texts = kind.address("texts");
    let nowhere = kind.address("nowhere");
    let mut cases = vec![
        (nowhere.as_str(), known, vec![format!("has no queue '{nowhere}'"), "amqp:not-found".into()]),
        (&texts, Some((USER, "wrong-one")), vec!["wrong user or password".into(), format!("as '{USER}'")]),
    ];
    match kind {
        Kind::RabbitMq => {
            cases.push(("texts", known, vec!["queue: /amq/queue/texts".into(), "inequivalent arg 'durable'".into()]));
            cases.push((&texts, None, vec!["'user' and 'password'".into()]));
        }
        Kind::Artemis => cases.push((&texts, None, vec!["give the receiver a 'user'".into(), "AMQ229031".into()])),
    }
    for (queue, login, words) in cases {
        let started = said(&server, &START, queue, login).ends(1);
        let line = started.err.lines().last().unwrap_or_default();
        println!("{kind:?}: {line}");
        assert!(line.contains(&format!("amqp://127.0.0.1:{}", server.port())), "{line}");
        let probed = said(&server, &PROBE, queue, login).ends(1).out;
        for word in words {
            assert!(line.contains(&word), "{line}\n(not: {word})");
            assert!(probed.contains(&word), "{}\n(not: {word})", probed);
        }
        for secret in ["wrong-one", PASSWORD] {
            assert!(
                ![&started.err, &started.out, &probed].iter().any(|text| text.contains(secret)),
                "a secret: {line}"
            );
        }
    }
    server::run(&mut server.client(&["send", &texts, "0", "1", "1"]));
    said(&server, &PROBE, &texts, known).ends(0);
    // A probe takes nothing: the message is there for the next.
    server::run(&mut server.client(&["first", &texts, "0"]));
}
