//! A link of two rails in one process, over each wire, driven by a list of actions. Over shared memory an action may write any word of
//! the segments, as a hostile peer can; over TCP it may alter bytes in transit, as a hostile network can.
//!
//! Without such a word each end must behave exactly as a model of two memories. With one, memory that no key names and memory outside of posted
//! operations stays unchanged, and each posted operation completes at most once.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use trunkline_fabric::{
    AccessRights, Completion, CompletionKind, Fabric as _, LinkControl as _, LinkId, MatchKey, Op, OpSource,
    OpStatus, PostError, Rail as _, RailConfig, RecvOrder, RegionExtent, RegionKeys, RegionPurpose,
    RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::fuzzing::{FuzzAction, read_actions};
use trunkline_proto::time::Duration;

use super::matched::MatchedModel;
use super::relay::{ByteAlteration, WireRelay};
use crate::{CopyMode, SoftConfig, SoftFabric, SoftRail, WireMode};

/// Actions of one input.
const ACTIONS_MAX: usize = 192;
/// Bytes of each memory.
const LEN: usize = 8192;
/// Where slots of the descriptor ring begin, and bytes of one.
const SLOTS_AT: u64 = 4096;
const SLOT: u64 = 128;
/// Places in the memory that operations fill: of receives, of reads behind them, and bytes of each. There are two
/// places per operation.
const PLACES: u64 = 16;
const RECEIVE_MAX: u64 = 256;
const READS_AT: u64 = PLACES * RECEIVE_MAX;
const READ_MAX: u64 = 128;
const UNUSED_AT: u64 = READS_AT + PLACES * READ_MAX;
/// Most bytes that are copied into an operation.
const INLINE: u64 = 96;
/// Most polls of an honest link that only waits for bytes inside the kernel.
const POLLS_MAX: usize = 200_000;
/// A byte that no operation writes.
const CANARY: u8 = 0xc5;

/// Four bytes per action: its kind, at which end, and two numbers. The first byte of the input chooses the wire.
pub(super) fn run_actions(bytes: &[u8]) {
    let Some((how, actions)) = read_actions(bytes, ACTIONS_MAX) else { return };
    let Some(mut world) = QueuePairWorld::new(how) else { return };
    actions.for_each(|action| world.apply_action(action));
    world.check_end();
}

/// A receive that was posted: its place and length.
#[derive(Clone, Copy, Debug)]
pub(super) struct FuzzReceive {
    pub(super) wr_id: u64,
    pub(super) at: u64,
    pub(super) len: u64,
}

/// The effect that an operation must have had when it completes.
#[derive(Debug)]
enum ExpectedEffect {
    Nothing,
    /// Bytes that it has read, and their destination.
    Read(u64, Vec<u8>),
}

/// One end.
struct FuzzEnd {
    rail: SoftRail,
    link: Option<LinkId>,
    /// Memory whose key the peer has.
    open: (MemoryRange, RegionKeys),
    /// Registered memory whose key no peer has.
    secret: (MemoryRange, RegionKeys),
    /// Destination of receives, reads and replies to atomics.
    into: (MemoryRange, RegionKeys),
    /// Bytes to be sent from.
    from: (MemoryRange, RegionKeys),
    /// The file of its segment, which the peer can write.
    segment: Option<File>,
    /// The expected bytes of `open` once all operations are executed.
    model: Vec<u8>,
    /// The next place of `into` for a receive, and for the bytes of a read.
    next: [u64; 2],
    receives: VecDeque<FuzzReceive>,
    /// Sends of the peer that are not paired with a receive.
    coming: VecDeque<Vec<u8>>,
    /// Signalled operations that have not completed, oldest first.
    posted: VecDeque<(u64, ExpectedEffect)>,
    /// Per receive, the bytes that must fill it.
    filled: BTreeMap<u64, (FuzzReceive, Vec<u8>)>,
    matched: MatchedModel,
    /// Whether a completion has reported that the link failed.
    told: bool,
}

