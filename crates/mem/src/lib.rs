//! Memory as the rest of Trunkline uses it: a [`MemoryRange`] is a byte range of a [`MemoryKind`] that can be read, written and copied with bounds checks,
//! regardless of the owner of the bytes.
//!
//! Called by every layer above. This crate never registers memory with a NIC (that is a fabric's job) and never interprets the bytes.
//!
//! # Modules, in reading order
//!
//! - `kind.rs`, `memory.rs`: [`MemoryKind`], [`MemoryRange`]. `shared_copy.rs`: [`copy_shared`], for bytes that other threads, processes or NICs may change.
//! - `mapped.rs`: [`MappedMemory`] is memory of a device that the CPU has mapped. [`gpu`] distinguishes memory of GPUs from other memory, exports it to NICs,
//!   and starts kernels and copies.
//! - `shared_memory.rs`, `statics.rs`: [`SharedMemory`] is memory that processes of one host share; [`StaticVariables`] are the program's variables made
//!   shared.
//! - `page.rs`, `counter_words.rs`: a [`PublishedPage`] can be read by other processes, and [`CounterWords`] are the counters on it, or in private memory.
//! - [`ipc`]: memory that other processes of the node may map: one trait, and a kind for each driver.
//! - `zeros.rs`: [`try_zeros`], buffers from an allocator that may have no memory.
//!
//! # Rules of a range
//!
//! - *Memory of devices.* A [`MemoryRange`] of a device has no bytes that the processor may use. Each access of `read`, `write`, `copy_from` and the words is
//!   checked against the range that the processor may access, all or nothing, in the same comparison as the bounds. So no path can omit the check, and no path
//!   pays for it.
//! - *Allocations can fail.* An allocation of 4 KiB or more, or whose size a peer, a caller or a setting chooses, is made by [`MemoryRange::try_heap`],
//!   [`try_zeros`] or the calls of [`trunkline_proto::reserve`]. Their error is a cause in the error of each operation. `MemoryRange::heap`, which panics,
//!   exists in tests alone (feature `test-utils`). Tests named `refusals` refuse the n-th large allocation. Those of `engine` run the contract and the main
//!   paths; that of `softnic` executes a peer's records; those of `verbs` and `ofi` run their rails; those of `shmem` and `nvshmem` run the front ends. Those
//!   of `testing/integration` run the plugin's calls, the store and worlds.
//!
//! # One buffer, from its export to a copy in another process
//!
//! Drivers are behind one trait, [`ipc::IpcMemory`], with one acceptance suite (`tests/ipc`). `trunkline_node` calls it.
//!
//! ```text
//!  exporter                               importer
//!  allocation_of: which allocation, and its id
//!  export: a handle, perhaps a descriptor -> open: maps it, on the mapping thread if the driver may wait
//!                                           read, copy, begin_copy: copies
//!                                           close: unmaps
//!  unexport: gives the handle back
//! ```
//!
//! - *Kinds without a GPU.* [`ipc::MemfdDevice`], a device in a memory file, fails as drivers do, between real processes. It records no use of memory. A
//!   process that has memory open holds a lock on its bytes, of an open file that its mapping or descriptor keeps open. So the kernel does the accounting, and
//!   `kill -9` leaks nothing.
//! - *Private memory* is copied by system calls (`ipc/private.rs`). Where XPMEM works it is attached (`ipc/xpmem`): one export with all addresses of a
//!   process, of which an importer attaches pieces of 8 MiB when copies need them. Pages end with their owner, so attached memory is read by a copy that stops
//!   where memory ends (`ipc/fault_guard.rs`, a signal handler for one instruction); a system call then reports the reason. Two nodes of one process reach
//!   each other in heaps alone ([`MemoryRange::try_heap`]): any other byte may be referenced by safe code.
//! - *Memory of GPUs.* `ipc/driver_memory` holds the rules that all vendors share: one opener at a time, the open mappings, the stale mapping that is in the
//!   way, and the source of a length. A driver of a vendor (`ipc/cuda`, `ipc/hip`, `ipc/ze`) makes the calls. A handle names the allocation by the driver's
//!   id; an address proves nothing.
//! - *Devices.* CUDA's calls are made in a device's primary context, HIP's with the device as the thread's; both restore the thread's earlier state. Imported
//!   memory is mapped for each device that copies it (`IpcMemory::mapping_user`). A tile of Level Zero's is a device, numbered behind the cards.
//! - *Segments of virtual memory* are allocations of their own. Bytes over a seam (`IpcMemory::holds_range`) are staged, copied up to the seam and on from it;
//!   one segment is never exported for several. Memory that cannot be exported is reported ([`ipc::ExportError::Unshareable`]) and is staged, too.
//! - *Asynchronous copies.* Copies continue after they were begun (`IpcMemory::begin_copy`). A batch has a slot of its own, with a stream and an event for
//!   each device, and holds its sources and targets until the event (`driver_memory/{batches,copy_slots}.rs`; each vendor has a `copy_slots.rs`). The slots of
//!   the device that a driver is opened for are made then, as to make a stream may wait for a kernel. The mapping thread makes those of other devices, and
//!   copies that need them are busy until then (`driver_memory/prepared.rs`). A batch that needs a device without streams is busy: begun copies end, and its
//!   bytes are copied again.
//! - *The mapping thread* (`driver_memory/mapping_thread.rs`) alone makes the calls in which the driver of a GPU may wait for a kernel, one after the other.
//!   It opens and closes memory of other processes, pins and unpins inboxes, gives handles of Level Zero back and makes streams. It begins and ends with the
//!   [`ipc::AnyMemory`] of a GPU; memory of the host has no such thread. `driver_memory/driver.rs` has a table of which thread makes which call.
//! - *Its queue.* A kind with such a thread has queues: `IpcMemory::mapping_queue`, `unexport_queue` (the last handle of freed memory frees it), `pin_queue`.
//!   The caller posts requests and polls for the replies; at most 64 requests are outstanding per node. Each pin reserves a place for its end when it begins
//!   (`MappingQueue::post_release`), so the thread that drops it never waits. Dropping an `AnyMemory` waits for the thread, and so perhaps for a kernel.
//! - *Tests* run over C libraries in place of the drivers (`tests/ipc/stub`, where one file per vendor holds that vendor's rules), and natively where there is
//!   a GPU.

mod counter_words;
pub mod gpu;
pub mod ipc;
mod kind;
mod local_port;
mod mapped;
mod memory;
mod memory_file;
mod page;
mod shared_copy;
mod shared_memory;
mod statics;
mod zeros;

pub use counter_words::CounterWords;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use ipc::fuzzing;
pub use kind::MemoryKind;
pub use local_port::defer_port_choice;
pub use mapped::{MappedBytes, MappedMemory, fence_mapped_stores};
pub use memory::{MemoryRange, OutOfBounds};
#[cfg(any(test, feature = "test-utils"))]
pub use memory::{live_heaps, refuse_mappings};
pub use memory_file::create_memory_file;
pub use page::{PageView, PublishedPage, ViewError};
pub use shared_copy::{copy_shared, copy_shared_words};
pub use shared_memory::{MemoryFileId, PeerError, SharedMemory, map_exported};
pub use statics::StaticVariables;
pub use trunkline_proto::reserve::OutOfMemory;
pub use zeros::try_zeros;
