//! The kind of memory at an address. Created by the drivers and read by code that registers memory; it is not updated when the memory is freed.

use super::GpuVendor;

/// The kind of memory at an address.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum PointerKind {
    /// Memory of the host, or memory unknown to the driver.
    Host,
    /// Memory of a device.
    Device {
        /// The device's vendor.
        vendor: GpuVendor,
        /// The driver's number of the device, in this process.
        device: u32,
    },
    /// Memory that the driver migrates between the host and devices. A NIC would keep using the address of registration after a migration.
    Managed {
        /// The vendor of that driver.
        vendor: GpuVendor,
    },
}

/// One allocation.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct DeviceAllocation {
    /// Address of the first byte.
    pub base: usize,
    /// Bytes.
    pub len: usize,
}

impl DeviceAllocation {
    /// Returns whether all `len` bytes from `addr` on lie inside.
    #[must_use]
    pub fn contains_range(&self, addr: usize, len: usize) -> bool {
        addr.checked_sub(self.base)
            .and_then(|before| before.checked_add(len))
            .is_some_and(|end| end <= self.len)
    }
}

/// The attributes that a driver reports for an address.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct AddressAttributes {
    /// Where the memory is.
    pub kind: PointerKind,
    /// The allocation around the address; known for memory of devices.
    pub allocation: Option<DeviceAllocation>,
    /// Whether the driver's synchronous copies from and to this allocation have completed when they return, which a NIC that reads it relies on.
    /// [`VendorDriver::sync_copies`](super::VendorDriver::sync_copies) sets this mode. Always true for memory of the host and of AMD's driver,
    /// which need no setting.
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
    fn allocation_contains_only_its_bytes() {
        let all = DeviceAllocation { base: 1000, len: 24 };
        assert!(all.contains_range(1000, 24) && all.contains_range(1024, 0) && all.contains_range(1023, 1));
        assert!(
            !all.contains_range(999, 2)
                && !all.contains_range(1023, 2)
                && !all.contains_range(1010, usize::MAX)
        );
    }
}
