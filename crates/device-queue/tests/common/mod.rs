//! Shared by the tests: memories of the model checkers, and entries.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use trunkline_proto::wire::device_queue::{
    AtomicChange, EntryWork, LocalAddress, PeerAddress, QueueEntry, QueueShape, at,
};

/// Whether long runs are requested.
pub fn is_full() -> bool {
    std::env::var_os("TRUNKLINE_FULL").is_some()
}

/// A NOTIFY with a number.
pub fn notify(imm: u32) -> QueueEntry {
    QueueEntry::new(EntryWork::Notify { peer: 1, imm })
}

/// An addition to a word of process `peer`.
pub fn add(peer: u32, addr: u64, value: u64, poisoned: bool) -> QueueEntry {
    let at = PeerAddress { peer, addr, key: 1 };
    QueueEntry::new(EntryWork::Atomic { at, change: AtomicChange::Add(value), poisoned })
}

/// A WRITE of `len` bytes.
pub fn write(addr: u64, len: u64) -> QueueEntry {
    let (from, to) = (LocalAddress { addr, key: 1 }, PeerAddress { peer: 1, addr, key: 2 });
    QueueEntry::new(EntryWork::Write { from, to, len, imm: None })
}

/// A WAIT.
pub fn wait(queue: u32, index: u64) -> QueueEntry {
    QueueEntry::new(EntryWork::Wait { queue, index })
}

/// The use of a word of a queue's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Usage {
    /// Used by one thread at a time.
    Plain,
    /// Used by several threads.
    Shared,
    /// Unused.
    Unused,
}

/// Returns the use of the word at an offset of a queue.
pub fn of_queue(shape: &QueueShape, offset: u64) -> Usage {
    let shared = [at::RESERVED, at::READY, at::SUBMITTED, at::SHADOW, at::FRONTIER, at::ABORT, at::COMPANION];
    let errors = [at::ERROR, at::FIRST_BAD, at::REASON];
    match offset {
        0..at::RESERVED => Usage::Plain,
        at if shared.contains(&at) || errors.contains(&at) => Usage::Shared,
        at if at < at::RING => Usage::Unused,
        at if at < shape.completion_offset(0) => Usage::Plain,
        _ => Usage::Shared,
    }
}

/// Returns the use of the word at an offset of a page of doorbells.
pub fn of_bells(offset: u64) -> Usage {
    if offset < 64 { Usage::Plain } else { Usage::Shared }
}
