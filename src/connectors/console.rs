//! Rows on the standard output, for first runs and for looking at what a topology makes.
//!
//! Rows are rendered as they come and written at `flush`, whole, so that the output of several partitions does not mix.
//! A terminal cannot be asked what it has shown, so this sink is at least once: after a failure rows may be shown again.
//!
//! It does not colour, page or wrap; logs go to the standard error and never come between.

use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{RecordBatch, new_null_array};
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::writer::{LineDelimited, WriterBuilder};
use arrow::util::display::FormatOptions;
use arrow::util::pretty::pretty_format_batches_with_options;
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::flow::registry::{ConfigError, Guarantee, Kind, SinkKind};
use crate::flow::{PartitionId, Rejected, Result, Rows, SinkContext, SinkFactory, SinkInstance, StageError, Write};

/// Prints rows on the standard output.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Config {
    /// How rows look.
    #[serde(default)]
    pub format: Format,
    /// Rows of a batch that a table shows at most; it says how many more there are. Left out: all of them.
    #[serde(default)]
    #[schemars(range(min = 1), extend("x-unit" = "rows"))]
    pub limit: Option<usize>,
}

/// How rows look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A table per batch, for people.
    #[default]
    Table,
    /// One JSON object per row and line, for programs; nulls are written, bytes as hexadecimal digits.
    JsonLines,
}

/// Where the text goes.
pub type Output = Arc<Mutex<dyn io::Write + Send>>;

/// The kind `console`.
#[derive(Clone)]
pub struct ConsoleSink {
    output: Output,
}

impl ConsoleSink {
    /// A console that writes to `output` in place of the standard output.
    pub fn to(output: Output) -> Self {
        Self { output }
    }
}

impl Default for ConsoleSink {
    fn default() -> Self {
        Self::to(Arc::new(Mutex::new(io::stdout())))
    }
}

impl Kind for ConsoleSink {
    fn name(&self) -> &'static str {
        "console"
    }

    fn about(&self) -> &'static str {
        "rows on the standard output, as a table or as JSON lines"
    }

    fn example(&self) -> &'static str {
        "delivery: at_least_once\nformat: table\nlimit: 20\n"
    }

    fn schema(&self) -> schemars::Schema {
        schemars::schema_for!(Config)
    }
}

fn parse(config: &Value) -> std::result::Result<Config, ConfigError> {
    Config::deserialize(config).map_err(|e| ConfigError::here(e.to_string()))
}

impl SinkKind for ConsoleSink {
    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce
    }

    fn check(&self, config: &Value, input: &SchemaRef) -> Vec<ConfigError> {
        let config = match parse(config) {
            Ok(config) => config,
            Err(problem) => return vec![problem],
        };
        let mut problems = Vec::new();
        if config.limit == Some(0) {
            problems.push(ConfigError::at("limit", "must be at least 1; leave it out for all rows"));
        }
        if config.limit.is_some() && config.format == Format::JsonLines {
            problems.push(ConfigError::at("limit", "is for format: table; JSON lines are always all of them"));
        }
        for field in input.fields() {
            if let Err(e) = renders(config.format, field) {
                problems.push(ConfigError::at("format", format!("cannot show the column '{}': {e}", field.name())));
            }
        }
        problems
    }

    fn build(&self, config: &Value, _context: SinkContext) -> Result<Arc<dyn SinkFactory>> {
        let config = parse(config).map_err(|problem| StageError::park(problem.message))?;
        Ok(Arc::new(Factory { config, output: self.output.clone() }))
    }
}

/// Whether a column of this type can be shown at all: tried on one null.
fn renders(format: Format, field: &Field) -> std::result::Result<(), ArrowError> {
    let schema = Schema::new(vec![field.clone().with_nullable(true)]);
    let row = RecordBatch::try_new(Arc::new(schema), vec![new_null_array(field.data_type(), 1)])?;
    render(format, None, &row, &mut Vec::new())
}

struct Factory {
    config: Config,
    output: Output,
}

impl SinkFactory for Factory {
    fn sink(&self, _partition: &PartitionId) -> SinkInstance {
        let console = Console { config: self.config.clone(), output: self.output.clone(), buffer: Vec::new() };
        SinkInstance::AtLeastOnce(Box::new(console))
    }
}

struct Console {
    config: Config,
    output: Output,
    buffer: Vec<u8>,
}

#[async_trait]
impl Write for Console {
    async fn open(&mut self) -> Result<()> {
        Ok(())
    }

    async fn write(&mut self, rows: &Rows) -> Result<Vec<Rejected>> {
        render(self.config.format, self.config.limit, &rows.columns, &mut self.buffer)
            .map_err(|e| StageError::park("the console cannot show a batch; try another format").because(e))?;
        Ok(Vec::new())
    }

    async fn flush(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let text = std::mem::take(&mut self.buffer);
        let output = self.output.clone();
        // A reader that does not read blocks the write, which must not block the other stages of this thread.
        let written = tokio::task::spawn_blocking(move || {
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            output.write_all(&text)?;
            output.flush()
        });
        match written.await {
            Ok(written) => written.map_err(broken),
            Err(e) => Err(StageError::retry("writing to the standard output was broken off").because(e)),
        }
    }
}

fn broken(error: io::Error) -> StageError {
    let failed = match error.kind() {
        io::ErrorKind::BrokenPipe => {
            StageError::park("the standard output was closed by its reader: start again with one, or write to a file")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StageError::away("the standard output goes to a disk that is full: make room")
        }
        _ => StageError::retry("cannot write to the standard output"),
    };
    failed.because(error)
}

