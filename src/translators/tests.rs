//! What holds for every translator of the table.

use std::collections::BTreeSet;

use super::testing::texts;
use super::*;

#[test]
fn every_example_parses_passes_its_schema_and_plans() {
    let registry = register(Registry::default());
    let names: BTreeSet<_> = registry.translators().values().map(|kind| kind.name()).collect();
    assert_eq!(names, BTreeSet::from(["binary", "csv", "json", "text"]));
    let input = texts(["x"]).columns.schema();
    for (name, kind) in registry.translators() {
        assert_eq!(*name, kind.name());
        assert!(kind.about().starts_with(char::is_lowercase) && !kind.about().ends_with('.'), "{name}");
        let example: Value = serde_yaml::from_str(kind.example()).expect(name);
        let schema = kind.schema().to_value();
        let checked = jsonschema::validator_for(&schema).expect(name).validate(&example).map_err(|e| e.to_string());
        assert_eq!(checked, Ok(()), "{name}");
        let factory = kind.plan(&example, &input).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
        assert!(!factory.output().fields().is_empty());
    }
}

#[test]
fn every_field_of_every_configuration_is_documented() {
    for (name, kind) in register(Registry::default()).translators() {
        let schema = kind.schema().to_value();
        let properties = schema["properties"].as_object().expect(name);
        for key in ["on_error", "keep", "where", "derive", "select"] {
            assert!(properties.contains_key(key), "{name}.{key}");
        }
        for (key, property) in properties {
            assert!(property["description"].is_string(), "{name}.{key}: {property}");
        }
    }
}

#[test]
fn bodies_must_be_text_or_binary() {
    let raw = texts(["x"]);
    let without = raw.columns.project(&[0, 1]).expect("projected").schema();
    let registry = register(Registry::default());
    for kind in registry.translators().values() {
        let config = serde_json::json!({ "columns": { "a": "int64" } });
        let errors = kind.plan(&config, &without).err().expect("no value");
        assert!(errors[0].message.contains("no column 'value'"), "{errors:?}");
    }
}
