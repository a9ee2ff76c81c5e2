//! The calls of libibverbs, counted: a table of functions replaces the library, whose queue pairs complete requests
//! at once. So the cost of a message in calls and allocations is a number, and each error occurs when the test
//! requests it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod choices;
mod device;
mod gpu;
mod limits;
#[path = "../common/rails.rs"]
mod rails;
mod speeds;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use device::{Counts, counts, library, library_without_iovas, refuse_next, refuse_receives, tell, with};
use rails::rail_config;
use trunkline_fabric::{
    AccessRights, Completion, CompletionKind, Fabric, LinkAddress, LinkControl, LinkError, LinkId,
    MemoryRegistrar, Op, OpSource, OpStatus, PostError, Rail, RailConfig, RegionExtent, RegionPurpose,
    RegisterError, RemoteLocation,
};
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_sys::verbs::{
    ACCESS_RELAXED_ORDERING, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, event, wc_status,
};
use trunkline_verbs::{BusOrdering, VerbsConfig, VerbsFabric, VerbsRail, VerbsUnavailable};

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: forwards to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: the caller's promise covers these arguments.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise covers these arguments.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const DEPTH: u32 = 64;

fn config() -> RailConfig {
    rail_config(DEPTH, 4)
}

fn fabric(config: VerbsConfig) -> VerbsFabric {
    VerbsFabric::with_library(Arc::new(library()), config).unwrap()
}

/// A rail with a link that is connected to itself, and memory.
struct Bench {
    rail: VerbsRail,
    link: LinkId,
    registrar: Arc<dyn MemoryRegistrar>,
    memory: MemoryRange,
    all: RegionExtent,
    to: RemoteLocation,
    // Dropped last.
    _fabric: VerbsFabric,
}

impl Bench {
    fn new(extended: bool) -> Self {
        Self::with(VerbsConfig { extended, ..VerbsConfig::default() })
    }

    fn with(config: VerbsConfig) -> Self {
        let fabric = fabric(config);
        let mut rail = fabric.open_rail(0, &self::config()).unwrap();
        let link = rail.create_link().unwrap();
        let own = rail.link_address(link).unwrap();
        rail.connect(link, own).unwrap();
        let registrar = rail.registrar();
        let memory = MemoryRange::heap(1 << 16);
        let keys = registrar.register(&memory, AccessRights::ALL, RegionPurpose::Data).unwrap();
        let all = RegionExtent { key: keys.local, offset: 0, len: 1 << 16 };
        let to = RemoteLocation { key: keys.remote, addr: keys.remote_base, purpose: RegionPurpose::Data };
        Self { rail, link, registrar, memory, all, to, _fabric: fabric }
    }

    fn part(&self, len: u64) -> RegionExtent {
        RegionExtent { len, ..self.all }
    }

    fn post(&mut self, wr_id: u64, op: Op<'_>) {
        self.rail.post(self.link, wr_id, op, true).unwrap();
    }

    /// Posts receives for immediates, numbered from 1000 on.
    fn lend(&mut self, count: u64) {
        for wr_id in 1000..1000 + count {
            let into = self.part(64);
            self.post(wr_id, Op::Recv { into });
        }
        self.rail.flush();
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut out = [Completion::BLANK; 64];
        let count = self.rail.poll(&mut out);
        out[..count].to_vec()
    }

    /// Returns the cost of a closure, in calls of the library and allocations.
    fn cost(&mut self, run: impl FnOnce(&mut Self)) -> (Counts, u64) {
        let (before, allocated) = (counts(), ALLOCATED.get());
        run(self);
        let allocated = ALLOCATED.get() - allocated;
        (counts() - before, allocated)
    }
}

/// Posts writes of all kinds, one for each kind of message part.
fn post_writes(bench: &mut Bench, count: u64) {
    for wr_id in 0..count {
        let (from, to, imm) = match wr_id % 3 {
            0 => (OpSource::Region(bench.part(4096)), bench.to, None),
            1 => (OpSource::Inline(&[7; 64]), bench.to, None),
            _ => (OpSource::Inline(&[1; 8]), bench.to, Some(wr_id as u32)),
        };
        bench.post(wr_id, Op::Write { from, to, imm });
    }
}

#[test]
fn flush_submits_requests_with_one_call() {
    for extended in [false, true] {
        let mut bench = Bench::new(extended);
        bench.lend(8);
        for _ in 0..3 {
            let (cost, allocated) = bench.cost(|bench| {
                let posted = counts().posted;
                post_writes(bench, 16);
                assert_eq!(counts().posted, posted, "no request was submitted");
                bench.rail.flush();
                bench.rail.flush();
            });
            assert_eq!(
                (cost.sends, cost.built, cost.posted),
                (u64::from(!extended), u64::from(extended), 16)
            );
            assert_eq!((cost.others(), allocated), (0, 0), "{cost:?}");
            while !bench.poll().is_empty() {}
        }
    }
}