fn render(
    format: Format,
    limit: Option<usize>,
    rows: &RecordBatch,
    buffer: &mut Vec<u8>,
) -> std::result::Result<(), ArrowError> {
    match format {
        Format::JsonLines => {
            let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(buffer);
            writer.write(rows)?;
            writer.finish()
        }
        Format::Table if rows.num_rows() == 0 => Ok(()),
        Format::Table => {
            let shown = limit.map_or(rows.num_rows(), |limit| limit.min(rows.num_rows()));
            let options = FormatOptions::default().with_null("null");
            let mut text = pretty_format_batches_with_options(&[rows.slice(0, shown)], &options)?.to_string();
            let more = rows.num_rows() - shown;
            if more > 0 {
                write!(text, "\n… and {more} more").expect("a string takes everything");
            }
            text.push('\n');
            defuse(&text, buffer);
            Ok(())
        }
    }
}

/// A body must not move the cursor or colour the terminal: control characters are shown, not sent.
fn defuse(text: &str, buffer: &mut Vec<u8>) {
    for piece in text.split_inclusive(|c: char| c.is_control() && c != '\n') {
        match piece.char_indices().next_back() {
            Some((at, last)) if last.is_control() && last != '\n' => {
                buffer.extend_from_slice(&piece.as_bytes()[..at]);
                buffer.extend(last.escape_default().map(|c| c as u8));
            }
            _ => buffer.extend_from_slice(piece.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, BinaryArray, Int64Array, StringArray};
    use arrow::datatypes::{DataType, UnionMode};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::flow::{Reaction, StoreId};

    fn rows() -> Rows {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(Int64Array::from(vec![1, 2, 3]))),
            ("animal", Arc::new(StringArray::from(vec![Some("cat"), None, Some("\u{1b}[31mox")]))),
            ("raw", Arc::new(BinaryArray::from_vec(vec![b"\x00\xff", b"", b"z"]))),
        ];
        Rows::one_per_delivery(
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).expect("batch"),
        )
    }

    fn console(config: Value, output: Output) -> Box<dyn Write> {
        let kind = ConsoleSink::to(output);
        let schema = rows().columns.schema();
        assert_eq!(kind.check(&config, &schema), []);
        let context = SinkContext { topology: "test".into(), sink: "out".into(), store: StoreId(Uuid::nil()), schema };
        match kind.build(&config, context).expect("built").sink(&PartitionId::new("r", 0)) {
            SinkInstance::AtLeastOnce(write) => write,
            SinkInstance::ExactlyOnce(_) => panic!("a console promises too much"),
        }
    }

    async fn shown(config: Value) -> String {
        let output = Arc::new(Mutex::new(Vec::new()));
        let mut console = console(config, output.clone());
        console.open().await.expect("open");
        assert_eq!(console.write(&rows()).await.expect("written"), []);
        assert!(output.lock().expect("output").is_empty(), "shown before the flush");
        console.flush().await.expect("flushed");
        console.flush().await.expect("nothing to flush");
        let text = output.lock().expect("output").clone();
        String::from_utf8(text).expect("utf-8")
    }

    #[tokio::test]
    async fn tables_are_cut_and_harmless() {
        let text = shown(json!({ "limit": 2 })).await;
        assert_eq!(
            text,
            "+----+--------+------+\n\
             | id | animal | raw  |\n\
             +----+--------+------+\n\
             | 1  | cat    | 00ff |\n\
             | 2  | null   |      |\n\
             +----+--------+------+\n\
             … and 1 more\n"
        );
        let text = shown(json!({ "format": "table" })).await;
        assert!(text.contains("\\u{1b}[31mox") && !text.contains('\u{1b}'), "{text}");
    }

    #[tokio::test]
    async fn json_lines_are_whole() {
        let text = shown(json!({ "format": "json_lines" })).await;
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert_eq!(lines[0], json!({ "id": 1, "animal": "cat", "raw": "00ff" }));
        assert_eq!(lines[1], json!({ "id": 2, "animal": null, "raw": "" }));
        assert_eq!(lines[2]["animal"], "\u{1b}[31mox");
    }

    /// An output that fails in one way.
    struct Broken(io::ErrorKind);

    impl io::Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_closed_output_is_said_in_a_sentence() {
        for (kind, reaction, word) in [
            (io::ErrorKind::BrokenPipe, Reaction::Park, "closed by its reader"),
            (io::ErrorKind::StorageFull, Reaction::Away, "full"),
            (io::ErrorKind::Other, Reaction::Retry, "cannot write"),
        ] {
            let mut console = console(json!({}), Arc::new(Mutex::new(Broken(kind))));
            console.write(&rows()).await.expect("buffered");
            let error = console.flush().await.expect_err("broken");
            assert_eq!(error.reaction, reaction);
            assert!(error.context.contains(word), "{error}");
        }
    }

    #[test]
    fn problems_are_placed() {
        let kind = ConsoleSink::default();
        let fields = [(0, Arc::new(Field::new("a", DataType::Int64, true)))].into_iter().collect();
        let union = Field::new("u", DataType::Union(fields, UnionMode::Sparse), false);
        let schema = Arc::new(Schema::new(vec![union]));
        let config = json!({ "format": "json_lines", "limit": 0 });
        let problems = kind.check(&config, &schema);
        let paths: Vec<_> = problems.iter().map(|problem| problem.path.join(".")).collect();
        assert_eq!(paths, ["limit", "limit", "format"], "{problems:?}");
        assert!(problems[2].message.contains("column 'u'"), "{problems:?}");
        assert_eq!(kind.check(&json!({ "format": "xml" }), &schema).len(), 1);
    }
}
