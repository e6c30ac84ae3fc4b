//! An exhaustive search on the real cores: every state of a few messages, partitions, sinks and faults.
//!
//! The broker, the stores and the tables are models; [`Ledger`](super::Ledger), [`Seen`](crate::flow::Seen),
//! [`Entry`](super::Entry), [`Log`](super::Log), [`recover`](super::recover) and
//! [`load_seen`](super::load_seen) are the ones that the program runs on. In every state the invariants of
//! [`crate::flow::invariants`] hold, and from every state "everything is settled" is reachable without a further fault.
//!
//! Time stands still: a checkpoint is wanted whenever it can make a difference, a round's deadline and the horizon are
//! steps like others. Reductions are only those that cannot hide anything, and each says so where it is made: what has no
//! effect any more leaves the air (`World::tidy`), partitions and messages that never did anything are alike
//! ([`step`]), and what nobody can look at in between happens at once (a create's landing and its answer, a generation's
//! end and its link's).
//!
//! Assumed of the world around: a dead link is noticed before the horizon passes at another (R11 asks for a horizon of
//! twice the idle timeout); a store is emptied only when nothing is on its way to it any more; a sink that finds itself at
//! a wrong epoch, and a partition that would park for it, list the log first, because a process that has lost it sees the
//! next one's epochs. Not looked at: the age of doubts, a sink that has forgotten its epochs (retention), sinks that are
//! at least once, several receivers, a broker that loses a settlement, merges with updates.
//!
//! [`scopes`] has what is searched, [`rules`] what the search says when a rule is left out, [`counterexamples`] the
//! schedules that made the rules necessary.

mod apply;
mod counterexamples;
mod explore;
mod process;
mod scope;
mod shared;
mod sinks;
mod step;
mod tables;
mod world;

mod rules;
mod scopes;
