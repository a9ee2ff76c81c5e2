//! After warm-up a message allocates nothing. The engine runs as a library here, because a counting allocator does not
//! count inside a plugin that was opened at run time. Both ends are one process and one thread, over shared memory and
//! TCP.
//!
//! A single test, so that no other test allocates meanwhile. System calls are counted by `cargo xtask budget`.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue must stop")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trunkline_engine::host::UnixHost;
use trunkline_engine::{CommId, CommNics, Engine, EngineParams, MrId, RecvBuf, RequestId, SharingParams};
use trunkline_fabric::trace::{EventRecorder, TracedFabric};
use trunkline_fabric::{Fabric as _, Host as _};
use trunkline_mem::MemoryRange;
use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::ipc::exporter::{
    DriverAllocation, DriverAllocationId, ExportAmount, ExportRequest, ExporterConfig, MemoryExporter,
    ShareDecision,
};
use trunkline_proto::ipc::importer::{MappingKind, MappingPlace, MemoryImporter, ResolveOutcome};
use trunkline_proto::pool::config::SharingMode;
use trunkline_proto::wire::ipc::{CopyOutcome, ExportAnnouncement, ExportHandle, ExportReference};
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, WireMode};

/// The system's allocator, with a counter.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: passes every call to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(at, layout) }
    }
}

type Running = Engine<TracedFabric<SoftFabric>, UnixHost>;

/// A connection, and memory of either end.
struct Pair {
    send: CommId,
    recv: CommId,
    from: MrId,
    into: MrId,
    into_memory: MemoryRange,
}

/// Most connections of an engine here.
const PAIRS: usize = 4;

/// The connections of one engine to itself.
struct Ends {
    engine: Running,
    recorder: Option<Arc<EventRecorder>>,
    pairs: Vec<Pair>,
    bytes: u64,
}

impl Pair {
    fn connect(engine: &Running, nics: CommNics, bytes: u64) -> Self {
        let (listen, mut handle) = engine.listen(nics).unwrap();
        let (mut send, mut recv) = (None, None);
        let deadline = Instant::now() + Duration::from_secs(20);
        while send.is_none() || recv.is_none() {
            assert!(Instant::now() < deadline, "never connected");
            send = send.or_else(|| engine.connect(nics, &mut handle).unwrap());
            recv = recv.or_else(|| engine.accept(listen).unwrap());
        }
        engine.close_listen(listen).unwrap();
        let (send, recv) = (send.unwrap(), recv.unwrap());
        let (out, into_memory) = (MemoryRange::heap(bytes as usize), MemoryRange::heap(bytes as usize));
        out.write(0, &vec![0x5a; bytes as usize]).unwrap();
        let from = engine.register(send, out).unwrap();
        let into = engine.register(recv, into_memory.clone()).unwrap();
        Self { send, recv, from, into, into_memory }
    }
}

impl Ends {
    fn new(bytes: u64, eager_max: u32, copy: CopyMode) -> Self {
        Self::with(bytes, copy, EngineParams { eager_max, idle_polls: u32::MAX, ..EngineParams::default() })
    }

    fn with(bytes: u64, copy: CopyMode, params: EngineParams) -> Self {
        Self::over(&[0], WireMode::Shm, bytes, copy, params)
    }

    /// Connects over these rails; all of them are ready to carry.
    fn over(rails: &[usize], wire: WireMode, bytes: u64, copy: CopyMode, params: EngineParams) -> Self {
        let addresses = vec![Ipv4Addr::LOCALHOST.into()];
        let config = SoftConfig { wire, copy, nics: rails.len(), addresses, ..SoftConfig::default() };
        let nics = CommNics::new(rails).unwrap();
        let recorder = params.trace.as_ref().map(|_| {
            let clock = UnixHost::new(|_, _| {});
            let events = params.trace_events as usize;
            Arc::new(EventRecorder::try_new(events, move || clock.now()).unwrap())
        });
        let shares = params.sharing.sharing == SharingMode::On;
        let fabric = TracedFabric::new(SoftFabric::new(config).unwrap(), recorder.clone());
        let engine = Engine::new(fabric, UnixHost::new(|_, _| {}), params).unwrap();
        let count = if shares { PAIRS } else { 1 };
        let pairs = (0..count).map(|_| Pair::connect(&engine, nics, bytes)).collect();
        let ends = Self { engine, recorder, pairs, bytes };
        let deadline = Instant::now() + Duration::from_secs(20);
        let comms = || ends.pairs.iter().flat_map(|pair| [pair.send, pair.recv]);
        assert!(comms().all(|comm| ends.engine.carrying_links(comm).unwrap().len() == rails.len()));
        while comms().any(|comm| ends.engine.carrying_links(comm).unwrap().contains(&false)) {
            assert!(Instant::now() < deadline, "not all links carry");
            ends.message(false);
        }
        ends
    }

