//! Messages for the tests of the translators.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, MapBuilder, RecordBatch, StringArray, StringBuilder,
    TimestampMillisecondArray,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::Value;

use crate::flow::registry::TranslatorKind;
use crate::flow::{Raw, Rows, Translated};

/// One message per value: ids `m0`, `m1`, …, origins from 100.
pub(super) fn messages(values: ArrayRef) -> Raw {
    let rows = values.len();
    let ids = StringArray::from_iter_values((0..rows).map(|row| format!("m{row}")));
    let times = || {
        TimestampMillisecondArray::from_iter_values((0..rows as i64).map(|row| row * 86_400_000)).with_timezone("UTC")
    };
    let mut properties = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for _ in 0..rows {
        properties.keys().append_value("kind");
        properties.values().append_value("test");
        properties.append(true).expect("a map");
    }
    let columns = RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(ids) as ArrayRef, true),
        ("sent", Arc::new(times()), true),
        ("received", Arc::new(times()), false),
        ("value", values, true),
        ("properties", Arc::new(properties.finish()), true),
        ("redelivered", Arc::new(BooleanArray::from(vec![false; rows])), false),
    ]);
    Raw { columns: columns.expect("message columns"), origin: (100..).take(rows).collect() }
}

/// One message per text.
pub(super) fn texts<'a>(bodies: impl IntoIterator<Item = &'a str>) -> Raw {
    messages(Arc::new(StringArray::from_iter_values(bodies)))
}

/// Plans `config` and translates `raw`, and checks what must always hold.
pub(super) fn translated(kind: &dyn TranslatorKind, config: Value, raw: &Raw) -> Translated {
    let factory = kind.plan(&config, &raw.columns.schema()).unwrap_or_else(|errors| panic!("{errors:?}"));
    let mut translator = factory.translator();
    let out = translator.translate(raw).expect("translated");
    checked(raw, &out);
    assert_eq!(out.rows.columns.schema(), factory.output());
    // A second batch must not see anything of the first.
    let again = translator.translate(raw).expect("translated again");
    assert_eq!((&again.rows.columns, &again.rows.origin), (&out.rows.columns, &out.rows.origin));
    out
}

/// Every row carries its own message's id, and no message is both in and out.
fn checked(raw: &Raw, out: &Translated) {
    let Rows { columns, origin } = &out.rows;
    assert_eq!(columns.num_rows(), origin.len());
    let rejected: Vec<_> = out.rejects.iter().map(|reject| raw.origin[reject.row as usize]).collect();
    assert!(rejected.is_sorted_by(|a, b| a < b), "{rejected:?}");
    assert!(origin.is_sorted() && origin.iter().all(|origin| !rejected.contains(origin)));
    if let Some(ids) = columns.column_by_name("id") {
        for (id, origin) in ids.as_string::<i32>().iter().zip(origin) {
            assert_eq!(id, Some(format!("m{}", origin - 100).as_str()));
        }
    }
}

/// The names of the columns.
pub(super) fn names(out: &Translated) -> Vec<String> {
    out.rows.columns.schema().fields().iter().map(|field| field.name().clone()).collect()
}

/// Rows as text: the message's number, then the named columns.
pub(super) fn rows(out: &Translated, columns: &[&str]) -> Vec<String> {
    let options = FormatOptions::new().with_null("NULL");
    let columns: Vec<_> = columns.iter().map(|name| Arc::clone(&out.rows.columns[*name])).collect();
    let formatters: Vec<_> =
        columns.iter().map(|column| ArrayFormatter::try_new(column, &options).expect("a formatter")).collect();
    let row = |(at, origin): (usize, &u32)| {
        let values: Vec<_> = formatters.iter().map(|formatter| formatter.value(at).to_string()).collect();
        format!("{}: {}", origin - 100, values.join("|"))
    };
    out.rows.origin.iter().enumerate().map(row).collect()
}

/// Which messages were rejected.
pub(super) fn rejected(out: &Translated) -> Vec<u32> {
    out.rejects.iter().map(|reject| reject.row).collect()
}
