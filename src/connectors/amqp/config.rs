//! What a topology file says about an AMQP receiver, and where that leads: the address.
//!
//! The doc comments of [`Config`] are the documentation people read: the schema, `describe` and the check come from them.
//! Nothing here does I/O.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::flow::registry::ConfigError;
use crate::flow::{Result, Secret, SourceContext, StageError};
use crate::units::{Size, Span};

/// Receives messages from a queue over AMQP 1.0 (ActiveMQ Artemis and Classic, RabbitMQ, Qpid, …).
///
/// Message columns: `id` utf8 (the message-id as text: a string as it is, a ulong in decimal, a uuid with hyphens, binary
/// in lower-case hexadecimal), `sent` timestamp (creation-time), `received` timestamp (when it arrived), `value` (the
/// body; null where the message has none), `properties` map of utf8 to utf8 (the application properties: strings and
/// symbols as they are, numbers in decimal, booleans as true and false, timestamps like 2024-06-01T00:00:00.000Z, uuids
/// with hyphens, binary and decimals in hexadecimal, null as null), `redelivered` bool, `delivery_count` int32 (null
/// where the broker does not say).
///
/// Bodies: one or more data sections, or an amqp-value section with a string, binary or null. Any other body goes to the
/// dead letter with its type named.
#[derive(Clone, Deserialize, JsonSchema)]
pub struct Config {
    /// Where the broker is: `amqp://host:port` (port 5672 if left out), with `user:password@` before the host if you like
    /// (reserved characters percent-encoded), or the word `embedded` for the topology's own broker.
    pub url: String,
    /// The queue, sent to the broker verbatim. RabbitMQ wants `/amq/queue/NAME` before 4.0, `/queues/NAME` from then on.
    pub queue: String,
    /// Log in as this user (SASL PLAIN). Without a user: SASL ANONYMOUS.
    pub user: Option<String>,
    /// The user's password, read again at each connect.
    pub password: Option<Secret>,
    /// How bodies are read.
    #[serde(default)]
    pub format: Format,
    /// A peer that has sent nothing for this long is gone. Half of it is what the broker is told. At most half of
    /// `identity.horizon`.
    #[serde(default = "idle_timeout")]
    #[schemars(default = "idle_timeout")]
    pub idle_timeout: Span,
    /// How long connecting may take, from the first packet to the attached link.
    #[serde(default = "connect_timeout")]
    #[schemars(default = "connect_timeout")]
    pub connect_timeout: Span,
    /// What the connection calls itself; the partition's number is added. Default: topology, receiver, number and a
    /// random part.
    pub container_id: Option<String>,
    /// Capabilities of the link's source: `queue` makes brokers that take an unknown address for a topic (IBM MQ,
    /// Artemis with auto-create) treat it as a queue.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// The largest frame the broker may send; larger messages come in several frames.
    #[serde(default = "max_frame_size")]
    #[schemars(default = "max_frame_size")]
    pub max_frame_size: Size,
    /// Receive only messages that this JMS selector matches, for brokers that know `apache.org:selector-filter:string`.
    pub selector: Option<String>,
}

/// How bodies are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// As text, utf8; a body that is none is rejected.
    #[default]
    Text,
    /// As it is, binary.
    Binary,
}

fn idle_timeout() -> Span {
    Span(Duration::from_secs(30))
}

fn connect_timeout() -> Span {
    Span(Duration::from_secs(10))
}

fn max_frame_size() -> Size {
    Size(1 << 20)
}

/// The word for the topology's own broker.
const EMBEDDED: &str = "embedded";

/// Where to connect, and as whom: what is left of [`Config`] once it was checked.
#[derive(Clone)]
pub(super) struct Address {
    /// `None`: the topology's own broker.
    host: Option<(String, u16)>,
    login: Option<(String, Secret)>,
}

impl Address {
    /// Reads and checks `url`, `user` and `password` together.
    pub fn of(config: &Config) -> Result<Self, Vec<ConfigError>> {
        let mut problems = Vec::new();
        let (host, in_url) = match parse(&config.url) {
            Ok(parsed) => parsed,
            Err(message) => {
                problems.push(ConfigError::at("url", message));
                (None, None)
            }
        };
        let login = match (&config.user, &config.password, in_url) {
            (Some(_), _, Some(_)) => {
                problems.push(ConfigError::at("user", "there is a user in 'url' already; keep one of them"));
                None
            }
            (None, Some(_), Some(_)) => {
                problems.push(ConfigError::at(
                    "password",
                    "the user in 'url' has its password there; keep user and password together",
                ));
                None
            }
            (None, Some(_), None) => {
                problems.push(ConfigError::at("password", "there is a password but no 'user'"));
                None
            }
            (Some(user), None, None) => {
                problems.push(ConfigError::at("user", format!("user '{user}' has no 'password'")));
                None
            }
            (Some(user), Some(password), None) => Some((user.clone(), password.clone())),
            (None, None, in_url) => in_url,
        };
        if problems.is_empty() { Ok(Self { host, login }) } else { Err(problems) }
    }

