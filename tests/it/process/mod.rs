//! The binary as an operator meets it: started, stopped, killed, given wrong input.

mod bounds;
mod cli;
mod kill;
mod run;
mod table;
mod wrong;
