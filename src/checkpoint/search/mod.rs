//! An exhaustive search on the real cores: every state of a few messages, partitions, sinks and faults.
//!
//! The broker, the stores and the tables are models; [`Ledger`](super::Ledger), [`Seen`](crate::flow::Seen),
//! [`Entry`](super::Entry), [`Log`](super::Log), [`recover`](super::recover) and
//! [`load_seen`](super::load_seen) are the ones that the program runs on. In every state the invariants of
//! [`crate::flow::invariants`] hold, and from every state "everything is settled" is reachable without a further fault.
//!
//! Time stands still: a checkpoint is wanted whenever it can make a difference, a round's deadline and the horizon are
//! steps like others. What is left out of a scope, and why nothing is lost by it, is said where it is left out
//! ([`step::steps`], [`world`], `World::tidy`).

mod apply;
mod counterexamples;
mod explore;
mod process;
mod scope;
mod shared;
mod step;
mod tables;
mod world;

mod rules;
mod scopes;