struct QueuePairWorld {
    ends: [FuzzEnd; 2],
    /// The relays between them over TCP, in front of each end.
    relays: Vec<WireRelay>,
    next_id: u64,
    /// Whether a word of a segment or a byte in transit was overwritten.
    hostile: bool,
    /// Whether either end has ended, or received more than it has room for.
    ended: bool,
}

fn fuzz_config(how: u8) -> SoftConfig {
    let wire = if how % 4 == 2 { WireMode::Tcp } else { WireMode::Auto };
    let wire = if how.is_multiple_of(4) { WireMode::Shm } else { wire };
    let copy = [CopyMode::Auto, CopyMode::Staging, CopyMode::Pull, CopyMode::Share][usize::from(how / 4 % 4)];
    SoftConfig {
        slots: 16,
        payload: 4096,
        segment: 1024,
        max_mr: 16,
        max_qp: 8,
        wire,
        copy,
        ..SoftConfig::default()
    }
}

impl QueuePairWorld {
    fn new(how: u8) -> Option<Self> {
        let rails = RailConfig {
            depth: 8,
            recv_depth: 8,
            recv_order: RecvOrder::Posted,
            links: 4,
            peer_time: Duration::from_secs(5),
            rail_time: Duration::from_secs(3),
            receives: false,
            traffic_class: None,
            many: false,
        };
        let fabric = SoftFabric::new(fuzz_config(how)).ok()?;
        let a = fabric.open_rail(0, &rails).ok()?;
        // One fabric is one process, whose memory both ends may name.
        let b = if how % 4 == 1 {
            fabric.open_rail(0, &rails)
        } else {
            SoftFabric::new(fuzz_config(how)).ok()?.open_rail(0, &rails)
        };
        let mut ends = [FuzzEnd::new(a)?, FuzzEnd::new(b.ok()?)?];
        let [a, b] = &mut ends;
        let at_a = a.rail.create_link().ok()?;
        let at_b = b.rail.create_link().ok()?;
        let mut to_a = a.rail.link_address(at_a).ok()?;
        let mut to_b = b.rail.link_address(at_b).ok()?;
        let mut relays = Vec::new();
        if how % 4 == 2 {
            relays = vec![WireRelay::new(&mut to_a.bytes)?, WireRelay::new(&mut to_b.bytes)?];
        }
        let is_shared = how.is_multiple_of(4);
        for (end, address) in [(&mut *a, at_a), (&mut *b, at_b)] {
            end.link = Some(address);
            end.segment =
                end.rail.link_address(address).ok()?.fd.filter(|_| is_shared).map(|fd| File::from(fd.fd));
        }
        a.rail.connect(at_a, to_b).ok()?;
        b.rail.connect(at_b, to_a).ok()?;
        Some(Self { ends, relays, next_id: 1, hostile: false, ended: false })
    }

    fn apply_action(&mut self, FuzzAction { what, at, one, two }: FuzzAction) {
        match what % 16 {
            0 => self.post_send(at, u64::from(one), two),
            1 => self.post_receive(at, u64::from(one)),
            2 => self.post_write(at, u64::from(one) * 16, usize::from(two) * 12, false),
            3 => self.post_write(at, u64::from(one) * 16, usize::from(two % 64), true),
            4 => self.post_read(at, u64::from(one) * 16, u64::from(two) / 2),
            5 => self.post_atomic(
                at,
                u64::from(one) * 8,
                |old| old.wrapping_add(u64::from(two)),
                Some(two.into()),
                None,
            ),
            6 => self.post_swap(at, u64::from(one) * 8, two),
            7 => self.poll(at),
            8 => self.settle(),
            9 => self.overwrite_word(at, u64::from(one) * 8, u64::from(two)),
            10 => self.forge_record(at, one, two),
            11 => {
                self.overwrite_word(at, SLOTS_AT + u64::from(one) * 8, u64::from(two) << 56 | u64::from(two))
            }
            12 => self.post_outside(at, one, two),
            13 => self.end_link(at, false),
            14 => self.end_link(at, true),
            _ => match one % 4 {
                0 => self.send_matched(at, u64::from(one / 4 % 4), u64::from(two)),
                1 => self.receive_matched(at, u64::from(one / 4 % 4), u64::from(two)),
                2 => self.take_back(at, usize::from(two)),
                _ => self.alter_byte(at, usize::from(one / 4) * 16, two),
            },
        }
    }

