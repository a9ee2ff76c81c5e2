//! The state of a device that all its processes share: one file of memory, which begins with a table of allocations and continues with the
//! device's memory. docs/wire.md specifies the words.
//!
//! Holders of memory are not recorded in the table. They hold locks on bytes of the same file, which the kernel
//! releases when the holder ends for any reason. An allocation's memory is in use while any process holds a lock on its
//! bytes. No process therefore has to be trusted or waited for, and no memory leaks.
//! waited for, and no memory leaks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;

use super::error::MemfdError;
use crate::MemoryRange;
use crate::ipc::error::CallFailure;
use crate::ipc::fork_guard::ForkGuard;
use crate::ipc::locks::{self, FileRange, LockMode};
use crate::ipc::mapping::{FIXED, FileMapping, cause_of, create_sized_file, reopen_file};

/// The maximum number of allocations of a device at a time.
pub(super) const SLOTS: usize = 512;
/// Length of the table, in bytes; the device's memory follows.
const TABLE: u64 = 64 << 10;
/// Length of the file, in bytes. Each range is used once, so this bounds all allocations of a device's lifetime; the file is sparse.
const END: u64 = 1 << 52;

const MAGIC: u64 = u64::from_le_bytes(*b"tlipcdev");
const VERSION: u64 = 1;

/// Offsets of the words in the head.
const HEAD: [u64; 6] = [MAGIC_AT, VERSION_AT, NONCE_AT, CAPACITY_AT, NEXT_ID_AT, NEXT_PLACE_AT];
const MAGIC_AT: u64 = 0;
const VERSION_AT: u64 = 8;
const NONCE_AT: u64 = 16;
const CAPACITY_AT: u64 = 24;
const NEXT_ID_AT: u64 = 32;
const NEXT_PLACE_AT: u64 = 40;
const NEXT_PROCESS_AT: u64 = 48;

/// Length of the head and of each allocation's record, in bytes.
const RECORD: u64 = 64;

/// The byte whose lock protects the table. Each of the bytes after it is locked by the owner of the allocation in that slot.
const GATE: FileRange = FileRange { start: 0, len: 1 };

/// Timeout for the lock of the table.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between attempts to lock the table.
const PAUSE: Duration = Duration::from_micros(50);

/// The table, as mapped by this process.
#[derive(Debug)]
pub(super) struct DeviceLedger {
    /// The open file description that owns this process's locks as an allocator.
    file: OwnedFd,
    words: MemoryRange,
    here: Arc<ForkGuard>,
    /// Excludes the threads of this process from each other, because they share the file's locks.
    threads: Mutex<()>,
}

/// An allocation's record, as all processes read it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct AllocationRecord {
    pub(super) id: u64,
    pub(super) process: u64,
    pub(super) base: u64,
    pub(super) len: u64,
    /// The bytes of the file that it uses, and that count against the capacity.
    pub(super) range: FileRange,
}

impl DeviceLedger {
    /// Creates a device of `capacity` bytes.
    pub(super) fn create(capacity: u64, nonce: u64) -> Result<Self, MemfdError> {
        let made = create_sized_file("trunkline.device", END)?;
        let ledger = Self::map_file(&made)?;
        for (at, value) in HEAD.into_iter().zip([MAGIC, VERSION, nonce, capacity, 1, TABLE]) {
            ledger.store_word(at, value)?;
        }
        ledger.store_word(NEXT_PROCESS_AT, 1)?;
        Ok(ledger)
    }

    /// Joins the device of another process.
    pub(super) fn join(of: &impl AsFd) -> Result<Self, MemfdError> {
        let seals = rustix::fs::fcntl_get_seals(of).map_err(|_| MemfdError::Foreign)?;
        let size = rustix::fs::fstat(of).map_err(cause_of("fstat"))?.st_size;
        if !seals.contains(FIXED) || u64::try_from(size) != Ok(END) {
            return Err(MemfdError::Foreign);
        }
        let ledger = Self::map_file(of)?;
        if ledger.get(MAGIC_AT)? != MAGIC {
            return Err(MemfdError::Foreign);
        }
        match ledger.get(VERSION_AT)? {
            VERSION => Ok(ledger),
            other => Err(MemfdError::Version(other)),
        }
    }

    fn map_file(of: &impl AsFd) -> Result<Self, MemfdError> {
        // Opened again, because locks belong to an open file description; this one's belong to this process only.
        let file = reopen_file(of)?;
        let here = Arc::new(ForkGuard::new()?);
        let words = Arc::new(FileMapping::map_file(&here, &file, 0, TABLE as usize)?).memory();
        Ok(Self { file, words, here, threads: Mutex::new(()) })
    }

    fn get(&self, at: u64) -> Result<u64, MemfdError> {
        self.words.load(at).map_err(|_| MemfdError::Broken)
    }

    fn store_word(&self, at: u64, value: u64) -> Result<(), MemfdError> {
        self.words.store(at, value).map_err(|_| MemfdError::Broken)
    }

