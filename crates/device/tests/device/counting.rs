//! T10: more bytes than 32 bits count, over a network that moves none and records each target.

use std::sync::{Arc, Mutex};

use trunkline_device::{
    BeginOutcome, DeviceQueues, EntryRegion, ErrorTable, ExecutorMode, MemberNetwork, NetworkCompletion,
    PeerRegion,
};
use trunkline_device_queue::lane::{PutBytes, QueueLane};
use trunkline_device_queue::original::OriginalPeer;
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange as Heap, PutSource};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{LocalAddress, PeerAddress};

use crate::ranks::patience;

const GIB: u64 = 1 << 30;
/// The most bytes that the network accepts in one operation.
const MOST: u64 = (64 << 20) + 4096;

type Pieces = Arc<Mutex<Vec<(u64, u64, u64)>>>;

#[derive(Debug, Default)]
struct Counting {
    /// The source, the target and the length of each piece.
    pieces: Pieces,
    ended: Vec<u64>,
    full: bool,
}

impl Counting {
    fn take(&mut self, cookie: u64, from: u64, to: u64, len: u64) -> BeginOutcome {
        // Every other attempt finds no room.
        self.full = !self.full;
        if self.full {
            return BeginOutcome::Busy;
        }
        let taken = len.min(MOST);
        self.pieces.lock().unwrap().push((from, to, taken));
        self.ended.push(cookie);
        BeginOutcome::Begun(taken)
    }
}

impl MemberNetwork for Counting {
    fn own_rank(&self) -> u32 {
        0
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        let PutSource::Heap(from) = from else { panic!("the test puts no bytes by value") };
        self.take(cookie, from.offset, to.offset, from.len)
    }

    fn get(&mut self, cookie: u64, from: HeapAddress, into: Heap) -> BeginOutcome {
        self.take(cookie, from.offset, into.offset, into.len)
    }

    fn post_atomic(&mut self, _: u64, _: HeapAddress, _: AtomicAction, _: bool) -> BeginOutcome {
        panic!("the test posts no atomic")
    }

    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        ended.extend(self.ended.drain(..).map(|cookie| NetworkCompletion { cookie, how: Ok(0) }));
        !ended.is_empty()
    }

    fn send_error_word(&mut self, _: HeapAddress, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

#[test]
fn put_over_4_gib_moves_each_byte_once() {
    for mode in [ExecutorMode::Inline, ExecutorMode::Thread] {
        let pieces = Pieces::default();
        let network = Counting { pieces: Arc::clone(&pieces), ..Counting::default() };
        let queues = DeviceQueues::start(network, 2, mode).unwrap();
        // The pages are never accessed.
        let memory = MemoryRange::heap(7 << 30);
        let table = ErrorTable::default();
        let own =
            queues.add_region(EntryRegion { memory, heap: 0, table, copies: None, words: None }).unwrap();
        queues
            .add_remote_region(
                1,
                PeerRegion { key: own, len: 1 << 45, table, near: None, copies: None, words: None },
            )
            .unwrap();
        let lane = QueueLane::new(queues.make_queue(4).unwrap(), queues.queue_finder());
        let (peer, first, there) = (OriginalPeer(lane), 12_345, (1 << 40) + 77);
        let len = 5 * GIB + GIB / 2 + 9;
        let from = LocalAddress { addr: first, key: own.to_bits() };
        let bytes = PutBytes { from, to: PeerAddress { peer: 1, addr: there, key: own.to_bits() }, len };
        let ticket = peer.put(&bytes, &mut patience()).unwrap();
        peer.wait_local(ticket, &mut patience()).unwrap();
        assert_eq!(ticket.index, 5);
        let mut pieces = pieces.lock().unwrap().clone();
        pieces.sort_unstable();
        let mut next = (first, there);
        for (from, to, taken) in pieces {
            assert_eq!((from, to), next, "{mode:?}");
            next = (from + taken, to + taken);
        }
        assert_eq!(next, (first + len, there + len), "{mode:?}");
    }
}
