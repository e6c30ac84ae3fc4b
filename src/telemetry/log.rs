//! What the program says while it works: to the standard error, as text or as JSON lines.
//!
//! A filter is a level, or a level for a component, or several with commas between: `info`, `amqp=debug`,
//! `warn,checkpoint=trace`. The words for components are [`WORDS`]. A level on its own is for the whole of this program;
//! libraries are never louder than `warn`, unless one is named by its module path, like `hyper::client=debug`.
//!
//! What is not done: no log files, no rotation. Whoever starts the program has the standard error.

use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;

/// This crate's own events, the command line's among them.
const OURS: &str = "distributary";

/// The words a filter may name, and the modules that each stands for.
pub const WORDS: &[(&str, &str)] = &[
    ("amqp", "distributary::connectors::amqp"),
    ("amqp.frames", "distributary::connectors::amqp::frames"),
    ("broker", "distributary::broker"),
    ("checkpoint", "distributary::checkpoint"),
    ("cli", "distributary::cli"),
    ("connectors", "distributary::connectors"),
    ("console", "distributary::connectors::console"),
    ("delta", "distributary::connectors::delta"),
    ("expr", "distributary::expr"),
    ("generator", "distributary::connectors::generator"),
    ("memory", "distributary::connectors::memory"),
    ("objects", "distributary::objects"),
    ("parquet", "distributary::connectors::parquet"),
    ("runtime", "distributary::runtime"),
    ("telemetry", "distributary::telemetry"),
    ("topology", "distributary::topology"),
    ("translators", "distributary::translators"),
];

const LEVELS: &[(&str, LevelFilter)] = &[
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// What is logged.
#[derive(Clone, Debug)]
pub struct Filter {
    text: String,
    targets: Targets,
}

impl Default for Filter {
    fn default() -> Self {
        "info".parse().expect("a level")
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut own = LevelFilter::INFO;
        let mut named = Vec::new();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                None if part.is_empty() => return Err(refused(text, "a part of it is empty")),
                None => own = level(part).ok_or_else(|| refused(text, &misspelt_level(part)))?,
                Some((word, name)) => {
                    let (word, name) = (word.trim(), name.trim());
                    let level = level(name).ok_or_else(|| refused(text, &misspelt_level(name)))?;
                    let target = WORDS.iter().find(|(known, _)| *known == word).map(|(_, target)| *target);
                    let target = target.or_else(|| word.contains("::").then_some(word));
                    named.push((target.ok_or_else(|| refused(text, &unknown(word)))?.to_owned(), level));
                }
            }
        }
        let targets =
            Targets::new().with_default(own.min(LevelFilter::WARN)).with_target(OURS, own).with_targets(named);
        Ok(Self { text: text.to_owned(), targets })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn level(word: &str) -> Option<LevelFilter> {
    LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, level)| *level)
}

fn refused(text: &str, why: &str) -> String {
    format!("cannot read the log filter '{text}': {why}")
}

fn misspelt_level(word: &str) -> String {
    let component = if WORDS.iter().any(|(known, _)| *known == word) {
        format!("; write {word}=debug to hear more of {word}")
    } else {
        String::new()
    };
    format!("'{word}' is not a level: off, error, warn, info, debug or trace{component}")
}

fn unknown(word: &str) -> String {
    let nearest = WORDS
        .iter()
        .map(|(known, _)| (strsim::damerau_levenshtein(known, word), *known))
        .min()
        .filter(|(distance, _)| *distance <= 2)
        .map(|(_, known)| format!(", perhaps {known}"))
        .unwrap_or_default();
    let words = WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    format!("there is no component '{word}'{nearest}; there are {words}, and module paths with ::")
}

/// How it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people; in colours on a terminal.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("'{text}' is not a log format: text or json")),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Sets up the log of this process, to standard error by way of `writer`. Called once, by the binary; a second call
/// changes nothing.
pub fn init<W: io::Write + 'static>(filter: &Filter, format: Format, writer: impl Fn() -> W + Send + Sync + 'static) {
    let stderr = io::stderr();
    let colours = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // An embedding program, or a test, may have set up its own: then that one is used.
    let _ = tracing::subscriber::set_global_default(subscriber(filter, format, writer, colours));
}

fn subscriber<W>(filter: &Filter, format: Format, writer: W, colours: bool) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours);
    let lines = match format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    registry().with(lines.with_filter(filter.targets.clone()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::Value;
    use tracing::Level;

    use super::*;

    fn enables(filter: &str, target: &str, level: Level) -> bool {
        filter.parse::<Filter>().expect(filter).targets.would_enable(target, &level)
    }

    #[test]
    fn a_level_is_for_this_program_and_libraries_stay_quiet() {
        assert!(enables("debug", "distributary::runtime::sink", Level::DEBUG));
        assert!(!enables("debug", "distributary::runtime::sink", Level::TRACE));
        assert!(!enables("trace", "mio::poll", Level::INFO));
        assert!(enables("trace", "mio::poll", Level::WARN));
        assert!(!enables("error", "mio::poll", Level::WARN));
        assert!(!enables("off", "distributary", Level::ERROR));
    }

    #[test]
    fn a_component_has_a_level_of_its_own() {
        let filter = "amqp=debug, checkpoint=TRACE,connectors=warn";
        assert!(enables(filter, "distributary::connectors::amqp::link", Level::DEBUG));
        assert!(enables(filter, "distributary::checkpoint", Level::TRACE));
        assert!(!enables(filter, "distributary::connectors::delta", Level::INFO));
        assert!(enables(filter, "distributary::runtime", Level::INFO));
        assert!(enables("hyper::client=debug", "hyper::client::connect", Level::DEBUG));
    }

    #[test]
    fn every_word_is_a_module() {
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        for (word, target) in WORDS {
            let path = source.join(target.strip_prefix("distributary::").expect(target).replace("::", "/"));
            assert!(path.is_dir() || path.with_extension("rs").is_file(), "{word}: there is no module {target}");
        }
    }

    #[test]
    fn a_bad_filter_is_explained() {
        for (filter, part) in [
            ("loud", "'loud' is not a level: off, error, warn, info, debug or trace"),
            ("amqp", "write amqp=debug"),
            ("ampq=debug", "there is no component 'ampq', perhaps amqp; there are amqp, amqp.frames, broker,"),
            ("amqp=louder", "'louder' is not a level"),
            ("info,,amqp=debug", "a part of it is empty"),
            ("", "a part of it is empty"),
        ] {
            let error = filter.parse::<Filter>().expect_err(filter);
            assert!(error.contains(part), "{error}");
        }
        assert_eq!("xml".parse::<Format>().expect_err("xml"), "'xml' is not a log format: text or json");
    }

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("memory").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn said(format: Format, colours: bool) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        let subscriber = subscriber(&Filter::default(), format, move || writer.clone(), colours);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "distributary::runtime", partition = "orders/0", "restarted");
            tracing::debug!(target: "distributary::runtime", "not shown");
        });
        let bytes = memory.0.lock().expect("memory").clone();
        String::from_utf8(bytes).expect("utf-8")
    }

    #[test]
    fn text_and_json() {
        let text = said(Format::Text, false);
        assert!(text.contains("INFO distributary::runtime: restarted partition=\"orders/0\""), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains("not shown"));
        assert!(said(Format::Text, true).contains('\u{1b}'));
        let json: Value = serde_json::from_str(said(Format::Json, false).trim()).expect("one object");
        assert_eq!(json["message"], "restarted");
        assert_eq!(json["partition"], "orders/0");
        assert_eq!(json["level"], "INFO");
    }
}
