//! What `${…}` puts in, and that none of it is shown.

use super::*;

#[test]
fn what_is_put_in_becomes_what_the_schema_asks_for_and_nothing_else() {
    let yaml = "
topology: ${NAME}
receivers:
  orders:
    type: queue
    url: amqp://me:${PASSWORD}@host
    queue: ${QUEUE}
    partitions: ${PARTITIONS:-3}
    max_unsettled: ${UNSETTLED}
    max_unsettled_bytes: ${BYTES}
    login: { user: u, password: \"${file:/run/password}\" }
translators:
  parsed: { from: orders, type: csv, columns: { a: utf8 }, header: \"${HEADER}\" }
sinks:
  lake: { from: parsed, type: lake, table: \"${file:/run/table}/x\" }
checkpoint: { store: \"${STORE:-memory}\" }
";
    let mut given = given([
        ("NAME", "t1"),
        ("PASSWORD", "a: b #\"'\\ }"),
        ("QUEUE", "5"),
        ("UNSETTLED", "700"),
        ("BYTES", "800"),
        ("HEADER", "true"),
        ("/run/table", "/data\n"),
    ]);
    let topology = checked(yaml, &given).expect("a topology");
    let receiver = &topology.receivers[&StageName::from("orders")];
    assert_eq!((receiver.partitions, receiver.max_unsettled, receiver.max_unsettled_bytes), (3, 700, 800));
    assert_eq!(topology.sinks[&StageName::from("lake")].config["table"], "/data/x");

    given.0.insert("UNSETTLED".into(), "secret-number".into());
    given.0.insert("QUEUE".into(), "a b".into());
    let problems = checked(yaml, &given).map(|_| ()).expect_err("no number");
    assert_eq!(
        problems,
        "topology.yaml:9:20: receivers.orders.max_unsettled: expected a whole number, found other text"
    );
    given.0.insert("UNSETTLED".into(), "1".into());
    let problems = checked(yaml, &given).map(|_| ()).expect_err("a space");
    assert_eq!(problems, "topology.yaml:7:12: receivers.orders.queue: the queue '***' has a space in it");
}

#[test]
fn no_problem_and_no_debug_text_shows_a_secret() {
    let yaml = small("").replace("queue: q }", "queue: q q, login: { user: '', password: PASS } }");
    for (password, given) in [
        ("hunter22", Given::default()),
        ("[hunter22]", Given::default()),
        ("12345678", Given::default()),
        ("{ a: hunter22 }", Given::default()),
        ("\"${PW}\"", given([("PW", "hunter22")])),
        ("\"${file:/pw}\"", given([("/pw", "hunter22")])),
        ("\"${PW:-hunter22}\"", Given::default()),
        ("\"$${file:hunter22}\"", Given::default()),
    ] {
        let yaml = yaml.replace("PASS", password).replace("'amqp:'", "hunter22");
        let problems = checked(&yaml, &given).map(|_| ()).expect_err("a mistake");
        assert!(!problems.contains("hunter22") && !problems.contains("12345678"), "{problems}");
        assert!(problems.contains("receivers.orders"), "{problems}");
    }
    let topology = accepted(&ORDERS.replace("./data/orders", "hunter22"));
    assert!(!format!("{topology:?} {:?}", topology.notes).contains("hunter22"));
    let problems = refused(&small("").replace("'amqp:'", "'$${file:x}'"));
    assert_eq!(
        problems,
        "3:31: receivers.orders.url: a secret that reads like ${file:…} would be taken for that file; choose another"
    );
}

#[test]
fn a_reference_that_was_put_in_is_warned_of() {
    let given = given([("TABLE", "/data/${DAY}")]);
    let topology = checked(&small("").replace("table: t", "table: \"${TABLE}\""), &given).expect("a topology");
    let warning =
        "warning: sinks.lake.table: the value of ${TABLE} has '${' in it; what is put in is not substituted again";
    assert!(topology.notes.iter().any(|note| note == warning), "{:?}", topology.notes);
}
