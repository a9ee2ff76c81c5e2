//! Work entries, completions and doorbells of NVIDIA's NICs (the mlx5 family), as bytes: the memory of a companion queue pair.
//!
//! The formats are those of rdma-core's `mlx5dv.h` (version 44 and later; `crates/proto/tests/mlx5.rs` compares with the installed header). WAIT and
//! DUMP, which it does not define, follow NVIDIA's open device library. Device queues on such a NIC call this, and software models of such a NIC. It
//! accesses no register: an entry is 64 bytes of a ring, all big-endian.
//!
//! - [`Mlx5Entry`]: a WRITE, a READ, an atomic, a WAIT for another completion queue, a NOP or a DUMP.
//! - [`Mlx5Completion`]: the result of an entry, and the owner of a place in a completion queue.
//! - [`wait_is_over`], [`doorbell_record`], [`full_index`], [`lap_bit`]: conversions between indices of 16, 24 and 32 bits and those of 64.

mod completion;
mod entry;
mod index;

pub use completion::{CqeSyndrome, Mlx5Completion, Mlx5CompletionError};
pub use entry::{
    BYTES, INLINE_MAX, InlineSegment, LEN_MAX, LocalSegment, Mlx5Entry, Mlx5EntryError, Mlx5Fence, Mlx5Work,
    RemoteSegment,
};
pub use index::{DEPTH_MAX, doorbell_record, full_index, lap_bit, wait_is_over};
