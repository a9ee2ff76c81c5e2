//! Checks that the k-th send of a tag arrives in the k-th receive of that tag.

use std::collections::BTreeMap;

use crate::checkers::bytes::GuardedBuffer;
use crate::checkers::{PropertyResult, PropertyViolation};

/// The sends and receives of one comm, by tag.
#[derive(Debug, Default)]
pub(crate) struct OrderChecker {
    sent: BTreeMap<u32, Vec<SentMessage>>,
    posted: BTreeMap<u32, usize>,
}

/// A send that the engine accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentMessage {
    /// The number of its pattern.
    pub(crate) pattern: u64,
    /// Its length in bytes.
    pub(crate) size: u64,
}

fn order_violation(text: String) -> PropertyViolation {
    PropertyViolation { checker: "order", text }
}

impl OrderChecker {
    /// Records a send that the engine accepted.
    pub(crate) fn record_send(&mut self, tag: u32, message: SentMessage) {
        self.sent.entry(tag).or_default().push(message);
    }

    /// Records a receive that the engine accepted; returns its number among those of its tag.
    pub(crate) fn record_receive(&mut self, tag: u32) -> usize {
        let count = self.posted.entry(tag).or_default();
        *count += 1;
        *count - 1
    }

    /// Whether the message of receive `number` of a tag was sent.
    pub(crate) fn is_sent(&self, tag: u32, number: usize) -> bool {
        self.sent.get(&tag).is_some_and(|list| list.len() > number)
    }

    /// Returns the number of the next receive of a tag.
    pub(crate) fn next(&self, tag: u32) -> usize {
        self.posted.get(&tag).copied().unwrap_or(0)
    }

    /// Returns the message that receive `number` of a tag must contain.
    pub(crate) fn expected_message(
        &self,
        what: &str,
        tag: u32,
        number: usize,
    ) -> Result<SentMessage, PropertyViolation> {
        let sent = self.sent.get(&tag);
        sent.and_then(|list| list.get(number)).copied().ok_or_else(|| {
            order_violation(format!(
                "{what}: receive {number} of tag {tag:#x} is done, but nothing was sent for it"
            ))
        })
    }

    /// Checks that the receive contains its own message, not another one of the comm.
    pub(crate) fn check_received(
        &self,
        what: &str,
        room: &GuardedBuffer,
        expected: SentMessage,
        size: u64,
    ) -> PropertyResult {
        if size == expected.size && room.holds_message(expected.pattern, size) {
            return Ok(());
        }
        for (tag, list) in &self.sent {
            for (number, sent) in list.iter().enumerate() {
                let whole = sent.size == size && size >= 8;
                if whole && sent.pattern != expected.pattern && room.holds_message(sent.pattern, size) {
                    return Err(order_violation(format!("{what}: holds send {number} of tag {tag:#x}")));
                }
            }
        }
        if size != expected.size {
            return Err(order_violation(format!(
                "{what}: {size} bytes were received, but {} were sent",
                expected.size
            )));
        }
        Ok(())
    }
}