#[test]
fn sixteen_completions_are_one_poll() {
    for extended in [false, true] {
        let mut bench = Bench::new(extended);
        bench.lend(6);
        for round in 0..20 {
            post_writes(&mut bench, 16);
            bench.rail.flush();
            let mut out = [Completion::BLANK; 64];
            let mut told = 0;
            let (cost, allocated) = bench.cost(|bench| told = bench.rail.poll(&mut out));
            // Five of them wrote with immediate, and this rail is also their target.
            assert_eq!(told, 16 + 5);
            assert_eq!((cost.polls, cost.others(), allocated), (1, 0, 0), "round {round}: {cost:?}");
            // The consumed receives are posted again, with one call and without a completion.
            assert_eq!(cost.receives, 1, "{cost:?}");
            assert!(out[..told].iter().all(|one| one.done != CompletionKind::Received));
        }
    }
}

#[test]
fn requests_with_ranges_are_listed_in_order() {
    for extended in [false, true] {
        let mut bench = Bench::new(extended);
        bench.lend(8);
        let (cost, allocated) = bench.cost(|bench| {
            post_writes(bench, 2);
            for wr_id in 2..4 {
                let body = OpSource::Region(bench.part(100));
                bench.post(wr_id, Op::Send { head: &[1; 16], body, imm: None });
            }
            bench.post(4, Op::Send { head: &[1; 16], body: OpSource::Inline(&[]), imm: None });
            bench.rail.flush();
        });
        let want = if extended { (1, 2, 5) } else { (1, 0, 5) };
        assert_eq!(((cost.sends, cost.built, cost.posted), allocated), (want, 0));
        let told = bench.poll();
        let posted: Vec<u64> =
            told.iter().filter(|one| one.done == CompletionKind::Posted).map(|one| one.wr_id).collect();
        assert_eq!(posted, [0, 1, 2, 3, 4]);
        let lens: Vec<u64> =
            told.iter().filter(|one| one.done == CompletionKind::Received).map(|one| one.len).collect();
        assert_eq!(lens, [116, 116, 16]);
    }
}

#[test]
fn refused_receives_complete_as_flushed() {
    let mut bench = Bench::new(true);
    bench.lend(3);
    post_writes(&mut bench, 3);
    // The immediate consumes one receive. The device has the other two, and refuses that one when it is posted again.
    bench.rail.flush();
    refuse_receives(0);
    let mut told = Vec::new();
    while !bench.rail.poll_link_quiet(bench.link) {
        let more = bench.poll();
        assert!(
            !more.is_empty() || bench.rail.poll_link_quiet(bench.link),
            "the link does not become quiet: {told:?}"
        );
        told.extend(more);
    }
    let received: Vec<_> = told
        .iter()
        .filter(|one| one.done == CompletionKind::Received)
        .map(|one| (one.wr_id, one.status))
        .collect();
    assert_eq!(received, [1001, 1002, 1000].map(|wr_id| (wr_id, OpStatus::Flushed)));
    assert_eq!(told.iter().filter(|one| one.done == CompletionKind::Written).count(), 1);
}

#[test]
fn receives_posted_on_a_broken_pair_are_flushed() {
    let mut bench = Bench::new(true);
    bench.lend(1);
    let failed = RemoteLocation { key: trunkline_fabric::RemoteKey(u64::MAX), ..bench.to };
    bench.post(1, Op::Write { from: OpSource::Inline(&[1]), to: failed, imm: None });
    bench.rail.flush();
    // The error was not polled yet, and this device flushes nothing that is posted from now on.
    let into = bench.part(64);
    bench.post(50, Op::Recv { into });
    bench.rail.flush();
    let (mut told, started) = (Vec::new(), std::time::Instant::now());
    while !bench.rail.poll_link_quiet(bench.link) {
        told.extend(bench.poll());
        assert!(started.elapsed().as_secs() < 5, "the link does not become quiet: {told:?}");
    }
    let ended: Vec<_> = told.iter().map(|one| (one.wr_id, one.status)).collect();
    assert_eq!(ended, [(1, OpStatus::RemoteAccess), (1000, OpStatus::Flushed), (50, OpStatus::Flushed)]);
}

