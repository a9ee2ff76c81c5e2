//! M2 over a network that reaches no device memory. Ranks with regions in device memory send requests to each other by
//! post boxes, beside ranks with regions in pinned memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use trunkline_device::{
    BeginOutcome, ErrorTable, KernelJob, LocalPart, MemberNetwork, NetworkCompletion, PeerRegion,
    ProxyNetwork, RemotePart, RmaNetwork,
};
use trunkline_device_queue::SlotLayout;
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::HeapAddress as At;
use trunkline_engine::rma::{self, HeapRange, PutSource};
use trunkline_engine::{CommNics, EngineParams};
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{
    EntryStatus, OwnerAction, PostBox, PostReply, PostRequest, PostRooms, REQUEST_BYTES,
};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use crate::cases::each_example;
use crate::machine::{BYTES, Machine, PLAN, Place, Plan, Rank, SLOTS, SLOTS_COUNT, until};

type Over = Arc<rma::RmaJob<SoftFabric, UnixHost>>;
type Posted = Rank<ProxyNetwork<Late>>;

/// Polls of a network before the bytes of a put begin to move.
const LATE: u32 = 40;

/// No member is dead.
const NONE: u32 = u32::MAX;

/// A network that delays puts that are longer than a request.
struct Late {
    rma: RmaNetwork<Over>,
    held: VecDeque<(u32, u64, At, HeapRange)>,
    /// The member that counts as dead: puts to it complete, and it never replies.
    dead: Arc<AtomicU32>,
    /// The cookies of the puts to it that have not completed.
    lost: Vec<u64>,
}

impl MemberNetwork for Late {
    fn own_rank(&self) -> u32 {
        self.rma.own_rank()
    }

    fn can_execute_locally(&self) -> bool {
        self.rma.can_execute_locally()
    }

    fn put(&mut self, cookie: u64, to: At, from: PutSource<'_>) -> BeginOutcome {
        if to.member == self.dead.load(SeqCst) {
            self.lost.push(cookie);
            return BeginOutcome::Begun(match from {
                PutSource::Heap(local) => local.len,
                PutSource::Bytes(bytes) => bytes.len() as u64,
            });
        }
        match from {
            PutSource::Heap(local)
                if local.len > REQUEST_BYTES && local.len <= 8192 && self.held.len() < 16 =>
            {
                self.held.push_back((LATE, cookie, to, local));
                BeginOutcome::Begun(local.len)
            }
            _ => self.rma.put(cookie, to, from),
        }
    }

    fn get(&mut self, cookie: u64, from: At, into: HeapRange) -> BeginOutcome {
        self.rma.get(cookie, from, into)
    }

    fn post_atomic(&mut self, cookie: u64, at: At, action: AtomicAction, fetches: bool) -> BeginOutcome {
        self.rma.post_atomic(cookie, at, action, fetches)
    }

    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        let moved = self.rma.make_progress(ended) | !self.lost.is_empty();
        ended.extend(self.lost.drain(..).map(|cookie| NetworkCompletion { cookie, how: Ok(0) }));
        for _ in 0..self.held.len() {
            let Some((left, cookie, to, from)) = self.held.pop_front() else { break };
            match left {
                0 => match self.rma.put(cookie, to, PutSource::Heap(from)) {
                    BeginOutcome::Begun(bytes) => {
                        assert_eq!(bytes, from.len, "a put this short must begin in one piece")
                    }
                    BeginOutcome::Busy => self.held.push_back((0, cookie, to, from)),
                    BeginOutcome::Failed(failure) => {
                        ended.push(NetworkCompletion { cookie, how: Err(failure) })
                    }
                },
                _ => self.held.push_back((left - 1, cookie, to, from)),
            }
        }
        moved
    }

    fn send_error_word(&mut self, at: At, value: u64) -> bool {
        self.rma.send_error_word(at, value)
    }

    fn poll_control_streams(&mut self) {
        self.rma.poll_control_streams();
    }

    fn is_gone(&mut self, member: u32) -> bool {
        member == self.dead.load(SeqCst) || self.rma.is_gone(member)
    }
}

const BOXES: u64 = BYTES as u64;

fn rooms(ranks: usize) -> PostRooms {
    PostRooms::new(BOXES + LocalPart::boxes_bytes(ranks as u64), ranks as u32, BYTES as u64)
}

