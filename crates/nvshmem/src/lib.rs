//! The remote transport that NVSHMEM loads: `nvshmem_transport_libfabric.so.4` and `.so.6` are this library, which answers in the version of
//! the interface that it is asked in.
//!
//! NVSHMEM calls it by two roles: its program's threads (the host), and the proxy, a thread that does what kernels ask for. Each has a lane of the
//! one-sided engine. What is in `abi` faces C and C++; all else is safe Rust and knows no version.

mod abi;
mod error;
mod fetches;
mod memory;
mod mesh;
mod own_stack;
mod plugin;
mod role_context;
mod settings;
