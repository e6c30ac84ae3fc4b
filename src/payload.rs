//! Generated messages: the generator and the broker's feed share them.
//!
//! The body of a number is a function of the run, the seed, the start and the number alone: a message that has to be
//! generated again is the same message, whatever was generated in between. No clock and no randomness of its own.

use std::fmt::Write;

use chrono::DateTime;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::units::Span;

/// What is generated.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Payload {
    /// One that has a name.
    Named(Named),
    /// One of your own.
    Template(Template),
}

impl Default for Payload {
    fn default() -> Self {
        Self::Named(Named::AnimalsCsv)
    }
}

/// The payloads that have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Named {
    /// A line of comma-separated fields: `generator_id`, `row_num`, `animal`, `color`, `count` (0 to 99) and `datetime`
    /// (`yyyy-MM-dd HH:mm:ss`, within the last 30 days).
    AnimalsCsv,
}

/// A text with gaps in it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// `{n}` is the message's number, `{run}` the run's id, `{time}` a time like `2026-01-31 12:00:00`, `{random}` 16
    /// random letters and digits and `{random:200}` two hundred of them. Other braces stand for themselves.
    pub template: String,
}

/// Messages for one queue of the embedded broker, sent when it starts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Feed {
    /// The queue.
    #[schemars(length(min = 1))]
    pub queue: String,
    /// What the messages say: the name of a payload, or a template.
    #[serde(default)]
    pub payload: Payload,
    /// What kind of body they have.
    #[serde(default)]
    pub format: BodyFormat,
    /// How many; left out: it goes on until the broker stops.
    #[serde(default)]
    #[schemars(extend("x-unit" = "messages"))]
    pub count: Option<u64>,
    /// How many a second at most; left out: as fast as the broker takes them.
    #[serde(default)]
    #[schemars(range(min = 0.001), extend("x-unit" = "messages per second"))]
    pub rate: Option<f64>,
    /// How often its progress is logged; left out: never.
    #[serde(default)]
    pub log_every: Option<Span>,
}

/// The kind of a message's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BodyFormat {
    /// A string (AMQP: an amqp-value section).
    #[default]
    Text,
    /// Bytes (AMQP: a data section).
    Binary,
}

/// Makes the messages of one run.
#[derive(Clone, Debug)]
pub struct Generator {
    parts: Vec<Part>,
    run: String,
    seed: u64,
    now_secs: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Number,
    Run,
    Time,
    Random(usize),
    Animal,
    Color,
    Count,
}

/// No body is longer than this by `{random:…}` alone.
const LONGEST_RANDOM: usize = 16 << 20;

impl Generator {
    /// For the run with this id. The times are before `now_ms` since 1970.
    pub fn new(payload: &Payload, run: Uuid, seed: u64, now_ms: i64) -> Self {
        let parts = match payload {
            Payload::Named(Named::AnimalsCsv) => {
                let comma = || Part::Text(",".to_owned());
                let fields = [Part::Run, Part::Number, Part::Animal, Part::Color, Part::Count, Part::Time];
                let mut parts: Vec<_> = fields.into_iter().flat_map(|field| [field, comma()]).collect();
                parts.pop();
                parts
            }
            Payload::Template(template) => parse(&template.template),
        };
        Self { parts, run: run.to_string(), seed, now_secs: now_ms.div_euclid(1000) }
    }

    /// The body of message `n`.
    pub fn body(&mut self, n: u64) -> String {
        let mut body = String::with_capacity(128);
        self.append(n, &mut body);
        body
    }

