//! The k-th send of a tag lands in the k-th receive of that tag.

use std::collections::BTreeMap;

use crate::checkers::bytes::Room;
use crate::checkers::{Check, Violation};

/// What was sent and received on one comm, by tag.
#[derive(Debug, Default)]
pub(crate) struct Order {
    sent: BTreeMap<u32, Vec<Sent>>,
    posted: BTreeMap<u32, usize>,
}

/// A message that the engine took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// Its pattern.
    pub(crate) pattern: u64,
    /// Its bytes.
    pub(crate) size: u64,
}

fn violation(text: String) -> Violation {
    Violation { checker: "order", text }
}

impl Order {
    /// The engine took a send.
    pub(crate) fn sent(&mut self, tag: u32, message: Sent) {
        self.sent.entry(tag).or_default().push(message);
    }

    /// The engine took a receive; returns which of its tag it is.
    pub(crate) fn posted(&mut self, tag: u32) -> usize {
        let count = self.posted.entry(tag).or_default();
        *count += 1;
        *count - 1
    }

    /// Whether the message of receive `number` of a tag was sent.
    pub(crate) fn is_sent(&self, tag: u32, number: usize) -> bool {
        self.sent.get(&tag).is_some_and(|list| list.len() > number)
    }

    /// Which of its tag the next receive will be.
    pub(crate) fn next(&self, tag: u32) -> usize {
        self.posted.get(&tag).copied().unwrap_or(0)
    }

    /// What receive `number` of a tag must hold.
    pub(crate) fn expected(&self, what: &str, tag: u32, number: usize) -> Result<Sent, Violation> {
        let sent = self.sent.get(&tag);
        sent.and_then(|list| list.get(number)).copied().ok_or_else(|| {
            violation(format!(
                "{what}: receive {number} of tag {tag:#x} is done, but nothing was sent for it"
            ))
        })
    }

    /// The receive holds its own message, not another one of the comm.
    pub(crate) fn check(&self, what: &str, room: &Room, expected: Sent, size: u64) -> Check {
        if size == expected.size && room.holds(expected.pattern, size) {
            return Ok(());
        }
        for (tag, list) in &self.sent {
            for (number, sent) in list.iter().enumerate() {
                let whole = sent.size == size && size >= 8;
                if whole && sent.pattern != expected.pattern && room.holds(sent.pattern, size) {
                    return Err(violation(format!("{what}: holds send {number} of tag {tag:#x}")));
                }
            }
        }
        if size != expected.size {
            return Err(violation(format!("{what}: {size} bytes, sent were {}", expected.size)));
        }
        Ok(())
    }
}
