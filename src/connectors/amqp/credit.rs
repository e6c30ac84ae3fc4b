//! How many messages the broker may send.
//!
//! The invariant: credit the broker still has, plus messages that arrived and were not taken, never exceed the room, in
//! deliveries exactly and in bytes by the running mean of the message size. Credit is only ever added: taking it back
//! races the messages that are already on their way, and fe2o3-amqp loses those.
//!
//! RabbitMQ before 4.0 does not count the messages that are on their way between its queue and its link when new credit
//! comes, and sends as many too many, which ends the link. It gets credit only when all that was granted has been used.

use super::wire::Peer;
use crate::flow::Room;

/// Credit of one link, counted here: the library shows an old number at times.
#[derive(Debug)]
pub(super) struct Credit {
    outstanding: usize,
    seen: usize,
    mean: f64,
    /// New credit only when the old is used up.
    in_turns: bool,
}

impl Credit {
    /// None given to this peer.
    pub fn new(peer: &Peer) -> Self {
        Self { outstanding: 0, seen: 0, mean: 1024.0, in_turns: peer.is_old_rabbitmq() }
    }

    /// A message has come.
    pub fn arrived(&mut self, bytes: u32) {
        const WEIGHT: f64 = 1.0 / 32.0;
        self.outstanding = self.outstanding.saturating_sub(1);
        self.seen += 1;
        // The first message says more than the guess before it.
        let weight = WEIGHT.max(1.0 / self.seen as f64);
        self.mean += (f64::from(bytes) - self.mean) * weight;
    }

    /// One has come that takes no room: it cannot be read, and stays with the broker.
    pub fn unreadable(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// How much to add while `waiting` messages were not taken. Not every little: a flow frame per message would cost
    /// more than it brings, and as long as the broker has some credit left it does not wait.
    pub fn top_up(&mut self, room: Room, waiting: usize) -> Option<u32> {
        /// Before the size of messages is known, few are asked for: with a budget for small ones, as many large ones
        /// would fill the memory.
        const FIRST: usize = 16;
        if self.in_turns && self.outstanding > 0 {
            return None;
        }
        let by_bytes = (room.bytes as f64 / self.mean.max(1.0)) as usize;
        let limit = room.deliveries.min(by_bytes).max(1).min(FIRST + self.seen.saturating_mul(2));
        let missing = limit.saturating_sub(waiting + self.outstanding);
        if missing == 0 || self.outstanding > 0 && missing < limit / 4 {
            return None;
        }
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        self.outstanding += missing as usize;
        Some(missing)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MANY: Room = Room { deliveries: 100_000, bytes: 1 << 30 };

    #[test]
    fn starts_carefully_and_grows_with_what_comes() {
        let mut credit = Credit::new(&Peer::default());
        assert_eq!(credit.top_up(MANY, 0), Some(16));
        assert_eq!(credit.top_up(MANY, 0), None, "nothing has changed");
        for _ in 0..16 {
            credit.arrived(200);
        }
        assert_eq!(credit.top_up(MANY, 16), Some(32));
        let mut rounds = 0;
        while credit.outstanding < 100_000 {
            for _ in 0..credit.outstanding {
                credit.arrived(200);
            }
            credit.top_up(MANY, 0).expect("more");
            rounds += 1;
        }
        assert!(rounds < 15, "{rounds} rounds");
    }

    #[test]
    fn large_messages_get_less() {
        let mut credit = Credit::new(&Peer::default());
        let room = Room { deliveries: 1000, bytes: 10 << 20 };
        credit.top_up(room, 0);
        for _ in 0..16 {
            credit.arrived(1 << 20);
        }
        assert_eq!(credit.top_up(room, 0), Some(10));
        let small = Room { deliveries: 1000, bytes: 1 };
        credit.arrived(1 << 20);
        assert_eq!(credit.top_up(small, 0), None);
        for _ in 0..9 {
            credit.arrived(1 << 20);
        }
        assert_eq!(credit.top_up(small, 0), Some(1), "one message is always asked for, however large");
    }

    #[test]
    fn not_a_flow_frame_for_every_message() {
        let mut credit = Credit::new(&Peer::default());
        let room = Room { deliveries: 16, bytes: 1 << 30 };
        credit.top_up(room, 0);
        credit.arrived(10);
        assert_eq!(credit.top_up(room, 0), None);
        for _ in 0..3 {
            credit.arrived(10);
        }
        assert_eq!(credit.top_up(room, 0), Some(4));
    }

    #[test]
    fn an_old_rabbitmq_gets_credit_only_when_all_has_come() {
        let mut credit = Credit::new(&Peer { product: "RabbitMQ".into(), version: "3.10.8".into(), ..Peer::default() });
        assert_eq!(credit.top_up(MANY, 0), Some(16));
        for _ in 0..15 {
            credit.arrived(200);
            assert_eq!(credit.top_up(MANY, 0), None, "the last ones are on their way");
        }
        credit.arrived(200);
        assert_eq!(credit.top_up(MANY, 16), Some(32));
    }

    proptest! {
        #[test]
        fn never_more_than_the_room_and_never_stuck(steps in prop::collection::vec((1..200_usize, 0..50_usize, 0..2000_u32), 1..200)) {
            let mut credit = Credit::new(&Peer::default());
            let mut waiting = 0_usize;
            for (deliveries, arrive, bytes) in steps {
                let before = waiting + credit.outstanding;
                let room = Room { deliveries, bytes: 1 << 30 };
                credit.top_up(room, waiting);
                prop_assert!(waiting + credit.outstanding <= deliveries.max(before));
                prop_assert!(waiting + credit.outstanding > 0, "with room for one, one can come");
                for _ in 0..arrive.min(credit.outstanding) {
                    credit.arrived(bytes);
                    waiting += 1;
                }
                waiting /= 2;
            }
        }
    }
}
