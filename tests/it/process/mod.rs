//! The binary as an operator meets it: started, stopped, killed, given wrong input.

mod bounds;
mod kill;
pub mod moment;
pub mod run;
pub mod table;
mod wrong;
