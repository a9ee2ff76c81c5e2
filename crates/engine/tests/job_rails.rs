//! One-sided operations between members whose NICs fail, over the wires of the software NIC: operations that were begun
//! complete over the remaining NICs.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../device/tests/device/mortal.rs"]
mod mortal;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{ContextId, HeapRange, LossCause, PutSource, RmaError, RmaJob};
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::MemoryRange;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use mortal::{Dead, Mortal, NICS};

const HEAP: usize = 4 << 20;

struct Member {
    job: RmaJob<Mortal, UnixHost>,
    dead: Dead,
    heap: MemoryRange,
    context: ContextId,
}

/// Members of one job, in one thread. Every blocking call makes progress on all of them.
struct Members(Vec<Member>);

impl Members {
    fn new(wire: WireMode, counts: &[usize]) -> Self {
        let job = |&count: &usize| {
            let config = SoftConfig { wire, nics: NICS, ..SoftConfig::default() };
            let dead = Dead::default();
            let fabric = Mortal(SoftFabric::new(config).unwrap(), Arc::clone(&dead));
            let nics: Vec<usize> = (0..count).collect();
            let host = UnixHost::new(|_, _| {});
            let nics = CommNics::new(&nics).unwrap();
            (RmaJob::new(fabric, host, EngineParams::default(), nics).unwrap(), dead)
        };
        let jobs: Vec<_> = counts.iter().map(job).collect();
        let cards: Vec<_> = jobs.iter().map(|(job, _)| job.process_card()).collect();
        let member = |(me, (job, dead)): (usize, (RmaJob<_, _>, Dead))| {
            job.set_members(me as u32, &cards).unwrap();
            let heap = MemoryRange::heap(HEAP);
            job.add_heap(heap.clone()).unwrap();
            let context = job.create_context().unwrap();
            Member { job, dead, heap, context }
        };
        Self(jobs.into_iter().enumerate().map(member).collect())
    }

    fn kill(&self, of: usize, nic: usize) {
        self.0[of].dead[nic].store(true, Ordering::Relaxed);
    }

    fn until<T>(&self, mut f: impl FnMut() -> Result<Option<T>, RmaError>) -> Result<T, RmaError> {
        let started = Instant::now();
        loop {
            if let Some(done) = f()? {
                return Ok(done);
            }
            for member in &self.0 {
                member.job.progress(member.context).unwrap();
            }
            assert!(started.elapsed().as_secs() < 60, "the operation did not complete within 60 s");
        }
    }

    fn put(&self, of: usize, to: u32, offset: u64, mut from: HeapRange) {
        let Member { job, context, .. } = &self.0[of];
        let mut at = offset;
        while from.len > 0 {
            let taken = self.until(|| job.put(*context, to, 0, at, PutSource::Heap(from))).unwrap();
            (at, from.offset, from.len) = (at + taken, from.offset + taken, from.len - taken);
        }
    }

    fn quiet(&self, of: usize) {
        let Member { job, context, .. } = &self.0[of];
        self.until(|| Ok(job.quiet(*context)?.then_some(()))).unwrap();
    }
}

fn word(offset: u64) -> SymmetricWord {
    SymmetricWord::new(0, offset, WordWidth::Eight).unwrap()
}

const SUM: u64 = 0;
const SIGNAL: u64 = 8;
const SMALL: u64 = 4096;
const LONG: u64 = 1 << 20;
const FROM: u64 = 2 << 20;
const LEN: u64 = 900_000;