    /// Whether a send waits for its receive, so that its bytes are not delivered.
    fn is_unmet(&self) -> bool {
        self.ends.iter().any(|end| !end.coming.is_empty())
    }

    fn post_send(&mut self, at: usize, len: u64, fill: u8) {
        let len = if self.is_unmet() { len.min(INLINE) } else { len };
        let bytes = self.ends[at].filled_bytes(len as usize, fill);
        let from = OpSource::Region(RegionExtent { key: self.ends[at].from.1.local, offset: 0, len });
        // The bytes of a region may not change before the operation completes, so short ones are copied into it.
        let (head, body) = if len <= INLINE { (&bytes[..], OpSource::Inline(&[])) } else { (&[][..], from) };
        if len > INLINE {
            self.settle();
            self.ends[at].write_from(&bytes);
        }
        if self.post_op(at, Op::Send { head, body, imm: None }, ExpectedEffect::Nothing) {
            self.ends[1 - at].coming.push_back(bytes);
            self.pair_receives(1 - at);
            if len > INLINE {
                self.settle();
            }
        }
    }

    fn post_receive(&mut self, at: usize, len: u64) {
        let end = &mut self.ends[at];
        let into = end.next_extent(len, 0);
        let posted = FuzzReceive { wr_id: self.next_id, at: into.offset, len };
        if self.post_op(at, Op::Recv { into }, ExpectedEffect::Nothing) {
            self.ends[at].receives.push_back(posted);
            self.pair_receives(at);
        }
    }

    /// Pairs the oldest send with the oldest receive.
    fn pair_receives(&mut self, at: usize) {
        let end = &mut self.ends[at];
        while !end.receives.is_empty() && !end.coming.is_empty() {
            if let (Some(posted), Some(bytes)) = (end.receives.pop_front(), end.coming.pop_front()) {
                // A link whose receive is too short fails.
                self.ended |= bytes.len() as u64 > posted.len;
                end.filled.insert(posted.wr_id, (posted, bytes));
            }
        }
    }

    /// Whether an operation that changes bytes may be posted. An earlier read may fetch its bytes at any time before it completes, but the model
    /// took them when it was posted.
    fn may_change(&mut self, at: usize) -> bool {
        let reads =
            |end: &FuzzEnd| end.posted.iter().any(|(_, effect)| matches!(effect, ExpectedEffect::Read(..)));
        if reads(&self.ends[at]) {
            self.settle();
        }
        !reads(&self.ends[at]) || self.hostile || self.ended
    }

    fn post_write(&mut self, at: usize, offset: u64, len: usize, inline: bool) {
        if !self.may_change(at) {
            return;
        }
        let len = len.min(LEN / 2 - 1);
        let fill = (self.next_id % 200) as u8;
        let bytes = self.ends[at].filled_bytes(len, fill);
        if (inline && len as u64 > INLINE) || (!inline && self.is_unmet()) {
            return;
        }
        if !inline {
            self.settle();
            self.ends[at].write_from(&bytes);
        }
        let region =
            OpSource::Region(RegionExtent { key: self.ends[at].from.1.local, offset: 0, len: len as u64 });
        let from = if inline && len as u64 <= INLINE { OpSource::Inline(&bytes[..]) } else { region };
        let to = self.ends[1 - at].remote_at(offset);
        if self.post_op(at, Op::Write { from, to, imm: None }, ExpectedEffect::Nothing) {
            self.ends[1 - at].model[offset as usize..][..len].copy_from_slice(&bytes);
            if !inline {
                self.settle();
            }
        }
    }

    fn post_read(&mut self, at: usize, offset: u64, len: u64) {
        let from = self.ends[1 - at].remote_at(offset);
        let into = self.ends[at].next_extent(len, 1);
        let bytes = self.ends[1 - at].model[offset as usize..][..len as usize].to_vec();
        self.post_op(at, Op::Read { into, from }, ExpectedEffect::Read(into.offset, bytes));
    }