    /// Returns the random number that handles of this device contain.
    pub(super) fn device_nonce(&self) -> Result<u64, MemfdError> {
        self.get(NONCE_AT)
    }

    /// Opens the file again.
    pub(super) fn reopen_file(&self) -> Result<OwnedFd, MemfdError> {
        Ok(reopen_file(&self.file)?)
    }

    /// Returns whether a descriptor refers to the same file.
    pub(super) fn is_file_of(&self, fd: &impl AsFd) -> bool {
        let of = |fd: &dyn AsFd| rustix::fs::fstat(fd.as_fd()).ok().map(|stat| (stat.st_dev, stat.st_ino));
        of(fd).is_some_and(|other| of(&self.file) == Some(other))
    }

    /// Opens the file again and locks a range in shared mode. The lock lasts until the last mapping of the new file,
    /// and the last descriptor of it in any process, ends.
    pub(super) fn hold_range(&self, range: FileRange) -> Result<OwnedFd, MemfdError> {
        let file = self.reopen_file()?;
        let taken = locks::try_lock_range(&file, range, LockMode::Shared).map_err(cause_of("fcntl"))?;
        // A conflict is impossible in a valid table, because ranges are locked in shared mode only.
        if taken { Ok(file) } else { Err(MemfdError::Broken) }
    }

    /// Locks the table; waits at most [`PATIENCE`].
    pub(super) fn lock_table(&self) -> Result<LedgerGuard<'_>, MemfdError> {
        // A forked child shares the parent's open file, and so its locks.
        if self.here.is_child() {
            return Err(MemfdError::Child);
        }
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + PATIENCE;
        while !locks::try_lock_range(&self.file, GATE, LockMode::Alone).map_err(cause_of("fcntl"))? {
            if Instant::now() > until {
                return Err(MemfdError::Busy);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(LedgerGuard { ledger: self, _threads: threads })
    }
}

/// The lock of the table. A process that dies while it holds the lock leaves a valid table: a record is valid once its id is written, which is
/// the last store.
#[derive(Debug)]
pub(super) struct LedgerGuard<'a> {
    ledger: &'a DeviceLedger,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for LedgerGuard<'_> {
    fn drop(&mut self) {
        let _ = locks::unlock_range(&self.ledger.file, GATE);
    }
}

impl LedgerGuard<'_> {
    /// Returns the next process number; each is used once.
    pub(super) fn next_process(&self) -> Result<u64, MemfdError> {
        self.next(NEXT_PROCESS_AT, 1)
    }

    /// Returns the next allocation id; each is used once.
    pub(super) fn next_id(&self) -> Result<u64, MemfdError> {
        self.next(NEXT_ID_AT, 1)
    }

    /// Returns a range of the file that no allocation has used before.
    pub(super) fn next_range(&self, len: u64) -> Result<FileRange, MemfdError> {
        let start = self.ledger.get(NEXT_PLACE_AT)?;
        let end = start.checked_add(len).filter(|end| *end <= END).ok_or(MemfdError::Worn)?;
        if start < TABLE {
            return Err(MemfdError::Broken);
        }
        self.ledger.store_word(NEXT_PLACE_AT, end)?;
        Ok(FileRange { start, len })
    }

    fn next(&self, at: u64, by: u64) -> Result<u64, MemfdError> {
        let value = self.ledger.get(at)?;
        self.ledger.store_word(at, value.checked_add(by).ok_or(MemfdError::Broken)?)?;
        Ok(value)
    }

    pub(super) fn capacity(&self) -> Result<u64, MemfdError> {
        self.ledger.get(CAPACITY_AT)
    }

    /// Returns the allocation in a slot, if any.
    pub(super) fn read_record(&self, slot: usize) -> Result<Option<AllocationRecord>, MemfdError> {
        let mut words = [0; 6];
        for (at, word) in (record_at(slot)..).step_by(8).zip(&mut words) {
            *word = self.ledger.get(at)?;
        }
        let [id, process, base, len, start, span] = words;
        let is_sane = start >= TABLE && start.checked_add(span).is_some_and(|end| end <= END) && len <= span;
        match id {
            0 => Ok(None),
            _ if !is_sane => Err(MemfdError::Broken),
            _ => Ok(Some(AllocationRecord { id, process, base, len, range: FileRange { start, len: span } })),
        }
    }

    /// Writes an allocation to a slot.
    pub(super) fn write_record(&self, slot: usize, record: &AllocationRecord) -> Result<(), MemfdError> {
        let AllocationRecord { id, process, base, len, range } = *record;
        let words = [id, process, base, len, range.start, range.len];
        for (at, word) in (record_at(slot)..).step_by(8).zip(words).collect::<Vec<_>>().into_iter().rev() {
            self.ledger.store_word(at, word)?;
        }
        Ok(())
    }

    /// Marks a slot as free.
    pub(super) fn clear_record(&self, slot: usize) -> Result<(), MemfdError> {
        self.ledger.store_word(record_at(slot), 0)
    }

