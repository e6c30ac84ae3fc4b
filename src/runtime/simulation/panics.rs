//! Panics on a simulation's thread: those that it made are not shown, all others are kept for the verdict.

use std::cell::{Cell, RefCell};
use std::panic;
use std::sync::Once;

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
    static OTHERS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// From now on panics of this thread are taken care of.
pub(super) fn expect() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                return before(info);
            }
            let text = info.payload_as_str().unwrap_or("without text");
            if !text.starts_with("simulated") {
                let place = info.location().map(ToString::to_string).unwrap_or_default();
                OTHERS.with_borrow_mut(|others| others.push(format!("{text} at {place}")));
            }
        }));
    });
    EXPECTED.set(true);
    OTHERS.take();
}

/// Panics of this thread are shown again.
pub(super) fn no_more() {
    EXPECTED.set(false);
}

/// A panic that nobody simulated.
pub(super) fn take() -> Option<String> {
    OTHERS.take().into_iter().next()
}
