//! What every translator does after it has read the bodies: choose, compute and filter columns.
//!
//! [`Shape`] is the configuration, for `#[serde(flatten)]` in a translator's own, also in one outside of this crate;
//! [`Shape::plan`] checks it against the columns there are, and the [`Shaper`] applies it to batches.
//!
//! Expressions see the message columns (also those that are not kept), the declared columns and whatever is derived
//! above them. A declared column hides a message column of its name that is not in the output. Columns that neither the
//! output nor an expression uses are not touched.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{filter, filter_record_batch, take};
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OnError, Ordered};
use crate::expr::{Expression, suggestion};
use crate::flow::registry::ConfigError;
use crate::flow::{self, Raw, Reason, Rejected, Rows, StageError, Translated};

/// Which columns come out of a translator, and which rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Shape {
    /// Message columns to keep besides `id`, `sent` and `received`: for example `[properties, redelivered]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
    /// Only rows for which this SQL condition holds go on; null does not hold. The others are done, not rejected.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// More columns: a name and the SQL expression for it, like `sent_dt: "to_date(sent)"`. May use those above it.
    #[serde(skip_serializing_if = "Ordered::is_empty")]
    pub derive: Ordered<String>,
    /// The output in full, as SQL expressions with `AS name` where they are not just a column. Replaces the usual list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub select: Vec<String>,
}

/// Which message columns come out when nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// All of them; a declared column takes the place of the message column of its name.
    Message,
    /// Those of `id`, `sent` and `received` that there are, then the declared columns, then what `keep` names.
    Identity,
}

/// The message columns of [`Base::Identity`].
pub const IDENTITY: [&str; 3] = ["id", "sent", "received"];

/// The rows that a translator has read.
pub struct Read {
    /// The declared columns, in the order in which they were planned.
    pub columns: Vec<ArrayRef>,
    /// For each row, the input row it came from, ascending. `None`: one row for each input row.
    pub from: Option<Vec<u32>>,
    /// The input rows that could not be read; none of them is in `from`.
    pub rejects: Vec<Rejected>,
    /// The input rows of which something could not be read and is null instead (`on_error: null`).
    pub nulled: Vec<u32>,
}

impl Shape {
    /// Checks the shape for messages with the columns `input`, from which a translator reads `declared`.
    pub fn plan(
        &self,
        input: &SchemaRef,
        declared: &[FieldRef],
        base: Base,
        on_error: OnError,
    ) -> std::result::Result<Shaper, Vec<ConfigError>> {
        let mut plan = Plan::new(input, declared);
        let names = plan.names(self, input, declared, base);
        let condition = self.condition.as_deref().and_then(|sql| {
            let planned = Expression::plan_condition(sql, &plan.schema());
            plan.noted(&["where"], planned)
        });
        let condition = condition.and_then(|condition| plan.bound(condition, &["where"]));
        for (name, sql) in self.derive.iter() {
            plan.derive(name, sql);
        }
        let output: Vec<_> = if self.select.is_empty() {
            names.iter().filter_map(|name| plan.column(name)).collect()
        } else {
            plan.select(&self.select)
        };
        if !plan.errors.is_empty() {
            return Err(plan.errors);
        }
        let (fields, output): (Vec<_>, Vec<_>) = output.into_iter().unzip();
        let schema = Arc::new(Schema::new(fields));
        Ok(Shaper { base: plan.base, condition, derived: plan.derived, output, schema, on_error })
    }
}

/// A [`Shape`] that fits its columns.
#[derive(Clone, Debug)]
pub struct Shaper {
    base: Vec<Source>,
    condition: Option<Bound>,
    derived: Vec<Bound>,
    output: Vec<Output>,
    schema: SchemaRef,
    on_error: OnError,
}

/// Where a column that is there from the start comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Message(usize),
    Declared(usize),
}

/// A column that an expression or the output uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Base(usize),
    Derived(usize),
}

/// A column of the output.
#[derive(Clone, Debug)]
enum Output {
    Column(Column),
    Selected(Bound),
}

