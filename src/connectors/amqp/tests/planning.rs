//! Checking a configuration, without any I/O.

use serde_json::json;

use super::super::Amqp;
use crate::flow::registry::{Kind, SourceKind};
use crate::flow::{PartitionId, Reaction, SourceContext};

fn problems(config: serde_json::Value) -> Vec<(String, String)> {
    let problems = Amqp.plan(&config).err().unwrap_or_default();
    problems.into_iter().map(|problem| (problem.path.join("."), problem.message)).collect()
}

#[test]
fn all_mistakes_at_once_each_at_its_key() {
    let found = problems(json!({
        "url": "amqps://h", "queue": "", "user": "me", "idle_timeout": "10ms", "connect_timeout": "0s", "max_frame_size": 100
    }));
    let keys: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["queue", "idle_timeout", "connect_timeout", "max_frame_size", "url", "user"]);
    assert!(found[4].1.contains("TLS"));
}

#[test]
fn user_and_password_belong_together_and_stand_once() {
    let base = |more: serde_json::Value| {
        let mut config = json!({ "url": "amqp://a:b@h", "queue": "q" });
        config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        problems(config)
    };
    assert!(base(json!({})).is_empty());
    assert_eq!(base(json!({ "user": "u", "password": "p" }))[0].0, "user");
    assert_eq!(base(json!({ "password": "p" }))[0].0, "password");
    assert_eq!(problems(json!({ "url": "amqp://h", "queue": "q", "password": "p" }))[0].0, "password");
}

#[test]
fn every_field_is_documented() {
    let schema = Amqp.schema();
    let fields = schema.as_value()["properties"].as_object().expect("an object").clone();
    assert!(fields.len() >= 11);
    for (name, field) in fields {
        assert!(field["description"].as_str().is_some_and(|text| text.len() > 10), "{name}: {field}");
    }
}

#[tokio::test]
async fn embedded_needs_a_broker_in_the_topology() {
    let factory = Amqp.plan(&json!({ "url": "embedded", "queue": "q" })).expect("fine");
    let context = SourceContext { topology: "t".into(), partition: PartitionId::new("in", 0), embedded_broker: None };
    let error = factory.source(context).connect().await.err().expect("there is none");
    assert_eq!(error.reaction, Reaction::Park);
    assert!(error.to_string().contains("'broker' section"), "{error}");
}