    fn post_swap(&mut self, at: usize, offset: u64, number: u8) {
        let old = self.ends[1 - at].word_at(offset);
        let expect = if number.is_multiple_of(2) { old } else { !old };
        let new = move |was: u64| if was == expect { u64::from(number) } else { was };
        self.post_atomic(at, offset, new, None, Some((expect, number.into())));
    }

    fn post_atomic(
        &mut self,
        at: usize,
        offset: u64,
        new: impl Fn(u64) -> u64,
        add: Option<u64>,
        swap: Option<(u64, u64)>,
    ) {
        if !self.may_change(at) {
            return;
        }
        let place = self.ends[1 - at].remote_at(offset);
        let old = self.ends[at].next_extent(8, 1);
        let was = self.ends[1 - at].word_at(offset);
        let (expect, with) = swap.unwrap_or_default();
        let op = match add {
            Some(add) => Op::FetchAdd { old, at: place, add },
            None => Op::CompareSwap { old, at: place, expect, swap: with },
        };
        if self.post_op(at, op, ExpectedEffect::Read(old.offset, was.to_le_bytes().to_vec())) {
            self.ends[1 - at].model[offset as usize..][..8].copy_from_slice(&new(was).to_le_bytes());
        }
    }

    /// Posts an operation on memory that the other end has not offered, or past its end: it fails and ends the link.
    fn post_outside(&mut self, at: usize, one: u8, two: u8) {
        let keys = self.ends[1 - at].open.1;
        let (key, addr) = match one % 3 {
            0 => (trunkline_fabric::RemoteKey(keys.remote.0 ^ 1 << (two % 64)), 0),
            1 => (keys.remote, LEN as u64 - u64::from(two % 8)),
            _ => (keys.remote, u64::MAX - u64::from(two)),
        };
        let to =
            RemoteLocation { key, addr: keys.remote_base.wrapping_add(addr), purpose: RegionPurpose::Data };
        let from = OpSource::Inline(&[0x77; 16]);
        if self.post_op(at, Op::Write { from, to, imm: None }, ExpectedEffect::Nothing) {
            self.ended = true;
        }
    }

    /// Posts an operation; returns whether it was accepted.
    fn post_op(&mut self, at: usize, op: Op<'_>, effect: ExpectedEffect) -> bool {
        let end = &mut self.ends[at];
        let Some(link) = end.link else { return false };
        let is_receive = matches!(op, Op::Recv { .. } | Op::MatchedRecv { .. });
        let credits = end.rail.post_credits(link);
        match end.rail.post(link, self.next_id, op, true) {
            Ok(()) => {
                assert!(is_receive || credits > 0, "an operation without a credit");
                end.posted.push_back((self.next_id, effect));
                self.next_id += 1;
                true
            }
            Err(PostError::Busy) => false,
            Err(PostError::Refused(status)) => {
                assert!(self.hostile || self.ended, "{op:?} was refused: {status:?}");
                false
            }
        }
    }

    fn poll(&mut self, at: usize) {
        self.relays.iter_mut().for_each(WireRelay::carry_bytes);
        let mut out = [Completion::BLANK; 4];
        let count = self.ends[at].rail.poll(&mut out);
        for one in &out[..count] {
            self.check_completion(at, one);
        }
    }

