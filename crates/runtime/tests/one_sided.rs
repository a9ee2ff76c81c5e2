//! One-sided calls of two members in one process, over the software NIC. Bytes of every length arrive, the stage of a
//! context is not overwritten while in use, a wait delivers values of atomics, and the loss of a member ends every
//! wait.

#![expect(clippy::unwrap_used, reason = "a panic ends the test")]

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trunkline_engine::WaitPolicy;
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{FetchHandle, HeapAddress, HeapRange, RmaError};
use trunkline_engine::{CommNics, HelperThread};
use trunkline_mem::MemoryRange;
use trunkline_proto::limits::RMA_CALLS_MAX;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};
use trunkline_runtime::{
    CheckTimer, ContextCalls, CopyFrom, CopyInto, FetchSink, FrontEnd, FrontEndKind, HardwareFabric,
    NicChoice, OneSided, OneSidedContext, ProcessSettings, StageLayout, control_reach, host_addresses,
    watch_memory,
};

/// The heap for data, and the heap of the stages.
const HEAP: u8 = 0;
const STAGES: u8 = 1;
const HEAP_BYTES: usize = 1 << 20;
const STAGE: u64 = 16 << 10;
const PUT_PIECE: u64 = 4 << 10;
const GET_PIECE: u64 = 8 << 10;
/// The word of the heap for signals and atomics.
const WORD: u64 = HEAP_BYTES as u64 - 64;
/// A limit far above the duration of any wait here.
const LONG: Duration = Duration::from_secs(30);

/// A member of a job of two.
struct Member {
    network: OneSided,
    heap: MemoryRange,
    context: OneSidedContext,
    helper: Option<HelperThread>,
}

impl Member {
    fn calls(&self) -> ContextCalls<'_, ()> {
        self.network.calls_on(&self.context, &())
    }
}

/// Starts two members of a job, over a kind of the software NIC. A thread serves each.
fn make_job(fabric: &str) -> [Member; 2] {
    let lookup = |name: &str| (name == "TRUNKLINE_FABRIC").then(|| fabric.into());
    let settings = ProcessSettings::from_lookup(FrontEndKind::Rust, lookup).unwrap();
    let params = &settings.params;
    let open = || {
        let addresses = host_addresses(&settings).unwrap();
        let host = UnixHost::with_reach(control_reach(params, &addresses), |_, _| {});
        let nics = NicChoice::Named(CommNics::from(0));
        let front_end = FrontEnd { name: "a test", gpu_notes: Vec::new() };
        let (network, _carrier) =
            OneSided::new(params.clone(), HardwareFabric::None, nics, host, addresses, &front_end).unwrap();
        network
    };
    let opened = [open(), open()];
    let cards = opened.each_ref().map(OneSided::process_card);
    let mut rank = 0;
    opened.map(|network| {
        network.set_members(rank, &cards).unwrap();
        rank += 1;
        let heap = new_memory(HEAP_BYTES);
        assert_eq!(network.add_heap(heap.clone()).unwrap(), HEAP);
        let memory = new_memory(STAGE as usize);
        assert_eq!(network.add_heap(memory.clone()).unwrap(), STAGES);
        let range = HeapRange { heap: STAGES, offset: 0, len: STAGE };
        let layout = StageLayout { memory, range, put_piece: PUT_PIECE, get_piece: GET_PIECE };
        let context = network.create_context(layout).unwrap();
        let helper = Some(network.serve_beside().unwrap());
        Member { network, heap, context, helper }
    })
}

/// The kinds of the software NIC: over shared memory, and over sockets, where bytes are in flight for longer.
const FABRICS: [&str; 2] = ["soft:shm", "soft:tcp"];

fn at(offset: u64) -> HeapAddress {
    HeapAddress { member: 1, heap: HEAP, offset }
}

fn own(offset: u64, len: u64) -> HeapRange {
    HeapRange { heap: HEAP, offset, len }
}

/// Returns bytes that differ from adjacent ones, and between seeds.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

fn new_memory(len: usize) -> MemoryRange {
    MemoryRange::try_heap(len).unwrap()
}

fn read_heap(heap: &MemoryRange, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    heap.read(offset, &mut bytes).unwrap();
    bytes
}

fn word() -> SymmetricWord {
    SymmetricWord::new(HEAP, WORD, WordWidth::Eight).unwrap()
}

fn add(value: u64, fetches: bool) -> TypedAtomic {
    TypedAtomic::new(AtomicType::U64, AtomicAction::Add(value), fetches).unwrap()
}