#[test]
fn sends_and_their_receives_cost_one_call_each() {
    let mut bench = Bench::new(true);
    for _ in 0..10 {
        let (cost, allocated) = bench.cost(|bench| {
            for wr_id in 0..8 {
                let into = bench.part(4096);
                bench.post(100 + wr_id, Op::Recv { into });
                let body = OpSource::Region(bench.part(100));
                bench.post(wr_id, Op::Send { head: &[1; 16], body, imm: None });
            }
            bench.rail.flush();
        });
        assert_eq!((cost.sends, cost.receives, cost.others(), allocated), (1, 1, 0, 0), "{cost:?}");
        let told = bench.poll();
        assert_eq!(
            told.iter().filter(|one| one.done == CompletionKind::Received && one.len == 116).count(),
            8
        );
        assert_eq!(told.len(), 16);
    }
}

#[test]
fn full_stage_is_submitted_before_polling() {
    let mut bench = Bench::new(false);
    bench.lend(21);
    let (cost, _) = bench.cost(|bench| post_writes(bench, 64));
    assert_eq!(cost.posted, 0);
    assert_eq!(bench.rail.post_credits(bench.link), 0);
    let op = Op::Write { from: OpSource::Inline(&[1]), to: bench.to, imm: None };
    assert_eq!(bench.rail.post(bench.link, 1, op, true), Err(PostError::Busy));
    assert_eq!(bench.rail.unsent_ops(bench.link), 64);
    let mut told = 0;
    while told < 64 + 21 {
        told += bench.poll().len();
    }
    assert_eq!((bench.rail.post_credits(bench.link), bench.rail.unsent_ops(bench.link)), (64, 0));
}

#[test]
fn refused_requests_complete_with_the_error() {
    for extended in [false, true] {
        let mut bench = Bench::new(extended);
        bench.lend(2);
        post_writes(&mut bench, 6);
        // The fourth is refused; where work is built in place, the whole list is.
        refuse_next(3);
        let told = bench.poll();
        let ended: Vec<(u64, OpStatus)> = told
            .iter()
            .filter(|one| one.done == CompletionKind::Posted)
            .map(|one| (one.wr_id, one.status))
            .collect();
        let refused = OpStatus::Other((1 << 16) + 12);
        let first = if extended { 0 } else { 3 };
        let want: Vec<(u64, OpStatus)> = (0..6)
            .map(|wr_id| match wr_id {
                _ if wr_id < first => (wr_id, OpStatus::Ok),
                _ if wr_id == first => (wr_id, refused),
                _ => (wr_id, OpStatus::Flushed),
            })
            .collect();
        assert_eq!(ended, want);
        assert_eq!(bench.rail.post(bench.link, 9, Op::Nop, true), Err(PostError::Refused(OpStatus::Flushed)));
        while !bench.poll().is_empty() {}
        assert!(bench.rail.poll_link_quiet(bench.link));
    }
}

#[test]
fn an_error_ends_the_link() {
    let mut bench = Bench::new(true);
    let into = bench.part(64);
    bench.post(50, Op::Recv { into });
    bench.rail.flush();
    let failed = RemoteLocation { key: trunkline_fabric::RemoteKey(u64::MAX), ..bench.to };
    bench.post(1, Op::Write { from: OpSource::Inline(&[1]), to: failed, imm: None });
    let mut told = Vec::new();
    while !bench.rail.poll_link_quiet(bench.link) {
        let more = bench.poll();
        assert!(
            !more.is_empty() || bench.rail.poll_link_quiet(bench.link),
            "the link does not become quiet: {told:?}"
        );
        told.extend(more);
    }
    let mut ended: Vec<_> = told.iter().map(|one| (one.wr_id, one.status)).collect();
    ended.sort_unstable_by_key(|one| one.0);
    assert_eq!(ended, [(1, OpStatus::RemoteAccess), (50, OpStatus::Flushed)]);
}

#[test]
fn unsignalled_work_ends_with_its_link() {
    for by_itself in [false, true] {
        let mut bench = Bench::new(true);
        for wr_id in 0..3 {
            let op = Op::Write { from: OpSource::Inline(&[1]), to: bench.to, imm: None };
            bench.rail.post(bench.link, wr_id, op, false).unwrap();
        }
        bench.rail.flush();
        assert_eq!(bench.poll(), []);
        if by_itself {
            with(|device| device.next_status = wc_status::RETRY_EXC_ERR);
            bench.post(3, Op::Nop);
        } else {
            bench.rail.fail_link(bench.link);
        }
        let (mut told, started) = (Vec::new(), std::time::Instant::now());
        while !bench.rail.poll_link_quiet(bench.link) {
            told.extend(bench.poll());
            assert!(started.elapsed().as_secs() < 5, "the link does not become quiet: {told:?}");
        }
        let want: &[_] = if by_itself { &[(3, OpStatus::PeerDead)] } else { &[] };
        assert_eq!(told.iter().map(|one| (one.wr_id, one.status)).collect::<Vec<_>>(), want);
    }
}

