use std::sync::Arc;

use arrow::array::{BinaryArray, StringArray};
use proptest::prelude::*;
use serde_json::json;

use super::super::testing::{messages, names, rejected, rows, texts, translated};
use super::*;
use crate::flow::Translated;

const AB: [&str; 2] = ["a", "b"];

fn ab() -> Value {
    json!({ "columns": { "a": "int64", "b": "utf8" } })
}

fn with(extra: Value) -> Value {
    let mut config = ab();
    config.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    config
}

fn details(out: &Translated) -> Vec<&str> {
    out.rejects.iter().map(|reject| reject.detail.as_str()).collect()
}

#[test]
fn identity_declared_kept_derived() {
    let config = with(json!({ "keep": ["properties"], "derive": { "sent_dt": "to_date(sent)" } }));
    let out = translated(&Csv, config, &texts(["1,otter", "2,\"a, \"\"b\"\"\""]));
    assert_eq!(names(&out), ["id", "sent", "received", "a", "b", "properties", "sent_dt"]);
    assert_eq!(rows(&out, &["a", "b", "sent_dt"]), ["0: 1|otter|1970-01-01", "1: 2|a, \"b\"|1970-01-02"]);
}

#[test]
fn a_body_of_two_lines_beside_an_empty_one_shifts_nothing() {
    let out = translated(&Csv, ab(), &texts(["1,x", "2,y\n3,z", "", "4,w"]));
    assert_eq!(rows(&out, &AB), ["0: 1|x", "3: 4|w"]);
    assert_eq!(rejected(&out), [1, 2]);
    assert_eq!(details(&out), ["the body has more than one record; records: many would take it", "the body is empty"]);
}

#[test]
fn an_open_quote_stays_in_its_body() {
    for open in ["2,\"y", "2,y\n\"", "\"", "2,\"y\n", "2,\"\"\"", "2,y\n3,\"z\n"] {
        let out = translated(&Csv, ab(), &texts(["1,x", open, "4,\"w\"", "5,\"v\nu\""]));
        assert_eq!(rows(&out, &AB), ["0: 1|x", "2: 4|w", "3: 5|v\nu"], "{open:?}");
        assert_eq!(rejected(&out), [1], "{open:?}");
    }
    let out = translated(&Csv, ab(), &texts(["1,x", "2,\"y"]));
    assert_eq!(details(&out), ["a quote is not closed"]);
}

#[test]
fn line_ends_and_marks_around_a_record_are_not_part_of_it() {
    let bodies = ["1,x", "2,x\n", "3,x\r\n", "4,x\r", "\n5,x", "\r\n6,x\n\n\n", "\u{feff}7,x", "\u{feff}8,\"x\"\r\n"];
    let out = translated(&Csv, ab(), &texts(bodies));
    let expected: Vec<_> = (0..bodies.len()).map(|at| format!("{at}: {}|x", at + 1)).collect();
    assert_eq!(rows(&out, &AB), expected);
    for empty in ["", "\n", "\r\n", "\n\n", "\u{feff}"] {
        assert_eq!(rejected(&translated(&Csv, ab(), &texts(["1,x", empty, "2,x"]))), [1], "{empty:?}");
    }
}

#[test]
fn a_byte_order_mark_before_a_quoted_field_with_a_comma_and_a_line_end() {
    let config = json!({ "columns": { "b": "utf8", "a": "int64" } });
    let out = translated(&Csv, config, &texts(["\u{feff}\"x,\ny\",1", "\u{feff}\"z\",2", "\u{feff}\u{feff}w,3"]));
    assert_eq!(rows(&out, &["b", "a"]), ["0: x,\ny|1", "1: z|2", "2: \u{feff}w|3"]);
}

#[test]
fn quoted_line_ends_keep_every_byte() {
    for text in ["\r\n", "\n", "\r", "x\r\ny", "\r\n\r\n", "a\"\"b", ",,", " "] {
        let body = format!("1,\"{text}\"");
        let out = translated(&Csv, ab(), &texts([body.as_str(), body.as_str()]));
        let expected = text.replace("\"\"", "\"");
        assert_eq!(rows(&out, &AB), [format!("0: 1|{expected}"), format!("1: 1|{expected}")], "{text:?}");
    }
}