    /// Sends one message over each connection, all at the same time; either the sends or the receives are started first.
    fn message(&self, send_first: bool) {
        let (mut sending, mut receiving) = ([None; PAIRS], [None; PAIRS]);
        let isend = |pair: &Pair| self.engine.isend(pair.send, pair.from, 0, self.bytes, 7).unwrap();
        let send_all = |sending: &mut [Option<RequestId>; PAIRS]| {
            for (sending, pair) in sending.iter_mut().zip(&self.pairs) {
                while sending.is_none() {
                    *sending = isend(pair);
                }
            }
        };
        if send_first {
            send_all(&mut sending);
        }
        for (receiving, pair) in receiving.iter_mut().zip(&self.pairs) {
            while receiving.is_none() {
                let buffer = RecvBuf { mr: pair.into, offset: 0, len: self.bytes, tag: 7 };
                *receiving = self.engine.irecv(pair.recv, &[buffer]).unwrap();
            }
        }
        send_all(&mut sending);
        let mut sizes = [0; 8];
        while sending.iter().chain(&receiving).any(Option::is_some) {
            for sending in &mut sending {
                *sending = sending.filter(|&request| !self.engine.test(request, &mut sizes).unwrap());
            }
            for receiving in &mut receiving {
                if let Some(request) = *receiving
                    && self.engine.test(request, &mut sizes).unwrap()
                {
                    assert_eq!(sizes[0], self.bytes);
                    *receiving = None;
                }
            }
        }
    }

    /// Returns the allocations of `messages` messages after warm-up.
    fn allocations(&self, messages: u32, send_first: bool, besides: impl Fn()) -> u64 {
        (0..500).for_each(|_| self.message(send_first));
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..messages {
            self.message(send_first);
            besides();
        }
        let found = ALLOCATIONS.load(Ordering::Relaxed) - before;
        for pair in &self.pairs {
            let mut last = [0];
            pair.into_memory.read(self.bytes - 1, &mut last).unwrap();
            assert_eq!(last, [0x5a]);
        }
        found
    }
}

/// Whether messages over several rails stop allocating. The share of each rail and its copy method are learned
/// continuously, and a queue that becomes fuller than before doubles, so that this ends.
fn settles(ends: &Ends, send_first: bool) -> bool {
    let mut quiet = 0;
    (0..40).any(|_| {
        let found = ends.allocations(1000, send_first, || {});
        quiet = if found == 0 { quiet + 1 } else { 0 };
        quiet == 3
    })
}

/// Four connections on one group per direction, each with an outstanding message.
fn shared_messages_allocate_nothing() {
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    let params =
        |eager_max| EngineParams { eager_max, sharing, idle_polls: u32::MAX, ..EngineParams::default() };
    for wire in [WireMode::Shm, WireMode::Tcp] {
        for (bytes, eager_max) in [(8, 4096), (8, 0), (65_536, 4096)] {
            let ends = Ends::over(&[0], wire, bytes, CopyMode::Auto, params(eager_max));
            assert_eq!(
                ends.engine.fabric().nic_usage(0).queue_pairs,
                2,
                "all ride on one, whose ends are here"
            );
            let found = ends.allocations(2000, bytes < u64::from(eager_max), || {});
            assert_eq!(found, 0, "{bytes} B on shared queue pairs, {wire:?}");
        }
    }
}

/// The first connection completes the requests of all others, which still maintain their links.
fn shared_messages_over_two_rails_allocate_nothing() {
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    let params = EngineParams { eager_max: 0, sharing, idle_polls: u32::MAX, ..EngineParams::default() };
    let spread = Ends::over(&[0, 1], WireMode::Shm, 8, CopyMode::Auto, params);
    assert!(settles(&spread, false), "on shared queue pairs over two rails");
}

