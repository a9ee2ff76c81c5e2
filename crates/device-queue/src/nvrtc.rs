//! NVRTC, NVIDIA's run-time compiler: compiles a kernel that includes the device header when a program starts. Called by
//! [`kernels`](crate::kernels), and by programs with kernels of their own.
//!
//! The library is opened at run time through `cudarc`, which panics if the library or one of its functions is missing. So both are probed
//! first, and a missing one is [`CompileError::Missing`].
#![allow(unsafe_code, reason = "the compiler is a C library")]

use alloc::borrow::ToOwned as _;
use alloc::ffi::CString;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::ffi::{c_char, c_int};
use core::ptr;

use cudarc::nvrtc::result::{compile_program, destroy_program, get_program_log, get_ptx};
use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use crate::header;

/// The functions that are called; NVRTC has all of them since CUDA 11.2.
const NEEDED: [&str; 11] = [
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcGetPTX",
    "nvrtcGetPTXSize",
];

/// The oldest architecture with the memory model that the header needs.
pub const ARCHITECTURE_MIN: u32 = 70;

/// A kernel cannot be compiled.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The library is missing, or too old.
    #[error(
        "NVRTC cannot be used ({0}); install it (CUDA 12 or 13; Debian: package libnvrtc12; PyPI: nvidia-cuda-nvrtc or \
        nvidia-cuda-nvrtc-cu12, whose folder must be in LD_LIBRARY_PATH)"
    )]
    Missing(String),
    /// The device is too old for the header, or for the compiler.
    #[error(
        "NVRTC compiles for no architecture that sm_{asked} can run: it supports {known:?}, and device queues need sm_{ARCHITECTURE_MIN}"
    )]
    Architecture {
        /// The requested architecture.
        asked: u32,
        /// The architectures that the compiler supports.
        known: Vec<u32>,
    },
    /// A text, name or option contains a zero byte.
    #[error("cannot compile: a text contains a zero byte")]
    Text,
    /// The compiler rejected the program.
    #[error("NVRTC: {code}\n{log}")]
    Compile {
        /// NVRTC's result code.
        code: String,
        /// The compiler's log.
        log: String,
    },
}

/// A compiled kernel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KernelImage {
    /// Machine code; or PTX, if the device is newer than the compiler.
    pub bytes: Vec<u8>,
    /// The architecture that it was compiled for.
    pub architecture: u32,
}

/// Opens the library by the names that `cudarc` uses, and checks that each needed function exists. The library stays open.
fn probe_library() -> Result<(), CompileError> {
    // `cudarc` opens the library again later. It is never closed, so the functions checked here are those that are
    // called.
    let mut reason = "it is not found".to_owned();
    for name in cudarc::get_lib_name_candidates("nvrtc") {
        // SAFETY: this is the vendor's own library; its constructors run here as in any program linked with it.
        let library = match unsafe { libloading::Library::new(&name) } {
            Ok(library) => core::mem::ManuallyDrop::new(library),
            Err(_) => continue,
        };
        for symbol in NEEDED {
            // SAFETY: the symbol is only checked for existence; the pointer is neither read nor called.
            if unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_err() {
                reason = alloc::format!("{name} has no {symbol}");
                return Err(CompileError::Missing(reason));
            }
        }
        return Ok(());
    }
    reason.push_str(", by none of its names");
    Err(CompileError::Missing(reason))
}

/// Checks that the compiler can be used.
///
/// # Errors
/// [`CompileError::Missing`].
pub fn check_available() -> Result<(), CompileError> {
    probe_library()
}

fn check_code(code: nvrtcResult) -> Result<(), CompileError> {
    let failed = |code: cudarc::nvrtc::result::NvrtcError| CompileError::Compile {
        code: alloc::format!("{:?}", code.0),
        log: String::new(),
    };
    code.result().map_err(failed)
}

/// Returns the architectures that the compiler supports.
fn known_architectures() -> Result<Vec<u32>, CompileError> {
    let mut count: c_int = 0;
    // SAFETY: the call writes one number to `count`, which lives until it returns.
    check_code(unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) })?;
    let mut all: Vec<c_int> = alloc::vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: `all` has the number of elements that the call above reported.
    check_code(unsafe { sys::nvrtcGetSupportedArchs(all.as_mut_ptr()) })?;
    Ok(all.into_iter().filter_map(|one| u32::try_from(one).ok()).collect())
}

