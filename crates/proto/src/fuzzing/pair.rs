//! Sender and receiver of one comm, driven by a list of operations from the input. If both ends follow the protocol,
//! the k-th send of a tag fills the k-th buffer of that tag, and every operation ends. A hostile peer may only cause
//! faults.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::RandomNumbers;
use crate::comm::MessageFault;
use crate::comm::receiver::{ArrivalOutcome, MessageReceiver, RecvId};
use crate::comm::sender::{MessageSender, SendDecision, SenderMailbox};
use crate::limits::TOKENS_MAX;
use crate::wire::cts::{self, CtsRecord};
use crate::wire::eager::EagerHeader;
use crate::wire::fin::FinRecord;
use crate::wire::imm::{BufferToken, WriteImmediate};

/// Size in bytes of every buffer, and of the longest message.
const ROOM: u64 = 64;
/// Most receives of one input.
const GROUPS_MAX: usize = 150;
/// Enough rounds, each of which tries every kind of step, to end any input.
const ROUNDS_MAX: usize = 20_000;

struct MailboxWords(Vec<u64>);

impl SenderMailbox for MailboxWords {
    fn load_word(&self, offset: u64) -> u64 {
        self.0[offset as usize / 8]
    }
}

impl MailboxWords {
    fn new() -> Self {
        Self(vec![0; cts::RecordLines::One.mailbox_bytes() / 8])
    }

    fn write_record(&mut self, record: &CtsRecord) {
        let at =
            cts::record_offset(record.number, usize::from(record.index), cts::RecordLines::One) as usize / 8;
        self.0[at..at + cts::WORDS].copy_from_slice(&record.to_words());
    }
}

enum FlyingMessage {
    Eager(EagerHeader, usize),
    Direct(BufferToken, usize),
}

/// One comm: messages and buffers are identified by the order of their calls.
struct CommPair {
    sender: MessageSender,
    receiver: MessageReceiver,
    mailbox: MailboxWords,
    records: VecDeque<CtsRecord>,
    wire: VecDeque<FlyingMessage>,
    /// The message in each bounce buffer.
    bounced: Vec<usize>,
    /// Buffer number by token slot.
    buffers: Vec<usize>,
    /// Pairs of message and buffer that were matched.
    pairs: Vec<(usize, usize)>,
    to_post: VecDeque<Vec<u32>>,
    to_send: VecDeque<(usize, u32)>,
    posted: usize,
    outstanding: usize,
}

