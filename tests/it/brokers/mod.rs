//! RabbitMQ and Apache Artemis: brokers that we did not write, filled by a client that we did not write (Qpid Proton), and
//! tables read by readers that we did not write (pyarrow, delta-rs). `make test` installs them and runs these tests;
//! without it they are ignored.

mod delivery;
mod proxy;
mod refusals;
pub mod server;

/// The tests of each broker, so that one that cannot be had leaves only its own ignored.
macro_rules! against {
    ($module:ident, $kind:ident, $reason:literal) => {
        mod $module {
            use super::server::Kind::$kind;

            #[test]
            #[ignore = $reason]
            fn each_message_is_once_in_its_table_whatever_breaks() {
                super::delivery::each_message_once($kind);
            }

            #[test]
            #[ignore = $reason]
            fn what_the_broker_refuses_is_a_clear_line() {
                super::refusals::clear_lines($kind);
            }
        }
    };
}

against!(rabbitmq, RabbitMq, "needs RabbitMQ: make test");
against!(artemis, Artemis, "needs Apache Artemis: make test");
