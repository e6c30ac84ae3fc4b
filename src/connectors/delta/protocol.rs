//! What a table demands of those who append to it, and whether we can.
//!
//! A feature is fine if appending rows cannot break its promise, or if nothing in the table uses it. What we do not know we
//! refuse: writing anyway would damage the table for everyone.

use std::time::Duration;

use deltalake::kernel::{DataType, StructType};

use super::log::{Metadata, Protocol};

/// Features that ask nothing of an append.
const HARMLESS: [&str; 8] = [
    "appendOnly",
    "changeDataFeed",
    "deletionVectors",
    "domainMetadata",
    "inCommitTimestamp",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
];

/// Features that ask something only where the table makes use of them: of the columns, or of the table as a whole.
const ON_COLUMNS: [(&str, &str); 3] = [
    ("invariants", "delta.invariants"),
    ("generatedColumns", "delta.generationExpression"),
    ("identityColumns", "delta.identity.start"),
];

/// Why we must not append to this table, if there is a reason.
pub fn refusal(protocol: &Protocol, metadata: &Metadata) -> Result<(), String> {
    let (reader, writer) = (protocol.min_reader_version, protocol.min_writer_version);
    if reader > 3 || writer > 7 {
        return Err(format!("it needs protocol versions {reader} and {writer}, and this program knows 3 and 7"));
    }
    let features = protocol.writer_features.iter().chain(&protocol.reader_features).flatten();
    for feature in features {
        let conditional = matches!(feature.as_str(), "checkConstraints" | "columnMapping");
        let known = HARMLESS.contains(&feature.as_str()) || ON_COLUMNS.iter().any(|(name, _)| name == feature);
        if !known && !conditional {
            return Err(format!("it needs the feature '{feature}', which this program does not have"));
        }
    }
    if metadata.property("delta.columnMapping.mode").is_some_and(|mode| mode != "none") {
        return Err("its columns are mapped (delta.columnMapping.mode), which this program cannot do".into());
    }
    if let Some(name) = metadata.configuration.keys().find(|key| key.starts_with("delta.constraints.")) {
        return Err(format!("it has the constraint '{name}', which this program cannot check"));
    }
    if metadata.property("delta.enableRowTracking") == Some("true") {
        return Err("it tracks rows (delta.enableRowTracking), which this program cannot do".into());
    }
    let schema = metadata.schema()?;
    for (feature, key) in ON_COLUMNS {
        if let Some(column) = annotated(&schema, key) {
            return Err(format!("its column '{column}' has {key} ({feature}), which this program cannot honour"));
        }
    }
    Ok(())
}

fn annotated(schema: &StructType, key: &str) -> Option<String> {
    schema.fields().find_map(|field| {
        let nested = match field.data_type() {
            DataType::Struct(fields) => annotated(fields, key),
            _ => None,
        };
        if field.metadata().contains_key(key) { Some(field.name().clone()) } else { nested }
    })
}

/// The properties with an effect of their own that we may set on a table we make. Others of `delta.` would need features.
pub const PROPERTIES: [&str; 11] = [
    "delta.appendOnly",
    "delta.autoOptimize.autoCompact",
    "delta.autoOptimize.optimizeWrite",
    "delta.checkpointInterval",
    "delta.dataSkippingNumIndexedCols",
    "delta.deletedFileRetentionDuration",
    "delta.enableExpiredLogCleanup",
    "delta.logRetentionDuration",
    SET_TRANSACTION_RETENTION,
    "delta.targetFileSize",
    "delta.tuneFileSizesForRewrites",
];

/// How long a table remembers which epochs it has.
pub const SET_TRANSACTION_RETENTION: &str = "delta.setTransactionRetentionDuration";

/// The least of it on tables we make.
pub const LEAST_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// `interval 30 days`, as Delta writes durations; `interval 1 week 2 days` too.
pub fn interval(text: &str) -> Option<Duration> {
    let mut words = text.split_whitespace();
    if !words.next()?.eq_ignore_ascii_case("interval") {
        return None;
    }
    let mut seconds = 0.0;
    let mut any = false;
    while let Some(number) = words.next() {
        let number: f64 = number.parse().ok()?;
        let unit = match words.next()?.to_ascii_lowercase().trim_end_matches('s') {
            "week" => 7.0 * 86_400.0,
            "day" => 86_400.0,
            "hour" => 3600.0,
            "minute" => 60.0,
            "second" => 1.0,
            "millisecond" => 1e-3,
            "microsecond" => 1e-6,
            "nanosecond" => 1e-9,
            _ => return None,
        };
        seconds += number * unit;
        any = true;
    }
    if any { Duration::try_from_secs_f64(seconds).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn metadata(column: &str, configuration: &[(&str, &str)]) -> Metadata {
        Metadata {
            id: "t".into(),
            schema_string: format!(
                r#"{{"type":"struct","fields":[{{"name":"a","type":"long","nullable":true,"metadata":{column}}}]}}"#
            ),
            partition_columns: Vec::new(),
            configuration: configuration.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect::<HashMap<_, _>>(),
            created_time: None,
        }
    }

    fn protocol(reader: u32, writer: u32, features: &[&str]) -> Protocol {
        let features: Vec<String> = features.iter().map(|f| (*f).into()).collect();
        Protocol {
            min_reader_version: reader,
            min_writer_version: writer,
            reader_features: None,
            writer_features: (writer == 7).then_some(features),
        }
    }

    #[test]
    fn what_an_append_cannot_break_is_fine() {
        let plain = metadata("{}", &[]);
        assert_eq!(refusal(&protocol(1, 2, &[]), &plain), Ok(()));
        assert_eq!(refusal(&protocol(2, 6, &[]), &plain), Ok(()));
        assert_eq!(refusal(&protocol(3, 7, &["invariants", "deletionVectors", "columnMapping"]), &plain), Ok(()));
    }

    #[test]
    fn what_it_could_break_or_we_do_not_know_is_refused_by_name() {
        let plain = metadata("{}", &[]);
        let name = r#"{"delta.invariants":"x"}"#;
        for (protocol, metadata, says) in [
            (protocol(4, 7, &[]), &plain, "protocol versions 4 and 7"),
            (protocol(3, 7, &["rowTracking"]), &plain, "'rowTracking'"),
            (protocol(3, 7, &["fromTheFuture"]), &plain, "'fromTheFuture'"),
            (protocol(2, 5, &[]), &metadata("{}", &[("delta.columnMapping.mode", "name")]), "mapped"),
            (protocol(1, 3, &[]), &metadata("{}", &[("delta.constraints.positive", "a > 0")]), "positive"),
            (protocol(1, 2, &[]), &metadata(name, &[]), "column 'a' has delta.invariants"),
        ] {
            let why = refusal(&protocol, metadata).expect_err(says);
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn intervals_are_read_as_delta_writes_them() {
        assert_eq!(interval("interval 30 days"), Some(LEAST_RETENTION));
        assert_eq!(interval("INTERVAL 1 week 1 day"), Some(Duration::from_secs(8 * 86_400)));
        for text in ["30 days", "interval", "interval 3", "interval x days", "interval 1 month", "interval -1 days"] {
            assert_eq!(interval(text), None, "{text}");
        }
    }
}