fn set_word(value: u64) -> SignalUpdate {
    SignalUpdate::new(UpdateOp::Set, word(), value).unwrap()
}

/// Lengths around each limit: of an inline put, of a piece, and of the stage.
fn lengths(inline_max: usize) -> Vec<usize> {
    let around = |limit: usize| [limit - 1, limit, limit + 1];
    let limits = [inline_max, PUT_PIECE as usize, GET_PIECE as usize, STAGE as usize, 5 * STAGE as usize];
    [0, 1, 7].into_iter().chain(limits.into_iter().flat_map(around)).collect()
}

#[test]
fn bytes_of_any_length_are_copied_both_ways() {
    for fabric in FABRICS {
        let [me, other] = make_job(fabric);
        let calls = me.calls();
        for (seed, len) in lengths(me.context.inline_max()).into_iter().enumerate() {
            let bytes = pattern(seed, len);
            let memory = new_memory(len.max(1));
            memory.write(0, &bytes).unwrap();
            let sources = [CopyFrom::Slice(&bytes), CopyFrom::Memory(&memory)]
                .into_iter()
                .take(1 + usize::from(len > 0));
            for source in sources {
                other.heap.write(0, &vec![0xEE; len + 200]).unwrap();
                calls.put_copied(at(100), source).unwrap();
                calls.quiet().unwrap();
                let arrived = read_heap(&other.heap, 0, len + 200);
                assert_eq!(arrived[100..100 + len], bytes, "{fabric}: {len} bytes of {source:?}");
                let beside = arrived[..100].iter().chain(&arrived[100 + len..]);
                assert!(
                    beside.copied().all(|byte| byte == 0xEE),
                    "{fabric}: bytes around a put of {len} bytes changed"
                );

                let mut got = vec![0; len];
                calls.get_copied(at(100), CopyInto::Slice(&mut got)).unwrap();
                assert_eq!(got, bytes, "{fabric}: a get of {len} bytes");
                let into = if len > 0 { CopyInto::Memory(&memory) } else { CopyInto::Slice(&mut []) };
                calls.get_copied(at(100), into).unwrap();
                assert_eq!(read_heap(&memory, 0, len), bytes, "{fabric}: a get of {len} bytes into memory");
            }
        }
    }
}

#[test]
fn registered_bytes_of_any_length_move_both_ways() {
    for fabric in FABRICS {
        let [me, other] = make_job(fabric);
        let calls = me.calls();
        for (seed, len) in lengths(me.context.inline_max()).into_iter().enumerate() {
            let bytes = pattern(seed, len);
            me.heap.write(8, &bytes).unwrap();
            calls.put_registered(at(64), own(8, len as u64)).unwrap();
            calls.quiet_member(1).unwrap();
            assert_eq!(read_heap(&other.heap, 64, len), bytes, "{fabric}: {len} bytes");
            me.heap.write(8, &vec![0; len]).unwrap();
            calls.get_registered(at(64), own(8, len as u64)).unwrap();
            calls.quiet_member(1).unwrap();
            assert_eq!(read_heap(&me.heap, 8, len), bytes, "{fabric}: a get of {len} bytes");
        }
    }
}

#[test]
fn stage_in_use_is_not_overwritten() {
    for fabric in FABRICS {
        let [me, other] = make_job(fabric);
        let calls = me.calls();
        let bytes = pattern(1, HEAP_BYTES / 2);
        // Many consecutive puts, of which the stage has room for four.
        for (number, piece) in bytes.chunks(PUT_PIECE as usize).enumerate() {
            calls.put_copied(at(number as u64 * PUT_PIECE), CopyFrom::Slice(piece)).unwrap();
        }
        calls.quiet().unwrap();
        assert!(read_heap(&other.heap, 0, bytes.len()) == bytes, "{fabric}: staged bytes were overwritten");
    }
}

#[test]
fn threads_that_share_a_stage_get_their_own_bytes() {
    for fabric in FABRICS {
        let [me, other] = make_job(fabric);
        let part = HEAP_BYTES / 8;
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let calls = me.calls();
                scope.spawn(move || {
                    let offset = (thread * part) as u64;
                    for turn in 0..20 {
                        let bytes = pattern(thread * 100 + turn, 3 * STAGE as usize / 2);
                        calls.put_copied(at(offset), CopyFrom::Slice(&bytes)).unwrap();
                        calls.quiet_member(1).unwrap();
                        let mut got = vec![0; bytes.len()];
                        calls.get_copied(at(offset), CopyInto::Slice(&mut got)).unwrap();
                        assert!(got == bytes, "thread {thread}, turn {turn}");
                    }
                });
            }
        });
        drop(other);
    }
}