/// Messages in exported and mapped buffers: at both ends, from the request to the end.
fn hits_on_shared_memory_allocate_nothing() {
    let now = trunkline_proto::time::Instant(1);
    let budget = ExportAmount { entries: 64, bytes: 64 << 20 };
    let mut exporter = MemoryExporter::new(ExporterConfig {
        budget,
        passing: 4,
        idle: Some(ExporterConfig::IDLE),
        weightless: false,
    });
    let mut importer = MemoryImporter::new();
    let (peer, source) = (exporter.add_peer().unwrap(), importer.add_source().unwrap());
    let place = MappingPlace { device: 0, way: MappingKind::Device };
    let mut message = |number: u64| {
        let span = ByteSpan::new(0x10_0000 * (number % 64 + 1), 0x10_0000).unwrap();
        let memory = DriverAllocation { span, id: DriverAllocationId(number % 64), device: 0 };
        let ask = ExportRequest { peer, part: span, memory, passing: false };
        let shared = match exporter.share_memory(&ask, now).unwrap() {
            ShareDecision::Export(export) => exporter.on_exported(export, now).unwrap(),
            shared => shared,
        };
        let ShareDecision::Sent(sent) = shared else { unreachable!("{shared:?}") };
        if sent.announce {
            let (name, handle) = (sent.reference.name, ExportHandle::new(0, &[]).unwrap());
            let announce = ExportAnnouncement { name, span, device: 0, descriptor: false, handle };
            importer.on_announce(source, &announce).unwrap();
        }
        let reference = ExportReference::from_bytes(&sent.reference.to_bytes()).unwrap();
        let used = importer.pin_reference(source, &reference).unwrap();
        if let ResolveOutcome::Map(mapping) = importer.resolve_address(&used, place).unwrap() {
            importer.on_mapped(mapping, span.start()).unwrap();
        }
        assert_eq!(importer.resolve_address(&used, place), Ok(ResolveOutcome::At(span.start())));
        importer.release_pin(used);
        exporter.finish_message(sent.pin, CopyOutcome::Copied, now);
        assert!(exporter.poll(now).is_none() && importer.poll().is_none());
    };
    (0..128).for_each(&mut message);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..10_000).for_each(&mut message);
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "hits on shared memory");
}

/// Messages inside the node, in memory that the peer maps and in memory that only system calls access: copied by the
/// receiver, or by the learned method.
fn messages_inside_a_node_allocate_nothing() {
    use trunkline_mem::ipc::{MemfdDevice, PrivateMemory};
    use trunkline_node::ipc::MessageBuffer;
    use trunkline_proto::tagged::{CopyMethod, MethodChoice};
    use trunkline_proto::time::Duration;
    let device = MemfdDevice::create(0, 64 << 20).unwrap();
    let join = || MemfdDevice::join(0, &device.descriptor().unwrap()).unwrap();
    let of_device =
        |memory: &MemfdDevice, bytes| MessageBuffer::from_own(memory.alloc(bytes).unwrap(), bytes as u64);
    let (still, goes_on) = (Duration(0), Duration::from_micros(1));
    exchanges_allocate_nothing([join(), join()], of_device, MethodChoice::Fixed(CopyMethod::Pull), still);
    exchanges_allocate_nothing([join(), join()], of_device, MethodChoice::Learned, goes_on);
    let private = || PrivateMemory::new().unwrap();
    let of_private = |_: &PrivateMemory, bytes| MessageBuffer::from(MemoryRange::heap(bytes));
    exchanges_allocate_nothing([private(), private()], of_private, MethodChoice::Learned, goes_on);
}

