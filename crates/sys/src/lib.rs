//! FFI tables: the C structs and function tables that Trunkline shares with other software.
//!
//! Used by the front ends that export these tables and by the hosts and fabrics that read them. This crate contains
//! only `#[repr(C)]` types, constants and layout asserts: it opens no library and calls no function. `cargo xtask
//! bindings --check` compares the layouts with a C compiler's.
//!
//! Each file or folder contains the interface of one library: `nccl_net` and `nvshmem` (plugins), `verbs` and `ofi`
//! (networks), `cuda`, `cuda_ipc`, `cuda_run`, `hip`, `hip_ipc`, `ze`, `gdrcopy` (GPUs), `xpmem` and `pmix`.
#![no_std]

pub mod cuda;
pub mod cuda_ipc;
pub mod cuda_run;
pub mod gdrcopy;
pub mod hip;
pub mod hip_ipc;
pub mod nccl_net;
pub mod nvshmem;
pub mod ofi;
pub mod pmix;
pub mod verbs;
pub mod xpmem;
pub mod ze;
