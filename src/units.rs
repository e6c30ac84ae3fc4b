//! Durations and sizes as people write them: `250ms`, `10s`, `2m`, `7d`; `64MiB`, `16KB`, `1000`.
//!
//! A bare number is bytes for a size and refused for a duration, whose unit nobody should have to guess.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};

/// A length of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

const SPANS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZES: [(&str, u64); 8] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Number, perhaps a space, unit.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')?;
    let (number, unit) = text.split_at(at);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim())?;
    let number = number.replace('_', "");
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(*scale),
        Err(_) => {
            let number: f64 = number.parse().ok()?;
            let scaled = number * *scale as f64;
            (number.is_finite() && scaled < 9e15).then_some(scaled.round() as u64)
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        scaled(text, &SPANS).map(|millis| Self(Duration::from_millis(millis))).ok_or_else(|| {
            format!("'{text}' is not a duration: write a number and ms, s, m, h or d, like 250ms or 10s")
        })
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(bytes) = text.trim().replace('_', "").parse() {
            return Ok(Self(bytes));
        }
        scaled(text, &SIZES).map(Self).ok_or_else(|| {
            format!("'{text}' is not a size: write bytes, or a number and KB, MB, GB, KiB, MiB, GiB or TiB")
        })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let (unit, scale) =
            SPANS.iter().rev().find(|(_, scale)| millis > 0 && millis.is_multiple_of(*scale)).unwrap_or(&SPANS[0]);
        write!(f, "{}{unit}", millis / scale)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = SIZES[4..].iter().rev().chain(&SIZES[..1]);
        let (unit, scale) =
            units.into_iter().find(|(_, scale)| self.0 >= *scale && self.0.is_multiple_of(*scale)).unwrap_or(&SIZES[0]);
        write!(f, "{}{unit}", self.0 / scale)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

impl serde::Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl serde::Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "span", "pattern": r"^\s*[0-9][0-9_]*(\.[0-9]+)?\s*(ms|s|m|h|d)\s*$" })
    }

    fn inline_schema() -> bool {
        true
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": r"^\s*[0-9][0-9_]*(\.[0-9]+)?\s*(B|KB|MB|GB|KiB|MiB|GiB|TiB)?\s*$" }
            ],
            "format": "size"
        })
    }

    fn inline_schema() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write_and_prints_it_back() {
        for (text, millis, printed) in [
            ("250ms", 250, "250ms"),
            ("10s", 10_000, "10s"),
            ("1.5 s", 1_500, "1500ms"),
            ("2m", 120_000, "2m"),
            ("7d", 604_800_000, "7d"),
        ] {
            let span: Span = text.parse().expect(text);
            assert_eq!(span.0, Duration::from_millis(millis));
            assert_eq!(span.to_string(), printed);
        }
        for (text, bytes, printed) in
            [("64MiB", 64 << 20, "64MiB"), ("1000", 1000, "1000B"), ("1.5KB", 1500, "1500B"), ("1_000", 1000, "1000B")]
        {
            let size: Size = text.parse().expect(text);
            assert_eq!(size.0, bytes);
            assert_eq!(size.to_string(), printed);
        }
    }

    #[test]
    fn refuses_what_must_be_guessed() {
        for text in ["10", "", "s", "ten seconds", "-1s", "1e9999s", "99999999999999999999d"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        for text in ["", "MiB", "12 apples", "-1", "9999999999999TiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
