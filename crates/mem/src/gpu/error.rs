//! Why no GPU is usable, which driver call failed, and the remedy.

use super::GpuVendor;

/// A failed driver call.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{call} failed with {name} ({code}): {remedy}")]
pub struct DriverCallError {
    /// The function.
    pub call: &'static str,
    /// The returned code.
    pub code: u32,
    /// The driver's name of the code.
    pub name: String,
    /// The remedy for the user.
    pub remedy: &'static str,
}

/// Why no GPU is usable.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuUnavailable {
    /// The driver is not installed.
    #[error("{library} cannot be opened ({reason}); install {package}")]
    Library {
        /// Name of the library.
        library: String,
        /// The loader's error.
        reason: String,
        /// The package that contains the library.
        package: &'static str,
    },
    /// The driver's kernel module is not loaded.
    #[error("the kernel module {module} is not loaded; install {package}")]
    Module {
        /// Name of the module.
        module: &'static str,
        /// The package that contains the module.
        package: &'static str,
    },
    /// The driver lacks a function.
    #[error(
        "{library} has no {symbol}, so it is older than the oldest supported version; install a newer one"
    )]
    Symbol {
        /// Name of the library.
        library: String,
        /// The function.
        symbol: String,
    },
    /// The driver is too old.
    #[error(
        "the driver for {vendor} GPUs is {found}, and {least} is the oldest that is supported; install a newer one"
    )]
    TooOld {
        /// The driver's vendor.
        vendor: GpuVendor,
        /// Its version.
        found: String,
        /// The oldest supported.
        least: String,
    },
    /// The driver finds no device.
    #[error("the driver for {vendor} GPUs finds no device")]
    Devices {
        /// The driver's vendor.
        vendor: GpuVendor,
    },
    /// The driver cannot be initialised.
    #[error(transparent)]
    Driver(#[from] DriverCallError),
}

/// Why an address cannot be classified. It may be any kind of memory: callers treat it as unknown.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LookError {
    /// The driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverCallError),
    /// The driver returned an unknown memory type.
    #[error("{call} reports the unknown memory type {value} for {addr:#x}")]
    Unfamiliar {
        /// The function.
        call: &'static str,
        /// The address.
        addr: usize,
        /// The type of memory.
        value: u32,
    },
}
