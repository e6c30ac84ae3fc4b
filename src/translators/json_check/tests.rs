use std::sync::Arc;

use arrow::datatypes::{Field, TimeUnit};

use super::*;

fn expected() -> Expected {
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let entry =
        Fields::from(vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Int64, true)]);
    let inner = Fields::from(vec![Field::new("b", DataType::Boolean, true)]);
    let entries = Arc::new(Field::new("entries", DataType::Struct(entry), false));
    let field = |(name, data_type): (&str, DataType)| Field::new(name, data_type, true);
    let fields = [
        ("n", DataType::Int64),
        ("x", DataType::Float32),
        ("at", DataType::Timestamp(TimeUnit::Millisecond, None)),
        ("t", DataType::Utf8),
        ("tags", DataType::List(item(DataType::Utf8))),
        ("in", DataType::Struct(inner)),
        ("m", DataType::Map(entries, false)),
        ("\"q\"\\", DataType::Int64),
    ];
    Expected::object(&fields.into_iter().map(field).collect())
}

fn faults(body: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    scan(body.as_bytes(), &expected(), &mut faults);
    faults
}

#[test]
fn what_fits_has_no_fault() {
    for body in [
        "{}",
        " { \"n\" : -42 , \"x\" : 1 , \"t\" : \"a\\\"b\\\\\" } ",
        r#"{"t":"a","n":1,"x":1.5e3,"tags":["a",null],"in":{"b":true,"other":[1,{"]":"}"}]},"m":{"k":1}}"#,
        r#"{"n":-9223372036854775808,"x":1e38,"at":9223372036854775807}"#,
        r#"{"n":null,"unknown":{"n":"42"},"t":null}"#,
    ] {
        assert_eq!(faults(body), [], "{body}");
    }
}

#[test]
fn values_of_another_kind_are_found_by_column() {
    for (body, text, what) in [
        (r#"{"n":"42"}"#, "\"42\"", "column 'n' wants an integer"),
        (r#"{"n":5.7}"#, "5.7", "column 'n' wants an integer"),
        (r#"{"n":1e3}"#, "1e3", "column 'n' wants an integer"),
        (r#"{"\u006e":"42"}"#, "\"42\"", "column 'n' wants an integer"),
        (r#"{"n":-9223372036854775809}"#, "-9223372036854775809", "column 'n' cannot hold such a number"),
        (r#"{"at":9223372036854775808}"#, "9223372036854775808", "column 'at' cannot hold such a number"),
        (r#"{"x":1e39}"#, "1e39", "column 'x' cannot hold such a number"),
        (r#"{"\"q\"\\":"1"}"#, "\"1\"", r#"column '"q"\' wants an integer"#),
        (r#"{"x":"1"}"#, "\"1\"", "column 'x' wants a number"),
        (r#"{"t":[1,"]"]}"#, r#"[1,"]"]"#, "column 't' wants a string"),
        (r#"{"tags":"a"}"#, "\"a\"", "column 'tags' wants a list"),
        (r#"{"tags":["a",1]}"#, "1", "column 'tags' wants a string"),
        (r#"{"in":{"b":0}}"#, "0", "column 'in.b' wants true or false"),
        (r#"{"m":{"k":"1"}}"#, "\"1\"", "column 'm' wants an integer"),
        ("[1]", "[1]", "the body wants an object"),
        ("null", "null", "the body wants an object"),
    ] {
        let faults = faults(body);
        let [Fault::Value(range, said)] = faults.as_slice() else { panic!("{body}: {faults:?}") };
        assert_eq!((&body[range.clone()], said.as_str()), (text, what), "{body}");
    }
    assert_eq!(faults(r#"{"n":"42","x":"1"}"#).len(), 2);
}

#[test]
fn what_is_not_json_is_a_fault_of_syntax() {
    for body in [
        "{",
        "{\"",
        "{\"n",
        "{\"n\"",
        "{\"n\":",
        "{\"n\":1",
        "{\"n\":1,",
        "{\"n\":1,}",
        "{n:1}",
        "{\"n\" 1}",
        "}",
        "]",
        "{\"n\":1 \"x\":2}",
        "{\"n\":1,,\"x\":2}",
        "{\"tags\":[\"a\" \"b\"]}",
        "{\"tags\":[",
        "{\"u\":[{]",
        "nul",
        "x",
        "{\"t\":\"\\",
        "{\"t\":\"\\\"",
        "{\"t\":tru}",
        "{\"n\":01}",
    ] {
        assert!(matches!(faults(body).last(), Some(Fault::Syntax(..))), "{body}");
    }
}

#[test]
fn values_are_counted() {
    for (body, count) in [("", 0), (" ", 0), ("{}", 1), ("{}{}", 2), ("{}\n{\"n\":1}\n", 2)] {
        assert_eq!(scan(body.as_bytes(), &expected(), &mut Vec::new()), count, "{body}");
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_scanned_to_an_end(body in r#"[{}\[\]":,ntx\\0-9.e "]{0,40}"#) {
        scan(body.as_bytes(), &expected(), &mut Vec::new());
    }
}
