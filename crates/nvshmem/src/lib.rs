//! The remote transport that NVSHMEM loads: `nvshmem_transport_libfabric.so.4` and `.so.6` are this library, which provides the version of the interface that
//! NVSHMEM requests.
//!
//! NVSHMEM calls it in two roles: its program's threads (the host), and the proxy, a thread that executes requests of kernels. Each role has a context of the
//! one-sided engine (`role_context.rs`). The files of `abi` face C and C++; everything else is safe Rust and knows no version. It never starts a kernel.
//!
//! # Files, in reading order
//!
//! - `abi/`: `v4.rs` and `v6.rs` have a table each over the same calls (`abi/calls.rs`), which check the arguments of C.
//! - `plugin.rs`, `settings.rs`: the transport, from `nvshmemt_init` to `finalize`.
//! - `mesh.rs`, `role_context.rs`: all PEs connected; the operations of a role. `memory.rs`, `fetches.rs`, `own_stack.rs`: registered memory, fetched values,
//!   values on a stack.
//!
//! # One put, from NVSHMEM's call to the remote bytes
//!
//! 1. NVSHMEM calls the table's function with a handle of memory. `calls.rs` checks it, and `mesh.rs` finds the context of the role.
//! 2. *A handle of memory* (512 bytes, docs/wire.md) describes where memory is in its process and how it is reached. NVSHMEM passes the right one with every
//!    operation. The engine gets it when it is first used, and again when its number has another generation (`mesh.rs`).
//! 3. The context calls `OneSided` of the runtime, which waits only for room.
//! 4. *A fetched value* arrives with the progress of any call, and is stored at its place with its flag behind it (`fetches.rs`).
//!
//! *Memory of a GPU* (`memory.rs`) is the NIC's if the NIC reaches it; its words are changed by GDRCopy's mapping or by copies. Where no NIC reaches it, only
//! the mapping is used.

mod abi;
mod error;
mod fetches;
mod memory;
mod mesh;
mod own_stack;
mod plugin;
mod role_context;
mod settings;
