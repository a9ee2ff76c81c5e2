//! A part in device memory that the network reaches. It is the heap itself, so the device copies none of its bytes, and
//! no requests are posted. The network and the stream are those of `orders`.

use trunkline_proto::wire::device_queue::EntryWork;

use crate::orders::{Job, OWNER, lock};
use crate::ranks::{bytes_of, pattern};

const LEN: u64 = 700_000;

/// Ends all events of an entry. Returns the number of its network operations.
fn count_operations(job: &mut Job, rank: usize, work: EntryWork) -> u32 {
    let ticket = job.post(rank, work);
    let mut operations = 0;
    loop {
        job.settle();
        if job.choices() == 0 {
            break;
        }
        job.happen(0);
        operations += 1;
    }
    assert!(job.is_done(rank, ticket), "{work:?}");
    operations
}

#[test]
fn bytes_of_a_reached_device_are_not_copied() {
    let mut job = Job::reached(1 << 20);
    let heap = |job: &Job, rank: usize| lock(&job.wire).heaps[rank].clone();
    let there = |job: &Job, rank, bytes: &[u8]| bytes_of(&heap(job, rank), 64, bytes.len()) == bytes;
    for (nth, other) in [(1, 0), (2, 2)] {
        let bytes = pattern(LEN as usize, nth);
        // From another rank to the device, and back.
        heap(&job, other).write(0, &bytes).unwrap();
        let put =
            EntryWork::Write { from: job.here(other, 0), to: job.there(OWNER, 64), len: LEN, imm: None };
        assert_eq!(count_operations(&mut job, other, put), 1, "a put is one operation");
        assert!(bytes_of(&job.device, 64, LEN as usize) == bytes);
        let read = EntryWork::Read { into: job.here(other, 64), from: job.there(OWNER, 64), len: LEN };
        assert_eq!(count_operations(&mut job, other, read), 1, "a get is one operation");
        assert!(there(&job, other, &bytes));
        // By the owner.
        let bytes = pattern(LEN as usize, nth + 10);
        job.device.write(0, &bytes).unwrap();
        let put =
            EntryWork::Write { from: job.here(OWNER, 0), to: job.there(other, 64), len: LEN, imm: None };
        assert_eq!(count_operations(&mut job, OWNER, put), 1, "an own put is one operation");
        assert!(there(&job, other, &bytes));
        let read = EntryWork::Read { into: job.here(OWNER, 64), from: job.there(other, 64), len: LEN };
        assert_eq!(count_operations(&mut job, OWNER, read), 1, "an own get is one operation");
        assert!(bytes_of(&job.device, 64, LEN as usize) == bytes);
    }
    assert_eq!(lock(&job.stream).count, 0, "the device must copy nothing");
}