fn job(wire: WireMode) -> Over {
    let fabric = SoftFabric::new(SoftConfig { wire, nics: 4, ..SoftConfig::default() }).unwrap();
    let params = EngineParams::default();
    Arc::new(rma::RmaJob::new(fabric, UnixHost::new(|_, _| {}), params, CommNics::from(0)).unwrap())
}

/// Creates connected ranks, whose regions are in these places.
fn ranks(machine: &Machine, wire: WireMode, places: &[Place]) -> Vec<Posted> {
    mortal_ranks(machine, wire, places, &Arc::new(AtomicU32::new(NONE)))
}

/// As [`ranks`], with one rank that the test can make count as dead.
fn mortal_ranks(machine: &Machine, wire: WireMode, places: &[Place], dead: &Arc<AtomicU32>) -> Vec<Posted> {
    let jobs: Vec<Over> = places.iter().map(|_| job(wire)).collect();
    let cards: Vec<_> = jobs.iter().map(|job| job.process_card()).collect();
    let rank = |(me, job, &place): (u32, &Over, &Place)| {
        job.set_members(me, &cards).unwrap();
        let rooms = rooms(places.len());
        let bytes = (rooms.room_offset(0, 0) + rooms.total_bytes()) as usize;
        let pinned = machine.device.allocate_pinned(bytes).unwrap();
        assert_eq!(job.add_heap(pinned.memory().clone()).unwrap(), 0);
        let rma = RmaNetwork::new(Arc::clone(job)).unwrap();
        let network =
            ProxyNetwork::new(Late { rma, held: VecDeque::new(), dead: Arc::clone(dead), lost: Vec::new() })
                .unwrap();
        let rank = Rank::over(machine, network, Plan { place, depth: 32, blocks: 2, ..PLAN }, pinned);
        rank.queues.with_executor(|executor| executor.add_rooms(rank.key, rooms)).unwrap();
        rank
    };
    let all = (0..).zip(&jobs).zip(places).map(|((me, job), place)| (me, job, place));
    let ranks: Vec<Posted> = all.map(rank).collect();
    for (me, rank) in ranks.iter().enumerate() {
        let peer = |place: &Place| RemotePart {
            heap: 0,
            boxes: BOXES,
            is_posted: *place == Place::Device,
            slots: vec![SlotLayout::Poisoned { slots: SLOTS, count: SLOTS_COUNT as u32 }],
        };
        let (region, memory, copies) = rank.parts();
        let device = copies.map(|copies| (region, copies));
        let (rooms, peers) = (rooms(places.len()), places.iter().map(peer).collect());
        let part = LocalPart { heap: 0, memory, boxes: BOXES, rooms, device, peers };
        rank.queues.with_executor(|executor| executor.network_mut().open_window(part).unwrap());
        for (other, of) in ranks.iter().enumerate().filter(|(other, _)| *other != me) {
            let far = PeerRegion::of_host(of.key, BYTES as u64, ErrorTable::default(), None);
            rank.queues.add_remote_region(other as u32, far).unwrap();
        }
    }
    ranks
}

fn job_to(machine: &Machine, ranks: &[Posted], me: usize) -> KernelJob {
    let keys = [ranks[me].key.to_bits(), ranks[1 - me].key.to_bits()];
    KernelJob { keys, peer: 1 - me as u32, rounds: 150, batch: 4, bytes: 64 << 10, ..ranks[me].job(machine) }
}

/// Two ranks write to each other's memory, raise each other's signals, and read each other's bytes, all at the same
/// time. The programs of the three examples run, too.
pub(crate) fn posted(machine: &Machine) {
    let (on, pinned) = (Place::Device, Place::Pinned);
    for wire in [WireMode::Shm, WireMode::Tcp] {
        for places in [[on, on], [on, pinned], [pinned, on]] {
            let ranks = ranks(machine, wire, &places);
            let running =
                [0, 1].map(|me| ranks[me].start(machine, "flood", (2, 2), job_to(machine, &ranks, me)));
            for (rank, running) in ranks.iter().zip(&running) {
                assert_eq!(rank.finish(machine, running, (2, 2)), [0; 4], "{wire:?}, {places:?}");
            }
            for rank in &ranks {
                assert_eq!(rank.slot(machine, 0), [4 * 150, 0], "{wire:?}, {places:?}");
                assert_eq!(rank.region_words(machine, 64 << 10, 4), [150; 4], "{wire:?}, {places:?}");
            }
            let words: Vec<u64> = (0..8 << 10).map(|word| word * 3).collect();
            ranks[1].fill(machine, 64 << 10, &words);
            let job = KernelJob { number: 3, ..job_to(machine, &ranks, 0) };
            assert_eq!(ranks[0].run(machine, "fetch", (1, 2), job), [0; 2], "{wire:?}, {places:?}");
        }
        for &threads in machine.groups.iter().filter(|&&threads| threads < 32) {
            each_example(machine, threads, || ranks(machine, wire, &[on, on, on]));
            each_example(machine, threads, || ranks(machine, wire, &[on, pinned]));
        }
    }
}