/// Line ends inside of quotes at every place where a decoder may have to look twice: where its room for records ends, and
/// where its buffers grow.
#[test]
fn quoted_line_ends_survive_at_every_boundary() {
    let many = with(json!({ "records": "many" }));
    for quoted in ["\r\n", "\n", "\r", "\"\""] {
        let expected = quoted.replace("\"\"", "\"");
        for at in [MANY - 2, MANY - 1, MANY, MANY + 1, 2 * MANY - 1, 2 * MANY] {
            let lines: String = (0..2 * MANY + 3)
                .map(|n| if n == at { format!("{n},\"a{quoted}b\"\r\n") } else { format!("{n},x\r\n") })
                .collect();
            let out = translated(&Csv, many.clone(), &texts([lines.as_str(), "-1,y"]));
            assert_eq!((out.rows.len(), out.rejects.len()), (2 * MANY + 4, 0), "{quoted:?} at {at}");
            let texts = out.rows.columns["b"].as_string::<i32>();
            assert_eq!(texts.value(at), format!("a{expected}b"), "{quoted:?} at {at}");
        }
        for size in [1023, 1024, 4095, 4096, 8191, 8192, 16_383, 65_535, 65_536, 1 << 20] {
            for shift in 0..3 {
                let field = format!("{}{quoted}{}", "x".repeat(size - shift), "y".repeat(shift));
                let body = format!("1,\"{field}\"");
                let out = translated(&Csv, ab(), &texts([body.as_str(), "2,z"]));
                let texts = out.rows.columns["b"].as_string::<i32>();
                assert_eq!(texts.value(0), field.replace("\"\"", "\""), "{quoted:?}, {size} bytes before it");
                assert_eq!(texts.value(1), "z");
            }
        }
    }
}

/// A line with nothing in it is no record, whatever the separator and however many columns there are.
#[test]
fn blank_lines_between_records_are_none() {
    for delimiter in [",", ";", "\t", "|", " "] {
        let body = format!("1{delimiter}x\n\n\r\n\n2{delimiter}y\n\n");
        let config = with(json!({ "records": "many", "delimiter": delimiter }));
        let out = translated(&Csv, config, &texts(["\n", body.as_str(), "\r\n\n"]));
        assert_eq!(rows(&out, &["row_number", "a", "b"]), ["1: 1|1|x", "1: 2|2|y"], "{delimiter:?}");
        assert!(out.rejects.is_empty(), "{delimiter:?}: {:?}", out.rejects);
        // With one column a null is written as a quoted field: nothing at all is no record.
        let one = json!({ "columns": { "b": "utf8" }, "records": "many", "delimiter": delimiter });
        let out = translated(&Csv, one, &texts(["x\n\n\"\"\n\ny"]));
        assert_eq!(rows(&out, &["row_number", "b"]), ["0: 1|x", "0: 2|NULL", "0: 3|y"], "{delimiter:?}");
    }
}

#[test]
fn an_empty_field_is_null_whatever_the_separator() {
    for delimiter in [",", ";", "\t", "\\t", "|"] {
        let d = if delimiter == "\\t" { "\t" } else { delimiter };
        let bodies = [format!("{d}x"), format!("1{d}"), d.to_owned(), format!("\n1{d}\"\"")];
        let out = translated(&Csv, with(json!({ "delimiter": delimiter })), &texts(bodies.iter().map(String::as_str)));
        assert_eq!(rows(&out, &AB), ["0: NULL|x", "1: 1|NULL", "2: NULL|NULL", "3: 1|NULL"], "{delimiter:?}");
    }
    let one = json!({ "columns": { "b": "utf8" } });
    let out = translated(&Csv, one, &texts(["\"\"", " ", ""]));
    assert_eq!(rows(&out, &["b"]), ["0: NULL", "1:  "]);
}

#[test]
fn too_few_or_too_many_fields_are_rejected() {
    let out = translated(&Csv, ab(), &texts(["1", "1,x,y", "2,z", "1,x,"]));
    assert_eq!((rows(&out, &AB), rejected(&out)), (vec!["2: 2|z".to_owned()], vec![0, 1, 3]));
    assert_eq!(details(&out)[0], "incorrect number of fields: expected 2 got 1");
    assert_eq!(details(&out)[1], "incorrect number of fields: expected 2 got 3");
}

#[test]
fn a_number_out_of_range_names_its_column() {
    let out = translated(&Csv, ab(), &texts(["12345678901234567890,x", "1,y", "a,b", "5.7,z"]));
    assert_eq!((rows(&out, &AB), rejected(&out)), (vec!["1: 1|y".to_owned()], vec![0, 2, 3]));
    assert_eq!(
        details(&out),
        [
            "column 'a' wants Int64, not '12345678901234567890'",
            "column 'a' wants Int64, not 'a'",
            "column 'a' wants Int64, not '5.7'"
        ]
    );
    let ids = translated(&Csv, json!({ "columns": { "key": "utf8" } }), &texts(["0012345678901234567890"]));
    assert_eq!(rows(&ids, &["key"]), ["0: 0012345678901234567890"]);
}

