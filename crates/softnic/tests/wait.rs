//! WAIT, where the software NIC promises more than the contract: the rails that can be waited for, waits after a link
//! was destroyed, and waits across threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{connect, poll, poll_until, rail_config};
use trunkline_fabric::{
    AccessRights, CqPosition, Fabric, LinkControl, LinkId, Op, OpSource, OpStatus, PostError, Rail,
    RegionExtent, RegionPurpose, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_softnic::{SoftConfig, SoftFabric, SoftRail};

/// A link of the rail that is connected to itself.
fn alone(rail: &mut SoftRail) -> LinkId {
    let link = rail.create_link().unwrap();
    let address = rail.link_address(link).unwrap();
    rail.connect(link, address).unwrap();
    link
}

fn wait(cq: CqPosition, ahead: u64) -> Op<'static> {
    Op::Wait { cq: cq.id, index: cq.next.wrapping_add(ahead) }
}

/// Returns a word that is used as a counter, and the operation that increments it.
fn counter(rail: &SoftRail) -> (MemoryRange, Op<'static>) {
    let memory = MemoryRange::heap(64);
    let keys = rail.registrar().register(&memory, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
    let at = RemoteLocation { key: keys.remote, addr: keys.remote_base, purpose: RegionPurpose::Data };
    (memory, Op::FetchAdd { old: RegionExtent { key: keys.local, offset: 8, len: 8 }, at, add: 1 })
}

#[test]
fn waits_for_rails_of_other_nics_are_refused() {
    let config = SoftConfig { nics: 2, ..SoftConfig::default() };
    let fabric = SoftFabric::new(config.clone()).unwrap();
    let mut one = fabric.open_rail(0, &rail_config()).unwrap();
    let link = alone(&mut one);
    let beside = fabric.open_rail(0, &rail_config()).unwrap();
    one.post(link, 1, wait(beside.cq_position().unwrap(), 0), true).unwrap();
    let refused = Err(PostError::Refused(OpStatus::LocalProtection));
    let other = fabric.open_rail(1, &rail_config()).unwrap();
    assert_eq!(one.post(link, 2, wait(other.cq_position().unwrap(), 0), true), refused);
    for _ in 0..100 {
        let stranger = SoftFabric::new(config.clone()).unwrap().open_rail(0, &rail_config()).unwrap();
        assert_eq!(one.post(link, 2, wait(stranger.cq_position().unwrap(), 0), true), refused);
    }
    let gone = beside.cq_position().unwrap();
    drop(beside);
    assert_eq!(one.post(link, 2, wait(gone, 0), true), refused);
}

#[test]
fn completion_numbers_begin_as_configured_and_wrap() {
    let config = SoftConfig { start_position: u64::MAX - 2, ..SoftConfig::default() };
    let mut rail = common::rail(config);
    let link = alone(&mut rail);
    let cq = rail.cq_position().unwrap();
    assert_eq!(cq.next, u64::MAX - 2);
    for ahead in 0..3 {
        rail.post(link, ahead, Op::Nop, true).unwrap();
    }
    rail.post(link, 3, wait(cq, 2), true).unwrap();
    rail.post(link, 4, wait(cq, 3), true).unwrap();
    let mut seen = Vec::new();
    poll_until("five completions", || {
        seen.extend(poll(&mut rail));
        (seen.len() == 5).then_some(())
    });
    assert_eq!(rail.cq_position().unwrap().next, 2);
}

/// A destroyed link with unfinished work never produces its completions; those of other links get their numbers. A
/// wait for a lost completion must not end with one of those.
#[test]
fn destroyed_work_fails_its_waits() {
    let fabric = SoftFabric::new(SoftConfig::default()).unwrap();
    let mut main = fabric.open_rail(0, &rail_config()).unwrap();
    let mut peer = fabric.open_rail(0, &rail_config()).unwrap();
    let mut side = fabric.open_rail(0, &rail_config()).unwrap();
    let (word, add) = counter(&side);
    for unfinished in [false, true] {
        let companion = alone(&mut side);
        let (doomed, _) = connect(&mut main, &mut peer);
        let other = alone(&mut main);
        if unfinished {
            let send = Op::Send { head: &[1], body: OpSource::Inline(&[]), imm: None };
            main.post(doomed, 1, send, true).unwrap();
        }
        // A posted receive does not promise a completion.
        let memory = MemoryRange::heap(64);
        let keys = main.registrar().register(&memory, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap();
        main.post(doomed, 2, Op::Recv { into: RegionExtent { key: keys.local, offset: 0, len: 8 } }, true)
            .unwrap();
        side.post(companion, 1, wait(main.cq_position().unwrap(), 0), true).unwrap();
        side.post(companion, 2, add, true).unwrap();
        poll(&mut side);
        main.destroy_link(doomed);
        main.post(other, 3, Op::Nop, true).unwrap();
        poll_until("the completion of the other link", || poll(&mut main).first().copied());
        let mut told = Vec::new();
        poll_until("the wait's end", || {
            told.extend(poll(&mut side).into_iter().map(|one| one.status));
            (told.len() == 2).then_some(())
        });
        let want = if unfinished { OpStatus::Flushed } else { OpStatus::Ok };
        assert_eq!(told, [want, want]);
        assert_eq!(word.load(0), Ok(1), "more than the finished wait was counted");
    }
}

/// One thread writes and polls, another one waits and counts, and a third one checks that counted puts have arrived.
#[test]
fn companion_on_another_thread_never_counts_early() {
    const PUTS: u64 = 20_000;
    let fabric = SoftFabric::new(SoftConfig::default()).unwrap();
    let mut main = fabric.open_rail(0, &rail_config()).unwrap();
    let mut peer = fabric.open_rail(0, &rail_config()).unwrap();
    let mut side = fabric.open_rail(0, &rail_config()).unwrap();
    let (at_main, _) = connect(&mut main, &mut peer);
    let companion = alone(&mut side);
    let (word, add) = counter(&side);
    let target = MemoryRange::heap(8 * PUTS as usize);
    let keys = peer.registrar().register(&target, AccessRights::WRITE, RegionPurpose::Bounce).unwrap();
    let cq = main.cq_position().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&done);
    let writer = std::thread::spawn(move || {
        let mut put = 0;
        while !until.load(Ordering::Acquire) {
            let bytes = (put + 1_u64).to_le_bytes();
            let to = RemoteLocation {
                key: keys.remote,
                addr: keys.remote_base + 8 * put,
                purpose: RegionPurpose::Data,
            };
            let op = Op::Write { from: OpSource::Inline(&bytes), to, imm: None };
            if put < PUTS && main.post(at_main, put, op, true).is_ok() {
                put += 1;
            }
            assert!(poll(&mut main).iter().all(|one| one.status == OpStatus::Ok));
            poll(&mut peer);
        }
    });
    let until = Arc::clone(&done);
    let counting = std::thread::spawn(move || {
        let mut booked = 0;
        while !until.load(Ordering::Acquire) {
            if booked < PUTS && side.post_credits(companion) >= 2 {
                side.post(companion, booked, wait(cq, booked), false).unwrap();
                side.post(companion, booked, add, false).unwrap();
                booked += 1;
            }
            assert_eq!(poll(&mut side), []);
        }
    });
    let mut seen = 0;
    poll_until("all counts", || {
        let count = word.load(0).unwrap();
        for put in seen..count {
            assert_eq!(target.load(8 * put), Ok(put + 1), "put {put} was counted before it arrived");
        }
        seen = count;
        (seen == PUTS).then_some(())
    });
    done.store(true, Ordering::Release);
    writer.join().unwrap();
    counting.join().unwrap();
}
