//! The identity of memory for the exporter, which the caller creates from its driver's reports.

use crate::intervals::ByteSpan;

/// The driver's id of an allocation, which no other allocation of the process ever has. If a driver reuses its ids, the caller extends them.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DriverAllocationId(pub u64);

/// An allocation, as the driver reports it for a pointer into it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DriverAllocation {
    /// Its address range in this process.
    pub span: ByteSpan,
    /// Its id.
    pub id: DriverAllocationId,
    /// The number of its device.
    pub device: u32,
}