    fn check_completion(&mut self, at: usize, one: &Completion) {
        let is_calm = !self.hostile && !self.ended;
        let end = &mut self.ends[at];
        assert_eq!(Some(one.link), end.link, "a completion of a destroyed link");
        // The link itself has failed: a completion that belongs to no operation, at most one.
        if (one.done, one.wr_id) == (CompletionKind::Written, 0) {
            assert!(!is_calm && one.status != OpStatus::Ok && !end.told, "{one:?}");
            end.told = true;
            self.ended = true;
            return;
        }
        let known = end.posted.iter().position(|(wr_id, _)| *wr_id == one.wr_id);
        let Some((_, effect)) = known.and_then(|known| end.posted.remove(known)) else {
            panic!("{one:?} was not posted, or has completed before");
        };
        if is_calm && end.matched.has_too_long(one.wr_id) {
            assert_eq!(one.status, OpStatus::TooLong, "{one:?}");
            return;
        }
        assert!(!is_calm || one.status == OpStatus::Ok, "{one:?}");
        if !is_calm || one.status != OpStatus::Ok {
            self.ended |= one.status != OpStatus::Ok;
            return;
        }
        if let ExpectedEffect::Read(offset, bytes) = effect {
            assert_eq!(end.read_bytes(offset, bytes.len()), bytes, "{one:?} read other bytes");
        }
        if let Some((posted, bytes)) = end.matched.take_filled(one.wr_id) {
            assert_eq!((one.done, one.len), (CompletionKind::Received, bytes.len() as u64));
            assert_eq!(end.read_bytes(posted.at, bytes.len()), bytes, "{one:?} delivered other bytes");
        } else if one.done == CompletionKind::Received {
            let Some((posted, bytes)) = end.filled.remove(&one.wr_id) else {
                panic!("{one:?} received bytes that were not sent");
            };
            assert!(end.filled.keys().all(|later| *later > one.wr_id), "a message overtook another one");
            assert_eq!(one.len, bytes.len() as u64);
            assert_eq!(end.read_bytes(posted.at, bytes.len()), bytes, "{one:?} delivered other bytes");
        }
    }

    /// Polls both ends until all operations that can complete have completed.
    fn settle(&mut self) {
        for polls in 0.. {
            [0, 1].into_iter().for_each(|at| self.poll(at));
            let waits = |at: usize| {
                let end = &self.ends[at];
                let other = &self.ends[1 - at];
                // Receives that no send has met, and sends that no receive has met, stay.
                let unmet = end.receives.len() + end.matched.receives.len() + other.matched.coming.len();
                end.link.is_some() && end.posted.len() > unmet
            };
            if self.hostile || self.ended || self.is_unmet() {
                if polls > 64 {
                    return;
                }
            } else if ![0, 1].into_iter().any(waits) {
                return;
            }
            assert!(polls < POLLS_MAX, "an operation never completes");
        }
    }

    /// Writes a word of an end's segment, as its peer could.
    fn overwrite_word(&mut self, at: usize, offset: u64, word: u64) {
        if let Some(segment) = &self.ends[at].segment
            && segment.metadata().is_ok_and(|of| offset + 8 <= of.len())
        {
            let written = segment.write_all_at(&word.to_le_bytes(), offset);
            self.hostile |= written.is_ok();
        }
    }

    /// Publishes a forged record in an end's segment at a position, as its peer could.
    fn forge_record(&mut self, at: usize, position: u8, form: u8) {
        let keys = &self.ends[at];
        let position = u64::from(position % 32);
        let head =
            u64::from(form % 12) | u64::from(form / 12 % 4) << 8 | u64::from(form / 48 % 5) << 16 | 24 << 24;
        let places = [keys.open.1.remote.0, keys.secret.1.remote.0 ^ 1, u64::MAX];
        let words =
            [head, places[usize::from(form % 3)], u64::from(form) * 64, 4096, u64::from(form) << 4, 0];
        for (number, word) in (1..).zip(words) {
            self.overwrite_word(at, SLOTS_AT + position % 16 * SLOT + number * 8, word);
        }
        self.overwrite_word(at, SLOTS_AT + position % 16 * SLOT, position + 1);
    }

    /// Alters a byte that an end sends.
    fn alter_byte(&mut self, at: usize, after: usize, bits: u8) {
        for (number, relay) in self.relays.iter_mut().enumerate() {
            // The relay in front of an end carries the connections that the other one dials.
            let from = usize::from(number == at);
            relay.alter_byte(from, ByteAlteration { after, bits });
            self.hostile |= bits != 0;
        }
    }

