//! Which deliveries of a session are unsettled, by delivery id.
//!
//! Ids only grow, so a queue with holes finds a delivery by its distance from the front, and by binary search once
//! holes have been closed. One delivery that stays unsettled for long therefore holds no memory but its own.

use std::collections::VecDeque;

use super::message::Message;

/// Holes are closed when there are this many and they outnumber what is left.
const MANY_HOLES: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Unsettled {
    entries: VecDeque<Entry>,
    live: usize,
}

#[derive(Debug)]
struct Entry {
    delivery: u64,
    handle: u32,
    message: Option<Message>,
}

impl Unsettled {
    pub(super) fn push(&mut self, delivery: u64, handle: u32, message: Message) {
        debug_assert!(self.entries.back().is_none_or(|last| last.delivery < delivery), "ids only grow");
        self.entries.push_back(Entry { delivery, handle, message: Some(message) });
        self.live += 1;
    }

    /// Where `delivery` is, or would be.
    fn position(&self, delivery: u64) -> usize {
        let Some(front) = self.entries.front() else { return 0 };
        let distance = usize::try_from(delivery.saturating_sub(front.delivery)).unwrap_or(usize::MAX);
        match self.entries.get(distance) {
            Some(entry) if entry.delivery == delivery => distance,
            _ => self.entries.partition_point(|entry| entry.delivery < delivery),
        }
    }

    /// Takes out what is unsettled from `first` to `last`, in order, with the handle of its link.
    pub(super) fn remove(&mut self, first: u64, last: u64, mut each: impl FnMut(u32, Message)) {
        let start = self.position(first);
        for entry in self.entries.range_mut(start..) {
            if entry.delivery > last {
                break;
            }
            if let Some(message) = entry.message.take() {
                self.live -= 1;
                each(entry.handle, message);
            }
        }
        self.tidy();
    }

    /// Takes out everything of one link, in order.
    pub(super) fn remove_link(&mut self, handle: u32) -> Vec<Message> {
        let of_link = self.entries.iter_mut().filter(|entry| entry.handle == handle);
        let messages: Vec<_> = of_link.filter_map(|entry| entry.message.take()).collect();
        self.live -= messages.len();
        self.tidy();
        messages
    }

    fn tidy(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.message.is_none()) {
            self.entries.pop_front();
        }
        let holes = self.entries.len() - self.live;
        if holes > MANY_HOLES && holes > self.live {
            self.entries.retain(|entry| entry.message.is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn message(place: u64) -> Message {
        let mut message = Message::parse(Bytes::from_static(&[0x00, 0x53, 0x75, 0xa0, 0]), 0).expect("parses");
        message.place = place;
        message
    }

    #[test]
    fn one_old_delivery_holds_only_itself() {
        let mut unsettled = Unsettled::default();
        for delivery in 0..200_000 {
            unsettled.push(delivery, 0, message(delivery));
            if delivery > 0 {
                unsettled.remove(delivery, delivery, |_, _| ());
            }
        }
        assert_eq!(unsettled.live, 1);
        assert!(unsettled.entries.len() <= MANY_HOLES + 2, "{}", unsettled.entries.len());
        let mut found = Vec::new();
        unsettled.remove(0, 199_999, |_, message| found.push(message.place));
        assert_eq!(found, [0]);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in proptest::collection::vec((0u8..8, 0u64..40, 0u64..40), 1..200)) {
            let (mut unsettled, mut model, mut next) = (Unsettled::default(), BTreeMap::new(), 0);
            for (what, a, b) in steps {
                match what {
                    0..=4 => {
                        unsettled.push(next, (a % 3) as u32, message(next));
                        model.insert(next, (a % 3) as u32);
                        next += 1;
                    }
                    5 | 6 => {
                        let mut found = Vec::new();
                        unsettled.remove(a, a + b, |handle, message| found.push((message.place, handle)));
                        let expected: Vec<_> = model.range(a..=a + b).map(|(k, v)| (*k, *v)).collect();
                        model.retain(|key, _| !(a..=a + b).contains(key));
                        prop_assert_eq!(found, expected);
                    }
                    _ => {
                        let found: Vec<_> = unsettled.remove_link((a % 3) as u32).iter().map(|m| m.place).collect();
                        let expected: Vec<_> =
                            model.iter().filter(|(_, v)| **v == (a % 3) as u32).map(|(k, _)| *k).collect();
                        model.retain(|_, v| *v != (a % 3) as u32);
                        prop_assert_eq!(found, expected);
                    }
                }
                prop_assert_eq!(unsettled.live, model.len());
            }
        }
    }
}
