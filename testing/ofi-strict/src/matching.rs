//! Posted receives and unexpected messages. An endpoint has one instance for plain messages and one for tagged
//! messages; plain messages have tag 0 here.

use std::collections::VecDeque;

use crate::memory::ProgramRange;
use crate::registry::StrictMrId;
use crate::wire::StrictAddress;

/// Most unexpected messages.
const UNEXPECTED_MAX: usize = 65536;
/// Most bytes of unexpected messages.
const UNEXPECTED_BYTES_MAX: usize = 256 << 20;

/// A posted receive.
#[derive(Clone, Debug)]
pub(crate) struct WaitingReceive {
    pub(crate) context: usize,
    pub(crate) ranges: Vec<ProgramRange>,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    /// The only peer whose messages it accepts, or `None` for all peers.
    pub(crate) src: Option<StrictAddress>,
    pub(crate) uses: Vec<StrictMrId>,
    /// Whether success generates a completion.
    pub(crate) tells: bool,
}

/// The header of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageEnvelope {
    pub(crate) src: StrictAddress,
    pub(crate) tag: u64,
    pub(crate) is_tagged: bool,
    pub(crate) data: Option<u64>,
    pub(crate) len: usize,
    /// Connection and operation of the reply that is due once the message has been delivered, if any.
    pub(crate) answer: Option<(u64, u32)>,
}

/// A message that arrived before its receive was posted.
#[derive(Debug)]
pub(crate) struct UnmatchedMessage {
    pub(crate) id: u64,
    pub(crate) envelope: MessageEnvelope,
    pub(crate) bytes: Vec<u8>,
    /// A receive that was posted before the message was complete.
    claimed: Option<WaitingReceive>,
}

/// Posted receives and unexpected messages of one kind.
#[derive(Default)]
pub(crate) struct MatchQueues {
    posted: VecDeque<WaitingReceive>,
    unexpected: VecDeque<UnmatchedMessage>,
    bytes: usize,
    next: u64,
}

fn matches_envelope(receive: &WaitingReceive, envelope: &MessageEnvelope) -> bool {
    (receive.tag ^ envelope.tag) & !receive.ignore == 0 && receive.src.is_none_or(|src| src == envelope.src)
}

impl MatchQueues {
    /// Posts a receive; returns it with its message if that has already arrived completely.
    pub(crate) fn post_receive(
        &mut self,
        receive: WaitingReceive,
    ) -> Option<(WaitingReceive, UnmatchedMessage)> {
        let waits = |message: &UnmatchedMessage| {
            message.claimed.is_none() && matches_envelope(&receive, &message.envelope)
        };
        let Some(at) = self.unexpected.iter().position(waits) else {
            self.posted.push_back(receive);
            return None;
        };
        if self.unexpected[at].bytes.len() < self.unexpected[at].envelope.len {
            self.unexpected[at].claimed = Some(receive);
            return None;
        }
        let message = self.take_unexpected(at)?;
        Some((receive, message))
    }

    fn take_unexpected(&mut self, at: usize) -> Option<UnmatchedMessage> {
        let message = self.unexpected.remove(at)?;
        self.bytes -= message.envelope.len;
        Some(message)
    }

    /// Returns the number of posted receives.
    pub(crate) fn posted_receives(&self) -> usize {
        self.posted.len()
    }

    /// Returns the receive for a message that begins to arrive.
    pub(crate) fn match_arrival(&mut self, envelope: &MessageEnvelope) -> Option<WaitingReceive> {
        let at = self.posted.iter().position(|receive| matches_envelope(receive, envelope))?;
        self.posted.remove(at)
    }

    /// Posts a receive again in front of all others, after the rest of its message was lost.
    pub(crate) fn give_back(&mut self, receive: WaitingReceive) {
        self.posted.push_front(receive);
    }

