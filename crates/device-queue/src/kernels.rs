//! Kernels of this project for NVIDIA GPUs, with the text `kernels.h`: compiled by [`nvrtc`] for a device and loaded there.
//! Used by tests and by `trunkline bench device`.
#![allow(unsafe_code, reason = "loading requires a promise about the kernels, which are in this crate")]

use trunkline_mem::gpu::{DriverCallError, GpuDevice, KernelModule};

use crate::nvrtc::{self, CompileError, KernelImage};

/// The text. It includes the device header.
pub const TEXT: &str = include_str!("kernels.h");

/// The kernels are not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelsError {
    /// The compilation failed.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The load failed.
    #[error(transparent)]
    Load(#[from] DriverCallError),
}

/// Compiles the kernels for an architecture: 90 is `sm_90`.
///
/// # Errors
/// [`CompileError`].
pub fn compile_kernels(architecture: u32) -> Result<KernelImage, CompileError> {
    nvrtc::compile_text(TEXT, "kernels.cu", architecture, &[])
}

/// Compiles the kernels and loads them for a device.
///
/// # Errors
/// [`KernelsError`].
pub fn load_kernels(device: &GpuDevice) -> Result<KernelModule, KernelsError> {
    let image = compile_kernels(device.architecture()?)?;
    // SAFETY: these kernels access only the memory that their job names: views and device memory that the job holds.
    Ok(unsafe { device.load_module(&image.bytes) }?)
}