    /// Host and port, for a socket.
    pub fn host(&self, context: &SourceContext) -> Result<(String, u16)> {
        match (&self.host, context.embedded_broker) {
            (Some(host), _) => Ok(host.clone()),
            (None, Some(address)) => Ok((address.ip().to_string(), address.port())),
            (None, None) => Err(StageError::park(format!(
                "receiver {} has 'url: {EMBEDDED}', but the topology has no embedded broker; add a 'broker' section or give the address of a broker",
                context.partition.receiver
            ))),
        }
    }

    /// User and password, read now.
    pub fn login(&self) -> Result<Option<(String, String)>> {
        let Some((user, password)) = &self.login else { return Ok(None) };
        Ok(Some((user.clone(), password.reveal()?.into_owned())))
    }
}

/// Host and port (`None`: embedded), and the login the url brings.
type Parsed = (Option<(String, u16)>, Option<(String, Secret)>);

fn parse(url: &str) -> Result<Parsed, String> {
    const FORM: &str = "write amqp://host:port, amqp://user:password@host:port or 'embedded'";
    if url == EMBEDDED {
        return Ok((None, None));
    }
    let rest = match url.split_once("://") {
        Some(("amqp", rest)) => rest,
        Some(("amqps", _)) => return Err("TLS (amqps) is not supported yet; use amqp:// on a trusted network".into()),
        Some((scheme, _)) => return Err(format!("'{scheme}' is not a scheme of AMQP 1.0: {FORM}")),
        None => return Err(format!("this is not a url: {FORM}")),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#']) {
        return Err(format!(
            "nothing may follow host and port (the queue has a field of its own, and reserved characters in a password are percent-encoded): {FORM}"
        ));
    }
    let (login, host) = match rest.rsplit_once('@') {
        Some((login, host)) => (Some(login), host),
        None => (None, rest),
    };
    let login = match login {
        None => None,
        Some(login) => {
            let (user, password) = login.split_once(':').ok_or_else(|| format!("the user has no password: {FORM}"))?;
            Some((decode(user)?.into_owned(), Secret::new(decode(password)?)))
        }
    };
    // An IPv6 address stands in brackets, because of its colons.
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(|| format!("'[' without ']': {FORM}"))?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port
            .parse()
            .ok()
            .filter(|&port| port > 0)
            .ok_or_else(|| format!("what follows the last ':' is not a port: {FORM}"))?,
        None if port.is_empty() => 5672,
        None => return Err(format!("only a port may follow the host: {FORM}")),
    };
    if host.is_empty() {
        return Err(format!("there is no host: {FORM}"));
    }
    Ok((Some((host.to_owned(), port)), login))
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Result<Cow<'_, str>, String> {
    if !text.contains('%') {
        return Ok(text.into());
    }
    let wrong = || "user and password are percent-encoded: a percent sign itself is written %25".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(wrong);
            let value = digit()? * 16 + digit()?;
            bytes.push(u8::try_from(value).map_err(|_| wrong())?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| wrong())
}

/// Broker, queue and user as error messages name them. Never the password.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Host and port.
    pub host: (String, u16),
    /// The queue.
    pub queue: String,
    /// The user, if one logs in.
    pub user: Option<String>,
}

impl Place {
    /// `as 'user'` or `without a user`.
    pub fn whom(&self) -> String {
        self.user.as_ref().map_or_else(|| "without a user".to_owned(), |user| format!("as user '{user}'"))
    }
}

/// The broker's address.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = &self.host;
        if host.contains(':') { write!(f, "amqp://[{host}]:{port}") } else { write!(f, "amqp://{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = (Option<(String, u16)>, Option<(String, String)>);

    fn read(url: &str) -> Result<Read, String> {
        let (host, login) = parse(url)?;
        Ok((host, login.map(|(user, password)| (user, password.reveal().expect("a value").into_owned()))))
    }

    #[test]
    fn urls_as_people_write_them() {
        let host = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(read("amqp://broker"), Ok((host("broker", 5672), None)));
        assert_eq!(read("amqp://broker:5673/"), Ok((host("broker", 5673), None)));
        assert_eq!(read("amqp://[::1]:7"), Ok((host("::1", 7), None)));
        assert_eq!(read("embedded"), Ok((None, None)));
        let login = Some(("a@b".to_owned(), "p:w/ü%".to_owned()));
        assert_eq!(read("amqp://a%40b:p:w%2F%C3%BC%25@h"), Ok((host("h", 5672), login)));
    }

    #[test]
    fn a_wrong_url_is_told_apart() {
        for (url, word) in [
            ("broker:5672", "not a url"),
            ("amqps://h", "TLS"),
            ("http://h", "'http'"),
            ("amqp://", "no host"),
            ("amqp://h:0", "not a port"),
            ("amqp://h:99999", "not a port"),
            ("amqp://[::1", "without ']'"),
            ("amqp://h/queue", "field of its own"),
            ("amqp://u@h", "no password"),
            ("amqp://u:p%zz@h", "%25"),
            ("amqp://u:p%c3@h", "%25"),
        ] {
            let error = read(url).expect_err(url);
            assert!(error.contains(word), "{url}: {error}");
            assert!(!error.contains("p%"), "a password in an error: {error}");
        }
    }
}
