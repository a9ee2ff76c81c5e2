//! Memory of devices that processes of one node share: what is exported, who has it mapped, and when that ends.
//!
//! For whoever moves messages inside a node, one [`exporter::MemoryExporter`] and one [`importer::MemoryImporter`] a process, behind a lock of
//! the caller's that is held for a call and never while a driver works. Nothing here exports, maps, sends, waits or reads a clock:
//! what is to be done comes back as a value, is carried out without the lock, and is then told. The messages are
//! [`crate::wire::ipc`]; handles, descriptors and addresses of drivers stay with the caller, beside the names.
//!
//! - The exporter alone decides. It knows which of its allocations are exported, by address and by the driver's id of the
//!   allocation, and which peers were told of each. It keeps what peers have mapped as far as a budget allows, pins what a message
//!   uses, and ends the rest.
//! - The importer obeys. It knows what each exporter announced, has it mapped on first use, once for each device and way, pins what it
//!   uses, and says that something is unmapped only when it is.
//! - A message says (slot, generation) and never an address. It may do so from the second one on, mapped or not, so a burst
//!   costs one export and one mapping.
//!
//! The rules of both ends together are checked in `tests`: whatever happens in whatever order, and everything in a few steps.

pub mod exporter;
pub mod importer;
#[cfg(test)]
mod tests;
