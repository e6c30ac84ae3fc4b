//! A queue and a table within this process: for tests, for embedding programs, and to see what a target must be able to do.
//!
//! Both behave like their real counterparts. The queue hands a message to one link at a time and takes it back when the
//! link dies; the table has versions that are put if absent, transactions by app id (protocol R7, R8) and, in merge mode,
//! keys (R12). Both live in a [`Space`], by name: whoever shares the space shares them, and they outlive those who use
//! them. The kinds of the standard registry use one space for the whole process, [`Space::process`].
//!
//! Nothing here is on disk, and nothing is faulty by itself. With the process the queue and the table are gone.

mod queue;
mod receiver;
mod sink;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use queue::{Message, Queue};
pub use receiver::MemoryReceiver;
pub use sink::{MemorySink, Moment, Pace};
pub use table::{Table, Version};

/// Queues and tables by name. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Space(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    queues: BTreeMap<String, Queue>,
    tables: BTreeMap<String, Table>,
}

impl Space {
    /// The one that the standard registry's kinds use.
    pub fn process() -> Self {
        static PROCESS: OnceLock<Space> = OnceLock::new();
        PROCESS.get_or_init(Self::default).clone()
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        lock(&self.0)
    }

    /// The queue of this name; made empty when it is first asked for.
    pub fn queue(&self, name: &str) -> Queue {
        self.contents().queues.entry(name.to_owned()).or_default().clone()
    }

    /// The table of this name; made empty when it is first asked for.
    pub fn table(&self, name: &str) -> Table {
        self.contents().tables.entry(name.to_owned()).or_default().clone()
    }
}

/// No operation leaves a queue or a table half done, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