    /// Appends the body of message `n`.
    pub fn append(&mut self, n: u64, body: &mut String) {
        // Each number has random numbers of its own; neighbours must not look alike.
        let mut rng = SmallRng::seed_from_u64(self.seed ^ n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for part in &self.parts {
            match part {
                Part::Text(text) => body.push_str(text),
                Part::Run => body.push_str(&self.run),
                Part::Animal => body.push_str(ANIMALS[rng.random_range(0..ANIMALS.len())]),
                Part::Color => body.push_str(COLORS[rng.random_range(0..COLORS.len())]),
                Part::Number => push(body, format_args!("{n}")),
                Part::Count => push(body, format_args!("{}", rng.random_range(0..100))),
                Part::Time => {
                    let ago = rng.random_range(0..30 * 24 * 3600);
                    let time = DateTime::from_timestamp(self.now_secs - ago, 0).unwrap_or_default();
                    push(body, format_args!("{}", time.format("%Y-%m-%d %H:%M:%S")));
                }
                Part::Random(length) => {
                    body.extend((0..*length).map(|_| char::from(rng.sample(rand::distr::Alphanumeric))));
                }
            }
        }
    }
}

fn push(body: &mut String, text: std::fmt::Arguments<'_>) {
    body.write_fmt(text).expect("a string takes everything");
}

fn parse(template: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        text.push_str(&rest[..open]);
        rest = &rest[open..];
        let gap = rest.find('}').and_then(|close| Some((gap(&rest[1..close])?, close + 1)));
        match gap {
            Some((part, end)) => {
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.push(part);
                rest = &rest[end..];
            }
            None => {
                text.push('{');
                rest = &rest[1..];
            }
        }
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    parts
}

fn gap(name: &str) -> Option<Part> {
    match name {
        "n" => Some(Part::Number),
        "run" => Some(Part::Run),
        "time" => Some(Part::Time),
        "random" => Some(Part::Random(16)),
        _ => {
            let length = name.strip_prefix("random:")?.parse().ok()?;
            (length <= LONGEST_RANDOM).then_some(Part::Random(length))
        }
    }
}

const ANIMALS: [&str; 77] = [
    "aardvark",
    "albatross",
    "alpaca",
    "antelope",
    "armadillo",
    "axolotl",
    "badger",
    "bat",
    "bear",
    "beaver",
    "bison",
    "buffalo",
    "camel",
    "capybara",
    "cat",
    "chameleon",
    "cheetah",
    "chinchilla",
    "cormorant",
    "crane",
    "crow",
    "deer",
    "dingo",
    "dolphin",
    "donkey",
    "dormouse",
    "eagle",
    "eel",
    "egret",
    "elephant",
    "falcon",
    "ferret",
    "finch",
    "fox",
    "frog",
    "gazelle",
    "gecko",
    "goose",
    "hamster",
    "hare",
    "hedgehog",
    "heron",
    "hippo",
    "ibis",
    "iguana",
    "jackal",
    "jaguar",
    "kestrel",
    "kingfisher",
    "koala",
    "lemur",
    "lobster",
    "lynx",
    "magpie",
    "marten",
    "mole",
    "moose",
    "newt",
    "ocelot",
    "octopus",
    "osprey",
    "otter",
    "owl",
    "panda",
    "pelican",
    "penguin",
    "pike",
    "quail",
    "raccoon",
    "raven",
    "seal",
    "sturgeon",
    "tapir",
    "turtle",
    "vole",
    "walrus",
    "zebra",
];

const COLORS: [&str; 41] = [
    "amber", "aqua", "azure", "beige", "black", "blue", "bronze", "brown", "charcoal", "cherry", "copper", "coral",
    "cream", "crimson", "cyan", "emerald", "gold", "gray", "green", "indigo", "ivory", "jade", "khaki", "lavender",
    "lilac", "lime", "magenta", "maroon", "mint", "navy", "ochre", "olive", "orange", "pink", "purple", "red",
    "salmon", "silver", "teal", "violet", "white",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use chrono::NaiveDateTime;

    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    fn generator(payload: &Payload) -> Generator {
        Generator::new(payload, Uuid::from_u128(7), 1, NOW)
    }

    fn template(template: &str) -> Payload {
        Payload::Template(Template { template: template.to_owned() })
    }

    #[test]
    fn animals_have_their_six_fields() {
        let mut generator = generator(&Payload::default());
        let mut seen = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for n in 0..5_000 {
            let body = generator.body(n);
            let fields: Vec<_> = body.split(',').collect();
            let [run, row, animal, color, count, time] = fields.as_slice() else { panic!("{body}") };
            assert_eq!((*run, *row), (Uuid::from_u128(7).to_string().as_str(), n.to_string().as_str()));
            let time = NaiveDateTime::parse_from_str(time, "%Y-%m-%d %H:%M:%S").expect("a time").and_utc();
            let ago = NOW - time.timestamp_millis();
            assert!((0..30 * 24 * 3_600_000).contains(&ago), "{body}");
            let count: u8 = count.parse().expect("a count");
            seen.0.insert((*animal).to_owned());
            seen.1.insert((*color).to_owned());
            seen.2.insert(count);
        }
        assert_eq!((seen.0.len(), seen.1.len(), seen.2.len(), seen.2.last()), (77, 41, 100, Some(&99)));
    }

    #[test]
    fn a_message_that_is_generated_again_is_the_same() {
        let payload = template("{n} {random} {time}");
        let mut first = generator(&payload);
        let bodies: Vec<_> = (0..100).map(|n| first.body(n)).collect();
        assert_eq!(bodies.iter().collect::<BTreeSet<_>>().len(), 100);
        let mut second = generator(&payload);
        for n in [99, 3, 50, 3] {
            assert_eq!(second.body(n), bodies[usize::try_from(n).expect("small")]);
        }
        assert_ne!(Generator::new(&payload, Uuid::from_u128(7), 2, NOW).body(3), bodies[3]);
    }

    #[test]
    fn gaps_are_filled_and_other_braces_left_alone() {
        let mut generator = generator(&template(r#"{"n": {n}, "run": "{run}", "e": {}, "u": {unknown}}{"#));
        assert_eq!(
            generator.body(5),
            format!(r#"{{"n": 5, "run": "{}", "e": {{}}, "u": {{unknown}}}}{{"#, Uuid::from_u128(7))
        );
        assert_eq!(self::generator(&template("{random:200}")).body(0).len(), 200);
        assert_eq!(self::generator(&template("{random:99999999999}")).body(0), "{random:99999999999}");
        assert_eq!(self::generator(&template("")).body(0), "");
    }

    #[test]
    fn a_payload_is_a_name_or_a_template() {
        let named: Payload = serde_json::from_str("\"animals_csv\"").expect("a name");
        assert_eq!(named, Payload::default());
        let own: Payload = serde_json::from_str(r#"{ "template": "x" }"#).expect("a template");
        assert_eq!(own, template("x"));
        assert!(serde_json::from_str::<Payload>("\"plants_csv\"").is_err());
    }
}
