//! Sender and receiver together, over a mailbox and a wire whose order the test changes.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::comm::sender::{MessageSender, SendDecision, SenderMailbox};
use crate::limits::{EAGER_CREDITS_MAX, MEMBER_MAILBOX_BYTES, TOKENS_MAX};
use crate::wire::cts::{self, CtsRecord, CtsSecondLine};
use crate::wire::frame::RemoteRegion;
use crate::wire::layout::MailboxLayout;

struct Box64(Vec<u64>);

impl SenderMailbox for Box64 {
    fn load_word(&self, offset: u64) -> u64 {
        self.0[offset as usize / 8]
    }
}

enum Flying {
    Eager(EagerHeader, usize),
    Direct(BufferToken, usize),
}

/// One comm. Messages and buffers are identified by the order of their calls.
struct Pair {
    sender: MessageSender,
    receiver: MessageReceiver,
    lines: RecordLines,
    mailbox: Box64,
    /// Records in flight, and their destinations.
    records: VecDeque<(usize, CtsRecord)>,
    /// By line: the receive whose record it contains.
    written: Vec<Option<u32>>,
    wire: VecDeque<Flying>,
    /// By bounce buffer: the message in it.
    bounced: Vec<usize>,
    /// Buffer number by token slot.
    buffers: Vec<usize>,
    /// The (message, buffer) pairs so far.
    pairs: Vec<(usize, usize)>,
    posted: usize,
    outstanding: usize,
}

impl Pair {
    fn new(start: u32) -> Self {
        Self {
            sender: MessageSender::starting_at(start, 64, 8),
            receiver: MessageReceiver::starting_at(start),
            lines: RecordLines::One,
            mailbox: Box64(vec![0; RecordLines::One.mailbox_bytes() / 8]),
            written: vec![None; RecordLines::One.mailbox_bytes() / cts::BYTES],
            records: VecDeque::new(),
            wire: VecDeque::new(),
            bounced: Vec::new(),
            buffers: vec![0; TOKENS_MAX],
            pairs: Vec::new(),
            posted: 0,
            outstanding: 0,
        }
    }

    /// Returns the two ends of a member of a group.
    fn in_group(start: u32, lines: RecordLines) -> Self {
        let links = if lines == RecordLines::One { 1 } else { 2 };
        let sender = MessageSender::starting_at(start, 64, EAGER_CREDITS_MAX as u32);
        Self {
            sender: sender.with_links(links).in_group(),
            receiver: MessageReceiver::starting_at(start).in_range(7, lines),
            lines,
            mailbox: Box64(vec![0; MEMBER_MAILBOX_BYTES / 8]),
            ..Self::new(start)
        }
    }

    fn irecv(&mut self, tags: &[u32]) -> bool {
        let Some(id) = self.receiver.on_irecv(tags.iter().map(|&tag| (tag, 64))) else { return false };
        for (index, &tag) in tags.iter().enumerate() {
            let (number, token, count) = self.receiver.cts_fields(id, index);
            self.buffers[token.slot()] = self.posted;
            self.posted += 1;
            let index = index as u8;
            let at = match self.receiver.cts_ring() {
                None => cts::record_offset(number, index.into(), self.lines),
                Some(ring) => ring.record_offset(number, index.into()),
            };
            let record = CtsRecord { number, index, count, addr: 0, len: 64, tag, token, key: 0 };
            self.records.push_back((at as usize, record));
        }
        self.outstanding += 1;
        self.deliver();
        true
    }

    fn isend(&mut self, message: usize, tag: u32, len: u64) -> bool {
        match self.sender.on_isend(&self.mailbox, tag, len).unwrap() {
            SendDecision::NotYet => return false,
            SendDecision::Direct(cts) => {
                assert_eq!(
                    self.sender.other_links(&self.mailbox, &cts).is_some(),
                    self.lines == RecordLines::Two
                );
                self.wire.push_back(Flying::Direct(cts.token, message));
            }
            SendDecision::Eager(header) => self.wire.push_back(Flying::Eager(header, message)),
        }
        true
    }

    fn record_arrives(&mut self) {
        let Some((at, record)) = self.records.pop_front() else { return };
        let CtsRecord { number, index, .. } = record;
        if let Some(before) = self.written[at / cts::BYTES].replace(number) {
            let read = self.sender.next_number().wrapping_sub(before).cast_signed() > 0;
            let done = self.receiver.outstanding_receive(before).is_none();
            assert!(read && done, "the record of receive {number} overwrites that of receive {before}");
        }
        let lines = self.mailbox.0[at / 8..].chunks_exact_mut(cts::WORDS);
        let second =
            CtsSecondLine { number, index, places: [RemoteRegion { key: 0, addr: 0 }; 3] }.to_words();
        for (line, words) in
            lines.zip([record.to_words(), second]).take(self.lines.record_bytes() / cts::BYTES)
        {
            line.copy_from_slice(&words);
        }
    }

