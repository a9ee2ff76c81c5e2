//! OpenSHMEM 1.5 for C and C++ over Trunkline: a shared library with the whole interface, which `include/shmem.h`
//! declares.
//!
//! C and C++ programs link it. PEs of one host read and write each other's symmetric memory (the heap, and the
//! program's static variables) by loads and stores; everything else uses the one-sided calls of `trunkline-runtime`. No
//! crate of Rust calls it, and it knows no fabric. docs/openshmem.md is for users.
//!
//! # Files, in reading order
//!
//! - `abi/`: the functions of C. `abi/table.rs` is a table of types that makes them; `cargo xtask header` writes the
//!   headers from the same table.
//! - `process_pe.rs`, `pe.rs`, `settings.rs`: the PE of a process, from `shmem_init` to its end.
//! - `symmetric_segments.rs`, `layout.rs`, `alloc.rs`, `pe_access.rs`, `neighbour_statics.rs`: symmetric memory.
//!   `fast_path.rs`: the short path of a call.
//! - `memory/`, `fabric_transport.rs`, `ctx.rs`: puts, gets, atomics, signals, waits; those over the fabric; contexts.
//!   `collective/`, `team.rs`, `lock.rs`: teams and collectives.
//! - `osh/`, `bin/`: `oshcc`, `oshcxx`, `oshrun`.
//!
//! The functions of `abi` make places and handles of C's pointers, for `pe`, `memory` and `collective`. These hold no
//! unsafe code except where memory of C becomes memory of Rust.
//!
//! # One put, from C to the remote bytes
//!
//! 1. `shmem_putmem` finds the running PE. `fast_path.rs` handles the default context and memory of a PE that is mapped
//!    here: some comparisons, then a copy.
//! 2. Else `SymmetricMemory` finds the *place*, a segment and an offset (`symmetric_segments.rs`): heap, static
//!    variables, or the library's own memory.
//! 3. It reaches the PE in one of three ways: mapped memory (`pe_access.rs`: loads, stores, the CPU's atomics); copies
//!    by the system where nothing else works (`neighbour_statics.rs`); or the fabric (`fabric_transport.rs`), by
//!    `OneSided` of the runtime.
//!
//! - *Static variables* become a memory file in place (`trunkline_mem::StaticVariables`), before threads use them.
//! - *Waiting* is `watch_memory` of the runtime, by `WaitPolicy::CHANGE`; `memory/wait.rs` defines which PEs are
//!   checked. A PE that ends because another has died stores the number of the dead PE in its own memory (`layout.rs`),
//!   so that other PEs report the first death.

#![cfg_attr(
    test,
    allow(dead_code, unused_imports, unused_macros, reason = "tests do not compile most of `abi`")
)]

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
