//! The location of bytes. Read by fabrics to choose a copy method; fixed when a range is created.

/// The kind of memory behind a [`MemoryRange`](crate::MemoryRange).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary host memory that only this process maps.
    Host,
    /// Memory of an accelerator that the CPU cannot address, by device number.
    Device(u32),
    /// Memory of a device that the CPU has mapped write-combined ([`MappedMemory`](crate::MappedMemory)). Its bytes can be copied, but it has no
    /// words like memory of the host.
    Mapped,
}
