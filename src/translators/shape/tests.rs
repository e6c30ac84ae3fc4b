use arrow::array::{AsArray, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type};

use super::*;

fn raw() -> Raw {
    let texts = |texts: [&str; 4]| Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    let columns = RecordBatch::try_from_iter([
        ("id", texts(["a", "b", "c", "d"])),
        ("value", texts(["1", "2", "x", "4"])),
        ("kind", texts(["p", "q", "p", "p"])),
    ]);
    Rows { columns: columns.expect("columns"), origin: vec![10, 11, 12, 13] }
}

fn declared() -> Vec<FieldRef> {
    vec![Arc::new(Field::new("N", DataType::Int64, true))]
}

fn read() -> Read {
    Read {
        columns: vec![Arc::new(Int64Array::from(vec![1, 2, 3, 4]))],
        from: None,
        rejects: Vec::new(),
        nulled: Vec::new(),
    }
}

fn shape(json: serde_json::Value) -> Shape {
    serde_json::from_value(json).expect("a shape")
}

fn shaped(json: serde_json::Value, on_error: OnError) -> Translated {
    let shaper = shape(json).plan(&raw().columns.schema(), &declared(), Base::Identity, on_error).expect("planned");
    let translated = shaper.shape(&raw(), read()).expect("shaped");
    assert_eq!(translated.rows.columns.schema(), *shaper.output());
    assert_eq!(translated.rows.columns.num_rows(), translated.rows.len());
    translated
}

fn names(schema: &Schema) -> Vec<&str> {
    schema.fields().iter().map(|field| field.name().as_str()).collect()
}

#[test]
fn identity_then_declared_then_kept_then_derived() {
    let derive = serde_json::json!({ "keep": ["kind"], "derive": { "Twice": "N * 2", "more": "\"Twice\" + 1" } });
    let translated = shaped(derive, OnError::DeadLetter);
    assert_eq!(names(&translated.rows.columns.schema()), ["id", "N", "kind", "Twice", "more"]);
    assert_eq!(translated.rows.columns["more"].as_primitive::<Int64Type>().values(), &[3, 5, 7, 9]);
}

#[test]
fn a_filtered_row_is_done_and_a_null_does_not_hold() {
    let translated = shaped(serde_json::json!({ "where": "kind = 'p' AND nullif(N, 3) > 0" }), OnError::DeadLetter);
    assert_eq!(translated.rows.origin, [10, 13]);
    assert!(translated.rejects.is_empty());
    let translated = shaped(serde_json::json!({ "where": "false" }), OnError::DeadLetter);
    assert!(translated.rows.is_empty() && translated.rejects.is_empty());
}

#[test]
fn select_replaces_the_list_and_sees_what_is_derived() {
    let select = serde_json::json!({ "derive": { "d": "N + 1" }, "select": ["d", "upper(kind) AS \"K d\"", "value"] });
    let translated = shaped(select, OnError::DeadLetter);
    assert_eq!(names(&translated.rows.columns.schema()), ["d", "K d", "value"]);
    assert_eq!(translated.rows.columns["K d"].as_string::<i32>().value(1), "Q");
}

#[test]
fn a_row_whose_expression_fails_is_rejected_alone() {
    let failing = serde_json::json!({ "derive": { "v": "CAST(value AS BIGINT)" } });
    let translated = shaped(failing.clone(), OnError::DeadLetter);
    assert_eq!(translated.rows.origin, [10, 11, 13]);
    assert_eq!(translated.rows.columns["v"].as_primitive::<Int64Type>().values(), &[1, 2, 4]);
    let [reject] = translated.rejects.as_slice() else { panic!("{:?}", translated.rejects) };
    assert_eq!((reject.row, reject.reason), (2, Reason::Expression));
    assert!(reject.detail.contains("'x'"), "{}", reject.detail);

    let translated = shaped(failing.clone(), OnError::Null);
    assert_eq!((translated.rows.len(), translated.rows.columns["v"].null_count(), translated.nulled), (4, 1, 1));

    let twice = serde_json::json!({ "derive": { "v": "CAST(value AS BIGINT)", "w": "CAST(value AS INT)" } });
    let shaper = shape(twice).plan(&raw().columns.schema(), &declared(), Base::Identity, OnError::Null);
    let mended = Read { nulled: vec![0, 2], ..read() };
    let translated = shaper.expect("planned").shape(&raw(), mended).expect("shaped");
    assert_eq!(translated.nulled, 2, "each message once, whatever of it is null");

    let shaper = shape(failing).plan(&raw().columns.schema(), &declared(), Base::Identity, OnError::Fail);
    assert!(shaper.expect("planned").shape(&raw(), read()).is_err());
}

#[test]
fn a_condition_that_fails_rejects_unless_nulls_are_wanted() {
    let failing = serde_json::json!({ "where": "CAST(value AS BIGINT) > 1" });
    let translated = shaped(failing.clone(), OnError::DeadLetter);
    assert_eq!(translated.rows.origin, [11, 13]);
    assert_eq!(translated.rejects.iter().map(|reject| reject.row).collect::<Vec<_>>(), [2]);
    let translated = shaped(failing, OnError::Null);
    assert_eq!((translated.rows.origin, translated.rejects.len()), (vec![11, 13], 0));
}

#[test]
fn one_failing_row_takes_all_rows_of_its_message() {
    let shape = shape(serde_json::json!({ "derive": { "inverse": "12 / N" } }));
    let shaper = shape.plan(&raw().columns.schema(), &declared(), Base::Identity, OnError::DeadLetter);
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(vec![1, 2, 0, 3, 4]))];
    let read = Read { columns, from: Some(vec![0, 1, 1, 1, 3]), rejects: Vec::new(), nulled: Vec::new() };
    let translated = shaper.expect("planned").shape(&raw(), read).expect("shaped");
    assert_eq!(translated.rows.origin, [10, 13]);
    assert_eq!(translated.rows.columns["id"].as_string::<i32>().value(1), "d");
    assert_eq!(translated.rejects.iter().map(|reject| reject.row).collect::<Vec<_>>(), [1]);
}

#[test]
fn every_mistake_is_reported_at_its_place() {
    let shape = shape(serde_json::json!({
        "keep": ["knid"], "where": "N + 1", "derive": { "id": "1", "z": "nn" }, "select": ["N + 1", "kind AS q", "N AS q"],
    }));
    let mut declared = declared();
    declared.push(Arc::new(Field::new("id", DataType::Utf8, true)));
    let errors = shape.plan(&raw().columns.schema(), &declared, Base::Identity, OnError::DeadLetter);
    let errors = errors.expect_err("mistakes");
    let places: Vec<_> = errors.iter().map(|error| error.path.join(".")).collect();
    assert_eq!(places, ["columns.id", "keep.0", "derive.id", "where", "derive.z", "select.0", "select.2"]);
    assert!(errors[1].message.ends_with("did you mean 'kind'?"), "{}", errors[1].message);
}
