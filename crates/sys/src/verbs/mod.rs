//! The C types of libibverbs, as rdma-core 44 has them, which is the oldest that is supported; what later versions added
//! stands behind what is here, or has a symbol version of its own.
//!
//! Read by `crates/verbs`, which opens the library at run time. Holds what the library shares with its callers, and what
//! the inline functions of `verbs.h` reach through: the tables in a context and in an extended queue pair. Numbers in the
//! byte order of the network are so named. `cargo xtask bindings` compares all of it with `infiniband/verbs.h`.

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

/// `pthread_mutex_t` inside objects of the library; never touched here.
#[cfg(not(target_arch = "aarch64"))]
pub type PthreadMutex = [u64; 5];
/// `pthread_mutex_t` inside objects of the library; never touched here.
#[cfg(target_arch = "aarch64")]
pub type PthreadMutex = [u64; 6];
/// `pthread_cond_t` inside objects of the library; never touched here.
pub type PthreadCond = [u64; 6];