#[test]
fn a_message_without_a_body_and_one_that_is_not_utf8() {
    let bodies: Vec<Option<&[u8]>> =
        vec![Some(b"1,x"), None, Some(b"2,\xff"), Some(b"3,\xc3"), Some(b"\xa9,4"), Some(b"5,\xc3\xa9")];
    let out = translated(&Csv, ab(), &messages(Arc::new(BinaryArray::from(bodies))));
    assert_eq!((rows(&out, &AB), rejected(&out)), (vec!["0: 1|x".to_owned(), "5: 5|é".to_owned()], vec![1, 2, 3, 4]));
    assert_eq!(details(&out)[..2], ["the message has no body", "the body is not UTF-8"]);
}

#[test]
fn formats_types_and_null_values() {
    let config = json!({
        "columns": { "d": { "type": "date", "format": "%d.%m.%Y" }, "t": "timestamp", "p": "decimal(10,2)", "f": "boolean" },
        "null": ["", "NULL"], "delimiter": ";",
    });
    let out = translated(
        &Csv,
        config,
        &texts([
            "31.12.1999;1999-12-31 23:59:59;12.5;true",
            "NULL;1999-12-31T23:59:59+01:00;NULL;",
            "1999-12-31;;;",
            ";;;yes",
        ]),
    );
    assert_eq!(
        rows(&out, &["d", "t", "p", "f"]),
        ["0: 1999-12-31|1999-12-31T23:59:59Z|12.50|true", "1: NULL|1999-12-31T22:59:59Z|NULL|NULL"]
    );
    assert_eq!(
        details(&out),
        ["column 'd' wants a date like %d.%m.%Y, not '1999-12-31'", "column 'f' wants Boolean, not 'yes'"]
    );
}

#[test]
fn nothing_is_null_and_quotes_may_be_escaped() {
    let out = translated(&Csv, with(json!({ "null": [], "escape": "\\", "quote": "'" })), &texts(["1,", "2,'it\\'s'"]));
    assert_eq!(rows(&out, &AB), ["0: 1|", "1: 2|it's"]);
}

#[test]
fn nulls_instead_of_rejects() {
    let bodies = ["1,x", "q,y", "2", "", "3,\"z", "4,w\n5,v", "6,u", "7,t,s"];
    let out = translated(&Csv, with(json!({ "on_error": "null" })), &texts(bodies));
    assert_eq!((out.rejects.len(), out.nulled), (0, 6), "what is null instead is counted");
    assert_eq!(
        rows(&out, &AB),
        ["0: 1|x", "1: NULL|y", "2: 2|NULL", "3: NULL|NULL", "4: NULL|NULL", "5: NULL|NULL", "6: 6|u", "7: NULL|NULL"]
    );
}

#[test]
fn on_error_fail_ends_the_generation() {
    let raw = texts(["1,x", "q,y"]);
    let factory = Csv.plan(&with(json!({ "on_error": "fail" })), &raw.columns.schema()).expect("planned");
    let error = factory.translator().translate(&raw).err().expect("it fails").to_string();
    assert!(error.contains("row 1") && error.contains("column 'a' wants Int64, not 'q'"), "{error}");
}

#[test]
fn many_records_in_a_body_are_numbered() {
    let bodies = ["1,x\n2,y\n", "", "3,z", "4,w\nq,v\n5,u", "6,\"t\n\"\r\n\r\n7,s"];
    let out = translated(&Csv, with(json!({ "records": "many" })), &texts(bodies));
    assert_eq!(names(&out), ["id", "sent", "received", "row_number", "a", "b"]);
    assert_eq!(rows(&out, &["row_number", "a", "b"]), ["0: 1|1|x", "0: 2|2|y", "2: 1|3|z", "4: 1|6|t\n", "4: 2|7|s"]);
    assert_eq!((rejected(&out), details(&out)), (vec![3], vec!["column 'a' wants Int64, not 'q'"]));
    let out = translated(&Csv, with(json!({ "records": "many", "on_error": "null" })), &texts(bodies));
    assert_eq!(rows(&out, &["row_number", "a"])[3..6], ["3: 1|4", "3: 2|NULL", "3: 3|5"]);
}

#[test]
fn a_body_may_have_more_records_than_the_decoder_has_room_for() {
    let body: String = (0..20_000).map(|n| format!("{n},x\n")).collect();
    let exact: String = (0..MANY).map(|n| format!("{n},x\n")).collect();
    let out = translated(&Csv, with(json!({ "records": "many" })), &texts(["-1,x", &body, &exact, "-2,x"]));
    assert_eq!(out.rows.len(), 20_002 + MANY);
    assert_eq!(rows(&out, &["row_number", "a"])[20_000], "1: 20000|19999");
    assert!(out.rejects.is_empty());
}