/// An expression and the columns it reads, no others.
#[derive(Clone, Debug)]
struct Bound {
    expression: Expression,
    reads: Vec<Column>,
    schema: SchemaRef,
}

/// A shape on its way to a [`Shaper`].
struct Plan {
    /// What expressions may name: the field, and where it is from (a source, or a derived column).
    visible: Vec<(FieldRef, Result<Source, usize>)>,
    /// Those of the sources that are in use.
    base: Vec<Source>,
    derived: Vec<Bound>,
    errors: Vec<ConfigError>,
}

impl Plan {
    fn new(input: &SchemaRef, declared: &[FieldRef]) -> Self {
        let message = input.fields().iter().enumerate().map(|(at, field)| (field, Source::Message(at)));
        let declared = declared.iter().enumerate().map(|(at, field)| (field, Source::Declared(at)));
        let mut plan = Self { visible: Vec::new(), base: Vec::new(), derived: Vec::new(), errors: Vec::new() };
        for (field, source) in message.chain(declared) {
            plan.show(Arc::clone(field), Ok(source));
        }
        plan
    }

    /// From here on, the name of `field` means this column.
    fn show(&mut self, field: FieldRef, from: Result<Source, usize>) {
        match self.visible.iter_mut().find(|(other, _)| other.name() == field.name()) {
            Some(hidden) => *hidden = (field, from),
            None => self.visible.push((field, from)),
        }
    }

    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(self.visible.iter().map(|(field, _)| Arc::clone(field)).collect::<Vec<_>>()))
    }

    /// Keeps the value, or the error and where it is.
    fn noted<T>(&mut self, path: &[&str], value: Result<T, String>) -> Option<T> {
        value.map_err(|message| self.errors.push(ConfigError::below(path, message))).ok()
    }

    /// The names of the output, unless `select` says otherwise.
    fn names(&mut self, shape: &Shape, input: &SchemaRef, declared: &[FieldRef], base: Base) -> Vec<String> {
        let message: Vec<&str> = input.fields().iter().map(|field| field.name().as_str()).collect();
        let mut names: Vec<&str> = match base {
            Base::Message => message.clone(),
            Base::Identity => IDENTITY.into_iter().filter(|name| message.contains(name)).collect(),
        };
        for (at, name) in declared.iter().map(|field| field.name().as_str()).enumerate() {
            let twice = declared[..at].iter().any(|field| field.name() == name);
            if !names.contains(&name) {
                names.push(name);
            } else if twice || base == Base::Identity {
                let problem = format!("there is a column '{name}' in the output already: give this one another name");
                self.errors.push(ConfigError::below(&["columns", name], problem));
            }
        }
        for (at, name) in shape.keep.iter().enumerate() {
            let problem = if !message.contains(&name.as_str()) {
                format!("messages have no column '{name}'{}", suggestion(name, message.iter().copied()))
            } else if base == Base::Identity && declared.iter().any(|field| field.name() == name) {
                format!("'{name}' is a declared column too: give that one another name")
            } else {
                if !names.contains(&name.as_str()) {
                    names.push(name);
                }
                continue;
            };
            self.errors.push(ConfigError::below(&["keep", &at.to_string()], problem));
        }
        for (name, _) in shape.derive.iter() {
            if names.contains(&name) {
                let problem = format!("there is a column '{name}' already: give this one another name");
                self.errors.push(ConfigError::below(&["derive", name], problem));
            } else {
                names.push(name);
            }
        }
        names.into_iter().map(str::to_owned).collect()
    }

    /// The column that `name` means now.
    fn column(&mut self, name: &str) -> Option<(FieldRef, Output)> {
        let (field, column) = self.used(name)?;
        Some((field, Output::Column(column)))
    }

    fn used(&mut self, name: &str) -> Option<(FieldRef, Column)> {
        let (field, from) = self.visible.iter().find(|(field, _)| field.name() == name)?;
        let column = match *from {
            Err(derived) => Column::Derived(derived),
            Ok(source) => Column::Base(self.base.iter().position(|used| *used == source).unwrap_or_else(|| {
                self.base.push(source);
                self.base.len() - 1
            })),
        };
        Some((Arc::clone(field), column))
    }

    /// Binds an expression to just the columns it reads.
    fn bound(&mut self, expression: Expression, path: &[&str]) -> Option<Bound> {
        let read: Vec<_> = expression.columns().iter().filter_map(|name| self.used(name)).collect();
        let (fields, reads): (Vec<_>, Vec<_>) = read.into_iter().unzip();
        let schema = Arc::new(Schema::new(fields));
        let expression = expression.rebound(&schema);
        Some(Bound { expression: self.noted(path, expression)?, reads, schema })
    }

    fn derive(&mut self, name: &str, sql: &str) {
        let path = ["derive", name];
        let planned = Expression::plan(sql, &self.schema());
        let bound = self.noted(&path, planned).and_then(|expression| self.bound(expression, &path));
        let Some(bound) = bound else { return };
        let field = bound.expression.field().as_ref().clone().with_name(name).with_nullable(true);
        self.show(Arc::new(field), Err(self.derived.len()));
        self.derived.push(bound);
    }

    fn select(&mut self, select: &[String]) -> Vec<(FieldRef, Output)> {
        let mut output: Vec<(FieldRef, Output)> = Vec::new();
        for (at, sql) in select.iter().enumerate() {
            let at = at.to_string();
            let path = ["select", at.as_str()];
            let named = Expression::plan(sql, &self.schema()).and_then(|expression| match expression.name() {
                None => Err(format!("'{sql}' needs a name: write {sql} AS name")),
                Some(name) if output.iter().any(|(field, _)| field.name() == name) => {
                    Err(format!("there is a column '{name}' already: give this one another name with AS"))
                }
                Some(_) => Ok(expression),
            });
            let bound = self.noted(&path, named).and_then(|expression| self.bound(expression, &path));
            let Some(bound) = bound else { continue };
            let field = bound.expression.field().as_ref().clone().with_nullable(true);
            output.push((Arc::new(field), Output::Selected(bound)));
        }
        output
    }
}

