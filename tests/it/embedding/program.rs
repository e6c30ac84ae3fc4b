use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use arrow::json::LineDelimitedWriter;
use distributary::flow::registry::{Guarantee, Registry};
use distributary::flow::{PartitionId, Rejected, Result, Rows, StageError};
use distributary::flow::{SinkContext, SinkInstance, SinkOf, Target, Write};
use distributary::translators::{Message, MessageMapper, TranslatorOf};
use distributary::{cli, embed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A translator: a header and a text become three columns.
#[derive(Clone, Deserialize, JsonSchema)]
struct Orders {
    /// The currency of amounts that name none.
    currency: String,
}

#[derive(Serialize)]
struct Order {
    tenant: String,
    amount: String,
    currency: String,
}

impl MessageMapper for Orders {
    const NAME: &str = "orders";
    const ABOUT: &str = "reads orders like '12.50 USD' with the property 'tenant'";
    const EXAMPLE: &str = "currency: EUR";
    const COLUMNS: &[(&str, &str)] = &[("tenant", "utf8"), ("amount", "decimal(12,2)"), ("currency", "utf8")];
    type Row = Order;

    fn map(&mut self, message: &Message<'_>) -> Result<Order, String> {
        let tenant = message.property("tenant").ok_or("the property 'tenant' is missing")?.to_owned();
        let text = message.text().ok_or("the message has no text")?;
        let (amount, currency) = text.split_once(' ').unwrap_or((text, &self.currency));
        Ok(Order { tenant, amount: amount.to_owned(), currency: currency.to_owned() })
    }
}

/// A sink: every row is a line of JSON in a file.
#[derive(Clone, Deserialize, JsonSchema)]
struct Lines {
    /// The file; it is appended to.
    path: PathBuf,
    #[serde(skip)]
    buffer: Vec<u8>,
}

impl Target for Lines {
    const NAME: &str = "lines";
    const ABOUT: &str = "appends rows to a file as lines of JSON";
    const EXAMPLE: &str = "delivery: at_least_once\npath: rows.jsonl";
    const GUARANTEE: Guarantee = Guarantee::AtLeastOnce;

    fn sink(&self, _: &SinkContext, _: &PartitionId) -> SinkInstance {
        SinkInstance::AtLeastOnce(Box::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl Write for Lines {
    async fn open(&mut self) -> Result<()> {
        Ok(())
    }

    async fn write(&mut self, rows: &Rows) -> Result<Vec<Rejected>> {
        let mut lines = LineDelimitedWriter::new(&mut self.buffer);
        let written = lines.write(&rows.columns).and_then(|()| lines.finish());
        written.map(|()| Vec::new()).map_err(|e| StageError::park("cannot write these columns as JSON").because(e))
    }

    /// Only when this has returned are the messages accepted.
    async fn flush(&mut self) -> Result<()> {
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        let flushed = file.and_then(|mut file| file.write_all(&self.buffer).and_then(|()| file.sync_all()));
        flushed.map_err(|e| StageError::away(format!("cannot append to {}", self.path.display())).because(e))?;
        self.buffer.clear();
        Ok(())
    }
}

fn registry() -> Registry {
    embed::standard().with_translator(TranslatorOf::<Orders>::default()).with_sink(SinkOf::<Lines>::default())
}

/// The whole command line, with the program's own kinds in it.
fn main() -> ExitCode {
    cli::main(&registry())
}

/// Or, beside a program's other work: the topology runs on threads of its own.
fn run(yaml: &str) -> Result<embed::End, embed::Refused> {
    let run = embed::start(yaml, &registry())?;
    Ok(run.wait())
}