#[test]
fn one_bad_row_among_ten_thousand_is_alone() {
    for bad in ["q,x", "1", "1,\"x", "1,x\n2,y", ""] {
        for at in [0, 4_999, 9_999] {
            let mut bodies: Vec<_> = (0..10_000).map(|n| format!("{n},x")).collect();
            bad.clone_into(&mut bodies[at]);
            let raw = texts(bodies.iter().map(String::as_str));
            let out = translated(&Csv, ab(), &raw);
            assert_eq!((out.rows.len(), rejected(&out)), (9_999, vec![u32::try_from(at).expect("small")]), "{bad:?}");
        }
    }
}

#[test]
fn a_batch_of_bad_rows_and_no_rows_at_all() {
    let bodies: Vec<_> = (0..2_000).map(|n| if n % 2 == 0 { "q,x" } else { "1,\"" }).collect();
    let out = translated(&Csv, ab(), &texts(bodies));
    assert_eq!((out.rows.len(), out.rejects.len()), (0, 2_000));
    assert_eq!(translated(&Csv, ab(), &texts([])).rows.len(), 0);
}

#[test]
fn a_line_that_looks_like_a_header_is_a_line() {
    let out = translated(&Csv, ab(), &texts(["a,b", "1,b"]));
    assert_eq!((rows(&out, &AB), rejected(&out)), (vec!["1: 1|b".to_owned()], vec![0]));
    let out = translated(&Csv, json!({ "columns": { "x": "utf8", "y": "utf8" } }), &texts(["x,y"]));
    assert_eq!(rows(&out, &["x", "y"]), ["0: x|y"]);
}

#[test]
fn every_mistake_is_reported_at_its_place() {
    let config = json!({
        "columns": { "id": "int64", "l": "list<int64>", "b": "binary", "row_number": "int64" }, "records": "many",
        "delimiter": "ab", "quote": "\n", "keep": ["value", "nope"], "where": "l", "derive": { "x": "to_dat(sent)" },
    });
    let errors = Csv.plan(&config, &texts(["x"]).columns.schema()).err().expect("mistakes");
    let mut places: Vec<_> = errors.iter().map(|error| error.path.join(".")).collect();
    places.sort();
    let expected = [
        "columns.b",
        "columns.id",
        "columns.l",
        "columns.row_number",
        "delimiter",
        "derive.x",
        "keep.1",
        "quote",
        "where",
    ];
    assert_eq!(places, expected, "{errors:#?}");
    let errors = Csv.plan(&json!({ "columns": { "a": "int46", "b": "utf9" } }), &texts(["x"]).columns.schema());
    assert_eq!(errors.err().expect("two types").len(), 2);
}

/// What a body is, by the rules above, for the alphabet of the test below.
fn model(body: &str) -> Option<(Option<i64>, Option<String>)> {
    let body = body.trim_matches(['\r', '\n']);
    let (mut fields, mut field, mut chars) = (Vec::new(), String::new(), body.chars().peekable());
    let mut start = true;
    while let Some(c) = chars.next() {
        match c {
            '"' if start => loop {
                match chars.next()? {
                    '"' if chars.next_if_eq(&'"').is_some() => field.push('"'),
                    '"' => break,
                    c => field.push(c),
                }
            },
            ',' => {
                fields.push(std::mem::take(&mut field));
                start = true;
                continue;
            }
            '\r' | '\n' => return None,
            c => field.push(c),
        }
        start = false;
    }
    fields.push(field);
    let [a, b] = <[String; 2]>::try_from(fields).ok()?;
    // The decoder does not mind space around a number.
    let a = if a.is_empty() { None } else { Some(a.trim().parse().ok()?) };
    Some((a, Some(b).filter(|b| !b.is_empty())))
}

proptest! {
    #[test]
    fn any_bodies_side_by_side_are_read_as_each_alone(bodies in prop::collection::vec("[12,\"\r\nx]{0,8}", 1..24)) {
        let out = translated(&Csv, ab(), &texts(bodies.iter().map(String::as_str)));
        let mut expected = Vec::new();
        for (at, body) in bodies.iter().enumerate() {
            if let Some((a, b)) = model(body) {
                let a = a.map_or("NULL".to_owned(), |a| a.to_string());
                expected.push(format!("{at}: {a}|{}", b.as_deref().unwrap_or("NULL")));
            }
        }
        prop_assert_eq!(rows(&out, &AB), expected);
        prop_assert_eq!(out.rejects.len() + out.rows.len(), bodies.len());
    }
}

#[test]
fn texts_and_bytes_are_read_alike() {
    let bodies = ["1,x", "", "2,\"y", "3,é"];
    let text = translated(&Csv, ab(), &messages(Arc::new(StringArray::from(bodies.to_vec()))));
    let bytes = BinaryArray::from_iter_values(bodies.map(str::as_bytes));
    let bytes = translated(&Csv, ab(), &messages(Arc::new(bytes)));
    assert_eq!((&text.rows.columns, rejected(&text)), (&bytes.rows.columns, rejected(&bytes)));
}
