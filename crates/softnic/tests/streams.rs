//! Two threads, one per side, and every byte checked: published bytes are complete.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use common::{poll, poll_until, rail};
use trunkline_fabric::{
    AccessRights, CompletionKind, Fabric, LinkControl, LinkId, Op, OpSource, OpStatus, Rail, RailConfig,
    RecvOrder, RegionExtent, RegionPurpose, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, SoftRail, WireMode};

const SLOTS: u64 = 16;
const SLOT: u64 = 200_000;

fn byte(message: u64, at: u64) -> u8 {
    (message.wrapping_mul(31) ^ at ^ (at >> 8)) as u8
}

fn stream(mode: CopyMode, count: u64) {
    let config = SoftConfig { copy: mode, ..SoftConfig::default() };
    let (mut a, mut b) = (rail(config.clone()), rail(config));
    let (at_a, at_b) = common::connect(&mut a, &mut b);
    let lens: Vec<u64> =
        (0..count).map(|n| [8, 24, 64, 96, 300, 5000, 70_000, SLOT][(n % 8) as usize]).collect();
    let memory = MemoryRange::heap((SLOTS * SLOT) as usize);
    let keys = b.registrar().register(&memory, AccessRights::WRITE, RegionPurpose::Bounce).unwrap();
    let to = RemoteLocation { key: keys.remote, addr: keys.remote_base, purpose: RegionPurpose::Data };
    let sizes = lens.clone();
    let reader = std::thread::spawn(move || {
        let mut next = 0;
        while next < sizes.len() {
            for one in poll(&mut b) {
                assert_eq!(one.status, OpStatus::Ok);
                if one.done != CompletionKind::Written {
                    continue;
                }
                let (message, len) = (next as u64, sizes[next]);
                assert_eq!((one.imm, one.len), (Some(next as u32), len));
                let mut bytes = vec![0; len as usize];
                memory.read(message % SLOTS * SLOT, &mut bytes).unwrap();
                for (at, got) in bytes.into_iter().enumerate() {
                    assert_eq!(got, byte(message, at as u64), "byte {at} of message {message}");
                }
                next += 1;
                // Reports the free place to the writer.
                let done = (next as u64).to_le_bytes();
                let _ =
                    b.post(at_b, 1, Op::Send { head: &done, body: OpSource::Inline(&[]), imm: None }, false);
            }
        }
        (b, memory)
    });
    write(&mut a, at_a, &lens, to);
    let _keep = reader.join().unwrap();
}

