//! Words that are apart from the data of a part, and flushes after writes of NICs to device memory. The network records
//! its requests, and ends them when the test triggers it.

use std::sync::{Arc, Mutex};

use trunkline_device::region::EntryLocation;
use trunkline_device::{
    BeginOutcome, DeviceCopier, EntryFailure, EntryKey, EntryRegion, EntryRegions, ErrorTable, FarWords,
    FlushedNetwork, FlushedPart, FlushedPeer, MemberNetwork, NetworkCompletion, PeerRegion, WordsRegion,
};
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange, PutSource};
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::EntryStatus;

use crate::orders::lock;

const DATA: u8 = 3;
const WORDS: u8 = 4;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asked {
    Put(HeapAddress, Option<HeapRange>),
    Get(HeapAddress, HeapRange),
    Atomic(HeapAddress),
}

#[derive(Debug, Default)]
struct Notes {
    asked: Vec<(u64, Asked)>,
    ended: Vec<NetworkCompletion>,
    /// The most bytes that one call begins; 0: nothing begins now.
    most: u64,
}

struct Noting(Arc<Mutex<Notes>>);

impl Noting {
    fn begin(&self, cookie: u64, asked: Asked, len: u64) -> BeginOutcome {
        let mut notes = lock(&self.0);
        if notes.most == 0 {
            return BeginOutcome::Busy;
        }
        notes.asked.push((cookie, asked));
        BeginOutcome::Begun(len.min(notes.most))
    }
}

impl MemberNetwork for Noting {
    fn own_rank(&self) -> u32 {
        0
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        let (local, len) = match from {
            PutSource::Heap(local) => (Some(local), local.len),
            PutSource::Bytes(bytes) => (None, bytes.len() as u64),
        };
        self.begin(cookie, Asked::Put(to, local), len)
    }

    fn get(&mut self, cookie: u64, from: HeapAddress, into: HeapRange) -> BeginOutcome {
        self.begin(cookie, Asked::Get(from, into), into.len)
    }

