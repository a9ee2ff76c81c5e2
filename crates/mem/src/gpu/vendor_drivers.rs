//! The drivers of all vendors in this process. Opened once by a front end whose NICs can access memory of GPUs; queried when memory is
//! registered.

use super::{AddressAttributes, GpuUnavailable, GpuVendor, LookError, PointerKind, VendorDriver};

/// Open drivers, and the reasons why others are unavailable.
#[derive(Debug, Default)]
pub struct VendorDrivers {
    open: Vec<VendorDriver>,
    missing: Vec<GpuUnavailable>,
}

impl VendorDrivers {
    /// Opens every installed driver. Initialising a driver takes a while if no other code of the process has used it.
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

    /// Wraps drivers that are already open.
    #[must_use]
    pub fn from_drivers(open: Vec<VendorDriver>) -> Self {
        Self { open, missing: Vec::new() }
    }

    /// Returns the open drivers.
    #[must_use]
    pub fn open_drivers(&self) -> &[VendorDriver] {
        &self.open
    }

    /// Returns why other drivers are unavailable, as far as they were tried.
    #[must_use]
    pub fn unavailable_drivers(&self) -> &[GpuUnavailable] {
        &self.missing
    }

    /// Returns whether a vendor's driver is open.
    #[must_use]
    pub fn has_vendor(&self, vendor: GpuVendor) -> bool {
        self.open.iter().any(|gpu| gpu.vendor() == vendor)
    }

    /// Returns whether at least one driver is open and all open drivers export memory. A driver whose query fails counts as not exporting.
    #[must_use]
    pub fn exports_memory(&self) -> bool {
        !self.open.is_empty() && self.open.iter().all(|gpu| gpu.exports_memory() == Ok(true))
    }

    /// Classifies an address as memory of the host, unless one of the drivers knows it. Returns the driver that knows it, if any.
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
