//! FFI tables: the C structs and function tables Trunkline shares with the software around it.
//!
//! Used by the front ends that export these tables and by the hosts and fabrics that read them. This crate
//! holds no logic, opens no library and calls nothing: only `#[repr(C)]` types, constants and layout asserts.
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
