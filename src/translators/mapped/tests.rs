use arrow::array::{BinaryArray, StringArray};
use serde_json::json;

use super::super::testing::{messages, names, rejected, rows, texts, translated};
use super::*;

/// Reads `n` and a text from the body, the kind from a property.
#[derive(Clone, Deserialize, JsonSchema)]
struct Orders {
    /// What stands before the number.
    prefix: String,
    #[serde(skip)]
    seen: u32,
}

#[derive(Serialize)]
struct Order<'a> {
    n: Value,
    kind: Option<String>,
    id: &'a str,
}

impl MessageMapper for Orders {
    const NAME: &'static str = "orders";
    const ABOUT: &'static str = "reads orders";
    const EXAMPLE: &'static str = "prefix: '#'";
    const COLUMNS: &'static [(&'static str, &'static str)] = &[("n", "int64"), ("kind", "utf8")];
    type Row = Order<'static>;

    fn check(&self) -> Result<(), String> {
        if self.prefix.is_empty() { Err("'prefix' is empty".to_owned()) } else { Ok(()) }
    }

    fn map(&mut self, message: &Message<'_>) -> Result<Order<'static>, String> {
        self.seen += 1;
        let text = message.text().ok_or("there is no text")?;
        let n = text.strip_prefix(&self.prefix).ok_or_else(|| format!("'{text}' has no prefix"))?;
        let n = serde_json::from_str(n).map_err(|e| e.to_string())?;
        Ok(Order { n, kind: message.property("kind").map(str::to_owned), id: "not a column" })
    }
}

#[test]
fn a_message_becomes_a_row_with_headers_properties_and_derived_columns() {
    let config = json!({ "prefix": "#", "keep": ["redelivered"], "derive": { "day": "to_date(sent)", "m": "n + 1" } });
    let out = translated(&TranslatorOf::<Orders>::default(), config, &texts(["#1", "#2"]));
    assert_eq!(names(&out), ["id", "sent", "received", "n", "kind", "redelivered", "day", "m"]);
    assert_eq!(
        rows(&out, &["id", "n", "kind", "day", "m"]),
        ["0: m0|1|test|1970-01-01|2", "1: m1|2|test|1970-01-02|3"]
    );
}

#[test]
fn what_the_mapper_refuses_and_what_does_not_fit_its_columns_is_rejected_alone() {
    let bodies = ["#1", "2", "#\"3\"", "#4.5", "#null", "#99999999999999999999", "#7"];
    let out = translated(&TranslatorOf::<Orders>::default(), json!({ "prefix": "#" }), &texts(bodies));
    assert_eq!(
        (rows(&out, &["n"]), rejected(&out)),
        (vec!["0: 1".into(), "4: NULL".into(), "6: 7".into()], vec![1, 2, 3, 5])
    );
    let details: Vec<_> = out.rejects.iter().map(|reject| reject.detail.as_str()).collect();
    assert_eq!(details[..2], ["'2' has no prefix", "column 'n' wants an integer: \"3\""]);

    let nulls = json!({ "prefix": "#", "on_error": "null" });
    let out = translated(&TranslatorOf::<Orders>::default(), nulls, &texts(bodies));
    assert_eq!((out.rejects.len(), out.nulled, out.rows.len()), (0, 4, 7));
    assert_eq!(rows(&out, &["n", "kind"])[1..3], ["1: NULL|NULL", "2: NULL|test"]);

    let raw = texts(bodies);
    let plan =
        TranslatorOf::<Orders>::default().plan(&json!({ "prefix": "#", "on_error": "fail" }), &raw.columns.schema());
    let error = plan.expect("planned").translator().translate(&raw).err().expect("it fails");
    assert!(error.to_string().contains("row 1") && error.to_string().contains("has no prefix"), "{error}");
}

#[test]
fn a_configuration_is_checked_and_documented_like_any_other() {
    let kind = TranslatorOf::<Orders>::default();
    let input = texts([]).columns.schema();
    let error = kind.plan(&json!({ "prefix": "" }), &input).err().expect("refused");
    assert_eq!(error, [ConfigError::here("'prefix' is empty")]);
    let schema = kind.schema().to_value();
    for key in ["prefix", "on_error", "where"] {
        assert!(schema["properties"][key]["description"].is_string(), "{key}: {schema}");
    }
    assert!(schema["properties"].get("seen").is_none(), "what it keeps is no field: {schema}");
    assert_eq!((kind.name(), kind.about()), ("orders", "reads orders"));
}

#[derive(Clone, Deserialize, JsonSchema)]
struct Headers {}

impl MessageMapper for Headers {
    const NAME: &'static str = "headers";
    const ABOUT: &'static str = "says what a message has";
    const EXAMPLE: &'static str = "";
    const COLUMNS: &'static [(&'static str, &'static str)] = &[("said", "utf8")];
    type Row = Value;

    fn map(&mut self, message: &Message<'_>) -> Result<Value, String> {
        let (id, sent, received) = (message.id(), message.sent(), message.received());
        let body = (message.bytes().map(<[u8]>::len), message.text());
        let said = format!(
            "{id:?} {sent:?} {received:?} {} {:?} {body:?} {:?} {:?}",
            message.redelivered(),
            message.delivery_count(),
            message.property("nope"),
            message.properties().collect::<Vec<_>>()
        );
        Ok(json!({ "said": said }))
    }
}

#[test]
fn headers_properties_and_bodies_of_both_kinds_are_seen() {
    let kind = TranslatorOf::<Headers>::default();
    let common = |n: i64| format!("Some(\"m{n}\") Some({0}) Some({0}) false None", n * 86_400_000);
    let rest = "None [(\"kind\", Some(\"test\"))]";
    let out = translated(&kind, json!({}), &messages(Arc::new(StringArray::from(vec![Some("é"), None]))));
    assert_eq!(
        rows(&out, &["said"]),
        [format!("0: {} (Some(2), Some(\"é\")) {rest}", common(0)), format!("1: {} (None, None) {rest}", common(1))]
    );
    let bytes: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"\xff"]));
    let out = translated(&kind, json!({}), &messages(bytes));
    assert_eq!(rows(&out, &["said"]), [format!("0: {} (Some(1), None) {rest}", common(0))]);
    assert_eq!(translated(&kind, json!({}), &texts([])).rows.len(), 0);
}
