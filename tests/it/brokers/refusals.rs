//! What a broker refuses: each a clear line with the place, the broker's own words and the way out, and no secret.

use super::server::{Kind, PASSWORD, Server, USER};
use crate::process::run::Lab;

/// The last line of a run that cannot begin.
fn refused(server: &Server, queue: &str, login: Option<(&str, &str)>) -> String {
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
    let ended = lab.run(&["start", "topology.yaml"]);
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(!ended.text.contains("panicked"), "{}", ended.text);
    ended.text.lines().last().unwrap_or_default().to_owned()
}

/// All of them.
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
        let line = refused(&server, queue, login);
        println!("{kind:?}: {line}");
        assert!(line.contains(&format!("amqp://127.0.0.1:{}", server.port())), "{line}");
        for word in words {
            assert!(line.contains(&word), "{line}\n(not: {word})");
        }
        assert!(!line.contains("wrong-one") && !line.contains(PASSWORD), "a secret was printed: {line}");
    }
}