    /// Whether an unexpected message can be kept.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.unexpected.len() < UNEXPECTED_MAX
            && (self.bytes + len <= UNEXPECTED_BYTES_MAX || self.unexpected.is_empty())
    }

    /// Keeps an unexpected message; returns its number.
    pub(crate) fn keep_message(&mut self, envelope: MessageEnvelope) -> u64 {
        let id = self.next;
        self.next += 1;
        self.bytes += envelope.len;
        self.unexpected.push_back(UnmatchedMessage { id, envelope, bytes: Vec::new(), claimed: None });
        id
    }

    /// Appends bytes to an unexpected message. Returns it with its receive if it is complete and has one.
    pub(crate) fn extend(&mut self, id: u64, bytes: &[u8]) -> Option<(WaitingReceive, UnmatchedMessage)> {
        let at = self.unexpected.iter().position(|message| message.id == id)?;
        let message = &mut self.unexpected[at];
        message.bytes.extend_from_slice(bytes);
        if message.bytes.len() < message.envelope.len {
            return None;
        }
        let receive = message.claimed.take()?;
        Some((receive, self.take_unexpected(at)?))
    }

    /// Discards an incomplete unexpected message; its receive is posted again.
    pub(crate) fn lose_message(&mut self, id: u64) {
        if let Some(at) = self.unexpected.iter().position(|message| message.id == id)
            && let Some(message) = self.take_unexpected(at)
            && let Some(receive) = message.claimed
        {
            self.give_back(receive);
        }
    }

    /// Cancels a posted receive that has no message yet.
    pub(crate) fn cancel_receive(&mut self, context: usize) -> Option<WaitingReceive> {
        let at = self.posted.iter().position(|receive| receive.context == context)?;
        self.posted.remove(at)
    }

    /// Removes and returns all receives, when the endpoint is closed.
    pub(crate) fn drain_receives(&mut self) -> Vec<WaitingReceive> {
        let claimed = self.unexpected.drain(..).filter_map(|message| message.claimed);
        let all = claimed.chain(self.posted.drain(..)).collect();
        self.bytes = 0;
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(context: usize, tag: u64, ignore: u64, src: Option<StrictAddress>) -> WaitingReceive {
        WaitingReceive { context, ranges: Vec::new(), tag, ignore, src, uses: Vec::new(), tells: true }
    }

    fn message(tag: u64, src: u8, len: usize) -> MessageEnvelope {
        MessageEnvelope { src: [src; 16], tag, is_tagged: true, data: None, len, answer: None }
    }

    #[test]
    fn first_matching_receive_takes_a_message() {
        let mut matching = MatchQueues::default();
        for one in [receive(1, 5, 0, None), receive(2, 0, !0, Some([9; 16])), receive(3, 0, !0, None)] {
            assert!(matching.post_receive(one).is_none());
        }
        assert_eq!(matching.match_arrival(&message(6, 1, 0)).map(|r| r.context), Some(3));
        assert_eq!(matching.match_arrival(&message(5, 9, 0)).map(|r| r.context), Some(1));
        assert_eq!(matching.match_arrival(&message(5, 1, 0)).map(|r| r.context), None);
        assert_eq!(matching.cancel_receive(2).map(|r| r.context), Some(2));
        assert!(matching.cancel_receive(2).is_none());
    }

    #[test]
    fn message_waits_for_all_bytes_and_a_receive() {
        let mut matching = MatchQueues::default();
        let first = matching.keep_message(message(1, 1, 4));
        let second = matching.keep_message(message(1, 1, 0));
        assert!(matching.extend(second, &[]).is_none());
        // Matched in the order of arrival, although only the second message is complete.
        assert!(matching.post_receive(receive(1, 1, 0, None)).is_none());
        assert_eq!(
            matching.post_receive(receive(2, 1, 0, None)).map(|(r, m)| (r.context, m.id)),
            Some((2, second))
        );
        assert!(matching.extend(first, &[1, 2]).is_none());
        let (taken, whole) = matching.extend(first, &[3, 4]).unwrap();
        assert_eq!((taken.context, whole.bytes), (1, vec![1, 2, 3, 4]));
        assert_eq!(matching.bytes, 0);
    }

    #[test]
    fn incomplete_message_returns_its_receive() {
        let mut matching = MatchQueues::default();
        let id = matching.keep_message(message(1, 1, 4));
        matching.post_receive(receive(1, 1, 0, None));
        matching.lose_message(id);
        assert_eq!((matching.posted_receives(), matching.bytes), (1, 0));
        assert_eq!(matching.match_arrival(&message(1, 1, 4)).map(|r| r.context), Some(1));
    }

    #[test]
    fn unexpected_messages_are_limited() {
        let mut matching = MatchQueues::default();
        assert!(matching.has_room(usize::MAX / 2));
        matching.keep_message(message(1, 1, UNEXPECTED_BYTES_MAX));
        assert!(!matching.has_room(1));
        let mut matching = MatchQueues::default();
        for _ in 0..UNEXPECTED_MAX {
            matching.keep_message(message(1, 1, 0));
        }
        assert!(!matching.has_room(0));
    }
}
