//! The functions an expression may call: DataFusion's scalar ones, and nothing that needs a table or more than one row.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::DataType;
use datafusion_common::config::ConfigOptions;
use datafusion_common::{DFSchema, Result, TableReference, plan_err};
use datafusion_expr::planner::{ContextProvider, ExprPlanner, PlannerResult, RawFieldAccessExpr};
use datafusion_expr::{AggregateUDF, GetFieldAccess, HigherOrderUDF, ScalarUDF, TableSource, WindowUDF, lit};
use datafusion_functions::{core, datetime, unicode};

static FUNCTIONS: LazyLock<BTreeMap<String, Arc<ScalarUDF>>> = LazyLock::new(|| {
    let mut functions = BTreeMap::new();
    for function in datafusion_functions::all_default_functions() {
        for alias in function.aliases() {
            functions.insert(alias.clone(), Arc::clone(&function));
        }
        functions.insert(function.name().to_owned(), function);
    }
    functions
});

static PLANNERS: LazyLock<Vec<Arc<dyn ExprPlanner>>> = LazyLock::new(|| {
    vec![
        Arc::new(core::planner::CoreFunctionPlanner::default()),
        Arc::new(datetime::planner::DatetimeFunctionPlanner),
        Arc::new(unicode::planner::UnicodeFunctionPlanner),
        Arc::new(FieldAccess),
    ]
});

/// Aggregates people try; refused by name, because the nearest scalar function would be a riddle.
const AGGREGATES: [&str; 12] =
    ["avg", "count", "first_value", "last_value", "max", "mean", "median", "min", "row_number", "stddev", "sum", "var"];

/// What SQL planning asks for names. Remembers the last function that there was not, for the error message.
#[derive(Default)]
pub(super) struct ScalarFunctions {
    options: ConfigOptions,
    missing: RefCell<Option<String>>,
}

impl ScalarFunctions {
    /// Why planning failed, if it did for the want of a function.
    pub(super) fn missing(&self) -> Option<String> {
        let name = self.missing.borrow().clone()?;
        Some(if AGGREGATES.contains(&name.as_str()) {
            format!("{name}() looks at many rows, but an expression sees one at a time")
        } else {
            match super::nearest(&name, FUNCTIONS.keys().map(String::as_str)) {
                Some(near) => format!("there is no function '{name}'; did you mean '{near}'?"),
                None => format!("there is no function '{name}'"),
            }
        })
    }
}

impl ContextProvider for ScalarFunctions {
    fn get_table_source(&self, _: TableReference) -> Result<Arc<dyn TableSource>> {
        plan_err!("subqueries are not supported: an expression sees one row at a time")
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &PLANNERS
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        let name = name.to_lowercase();
        let found = FUNCTIONS.get(&name).cloned();
        if found.is_none() {
            self.missing.replace(Some(name));
        }
        found
    }

    fn get_higher_order_meta(&self, _: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, _: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        FUNCTIONS.keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// `properties['kind']` and `customer['name']`: the value under a key of a map, or a field of a struct.
#[derive(Debug)]
struct FieldAccess;

impl ExprPlanner for FieldAccess {
    fn plan_field_access(&self, access: RawFieldAccessExpr, _: &DFSchema) -> Result<PlannerResult<RawFieldAccessExpr>> {
        match access.field_access {
            GetFieldAccess::NamedStructField { name } => {
                Ok(PlannerResult::Planned(core::get_field().call(vec![access.expr, lit(name)])))
            }
            GetFieldAccess::ListIndex { .. } | GetFieldAccess::ListRange { .. } => {
                plan_err!("only names in single quotes are supported between brackets, like properties['kind']")
            }
        }
    }
}
