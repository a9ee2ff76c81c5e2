//! The NCCL and RCCL net plugin: `libnccl-net-trunkline.so`.
//!
//! NCCL loads it and reads one of the tables `ncclNetPlugin_v6` to `ncclNetPlugin_v12`; `abi` holds a thin file for
//! each version over one current interface (`plugin`), which is safe Rust over the engine. Unsafe code is in `abi` and
//! `guard` only. Nothing here is meant to be called from Rust.

#![cfg_attr(test, allow(dead_code, unused_imports, reason = "`abi` is not there"))]

mod abi;
mod contexts;
mod devices;
mod fabric_engine;
mod guard;
mod memory;
mod plugin;
mod status;
mod trace;
mod world;
