//! Receives that wait for messages, and messages that wait for receives. One of these is for plain messages and one for
//! tagged ones; a plain message is one whose tag is 0.

use std::collections::VecDeque;

use crate::memory::ProgramRange;
use crate::registry::StrictMrId;
use crate::wire::StrictAddress;

/// Messages that may wait for receives.
const UNEXPECTED_MAX: usize = 65536;
/// Their bytes.
const UNEXPECTED_BYTES_MAX: usize = 256 << 20;

/// A posted receive.
#[derive(Clone, Debug)]
pub(crate) struct WaitingReceive {
    pub(crate) context: usize,
    pub(crate) ranges: Vec<ProgramRange>,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    /// The only peer it takes messages of, or any.
    pub(crate) src: Option<StrictAddress>,
    pub(crate) uses: Vec<StrictMrId>,
    /// Whether its success is to be told.
    pub(crate) tells: bool,
}

/// What is known of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageEnvelope {
    pub(crate) src: StrictAddress,
    pub(crate) tag: u64,
    pub(crate) is_tagged: bool,
    pub(crate) data: Option<u64>,
    pub(crate) len: usize,
    /// The operation, and the connection that an answer goes to, if one is due when the message has found its place.
    pub(crate) answer: Option<(u64, u32)>,
}

/// A message without a receive when it came.
#[derive(Debug)]
pub(crate) struct UnmatchedMessage {
    pub(crate) id: u64,
    pub(crate) envelope: MessageEnvelope,
    pub(crate) bytes: Vec<u8>,
    /// A receive that has been posted meanwhile.
    claimed: Option<WaitingReceive>,
}

/// Both.
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
    /// Posts a receive; what has waited for it, if it is all here.
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

    /// Receives that wait.
    pub(crate) fn posted_receives(&self) -> usize {
        self.posted.len()
    }

    /// A message has begun to come: its receive.
    pub(crate) fn match_arrival(&mut self, envelope: &MessageEnvelope) -> Option<WaitingReceive> {
        let at = self.posted.iter().position(|receive| matches_envelope(receive, envelope))?;
        self.posted.remove(at)
    }

    /// A receive whose message broke off waits again, before all others.
    pub(crate) fn give_back(&mut self, receive: WaitingReceive) {
        self.posted.push_front(receive);
    }

    /// Whether a message without a receive finds room.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.unexpected.len() < UNEXPECTED_MAX
            && (self.bytes + len <= UNEXPECTED_BYTES_MAX || self.unexpected.is_empty())
    }

    /// Keeps a message; its name.
    pub(crate) fn keep_message(&mut self, envelope: MessageEnvelope) -> u64 {
        let id = self.next;
        self.next += 1;
        self.bytes += envelope.len;
        self.unexpected.push_back(UnmatchedMessage { id, envelope, bytes: Vec::new(), claimed: None });
        id
    }

    /// More bytes of a kept message; itself with its receive, if it is all here and has one.
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

    /// A kept message broke off.
    pub(crate) fn lose_message(&mut self, id: u64) {
        if let Some(at) = self.unexpected.iter().position(|message| message.id == id)
            && let Some(message) = self.take_unexpected(at)
            && let Some(receive) = message.claimed
        {
            self.give_back(receive);
        }
    }

    /// Gives up a receive that waits for its message.
    pub(crate) fn cancel_receive(&mut self, context: usize) -> Option<WaitingReceive> {
        let at = self.posted.iter().position(|receive| receive.context == context)?;
        self.posted.remove(at)
    }

    /// All receives, when their endpoint goes.
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
    fn the_first_receive_that_fits_takes_a_message() {
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
    fn a_message_waits_until_it_is_whole_and_has_a_receive() {
        let mut matching = MatchQueues::default();
        let first = matching.keep_message(message(1, 1, 4));
        let second = matching.keep_message(message(1, 1, 0));
        assert!(matching.extend(second, &[]).is_none());
        // In the order of their coming, although the second one is whole.
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
    fn a_message_that_breaks_off_gives_its_receive_back() {
        let mut matching = MatchQueues::default();
        let id = matching.keep_message(message(1, 1, 4));
        matching.post_receive(receive(1, 1, 0, None));
        matching.lose_message(id);
        assert_eq!((matching.posted_receives(), matching.bytes), (1, 0));
        assert_eq!(matching.match_arrival(&message(1, 1, 4)).map(|r| r.context), Some(1));
    }

    #[test]
    fn there_is_an_end_to_what_waits() {
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