    /// Makes this process the owner of a slot's allocation, or ends its ownership.
    pub(super) fn set_owner(&self, slot: usize, owns: bool) -> Result<(), MemfdError> {
        let range = owner_of(slot);
        let done = if owns {
            locks::try_lock_range(&self.ledger.file, range, LockMode::Alone)
        } else {
            locks::unlock_range(&self.ledger.file, range).map(|()| true)
        };
        if done.map_err(cause_of("fcntl"))? { Ok(()) } else { Err(MemfdError::Broken) }
    }

    /// Returns whether another process owns a slot's allocation: it has neither freed it nor ended.
    pub(super) fn is_owned(&self, slot: usize) -> Result<bool, MemfdError> {
        Ok(locks::is_held(&self.ledger.file, owner_of(slot)).map_err(cause_of("fcntl"))?)
    }

    /// Frees the memory and slots of allocations that no process holds.
    pub(super) fn reclaim_unheld(&self) -> Result<(), MemfdError> {
        for slot in 0..SLOTS {
            let Some(record) = self.read_record(slot)? else { continue };
            if locks::is_held(&self.ledger.file, record.range).map_err(cause_of("fcntl"))? {
                continue;
            }
            self.punch_hole(record.range)?;
            self.clear_record(slot)?;
        }
        Ok(())
    }

    fn punch_hole(&self, range: FileRange) -> Result<(), CallFailure> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.ledger.file, flags, range.start, range.len).map_err(cause_of("fallocate"))
    }

    /// Returns the first free slot.
    pub(super) fn find_vacant(&self) -> Result<Option<usize>, MemfdError> {
        for slot in 0..SLOTS {
            if self.read_record(slot)?.is_none() {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }
}

fn record_at(slot: usize) -> u64 {
    RECORD * (1 + slot as u64)
}

fn owner_of(slot: usize) -> FileRange {
    FileRange { start: GATE.len + slot as u64, len: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_a_device_table_is_not_joined() {
        let blank = create_sized_file("trunkline.test", END).unwrap();
        assert_eq!(DeviceLedger::join(&blank).unwrap_err(), MemfdError::Foreign);
        let short = create_sized_file("trunkline.test", TABLE).unwrap();
        assert_eq!(DeviceLedger::join(&short).unwrap_err(), MemfdError::Foreign);
        let device = DeviceLedger::create(1 << 20, 7).unwrap();
        let joined = DeviceLedger::join(&device.file).unwrap();
        assert_eq!((joined.device_nonce(), joined.lock_table().unwrap().capacity()), (Ok(7), Ok(1 << 20)));
        device.store_word(VERSION_AT, 2).unwrap();
        assert_eq!(DeviceLedger::join(&device.file).unwrap_err(), MemfdError::Version(2));
    }

    #[test]
    fn invalid_record_is_not_followed() {
        let ledger = DeviceLedger::create(1 << 20, 7).unwrap();
        let entered = ledger.lock_table().unwrap();
        let range = FileRange { start: TABLE, len: 65536 };
        let good = AllocationRecord { id: 1, process: 1, base: 4096, len: 10, range };
        entered.write_record(0, &good).unwrap();
        assert_eq!(entered.read_record(0), Ok(Some(good)));
        for (start, span, len) in [(0, 4096, 10), (END - 1, 2, 1), (u64::MAX, 2, 1), (TABLE, 9, 10)] {
            let range = FileRange { start, len: span };
            entered.write_record(0, &AllocationRecord { len, range, ..good }).unwrap();
            assert_eq!(entered.read_record(0), Err(MemfdError::Broken));
            assert_eq!(entered.reclaim_unheld(), Err(MemfdError::Broken));
        }
        entered.clear_record(0).unwrap();
        assert_eq!((entered.read_record(0), entered.find_vacant()), (Ok(None), Ok(Some(0))));
        ledger.store_word(NEXT_PLACE_AT, END - 1).unwrap();
        assert_eq!(entered.next_range(2), Err(MemfdError::Worn));
    }

    #[test]
    fn bytes_are_held_until_the_open_file_ends() {
        let ledger = DeviceLedger::create(1 << 20, 7).unwrap();
        let range = FileRange { start: TABLE, len: 65536 };
        let is_held = || locks::is_held(&ledger.file, range).unwrap();
        assert!(!is_held());
        let hold = ledger.hold_range(range).unwrap();
        let copy = hold.try_clone().unwrap();
        let mapping = FileMapping::map_file(&ledger.here, &hold, range.start, 4096).unwrap();
        drop(hold);
        assert!(is_held(), "a copy of the descriptor and a mapping must hold the bytes");
        drop(copy);
        // Children that other tests start may have copies for a moment.
        assert!(is_held(), "the mapping alone must hold the bytes");
        drop(mapping);
        let until = Instant::now() + Duration::from_secs(2);
        while is_held() {
            assert!(Instant::now() < until, "the bytes are still held");
        }
    }
}