/// One-sided calls of a front end to its own process over the fabric: inline, through the stage, with a signal, and atomics.
fn one_sided_calls_allocate_nothing() {
    use trunkline_engine::rma::{HeapAddress, HeapRange};
    use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
    use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
    use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};
    use trunkline_runtime::{
        CopyFrom, CopyInto, FrontEnd, FrontEndKind, HardwareFabric, NicChoice, OneSided, ProcessSettings,
        StageLayout,
    };
    for fabric in ["soft:shm", "soft:tcp"] {
        let lookup = |name: &str| (name == "TRUNKLINE_FABRIC").then(|| fabric.into());
        let settings = ProcessSettings::from_lookup(FrontEndKind::Rust, lookup).unwrap();
        let addresses = trunkline_runtime::host_addresses(&settings).unwrap();
        let params = settings.params;
        let reach = trunkline_runtime::control_reach(&params, &addresses);
        let host = UnixHost::with_reach(reach, |_, _| {});
        let front_end = FrontEnd { name: "a test", gpu_notes: Vec::new() };
        let nics = NicChoice::Named(CommNics::from(0));
        let (network, _carrier) =
            OneSided::new(params, HardwareFabric::None, nics, host, addresses, &front_end).unwrap();
        network.set_members(0, &[network.process_card()]).unwrap();
        let heap = network.add_heap(MemoryRange::heap(1 << 20)).unwrap();
        let memory = MemoryRange::heap(64 << 10);
        let range = HeapRange { heap: network.add_heap(memory.clone()).unwrap(), offset: 0, len: 64 << 10 };
        let layout = StageLayout { memory, range, put_piece: 16 << 10, get_piece: 32 << 10 };
        let context = network.create_context(layout).unwrap();
        let calls = network.calls_on(&context, &());
        let at = HeapAddress { member: 0, heap, offset: 0 };
        let word = SymmetricWord::new(heap, 1 << 19, WordWidth::Eight).unwrap();
        let add = TypedAtomic::new(AtomicType::U64, AtomicAction::Add(1), true).unwrap();
        let signal = SignalUpdate::new(UpdateOp::Add, word, 1).unwrap();
        let mut long = vec![3; 100_000];
        let mut all_calls = || {
            calls.put_copied(at, CopyFrom::Slice(&long[..8])).unwrap();
            calls.put_copied(at, CopyFrom::Slice(&long)).unwrap();
            calls.put_signal_copied(at, CopyFrom::Slice(&long[..3000]), signal).unwrap();
            calls.quiet().unwrap();
            calls.get_copied(at, CopyInto::Slice(&mut long)).unwrap();
            calls.fetch_atomic(0, word, add).unwrap();
        };
        (0..200).for_each(|_| all_calls());
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..1000).for_each(|_| all_calls());
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "one-sided calls over {fabric}");
    }
}

/// Two endpoints of this process, whose clock advances by `tick` with each call.
fn exchanges_allocate_nothing<M: trunkline_mem::ipc::IpcMemory>(
    memories: [M; 2],
    alloc: impl Fn(&M, usize) -> trunkline_node::ipc::MessageBuffer,
    copy: trunkline_proto::tagged::MethodChoice,
    tick: trunkline_proto::time::Duration,
) {
    use trunkline_fabric::{OobListener as _, OobTransport as _};
    use trunkline_node::ipc::{MessageBuffer, NodeConfig};
    use trunkline_node::tagged::{TaggedConfig, TaggedEndpoint, TaggedEvent, TaggedSendStart};
    use trunkline_proto::tagged::MethodChoice;
    use trunkline_proto::time::{Duration, Instant};
    use trunkline_proto::wire::tagged::InboxSizes;
    let host = UnixHost::new(|_, _| {});
    let mut listener = host.oob().listen().unwrap();
    let mut now = Instant(0);
    let mut number = 0;
    let mut ends = memories.map(|memory| {
        number += 1;
        let sharing = NodeConfig::new([number; 16], ExportAmount { entries: 16, bytes: 1 << 40 });
        let inbox = InboxSizes::new(1024, 512, 1 << 18).unwrap();
        TaggedEndpoint::new(memory, TaggedConfig { sharing, inbox, copy }, now)
    });
    let connected = ends[1].join_peer(host.oob().connect(&listener.listen_address()).unwrap()).unwrap();
    let accepted = ends[0].join_peer(listener.accept().unwrap().unwrap()).unwrap();
    let mut met = 0;
    while met < 2 {
        now = now + Duration::from_micros(100);
        for end in &mut ends {
            end.progress(now);
            met += u32::from(matches!(end.next_event(), Some(TaggedEvent::Met { .. })));
        }
    }
    for (bytes, own, early) in [
        (8, false, false),
        (8, true, true),
        (4096, false, true),
        (65_536, false, true),
        (65_536, true, false),
    ] {
        let buffers = [0, 1].map(|at: usize| match own {
            true => alloc(ends[at].node().memory(), bytes),
            false => MessageBuffer::from(MemoryRange::heap(bytes)),
        });
        let mut message = || {
            let post = |ends: &mut [TaggedEndpoint<_, _>; 2]| {
                ends[1].receive(Some(connected), 1, u64::MAX, buffers[1].clone()).unwrap()
            };
            let posted = (!early).then(|| post(&mut ends));
            ends[0].set_time(now);
            let sent = ends[0].send(accepted, 1, &buffers[0]).unwrap();
            if early {
                while ends[1].probe(None, 1, u64::MAX).is_none() {}
            }
            let received = posted.unwrap_or_else(|| post(&mut ends));
            while ends[1].test(received).is_none_or(|end| end.is_err()) {
                // With a tick of zero, the streams are never read; that is rare, and allocates for received messages.
                now = now + tick;
                ends.iter_mut().for_each(|end| _ = end.progress(now));
            }
            if let TaggedSendStart::Request(request) = sent {
                while ends[0].test(request).is_none() {
                    now = now + tick;
                    ends.iter_mut().for_each(|end| _ = end.progress(now));
                }
            }
        };
        (0..2000).for_each(|_| message());
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..2000).for_each(|_| message());
        let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(allocated, 0, "{bytes} B inside a node, own memory: {own}, early: {early}, {copy:?}");
    }
    let looked = ends[0].counts().by_sender > 0;
    assert_eq!(
        looked,
        copy == MethodChoice::Learned,
        "a copy method was not measured: {:?}",
        ends[0].counts()
    );
}

