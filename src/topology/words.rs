//! What types and formats are called, in problems and in documentation, and values as a file would have them.

use serde_json::Value;

/// What a format of ours looks like.
pub(super) fn of_format(format: &str) -> Option<&'static str> {
    Some(match format {
        "span" => "a duration like 250ms, 10s, 2m or 7d",
        "size" => "a size like 64MiB, 16KB or 1000",
        "listen" => "an address with a port like 127.0.0.1:9464",
        "store" => "a folder like ./state, or memory",
        "secret" => "text",
        _ => return None,
    })
}

/// What a type of JSON Schema is called.
pub(super) fn of_type(name: &str) -> &'static str {
    match name {
        "null" => "nothing",
        "boolean" => "true or false",
        "integer" => "a whole number",
        "number" => "a number",
        "array" => "a list",
        "object" => "a map",
        _ => "text",
    }
}

/// A value as it would be written in a topology file, on one line.
pub(super) fn written(value: &Value) -> String {
    match value {
        Value::String(text) => match is_plain(text) {
            true => text.clone(),
            // JSON's quotes are YAML's too.
            false => value.to_string(),
        },
        Value::Array(items) => format!("[{}]", Vec::from_iter(items.iter().map(written)).join(", ")),
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Object(fields) => {
            let entries = fields.iter().map(|(key, value)| format!("{key}: {}", written(value)));
            format!("{{ {} }}", Vec::from_iter(entries).join(", "))
        }
        value => value.to_string(),
    }
}

/// Whether YAML reads these characters as this very text, without quotes.
fn is_plain(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | ':' | '-');
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_'))
        && text.chars().all(word)
        && !text.ends_with(':')
        && text.parse::<f64>().is_err()
        && !matches!(text.to_ascii_lowercase().as_str(), "true" | "false" | "null" | "yes" | "no" | "on" | "off")
}

/// A paragraph on lines of at most so many characters; a word that is longer has a line of its own.
pub fn filled(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= width) {
            Some(line) => line.extend([" ", word]),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_read_back_as_they_were() {
        for value in [
            json!("10s"),
            json!("127.0.0.1:0"),
            json!("./state"),
            json!("\""),
            json!(","),
            json!(""),
            json!("5"),
            json!("null"),
            json!("a: b"),
            json!(["a", 1, true, null]),
            json!({ "a": { "b": "c,d" } }),
            json!({}),
        ] {
            let text = written(&value);
            assert_eq!(serde_yaml::from_str::<Value>(&text).expect(&text), value, "{text}");
        }
        assert_eq!(written(&json!("10s")), "10s");
    }
}
