//! Large entries of a window in device memory. They are moved in pieces, of which one is copied while others are on the
//! network. The network and the stream are those of `orders`, whose events happen when the test triggers them.

use trunkline_device_queue::WaitError;
use trunkline_mem::MemoryRange;
use trunkline_proto::limits::{DEVICE_PIECE_BYTES, DEVICE_PIECES_MAX};
use trunkline_proto::wire::device_queue::EntryWork;

use crate::orders::{Job, OWNER, lock};
use crate::ranks::{bytes_of, pattern};

const PIECES: u64 = 3;
/// The length; the last piece is shorter than the others.
const LEN: u64 = PIECES * DEVICE_PIECE_BYTES - 128;

/// Returns the network operations and the copies in progress.
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

/// Lets one network operation, or one copy, happen.
fn happen(job: &mut Job, choice: usize) {
    job.happen(choice);
    job.settle();
}

#[test]
fn get_copies_pieces_while_others_arrive() {
    let mut job = Job::new(2 << 20);
    let bytes = pattern(LEN as usize, 3);
    heap(&job, 2).write(0, &bytes).unwrap();
    let read = EntryWork::Read { into: job.here(OWNER, 64), from: job.there(2, 0), len: LEN };
    let read = job.post(OWNER, read);
    job.settle();
    assert_eq!(under_way(&job), (PIECES as usize, 0), "the pieces must be read at the same time");
    happen(&mut job, 0);
    assert_eq!(
        under_way(&job),
        (PIECES as usize - 1, 1),
        "the first piece must be copied while the others arrive"
    );
    happen(&mut job, 0);
    assert_eq!(under_way(&job), (PIECES as usize - 2, 2), "two copies must be in progress");
    assert!(!job.is_done(OWNER, read));
    finish(&mut job);
    assert!(job.is_done(OWNER, read));
    assert!(bytes_of(&job.device, 64, LEN as usize) == bytes, "all bytes must have arrived");
}

#[test]
fn put_copies_pieces_while_others_arrive() {
    let mut job = Job::new(2 << 20);
    let bytes = pattern(LEN as usize, 5);
    heap(&job, 0).write(0, &bytes).unwrap();
    let put = EntryWork::Write { from: job.here(0, 0), to: job.there(OWNER, 64), len: LEN, imm: None };
    let put = job.post(0, put);
    job.settle();
    assert_eq!(under_way(&job), (PIECES as usize, 0), "the pieces must be sent at the same time");
    happen(&mut job, 0);
    assert_eq!(under_way(&job), (PIECES as usize, 0), "the owner must be requested to copy the first piece");
    happen(&mut job, PIECES as usize - 1);
    assert_eq!(
        under_way(&job),
        (PIECES as usize - 1, 1),
        "the first piece must be copied while the others are sent"
    );
    assert!(!job.is_done(0, put));
    finish(&mut job);
    assert!(job.is_done(0, put));
    assert!(bytes_of(&job.device, 64, LEN as usize) == bytes, "all bytes must have arrived");
}

/// Bytes that leave the device pass through bounce buffers, which are shorter than a piece.
#[test]
fn put_from_a_device_overlaps_copies_and_sends() {
    let mut job = Job::new(2 << 20);
    let bytes = pattern(LEN as usize, 7);
    job.device.write(0, &bytes).unwrap();
    let put = EntryWork::Write { from: job.here(OWNER, 0), to: job.there(2, 64), len: LEN, imm: None };
    let put = job.post(OWNER, put);
    job.settle();
    let (going, copied) = under_way(&job);
    assert!(going == 0 && copied >= 2, "{copied} copies and {going} operations are in progress");
    happen(&mut job, 0);
    assert_eq!(
        under_way(&job),
        (1, copied - 1),
        "the first piece must be sent while the next ones are copied"
    );
    finish(&mut job);
    assert!(job.is_done(OWNER, put));
    assert!(bytes_of(&heap(&job, 2), 64, LEN as usize) == bytes, "all bytes must have arrived");
}

/// A bounded number of an entry's pieces is in progress, whatever its length.
#[test]
fn long_get_has_a_bounded_number_of_pieces() {
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
        assert!(coming + copied <= most, "{coming} pieces are being read and {copied} copied");
        match job.choices() {
            0 => break,
            choices => job.happen(choices / 2),
        }
    }
    assert!(job.is_done(OWNER, read));
    assert!(bytes_of(&job.device, 0, len as usize) == bytes, "all bytes must have arrived");
}

/// A network that refuses the first piece at once ends the entry, even if more pieces would follow.
#[test]
fn get_with_refused_pieces_fails() {
    let mut job = Job::new(2 << 20);
    lock(&job.wire).is_lost = true;
    let read = EntryWork::Read { into: job.here(OWNER, 0), from: job.there(2, 0), len: LEN };
    let read = job.post(OWNER, read);
    job.settle();
    assert_eq!(under_way(&job), (0, 0));
    let outcome = job.outcome(OWNER, read);
    assert!(!matches!(outcome, Ok(()) | Err(WaitError::Timeout)), "{outcome:?}");
}
