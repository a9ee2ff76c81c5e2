//! The k-th send of a tag lands in the k-th receive of that tag.

use std::collections::BTreeMap;

use crate::checkers::bytes::GuardedBuffer;
use crate::checkers::{PropertyResult, PropertyViolation};

/// What was sent and received on one comm, by tag.
#[derive(Debug, Default)]
pub(crate) struct OrderChecker {
    sent: BTreeMap<u32, Vec<SentMessage>>,
    posted: BTreeMap<u32, usize>,
}

/// A message that the engine took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentMessage {
    /// Its pattern.
    pub(crate) pattern: u64,
    /// Its bytes.
    pub(crate) size: u64,
}

fn order_violation(text: String) -> PropertyViolation {
    PropertyViolation { checker: "order", text }
}

impl OrderChecker {
    /// The engine took a send.
    pub(crate) fn record_send(&mut self, tag: u32, message: SentMessage) {
        self.sent.entry(tag).or_default().push(message);
    }

    /// The engine took a receive; returns which of its tag it is.
    pub(crate) fn record_receive(&mut self, tag: u32) -> usize {
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

    /// The receive holds its own message, not another one of the comm.
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
            return Err(order_violation(format!("{what}: {size} bytes, sent were {}", expected.size)));
        }
        Ok(())
    }
}
