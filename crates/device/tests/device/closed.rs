//! A window in memory of a device that ends while some of its operations are in progress: the owner no longer replies, and the waiters
//! fail.

use trunkline_device::{BeginOutcome, LocalPart, MemberNetwork, NetworkCompletion, ProxyNetwork, RemotePart};
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange as Heap, PutSource};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{EntryStatus, PostRooms};

const RANKS: u64 = 2;
const BOXES: u64 = 4096;

/// Places all requests at once; the owner never replies.
#[derive(Debug, Default)]
struct Mute {
    ended: Vec<u64>,
}

impl MemberNetwork for Mute {
    fn own_rank(&self) -> u32 {
        0
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, cookie: u64, _: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        self.ended.push(cookie);
        let PutSource::Heap(from) = from else { panic!("the test puts no bytes by value") };
        BeginOutcome::Begun(from.len)
    }

    fn get(&mut self, cookie: u64, _: HeapAddress, into: Heap) -> BeginOutcome {
        self.ended.push(cookie);
        BeginOutcome::Begun(into.len)
    }

    fn post_atomic(&mut self, _: u64, _: HeapAddress, _: AtomicAction, _: bool) -> BeginOutcome {
        panic!("only the owner may change words of its device")
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

fn part(heap: u8) -> LocalPart {
    let rooms = PostRooms::new(BOXES + LocalPart::boxes_bytes(RANKS), RANKS as u32, BOXES);
    let memory = MemoryRange::heap((rooms.room_offset(0, 0) + rooms.total_bytes()) as usize);
    let peer = |is_posted| RemotePart { heap, boxes: BOXES, is_posted, slots: Vec::new() };
    LocalPart { heap, memory, boxes: BOXES, rooms, device: None, peers: vec![peer(false), peer(true)] }
}

fn bytes(len: u64) -> Heap {
    Heap { heap: 0, offset: 0, len }
}

#[test]
fn pending_requests_fail_when_their_window_ends() {
    for others in [0, 1] {
        let mut courier = ProxyNetwork::new(Mute::default()).unwrap();
        (0..=others).for_each(|heap| courier.open_window(part(heap + 3)).unwrap());
        let at = |heap| HeapAddress { member: 1, heap, offset: 64 };
        // One request is sent, one is not sent yet, and one is a get.
        let mut ended = Vec::new();
        assert_eq!(courier.put(7, at(3), PutSource::Heap(bytes(8))), BeginOutcome::Begun(8));
        courier.make_progress(&mut ended);
        assert_eq!(courier.put(8, at(3), PutSource::Heap(bytes(8))), BeginOutcome::Begun(8));
        assert_eq!(courier.get(9, at(3), bytes(8)), BeginOutcome::Begun(8));
        assert_eq!(courier.post_atomic(10, at(3), AtomicAction::Add(1), false), BeginOutcome::Begun(8));
        let more = others > 0;
        if more {
            assert_eq!(courier.put(11, at(4), PutSource::Heap(bytes(8))), BeginOutcome::Begun(8));
        }
        courier.make_progress(&mut ended);
        assert_eq!(ended, [], "no request may end before the window");
        courier.close_window(3);
        (0..3).for_each(|_| _ = courier.make_progress(&mut ended));
        let mut failed: Vec<_> =
            ended.iter().map(|one| (one.cookie, one.how.err().map(|why| why.status))).collect();
        failed.sort_unstable_by_key(|(cookie, _)| *cookie);
        assert_eq!(failed, [7, 8, 9, 10].map(|cookie| (cookie, Some(EntryStatus::Stale))), "{others} others");
    }
}
