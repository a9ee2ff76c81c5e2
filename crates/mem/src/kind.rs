//! Where bytes live. Read by fabrics when they choose how to copy; never changes after a range is made.

/// The kind of memory behind a [`Memory`](crate::MemoryRange).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary host memory that only this process maps.
    Host,
    /// Memory of an accelerator that the CPU cannot address, by device number.
    Device(u32),
    /// Memory of a device that the CPU has mapped write-combined ([`MappedMemory`](crate::MappedMemory)): bytes of it are copied, and
    /// it has no words as host memory has.
    Mapped,
}
