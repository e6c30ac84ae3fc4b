use std::sync::Arc;

use arrow::array::BinaryArray;
use proptest::prelude::*;
use serde_json::json;

use super::super::testing::{messages, names, rejected, rows, texts, translated};
use super::*;
use crate::flow::Translated;

const NT: [&str; 2] = ["n", "t"];

fn nt() -> Value {
    json!({ "columns": { "n": "int64", "t": "utf8" } })
}

fn with(extra: Value) -> Value {
    let mut config = nt();
    config.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    config
}

fn details(out: &Translated) -> Vec<&str> {
    out.rejects.iter().map(|reject| reject.detail.as_str()).collect()
}

#[test]
fn declared_keys_in_any_order_and_missing_ones_are_null() {
    let bodies = [r#"{"n":1,"t":"a"}"#, r#" { "t" : "b", "other": {"n": "42"}, "n" : 2 } "#, "{}", r#"{"t":null}"#];
    let out = translated(&Json, with(json!({ "derive": { "m": "n + 1" } })), &texts(bodies));
    assert_eq!(names(&out), ["id", "sent", "received", "n", "t", "m"]);
    assert_eq!(rows(&out, &["n", "t", "m"]), ["0: 1|a|2", "1: 2|b|3", "2: NULL|NULL|NULL", "3: NULL|NULL|NULL"]);
}

#[test]
fn two_values_beside_none_shift_nothing() {
    let bodies = [r#"{"n":1}"#, "{}{}", "", r#"{"n":2} {"n":3}"#, "{\"n\":4}\n", r#"{"n":5}"#];
    let out = translated(&Json, nt(), &texts(bodies));
    assert_eq!(rows(&out, &["n"]), ["0: 1", "4: 4", "5: 5"]);
    assert_eq!(rejected(&out), [1, 2, 3]);
    assert_eq!(details(&out)[..2], [SEVERAL, "the body is empty"]);
}

#[test]
fn half_a_value_stays_in_its_body() {
    for half in [
        r#"{"n":1"#,
        r#"{"n":"#,
        r#"{"t":"x"#,
        "{",
        "{\"",
        r#"{"t":"\"#,
        r#"{"t":"\ud83d"#,
        r#"{"t":"\ud83d"}"#,
        r#"{"u":[{}"#,
        r#"{"n":tru}"#,
        "}",
        "1",
        "nul",
    ] {
        let out = translated(&Json, nt(), &texts([r#"{"n":1}"#, half, r#"{"n":2}"#, "\"}", r#"{"n":3}"#]));
        assert_eq!(
            (rows(&out, &["n"]), rejected(&out)),
            (vec!["0: 1".into(), "2: 2".into(), "4: 3".into()], vec![1, 3]),
            "{half}"
        );
    }
}

#[test]
fn marks_and_line_ends_around_a_value() {
    let bodies = ["\u{feff}{\"n\":1}", "{\"n\":2}\r\n", "\n\n{\"n\":\r\n3}", "\t{\"n\":4} "];
    assert_eq!(rows(&translated(&Json, nt(), &texts(bodies)), &["n"]), ["0: 1", "1: 2", "2: 3", "3: 4"]);
    for empty in ["", " ", "\r\n", "\u{feff}"] {
        assert_eq!(rejected(&translated(&Json, nt(), &texts([empty, "{}"]))), [0], "{empty:?}");
    }
}

#[test]
fn types_are_strict() {
    let bodies = [
        r#"{"n":"42"}"#,
        r#"{"n":5.7}"#,
        r#"{"n":7}"#,
        r#"{"t":5}"#,
        r#"{"t":["a"]}"#,
        r#"{"n":[1]}"#,
        r#"{"n":true}"#,
    ];
    let out = translated(&Json, nt(), &texts(bodies));
    assert_eq!((rows(&out, &NT), rejected(&out)), (vec!["2: 7|NULL".to_owned()], vec![0, 1, 3, 4, 5, 6]));
    assert_eq!(
        details(&out)[..4],
        [
            "column 'n' wants an integer: \"42\"",
            "column 'n' wants an integer: 5.7",
            "column 't' wants a string: 5",
            "column 't' wants a string: [\"a\"]",
        ]
    );
}

#[test]
fn a_list_in_one_row_and_a_scalar_in_the_next() {
    let config = json!({ "columns": { "l": "list<int64>" } });
    let out = translated(
        &Json,
        config,
        &texts([r#"{"l":[1,2]}"#, r#"{"l":3}"#, r#"{"l":[]}"#, r#"{"l":["4"]}"#, r#"{"l":[null]}"#]),
    );
    assert_eq!(
        (rows(&out, &["l"]), rejected(&out)),
        (vec!["0: [1, 2]".into(), "2: []".into(), "4: [NULL]".into()], vec![1, 3])
    );
}

#[test]
fn a_number_out_of_range_names_its_column() {
    let bodies = [
        r#"{"n":18446744073709551616}"#,
        r#"{"n":9223372036854775807}"#,
        r#"{"n":-9223372036854775809}"#,
        r#"{"n":1-2}"#,
    ];
    let out = translated(&Json, nt(), &texts(bodies));
    assert_eq!((rows(&out, &["n"]), rejected(&out)), (vec!["1: 9223372036854775807".to_owned()], vec![0, 2, 3]));
    assert_eq!(details(&out)[0], "column 'n': 18446744073709551616 is out of the range of Int64");
}

#[test]
fn null_is_no_body_and_neither_is_none() {
    let bodies: Vec<Option<&[u8]>> = vec![None, Some(b"null"), Some(b"[]"), Some(b"{\"t\":\"\xff\"}"), Some(b"{}")];
    let out = translated(&Json, nt(), &messages(Arc::new(BinaryArray::from(bodies))));
    assert_eq!(rejected(&out), [0, 1, 2, 3]);
    assert_eq!(
        details(&out),
        [
            "the message has no body",
            "the body wants an object: null",
            "the body wants an object: []",
            "the body is not UTF-8"
        ]
    );
}

#[test]
fn dates_times_decimals_and_structs() {
    let config = json!({ "columns": {
        "d": "date", "f": { "type": "date", "format": "%d.%m.%Y" }, "t": "timestamp_ms", "p": "decimal(10,2)",
        "s": "struct<name: utf8, age: int32>", "b": "binary",
    }});
    let bodies = [
        r#"{"d":"1999-12-31","f":"31.12.1999","t":"1999-12-31T23:59:59Z","p":12.5,"s":{"name":"x","age":1},"b":"0aff"}"#,
        r#"{"t":1000,"p":"0.10","s":{}}"#,
        r#"{"d":"1999-12-32"}"#,
        r#"{"f":"1999-12-31"}"#,
        r#"{"d":5}"#,
        r#"{"s":{"age":"1"}}"#,
        r#"{"p":123456789012.5}"#,
        r#"{"b":"xy"}"#,
    ];
    let out = translated(&Json, config, &texts(bodies));
    assert_eq!(
        rows(&out, &["d", "f", "t", "p", "s", "b"]),
        [
            "0: 1999-12-31|1999-12-31|1999-12-31T23:59:59Z|12.50|{name: x, age: 1}|0aff",
            "1: NULL|NULL|1970-01-01T00:00:01Z|0.10|{name: NULL, age: NULL}|NULL",
        ]
    );
    assert_eq!(rejected(&out), [2, 3, 4, 5, 6, 7]);
    let details = details(&out);
    assert_eq!(details[0], "column 'd' wants Date32, not \"1999-12-32\"");
    assert_eq!(details[1], "column 'f' wants a date like %d.%m.%Y, not '1999-12-31'");
    assert_eq!(details[3], "column 's.age' wants an integer: \"1\"");
    assert!(details[4].starts_with("column 'p'") && details[5].starts_with("column 'b'"), "{details:?}");
}

#[test]
fn nulls_instead_of_rejects() {
    let bodies = [
        r#"{"n":"42","t":"a"}"#,
        r#"{"n":1e30,"t":"b"}"#,
        r#"{"n":99999999999999999999,"t":"c"}"#,
        "{",
        "",
        "{}{}",
        "[]",
        r#"{"n":3,"t":["x"]}"#,
    ];
    let out = translated(&Json, with(json!({ "on_error": "null" })), &texts(bodies));
    assert_eq!((out.rejects.len(), out.nulled), (0, 8), "what is null instead is counted");
    assert_eq!(
        rows(&out, &NT),
        [
            "0: NULL|a",
            "1: NULL|b",
            "2: NULL|c",
            "3: NULL|NULL",
            "4: NULL|NULL",
            "5: NULL|NULL",
            "6: NULL|NULL",
            "7: 3|NULL"
        ]
    );
}

#[test]
fn many_records_in_a_body_are_numbered() {
    let many: String = (0..20_000).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let bodies = ["{\"n\":1}\n{\"n\":2}\n", "", r#"{"n":3}{"n":"4"}"#, "{\"n\":5}", &many, "{\"n\":6"];
    let out = translated(&Json, with(json!({ "records": "many" })), &texts(bodies));
    assert_eq!(out.rows.len(), 20_003);
    assert_eq!(rows(&out, &["row_number", "n"])[..4], ["0: 1|1", "0: 2|2", "3: 1|5", "4: 1|0"]);
    assert_eq!(rejected(&out), [2, 5]);
    let out = translated(&Json, with(json!({ "records": "many", "on_error": "null" })), &texts(bodies));
    assert_eq!(rows(&out, &["row_number", "n"])[2..4], ["2: 1|3", "2: 2|NULL"]);
}

#[test]
fn one_bad_row_among_ten_thousand_is_alone() {
    for bad in [r#"{"n":"1"}"#, r#"{"n":99999999999999999999}"#, "{", "{}{}", "", r#"{"t":"\ud83d"}"#] {
        for at in [0, 4_999, 9_999] {
            let mut bodies: Vec<_> = (0..10_000).map(|n| format!("{{\"n\":{n}}}")).collect();
            bad.clone_into(&mut bodies[at]);
            let out = translated(&Json, nt(), &texts(bodies.iter().map(String::as_str)));
            assert_eq!((out.rows.len(), rejected(&out)), (9_999, vec![u32::try_from(at).expect("small")]), "{bad}");
        }
    }
}

#[test]
fn names_keep_their_case_and_types_the_decoder_lacks_are_refused() {
    let config =
        json!({ "columns": { "Y": "int64", "a b": "utf8", "y": "utf8" }, "where": "\"Y\" > 1 AND \"a b\" <> ''" });
    let out = translated(&Json, config, &texts([r#"{"Y":2,"y":"z","a b":"c"}"#, r#"{"y":"2","a b":"c"}"#]));
    assert_eq!(rows(&out, &["Y", "a b", "y"]), ["0: 2|c|z"]);
    let errors = Json.plan(&json!({ "columns": { "i": "Interval(DayTime)" } }), &texts([]).columns.schema());
    assert_eq!(errors.err().expect("refused")[0].path, ["columns", "i"]);
}

proptest! {
    #[test]
    fn any_bodies_side_by_side_are_read_as_each_alone(
        bodies in prop::collection::vec(
            prop_oneof![
                r#"[{}\[\]":,nt1. \\]{0,10}"#,
                r#"\{"n":(1|"1"|1\.5|null|99999999999999999999)(,"t":("x"|1|"\\u00e9"))?\}[ \n{]?"#,
            ],
            1..16,
        )
    ) {
        let together = translated(&Json, nt(), &texts(bodies.iter().map(String::as_str)));
        let mut alone = Vec::new();
        for (at, body) in bodies.iter().enumerate() {
            let out = translated(&Json, nt(), &texts([body.as_str()]));
            prop_assert_eq!(out.rows.len() + out.rejects.len(), 1);
            alone.extend(rows(&out, &NT).iter().map(|row| row.replacen('0', &at.to_string(), 1)));
        }
        prop_assert_eq!(rows(&together, &NT), alone);
    }
}