    fn post_atomic(&mut self, cookie: u64, at: HeapAddress, _: AtomicAction, _: bool) -> BeginOutcome {
        self.begin(cookie, Asked::Atomic(at), 8)
    }

    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        ended.append(&mut lock(&self.0).ended);
        !ended.is_empty()
    }

    fn send_error_word(&mut self, _: HeapAddress, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

/// Rank 0's view of a window: its own data and rank 1's need flushes, rank 2's do not.
struct Bench {
    notes: Arc<Mutex<Notes>>,
    network: FlushedNetwork<Noting>,
}

const UNREAD: HeapRange = HeapRange { heap: WORDS, offset: 64, len: 1 };
const THERE: HeapAddress = HeapAddress { member: 1, heap: DATA, offset: 1000 };
const HERE: HeapRange = HeapRange { heap: DATA, offset: 5000, len: 100 };

const fn unread(member: u32) -> HeapAddress {
    HeapAddress { member, heap: WORDS, offset: 640 + member as u64 }
}

impl Bench {
    fn new() -> Self {
        let notes = Arc::new(Mutex::new(Notes { most: 1 << 20, ..Notes::default() }));
        let mut network = FlushedNetwork::new(Noting(Arc::clone(&notes)));
        let peer = |member| FlushedPeer { heap: DATA, needs_flush: member < 2, unread: unread(member) };
        network.open_window(FlushedPart {
            own: Some(DATA),
            unread: UNREAD,
            peers: (0..3).map(peer).collect(),
        });
        Self { notes, network }
    }

    /// The requests since the last call.
    fn asked(&self) -> Vec<(u64, Asked)> {
        std::mem::take(&mut lock(&self.notes).asked)
    }

    /// Lets an operation of the network end; returns its reported end.
    fn end(&mut self, cookie: u64, how: Result<u64, EntryFailure>) -> Vec<NetworkCompletion> {
        lock(&self.notes).ended.push(NetworkCompletion { cookie, how });
        self.go_on()
    }

    fn go_on(&mut self) -> Vec<NetworkCompletion> {
        let mut ended = Vec::new();
        self.network.make_progress(&mut ended);
        ended
    }
}

#[test]
fn puts_complete_after_their_flush() {
    let mut bench = Bench::new();
    for round in 0..3 {
        assert_eq!(bench.network.put(7, THERE, PutSource::Heap(HERE)), BeginOutcome::Begun(100));
        let asked = bench.asked();
        assert_eq!(
            asked.iter().map(|(_, asked)| *asked).collect::<Vec<_>>(),
            [Asked::Put(THERE, Some(HERE))]
        );
        assert_eq!(bench.end(asked[0].0, Ok(0)), [], "round {round}: the flush is in progress");
        let asked = bench.asked();
        let last = HeapAddress { offset: 1099, ..THERE };
        assert!(matches!(asked[..], [(_, Asked::Get(from, UNREAD))] if from == last), "{asked:?}");
        assert_eq!(bench.end(asked[0].0, Ok(0)), [NetworkCompletion { cookie: 7, how: Ok(0) }]);
        // The end is reported once.
        assert_eq!(bench.end(asked[0].0, Ok(0)), []);
    }
}

#[test]
fn each_piece_is_flushed_separately() {
    let mut bench = Bench::new();
    lock(&bench.notes).most = 60;
    assert_eq!(bench.network.put(7, THERE, PutSource::Heap(HERE)), BeginOutcome::Begun(60));
    let first = bench.asked()[0].0;
    assert_eq!(bench.end(first, Ok(0)), []);
    let asked = bench.asked();
    assert!(matches!(asked[..], [(_, Asked::Get(HeapAddress { offset: 1059, .. }, UNREAD))]), "{asked:?}");
    assert_eq!(bench.network.put(9, THERE, PutSource::Bytes(&[1, 2])), BeginOutcome::Begun(2));
    let second = bench.asked()[0].0;
    assert_eq!(bench.end(second, Ok(0)), []);
    let asked = bench.asked();
    assert!(matches!(asked[..], [(_, Asked::Get(HeapAddress { offset: 1001, .. }, UNREAD))]), "{asked:?}");
}

#[test]
fn gets_into_a_device_complete_after_their_flush() {
    let mut bench = Bench::new();
    let from = HeapAddress { member: 2, heap: DATA, offset: 0 };
    assert_eq!(bench.network.get(8, from, HERE), BeginOutcome::Begun(100));
    let asked = bench.asked();
    assert_eq!(bench.end(asked[0].0, Ok(0)), [], "the flush is in progress");
    let last = HeapRange { offset: 5099, len: 1, ..HERE };
    let asked = bench.asked();
    assert!(
        matches!(asked[..], [(_, Asked::Put(to, Some(byte)))] if (to, byte) == (unread(2), last)),
        "{asked:?}"
    );
    assert_eq!(bench.end(asked[0].0, Ok(0)), [NetworkCompletion { cookie: 8, how: Ok(0) }]);
}

#[test]
fn flushes_without_room_begin_later() {
    let mut bench = Bench::new();
    let _begun = bench.network.put(7, THERE, PutSource::Heap(HERE));
    let put = bench.asked()[0].0;
    lock(&bench.notes).most = 0;
    assert_eq!(bench.end(put, Ok(0)), []);
    assert_eq!((bench.go_on(), bench.asked()), (vec![], vec![]));
    lock(&bench.notes).most = 8;
    assert_eq!(bench.go_on(), []);
    let flush = bench.asked()[0].0;
    let failure = EntryFailure { status: EntryStatus::PeerDead, reason: 4 };
    assert_eq!(
        bench.end(flush, Err(failure)),
        [NetworkCompletion { cookie: 7, how: Err(failure) }],
        "as it ended"
    );
    // A put that failed or did not begin is not flushed.
    let _begun = bench.network.put(6, THERE, PutSource::Heap(HERE));
    let put = bench.asked()[0].0;
    assert_eq!(bench.end(put, Err(failure)), [NetworkCompletion { cookie: 6, how: Err(failure) }]);
    lock(&bench.notes).most = 0;
    assert_eq!(bench.network.put(5, THERE, PutSource::Heap(HERE)), BeginOutcome::Busy);
    assert_eq!(bench.asked(), []);
}

#[test]
fn operations_that_need_no_flush_begin_none() {
    let mut bench = Bench::new();
    let elsewhere = HeapRange { heap: WORDS, ..HERE };
    let _begun = bench.network.put(1, HeapAddress { member: 2, ..THERE }, PutSource::Heap(HERE));
    let _begun = bench.network.put(2, HeapAddress { heap: WORDS, ..THERE }, PutSource::Heap(HERE));
    let _begun = bench.network.get(3, THERE, elsewhere);
    let _begun = bench.network.post_atomic(4, THERE, AtomicAction::Add(1), true);
    bench.network.close_window(WORDS);
    let _begun = bench.network.put(5, THERE, PutSource::Heap(HERE));
    assert_eq!(bench.asked().iter().map(|(cookie, _)| *cookie).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}

#[derive(Debug)]
struct NoCopies;

impl DeviceCopier for NoCopies {
    fn begin_copy(&self, _: u64, _: MemoryLocation<'_>, _: MemoryLocation<'_>, _: u64) -> bool {
        false
    }

    fn take_ended(&self, _: &mut Vec<(u64, Result<(), u32>)>) {}
}

/// A part whose words begin at 1024, in a heap of their own.
fn divided() -> (EntryRegions, EntryKey) {
    let (mut regions, table) = (EntryRegions::new(), ErrorTable::default());
    let copies = Some(Arc::new(NoCopies) as Arc<dyn DeviceCopier>);
    let region = EntryRegion { memory: MemoryRange::heap(2048), heap: DATA, table, copies, words: None };
    let key = regions.add_region(region).unwrap();
    let words = EntryRegion::of_host(MemoryRange::heap(512), WORDS, table);
    regions.add_words(key, WordsRegion { first: 1024, region: words }).unwrap();
    (regions, key)
}

#[test]
fn window_addresses_separate_words() {
    let (mut regions, key) = divided();
    let place = |regions: &EntryRegions, member, addr, len| match regions.locate_bytes(
        0,
        member,
        key.to_bits(),
        addr,
        len,
    ) {
        Ok(EntryLocation::Reached { at, heap, .. }) => Ok((heap, at, "device")),
        Ok(EntryLocation::Here { at, heap, .. }) => Ok((heap.unwrap(), at, "host")),
        Ok(EntryLocation::There { heap, at }) => Ok((heap, at, "far")),
        Err(status) => Err(status),
    };
    let own = |regions: &EntryRegions, addr, len| place(regions, 0, addr, len);
    assert_eq!(own(&regions, 1016, 8), Ok((DATA, 1016, "device")));
    assert_eq!(own(&regions, 1024, 8), Ok((WORDS, 0, "host")));
    assert_eq!(own(&regions, 1024 + 504, 8), Ok((WORDS, 504, "host")));
    assert_eq!(own(&regions, 1020, 8), Err(EntryStatus::Access), "an access must not cross the border");
    assert_eq!(own(&regions, 1024 + 505, 8), Err(EntryStatus::Access), "an access must not exceed the words");
    let far = PeerRegion::of_host(key, 1536, ErrorTable::default(), None);
    let words = FarWords { first: 1024, heap: 9, len: 512 };
    regions.add_remote_region(1, far, Some(words)).unwrap();
    assert_eq!(place(&regions, 1, 1016, 8), Ok((DATA, 1016, "far")));
    assert_eq!(place(&regions, 1, 1032, 8), Ok((9, 8, "far")));
    assert_eq!(place(&regions, 1, 1020, 8), Err(EntryStatus::Access));
    assert_eq!(place(&regions, 1, 1529, 8), Err(EntryStatus::Access));
    let named = |member, addr| regions.resolve_place(0, member, key.to_bits(), addr);
    assert_eq!((named(0, 1040), named(1, 1040), named(0, 8)), ((WORDS, 16), (9, 16), (DATA, 8)));
    assert_eq!(regions.of_heap(WORDS).map(|region| region.memory.len()), Some(512));
    assert!(regions.remove(key).is_some());
    assert!(regions.of_heap(WORDS).is_none(), "the words must end with their region");
    assert_eq!(own(&regions, 1024, 8), Err(EntryStatus::Stale));
}