#[test]
fn separate_elements_of_any_size_are_got() {
    for fabric in FABRICS {
        let [me, other] = make_job(fabric);
        let calls = me.calls();
        other.heap.write(0, &pattern(5, HEAP_BYTES)).unwrap();
        // More elements than the stage has room for, elements as large as a piece, larger ones, and none.
        let cases =
            [(8, 3000, 24), (GET_PIECE as usize, 3, 9000), (GET_PIECE as usize + 8, 3, 20_000), (0, 5, 8)];
        for (element, count, apart) in cases {
            let mut got = vec![0; element * count];
            let address_of = |number| at(number as u64 * apart);
            calls.get_elements(element, &mut got, address_of).unwrap();
            for number in 0..count {
                let wanted = read_heap(&other.heap, number as u64 * apart, element);
                assert!(
                    got[number * element..][..element] == wanted,
                    "{fabric}: element {number} of {element}"
                );
            }
        }
    }
}

#[test]
fn a_signal_follows_bytes_of_any_length() {
    for fabric in FABRICS {
        let [me, other] = make_job(fabric);
        let calls = me.calls();
        for (turn, len) in lengths(me.context.inline_max()).into_iter().enumerate() {
            let turn = turn + 1;
            let bytes = pattern(turn, len);
            me.heap.write(0, &bytes).unwrap();
            for (kind, value) in [(0, 2 * turn as u64), (1, 2 * turn as u64 + 1)] {
                other.heap.write(0, &vec![0; len]).unwrap();
                if kind == 0 {
                    calls.put_signal_copied(at(0), CopyFrom::Slice(&bytes), set_word(value)).unwrap();
                } else {
                    calls.put_signal_registered(at(0), own(0, len as u64), set_word(value)).unwrap();
                }
                let look = || Ok::<_, RmaError>((other.heap.load(WORD).unwrap() == value).then_some(()));
                watch_memory(Some(&me.calls()), WaitPolicy::CHANGE, look, || Ok(())).unwrap();
                assert!(read_heap(&other.heap, 0, len) == bytes, "{fabric}: {len} bytes, kind {kind}");
                calls.quiet().unwrap();
            }
        }
    }
}

#[test]
fn rejected_atomic_frees_its_place() {
    let [me, _other] = make_job("soft:shm");
    let calls = me.calls();
    let nowhere = SymmetricWord::new(HEAP, HEAP_BYTES as u64, WordWidth::Eight).unwrap();
    // By each call that returns the value, more often than there are places.
    for turn in 0..2 * RMA_CALLS_MAX + 1 {
        let fetch = calls.post_atomic(1, nowhere, add(1, true)).unwrap();
        let begun = Instant::now();
        let refused = loop {
            assert!(begun.elapsed() < LONG, "the atomic of turn {turn} does not complete");
            calls.make_progress().unwrap();
            let polled = if turn % 2 == 0 { calls.poll_ready_fetch(fetch) } else { calls.poll_fetch(fetch) };
            if let Some(done) = polled.transpose() {
                break done;
            }
        };
        assert!(matches!(refused, Err(RmaError::NoWord(1))), "turn {turn}: {refused:?}");
    }
    assert!(matches!(calls.fetch_atomic(1, nowhere, add(1, true)), Err(RmaError::NoWord(1))));
    assert_eq!(calls.fetch_atomic(1, word(), add(5, true)).unwrap(), 0);
}

/// Keeps pending fetches, and adds up their values.
#[derive(Default)]
struct FetchedSum {
    begun: Mutex<Vec<FetchHandle>>,
    sum: Cell<u64>,
}

impl FetchSink for FetchedSum {
    fn deliver_fetches(&self, calls: &ContextCalls<'_, Self>) -> Result<(), RmaError> {
        let mut begun = self.begun.lock().unwrap();
        let mut still = Vec::new();
        for fetch in begun.drain(..) {
            match calls.poll_ready_fetch(fetch)? {
                Some(value) => self.sum.set(self.sum.get() + value),
                None => still.push(fetch),
            }
        }
        *begun = still;
        Ok(())
    }
}

#[test]
fn a_wait_delivers_values_of_earlier_atomics() {
    for fabric in FABRICS {
        let [me, _other] = make_job(fabric);
        let sink = FetchedSum::default();
        let calls = me.network.calls_on(&me.context, &sink);
        let count = 3 * RMA_CALLS_MAX as u64;
        for _ in 0..count {
            let fetch = calls.post_atomic(1, word(), add(1, true)).unwrap();
            sink.begun.lock().unwrap().push(fetch);
        }
        calls.wait_until(|| Ok::<_, RmaError>(sink.begun.lock().unwrap().is_empty().then_some(()))).unwrap();
        assert_eq!(sink.sum.get(), (0..count).sum::<u64>(), "{fabric}");
    }
}

