//! A window in memory of a device that ends while something of it is under way: its owner replies no more, and whoever waits hears of it.

use trunkline_device::{Carried, Courier, Ended, Network, Part, Peer, Place};
use trunkline_engine::rma::{Local as Heap, Source};
use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{PostRooms, Status};

use crate::ranks::planted;

const RANKS: u64 = 2;
const BOXES: u64 = 4096;

/// Places everything at once, and nobody there replies.
#[derive(Debug, Default)]
struct Mute {
    ended: Vec<u64>,
}

impl Network for Mute {
    fn me(&self) -> u32 {
        0
    }

    fn executes(&self) -> bool {
        true
    }

    fn put(&mut self, cookie: u64, _: Place, from: Source<'_>) -> Carried {
        self.ended.push(cookie);
        let Source::Heap(from) = from else { panic!("no bytes are given by value") };
        Carried::Begun(from.len)
    }

    fn get(&mut self, cookie: u64, _: Place, into: Heap) -> Carried {
        self.ended.push(cookie);
        Carried::Begun(into.len)
    }

    fn atomic(&mut self, _: u64, _: Place, _: Action, _: bool) -> Carried {
        panic!("words of a device are changed by its owner")
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

fn part(heap: u8) -> Part {
    let rooms = PostRooms::new(BOXES + Part::boxes_bytes(RANKS), RANKS as u32, BOXES);
    let memory = Memory::heap((rooms.room(0, 0) + rooms.bytes()) as usize);
    let peer = |is_posted| Peer { heap, boxes: BOXES, is_posted, slots: Vec::new() };
    Part { heap, memory, boxes: BOXES, rooms, device: None, peers: vec![peer(false), peer(true)] }
}

fn bytes(len: u64) -> Heap {
    Heap { heap: 0, offset: 0, len }
}

#[test]
fn what_is_under_way_when_a_window_ends_has_failed() {
    for others in [0, 1] {
        let mut courier = Courier::new(Mute::default(), planted()).unwrap();
        (0..=others).for_each(|heap| courier.open(part(heap + 3)).unwrap());
        let at = |heap| Place { member: 1, heap, offset: 64 };
        // One has been asked for, one has not yet, and one is shown first.
        let mut ended = Vec::new();
        assert_eq!(courier.put(7, at(3), Source::Heap(bytes(8))), Carried::Begun(8));
        courier.go_on(&mut ended);
        assert_eq!(courier.put(8, at(3), Source::Heap(bytes(8))), Carried::Begun(8));
        assert_eq!(courier.get(9, at(3), bytes(8)), Carried::Begun(8));
        assert_eq!(courier.atomic(10, at(3), Action::Add(1), false), Carried::Begun(8));
        let more = others > 0;
        if more {
            assert_eq!(courier.put(11, at(4), Source::Heap(bytes(8))), Carried::Begun(8));
        }
        courier.go_on(&mut ended);
        assert_eq!(ended, [], "nobody replies");
        courier.close(3);
        (0..3).for_each(|_| _ = courier.go_on(&mut ended));
        let mut failed: Vec<_> =
            ended.iter().map(|one| (one.cookie, one.how.err().map(|why| why.status))).collect();
        failed.sort_unstable_by_key(|(cookie, _)| *cookie);
        assert_eq!(failed, [7, 8, 9, 10].map(|cookie| (cookie, Some(Status::Stale))), "{others} others");
    }
}