#[test]
fn events_end_the_link_they_are_about() {
    let mut bench = Bench::new(true);
    let other = bench.rail.create_link().unwrap();
    assert!(bench.rail.check_link(bench.link).is_ok());
    tell(event::QP_ACCESS_ERR, with(|device| device.pairs[0]));
    let error = bench.rail.check_link(bench.link).unwrap_err();
    assert!(
        matches!(error, LinkError::Unreachable(why) if why.contains("memory without the right")),
        "{error}"
    );
    assert!(bench.rail.check_link(other).is_ok(), "the event concerns another link");
    assert_eq!(bench.rail.post(bench.link, 9, Op::Nop, true), Err(PostError::Refused(OpStatus::Flushed)));
    tell(event::DEVICE_FATAL, 0);
    let error = bench.rail.check_link(other).unwrap_err();
    assert!(matches!(error, LinkError::Unreachable("the device is lost")), "{error}");
    assert_eq!(with(|device| device.events_owed), 0, "each event was acknowledged");
}

#[test]
fn a_port_that_stays_down_ends_its_links() {
    let mut bench = Bench::new(true);
    tell(event::PORT_ERR, 1);
    assert!(bench.rail.check_link(bench.link).is_ok(), "the port may recover");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(matches!(bench.rail.check_link(bench.link), Err(LinkError::Unreachable("the port is down"))));
    tell(event::PORT_ACTIVE, 1);
    assert!(bench.rail.check_link(bench.link).is_ok());
}

#[test]
fn disabled_events_are_not_polled() {
    let fabric = fabric(VerbsConfig { async_events: false, ..VerbsConfig::default() });
    let mut rail = fabric.open_rail(0, &config()).unwrap();
    let link = rail.create_link().unwrap();
    tell(event::DEVICE_FATAL, 0);
    assert!(rail.check_link(link).is_ok());
    with(|device| device.events.clear());
}

