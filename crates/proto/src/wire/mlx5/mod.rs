//! Work entries, completions and doorbells of NVIDIA's NICs (the mlx5 family), as bytes: what a companion queue pair is made of.
//!
//! Facts are rdma-core's `mlx5dv.h` (version 44 and later; `crates/proto/tests/mlx5.rs` compares with the header that is installed), and
//! for what it does not name, WAIT and DUMP, NVIDIA's open device library. Called by device queues on such a NIC, and by whoever plays such a NIC
//! in software. Nothing here touches a register: an entry is 64 bytes of a ring, all big-endian.
//!
//! - [`Mlx5Entry`]: a WRITE, a READ, an atomic, a WAIT for another completion queue, a NOP or a DUMP.
//! - [`Mlx5Completion`]: what became of an entry, and whose turn a place of a completion queue is.
//! - [`wait_is_over`], [`doorbell_record`], [`full_index`], [`lap_bit`]: how indices of 16, 24 and 32 bits stand for those of 64.

mod completion;
mod entry;
mod index;

pub use completion::{CqeSyndrome, Mlx5Completion, Mlx5CompletionError};
pub use entry::{
    BYTES, INLINE_MAX, InlineSegment, LEN_MAX, LocalSegment, Mlx5Entry, Mlx5EntryError, Mlx5Fence, Mlx5Work,
    RemoteSegment,
};
pub use index::{DEPTH_MAX, doorbell_record, full_index, lap_bit, wait_is_over};