    fn send_matched(&mut self, at: usize, key: u64, len: u64) {
        if !self.ends[at].rail.caps().matched {
            return;
        }
        let bytes = self.ends[at].filled_bytes(len.min(INLINE) as usize, key as u8);
        let wr_id = self.next_id;
        let op = Op::MatchedSend { from: OpSource::Inline(&bytes), key: MatchKey(key) };
        if self.post_op(at, op, ExpectedEffect::Nothing) {
            let too_long = self.ends[1 - at].matched.add_send(key, wr_id, bytes);
            self.ends[at].matched.too_long.extend(too_long);
        }
    }

    fn receive_matched(&mut self, at: usize, key: u64, len: u64) {
        if !self.ends[at].rail.caps().matched {
            return;
        }
        let into = self.ends[at].next_extent(len, 0);
        let posted = FuzzReceive { wr_id: self.next_id, at: into.offset, len };
        if self.post_op(at, Op::MatchedRecv { into, key: MatchKey(key) }, ExpectedEffect::Nothing) {
            let too_long = self.ends[at].matched.add_receive(key, posted);
            self.ends[1 - at].matched.too_long.extend(too_long);
        }
    }

    /// Cancels one of the posted operations: a matched one that is not paired, or a receive whose send is held up. A send
    /// is held up at the peer by an earlier plain send without a receive. It completes later, and its bytes are dropped.
    fn take_back(&mut self, at: usize, which: usize) {
        // Afterwards all operations that can be paired are.
        self.settle();
        let end = &mut self.ends[at];
        let Some(link) = end.link else { return };
        let Some(&(wr_id, _)) = which.checked_rem(end.posted.len()).and_then(|at| end.posted.get(at)) else {
            return;
        };
        let is_taken = end.rail.take_back(link, wr_id);
        let [first, second] = &mut self.ends;
        let (one, other) = if at == 0 { (first, second) } else { (second, first) };
        let is_unmet = one.matched.forget_receive(wr_id) | other.matched.forget_send(wr_id);
        // A receive that is paired and still posted after `settle` waits for no other reason.
        let is_held_up = !one.coming.is_empty() && one.matched.forget_met_receive(wr_id);
        assert!(
            self.hostile || self.ended || is_taken == (is_unmet || is_held_up),
            "{wr_id} was taken back: {is_taken}"
        );
        if is_taken {
            one.posted.retain(|(posted, _)| *posted != wr_id);
        }
        // Time for the other end to notice.
        (0..512).for_each(|number| self.poll(number % 2));
    }

    fn end_link(&mut self, at: usize, destroyed: bool) {
        let end = &mut self.ends[at];
        let Some(link) = end.link else { return };
        self.ended = true;
        if destroyed {
            end.rail.destroy_link(link);
            // The link's completions are discarded.
            (end.link, end.posted) = (None, VecDeque::new());
        } else {
            end.rail.fail_link(link);
        }
    }

    /// Checks the properties that hold at the end after any actions.
    fn check_end(mut self) {
        self.settle();
        // Behind a send that waits for its receive, nothing is executed.
        if !self.hostile && !self.ended && !self.is_unmet() {
            for end in &self.ends {
                assert_eq!(end.open_bytes(), end.model, "the memory differs from the written bytes");
            }
        }
        for at in [0, 1] {
            let end = &mut self.ends[at];
            if let Some(link) = end.link {
                end.rail.fail_link(link);
                self.ended = true;
                for polls in 0.. {
                    self.poll(at);
                    if self.ends[at].rail.poll_link_quiet(link) {
                        break;
                    }
                    assert!(polls < POLLS_MAX, "a failed link never becomes quiet");
                }
                (0..8).for_each(|_| self.poll(at));
                let left: Vec<u64> = self.ends[at].posted.iter().map(|(wr_id, _)| *wr_id).collect();
                assert!(left.is_empty(), "{left:?} never completed");
            }
            self.ends[at].check_untouched();
        }
    }
}

