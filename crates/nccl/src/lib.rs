//! The NCCL and RCCL net plugin: `libnccl-net-trunkline.so`.
//!
//! NCCL loads it and reads one of the tables `ncclNetPlugin_v6` to `ncclNetPlugin_v12`. The folder `abi` holds a thin file for each version over one current
//! interface (`plugin`), which is safe Rust over the engine. Unsafe code is in `abi` and `guard` only. No crate of Rust calls it, and it never selects an
//! algorithm or starts a thread without `TRUNKLINE_PROGRESS_THREAD=1`.
//!
//! # Files, in reading order
//!
//! - `abi/`, `guard.rs`, `status.rs`: C's side. `plugin.rs`: the current interface. `fabric_engine.rs`: one match per call on the selected fabric.
//! - `world.rs`, `contexts.rs`, `devices.rs`, `memory.rs`, `trace.rs`: the process's engine, communicators, devices, registrations, trace.
//!
//! # One message
//!
//! The tables in `abi/v10.rs` to `v12.rs` name `irecv_v10` and `isend_v10` (`abi/calls.rs`), which run inside `guard`: nulls and lengths are checked, and a
//! panic becomes an error code. Then `plugin::irecv` and `plugin::isend` continue in safe Rust, and call `Engine::irecv_into` and `Engine::isend_from`. The
//! head of `trunkline_engine` has the rest. A NULL request means "call again".
//!
//! The helper thread ends with the last `finalize`. A library that ran it stays in memory until the thread that called `init` ends.
//!
//! # Devices that are several NICs
//!
//! NCCL fuses NICs by `makeVDevice` and then calls `devices` again: the devices above the first count are virtual, numbered after the physical ones.
//! `devices.rs` holds them all. A device, physical or virtual, is a list of NICs, and `listen` and `connect` pass that list to the engine. The two ends of a
//! connection need not have the same number.
//!
//! - As in NCCL's own IB plugin, a fused NIC has its members' names joined by `+` and their speeds summed. A single member makes a virtual device too. The
//!   other properties are the first member's. Unlike there, the same members in the same order are the same device, an impossible list is an invalid argument,
//!   latency is the longest of the members', and `maxComms` the smallest.
//! - A device has up to four members, as a connection has rails for four. Version 12 has places for eight. Where NCCL merges by distance and is refused, it
//!   tries fewer; a list in `NCCL_NET_FORCE_MERGE` it uses as given.
//! - Numbers and names stay with the library. NCCL reads the physical devices once per load of the plugin, and may keep them when its last communicator ends.
//!   It may also close the library, which a thread of ours can keep in memory, load it again and treat the result of `devices` as physical. So after a last
//!   `finalize` virtual devices are known by their numbers, and counted once they are made again.
//! - Versions 6 to 8, which have no `makeVDevice`, neither count nor accept virtual devices.

#![cfg_attr(test, allow(dead_code, unused_imports, reason = "the unit tests leave out `abi`"))]

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
