//! Large entries of a window in memory of a device: they move in pieces, of which one is copied while others are in flight on the network.
//! The network and the stream are those of `orders`, whose events happen when the test triggers them.

use trunkline_device_queue::WaitError;
use trunkline_mem::MemoryRange;
use trunkline_proto::limits::{DEVICE_PIECE_BYTES, DEVICE_PIECES_MAX};
use trunkline_proto::wire::device_queue::EntryWork;

use crate::orders::{Job, OWNER, lock};
use crate::ranks::{bytes_of, pattern};

const PIECES: u64 = 3;
/// Not all pieces are whole.
const LEN: u64 = PIECES * DEVICE_PIECE_BYTES - 128;

/// Operations of the network, and copies, in progress.
fn under_way(job: &Job) -> (usize, usize) {
    (lock(&job.wire).begun.len(), lock(&job.stream).begun.len())
}

/// Lets all remaining events happen.
fn finish(job: &mut Job) {
    loop {
        job.settle();
        match job.choices() {
            0 => return,
            choices => job.happen(choices - 1),
        }
    }
}

fn heap(job: &Job, rank: usize) -> MemoryRange {
    lock(&job.wire).heaps[rank].clone()
}

/// Lets one operation of the network happen, or one copy.
fn happen(job: &mut Job, choice: usize) {
    job.happen(choice);
    job.settle();
}

#[test]
fn a_get_is_copied_while_its_next_piece_comes() {
    let mut job = Job::new(2 << 20);
    let bytes = pattern(LEN as usize, 3);
    heap(&job, 2).write(0, &bytes).unwrap();
    let read = EntryWork::Read { into: job.here(OWNER, 64), from: job.there(2, 0), len: LEN };
    let read = job.post(OWNER, read);
    job.settle();
    assert_eq!(under_way(&job), (PIECES as usize, 0), "pieces come side by side");
    happen(&mut job, 0);
    assert_eq!(under_way(&job), (PIECES as usize - 1, 1), "the first one is copied while the others come");
    happen(&mut job, 0);
    assert_eq!(under_way(&job), (PIECES as usize - 2, 2), "two copies are under way");
    assert!(!job.is_done(OWNER, read));
    finish(&mut job);
    assert!(job.is_done(OWNER, read));
    assert!(bytes_of(&job.device, 64, LEN as usize) == bytes, "all bytes are there");
}

#[test]
fn a_put_is_copied_while_its_next_piece_comes() {
    let mut job = Job::new(2 << 20);
    let bytes = pattern(LEN as usize, 5);
    heap(&job, 0).write(0, &bytes).unwrap();
    let put = EntryWork::Write { from: job.here(0, 0), to: job.there(OWNER, 64), len: LEN, imm: None };
    let put = job.post(0, put);
    job.settle();
    assert_eq!(under_way(&job), (PIECES as usize, 0), "pieces go side by side");
    happen(&mut job, 0);
    assert_eq!(under_way(&job), (PIECES as usize, 0), "the owner is asked to bring the first one");
    happen(&mut job, PIECES as usize - 1);
    assert_eq!(under_way(&job), (PIECES as usize - 1, 1), "which is copied while the others go");
    assert!(!job.is_done(0, put));
    finish(&mut job);
    assert!(job.is_done(0, put));
    assert!(bytes_of(&job.device, 64, LEN as usize) == bytes, "all bytes are there");
}

/// Bytes on their way from the device lie in rooms, which are smaller than a piece.
#[test]
fn a_put_from_a_device_goes_while_its_next_piece_is_copied() {
    let mut job = Job::new(2 << 20);
    let bytes = pattern(LEN as usize, 7);
    job.device.write(0, &bytes).unwrap();
    let put = EntryWork::Write { from: job.here(OWNER, 0), to: job.there(2, 64), len: LEN, imm: None };
    let put = job.post(OWNER, put);
    job.settle();
    let (going, copied) = under_way(&job);
    assert!(going == 0 && copied >= 2, "{copied} copies are under way");
    happen(&mut job, 0);
    assert_eq!(under_way(&job), (1, copied - 1), "the first piece goes while the next ones are copied");
    finish(&mut job);
    assert!(job.is_done(OWNER, put));
    assert!(bytes_of(&heap(&job, 2), 64, LEN as usize) == bytes, "all bytes are there");
}

/// Whatever the length of an entry, a bounded number of its pieces is in progress.
#[test]
fn a_long_get_has_a_bounded_number_of_pieces() {
    let len = 3 * u64::from(DEVICE_PIECES_MAX) * DEVICE_PIECE_BYTES;
    let mut job = Job::new(len);
    let bytes = pattern(len as usize, 9);
    heap(&job, 2).write(0, &bytes).unwrap();
    let read = EntryWork::Read { into: job.here(OWNER, 0), from: job.there(2, 0), len };
    let read = job.post(OWNER, read);
    let most = DEVICE_PIECES_MAX as usize;
    loop {
        job.settle();
        let (coming, copied) = under_way(&job);
        assert!(coming + copied <= most, "{coming} pieces come, {copied} are copied");
        match job.choices() {
            0 => break,
            choices => job.happen(choices / 2),
        }
    }
    assert!(job.is_done(OWNER, read));
    assert!(bytes_of(&job.device, 0, len as usize) == bytes, "all bytes are there");
}

/// A network that refuses the first piece at once ends the entry, also if more pieces would follow.
#[test]
fn a_get_whose_pieces_fail_at_once_fails() {
    let mut job = Job::new(2 << 20);
    lock(&job.wire).is_lost = true;
    let read = EntryWork::Read { into: job.here(OWNER, 0), from: job.there(2, 0), len: LEN };
    let read = job.post(OWNER, read);
    job.settle();
    assert_eq!(under_way(&job), (0, 0));
    let outcome = job.outcome(OWNER, read);
    assert!(!matches!(outcome, Ok(()) | Err(WaitError::Timeout)), "{outcome:?}");
}
