//! The resources of a NIC that connections use, as the NIC counts them: queue pairs, completion queues, registrations.
//! Two engines of one process, each with a software NIC of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use trunkline_engine::host::UnixHost;
use trunkline_engine::{
    CommId, CommNics, Engine, EngineError, EngineParams, ListenId, MrId, RecvBuf, RequestId, SharingParams,
    TrafficHint,
};
use trunkline_fabric::Fabric as _;
use trunkline_mem::MemoryRange;
use trunkline_proto::limits::{LINKS_MAX, MEMBERS_OF_GROUP_MAX, SLICE_MAX, SLICES_MAX};
use trunkline_proto::pool::config::SharingMode;
use trunkline_proto::wire::status::NicUsage;
use trunkline_softnic::{SoftConfig, SoftFabric};

type Running = Engine<SoftFabric, UnixHost>;

const LIMIT: Duration = Duration::from_secs(30);

fn engine(sharing: SharingParams, links: u32, nics: usize, flushes: bool) -> Arc<Running> {
    let params = EngineParams { sharing, links_per_rail: links, status: false, ..EngineParams::default() };
    let config = SoftConfig { nics, delayed_visibility: flushes, ..SoftConfig::default() };
    let fabric = SoftFabric::new(config).expect("the software NIC");
    Arc::new(Engine::new(fabric, UnixHost::new(|_, _| {}), params).expect("an engine"))
}

/// Two processes from the engine's point of view.
pub(super) struct Duo {
    pub(super) ends: [Arc<Running>; 2],
    listens: [(ListenId, [u8; 128]); 2],
    /// NICs at each end, which each connection uses together.
    nics: [usize; 2],
}

/// All of `nics` NICs.
fn all(nics: usize) -> CommNics {
    CommNics::new(&(0..nics).collect::<Vec<_>>()).expect("a list of NICs")
}

impl Duo {
    pub(super) fn new(sharing: SharingMode, groups: [u8; 2], links: u32) -> Self {
        let sharing = groups.map(|groups| SharingParams { sharing, groups, ..SharingParams::default() });
        Self::over(sharing, links, [1, 1], false)
    }

    fn over(sharing: [SharingParams; 2], links: u32, nics: [usize; 2], flushes: bool) -> Self {
        Self::between([0, 1].map(|at| engine(sharing[at], links, nics[at], flushes)), nics)
    }

    fn between(ends: [Arc<Running>; 2], nics: [usize; 2]) -> Self {
        let listens = [0, 1].map(|at| ends[at].listen(all(nics[at])).expect("a listener"));
        Self { ends, listens, nics }
    }

    /// Tries to connect one end to the other.
    fn try_connect(&self, from: usize) -> Result<(CommId, CommId), EngineError> {
        self.connect_in(from, TrafficHint::default())
    }

    /// Tries to connect, for a comm with this traffic hint.
    fn connect_in(&self, from: usize, traffic: TrafficHint) -> Result<(CommId, CommId), EngineError> {
        let (asks, answers) = (&self.ends[from], &self.ends[1 - from]);
        let (listen, mut handle) = self.listens[1 - from];
        let (mut send, mut recv) = (None, None);
        let began = Instant::now();
        while send.is_none() || recv.is_none() {
            assert!(began.elapsed() < LIMIT, "never connected");
            send = match send {
                None => asks.connect_in(traffic, all(self.nics[from]), &mut handle)?,
                open => open,
            };
            recv = recv.or_else(|| answers.accept(listen).expect("accept"));
        }
        Ok(send.zip(recv).expect("both"))
    }

    /// Connects one end to the other; returns the sending and the receiving comm.
    pub(super) fn connect(&self, from: usize) -> (CommId, CommId) {
        self.try_connect(from).expect("connect")
    }

    /// The sum over all NICs of an end.
    pub(super) fn usage(&self, at: usize) -> NicUsage {
        let mut sum = NicUsage::default();
        for nic in 0..self.nics[at] {
            let usage = self.ends[at].fabric().nic_usage(nic);
            sum.queue_pairs += usage.queue_pairs;
            sum.completion_queues += usage.completion_queues;
            sum.regions += usage.regions;
        }
        sum
    }