#[test]
fn the_loss_of_a_member_ends_every_call() {
    type Call = fn(&Member) -> Result<(), RmaError>;
    let calls: [(&str, Call); 9] = [
        ("put_registered", |me| me.calls().put_registered(at(0), own(0, 100_000))),
        ("put_copied of few bytes", |me| me.calls().put_copied(at(0), CopyFrom::Slice(&[1; 8]))),
        ("put_copied", |me| me.calls().put_copied(at(0), CopyFrom::Slice(&[1; 3 * STAGE as usize]))),
        ("get_registered", |me| me.calls().get_registered(at(0), own(0, 100_000))),
        ("get_copied", |me| me.calls().get_copied(at(0), CopyInto::Slice(&mut [0; 3 * STAGE as usize]))),
        ("fetch_atomic", |me| me.calls().fetch_atomic(1, word(), add(1, true)).map(drop)),
        ("send_signal", |me| me.calls().send_signal(1, set_word(1))),
        ("put_signal_copied", |me| {
            me.calls().put_signal_copied(at(0), CopyFrom::Slice(&[1; 3000]), set_word(1))
        }),
        ("check_member", |me| me.calls().make_progress().and_then(|_| me.calls().check_member(1))),
    ];
    for fabric in FABRICS {
        for (name, call) in calls {
            let [me, mut other] = make_job(fabric);
            // The member has a link, and then ends.
            me.calls().put_copied(at(0), CopyFrom::Slice(&[1; 8])).unwrap();
            me.calls().quiet().unwrap();
            other.helper = None;
            drop(other);
            let begun = Instant::now();
            // Quiets fail once for operations that began before the loss was noticed; afterwards each call fails for
            // the member.
            loop {
                let told = call(&me).and_then(|()| me.calls().quiet());
                assert!(begun.elapsed() < LONG, "{fabric}: {name} does not fail");
                if let Err(RmaError::Lost { member: 1, .. }) = told {
                    break;
                }
                assert!(matches!(told, Ok(()) | Err(RmaError::Failed { member: 1, .. })), "{name}: {told:?}");
            }
            // Each failure is an error of one quiet, also of one that frees the stage. Then the whole stage is free
            // again.
            while me.calls().quiet().is_err() {
                assert!(begun.elapsed() < LONG, "{fabric}: {name}: quiets do not stop failing");
            }
            let mut own_bytes = vec![0; 2 * STAGE as usize];
            let from = HeapAddress { member: 0, ..at(0) };
            me.calls().get_copied(from, CopyInto::Slice(&mut own_bytes)).unwrap();
        }
    }
}

#[test]
fn a_change_before_a_loss_counts() {
    let memory = new_memory(64);
    let look = || Ok::<_, RmaError>(memory.load(0).ok().filter(|&value| value == 7));
    // The same check detects the change and the loss.
    let gone = || {
        memory.store(0, 7).unwrap();
        Err(RmaError::NoWord(1))
    };
    let found = watch_memory(None::<&ContextCalls<'_, ()>>, WaitPolicy::CALL, look, gone);
    assert_eq!(found.unwrap(), 7);
    let never = || Ok::<Option<u64>, RmaError>(None);
    let told =
        watch_memory(None::<&ContextCalls<'_, ()>>, WaitPolicy::CALL, never, || Err(RmaError::NoWord(2)));
    assert!(matches!(told, Err(RmaError::NoWord(2))), "{told:?}");
}

#[test]
fn watch_ends_with_a_change_and_checks_peers() {
    let memory = new_memory(64);
    let was_checked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !was_checked.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            memory.store(0, 9).unwrap();
        });
        let look = || Ok::<_, RmaError>(memory.load(0).ok().filter(|&value| value == 9));
        let check = || {
            was_checked.store(true, Ordering::Release);
            Ok(())
        };
        watch_memory(None::<&ContextCalls<'_, ()>>, WaitPolicy::CALL, look, check).unwrap();
    });
}

#[test]
fn a_check_is_due_every_fifty_milliseconds() {
    let mut timer = CheckTimer::default();
    let start = Instant::now();
    let mut due = |millis: u64| timer.take_due(start + Duration::from_millis(millis));
    let seen = [0, 49, 50, 99, 100, 149].map(&mut due);
    assert_eq!(seen, [false, false, true, false, true, false]);
}
