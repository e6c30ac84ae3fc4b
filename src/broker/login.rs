//! SASL: ANONYMOUS and PLAIN, offered according to the configuration.

use fe2o3_amqp_types::sasl::{SaslCode, SaslInit, SaslMechanisms};
use serde_amqp::primitives::{Array, Symbol};

use crate::flow::Secret;

/// Who may come in.
#[derive(Debug, Clone)]
pub(super) enum Login {
    /// Everybody; a PLAIN login is taken whatever it says.
    Anyone,
    /// One user by PLAIN.
    User(String, Secret),
}

impl Login {
    pub(super) fn mechanisms(&self) -> SaslMechanisms {
        let names: &[&str] = match self {
            Self::Anyone => &["ANONYMOUS", "PLAIN"],
            Self::User(..) => &["PLAIN"],
        };
        SaslMechanisms { sasl_server_mechanisms: Array(names.iter().map(|name| Symbol::from(*name)).collect()) }
    }

    pub(super) fn check(&self, init: &SaslInit) -> SaslCode {
        let response = init.initial_response.as_ref().map_or(&[][..], |bytes| bytes.as_ref());
        match (self, init.mechanism.0.as_str()) {
            (Self::Anyone, "ANONYMOUS") => SaslCode::Ok,
            (Self::Anyone, "PLAIN") if response.split(|byte| *byte == 0).count() == 3 => SaslCode::Ok,
            (Self::User(user, password), "PLAIN") => {
                let Ok(password) = password.reveal() else { return SaslCode::Sys };
                let mut parts = response.split(|byte| *byte == 0);
                let (_authorize, name, given) = (parts.next(), parts.next(), parts.next());
                let right =
                    name == Some(user.as_bytes()) && given == Some(password.as_bytes()) && parts.next().is_none();
                if right { SaslCode::Ok } else { SaslCode::Auth }
            }
            _ => SaslCode::Auth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init(mechanism: &str, response: &[u8]) -> SaslInit {
        SaslInit { mechanism: mechanism.into(), initial_response: Some(response.to_vec().into()), hostname: None }
    }

    #[test]
    fn only_the_user_with_the_password_comes_in() {
        let login = Login::User("ann".into(), Secret::new("pa:ss"));
        assert_eq!(login.check(&init("PLAIN", b"\0ann\0pa:ss")), SaslCode::Ok);
        for wrong in [&b"\0ann\0"[..], b"\0ann\0pa:ss\0", b"ann\0pa:ss", b"\0bob\0pa:ss", b"", b"\0ann\0pa:s"] {
            assert_eq!(login.check(&init("PLAIN", wrong)), SaslCode::Auth, "{wrong:?}");
        }
        assert_eq!(login.check(&init("ANONYMOUS", b"")), SaslCode::Auth);
        assert_eq!(Login::Anyone.check(&init("ANONYMOUS", b"")), SaslCode::Ok);
        assert_eq!(Login::Anyone.check(&init("PLAIN", b"\0a\0b")), SaslCode::Ok);
        assert_eq!(Login::Anyone.check(&init("EXTERNAL", b"")), SaslCode::Auth);
    }

    #[test]
    fn an_unreadable_password_is_the_brokers_fault() {
        let login = Login::User("ann".into(), Secret::file("does/not/exist"));
        assert_eq!(login.check(&init("PLAIN", b"\0ann\0x")), SaslCode::Sys);
    }
}