    /// Sends one message, on which the links are made that need a first use.
    pub(super) fn message(&self, from: usize, (send, recv): (CommId, CommId), seed: u8, len: usize) {
        let (sender, receiver) = (&self.ends[from], &self.ends[1 - from]);
        let (out, into) = (MemoryRange::heap(len.max(1)), MemoryRange::heap(len.max(1)));
        out.write(0, &vec![seed; len]).expect("it fits");
        let mrs: [MrId; 2] = [
            sender.register(send, out).expect("a region"),
            receiver.register(recv, into.clone()).expect("a region"),
        ];
        let buffer = RecvBuf { mr: mrs[1], offset: 0, len: len as u64, tag: 3 };
        let (mut sending, mut receiving, mut sizes) = (None, None, [0; 8]);
        let (mut sent, mut received) = (false, false);
        let began = Instant::now();
        while !sent || !received {
            assert!(began.elapsed() < LIMIT, "no message");
            receiving = receiving.or_else(|| receiver.irecv(recv, &[buffer]).expect("irecv"));
            sending = sending.or_else(|| sender.isend(send, mrs[0], 0, len as u64, 3).expect("isend"));
            sent = sent || sending.is_some_and(|one| sender.test(one, &mut sizes).expect("test"));
            received = received || receiving.is_some_and(|one| receiver.test(one, &mut sizes).expect("test"));
        }
        if let Some(flush) = receiver.iflush(recv, &[buffer]).expect("iflush") {
            while !receiver.test(flush, &mut sizes).expect("test") {
                assert!(began.elapsed() < LIMIT, "no flush");
            }
        }
        let mut bytes = vec![0; len];
        into.read(0, &mut bytes).expect("it fits");
        assert!(bytes.iter().all(|&byte| byte == seed), "wrong bytes");
        sender.deregister(send, mrs[0]).expect("deregister");
        receiver.deregister(recv, mrs[1]).expect("deregister");
    }

    /// Closes comms and waits until nothing is in use.
    pub(super) fn close(&self, from: usize, comms: &[(CommId, CommId)]) {
        for &(send, recv) in comms {
            self.ends[from].close(send).expect("close");
            self.ends[1 - from].close(recv).expect("close");
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            self.ends.iter().for_each(|end| end.progress_all());
            let none = |at: usize| {
                let NicUsage { queue_pairs, completion_queues, regions, .. } = self.usage(at);
                let (comms, lingering, _) = self.ends[at].in_use();
                (queue_pairs, completion_queues, regions, comms, lingering) == (0, 0, 0, 0, 0)
            };
            if none(0) && none(1) {
                return true;
            }
        }
        false
    }
}

/// Makes these numbers of connections per direction; returns the usage of both ends.
fn used(duo: &Duo, counts: [usize; 2], expected: u32) -> [NicUsage; 2] {
    let mut comms: [Vec<_>; 2] = Default::default();
    // Alternately, as NCCL's channels do.
    for at in 0..counts[0].max(counts[1]) {
        for from in [0, 1] {
            if at < counts[from] {
                comms[from].push(duo.connect(from));
            }
        }
    }
    for from in [0, 1] {
        for (seed, &pair) in comms[from].iter().enumerate().step_by(7) {
            duo.message(from, pair, seed as u8, 5000);
        }
    }
    // Links beyond the first of a connection are made on first use.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3)
        && [0, 1].iter().any(|&at| duo.usage(at).queue_pairs < expected)
    {
        for from in [0, 1] {
            comms[from].iter().for_each(|&pair| duo.message(from, pair, 9, 300_000));
        }
    }
    let found = [duo.usage(0), duo.usage(1)];
    [0, 1].iter().for_each(|&from| duo.close(from, &comms[from]));
    assert!(duo.is_empty(), "{:?} {:?}", duo.usage(0), duo.usage(1));
    found
}

/// The groups that hold `comms` comms if `m` are requested: a group has at most 128 members.
fn groups_of(comms: usize, m: usize) -> usize {
    comms.min(m.max(comms.div_ceil(MEMBERS_OF_GROUP_MAX)))
}

