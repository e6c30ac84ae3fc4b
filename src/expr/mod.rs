//! SQL expressions over record batches: `where`, `select`, `derive` and whatever else a topology computes per row.
//!
//! An [`Expression`] is parsed, checked and typed when the topology is planned, so that a misspelt column is found
//! before the first message, and then evaluated on whole batches. Its value for a row depends on that row alone: the
//! same message gives the same row on every redelivery. That is why aggregates, windows and subqueries are refused, and
//! so are `now()`, `random()` and their like.
//!
//! Column names are case-sensitive and are never folded to lower case; one with a space, a dot or a quote is written
//! in double quotes. Built on DataFusion's expression crates; there is no query engine behind it, and no tables.

mod functions;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, new_null_array};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DataFusionError, SchemaError};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::simplify::SimplifyContext;
use datafusion_expr::{Expr, ExprSchemable, Volatility, cast};
use datafusion_optimizer::simplify_expressions::ExprSimplifier;
use datafusion_physical_expr::utils::reassign_expr_columns;
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion_sql::parser::DFParser;
use datafusion_sql::planner::{ParserOptions, PlannerContext, SqlToRel};
use datafusion_sql::sqlparser::dialect::GenericDialect;

use functions::ScalarFunctions;

/// An expression that is known to fit the columns it was planned for.
#[derive(Clone, Debug)]
pub struct Expression {
    sql: String,
    physical: Arc<dyn PhysicalExpr>,
    name: Option<String>,
    field: FieldRef,
    columns: Vec<String>,
}

impl Expression {
    /// Parses `sql`, perhaps with `AS name`, and types it against `schema`. The error is one sentence for the person who
    /// wrote it, with the nearest name if one was misspelt.
    pub fn plan(sql: &str, schema: &SchemaRef) -> Result<Self, String> {
        let parsed = DFParser::parse_sql_into_expr_with_dialect(sql, &GenericDialect {})
            .map_err(|error| format!("not an SQL expression: {}", sentence(&error)))?;
        let known = DFSchema::try_from(Arc::clone(schema)).map_err(|error| sentence(&error))?;
        let functions = ScalarFunctions::default();
        let options =
            ParserOptions::new().with_enable_ident_normalization(false).with_map_string_types_to_utf8view(false);
        let planned = SqlToRel::new_with_options(&functions, options)
            .sql_to_expr_with_alias(parsed, &known, &mut PlannerContext::new())
            .map_err(|error| functions.missing().unwrap_or_else(|| explain(&error, schema)))?;
        refuse_what_looks_beyond_the_row(&planned)?;
        Self::typed(sql, planned, schema, known)
    }

    fn typed(sql: &str, planned: Expr, schema: &SchemaRef, known: DFSchema) -> Result<Self, String> {
        let (name, planned) = match planned {
            Expr::Alias(alias) => (Some(alias.name), *alias.expr),
            Expr::Column(column) => (Some(column.name.clone()), Expr::Column(column)),
            other => (None, other),
        };
        let explain = |error: DataFusionError| explain(&error, schema);
        let mut columns: Vec<_> = planned.column_refs().into_iter().map(|column| column.name.clone()).collect();
        columns.sort();
        let known = Arc::new(known);
        let simplifier = ExprSimplifier::new(SimplifyContext::builder().with_schema(Arc::clone(&known)).build());
        let mut coerced = simplifier.coerce(planned, &known).map_err(explain)?;
        let data_type = coerced.get_type(&known).map_err(explain)?;
        if let Some(plain) = plain(&data_type) {
            coerced = cast(coerced, plain);
        }
        let props = ExecutionProps::new();
        let physical =
            create_physical_expr(&coerced, &known, &props, &PhysicalPlanningContext::default()).map_err(explain)?;
        let data_type = physical.data_type(schema).map_err(explain)?;
        let nullable = physical.nullable(schema).map_err(explain)?;
        let field = Arc::new(Field::new(name.as_deref().unwrap_or(sql), data_type, nullable));
        Ok(Self { sql: sql.to_owned(), physical, name, field, columns })
    }

    /// Like [`plan`](Self::plan), for a condition: its type must be boolean.
    pub fn plan_condition(sql: &str, schema: &SchemaRef) -> Result<Self, String> {
        let planned = Self::plan(sql, schema)?;
        match planned.field.data_type() {
            DataType::Boolean => Ok(planned),
            other => {
                Err(format!("a condition is true or false, but '{sql}' is of type {other}; compare it with something"))
            }
        }
    }

    /// The expression as it was written.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// What its column is called: the name after `AS`, or that of the one column which it is.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Its column: named by [`name`](Self::name), or else by the expression itself.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }

    /// The columns it reads, by name.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The same expression for batches of another schema, which has its [`columns`](Self::columns) with the same types.
    pub fn rebound(&self, schema: &SchemaRef) -> Result<Self, String> {
        let physical =
            reassign_expr_columns(Arc::clone(&self.physical), schema).map_err(|error| explain(&error, schema))?;
        Ok(Self { physical, ..self.clone() })
    }

    /// One value per row. An error means that at least one row has none (a cast that fails, a division by zero).
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, String> {
        self.physical
            .evaluate(batch)
            .and_then(|value| value.into_array(batch.num_rows()))
            .map_err(|error| format!("{}: {}", self.sql, sentence(&error)))
    }