/// Two endpoints of this process, each with a page that shows its shared buffers. Both pages are written with each
/// message, and the pages show buffers that the peer has mapped. The receiver copies, or both alternate: the learned
/// method is one of these.
fn messages_beside_a_status_page_allocate_nothing(method: trunkline_proto::tagged::CopyMethod) {
    use trunkline_fabric::{OobListener as _, OobTransport as _};
    use trunkline_mem::ipc::MemfdDevice;
    use trunkline_mem::{PageView, PublishedPage};
    use trunkline_node::ipc::{MessageBuffer, NodeConfig};
    use trunkline_node::tagged::{TaggedConfig, TaggedEndpoint, TaggedEvent, TaggedSendStart};
    use trunkline_node::{NodePage, read_node};
    use trunkline_proto::id::ProcessId;
    use trunkline_proto::tagged::MethodChoice;
    use trunkline_proto::time::{Duration, Instant};
    use trunkline_proto::wire::status::node::{BYTES, PageOwner};
    use trunkline_proto::wire::tagged::InboxSizes;
    // A page is written every tenth of a second.
    const APART: Duration = Duration::from_millis(101);
    let (host, device) = (UnixHost::new(|_, _| {}), MemfdDevice::create(0, 64 << 20).unwrap());
    let mut listener = host.oob().listen().unwrap();
    let mut now = Instant(0);
    let mut ends = [1, 2].map(|number| {
        let sharing = NodeConfig::new([number; 16], ExportAmount { entries: 16, bytes: 1 << 40 });
        let inbox = InboxSizes::new(1024, 512, 1 << 18).unwrap();
        let memory = MemfdDevice::join(0, &device.descriptor().unwrap()).unwrap();
        TaggedEndpoint::new(memory, TaggedConfig { sharing, inbox, copy: MethodChoice::Fixed(method) }, now)
    });
    let mut views =
        ["trunkline.steady.1", "trunkline.steady.2"].into_iter().zip(&mut ends).map(|(name, end)| {
            let page = Arc::new(PublishedPage::create_page(name, BYTES).unwrap());
            let owner = PageOwner { process: ProcessId([1; 16]), pid: 7, rank: None, made_unix: 1, made: 2 };
            end.publish_page(NodePage::new(&page, &owner).unwrap());
            let links = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
            let wanted = PathBuf::from(format!("/memfd:{name} (deleted)"));
            let mut named = links.filter(|link| std::fs::read_link(link).is_ok_and(|name| name == wanted));
            PageView::open(&std::fs::File::open(named.next().unwrap()).unwrap()).unwrap()
        });
    let views = [views.next().unwrap(), views.next().unwrap()];
    let connected = ends[1].join_peer(host.oob().connect(&listener.listen_address()).unwrap()).unwrap();
    let accepted = ends[0].join_peer(listener.accept().unwrap().unwrap()).unwrap();
    let mut met = 0;
    while met < 2 {
        now = now + Duration::from_micros(100);
        for end in &mut ends {
            end.progress(now);
            met += u32::from(matches!(end.next_event(), Some(TaggedEvent::Met { .. })));
        }
    }
    for (end, peer) in ends.iter_mut().zip([accepted, connected]) {
        end.label_peer(peer, 3, 4711);
    }
    let buffers: Vec<[MessageBuffer; 2]> = [8, 65_536, 65_536]
        .into_iter()
        .map(|bytes| {
            [0, 1].map(|at: usize| {
                MessageBuffer::from_own(ends[at].node().memory().alloc(bytes).unwrap(), bytes as u64)
            })
        })
        .collect();
    let mut message = || {
        for [from, into] in &buffers {
            now = now + APART;
            let received = ends[1].receive(Some(connected), 1, u64::MAX, into.clone()).unwrap();
            let sent = ends[0].send(accepted, 1, from).unwrap();
            while ends[1].test(received).is_none_or(|end| end.is_err()) {
                ends.iter_mut().for_each(|end| _ = end.progress(now));
            }
            if let TaggedSendStart::Request(request) = sent {
                while ends[0].test(request).is_none() {
                    ends.iter_mut().for_each(|end| _ = end.progress(now));
                }
            }
            // Enough calls for each to run its rare checks, that of its streams included, on which nothing arrives.
            for _ in 0..16 {
                ends.iter_mut().for_each(|end| _ = end.progress(now));
            }
        }
        now
    };
    (0..1000).for_each(|_| _ = message());
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..1000 {
        let now = message();
        // Read in place, without a copy of the whole page: the time at which it was written.
        let mut written = [0];
        for view in &views {
            view.read(trunkline_proto::wire::status::node::CHANGING * 8, &mut written).unwrap();
            assert_eq!(written, [now.0], "a page is written with each message");
        }
    }
    let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(allocated, 0, "messages with a page being written, {method:?}");
    let shown = read_node(&views[0]).unwrap();
    assert_eq!((shown.exports.len(), shown.neighbours.len(), shown.neighbours[0].pid), (2, 1, 4711));
    // Buffers that this process copied itself were announced, too.
    assert!(shown.exports.iter().all(|export| export.holders == 1), "{:?}", shown.exports);
}