/// A failure here poisons a signal in the other rank's device memory: by a request, or by the control stream if the
/// request fails.
pub(crate) fn poisoned(machine: &Machine) {
    for wire in [WireMode::Shm, WireMode::Tcp] {
        let ranks = ranks(machine, wire, &[Place::Device, Place::Device]);
        let own = job_to(machine, &ranks, 0);
        let keys = [own.keys[0] ^ 0x5a00, own.keys[1]];
        // No rank raises this rank's own slot, so that wait ends by its limit.
        let bad = KernelJob { keys, number: u64::MAX, ticks: machine.ticks / 100, ..own };
        let running = ranks[0].start(machine, "endure", (1, 1), bad);
        until("a remote signal is poisoned", || ranks[1].slot(machine, 0)[1] != 0);
        let queue = ranks[0].queues.find_queue(ranks[0].lanes.queue_numbers()[0][0]).unwrap();
        assert_eq!(queue.queue_fault().map(|fault| fault.status), Some(EntryStatus::Access));
        let _ = ranks[0].finish(machine, &running, (1, 1));
        let at = At { member: 1, heap: 0, offset: SLOTS + 5 * 16 + 8 };
        assert!(
            ranks[0].queues.with_executor(|executor| executor.network_mut().send_error_word(at, 77)),
            "{wire:?}"
        );
        until("the error word is set", || ranks[1].slot(machine, 5)[1] == 77);
    }
}

/// An owner dies with requests of this rank in progress, and no link reports the death: the requests fail.
pub(crate) fn bereaved(machine: &Machine) {
    let dead = Arc::new(AtomicU32::new(NONE));
    let ranks = mortal_ranks(machine, WireMode::Shm, &[Place::Device, Place::Device], &dead);
    dead.store(1, SeqCst);
    let running = ranks[0].start(machine, "flood", (1, 1), job_to(machine, &ranks, 0));
    let queue = ranks[0].queues.find_queue(ranks[0].lanes.queue_numbers()[0][0]).unwrap();
    until("the requests fail", || queue.queue_fault().is_some());
    assert_eq!(queue.queue_fault().map(|fault| fault.status), Some(EntryStatus::PeerDead));
    let _ = ranks[0].finish(machine, &running, (1, 1));
}

/// Requests beyond an owner's part are refused, and no bytes are moved.
pub(crate) fn hostile(machine: &Machine) {
    let ranks = ranks(machine, WireMode::Shm, &[Place::Device, Place::Device]);
    let (_, memory, _) = ranks[1].parts();
    let theirs = PostBox::new(BOXES, 0).unwrap();
    let (_, answers, _) = ranks[0].parts();
    let mine = PostBox::new(BOXES, 1).unwrap();
    let far = u64::MAX - 7;
    let asks = [
        OwnerAction::Bring { addr: BYTES as u64 - 8, len: 16 },
        OwnerAction::Show { addr: far, len: 64 },
        OwnerAction::Bring { addr: 0, len: far },
        OwnerAction::Change { addr: BYTES as u64, action: AtomicAction::Add(1) },
        OwnerAction::Change { addr: 12, action: AtomicAction::Add(1) },
    ];
    for (number, ask) in (0..).zip(asks) {
        let words = PostRequest { number, ask }.to_words();
        for (nth, word) in (0..).zip(words) {
            memory.store(theirs.request_offset(number) + nth * 8, word).unwrap();
        }
        let mut reply = None;
        until("a reply", || {
            let words = answers.load_row(mine.reply_offset(number)).unwrap();
            reply = PostReply::from_words(&words, number);
            reply.is_some()
        });
        assert_eq!(reply.unwrap().how, Err((EntryStatus::Access, 0)), "{ask:?}");
    }
}