    fn message_arrives(&mut self, which: usize) {
        if self.wire.is_empty() {
            return;
        }
        let which = which % self.wire.len();
        match self.wire.remove(which).unwrap() {
            Flying::Eager(header, message) => {
                self.bounced.push(message);
                self.receiver.on_eager(header, self.bounced.len() as u32 - 1).unwrap();
                self.deliver();
            }
            Flying::Direct(token, message) => {
                self.pairs.push((message, self.buffers[token.slot()]));
                let arrival = self.receiver.on_imm(WriteImmediate::Full(token), 0).unwrap();
                assert_ne!(arrival, ArrivalOutcome::Stale);
                self.ended(arrival);
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(delivery) = self.receiver.next_delivery().unwrap() {
            self.pairs.push((self.bounced[delivery.bounce as usize], self.buffers[delivery.token.slot()]));
            let arrival = self.receiver.complete_delivery(&delivery);
            self.ended(arrival);
        }
    }

    fn ended(&mut self, arrival: ArrivalOutcome) {
        if let ArrivalOutcome::Done(id) = arrival {
            self.receiver.finish_receive(id, |_, _| {});
            self.outstanding -= 1;
        }
    }
}

/// Runs a plan: `groups` contains the tags of each receive; the sends have the same tags, in another order within a group.
fn run(groups: &[Vec<u32>], script: &[u8], ordered: bool, mut pair: Pair) -> Result<(), TestCaseError> {
    if !ordered {
        pair.sender = pair.sender.without_order();
    }
    let mut sends: Vec<(usize, u32)> = Vec::new();
    for group in groups {
        let mut tags = group.clone();
        tags.reverse();
        for tag in tags {
            sends.push((sends.len(), tag));
        }
    }
    let mut to_send: VecDeque<(usize, u32)> = sends.iter().copied().collect();
    let mut to_post = groups.iter();
    let mut next_post = to_post.next();
    let mut script = script.iter().copied().cycle();
    for step in 0..200_000_u32 {
        let Some(byte) = script.next() else { break };
        match (u32::from(byte) + step) % 5 {
            0 => {
                if let Some(tags) = next_post
                    && pair.irecv(tags)
                {
                    next_post = to_post.next();
                }
            }
            1 | 2 => {
                // Any of the next few sends may be tried, because callers interleave their calls; a refused send is
                // tried again.
                let which = usize::from(byte >> 3) % to_send.len().clamp(1, 4);
                let earlier = |tag| to_send.iter().take(which).any(|&(_, t)| t == tag);
                if let Some(&(message, tag)) = to_send.get(which)
                    && !earlier(tag)
                    && pair.isend(message, tag, if byte & 1 == 0 { 8 } else { 64 })
                {
                    to_send.remove(which);
                }
            }
            3 => pair.record_arrives(),
            _ => pair.message_arrives(if ordered { 0 } else { usize::from(byte) }),
        }
        if to_send.is_empty() && next_post.is_none() && pair.outstanding == 0 {
            break;
        }
    }
    prop_assert!(to_send.is_empty() && pair.outstanding == 0, "stuck: {} unsent", to_send.len());
    let buffers: Vec<u32> = groups.iter().flatten().copied().collect();
    for tag in 0..4 {
        let of_tag: Vec<usize> = (0..buffers.len()).filter(|&b| buffers[b] == tag).collect();
        let mut got: Vec<(usize, usize)> =
            pair.pairs.iter().copied().filter(|&(_, b)| buffers[b] == tag).collect();
        got.sort_unstable();
        let expected: Vec<(usize, usize)> =
            sends.iter().filter(|s| s.1 == tag).map(|s| s.0).zip(of_tag.iter().copied()).collect();
        prop_assert_eq!(got, expected, "tag {}", tag);
    }
    Ok(())
}

fn groups() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0..4_u32, 1..=8), 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_kth_send_of_a_tag_fills_its_kth_buffer(
        groups in groups(),
        script: [u8; 97],
        wraps: bool,
        ordered: bool,
    ) {
        let start = if wraps { u32::MAX - 20 } else { 1 };
        run(&groups, &script, ordered, Pair::new(start))?;
    }