#[test]
fn page_aligned_memory_has_base_address_0() {
    let bench = Bench::new(true);
    let begins = |registrar: &Arc<dyn MemoryRegistrar>, memory: &MemoryRange| {
        let keys = registrar.register(memory, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
        registrar.deregister(keys.local).unwrap();
        (with(|device| device.last_iova), keys.remote_base)
    };
    // Of the same size as the sink of a queue pair that a device posts to.
    assert_eq!(begins(&bench.registrar, &MemoryRange::heap(8)), (Some(0), 0));
    // SAFETY: bytes of the bench's memory, which is dropped later.
    let part = unsafe { MemoryRange::from_raw(bench.memory.addr() + 4096 + 200, 100, MemoryKind::Host) };
    assert_eq!(begins(&bench.registrar, &part), (Some(200), 200));
    let regions = with(|device| device.regions);
    for code in [libc::EINVAL, libc::EOPNOTSUPP] {
        with(|device| device.refuses_regions = code);
        let refused =
            bench.registrar.register(&MemoryRange::heap(8), AccessRights::ALL, RegionPurpose::Bounce);
        let Err(RegisterError::System { source, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(source.raw_os_error(), Some(code));
        assert_eq!(with(|device| device.regions), regions, "no region is left");
    }
    with(|device| device.refuses_regions = 0);
    // A library without chosen addresses: peers get the virtual addresses, which work.
    let old = VerbsFabric::with_library(Arc::new(library_without_iovas()), VerbsConfig::default()).unwrap();
    let registrar = old.open_rail(0, &config()).unwrap().registrar();
    assert_eq!(begins(&registrar, &bench.memory), (None, bench.memory.addr() as u64));
}

#[test]
fn only_data_is_relaxed() {
    let bench = Bench::new(true);
    let registered = |access, purpose| {
        let keys = bench.registrar.register(&bench.memory, access, purpose).unwrap();
        bench.registrar.deregister(keys.local).unwrap();
        with(|device| device.last_access)
    };
    let relaxed = ACCESS_RELAXED_ORDERING;
    assert_eq!(registered(AccessRights::WRITE, RegionPurpose::Bounce) & relaxed, 0, "a mailbox");
    assert_eq!(registered(AccessRights::WRITE, RegionPurpose::Data) & relaxed, relaxed);
    let remote = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;
    assert_eq!(registered(AccessRights::LOCAL, RegionPurpose::Bounce) & remote, 0);
    assert_eq!(
        registered(AccessRights::READ_WRITE, RegionPurpose::Bounce) & remote,
        remote & !ACCESS_REMOTE_ATOMIC
    );
    let fabric = fabric(VerbsConfig { ordering: BusOrdering::Strict, ..VerbsConfig::default() });
    let registrar = fabric.open_rail(0, &config()).unwrap().registrar();
    registrar.register(&bench.memory, AccessRights::WRITE, RegionPurpose::Data).unwrap();
    assert_eq!(with(|device| device.last_access) & relaxed, 0, "not wanted");
}

#[test]
fn unusable_ports_report_the_reason() {
    let missing = |config: VerbsConfig| {
        let error = VerbsFabric::with_library(Arc::new(library()), config).err().unwrap();
        assert!(matches!(error, VerbsUnavailable::Ports(_)), "{error}");
        error.to_string()
    };
    let usual = VerbsConfig::default();
    let none = VerbsConfig { hca: trunkline_verbs::HcaFilter::parse("^stub").unwrap(), ..usual.clone() };
    assert!(missing(none).contains("stub0 is not selected"));
    let far = VerbsConfig { gid_index: Some(77), ..usual.clone() };
    assert!(missing(far).contains("no address with index 77"));
    let far = VerbsConfig { pkey_index: 9, ..usual };
    assert!(missing(far).contains("no partition key with index 9"));
}

#[test]
fn refused_transitions_name_the_attribute() {
    let fabric = fabric(VerbsConfig { service_level: Some(9), ..VerbsConfig::default() });
    let mut rail = fabric.open_rail(0, &config()).unwrap();
    let link = rail.create_link().unwrap();
    let own = rail.link_address(link).unwrap();
    with(|device| device.refuses_rungs = true);
    let error = rail.connect(link, LinkAddress { ..own }).unwrap_err();
    with(|device| device.refuses_rungs = false);
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("INIT to RTR") && why.contains("ah_attr.sl is 9, at most 7"), "{why}");
}

#[test]
fn a_lost_peer_is_dead() {
    let mut bench = Bench::new(true);
    with(|device| device.next_status = wc_status::RETRY_EXC_ERR);
    bench.post(3, Op::Write { from: OpSource::Inline(&[1]), to: bench.to, imm: None });
    let told = bench.poll();
    assert_eq!(told.first().map(|one| (one.wr_id, one.status)), Some((3, OpStatus::PeerDead)));
}

#[test]
fn completions_of_destroyed_links_are_dropped() {
    let mut bench = Bench::new(true);
    bench.lend(2);
    post_writes(&mut bench, 6);
    bench.rail.flush();
    let next = {
        bench.rail.destroy_link(bench.link);
        bench.rail.create_link().unwrap()
    };
    assert_eq!(next, bench.link, "the same number");
    let own = bench.rail.link_address(next).unwrap();
    bench.rail.connect(next, own).unwrap();
    assert_eq!(bench.poll(), []);
    bench.post(77, Op::Nop);
    assert_eq!(bench.poll().iter().map(|one| one.wr_id).collect::<Vec<_>>(), [77]);
}

#[test]
fn flush_is_a_loopback_read() {
    let mut bench = Bench::new(true);
    let posted = counts().posted;
    bench.post(1, Op::Flush);
    assert_eq!(bench.poll().first().map(|one| (one.wr_id, one.status)), Some((1, OpStatus::Ok)));
    assert_eq!(counts().posted, posted + 1);
    // A flush needs no peer, so it works after the link has failed.
    bench.rail.fail_link(bench.link);
    bench.post(2, Op::Flush);
    let told: Vec<_> = bench.poll().iter().map(|one| (one.wr_id, one.status)).collect();
    assert_eq!(told, [(2, OpStatus::Ok)]);
    for wr_id in 0..u64::from(DEPTH) {
        bench.post(wr_id, Op::Flush);
    }
    assert_eq!(bench.rail.post(bench.link, 99, Op::Flush, true), Err(PostError::Busy));
}

#[test]
fn all_library_objects_are_released() {
    let mut bench = Bench::new(true);
    bench.post(1, Op::Flush);
    for _ in 0..10 {
        let link = bench.rail.create_link().unwrap();
        bench.rail.destroy_link(link);
    }
    drop(bench);
    let left =
        with(|device| (device.pairs.len(), device.queues, device.regions, device.domains, device.contexts));
    assert_eq!(left, (0, 0, 0, 0, 0));
}
