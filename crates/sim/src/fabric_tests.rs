//! Checks that the simulated network keeps its promises, and breaks every property that it does not promise.

use trunkline_fabric::{
    AccessRights, Completion, CompletionKind, Fabric, LinkControl, LinkId, MatchKey, Op, OpSource, OpStatus,
    PostError, Rail, RailConfig, RecvOrder, RegionExtent, RegionKeys, RegionPurpose, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::time::Duration;

use crate::{NetworkModel, SimFabric, SimRail, SimRng, SimWorld};

const CONFIG: RailConfig = RailConfig {
    depth: 64,
    recv_depth: 64,
    recv_order: RecvOrder::Posted,
    links: 16,
    peer_time: Duration::from_secs(10),
    rail_time: Duration::from_secs(3),
    receives: false,
    traffic_class: None,
    many: false,
};
struct End {
    rail: SimRail,
    link: LinkId,
    memory: MemoryRange,
    keys: RegionKeys,
}

impl End {
    fn poll(&mut self) -> Vec<Completion> {
        let mut out = [Completion::BLANK; 16];
        let count = self.rail.poll(&mut out);
        out[..count].to_vec()
    }

    fn drain(&mut self, polls: usize) -> Vec<Completion> {
        (0..polls).flat_map(|_| self.poll()).collect()
    }

    fn extent(&self, offset: u64, len: u64) -> RegionExtent {
        RegionExtent { key: self.keys.local, offset, len }
    }

    fn remote(&self, offset: u64) -> RemoteLocation {
        RemoteLocation {
            key: self.keys.remote,
            addr: self.keys.remote_base + offset,
            purpose: RegionPurpose::Data,
        }
    }

    fn post(&mut self, wr_id: u64, op: Op<'_>) {
        self.rail.post(self.link, wr_id, op, true).unwrap();
        self.rail.flush();
    }
}

fn pair(weather: NetworkModel, purpose: RegionPurpose) -> (SimWorld, End, End) {
    let world = SimWorld::new(1, weather, true);
    let ends: Vec<End> = (0..2)
        .map(|_| {
            let process = world.add_process();
            let mut rail = SimFabric::new(&world, process).open_rail(0, &CONFIG).unwrap();
            let memory = MemoryRange::heap(8192);
            let keys = rail.registrar().register(&memory, AccessRights::ALL, purpose).unwrap();
            let link = rail.create_link().unwrap();
            End { rail, link, memory, keys }
        })
        .collect();
    let [mut a, mut b] = <[End; 2]>::try_from(ends).ok().unwrap();
    let (to_a, to_b) = (a.rail.link_address(a.link).unwrap(), b.rail.link_address(b.link).unwrap());
    a.rail.connect(a.link, to_b).unwrap();
    b.rail.connect(b.link, to_a).unwrap();
    (world, a, b)
}

fn bytes_at(memory: &MemoryRange, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_write_lands_before_its_completions() {
    let (_, mut a, mut b) = pair(NetworkModel::fault_free(), RegionPurpose::Data);
    a.memory.write(0, &[7; 100]).unwrap();
    let op = Op::Write { from: OpSource::Region(a.extent(0, 100)), to: b.remote(50), imm: Some(9) };
    a.post(1, op);
    let got = b.drain(20);
    assert_eq!((got.len(), got[0].done, got[0].imm, got[0].len), (1, CompletionKind::Written, Some(9), 100));
    assert_eq!(bytes_at(&b.memory, 49, 102), [vec![0], vec![7; 100], vec![0]].concat());
    let done = a.drain(20);
    assert_eq!((done.len(), done[0].wr_id, done[0].status), (1, 1, OpStatus::Ok));
}

#[test]
fn operations_leave_only_after_a_flush_call() {
    let (_, mut a, mut b) = pair(NetworkModel::fault_free(), RegionPurpose::Bounce);
    let op = Op::Write { from: OpSource::Inline(&[1; 8]), to: b.remote(0), imm: Some(1) };
    a.rail.post(a.link, 1, op, true).unwrap();
    assert!(b.drain(50).is_empty());
    a.rail.flush();
    assert_eq!(b.drain(50).len(), 1);
}

#[test]
fn posted_operations_leave_with_flush_or_poll() {
    let (_, mut a, mut b) = pair(NetworkModel::fault_free(), RegionPurpose::Bounce);
    let op = Op::Write { from: OpSource::Inline(&[1; 8]), to: b.remote(0), imm: Some(1) };
    for polls in [false, true] {
        a.rail.post(a.link, 1, op, false).unwrap();
        a.rail.post(a.link, 2, op, false).unwrap();
        assert_eq!((a.rail.unsent_ops(a.link), b.rail.unsent_ops(b.link)), (2, 0));
        if polls {
            drop(a.poll())
        } else {
            a.rail.flush()
        }
        assert_eq!(a.rail.unsent_ops(a.link), 0);
        assert_eq!(b.drain(50).len(), 2);
    }
}

#[test]
fn cramped_network_accepts_operations_in_parts() {
    let (_, mut a, mut b) =
        pair(NetworkModel { cramped: 900, ..NetworkModel::fault_free() }, RegionPurpose::Bounce);
    for imm in 0..20 {
        let op = Op::Write { from: OpSource::Inline(&[1; 8]), to: b.remote(0), imm: Some(imm) };
        a.rail.post(a.link, 1, op, false).unwrap();
    }
    let (mut left, mut parts, mut came) = (20, 0, 0);
    while left > 0 {
        a.poll();
        let now = a.rail.unsent_ops(a.link);
        assert!(now <= left);
        parts += u32::from(now < left);
        left = now;
        came += b.drain(20).len();
        assert_eq!(came, 20 - left as usize, "only operations that have left arrive");
    }
    assert!(parts > 1, "{parts}");
}

#[test]
fn dialled_link_is_up_after_both_ends_continue() {
    let weather =
        NetworkModel { dialled: true, dial_time: 1_000_000, poll_time: 0, ..NetworkModel::fault_free() };
    let (world, mut a, mut b) = pair(weather, RegionPurpose::Bounce);
    let op = Op::Write { from: OpSource::Inline(&[1; 8]), to: b.remote(0), imm: Some(1) };
    a.rail.post(a.link, 1, op, false).unwrap();
    a.rail.flush();
    assert_eq!((a.rail.poll_link_up(a.link).unwrap(), b.rail.poll_link_up(b.link).unwrap()), (false, false));
    assert_eq!(a.rail.unsent_ops(a.link), 1, "the operation waits");
    world.advance_by(1_000_000);
    let dials = [&mut a, &mut b].map(|end| end.rail.poll_link_up(end.link).unwrap());
    assert!(dials[0] != dials[1], "one end dials, the other is notified later");
    world.advance_by(1_000_000);
    assert!(a.rail.poll_link_up(a.link).unwrap() && b.rail.poll_link_up(b.link).unwrap());
    a.rail.flush();
    assert_eq!(a.rail.unsent_ops(a.link), 0);
    world.advance_by(1_000_000);
    assert_eq!(b.poll().len(), 1);
}

#[test]
fn unanswered_dial_fails_after_a_while() {
    let weather = NetworkModel { dialled: true, no_route: 1000, poll_time: 0, ..NetworkModel::fault_free() };
    let (world, mut a, mut b) = pair(weather, RegionPurpose::Bounce);
    let up = |end: &mut End| end.rail.poll_link_up(end.link).ok();
    assert_eq!((up(&mut a), up(&mut b)), (Some(false), Some(false)));
    world.advance_by(100_000_000);
    let both = [up(&mut a), up(&mut b)];
    assert!(
        both == [None, Some(false)] || both == [Some(false), None],
        "only the dialling end detects it: {both:?}"
    );
}

#[test]
fn a_send_waits_for_a_receive() {
    let (_, mut a, mut b) = pair(NetworkModel::fault_free(), RegionPurpose::Bounce);
    a.post(1, Op::Send { head: b"ab", body: OpSource::Inline(b"cd"), imm: Some(3) });
    assert!(b.drain(20).is_empty() && a.drain(20).is_empty());
    let into = b.extent(0, 64);
    b.post(2, Op::Recv { into });
    let got = b.drain(20);
    assert_eq!(
        (got[0].wr_id, got[0].done, got[0].len, got[0].imm),
        (2, CompletionKind::Received, 4, Some(3))
    );
    assert_eq!(bytes_at(&b.memory, 0, 5), b"abcd\0");
    assert_eq!(a.drain(20).len(), 1);
}

#[test]
fn missing_receive_is_an_error_under_a_limit() {
    let weather = NetworkModel { receiver_time: Some(1_000_000), ..NetworkModel::fault_free() };
    let (world, mut a, _b) = pair(weather, RegionPurpose::Bounce);
    a.post(1, Op::Send { head: b"x", body: OpSource::Inline(b""), imm: None });
    world.advance_by(3_000_000);
    assert_eq!(a.poll()[0].status, OpStatus::ReceiverNotReady);
}

#[test]
fn a_full_completion_queue_holds_the_sender_back() {
    let mut weather = NetworkModel::fault_free();
    weather.caps.completions_max = 4;
    let (world, mut a, mut b) = pair(weather, RegionPurpose::Bounce);
    for i in 0..10 {
        let op = Op::Write { from: OpSource::Inline(&[1; 8]), to: b.remote(0), imm: Some(i) };
        a.rail.post(a.link, 7, op, false).unwrap();
    }
    a.rail.flush();
    world.advance_by(10_000_000);
    assert_eq!(a.rail.post_credits(a.link), 64 - 6, "six writes are not acknowledged");
    let got = b.drain(30);
    assert_eq!(got.iter().map(|c| c.imm).collect::<Vec<_>>(), (0..10).map(Some).collect::<Vec<_>>());
    world.advance_by(10_000_000);
    assert_eq!(a.rail.post_credits(a.link), 64);
}

#[test]
fn depth_is_credit() {
    let mut weather = NetworkModel::fault_free();
    weather.caps.depth_max = 2;
    let (_, mut a, _b) = pair(weather, RegionPurpose::Bounce);
    assert_eq!(a.rail.post_credits(a.link), 2);
    a.post(1, Op::Nop);
    a.post(2, Op::Nop);
    assert_eq!(a.rail.post(a.link, 3, Op::Nop, true), Err(PostError::Busy));
    assert_eq!(a.drain(20).len(), 2);
    assert_eq!(a.rail.post_credits(a.link), 2);
}

#[test]
fn wrong_key_breaks_both_ends_and_writes_nothing() {
    let (_, mut a, mut b) = pair(NetworkModel::fault_free(), RegionPurpose::Bounce);
    let into = b.extent(0, 64);
    b.post(2, Op::Recv { into });
    let to = RemoteLocation { addr: b.keys.remote_base + 8190, ..b.remote(0) };
    a.post(1, Op::Write { from: OpSource::Inline(&[1; 8]), to, imm: None });
    a.post(3, Op::Nop);
    let (at_a, at_b) = (a.drain(50), b.drain(50));
    assert_eq!(
        at_a.iter().map(|c| c.status).collect::<Vec<_>>(),
        [OpStatus::RemoteAccess, OpStatus::Flushed]
    );
    assert_eq!((at_b.len(), at_b[0].wr_id, at_b[0].status), (1, 2, OpStatus::Flushed));
    assert_eq!(bytes_at(&b.memory, 8184, 8), [0; 8]);
    assert_eq!(a.rail.post(a.link, 4, Op::Nop, true), Err(PostError::Refused(OpStatus::Flushed)));
}

#[test]
fn a_dead_peer_ends_operations_after_the_retry_time() {
    let (world, mut a, b) = pair(NetworkModel::fault_free(), RegionPurpose::Bounce);
    world.kill_process(crate::SimPid(1));
    let op = Op::Write { from: OpSource::Inline(&[1; 8]), to: b.remote(0), imm: None };
    a.post(1, op);
    assert!(a.drain(100).is_empty());
    world.advance_by(200_000_000);
    assert_eq!(a.poll()[0].status, OpStatus::PeerDead);
    assert_eq!(bytes_at(&b.memory, 0, 8), [0; 8]);
}

#[test]
fn relaxed_bytes_wait_for_the_flush() {
    let mut weather = NetworkModel::fault_free();
    weather.caps.needs_flush = true;
    let (_, mut a, mut b) = pair(weather, RegionPurpose::Data);
    a.post(1, Op::Write { from: OpSource::Inline(&[5; 16]), to: b.remote(0), imm: Some(1) });
    assert_eq!(b.drain(50).len(), 1);
    assert_eq!(bytes_at(&b.memory, 0, 16), [0; 16]);
    b.post(2, Op::Flush);
    assert_eq!(b.drain(50)[0].wr_id, 2);
    assert_eq!(bytes_at(&b.memory, 0, 16), [5; 16]);
}

#[test]
fn records_are_torn_between_words() {
    let mut torn = false;
    for seed in 0..20 {
        let weather = NetworkModel { pieces: 8, poll_time: 0, jitter: 5_000, ..NetworkModel::fault_free() };
        let (world, mut a, b) = pair(weather, RegionPurpose::Bounce);
        world.lock().dice = SimRng::new(seed, 9);
        a.post(1, Op::Write { from: OpSource::Inline(&[0xff; 64]), to: b.remote(0), imm: None });
        while b.memory.load(0) == Ok(0) && b.memory.load(56) == Ok(0) {
            assert!(world.advance_to_event(1_000_000));
        }
        torn |= b.memory.load(0) == Ok(0) && b.memory.load(56) != Ok(0);
        assert!((0..8).all(|word| [Ok(0), Ok(u64::MAX)].contains(&b.memory.load(8 * word))));
    }
    assert!(torn, "in some run the last word arrives before the first");
}

#[test]
fn order_is_kept_only_where_promised() {
    for ordered in [true, false] {
        let mut weather = NetworkModel { jitter: 50_000, ..NetworkModel::fault_free() };
        weather.caps.link_order = ordered;
        let (world, mut a, mut b) = pair(weather, RegionPurpose::Bounce);
        for i in 0..32 {
            let op = Op::Write { from: OpSource::Inline(&[1; 8]), to: b.remote(0), imm: Some(i) };
            a.post(u64::from(i), op);
        }
        world.advance_by(10_000_000);
        let seen: Vec<u32> = b.drain(20).iter().filter_map(|c| c.imm).collect();
        assert_eq!(seen.len(), 32);
        assert_eq!(seen.is_sorted(), ordered);
        assert_eq!(a.drain(20).iter().map(|c| c.wr_id).is_sorted(), ordered);
    }
}

#[test]
fn write_carries_an_immediate_only_where_supported() {
    let (_, mut a, mut b) = pair(NetworkModel::fault_free().without_immediates(), RegionPurpose::Bounce);
    let write = |imm| Op::Write { from: OpSource::Inline(&[1; 8]), to: b.remote(0), imm };
    let refused = a.rail.post(a.link, 1, write(Some(0)), true);
    assert_eq!(refused, Err(PostError::Refused(OpStatus::Other(2))));
    let plain = write(None);
    a.post(2, plain);
    assert!(b.drain(20).is_empty());
    assert_eq!(a.drain(20).iter().map(|one| one.wr_id).collect::<Vec<_>>(), [2], "the link still works");
}

/// A completed operation need not have arrived; an operation that was proved by a later one must have: payload,
/// records and sends alike.
#[test]
fn completions_precede_arrival_only_where_permitted() {
    for (arrives, ordered) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut early = 0;
        for seed in 0..40 {
            let mut weather = NetworkModel { jitter: 50_000, poll_time: 0, ..NetworkModel::fault_free() };
            weather.caps.link_order = ordered;
            let weather = if arrives { weather } else { weather.without_arrival() };
            let (world, mut a, mut b) = pair(weather, RegionPurpose::Bounce);
            world.lock().dice = SimRng::new(seed, 9);
            a.memory.write(0, &[7; 4096]).unwrap();
            let (into, from) = (b.extent(8000, 8), OpSource::Region(a.extent(0, 4096)));
            b.post(5, Op::Recv { into });
            a.post(1, Op::Write { from, to: b.remote(0), imm: Some(1) });
            a.post(2, Op::Send { head: &[7], body: OpSource::Inline(&[]), imm: None });
            let proves = !arrives || ordered;
            if proves {
                a.post(3, Op::Nop);
            }
            let (mut seen, mut freed) = (Vec::new(), false);
            while seen.len() < 2 + usize::from(proves) {
                assert!(world.advance_to_event(1_000_000), "seed {seed}: {seen:?}");
                seen.extend(a.poll().iter().map(|one| (one.wr_id, one.status)));
                let there = [bytes_at(&b.memory, 0, 4096) == [7; 4096], bytes_at(&b.memory, 8000, 1) == [7]];
                if seen.contains(&(1, OpStatus::Ok)) && !std::mem::replace(&mut freed, true) {
                    early += usize::from(!there[0]);
                    a.memory.write(0, &[8; 4096]).unwrap();
                }
                if seen.contains(&(3, OpStatus::Ok)) {
                    assert_eq!(
                        (there, b.poll().len()),
                        ([true; 2], 2),
                        "seed {seed}: a completion without proof of arrival"
                    );
                }
            }
            world.advance_by(10_000_000);
            assert_eq!(
                bytes_at(&b.memory, 0, 4096),
                [7; 4096],
                "seed {seed}: a completed operation still used its memory"
            );
            assert_eq!(a.poll().len(), 0, "each operation completes once");
        }
        assert_eq!(early > 0, !arrives, "{early} of 40 completed before their arrival");
    }
}

#[test]
fn completed_operations_are_lost_with_links_where_permitted() {
    let mut lost = 0;
    for seed in 0..40 {
        let weather =
            NetworkModel { jitter: 50_000, poll_time: 0, ..NetworkModel::fault_free() }.without_arrival();
        let (world, mut a, b) = pair(weather, RegionPurpose::Bounce);
        world.lock().dice = SimRng::new(seed, 9);
        a.post(1, Op::Write { from: OpSource::Inline(&[1; 8]), to: b.remote(0), imm: None });
        while a.poll().is_empty() {
            assert!(world.advance_to_event(1_000_000));
        }
        a.rail.fail_link(a.link);
        world.advance_by(10_000_000);
        assert_eq!(a.poll().len(), 0, "the operation has completed before");
        lost += usize::from(bytes_at(&b.memory, 0, 8) == [0; 8]);
    }
    assert!((1..40).contains(&lost), "{lost} of 40 completed operations were lost");
}

#[test]
fn reads_and_atomics_return_remote_values() {
    let (_, mut a, mut b) =
        pair(NetworkModel { based: true, ..NetworkModel::fault_free() }, RegionPurpose::Bounce);
    b.memory.store(8, 40).unwrap();
    let (old, at) = (a.extent(0, 8), b.remote(8));
    a.post(1, Op::FetchAdd { old, at, add: 2 });
    a.drain(20);
    let old = a.extent(8, 8);
    a.post(2, Op::CompareSwap { old, at, expect: 42, swap: 7 });
    a.drain(20);
    let (into, from) = (a.extent(16, 8), b.remote(8));
    a.post(3, Op::Read { into, from });
    assert_eq!(a.drain(20).len(), 1);
    assert!(b.drain(20).is_empty());
    assert_eq!([a.memory.load(0), a.memory.load(8), a.memory.load(16)], [Ok(40), Ok(42), Ok(7)]);
}

#[test]
fn matched_sends_find_their_receive() {
    let (_, mut a, mut b) = pair(NetworkModel::fault_free(), RegionPurpose::Bounce);
    a.post(1, Op::MatchedSend { from: OpSource::Inline(b"one"), key: MatchKey(1) });
    a.post(2, Op::MatchedSend { from: OpSource::Inline(b"two"), key: MatchKey(2) });
    assert!(b.drain(20).is_empty());
    let (first, second) = (b.extent(0, 8), b.extent(8, 8));
    b.post(20, Op::MatchedRecv { into: first, key: MatchKey(2) });
    b.post(10, Op::MatchedRecv { into: second, key: MatchKey(1) });
    let got: Vec<(u64, u64)> = b.drain(20).iter().map(|c| (c.wr_id, c.len)).collect();
    assert_eq!(got, [(20, 3), (10, 3)]);
    assert_eq!(bytes_at(&b.memory, 0, 11), b"two\0\0\0\0\0one");
    assert_eq!(a.drain(20).len(), 2);
}

#[test]
fn limits_are_errors_that_name_them() {
    let mut weather = NetworkModel::fault_free();
    weather.caps.links_max = 1;
    weather.caps.regions_max = 1;
    let (_, mut a, _b) = pair(weather, RegionPurpose::Bounce);
    assert!(a.rail.create_link().unwrap_err().to_string().contains("all 1 queue pairs"));
    let again = a.rail.registrar().register(&a.memory, AccessRights::LOCAL, RegionPurpose::Bounce);
    assert!(again.unwrap_err().to_string().contains("all 1 regions"));
    a.rail.registrar().deregister(a.keys.local).unwrap();
    a.rail.registrar().register(&a.memory, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap();
}