    #[test]
    fn member_pairs_in_order_without_overwriting_unread_records(
        groups in groups(),
        script: [u8; 97],
        wraps: bool,
        ordered: bool,
        two: bool,
    ) {
        let start = if wraps { u32::MAX - 20 } else { 1 };
        let lines = if two { RecordLines::Two } else { RecordLines::One };
        run(&groups, &script, ordered, Pair::in_group(start, lines))?;
    }
}

/// A late receive does not let later messages leave the receiver's window.
#[test]
fn eager_messages_wait_while_an_earlier_one_has_no_receive() {
    for start in [1, u32::MAX - 90] {
        let mut pair = Pair::new(start);
        assert!(pair.isend(0, 1, 8));
        pair.message_arrives(0);
        let mut waited = 0;
        for message in 1..400 {
            let eager = pair.isend(message, 0, 8);
            assert!(pair.irecv(&[0]));
            pair.record_arrives();
            if !eager {
                waited += 1;
                assert!(pair.isend(message, 0, 8), "the record has arrived");
            }
            pair.message_arrives(0);
            assert_eq!(pair.outstanding, 0, "message {message}");
        }
        assert_eq!(waited, 400 - MAILBOX_SLOTS, "the sender stopped before the receiver's window was full");
        assert!(pair.irecv(&[1]));
        assert_eq!(pair.outstanding, 0);
    }
}

/// Where messages overtake each other, those behind a delayed message are at most as many as the bounce buffers.
#[test]
fn eager_messages_wait_for_a_delayed_earlier_one() {
    let mut pair = Pair::new(u32::MAX - 90);
    pair.sender = pair.sender.without_order();
    let mut sent = 0;
    for _ in 0..RECVS_MAX {
        for tag in 0..8 {
            if pair.isend(sent, tag, 8) {
                sent += 1;
            }
        }
        assert!(pair.irecv(&[0, 1, 2, 3, 4, 5, 6, 7]));
        while !pair.records.is_empty() {
            pair.record_arrives();
        }
    }
    let eager = pair.wire.iter().filter(|flying| matches!(flying, Flying::Eager(..))).count();
    assert_eq!(eager, MAILBOX_SLOTS, "of {sent} messages");
    for _ in 1..sent {
        pair.message_arrives(1);
    }
    assert_eq!(pair.pairs.len(), sent - eager, "all other eager messages wait for the first");
    pair.message_arrives(0);
    assert_eq!(pair.pairs.len(), sent);
}

#[test]
fn member_tracks_which_records_own_their_slots() {
    for lines in [RecordLines::One, RecordLines::Two] {
        let mut ring = CtsRing::new(1, lines);
        let records = ring.record_capacity() as usize;
        for number in 1..=records as u32 {
            assert!(ring.reserve_places(number, 1, |_| false) && ring.holds_receive(1), "{number}");
        }
        let next = records as u32 + 1;
        assert!(ring.reserve_places(next, 8, |_| false));
        let held = (2..=next).map(|number| ring.holds_receive(number)).filter(|&held| held).count();
        assert_eq!((held, ring.holds_receive(8), ring.holds_receive(9)), (records - 8 + 1, false, true));
        let first = MailboxLayout::for_member(lines).first_offset(1);
        assert_eq!(ring.record_offset(next, 0), u64::from(first), "the ring has wrapped once");
    }
}

/// Eager messages fill the largest possible number of receives before the sender reads any record. The receiver then
/// posts the largest allowed number of further receives, whose records must fit in the mailbox.
#[test]
fn member_begins_receives_up_to_its_mailbox_capacity() {
    for (lines, count) in [
        (RecordLines::One, 1),
        (RecordLines::One, 8),
        (RecordLines::Two, 1),
        (RecordLines::Two, 3),
        (RecordLines::Two, 8),
    ] {
        let mut pair = Pair::in_group(u32::MAX - 40, lines);
        for round in 0..5 {
            for message in 0..EAGER_CREDITS_MAX {
                assert!(pair.isend(message, 0, 8), "round {round}");
                pair.message_arrives(0);
            }
            for _ in 0..EAGER_CREDITS_MAX {
                assert!(pair.irecv(&[0]));
            }
            assert_eq!(pair.outstanding, 0, "a receive is pending although all eager messages arrived");
            let tags = vec![1; count];
            let begun = (0..).take_while(|_| pair.irecv(&tags)).count();
            let room = MailboxLayout::for_member(lines).buffer_window() as usize / count;
            assert_eq!(begun, room.min(RANGE_RECVS), "{lines:?} of {count}");
            while !pair.records.is_empty() {
                pair.record_arrives();
            }
            for message in 0..begun * count {
                assert!(pair.isend(message, 1, 64), "{message} of {lines:?} of {count}");
                pair.message_arrives(0);
            }
            assert_eq!(pair.outstanding, 0);
        }
    }
}