#[test]
fn messages_allocate_nothing_after_warm_up() {
    let eager = Ends::new(8, 4096, CopyMode::Auto);
    // First check that the counter detects a planted allocation: the same messages with one box each.
    let planted = eager.allocations(1000, true, || drop(std::hint::black_box(Box::new(1_u64))));
    assert_eq!(planted, 1000, "a planted allocation a message");
    assert_eq!(eager.allocations(10_000, true, || {}), 0, "8 B, eager");
    let direct = Ends::new(8, 0, CopyMode::Auto);
    assert_eq!(direct.allocations(10_000, false, || {}), 0, "8 B, direct");
    for copy in [CopyMode::Staging, CopyMode::Pull, CopyMode::Share, CopyMode::Auto] {
        let large = Ends::new(65_536, 4096, copy);
        assert_eq!(large.allocations(1000, false, || {}), 0, "64 KiB, {copy:?}");
    }
    for wire in [WireMode::Shm, WireMode::Tcp] {
        for (bytes, eager_max, rails) in [(8, 4096, 2), (8, 0, 4), (1 << 20, 0, 2), (1 << 20, 0, 4)] {
            let params = EngineParams { eager_max, idle_polls: u32::MAX, ..EngineParams::default() };
            let rails = &[0, 1, 2, 3][..rails];
            let spread = Ends::over(rails, wire, bytes, CopyMode::Auto, params);
            assert!(settles(&spread, eager_max > 0), "{bytes} B over {} rails, {wire:?}", rails.len());
        }
    }
    one_sided_calls_allocate_nothing();
    hits_on_shared_memory_allocate_nothing();
    messages_inside_a_node_allocate_nothing();
    for method in [trunkline_proto::tagged::CopyMethod::Pull, trunkline_proto::tagged::CopyMethod::Turns] {
        messages_beside_a_status_page_allocate_nothing(method);
    }
    shared_messages_allocate_nothing();
    shared_messages_over_two_rails_allocate_nothing();
    // With a trace: with space for every event, and with a buffer that becomes full.
    for trace_events in [1 << 20, 1000] {
        let (trace, idle_polls) = (Some(PathBuf::from("unused")), u32::MAX);
        let recorded = Ends::with(
            8,
            CopyMode::Auto,
            EngineParams { trace, trace_events, idle_polls, ..EngineParams::default() },
        );
        assert_eq!(recorded.allocations(10_000, true, || {}), 0, "recorded, {trace_events} events");
        let recorder = recorded.recorder.unwrap();
        assert!(recorder.event_count() > 20_000, "{recorder:?}");
        assert_eq!(recorder.lost_count(), recorder.event_count().saturating_sub(trace_events.into()));
    }
    // A lane polls its peer's control stream after a number of fruitless polls, which is not part of any message.
    let looking = Ends::with(8, CopyMode::Auto, EngineParams::default());
    let found = looking.allocations(10_000, true, || {});
    assert!(found <= 20, "{found} allocations in 10000 messages");
}
