//! Groups of threads whose leader posts and waits for all of them: a group continues or stops as one.

use std::sync::Barrier;

use trunkline_device::QueueWords;
use trunkline_device_queue::verdict::GroupVerdict;
use trunkline_device_queue::{DeviceQueue, WaitBudget as _, WaitError, WordMemory as _};
use trunkline_proto::wire::device_queue::{AbortWord, EntryStatus};

use crate::ranks::{Rank, WAYS, patience, ranks};

/// Threads of a group, including its leader.
const THREADS: usize = 4;
/// The number of rounds.
const ROUNDS: u32 = 60;
/// Offsets of the verdicts.
const VERDICTS: u64 = 3 << 20;

/// The round in which a thread stopped, and the reason; a round after the last one if nothing failed.
type Stopped = (u32, Result<(), WaitError>);

struct Group<'a> {
    rank: &'a Rank,
    queue: DeviceQueue<QueueWords>,
    /// The slot of the other rank that the rounds raise.
    slot: u32,
    verdict: GroupVerdict<QueueWords>,
    meets: Barrier,
}

impl<'a> Group<'a> {
    fn new(rank: &'a Rank, queue: DeviceQueue<QueueWords>, slot: u32, number: u64) -> Self {
        let at = VERDICTS + 24 * number;
        (0..3).for_each(|word| rank.words().store(at + 8 * word, 0, std::sync::atomic::Ordering::Relaxed));
        let verdict = GroupVerdict::new(rank.words(), at);
        Self { rank, queue, slot, verdict, meets: Barrier::new(THREADS) }
    }

    /// Runs one thread of the group. Returns how it ended.
    fn run(&self, is_leader: bool) -> Stopped {
        for round in 1..=ROUNDS {
            let end =
                if is_leader { self.lead(round) } else { self.verdict.await_result(round, &mut patience()) };
            if end.is_err() {
                return (round, end);
            }
            self.meets.wait();
        }
        (ROUNDS + 1, Ok(()))
    }

    fn lead(&self, round: u32) -> Result<(), WaitError> {
        let posted = self.queue.post(&[self.rank.signal(1, self.slot, 1)], &mut patience());
        let end = posted
            .map_err(|_| WaitError::Refused)
            .and_then(|ticket| self.queue.wait(ticket, &mut patience()));
        self.verdict.publish_result(round, end);
        end
    }

    /// Runs all threads of the group. The leader's end is the first element.
    fn play(&self) -> Vec<Stopped> {
        std::thread::scope(|scope| {
            let threads =
                [(); THREADS].into_iter().enumerate().map(|(at, ())| scope.spawn(move || self.run(at == 0)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

/// Acceptance case T9: after an abort at any point, all threads of a group end in the same round for the same reason,
/// and none waits for another one.
#[test]
fn abort_ends_all_threads_of_a_group_alike() {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for way in WAYS {
        let ranks = ranks(2, way);
        let (rank, other) = (&ranks[0], &ranks[1]);
        let mut stopped = 0;
        for number in 0..12_u32 {
            let queue: DeviceQueue<QueueWords> = rank.queues.make_queue(16).unwrap();
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let stop = (random >> 33) % 100;
            let why = AbortWord { status: EntryStatus::Aborted, reason: number };
            let slot = 200 + number;
            let groups = [0, 1].map(|at| Group::new(rank, queue.clone(), slot, at));
            std::thread::scope(|scope| {
                let played = groups.each_ref().map(|group| scope.spawn(|| group.play()));
                let mut budget = patience();
                while other.slot(slot).read_value(&other.words()) < stop && budget.spend_poll() {
                    // In inline mode, this waiter also executes the entries.
                    other.words().pause();
                }
                assert!(queue.abort(why), "{way:?}");
                for group in played {
                    let ends = group.join().unwrap();
                    assert!(ends.iter().all(|end| *end == ends[0]), "{way:?}: a group is torn: {ends:?}");
                    stopped += usize::from(ends[0].1.is_err());
                    let told = ends[0].1;
                    let is_it = matches!(told, Ok(()) | Err(WaitError::Refused))
                        || matches!(told, Err(WaitError::Aborted(told)) if told == why)
                        || matches!(told, Err(WaitError::Failed(fault)) if fault.status == EntryStatus::Aborted);
                    assert!(is_it, "{way:?}: {told:?}");
                }
            });
        }
        println!("{way:?}: {stopped} of 24 groups were stopped");
        assert!(stopped > 0, "{way:?}");
    }
}