impl Shaper {
    /// The columns that come out.
    pub fn output(&self) -> &SchemaRef {
        &self.schema
    }

    /// Shapes what was read from `raw`.
    pub fn shape(&self, raw: &Raw, read: Read) -> flow::Result<Translated> {
        let Read { columns, from, mut rejects, nulled } = read;
        let rows = from.as_ref().map_or(raw.len(), Vec::len);
        // Rows that stand for themselves need no copy of the message columns.
        let taken = from.as_ref().filter(|from| !is_all(from, raw.len()));
        let taken = taken.map(|from| UInt32Array::from(from.clone()));
        let mut base = Vec::with_capacity(self.base.len());
        for source in &self.base {
            base.push(match (*source, &taken) {
                (Source::Declared(at), _) => Arc::clone(&columns[at]),
                (Source::Message(at), None) => Arc::clone(raw.columns.column(at)),
                (Source::Message(at), Some(rows)) => take(raw.columns.column(at), rows, None).map_err(broken)?,
            });
        }
        let from = from.unwrap_or_else(|| (0..u32::try_from(rows).unwrap_or(u32::MAX)).collect());
        let mut work = Work { base, derived: Vec::new(), from, failed: Vec::new() };

        if let Some(condition) = &self.condition {
            let values = work.evaluate(condition)?;
            let mut holds = Expression::holds(&values);
            if self.on_error != OnError::Null && !work.failed.is_empty() {
                // A failed row is neither in nor out; it stays until its message is rejected as a whole.
                let failed: BTreeSet<_> = work.failed.iter().map(|(from, _)| *from).collect();
                holds = holds
                    .iter()
                    .zip(&work.from)
                    .map(|(holds, from)| Some(holds == Some(true) || failed.contains(from)))
                    .collect();
            }
            work.filter(&holds)?;
        }
        for bound in &self.derived {
            let values = work.evaluate(bound)?;
            work.derived.push(values);
        }
        let mut output = Vec::with_capacity(self.output.len());
        for column in &self.output {
            output.push(match column {
                Output::Column(column) => Arc::clone(work.column(*column)),
                Output::Selected(bound) => work.evaluate(bound)?,
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(work.from.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), output, &options).map_err(broken)?;
        let nulled = self.nulled(nulled, &work);
        let batch = self.without_failed(batch, &mut work, &mut rejects)?;
        let origin = work.from.iter().map(|row| raw.origin[*row as usize]).collect();
        rejects.sort_by_key(|reject| reject.row);
        Ok(Translated { rows: Rows { columns: batch, origin }, rejects, nulled })
    }

    /// How many messages have a null for what could not be read or computed.
    fn nulled(&self, mut nulled: Vec<u32>, work: &Work) -> u64 {
        if self.on_error == OnError::Null {
            nulled.extend(work.failed.iter().map(|(row, _)| *row));
        }
        nulled.sort_unstable();
        nulled.dedup();
        nulled.len() as u64
    }

    /// Takes out every row of a message of which an expression failed on one.
    fn without_failed(
        &self,
        batch: RecordBatch,
        work: &mut Work,
        rejects: &mut Vec<Rejected>,
    ) -> flow::Result<RecordBatch> {
        if work.failed.is_empty() || self.on_error == OnError::Null {
            return Ok(batch);
        }
        if self.on_error == OnError::Fail {
            let (row, detail) = &work.failed[0];
            return Err(stop(*row, detail));
        }
        let mut rejected = BTreeSet::new();
        for (row, detail) in work.failed.drain(..) {
            if rejected.insert(row) {
                rejects.push(Rejected { row, reason: Reason::Expression, detail });
            }
        }
        let mask: BooleanArray = work.from.iter().map(|row| Some(!rejected.contains(row))).collect();
        work.from.retain(|row| !rejected.contains(row));
        filter_record_batch(&batch, &mask).map_err(broken)
    }
}

/// A batch between reading and writing.
struct Work {
    base: Vec<ArrayRef>,
    derived: Vec<ArrayRef>,
    /// For each row, the input row.
    from: Vec<u32>,
    /// Input rows on which an expression failed, with the reason.
    failed: Vec<(u32, String)>,
}

impl Work {
    fn column(&self, column: Column) -> &ArrayRef {
        match column {
            Column::Base(at) => &self.base[at],
            Column::Derived(at) => &self.derived[at],
        }
    }

    fn evaluate(&mut self, bound: &Bound) -> flow::Result<ArrayRef> {
        let columns = bound.reads.iter().map(|column| Arc::clone(self.column(*column))).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.from.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&bound.schema), columns, &options).map_err(broken)?;
        let (from, failed) = (&self.from, &mut self.failed);
        Ok(bound.expression.evaluate_each(&batch, |row, detail| failed.push((from[row], detail))))
    }

    fn filter(&mut self, holds: &BooleanArray) -> flow::Result<()> {
        if holds.true_count() == holds.len() {
            return Ok(());
        }
        for column in &mut self.base {
            *column = filter(column, holds).map_err(broken)?;
        }
        let mut kept = holds.values().iter();
        self.from.retain(|_| kept.next().unwrap_or_default());
        Ok(())
    }
}

/// Whether these are all of so many rows.
fn is_all(from: &[u32], rows: usize) -> bool {
    from.len() == rows && from.iter().enumerate().all(|(at, row)| at == *row as usize)
}

/// `on_error: fail`.
pub(super) fn stop(row: u32, detail: &str) -> StageError {
    StageError::park(format!(
        "row {row} of a batch could not be translated, and on_error says fail: {detail}; \
         correct the topology, or let on_error be dead_letter or null"
    ))
}

/// Arrays that do not fit together: a fault of ours, not of the message.
pub(super) fn broken(error: arrow::error::ArrowError) -> StageError {
    StageError::retry("columns of a batch do not fit together").because(error)
}

#[cfg(test)]
mod tests;