/// For any number of communicators, channels, groups and NICs, each end has `min(nS, m) q + min(nR, m) q` queue pairs,
/// where `q` is the links of a connection, and at most one completion queue per group and NIC. No queue pair is for
/// flushes, whether arrivals need them or not: this NIC flushes on the link that carried the bytes. The tests of
/// `verbs` count a NIC with a queue pair for flushes.
pub(super) fn queue_pairs_match_the_formula(links: std::ops::RangeInclusive<u32>, nics: &[usize]) {
    let runner = Config { cases: 24, failure_persistence: None, ..Config::default() };
    let towards = (1..=8_usize, 0..=6_usize);
    let nics = proptest::array::uniform2(proptest::sample::select(nics.to_vec()));
    let all = (towards.clone(), towards, 1..=8_u8, 1..=8_u8, links, nics, proptest::bool::ANY);
    let mut runner = TestRunner::new(runner);
    let outcome = runner.run(&all, |(there, back, m, other, links, nics, flushes)| {
        let counts = [there.0 * there.1, back.0 * back.1];
        let sharing = SharingMode::On;
        let sharing = [m, other].map(|groups| SharingParams { sharing, groups, ..SharingParams::default() });
        let duo = Duo::over(sharing, links, nics, flushes);
        let m = usize::from(m.min(other));
        let groups = groups_of(counts[0], m) + groups_of(counts[1], m);
        let links = (links as usize * nics[0].max(nics[1])).min(LINKS_MAX);
        let found = used(&duo, counts, (groups * links) as u32);
        for (usage, nics) in found.into_iter().zip(nics) {
            prop_assert_eq!(usage.queue_pairs as usize, groups * links, "{:?}", counts);
            prop_assert!(usage.completion_queues as usize <= groups * nics, "{:?}", usage);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// Members beyond the capacity of a group start another one.
pub(super) fn more_than_a_group_holds() {
    for (comms, m) in [(128, 1), (129, 1), (300, 2)] {
        let duo = Duo::new(SharingMode::On, [m, m], 1);
        let [one, other] = used(&duo, [comms, 0], 0).map(|usage| usage.queue_pairs as usize);
        assert_eq!([one, other], [groups_of(comms, m.into()); 2], "{comms} connections");
    }
}

/// A NIC with few queue pairs makes comms share more than configured; if they may not, they fail.
pub(super) fn a_budget_makes_comms_share() {
    const BUDGET: u32 = 6;
    let limited = |sharing| SharingParams { sharing, groups: 8, budget: BUDGET, ..SharingParams::default() };
    for sharing in [SharingMode::On, SharingMode::Auto] {
        let duo = Duo::over([limited(sharing), limited(sharing)], 1, [1, 1], false);
        let found = used(&duo, [40, 40], 0);
        for usage in found {
            assert!((2..=BUDGET).contains(&usage.queue_pairs), "{sharing:?}: {usage:?}");
        }
    }
    let duo = Duo::over([limited(SharingMode::Off), limited(SharingMode::Off)], 1, [1, 1], false);
    let comms: Vec<_> = (0..BUDGET).map(|_| duo.connect(0)).collect();
    let text = duo.try_connect(0).expect_err("a failure, as the NIC has six queue pairs").to_string();
    assert!(text.contains("all 6 queue pairs of NIC"), "{text}");
    duo.close(0, &comms);
    assert!(duo.is_empty());
}

/// Groups are spread over the pipelines of a NIC, by the weights of their members.
pub(super) fn pipelines_are_balanced() {
    let ends = [0, 1].map(|_| {
        let sharing = SharingParams { sharing: SharingMode::On, groups: 8, ..SharingParams::default() };
        let params = EngineParams { sharing, status: false, ..EngineParams::default() };
        let fabric = SoftFabric::new(SoftConfig { pipelines: 2, ..SoftConfig::default() }).expect("a NIC");
        Arc::new(Engine::new(fabric, UnixHost::new(|_, _| {}), params).expect("an engine"))
    });
    let duo = Duo::between(ends, [1, 1]);
    let found = |at: usize| duo.ends[at].sharing_usage().pipelines;
    let heavy = duo.connect_in(0, TrafficHint { peers: 1, flows: 4, class: None }).expect("connect");
    assert_eq!(found(0), [0]);
    let mut comms: Vec<_> = (0..4).map(|_| duo.connect(0)).collect();
    assert_eq!(found(0), [0, 1, 1, 1, 1], "four light ones beside a heavy one");
    comms.extend((0..2).map(|_| duo.connect(0)));
    assert_eq!(found(0)[5..], [0, 1], "the light ones together weigh as much as the heavy one");
    duo.close(0, &comms.split_off(1));
    assert!(duo.ends[1].sharing_usage().pipelines.len() <= 8);
    comms.push(heavy);
    duo.close(0, &comms);
    assert!(duo.is_empty());
}

/// Without sharing, the numbers are unchanged: one for each comm and link.
pub(super) fn sharing_off_changes_nothing() {
    for (counts, links) in [([5, 3], 1), ([1, 0], 1), ([2, 3], 4)] {
        let duo = Duo::new(SharingMode::Off, [4, 4], links);
        let mut comms: [Vec<_>; 2] = Default::default();
        for from in [0, 1] {
            comms[from].extend((0..counts[from]).map(|_| duo.connect(from)));
            for &pair in &comms[from] {
                (0..20).for_each(|seed| duo.message(from, pair, seed, 100_000));
            }
        }
        let all = (counts[0] + counts[1]) as u32;
        for at in [0, 1] {
            let usage = duo.usage(at);
            assert_eq!((usage.queue_pairs, usage.completion_queues), (all * links, all), "{counts:?}");
        }
        [0, 1].iter().for_each(|&from| duo.close(from, &comms[from]));
        assert!(duo.is_empty());
    }
}

/// 16 communicators of 32 channels, with a connection per direction each: a hundredth of the queue pairs.
pub(super) fn a_hundredth_of_the_queue_pairs() {
    let alone = Duo::new(SharingMode::Off, [4, 4], 1);
    let shared = Duo::new(SharingMode::On, [4, 4], 1);
    let [alone, shared] = [alone, shared].map(|duo| used(&duo, [16 * 32, 16 * 32], 0)[0].queue_pairs);
    println!("figure: {alone} queue pairs alone, {shared} shared");
    assert_eq!((alone, shared), (1024, 8));
    assert!(alone >= 100 * shared);
}

/// Registrations and descriptors of a group of 4, 16, 64 and 128 members hardly grow with the members.
pub(super) fn members_cost_little() {
    let duo = Duo::new(SharingMode::On, [1, 1], 1);
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let (mut comms, mut found) = (Vec::new(), Vec::new());
    for members in [4, 16, 64, 128] {
        while comms.len() < members {
            let pair = duo.connect(0);
            duo.message(0, pair, members as u8, 5000);
            comms.push(pair);
        }
        let regions = [0, 1].map(|at| duo.usage(at).regions);
        found.push((regions, descriptors(), duo.usage(0).queue_pairs));
    }
    println!("figure: regions at either end, descriptors, queue pairs: {found:?}");
    let (first, last) = (found[0], found[3]);
    assert_eq!(first.2, last.2, "{found:?}");
    // Other tests of this process open and close descriptors meanwhile.
    assert!(last.1 <= first.1 + 20, "{found:?}");
    // A group's shared memory grows by at most a quarter at a time, so that little is unused.
    for at in [0, 1] {
        assert!(last.0[at] <= first.0[at] + 20, "{found:?}");
    }
    duo.close(0, &comms);
    assert!(duo.is_empty());
}

/// Outstanding long messages of one sending end.
struct Long<'a> {
    duo: &'a Duo,
    sends: Vec<RequestId>,
    receives: Vec<RequestId>,
    memories: Vec<MemoryRange>,
}

impl<'a> Long<'a> {
    const LEN: usize = 24 << 20;

    fn begin(duo: &'a Duo, pairs: &[(CommId, CommId)]) -> Self {
        let mut long = Self { duo, sends: Vec::new(), receives: Vec::new(), memories: Vec::new() };
        let [sender, receiver] = [&duo.ends[0], &duo.ends[1]];
        for &(send, recv) in pairs {
            let (out, into) = (MemoryRange::heap(Self::LEN), MemoryRange::heap(Self::LEN));
            out.write(0, &vec![1; Self::LEN]).expect("it fits");
            let from = sender.register(send, out).expect("a region");
            let mr = receiver.register(recv, into.clone()).expect("a region");
            let buffer = RecvBuf { mr, offset: 0, len: Self::LEN as u64, tag: 0 };
            long.receives.push(receiver.irecv(recv, &[buffer]).expect("irecv").expect("room"));
            let began = Instant::now();
            let sent = loop {
                assert!(began.elapsed() < LIMIT);
                long.step();
                if let Some(sent) = sender.isend(send, from, 0, Self::LEN as u64, 0).expect("isend") {
                    break sent;
                }
            };
            long.sends.push(sent);
            long.memories.push(into);
        }
        long
    }

    fn step(&mut self) {
        self.step_until(|| false);
    }

    /// Polls either end alternately until a condition is true; returns whether it became true.
    fn step_until(&mut self, mut is_so: impl FnMut() -> bool) -> bool {
        let [sender, receiver] = [&self.duo.ends[0], &self.duo.ends[1]];
        let mut so = false;
        for (end, requests) in [(sender, &mut self.sends), (receiver, &mut self.receives)] {
            requests.retain(|&request| {
                so = so || is_so();
                so || !end.test(request, &mut [0; 8]).expect("test")
            });
        }
        so || is_so()
    }

    /// Bytes of long messages that have arrived.
    fn landed(&self) -> usize {
        let mut bytes = vec![0; Self::LEN];
        let count = |memory: &MemoryRange| {
            memory.read(0, &mut bytes).expect("it fits");
            bytes.iter().filter(|&&byte| byte == 1).count()
        };
        self.memories.iter().map(count).sum()
    }
}

/// Members have enough outstanding long messages to last longer than a small one of another member. Their bytes that
/// arrive between its send and its arrival are those that were queued before it.
pub(super) fn a_small_message_waits_for_few_slices() {
    let duo = Duo::new(SharingMode::On, [1, 1], 1);
    let pairs: Vec<_> = (0..4).map(|_| duo.connect(0)).collect();
    assert_eq!(duo.usage(0).queue_pairs, 1);
    let [sender, receiver] = [&duo.ends[0], &duo.ends[1]];
    let (send, recv) = pairs[3];
    let (out, place) = (MemoryRange::heap(100), MemoryRange::heap(100));
    out.write(0, &[7; 100]).expect("it fits");
    let from = sender.register(send, out).expect("a region");
    let into = receiver.register(recv, place.clone()).expect("a region");
    let arrived = || {
        let mut last = [0];
        place.read(99, &mut last).expect("it fits");
        last == [7]
    };
    let mut long = Long::begin(&duo, &pairs[..3]);
    let (mut most, mut pings) = (0, 0);
    while long.receives.len() == 3 && pings < 8 {
        (0..20).for_each(|_| long.step());
        let buffer = RecvBuf { mr: into, offset: 0, len: 100, tag: 0 };
        let received = receiver.irecv(recv, &[buffer]).expect("irecv").expect("room");
        let sent = sender.isend(send, from, 0, 100, 0).expect("isend").expect("eager credit");
        let before = long.landed();
        let (began, mut is_sent) = (Instant::now(), false);
        while !long.step_until(arrived) && !long.receives.is_empty() {
            assert!(began.elapsed() < LIMIT, "a small message waits for longer than the limit");
            is_sent = is_sent || sender.test(sent, &mut [0; 8]).expect("test");
        }
        let waited_for = long.landed() - before;
        (most, pings) = (most.max(waited_for), pings + 1);
        let mut is_received = false;
        while !is_sent || !is_received {
            is_sent = is_sent || sender.test(sent, &mut [0; 8]).expect("test");
            is_received = is_received || receiver.test(received, &mut [0; 8]).expect("test");
        }
        place.write(0, &[0; 100]).expect("it fits");
    }
    println!("figure: {pings} small messages, each behind at most {most} bytes");
    assert!(pings >= 4, "the long messages were over after {pings} small ones");
    // One more slice may arrive in the poll that returns the small message.
    let bound = (u64::from(SLICES_MAX) + 1) * SLICE_MAX;
    assert!(most as u64 <= bound, "{most} bytes before a small message, {bound} allowed");
    while !long.receives.is_empty() || !long.sends.is_empty() {
        long.step();
    }
    duo.close(0, &pairs);
    assert!(duo.is_empty());
}
