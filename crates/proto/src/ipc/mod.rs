//! Device memory that processes of one node share: which allocations are exported, which peers have them mapped, and when each export and mapping
//! ends.
//!
//! The code that moves messages inside a node has one [`exporter::MemoryExporter`] and one [`importer::MemoryImporter`] per process, behind a lock.
//! The lock is held for one call, and never during a call of a driver. This module exports, maps, sends and waits for nothing, and reads no clock. It
//! returns each action as a value; the caller executes it without the lock and then reports the result. The messages are those of
//! [`crate::wire::ipc`]. The caller keeps the handles, descriptors and addresses of drivers, by name.
//!
//! - The exporter decides. It knows which allocations are exported, by address and by the driver's id, and to which peers each was announced. It
//!   keeps exports within a budget, pins those that a message uses, and retires the others.
//! - The importer follows the exporter. It knows each exporter's announcements, maps on first use, once per device and kind of mapping, and pins the
//!   bytes of operations. It sends RETIRED only after everything of a name is unmapped.
//! - A message contains a slot and a generation, never an address. Messages after the first one need no announcement, mapped or not, so a burst costs
//!   one export and one mapping.
//!
//! `tests` checks the rules of both ends together: random events in random order, and all events of small worlds.

pub mod exporter;
pub mod importer;
#[cfg(test)]
mod tests;