impl FuzzEnd {
    fn new(rail: SoftRail) -> Option<Self> {
        let registrar = rail.registrar();
        let memory = |access, fill: u8| {
            let memory = MemoryRange::heap(LEN);
            memory.write(0, &[fill; LEN]).ok()?;
            let keys = registrar.register(&memory, access, RegionPurpose::Data).ok()?;
            Some((memory, keys))
        };
        Some(Self {
            open: memory(AccessRights::ALL, 0)?,
            secret: memory(AccessRights::ALL, CANARY)?,
            into: memory(AccessRights::LOCAL, CANARY)?,
            from: memory(AccessRights::LOCAL, 0)?,
            rail,
            link: None,
            segment: None,
            model: vec![0; LEN],
            next: [0; 2],
            receives: VecDeque::new(),
            coming: VecDeque::new(),
            posted: VecDeque::new(),
            filled: BTreeMap::new(),
            matched: MatchedModel::default(),
            told: false,
        })
    }

    fn remote_at(&self, offset: u64) -> RemoteLocation {
        let keys = self.open.1;
        RemoteLocation { key: keys.remote, addr: keys.remote_base + offset, purpose: RegionPurpose::Data }
    }

    fn word_at(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.model[offset as usize..][..8]);
        u64::from_le_bytes(word)
    }

    fn filled_bytes(&self, len: usize, fill: u8) -> Vec<u8> {
        (0..len).map(|at| fill.wrapping_add(at as u8)).collect()
    }

    fn write_from(&self, bytes: &[u8]) {
        let written = self.from.0.write(0, bytes);
        assert!(written.is_ok());
    }

    /// Returns a place of `into` that no other outstanding operation uses; receives have places of their own.
    fn next_extent(&mut self, len: u64, of: usize) -> RegionExtent {
        let (from, bytes) = [(0, RECEIVE_MAX), (READS_AT, READ_MAX)][of];
        let offset = from + self.next[of] % PLACES * bytes;
        self.next[of] += 1;
        RegionExtent { key: self.into.1.local, offset, len }
    }

    fn read_bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = self.into.0.read(offset, &mut bytes);
        assert!(read.is_ok());
        bytes
    }

    fn open_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        let read = self.open.0.read(0, &mut bytes);
        assert!(read.is_ok());
        bytes
    }

    /// Checks that bytes that no operation names are unchanged.
    fn check_untouched(&self) {
        let mut secret = vec![0; LEN];
        let read = self.secret.0.read(0, &mut secret);
        assert!(
            read.is_ok() && secret.iter().all(|byte| *byte == CANARY),
            "memory was written without its key"
        );
        let rest = self.read_bytes(UNUSED_AT, LEN - UNUSED_AT as usize);
        assert!(rest.iter().all(|byte| *byte == CANARY), "bytes outside of posted operations were written");
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::fuzzing::{RandomNumbers, random_script, write_script};

    use super::*;

    #[test]
    fn receives_behind_an_unmet_send_are_taken_back() {
        let send = 0;
        let receive = 1;
        let settle = 8;
        let matched = 15;
        let to_send = 0;
        let to_receive = 1;
        let back = 2;
        // The number of a key is above the kind of action.
        let key = |number: u8, kind: u8| number << 2 | kind;
        for len in [64, 9] {
            let actions_behind_a_send = [
                [send, 0, 8, 1],
                [matched, 0, key(1, to_send), 40],
                [matched, 1, key(1, to_receive), len],
                [matched, 0, key(0, back), 1],
                [matched, 1, key(0, back), 0],
                // This receive has the same key, and its send is the next one.
                [matched, 1, key(1, to_receive), 64],
                [matched, 0, key(1, to_send), 50],
                [receive, 1, 64, 0],
                [settle, 0, 0, 0],
            ];
            (0..=3).for_each(|how| run_actions(&write_script(how, &actions_behind_a_send)));
        }
    }

    #[test]
    fn random_actions_hold() {
        super::super::seeds::action_seeds().iter().for_each(|seed| run_actions(seed));
        let mut numbers = RandomNumbers::new(17);
        for _ in 0..400 {
            run_actions(&random_script(&mut numbers, 96));
        }
    }
}