    /// One value per row, null for the rows that have none; those are reported by index, with the reason. One failing
    /// row among many costs a few evaluations of parts of the batch.
    pub fn evaluate_each(&self, batch: &RecordBatch, mut failed: impl FnMut(usize, String)) -> ArrayRef {
        match self.evaluate(batch) {
            Ok(values) => values,
            Err(error) => {
                let mut pieces = Vec::new();
                self.halve(batch, 0, error, &mut pieces, &mut failed);
                let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
                concat(&pieces).unwrap_or_else(|error| {
                    (0..batch.num_rows()).for_each(|row| failed(row, error.to_string()));
                    new_null_array(self.field.data_type(), batch.num_rows())
                })
            }
        }
    }

    /// `batch` failed: takes the halves apart until the failing rows stand alone.
    fn halve(
        &self,
        batch: &RecordBatch,
        at: usize,
        error: String,
        pieces: &mut Vec<ArrayRef>,
        failed: &mut impl FnMut(usize, String),
    ) {
        if batch.num_rows() <= 1 {
            failed(at, error);
            pieces.push(new_null_array(self.field.data_type(), batch.num_rows()));
            return;
        }
        let middle = batch.num_rows() / 2;
        for (start, length) in [(0, middle), (middle, batch.num_rows() - middle)] {
            let half = batch.slice(start, length);
            match self.evaluate(&half) {
                Ok(values) => pieces.push(values),
                Err(error) => self.halve(&half, at + start, error, pieces, failed),
            }
        }
    }

    /// For a condition: which rows it holds for. Null does not hold.
    pub fn holds(values: &ArrayRef) -> BooleanArray {
        match values.as_any().downcast_ref::<BooleanArray>() {
            // Arrow's function for it wants a null to be there.
            Some(values) if values.null_count() > 0 => arrow::compute::prep_null_mask_filter(values),
            Some(values) => values.clone(),
            None => BooleanArray::from(vec![false; values.len()]),
        }
    }
}

/// The type that tables know, for one that only the engine knows.
fn plain(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Utf8View | DataType::LargeUtf8 | DataType::Null => Some(DataType::Utf8),
        DataType::BinaryView | DataType::LargeBinary => Some(DataType::Binary),
        DataType::Dictionary(_, value) => Some(plain(value).unwrap_or_else(|| value.as_ref().clone())),
        _ => None,
    }
}

fn refuse_what_looks_beyond_the_row(planned: &Expr) -> Result<(), String> {
    let mut refused = None;
    let walked = planned.apply(|part| {
        #[allow(deprecated, reason = "a wildcard still reaches us as one")]
        let reason = match part {
            Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) => {
                Some("subqueries are not supported: an expression sees one row at a time".to_owned())
            }
            Expr::AggregateFunction(_) | Expr::WindowFunction(_) => {
                Some("aggregates and windows are not supported: an expression sees one row at a time".to_owned())
            }
            Expr::Wildcard { .. } => Some("'*' is not supported: name the columns".to_owned()),
            Expr::Placeholder(_) => Some("placeholders are not supported: write the value".to_owned()),
            Expr::ScalarFunction(call) if call.func.signature().volatility != Volatility::Immutable => Some(format!(
                "{}() is not supported: a redelivered message must give the same row again; \
                 use a column like 'sent' or 'received'",
                call.func.name()
            )),
            _ => None,
        };
        Ok(match reason {
            Some(reason) => {
                refused = Some(reason);
                TreeNodeRecursion::Stop
            }
            None => TreeNodeRecursion::Continue,
        })
    });
    walked.map_err(|error| sentence(&error))?;
    refused.map_or(Ok(()), Err)
}

/// An error of planning as a sentence, with the nearest column.
fn explain(error: &DataFusionError, schema: &SchemaRef) -> String {
    let error = error.find_root();
    if let DataFusionError::SchemaError(missing, _) = error
        && let SchemaError::FieldNotFound { field, .. } = missing.as_ref()
    {
        let names = schema.fields().iter().map(|field| field.name().as_str());
        return match &field.relation {
            None => format!("there is no column '{}'{}", field.name, suggestion(&field.name, names)),
            Some(table) => format!("there is no column '{table}'{}", suggestion(table.table(), names)),
        };
    }
    sentence(error)
}

/// The nearest of `names` and all of them, to go on with after a name that is not among them.
pub(crate) fn suggestion<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    match nearest(name, names.iter().copied()) {
        Some(near) => format!("; did you mean '{near}'?"),
        None if names.is_empty() => String::new(),
        None => format!(": there are {}", names.join(", ")),
    }
}

/// The name that was probably meant.
pub(crate) fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    names
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= 1.max(candidate.chars().count().max(lower.chars().count()) / 3))
        .map(|(_, candidate)| candidate)
}

/// The first line of a message, without the library's prefixes, beginning in lower case.
fn sentence(error: &DataFusionError) -> String {
    let text = error.find_root().strip_backtrace();
    let mut line = text.lines().next().unwrap_or_default();
    for prefix in [
        "Error during planning: ",
        "Execution error: ",
        "Schema error: ",
        "SQL error: ",
        "Arrow error: ",
        "Cast error: ",
        "Parser error: ",
        "Compute error: ",
        "This feature is not implemented: ",
        "Internal error: ",
    ] {
        line = line.strip_prefix(prefix).unwrap_or(line);
    }
    let line = line.strip_prefix("ParserError(\"").map_or(line, |line| line.trim_end_matches("\")"));
    let line = line.trim_end_matches('.');
    let mut chars = line.chars();
    match chars.next() {
        Some(first) if chars.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests;
