use std::sync::Arc;

use arrow::array::{
    AsArray, Int64Array, MapBuilder, RecordBatch, StringArray, StringBuilder, TimestampMillisecondArray,
};
use arrow::datatypes::{DataType, Date32Type, Field, Int64Type, Schema, SchemaRef, TimeUnit};

use super::*;

fn schema() -> SchemaRef {
    batch().schema()
}

fn batch() -> RecordBatch {
    let mut properties = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for kind in ["order", "invoice", "order"] {
        properties.keys().append_value("kind");
        properties.values().append_value(kind);
        properties.append(true).expect("keys and values");
    }
    let sent = TimestampMillisecondArray::from(vec![Some(1_700_000_000_000), None, Some(0)]).with_timezone("UTC");
    RecordBatch::try_from_iter_with_nullable([
        ("sent", Arc::new(sent) as ArrayRef, true),
        ("animal", Arc::new(StringArray::from(vec![Some("otter"), Some("12"), None])) as ArrayRef, true),
        ("row_num", Arc::new(Int64Array::from(vec![1, 2, 0])) as ArrayRef, true),
        ("Y axis.\"1\"", Arc::new(Int64Array::from(vec![7, 8, 9])) as ArrayRef, true),
        ("properties", Arc::new(properties.finish()) as ArrayRef, true),
    ])
    .expect("batch")
}

fn evaluated(sql: &str) -> ArrayRef {
    Expression::plan(sql, &schema()).expect(sql).evaluate(&batch()).expect(sql)
}

fn refused(sql: &str) -> String {
    Expression::plan(sql, &schema()).expect_err(sql)
}

#[test]
fn a_date_of_a_zoned_timestamp() {
    let dates = evaluated("to_date(sent)");
    assert_eq!(dates.as_primitive::<Date32Type>().iter().collect::<Vec<_>>(), [Some(19675), None, Some(0)]);
}

#[test]
fn texts_come_out_as_plain_utf8() {
    for sql in [
        "concat_ws('-', row_num, animal)",
        "upper(animal)",
        "CAST(row_num AS VARCHAR)",
        "NULL",
        "split_part(animal, 't', 1)",
    ] {
        let planned = Expression::plan(sql, &schema()).expect(sql);
        assert_eq!(planned.field().data_type(), &DataType::Utf8, "{sql}");
    }
    assert_eq!(evaluated("concat_ws('-', row_num, animal)").as_string::<i32>().value(0), "1-otter");
}

#[test]
fn a_property_by_its_key() {
    let kinds = evaluated("properties['kind'] = 'order'");
    assert_eq!(kinds.as_boolean().iter().collect::<Vec<_>>(), [Some(true), Some(false), Some(true)]);
}

#[test]
fn names_keep_their_case_and_odd_ones_are_quoted() {
    let schema: SchemaRef = Arc::new(Schema::new(vec![
        Field::new("Y", DataType::Int64, true),
        Field::new("y", DataType::Utf8, true),
        Field::new("a b", DataType::Int64, true),
        Field::new("a.b", DataType::Int64, true),
        Field::new("a\"b", DataType::Int64, true),
    ]));
    for (sql, column) in
        [("Y", "Y"), ("y", "y"), ("\"a b\"", "a b"), ("\"a.b\"", "a.b"), ("\"a\"\"b\"", "a\"b"), ("\"Y\"", "Y")]
    {
        let planned = Expression::plan(sql, &schema).expect(sql);
        assert_eq!((planned.name(), planned.columns()), (Some(column), [column.to_owned()].as_slice()), "{sql}");
    }
    assert_eq!(evaluated("\"Y axis.\"\"1\"\"\" + 1").as_primitive::<Int64Type>().values(), &[8, 9, 10]);
    assert_eq!(
        Expression::plan("TO_DATE(sent) AS D", &self::schema()).expect("functions in any case").name(),
        Some("D")
    );
}

#[test]
fn a_misspelt_name_is_answered_with_the_nearest() {
    for (sql, expected) in [
        ("to_date(snet)", "there is no column 'snet'; did you mean 'sent'?"),
        ("Animal", "there is no column 'Animal'; did you mean 'animal'?"),
        ("to_dat(sent)", "there is no function 'to_dat'; did you mean 'to_date'?"),
        ("xyzzy_plugh(sent)", "there is no function 'xyzzy_plugh'"),
        ("sum(row_num)", "sum() looks at many rows, but an expression sees one at a time"),
    ] {
        assert_eq!(refused(sql), expected, "{sql}");
    }
    assert!(refused("wholly_other").starts_with("there is no column 'wholly_other': there are sent, animal,"));
}

#[test]
fn what_looks_beyond_the_row_is_refused() {
    for sql in [
        "(select 1)",
        "exists (select 1)",
        "row_num in (select 1)",
        "(select max(row_num) from t)",
        "row_number() over ()",
        "count(*)",
        "now()",
        "current_date",
        "random()",
        "uuid()",
        "*",
        "$1",
        "@@version",
        "animal animal animal",
        "animal; drop table x",
        "",
        "1 +",
        "animal + sent",
        "(((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((",
    ] {
        let message = refused(sql);
        assert!(!message.is_empty() && !message.ends_with('.') && !message.contains('\n'), "{sql}: {message}");
        assert!(message.chars().next().is_some_and(|c| !c.is_uppercase()), "{sql}: {message}");
    }
}

#[test]
fn a_condition_is_boolean_and_null_does_not_hold() {
    let error = Expression::plan_condition("row_num + 1", &schema()).expect_err("a number");
    assert!(error.contains("true or false"), "{error}");
    let condition = Expression::plan_condition("animal = 'otter'", &schema()).expect("condition");
    let holds = Expression::holds(&condition.evaluate(&batch()).expect("evaluated"));
    assert_eq!(holds.iter().collect::<Vec<_>>(), [Some(true), Some(false), Some(false)]);
}

#[test]
fn only_the_failing_rows_fail() {
    let mut numbers: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    numbers[17] = "x".to_owned();
    numbers[999] = String::new();
    let batch = RecordBatch::try_from_iter([("t", Arc::new(StringArray::from(numbers)) as ArrayRef)]).expect("batch");
    let cast = Expression::plan("CAST(t AS BIGINT)", &batch.schema()).expect("planned");
    let mut failed = Vec::new();
    let values = cast.evaluate_each(&batch, |row, detail| failed.push((row, detail)));
    let values = values.as_primitive::<Int64Type>();
    assert_eq!(failed.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [17, 999]);
    assert!(failed[0].1.contains("'x'"), "{}", failed[0].1);
    assert_eq!((values.value(16), values.value(18), values.is_null(17), values.len()), (16, 18, true, 1000));
}

#[test]
fn constants_fill_the_batch_and_bind_to_narrower_ones() {
    assert_eq!(evaluated("42").len(), 3);
    let narrow = batch().project(&[2]).expect("projected");
    let doubled =
        Expression::plan("row_num * 2", &schema()).expect("planned").rebound(&narrow.schema()).expect("bound");
    assert_eq!(doubled.evaluate(&narrow).expect("values").as_primitive::<Int64Type>().values(), &[2, 4, 0]);
    assert_eq!(doubled.field().data_type(), &DataType::Int64);
    assert_eq!(
        Expression::plan("sent", &schema()).expect("sent").field().data_type(),
        &DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))
    );
}
