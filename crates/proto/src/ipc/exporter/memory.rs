//! What an exporter knows memory by. Made by the caller from what its driver says.

use crate::intervals::ByteSpan;

/// What a driver calls an allocation: a number that no other allocation of the process has had or will have. Of a driver whose
/// numbers are shorter and come again the caller makes longer ones.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DriverAllocationId(pub u64);

/// An allocation, as the driver tells it of a pointer into it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DriverAllocation {
    /// Its addresses in this process, all of them.
    pub span: ByteSpan,
    /// Its name.
    pub id: DriverAllocationId,
    /// The number of its device.
    pub device: u32,
}
