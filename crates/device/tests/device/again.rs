//! Queues that are ended, and later queues with the same numbers.

use trunkline_device_queue::{EntryTicket, PollLimit, WaitError};
use trunkline_proto::wire::device_queue::{EntryStatus, EntryWork, QueueEntry};

use crate::ranks::{NEAR, WAYS, done, few, patience};

/// Queues are created and ended, with their companions. An executor for six queues then has room for six again, and a
/// ticket stays bound to the queue that issued it.
#[test]
fn ended_queues_free_their_places() {
    for way in WAYS {
        let ranks = few(2, way, 6);
        let rank = &ranks[0];
        let mut old = [None::<EntryTicket>; 6];
        for round in 0..40_u64 {
            let queues = [(); 3].map(|()| rank.queues.make_queue(4).unwrap());
            for queue in &queues {
                let ticket = done(queue, &[rank.signal(1, 0, 1)]);
                let companion =
                    rank.queues.find_queue(queue.companion_within(&mut patience()).unwrap()).unwrap();
                let wait = QueueEntry::new(EntryWork::Wait { queue: ticket.queue, index: ticket.index });
                let counted = done(&companion, &[wait, rank.signal(0, 1, 1)]);
                for (queue, ticket) in [(queue, ticket), (&companion, counted)] {
                    if let Some(old) = old[ticket.queue as usize].replace(ticket) {
                        assert_eq!(queue.poll(old), Err(WaitError::Stale), "{way:?}, round {round}");
                    }
                }
            }
            assert!(rank.queues.make_queue(4).is_err(), "{way:?}: the executor has room for six queues only");
            for queue in &queues {
                rank.queues.end_queue(queue.queue_shape().number());
                assert!(
                    queue
                        .wait(
                            EntryTicket {
                                queue: queue.queue_shape().number(),
                                epoch: queue.queue_shape().epoch(),
                                index: 9
                            },
                            &mut PollLimit(1)
                        )
                        .is_err()
                );
                assert_eq!(queue.abort_word().map(|why| why.status), Some(EntryStatus::Abandoned));
            }
            assert_eq!(rank.wait_signal(1, 3 * (round + 1)), Ok(3 * (round + 1)), "{way:?}");
        }
    }
}

/// Operations in progress on an ended queue end first: until then its number is not reused.
#[test]
fn ended_queue_finishes_its_operations_first() {
    let ranks = few(2, NEAR, 1);
    let rank = &ranks[0];
    let queue = rank.queues.make_queue(8).unwrap();
    // No pass executes the entry before: it is written and published by hand, and its doorbell is rung only here.
    let ticket = rank.queues.with_executor(|_| {
        queue.post(&[rank.signal(1, 0, 1), rank.signal(1, 0, 1)], &mut PollLimit(1)).unwrap()
    });
    rank.queues.end_queue(0);
    let ended = queue.wait(ticket, &mut patience());
    assert!(matches!(ended, Ok(()) | Err(WaitError::Failed(_) | WaitError::Aborted(_))), "{ended:?}");
    let again = rank.queues.make_queue(8).unwrap();
    assert_eq!((again.queue_shape().number(), again.queue_shape().epoch()), (0, 1));
    done(&again, &[rank.inline(&[1; 8], 1, 0)]);
}