/// A round with each kind of operation, from member 0 to member 1. `kill` is called in the middle of it.
fn round(members: &Members, round: u64, kill: impl FnOnce(&Members)) {
    let [from, to] = [0, 1].map(|at| &members.0[at]);
    let Member { job, context, heap, .. } = from;
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 + round * 13) as u8).collect();
    heap.write(FROM, &bytes).unwrap();
    members.put(0, 1, LONG, HeapRange { heap: 0, offset: FROM, len: LEN });
    for at in 0..40 {
        let value = (round * 1000 + at).to_le_bytes();
        let put = || job.put(*context, 1, 0, SMALL + 8 * at, PutSource::Bytes(&value));
        assert_eq!(members.until(put).unwrap(), 8);
    }
    let add = TypedAtomic::new(AtomicType::U64, AtomicAction::Add(round), false).unwrap();
    for _ in 0..10 {
        let _ = members.until(|| job.post_atomic(*context, 1, word(SUM), add)).unwrap();
    }
    kill(members);
    let update = SignalUpdate::new(UpdateOp::Add, word(SIGNAL), 1).unwrap();
    let source = PutSource::Heap(HeapRange { heap: 0, offset: FROM, len: LEN });
    members.until(|| Ok(job.put_signal(*context, 1, 0, LONG, source, update)?.then_some(()))).unwrap();
    members.until(|| Ok((to.heap.load(SIGNAL).unwrap() == round).then_some(()))).unwrap();
    let mut there = vec![0; LEN as usize];
    to.heap.read(LONG, &mut there).unwrap();
    assert!(there == bytes, "round {round}: the signal arrived before the data of its put");
    for at in 0..40 {
        assert_eq!(
            to.heap.load(SMALL + 8 * at).unwrap(),
            round * 1000 + at,
            "the signal arrived before an earlier put"
        );
    }
    members.quiet(0);
    assert_eq!(to.heap.load(SUM).unwrap(), 10 * (1..=round).sum::<u64>(), "each atomic is executed once");
    let (mut done, len) = (0, LEN);
    while done < len {
        let into = HeapRange { heap: 0, offset: FROM + done, len: len - done };
        done += members.until(|| job.get(*context, 1, 0, LONG + done, into)).unwrap();
    }
    members.quiet(0);
    heap.read(FROM, &mut there).unwrap();
    assert!(there == bytes, "round {round}: a get returned other bytes than were put");
}

#[test]
fn operations_complete_over_the_remaining_nics() {
    for wire in [WireMode::Auto, WireMode::Shm, WireMode::Tcp] {
        for (counts, deaths) in [
            (&[4, 4][..], &[(0, 0), (1, 1), (0, 3)][..]),
            (&[2, 2], &[(1, 0)]),
            (&[4, 1], &[(0, 0), (0, 1), (0, 3)]),
            (&[2, 4], &[(1, 3), (1, 1), (1, 2)]),
            (&[1, 2], &[(1, 1)]),
        ] {
            let members = Members::new(wire, counts);
            round(&members, 1, |_| {});
            let mut next = 2;
            for &(of, nic) in deaths {
                round(&members, next, |members| members.kill(of, nic));
                round(&members, next + 1, |_| {});
                next += 2;
            }
        }
    }
}

#[test]
fn member_without_a_rail_is_reported_lost() {
    for wire in [WireMode::Shm, WireMode::Tcp] {
        let members = Members::new(wire, &[2, 2, 2]);
        round(&members, 1, |_| {});
        let Member { job, context, .. } = &members.0[0];
        let to_other = || job.put(*context, 2, 0, 0, PutSource::Bytes(&[1; 8]));
        members.until(to_other).unwrap();
        members.quiet(0);
        (0..2).for_each(|nic| members.kill(1, nic));
        let mut told = 0;
        let lost = members.until(|| {
            match job.quiet(*context) {
                Err(RmaError::Failed { member: 1, .. }) => told += 1,
                quiet => drop(quiet.unwrap()),
            }
            job.put(*context, 1, 0, 0, PutSource::Bytes(&[2; 8]))?;
            Ok(None::<()>)
        });
        let lost = lost.unwrap_err();
        let is_named =
            matches!(lost, RmaError::Lost { member: 1, lost: LossCause::Rails { rail: 0 | 1, .. } });
        assert!(is_named && told <= 1, "{wire:?}: {lost}");
        assert!(lost.to_string().starts_with("member 1: the last rail to it, "), "{lost}");
        // A failure of pending operations that has not been reported yet is reported now, once. Member 2 is unaffected.
        let _ = job.quiet(*context);
        members.until(to_other).unwrap();
        members.quiet(0);
        // Operations of the lost member fail in the same way, and none of them waits for ever.
        let Member { job, context, .. } = &members.0[1];
        let own = members.until(|| {
            job.put(*context, 0, 0, 0, PutSource::Bytes(&[2; 8]))?;
            Ok(None::<()>)
        });
        assert!(matches!(own, Err(RmaError::Lost { member: 0, .. })));
    }
}

#[test]
fn idle_context_reports_a_lost_rail() {
    for wire in [WireMode::Shm, WireMode::Tcp] {
        let members = Members::new(wire, &[1, 1]);
        let Member { job, context, .. } = &members.0[0];
        members.until(|| job.put(*context, 1, 0, 0, PutSource::Bytes(&[1; 8]))).unwrap();
        members.quiet(0);
        members.kill(0, 0);
        let lost = (0..10_000).find_map(|_| {
            job.progress(*context).unwrap();
            job.connect_member(*context, 1).err()
        });
        let is_named =
            matches!(lost, Some(RmaError::Lost { member: 1, lost: LossCause::Rails { rail: 0, .. } }));
        assert!(is_named, "{wire:?}: {lost:?}");
    }
}