fn write(a: &mut SoftRail, link: LinkId, lens: &[u64], to: RemoteLocation) {
    let source = MemoryRange::heap((SLOTS * SLOT) as usize);
    let keys = a.registrar().register(&source, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
    let note = MemoryRange::heap(4096);
    let note_keys = a.registrar().register(&note, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap();
    let into = RegionExtent { key: note_keys.local, offset: 0, len: 8 };
    for _ in 0..32 {
        a.post(link, 0, Op::Recv { into }, true).unwrap();
    }
    let (mut sent, mut freed) = (0u64, 0u64);
    while freed < lens.len() as u64 {
        if sent < lens.len() as u64 && sent - freed < SLOTS {
            let (offset, len) = (sent % SLOTS * SLOT, lens[sent as usize]);
            let bytes: Vec<u8> = (0..len).map(|at| byte(sent, at)).collect();
            source.write(offset, &bytes).unwrap();
            let extent = RegionExtent { key: keys.local, offset, len };
            let to = RemoteLocation { key: to.key, addr: to.addr + offset, purpose: RegionPurpose::Data };
            let from = if len <= 96 { OpSource::Inline(&bytes) } else { OpSource::Region(extent) };
            if a.post(link, 1, Op::Write { from, to, imm: Some(sent as u32) }, false).is_ok() {
                sent += 1;
            }
        }
        for one in poll(a) {
            assert_eq!(one.status, OpStatus::Ok);
            if one.done == CompletionKind::Received {
                freed += 1;
                a.post(link, 0, Op::Recv { into }, true).unwrap();
            }
        }
    }
}

#[test]
fn staged() {
    stream(CopyMode::Staging, 4000);
}

#[test]
fn pulled() {
    stream(CopyMode::Pull, 4000);
}

#[test]
fn shared() {
    stream(CopyMode::Share, 4000);
}

#[test]
fn learned() {
    stream(CopyMode::Auto, 4000);
}

/// A rail with this receive order and its peer, connected over a wire.
fn ordered(wire: WireMode, order: RecvOrder) -> [(SoftRail, LinkId); 2] {
    let config = SoftConfig { wire, ..SoftConfig::default() };
    let open = || {
        let fabric = SoftFabric::new(config.clone()).unwrap();
        fabric.open_rail(0, &RailConfig { recv_order: order, ..common::rail_config() }).unwrap()
    };
    let (mut a, mut b) = (open(), open());
    let (at_a, at_b) = common::connect(&mut a, &mut b);
    poll_until("a connection", || {
        let up = a.poll_link_up(at_a).unwrap() && b.poll_link_up(at_b).unwrap();
        (poll(&mut a).is_empty() && poll(&mut b).is_empty() && up).then_some(())
    });
    [(a, at_a), (b, at_b)]
}

#[test]
fn receives_are_filled_in_the_configured_order() {
    for wire in [WireMode::Shm, WireMode::Tcp] {
        for (order, expected) in [(RecvOrder::Posted, [1, 2, 3]), (RecvOrder::Any, [3, 4, 2])] {
            let [(mut a, at_a), (mut b, at_b)] = ordered(wire, order);
            let memory = MemoryRange::heap(64);
            let keys = b.registrar().register(&memory, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap();
            let into = RegionExtent { key: keys.local, offset: 0, len: 64 };
            (1..4).for_each(|wr_id| b.post(at_b, wr_id, Op::Recv { into }, true).unwrap());
            let mut taken = Vec::new();
            for _ in 0..3 {
                let send = Op::Send { head: &[1], body: OpSource::Inline(&[]), imm: None };
                a.post(at_a, 9, send, false).unwrap();
                taken.push(poll_until("a message", || {
                    poll(&mut a);
                    poll(&mut b).first().map(|one| one.wr_id)
                }));
                if taken.len() == 1 {
                    b.post(at_b, 4, Op::Recv { into }, true).unwrap();
                }
            }
            assert_eq!(taken, expected, "{wire:?}, {order:?}");
        }
    }
}

/// A message that has begun to arrive stays with its receive, although other receives are posted before it ends.
#[test]
fn message_stays_with_the_receive_it_began_in() {
    const LEN: u64 = 2 << 20;
    const RECEIVES: u64 = 20;
    for wire in [WireMode::Shm, WireMode::Tcp] {
        let [(mut a, at_a), (mut b, at_b)] = ordered(wire, RecvOrder::Any);
        let (from, to) = (MemoryRange::heap(LEN as usize), MemoryRange::heap((RECEIVES * LEN) as usize));
        let sent: Vec<u8> = (0..LEN).map(|at| byte(1, at) | 1).collect();
        from.write(0, &sent).unwrap();
        let key = |rail: &SoftRail, memory: &MemoryRange| {
            rail.registrar().register(memory, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap().local
        };
        let (body, key) = (RegionExtent { key: key(&a, &from), offset: 0, len: LEN }, key(&b, &to));
        let op = |at: u64| Op::Recv { into: RegionExtent { key, offset: at * LEN, len: LEN } };
        b.post(at_b, 0, op(0), true).unwrap();
        a.post(at_a, 9, Op::Send { head: &[], body: OpSource::Region(body), imm: None }, true).unwrap();
        let mut posted = 1;
        let taken = poll_until("a message", || {
            poll(&mut a);
            let done = poll(&mut b).first().map(|one| one.wr_id);
            if done.is_none() && posted < RECEIVES {
                b.post(at_b, posted, op(posted), true).unwrap();
                posted += 1;
            }
            done
        });
        assert!(posted > 1);
        for at in 0..RECEIVES {
            let mut got = vec![0; LEN as usize];
            to.read(at * LEN, &mut got).unwrap();
            let whole = if at == taken { got == sent } else { got.iter().all(|&byte| byte == 0) };
            assert!(whole, "{wire:?}: receive {at}, the message took {taken}");
        }
    }
}

/// A Nop completes when the operations before it have been executed, although none of them was signalled.
#[test]
fn nop_waits_for_exactly_the_earlier_operations() {
    for wire in [WireMode::Shm, WireMode::Tcp] {
        let config = SoftConfig { wire, ..SoftConfig::default() };
        let (mut a, mut b) = (rail(config.clone()), rail(config));
        let (at_a, at_b) = common::connect(&mut a, &mut b);
        let up = |rail: &mut SoftRail, link| rail.poll_link_up(link).unwrap();
        poll_until("the link", || (up(&mut a, at_a) & up(&mut b, at_b)).then_some(()));
        let memory = MemoryRange::heap(64);
        let keys = b.registrar().register(&memory, AccessRights::WRITE, RegionPurpose::Bounce).unwrap();
        let to = RemoteLocation { key: keys.remote, addr: keys.remote_base, purpose: RegionPurpose::Data };
        a.post(at_a, 1, Op::Write { from: OpSource::Inline(&[5; 8]), to, imm: None }, false).unwrap();
        a.post(at_a, 2, Op::Nop, true).unwrap();
        a.flush();
        assert_eq!(poll(&mut a), [], "{wire:?}: the peer has not executed it");
        let done = poll_until("the Nop", || {
            assert_eq!(poll(&mut b), []);
            poll(&mut a).pop()
        });
        assert_eq!((done.wr_id, done.status), (2, OpStatus::Ok), "{wire:?}");
        let mut bytes = [0; 8];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [5; 8], "{wire:?}");
    }
}
