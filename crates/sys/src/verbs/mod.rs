//! The C types of libibverbs of rdma-core 44, the oldest version that is supported. Later versions append fields to
//! these types, or use a new symbol version.
//!
//! Read by `crates/verbs`, which opens the library at run time. Contains the types that the library shares with its
//! callers, and the tables in contexts and extended queue pairs through which the inline functions of `verbs.h` call.
//! Fields in network byte order are marked as such. `cargo xtask bindings` compares all of it with
//! `infiniband/verbs.h`.

mod calls;
mod completion;
mod context;
mod device;
pub mod ionic;
mod memory;
mod queue_pair;
mod work;

pub use calls::*;
pub use completion::*;
pub use context::*;
pub use device::*;
pub use memory::*;
pub use queue_pair::*;
pub use work::*;

/// `pthread_mutex_t` in objects of the library; never accessed by Trunkline.
#[cfg(not(target_arch = "aarch64"))]
pub type PthreadMutex = [u64; 5];
/// `pthread_mutex_t` in objects of the library; never accessed by Trunkline.
#[cfg(target_arch = "aarch64")]
pub type PthreadMutex = [u64; 6];
/// `pthread_cond_t` in objects of the library; never accessed by Trunkline.
pub type PthreadCond = [u64; 6];
