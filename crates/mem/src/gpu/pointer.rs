//! What an address is. Made by the drivers, read by whoever registers memory; it does not follow what becomes of the
//! memory later.

use super::GpuVendor;

/// Where the memory at an address is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum PointerKind {
    /// Memory of the host, or any that the driver does not know.
    Host,
    /// Memory of a device.
    Device {
        /// Whose it is.
        vendor: GpuVendor,
        /// The driver's number of it, in this process.
        device: u32,
    },
    /// Memory that the driver moves between the host and devices. A NIC that is told its address of today would miss
    /// it tomorrow.
    Managed {
        /// Whose driver does.
        vendor: GpuVendor,
    },
}

/// All bytes that were allocated together.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DeviceAllocation {
    /// Address of the first byte.
    pub base: usize,
    /// Bytes.
    pub len: usize,
}

impl DeviceAllocation {
    /// Whether `len` bytes from `addr` on are all inside.
    #[must_use]
    pub fn contains_range(&self, addr: usize, len: usize) -> bool {
        addr.checked_sub(self.base)
            .and_then(|before| before.checked_add(len))
            .is_some_and(|end| end <= self.len)
    }
}

/// What a driver says of an address.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct AddressAttributes {
    /// Where the memory is.
    pub kind: PointerKind,
    /// The allocation around the address; known for memory of devices.
    pub allocation: Option<DeviceAllocation>,
    /// Whether the driver's synchronous copies from and to this allocation have ended when they return, which a NIC that
    /// reads it relies on. [`VendorDriver::sync_copies`](super::VendorDriver::sync_copies) asks for it. True where nobody needs to ask:
    /// memory of the host, and AMD's driver.
    pub sync_copies: bool,
}

impl AddressAttributes {
    /// Memory of the host.
    pub(super) const HOST: Self = Self { kind: PointerKind::Host, allocation: None, sync_copies: true };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_holds_its_bytes_and_no_other() {
        let all = DeviceAllocation { base: 1000, len: 24 };
        assert!(all.contains_range(1000, 24) && all.contains_range(1024, 0) && all.contains_range(1023, 1));
        assert!(
            !all.contains_range(999, 2)
                && !all.contains_range(1023, 2)
                && !all.contains_range(1010, usize::MAX)
        );
    }
}
