//! Why there is no GPU, what a call of its driver failed with, and what helps.

use super::GpuVendor;

/// A call of a driver that failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{call} failed with {name} ({code}): {remedy}")]
pub struct DriverCallError {
    /// The function.
    pub call: &'static str,
    /// What it returned.
    pub code: u32,
    /// The driver's name of the code.
    pub name: String,
    /// What the user can do.
    pub remedy: &'static str,
}

/// There is no GPU that could be used, and why.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuUnavailable {
    /// The driver is not installed.
    #[error("{library} cannot be opened ({reason}); install {package}")]
    Library {
        /// Name of the library.
        library: String,
        /// What the loader says.
        reason: String,
        /// What holds it.
        package: &'static str,
    },
    /// Its module of the kernel is not loaded.
    #[error("the kernel module {module} is not loaded; install {package}")]
    Module {
        /// Name of the module.
        module: &'static str,
        /// What holds it.
        package: &'static str,
    },
    /// The driver lacks a function.
    #[error("{library} has no {symbol}; it is older than what is supported, install a newer one")]
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
        /// Whose it is.
        vendor: GpuVendor,
        /// Its version.
        found: String,
        /// The oldest supported.
        least: String,
    },
    /// The driver finds no device.
    #[error("the driver for {vendor} GPUs finds no device")]
    Devices {
        /// Whose it is.
        vendor: GpuVendor,
    },
    /// The driver does not begin.
    #[error(transparent)]
    Driver(#[from] DriverCallError),
}

/// An address cannot be told. It may be of any memory: who gets this treats it as no memory that he knows.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LookError {
    /// The driver does not answer.
    #[error(transparent)]
    Driver(#[from] DriverCallError),
    /// The driver's answer has no meaning here.
    #[error("{call} calls the memory at {addr:#x} a type {value} that is not known here")]
    Unfamiliar {
        /// The function.
        call: &'static str,
        /// The address.
        addr: usize,
        /// The type of memory.
        value: u32,
    },
}