impl CommPair {
    /// The sends are those of the groups, in reverse order within each group.
    fn new(start: u32, groups: &[Vec<u32>]) -> Self {
        let tags = groups.iter().flat_map(|group| group.iter().rev().copied());
        Self {
            sender: MessageSender::starting_at(start, ROOM as u32, 8).without_order(),
            receiver: MessageReceiver::starting_at(start),
            mailbox: MailboxWords::new(),
            records: VecDeque::new(),
            wire: VecDeque::new(),
            bounced: Vec::new(),
            buffers: vec![0; TOKENS_MAX],
            pairs: Vec::new(),
            to_post: groups.iter().cloned().collect(),
            to_send: tags.enumerate().collect(),
            posted: 0,
            outstanding: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.to_send.is_empty() && self.to_post.is_empty() && self.outstanding == 0
    }

    fn run_step(&mut self, byte: u8, ordered: bool) -> Result<(), MessageFault> {
        match byte % 5 {
            0 => self.post_irecv(),
            1 | 2 => self.try_isend(byte),
            3 => {
                if let Some(record) = self.records.pop_front() {
                    self.mailbox.write_record(&record);
                }
                Ok(())
            }
            _ => self.message_arrives(if ordered { 0 } else { usize::from(byte) }),
        }
    }

    fn post_irecv(&mut self) -> Result<(), MessageFault> {
        let Some(tags) = self.to_post.front() else { return Ok(()) };
        let Some(id) = self.receiver.on_irecv(tags.iter().map(|&tag| (tag, ROOM))) else { return Ok(()) };
        for (index, &tag) in tags.iter().enumerate() {
            let (number, token, count) = self.receiver.cts_fields(id, index);
            self.buffers[token.slot()] = self.posted;
            self.posted += 1;
            let index = index as u8;
            self.records.push_back(CtsRecord {
                number,
                index,
                count,
                addr: 0,
                len: ROOM,
                tag,
                token,
                key: 0,
            });
        }
        self.to_post.pop_front();
        self.outstanding += 1;
        self.deliver_bounced()
    }

    /// Tries one of the next few sends, because callers interleave their calls; a refused send is tried again.
    fn try_isend(&mut self, byte: u8) -> Result<(), MessageFault> {
        let which = usize::from(byte >> 3) % self.to_send.len().clamp(1, 4);
        let Some(&(message, tag)) = self.to_send.get(which) else { return Ok(()) };
        if self.to_send.iter().take(which).any(|&(_, earlier)| earlier == tag) {
            return Ok(());
        }
        let len = if byte & 1 == 0 { 8 } else { ROOM };
        let flying = match self.sender.on_isend(&self.mailbox, tag, len)? {
            SendDecision::NotYet => return Ok(()),
            SendDecision::Direct(cts) => FlyingMessage::Direct(cts.token, message),
            SendDecision::Eager(header) => FlyingMessage::Eager(header, message),
        };
        self.wire.push_back(flying);
        self.to_send.remove(which);
        Ok(())
    }

    fn message_arrives(&mut self, which: usize) -> Result<(), MessageFault> {
        let which = which % self.wire.len().max(1);
        match self.wire.remove(which) {
            None => Ok(()),
            Some(FlyingMessage::Eager(header, message)) => {
                self.bounced.push(message);
                self.receiver.on_eager(header, self.bounced.len() as u32 - 1)?;
                self.deliver_bounced()
            }
            Some(FlyingMessage::Direct(token, message)) => {
                self.pairs.push((message, self.buffers[token.slot()]));
                let arrival = self.receiver.on_imm(WriteImmediate::Full(token), 0)?;
                assert_ne!(arrival, ArrivalOutcome::Stale);
                self.on_arrival(arrival);
                Ok(())
            }
        }
    }

    fn deliver_bounced(&mut self) -> Result<(), MessageFault> {
        while let Some(delivery) = self.receiver.next_delivery()? {
            let buffer = self.buffers[delivery.token.slot()];
            self.pairs.push((self.bounced[delivery.bounce as usize], buffer));
            let arrival = self.receiver.complete_delivery(&delivery);
            self.on_arrival(arrival);
        }
        Ok(())
    }

    fn on_arrival(&mut self, arrival: ArrivalOutcome) {
        if let ArrivalOutcome::Done(id) = arrival {
            self.receiver.finish_receive(id, |_, _| {});
            self.outstanding -= 1;
        }
    }
}

/// Reads the plan at the front of the input: groups of tags, two bytes for the tags of each group.
fn read_groups(bytes: &mut &[u8]) -> Vec<Vec<u32>> {
    let mut take = || {
        let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
        *bytes = rest;
        *first
    };
    let count = usize::from(take()) % GROUPS_MAX + 1;
    let group = |size: u8, tags: u16| (0..=size & 7).map(|i| u32::from(tags >> (2 * i) & 3)).collect();
    (0..count).map(|_| group(take(), u16::from_le_bytes([take(), take()]))).collect()
}

/// Both ends follow the protocol; the network reorders according to the input.
pub(super) fn check_friends(bytes: &[u8]) {
    let mut rest = bytes;
    let flags = rest.first().copied().unwrap_or(0);
    let start = if flags & 0x80 == 0 { 1 } else { u32::MAX - 20 };
    let ordered = flags & 0x40 != 0;
    let groups = read_groups(&mut rest);
    let mut pair = CommPair::new(start, &groups);
    // The script, then every kind of step in turn until all work is done.
    let turns = (0..ROUNDS_MAX).flat_map(|round| [0, 6, 9, 18, 27, 3, 4].map(|step| (round, step)));
    let turns = turns.map(|(round, step)| if step == 4 { (round % 50 * 5 + 4) as u8 } else { step });
    for byte in rest.iter().copied().chain(turns) {
        let stepped = pair.run_step(byte, ordered);
        assert_eq!(stepped, Ok(()));
        if pair.is_done() {
            break;
        }
    }
    assert!(pair.is_done(), "stuck: {} unsent, {} outstanding", pair.to_send.len(), pair.outstanding);
    let buffers: Vec<u32> = groups.iter().flatten().copied().collect();
    let sent: Vec<u32> = groups.iter().flat_map(|group| group.iter().rev().copied()).collect();
    pair.pairs.sort_unstable();
    for tag in 0..4 {
        let of_tag = |tags: &[u32]| (0..tags.len()).filter(|&i| tags[i] == tag).collect::<Vec<_>>();
        let expected: Vec<_> = of_tag(&sent).into_iter().zip(of_tag(&buffers)).collect();
        let got: Vec<_> = pair.pairs.iter().copied().filter(|&(_, b)| buffers[b] == tag).collect();
        assert_eq!(got, expected, "tag {tag}");
    }
}

/// The peer of each end sends messages of the input, which are nearly valid so that they pass many checks.
pub(super) fn check_hostile(bytes: &[u8]) {
    let mut receiver = MessageReceiver::new();
    let mut sender = MessageSender::new(ROOM as u32, 8);
    let mut mailbox = MailboxWords::new();
    let mut open = 0;
    for op in bytes.chunks_exact(4) {
        let &[kind, a, b, c] = op else { break };
        let token = BufferToken::new(u16::from(a), u16::from(b & 3));
        let fault = match kind % 6 {
            0 => {
                let tags = (0..=a & 7).map(|i| (u32::from(b >> (i & 3) & 3), u64::from(c)));
                open += usize::from(receiver.on_irecv(tags.collect::<Vec<_>>().into_iter()).is_some());
                Ok(ArrivalOutcome::Partial)
            }
            1 => {
                let imm = WriteImmediate::from_bits(
                    u32::from(kind >> 4 & 7) << 28 | u32::from(c & 15) << 24 | token.to_bits(),
                );
                imm.map_or(Ok(ArrivalOutcome::Stale), |imm| receiver.on_imm(imm, u64::from(c)))
            }
            2 => {
                // Records that the parser rejects never reach the receiver.
                let fin = FinRecord { len: u64::from(c), stripes: b >> 3, token };
                FinRecord::from_bytes(&fin.to_bytes())
                    .map_err(MessageFault::Fin)
                    .and_then(|fin| receiver.on_fin(token, fin))
            }
            3 => {
                let number = u32::from(a);
                let base = u32::from(b);
                let header = EagerHeader { number, base, tag: u32::from(c & 3), len: u32::from(c >> 2) };
                receiver.on_eager(header, 0).map(|()| ArrivalOutcome::Partial)
            }
            4 => {
                let index = b & 7;
                let count = (b >> 3 & 7) + 1;
                let number = u32::from(a);
                let tag = u32::from(c & 3);
                let len = u64::from(c);
                mailbox.write_record(&CtsRecord { number, index, count, addr: 0, len, tag, token, key: 0 });
                sender.on_records(&mailbox).map(|()| ArrivalOutcome::Partial)
            }
            _ => sender.on_isend(&mailbox, u32::from(a & 3), u64::from(b)).map(|_| ArrivalOutcome::Partial),
        };
        let Ok(arrival) = fault else { return };
        check_arrival(&mut receiver, &mut open, arrival);
        while let Ok(Some(delivery)) = receiver.next_delivery() {
            let arrival = receiver.complete_delivery(&delivery);
            check_arrival(&mut receiver, &mut open, arrival);
        }
    }
}

fn check_arrival(receiver: &mut MessageReceiver, open: &mut usize, arrival: ArrivalOutcome) {
    if let ArrivalOutcome::Done(RecvId(_)) = arrival {
        assert!(*open > 0, "a receive ended that was not pending");
        *open -= 1;
    }
    if let ArrivalOutcome::Done(id) = arrival {
        receiver.finish_receive(id, |_, len| assert!(len <= u64::from(u8::MAX)));
    }
}

/// Returns scripts of several lengths, each a plan and its steps.
pub(super) fn script_seeds() -> Vec<Vec<u8>> {
    let mut out = vec![Vec::new(), vec![0], vec![0xff; 16]];
    for (seed, len) in
        [8, 24, 64, 64, 97, 128, 200, 256, 400, 512, 512, 700, 900, 1024].into_iter().enumerate()
    {
        let mut numbers = RandomNumbers::new(seed as u64 + 2);
        out.push((0..len).map(|_| numbers.next_u64() as u8).collect());
    }
    out
}
