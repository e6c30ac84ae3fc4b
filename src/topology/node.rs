//! The tree that a topology is read into: values that know their place in the file, and where they are from.

use serde_json::Value;

use super::problem::Place;

/// What a node weighs beside its text.
pub(super) const NODE_WEIGHT: usize = 64;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub place: Place,
    pub content: Content,
    pub origin: Origin,
    /// The schema marks this place as a secret.
    pub secret: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Null, bool, number or string.
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key with its value; `place` is the key's.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub place: Place,
    pub key: String,
    pub value: Node,
}

/// Where a scalar's value is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The file itself.
    Written,
    /// A default that stands in the file as the whole of a `${NAME:-default}`: it may become a number or a bool.
    Default,
    /// A variable or a file; `whole` if the scalar is nothing else, so that it may become a number or a bool.
    Outside { whole: bool },
    /// The scalar is wholly `${file:…}` and not read yet; at the place of a secret it never is.
    File(String),
    /// Its substitution failed, which was reported: nothing more is to be said of it.
    Broken,
}

impl Node {
    /// As it stands in the file.
    pub fn new(place: Place, content: Content) -> Self {
        Self { place, content, origin: Origin::Written, secret: false }
    }

    /// As plain JSON. Broken scalars are null.
    pub fn json(&self) -> Value {
        match &self.content {
            Content::Scalar(_) if self.origin == Origin::Broken => Value::Null,
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Self::json).collect(),
            Content::Map(entries) => {
                Value::Object(entries.iter().map(|entry| (entry.key.clone(), entry.value.json())).collect())
            }
        }
    }

    /// The value under `key` of a map.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// As [`get`](Self::get).
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Content::Map(entries) = &mut self.content else { return None };
        entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.value)
    }

    /// The entries of a map; none of anything else.
    pub fn entries(&self) -> &[Entry] {
        match &self.content {
            Content::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The text of a string.
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(Value::String(text)) if self.origin != Origin::Broken => Some(text),
            _ => None,
        }
    }

    /// Whether there is nothing after the colon.
    pub fn is_null(&self) -> bool {
        matches!(self.content, Content::Scalar(Value::Null))
    }

    /// Whether the value must not be printed.
    pub fn is_private(&self) -> bool {
        self.secret || matches!(self.origin, Origin::Outside { .. } | Origin::File(_))
    }

    /// Whether a substitution failed here or below.
    pub fn is_broken(&self) -> bool {
        match &self.content {
            Content::Scalar(_) => self.origin == Origin::Broken,
            Content::List(items) => items.iter().any(Self::is_broken),
            Content::Map(entries) => entries.iter().any(|entry| entry.value.is_broken()),
        }
    }

    /// What it costs to copy.
    pub fn weight(&self) -> usize {
        NODE_WEIGHT
            + match &self.content {
                Content::Scalar(Value::String(text)) => text.len(),
                Content::Scalar(_) => 0,
                Content::List(items) => items.iter().map(Self::weight).sum(),
                Content::Map(entries) => entries.iter().map(|entry| entry.key.len() + entry.value.weight()).sum(),
            }
    }
}
