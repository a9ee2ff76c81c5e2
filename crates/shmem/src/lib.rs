//! OpenSHMEM 1.5 for C and C++ over Trunkline: a shared library with the whole interface, which `include/shmem.h` declares.
//!
//! PEs of one host read and write each other's symmetric memory (the heap, and the program's static variables) by loads and stores;
//! everything else goes over the engine's one-sided job. C programs call `abi`, which makes of pointers and handles what `pe`, `memory`
//! and `collective` work with; these hold no unsafe code but where memory of C becomes memory of ours. Nothing here knows a fabric.

#![cfg_attr(test, allow(dead_code, unused_imports, unused_macros, reason = "most of `abi` is not there"))]

mod abi;
mod alloc;
mod collective;
mod ctx;
mod error;
mod fabric_transport;
mod fast_path;
#[cfg(test)]
mod header;
mod layout;
mod lock;
mod memory;
mod neighbour_statics;
mod pe;
mod pe_access;
mod process_pe;
mod settings;
mod symmetric_segments;
mod team;