/// A program of the compiler, destroyed on drop.
struct NvrtcProgram(nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: `nvrtcCreateProgram` created the program, which is destroyed only here.
        let _ = unsafe { destroy_program(self.0) };
    }
}

/// Compiles a text for a device. Its `#include` finds the files of the device header. `defines` are names, or `NAME=value`.
///
/// # Errors
/// [`CompileError`].
pub fn compile_text(
    text: &str,
    name: &str,
    architecture: u32,
    defines: &[&str],
) -> Result<KernelImage, CompileError> {
    probe_library()?;
    let known = known_architectures()?;
    let target = known.iter().copied().filter(|one| (ARCHITECTURE_MIN..=architecture).contains(one)).max();
    let Some(target) = target else {
        return Err(CompileError::Architecture { asked: architecture, known });
    };
    let is_exact = target == architecture;
    // Machine code exists only for an architecture that the compiler supports. For a newer device the driver compiles PTX of an older one.
    let kind = if is_exact { "sm" } else { "compute" };
    let mut options: Vec<String> =
        alloc::vec!["--std=c++17".to_owned(), alloc::format!("--gpu-architecture={kind}_{target}")];
    options.extend(defines.iter().map(|define| alloc::format!("--define-macro={define}")));
    if options.iter().any(|option| option.contains('\0')) {
        return Err(CompileError::Text);
    }
    let program = create_program(text, name)?;
    // SAFETY: `program` was created above and is not destroyed yet.
    let compiled = unsafe { compile_program(program.0, &options) };
    if let Err(code) = compiled {
        let code = alloc::format!("{:?}", code.0);
        // SAFETY: `program` was created above and is not destroyed yet.
        let log = unsafe { get_program_log(program.0) }.map(text_of).unwrap_or_default();
        return Err(CompileError::Compile { code, log });
    }
    let bytes = if is_exact { machine_code(&program)? } else { program_ptx(&program)? };
    Ok(KernelImage { bytes, architecture: target })
}

fn create_program(text: &str, name: &str) -> Result<NvrtcProgram, CompileError> {
    let zero = |_| CompileError::Text;
    let text = CString::new(text).map_err(zero)?;
    let name = CString::new(name).map_err(zero)?;
    let of = |pick: fn(&header::HeaderFile) -> &'static str| -> Result<Vec<CString>, CompileError> {
        header::FILES.iter().map(|file| CString::new(pick(file)).map_err(zero)).collect()
    };
    let texts = of(|file| file.text)?;
    let names = of(|file| file.name)?;
    let [texts, names]: [Vec<*const c_char>; 2] =
        [&texts, &names].map(|all| all.iter().map(|one| one.as_ptr()).collect());
    let count = c_int::try_from(texts.len()).unwrap_or(0);
    let mut program = ptr::null_mut();
    // SAFETY: the sources and names end with zero, and each text has a name; the compiler copies them before it
    // returns.
    check_code(unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            text.as_ptr(),
            name.as_ptr(),
            count,
            texts.as_ptr(),
            names.as_ptr(),
        )
    })?;
    Ok(NvrtcProgram(program))
}

fn machine_code(program: &NvrtcProgram) -> Result<Vec<u8>, CompileError> {
    let mut size = 0;
    // SAFETY: the program was compiled; the call writes one number to `size`, which lives until it returns.
    check_code(unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut size) })?;
    let mut bytes = alloc::vec![0_u8; size];
    // SAFETY: `bytes` has the length that the call above reported.
    check_code(unsafe { sys::nvrtcGetCUBIN(program.0, bytes.as_mut_ptr().cast()) })?;
    Ok(bytes)
}

fn program_ptx(program: &NvrtcProgram) -> Result<Vec<u8>, CompileError> {
    // SAFETY: the program was compiled and is not destroyed yet.
    let text = unsafe { get_ptx(program.0) };
    let failed = |code: cudarc::nvrtc::result::NvrtcError| CompileError::Compile {
        code: alloc::format!("{:?}", code.0),
        log: String::new(),
    };
    Ok(text.map_err(failed)?.into_iter().map(|byte| byte as u8).collect())
}

fn text_of(bytes: Vec<c_char>) -> String {
    let bytes: Vec<u8> = bytes.into_iter().map(|byte| byte as u8).collect();
    String::from_utf8_lossy(&bytes).trim_matches(['\0', '\n', ' ']).to_string()
}
