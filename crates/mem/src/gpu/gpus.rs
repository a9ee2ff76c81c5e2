//! The drivers of all vendors that this process has. Opened once by a front end, if its NICs reach memory of GPUs at all;
//! asked when memory is registered.

use super::{Gpu, LookError, Missing, Pointer, PointerKind, Vendor};

/// Open drivers, and why others are not.
#[derive(Debug, Default)]
pub struct Gpus {
    open: Vec<Gpu>,
    missing: Vec<Missing>,
}

impl Gpus {
    /// Opens every driver that there is. Of a driver that is installed this is its beginning, which takes a while where
    /// nobody else in the process has used it.
    #[must_use]
    pub fn open() -> Self {
        let mut all = Self::default();
        for vendor in [Vendor::Nvidia, Vendor::Amd] {
            match Gpu::open(vendor) {
                Ok(gpu) => all.open.push(gpu),
                Err(missing) => all.missing.push(missing),
            }
        }
        all
    }

    /// These drivers.
    #[must_use]
    pub fn of(open: Vec<Gpu>) -> Self {
        Self { open, missing: Vec::new() }
    }

    /// The drivers that are open.
    #[must_use]
    pub fn all(&self) -> &[Gpu] {
        &self.open
    }

    /// Why others are not, as far as they were tried.
    #[must_use]
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Whether a vendor's driver is open.
    #[must_use]
    pub fn has(&self, vendor: Vendor) -> bool {
        self.open.iter().any(|gpu| gpu.vendor() == vendor)
    }

    /// Whether there is a driver, and each of those that are open exports memory. A driver that cannot say so does not.
    #[must_use]
    pub fn exports(&self) -> bool {
        !self.open.is_empty() && self.open.iter().all(|gpu| gpu.exports() == Ok(true))
    }

    /// What an address is: memory of the host, unless one of the drivers knows better. With the driver that knows it.
    ///
    /// # Errors
    /// As [`Gpu::look`].
    pub fn look(&self, addr: usize) -> Result<(Option<&Gpu>, Pointer), LookError> {
        for gpu in &self.open {
            let pointer = gpu.look(addr)?;
            if pointer.kind != PointerKind::Host {
                return Ok((Some(gpu), pointer));
            }
        }
        Ok((None, Pointer::HOST))
    }
}
