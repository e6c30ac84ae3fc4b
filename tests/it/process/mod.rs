//! The binary as an operator meets it: started, stopped, killed, given wrong input.

mod bounds;
mod broker;
pub mod cli;
mod kill;
pub mod moment;
pub mod run;
mod secrets;
mod stop;
pub mod table;
mod wrong;

pub use run::until;
