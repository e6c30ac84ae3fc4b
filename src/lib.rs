//! Distributary carries messages from queues into lakehouse tables, exactly once, in one process: without a JVM and
//! without a cluster. This page is the architecture; each module's own page goes on from here.
//!
//! # The idea
//!
//! A topology is wired from four kinds of actor, with the same words in YAML, in type names, in metric labels and in logs:
//! `receiver -> translator -> batcher -> sink`. A *checkpoint coordinator* and a *supervisor* stand above them. Each
//! receiver runs as N *partitions*; a partition is the whole tree of actors below one consumer, on one thread. *Elements*
//! (batches and barriers) go forward through mailboxes; *receipts* come back by themselves when they are resolved or
//! dropped; nobody else talks to the source. One *budget* per partition, of unsettled deliveries and bytes, bounds
//! everything in flight, so mailboxes need no capacity. An *epoch* is what lies between two barriers: the sinks make it
//! durable (*prepare*), the coordinator records it in its log (an *entry*), the sinks make it visible (*commit*), and only
//! then are its receipts accepted and the broker told. Any failure throws the partition's whole *generation* away and
//! rebuilds it from the log; what was not settled the broker redelivers.
//!
//! ```text
//!               TriggerCheckpoint                 CheckpointPrepared / CheckpointCommitted
//!   Coordinator ───────┐        ▲ CheckpointWanted        ▲          │ CommitCheckpoint, CompleteCheckpoint
//!                      ▼        │                         │          ▼
//!    broker ─intake─▶ Receiver ──Forward──▶ Translator ──Forward──▶ Batcher ──Store──▶ Sink ─▶ table
//!      ▲                 │ ◀──────────────── Settle (receipts resolved or dropped) ─────┘
//!      └───settle────────┘       every stage owns an ExitGuard ──StageExited──▶ Supervisor
//! ```
//!
//! # One batch, one checkpoint
//!
//! 1. The **receiver** grants the source as much credit as the budget has room, asks [`flow::Seen`] what each message that
//!    arrives is (new, known, in flight elsewhere, a collision), and sends new ones on with one receipt.
//! 2. The **translator** turns message columns into declared columns. What it cannot translate goes to the partition's
//!    dead letter writer, with its receipt.
//! 3. The **batcher** collects until there is enough, by rows, bytes or age.
//! 4. The **sink** lends its connector to one operation at a time, a commit before the writes that wait, and keeps the
//!    receipts of what it wrote.
//! 5. The **coordinator** triggers a checkpoint, by its timer or because half a budget is used. The receiver sends a
//!    barrier; each sink prepares when it arrives, and reports; if anything was rejected the dead letter is prepared last.
//!    When the receipts add up ([`checkpoint::Ledger`]), one entry with the epochs of all partitions that are ready is
//!    written to the log. Then the sinks commit; when all have, they accept their receipts, and the receiver settles.
//!
//! # Where things are
//!
//! | module | what | may import |
//! |---|---|---|
//! | [`flow`] | the vocabulary: identities, receipts, budgets, the traits of what can be plugged in | nothing of ours |
//! | [`topology`] | YAML into a [`topology::Topology`], or every problem in it with its place; its documentation; pure | `flow` |
//! | [`checkpoint`] | the protocol: entries, the log, recovery, the ledger; pure but for the stores | `flow` |
//! | [`runtime`] | the actors; the only user of actix besides [`embed`], which starts its system | `checkpoint`, `topology`, `flow` |
//! | [`connectors`] | one file or folder per system | `flow` |
//! | [`translators`] | text, binary, csv, json | `flow` |
//! | [`broker`] | an AMQP 1.0 broker in memory, for first runs and tests | `flow` |
//! | [`embed`] | a topology within a process: the registry, its thread, its broker and endpoints | all of the above |
//! | [`cli`] | one file per verb | all of the above |
//! | [`backoff`] [`clock`] [`expr`] [`objects`] [`payload`] [`telemetry`] [`units`] | leaves | `flow`, leaves |
//!
//! A test reads the `use` lines and fails on any other edge. Absences that matter: `runtime` never imports a connector (it
//! is given a [`flow::registry::Registry`]); connectors know no actors, receipts or barriers; only `topology/document.rs`
//! knows YAML; only [`clock`] reads a clock.
//!
//! # Invariants
//!
//! They have one definition each, in [`flow::invariants`], which the exhaustive search and the simulation share.
//!
//! - **I1** nothing is settled before its rows are committed.
//! - **I2** every delivery is settled exactly once per link.
//! - **I3** committed rows are the accepted messages, each once, in each sink whose branch accepted it.
//! - **I4** deliveries in flight stay within the budget; bytes within the budget and what granted credit may bring.
//! - **I5** the committed epochs of a partition are contiguous.
//! - **I6** a dead generation or process changes nothing.
//! - **I7** after a drain the budget is full and no actor lives.
//! - **I8** every rejected message is in the dead letter, once, before it is settled.
//!
//! # Decisions
//!
//! - **Epochs are per partition, the log is one.** There is no shuffle, so global alignment would only let one sick
//!   partition stop all commits. One numbered log, written by one coordinator, fences old processes, old generations and
//!   late writes together.
//! - **Group commit.** Partitions checkpoint in rounds, and those that write to one table become one version of it. Nobody
//!   waits for a partition that is down: a round closes after a quarter of the interval, at most 250 ms.
//! - **Receipts are accepted when the whole epoch is committed**, not sink by sink: a message that one branch rejected and
//!   another stored is settled when both are visible, and the index of identities already says *committed* when the broker
//!   hears of it.
//! - **Identity is scoped to the receiver.** After a failure the broker may redeliver to any partition. Same id and same
//!   content is the same message; same id and other content is a collision, never a silent loss.
//! - **A settlement sent is not a settlement received.** An identity is forgotten only when its accept is a horizon old on
//!   a link that lived on; if the link died first it is in doubt, and remembered for days.
//! - **Failures restart the chain, not the stage.** There is no state in a stage that the log does not have.
//! - **What can block runs elsewhere.** Operations of sinks run on worker threads (`runtime/pool.rs`), so encoding never
//!   delays a heartbeat.
//! - **One epoch fills while the one before is committed.** So a receiver gives way to the stages below it after each batch,
//!   and a commit, which sets budget free, goes before the writes of later epochs: otherwise stages take turns on a whole
//!   budget, and intake stands still for as long as the sinks work.
//! - **The runtime is a library with a binary.** The binary hands the standard registry to [`cli::main`]; a program of your
//!   own hands its own, with its own translators and connectors in it, or runs a topology beside its other work
//!   ([`embed::start`]).
//!
//! Where building showed the first design to be wrong, it was changed: a receiver whose only exactly-once sink is the dead
//! letter writes entries like any other (otherwise nothing would make its rejects exactly once), and what a batcher hands
//! on is a type of its own, [`flow::Bulk`], because it carries the receipts of many batches.
//!
//! A drained entry leaves the floor of the log where any other entry would: to name again every identity that the broker
//! might still deliver, a million of them, cost more memory and time than the rest of the run. A log at its longest gives up
//! its oldest entry for each new one, for the same reason.

pub mod backoff;
pub mod broker;
pub mod checkpoint;
pub mod cli;
pub mod clock;
pub mod connectors;
pub mod embed;
pub mod expr;
pub mod flow;
pub mod objects;
pub mod payload;
pub mod runtime;
pub mod telemetry;
pub mod topology;
pub mod translators;
pub mod units;