fn single(tag: u32) -> MessageReceiver {
    let mut receiver = MessageReceiver::new();
    assert_eq!(receiver.on_irecv([(tag, 100)].into_iter()), Some(RecvId(1)));
    receiver
}

#[test]
fn a_late_immediate_of_an_earlier_use_is_stale() {
    let mut receiver = single(0);
    let (_, token, _) = receiver.cts_fields(RecvId(1), 0);
    assert_eq!(receiver.on_imm(WriteImmediate::Full(token), 0), Ok(ArrivalOutcome::Done(RecvId(1))));
    let mut sizes = Vec::new();
    receiver.finish_receive(RecvId(1), |index, len| sizes.push((index, len)));
    assert_eq!(sizes, [(0, 100)]);
    assert_eq!(
        receiver.on_imm(WriteImmediate::Full(token), 0),
        Ok(ArrivalOutcome::Stale),
        "no receive uses the slot"
    );
    for _ in 0..RECVS_MAX {
        assert!(receiver.on_irecv([(0, 100)].into_iter()).is_some());
    }
    let (_, next, _) = receiver.cts_fields(RecvId(1), 0);
    assert_eq!((next.slot(), next.generation()), (token.slot(), token.generation() + 1));
    assert_eq!(
        receiver.on_imm(WriteImmediate::Full(token), 0),
        Ok(ArrivalOutcome::Stale),
        "another receive uses the slot"
    );
    assert_eq!(receiver.on_imm(WriteImmediate::Full(next), 0), Ok(ArrivalOutcome::Done(RecvId(1))));
    assert_eq!(
        receiver.on_imm(WriteImmediate::Full(BufferToken::new(0x3fff, 0)), 0),
        Ok(ArrivalOutcome::Stale),
        "the slot does not exist"
    );
}

#[test]
fn stripes_count_once_and_wait_for_the_fin() {
    let mut receiver = single(0);
    let (_, token, _) = receiver.cts_fields(RecvId(1), 0);
    assert_eq!(receiver.on_imm(WriteImmediate::Stripe(token, 3), 0), Ok(ArrivalOutcome::Partial));
    assert_eq!(receiver.on_imm(WriteImmediate::Stripe(token, 3), 0), Err(MessageFault::Twice));
    let fin = FinRecord { len: 90, stripes: 2, token };
    assert_eq!(receiver.on_fin(token, fin), Ok(ArrivalOutcome::Partial));
    assert_eq!(receiver.on_fin(token, fin), Err(MessageFault::Twice));
    assert_eq!(receiver.on_imm(WriteImmediate::Stripe(token, 0), 0), Ok(ArrivalOutcome::Done(RecvId(1))));
}

#[test]
fn message_longer_than_its_buffer_is_a_fault() {
    let mut receiver = single(0);
    let (_, token, _) = receiver.cts_fields(RecvId(1), 0);
    let long = Err(MessageFault::TooLong { len: 101, room: 100 });
    assert_eq!(receiver.on_imm(WriteImmediate::Whole(token), 101), long);
    assert_eq!(receiver.on_fin(token, FinRecord { len: 101, stripes: 0, token }), long);
    receiver.on_eager(EagerHeader { number: 0, base: 1, tag: 0, len: 101 }, 0).unwrap();
    assert_eq!(receiver.next_delivery(), Err(MessageFault::TooLong { len: 101, room: 100 }));
}

#[test]
fn eager_numbers_outside_the_window_or_repeated_are_faults() {
    let mut receiver = MessageReceiver::new();
    let eager = |number| EagerHeader { number, base: 1, tag: 0, len: 0 };
    assert_eq!(receiver.on_eager(eager(0), 0), Ok(()));
    assert_eq!(receiver.on_eager(eager(0), 0), Err(MessageFault::EagerNumber(0)));
    assert_eq!(receiver.on_eager(eager(128), 0), Err(MessageFault::EagerNumber(128)));
    assert_eq!(receiver.on_eager(eager(u32::MAX), 0), Err(MessageFault::EagerNumber(u32::MAX)));
}

#[test]
fn receive_beyond_64_outstanding_ones_waits() {
    let mut receiver = MessageReceiver::new();
    for _ in 0..RECVS_MAX {
        assert!(receiver.on_irecv([(0, 1)].into_iter()).is_some());
    }
    assert_eq!(receiver.on_irecv([(0, 1)].into_iter()), None);
    assert_eq!(MessageReceiver::new().on_irecv([(0, 1); 9].into_iter()), None);
    assert_eq!(MessageReceiver::new().on_irecv([(0, 1); 0].into_iter()), None);
}
