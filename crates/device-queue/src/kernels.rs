//! Kernels of this project for GPUs of NVIDIA, whose text is `kernels.h`: compiled by [`nvrtc`](crate::nvrtc) for a device and loaded there. Opened by
//! tests and by `trunkline bench device`.
#![allow(unsafe_code, reason = "what kernels do is known of these alone")]

use trunkline_mem::gpu::{DriverCallError, GpuDevice, KernelModule};

use crate::nvrtc::{self, CompileError, KernelImage};

/// The text. It includes the device header.
pub const TEXT: &str = include_str!("kernels.h");

/// The kernels are not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelsError {
    /// They were not compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// They were not loaded.
    #[error(transparent)]
    Load(#[from] DriverCallError),
}

/// Compiles them for an architecture: 90 is `sm_90`.
///
/// # Errors
/// [`CompileError`].
pub fn compile_kernels(architecture: u32) -> Result<KernelImage, CompileError> {
    nvrtc::compile_text(TEXT, "kernels.cu", architecture, &[])
}

/// Compiles and loads them for a device.
///
/// # Errors
/// [`KernelsError`].
pub fn load_kernels(device: &GpuDevice) -> Result<KernelModule, KernelsError> {
    let image = compile_kernels(device.architecture()?)?;
    // SAFETY: these kernels change and read what their job names: views and memory of the device that it holds.
    Ok(unsafe { device.load_module(&image.bytes) }?)
}
