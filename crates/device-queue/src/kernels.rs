//! Kernels of this project for GPUs of NVIDIA, whose text is `kernels.h`: compiled by [`nvrtc`](crate::nvrtc) for a device and loaded there. Opened by
//! tests and by `trunkline bench device`.
#![allow(unsafe_code, reason = "what kernels do is known of these alone")]

use trunkline_mem::gpu::{CallError, Device, Program};

use crate::nvrtc::{self, CompileError, Image};

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
    Load(#[from] CallError),
}

/// Compiles them for an architecture: 90 is `sm_90`.
///
/// # Errors
/// [`CompileError`].
pub fn compile(architecture: u32) -> Result<Image, CompileError> {
    nvrtc::compile(TEXT, "kernels.cu", architecture, &[])
}

/// Compiles and loads them for a device.
///
/// # Errors
/// [`KernelsError`].
pub fn open(device: &Device) -> Result<Program, KernelsError> {
    let image = compile(device.architecture()?)?;
    // SAFETY: these kernels change and read what their job names: views and memory of the device that it holds.
    Ok(unsafe { device.program(&image.bytes) }?)
}
