//! The drivers of all vendors that this process has. Opened once by a front end, if its NICs reach memory of GPUs at all;
//! asked when memory is registered.

use super::{AddressAttributes, GpuUnavailable, GpuVendor, LookError, PointerKind, VendorDriver};

/// Open drivers, and why others are not.
#[derive(Debug, Default)]
pub struct VendorDrivers {
    open: Vec<VendorDriver>,
    missing: Vec<GpuUnavailable>,
}

impl VendorDrivers {
    /// Opens every driver that there is. Of a driver that is installed this is its beginning, which takes a while where
    /// nobody else in the process has used it.
    #[must_use]
    pub fn open_all() -> Self {
        let mut all = Self::default();
        for vendor in [GpuVendor::Nvidia, GpuVendor::Amd] {
            match VendorDriver::open(vendor) {
                Ok(gpu) => all.open.push(gpu),
                Err(missing) => all.missing.push(missing),
            }
        }
        all
    }

    /// These drivers.
    #[must_use]
    pub fn from_drivers(open: Vec<VendorDriver>) -> Self {
        Self { open, missing: Vec::new() }
    }

    /// The drivers that are open.
    #[must_use]
    pub fn open_drivers(&self) -> &[VendorDriver] {
        &self.open
    }

    /// Why others are not, as far as they were tried.
    #[must_use]
    pub fn unavailable_drivers(&self) -> &[GpuUnavailable] {
        &self.missing
    }

    /// Whether a vendor's driver is open.
    #[must_use]
    pub fn has_vendor(&self, vendor: GpuVendor) -> bool {
        self.open.iter().any(|gpu| gpu.vendor() == vendor)
    }

    /// Whether there is a driver, and each of those that are open exports memory. A driver that cannot say so does not.
    #[must_use]
    pub fn exports_memory(&self) -> bool {
        !self.open.is_empty() && self.open.iter().all(|gpu| gpu.exports_memory() == Ok(true))
    }

    /// What an address is: memory of the host, unless one of the drivers knows better. With the driver that knows it.
    ///
    /// # Errors
    /// As [`VendorDriver::query_pointer`].
    pub fn query_pointer(
        &self,
        addr: usize,
    ) -> Result<(Option<&VendorDriver>, AddressAttributes), LookError> {
        for gpu in &self.open {
            let pointer = gpu.query_pointer(addr)?;
            if pointer.kind != PointerKind::Host {
                return Ok((Some(gpu), pointer));
            }
        }
        Ok((None, AddressAttributes::HOST))
    }
}
