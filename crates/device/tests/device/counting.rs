//! T10: more bytes than 32 bits count, over a network that moves none and notes where each would go.

use std::sync::{Arc, Mutex};

use trunkline_device::{Carried, Ended, ErrorTable, Far, Mode, Network, Place, Queues, Region};
use trunkline_device_queue::lane::{Bytes, Lane};
use trunkline_device_queue::original::Peer;
use trunkline_engine::rma::{Local as Heap, Source};
use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{Local, Remote};

use crate::ranks::{patience, planted};

const GIB: u64 = 1 << 30;
/// No network takes more at once than this one.
const MOST: u64 = (64 << 20) + 4096;

type Pieces = Arc<Mutex<Vec<(u64, u64, u64)>>>;

#[derive(Debug, Default)]
struct Counting {
    /// Where from, where to, how many.
    pieces: Pieces,
    ended: Vec<u64>,
    full: bool,
}

impl Counting {
    fn take(&mut self, cookie: u64, from: u64, to: u64, len: u64) -> Carried {
        // Every other attempt finds no room.
        self.full = !self.full;
        if self.full {
            return Carried::Busy;
        }
        let taken = len.min(MOST);
        self.pieces.lock().unwrap().push((from, to, taken));
        self.ended.push(cookie);
        Carried::Begun(taken)
    }
}

impl Network for Counting {
    fn me(&self) -> u32 {
        0
    }

    fn executes(&self) -> bool {
        true
    }

    fn put(&mut self, cookie: u64, to: Place, from: Source<'_>) -> Carried {
        let Source::Heap(from) = from else { panic!("no bytes are given by value") };
        self.take(cookie, from.offset, to.offset, from.len)
    }

    fn get(&mut self, cookie: u64, from: Place, into: Heap) -> Carried {
        self.take(cookie, from.offset, into.offset, into.len)
    }

    fn atomic(&mut self, _: u64, _: Place, _: Action, _: bool) -> Carried {
        panic!("nobody asks for one")
    }

    fn go_on(&mut self, ended: &mut Vec<Ended>) -> bool {
        ended.extend(self.ended.drain(..).map(|cookie| Ended { cookie, how: Ok(0) }));
        !ended.is_empty()
    }

    fn spoil(&mut self, _: Place, _: u64) -> bool {
        false
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

#[test]
fn more_than_4_gib_is_put_to_the_last_byte_once() {
    for mode in [Mode::Inline, Mode::Thread] {
        let pieces = Pieces::default();
        let network = Counting { pieces: Arc::clone(&pieces), ..Counting::default() };
        let queues = Queues::start(network, 2, mode, planted()).unwrap();
        // Its pages are never touched.
        let memory = Memory::heap(7 << 30);
        let table = ErrorTable::default();
        let own = queues.add_region(Region { memory, heap: 0, table, copies: None, words: None }).unwrap();
        queues
            .learn(1, Far { key: own, len: 1 << 45, table, near: None, copies: None, words: None })
            .unwrap();
        let lane = Lane::new(queues.queue(4).unwrap(), queues.finder());
        let (peer, first, there) = (Peer(lane), 12_345, (1 << 40) + 77);
        let len = 5 * GIB + GIB / 2 + 9;
        let from = Local { addr: first, key: own.bits() };
        let bytes = Bytes { from, to: Remote { peer: 1, addr: there, key: own.bits() }, len };
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
