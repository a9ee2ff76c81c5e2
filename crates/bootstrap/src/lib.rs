//! Job start-up: how the processes of a job find each other before any fabric is up. It reads rank and size from the launcher's environment, and provides a
//! small TCP store with exchanges and barriers.
//!
//! Used by the command's benchmarks and launcher, and by every front end that is started as a job. It knows no plugin, no fabric and no protocol of the
//! engine, and starts no thread. From the environment inwards:
//!
//! - `trunkline_run`, `torchrun`, `pmi`, `openmpi`, `slurm`: the variables of each launcher, pure;
//! - `environment`: selects the launcher of this process;
//! - `address`, `pmi`, `pmix`: where rank 0 is;
//! - `secret`, `store`: proof of membership in the job, and the store;
//! - `bootstrap`: the job whose processes are connected.
//!
//! One start: [`JobEnvironment::read`] finds the rank, the size and the address of rank 0. [`JobBootstrap::join`] dials it and proves the job's secret, which
//! is never sent. Rank 0 publishes the addresses of its interfaces, and [`JobBootstrap::all_gather`] exchanges the cards by which the processes then connect
//! over a fabric.
//!
//! ```no_run
//! use std::time::Duration;
//! use trunkline_bootstrap::{JobBootstrap, JobEnvironment};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! if let Some(environment) = JobEnvironment::read()? {
//!     let mut job = JobBootstrap::join(&environment, Duration::from_secs(60))?;
//!     let names = job.all_gather(b"my address", Duration::from_secs(60))?;
//!     assert_eq!(names.len(), job.job_placement().size);
//! }
//! # Ok(())
//! # }
//! ```

mod address;
mod bootstrap;
mod deadline_io;
mod environment;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod openmpi;
mod placement;
mod pmi;
mod pmix;
mod secret;
mod slurm;
mod store;
mod torchrun;
pub mod trunkline_run;

pub use address::{free_port, host_addresses};
pub use bootstrap::{ExchangeError, JobBootstrap, JobStreams, JoinError};
pub use placement::{EnvironmentError, JobEnvironment, JobPlacement, Launcher, RANKS_MAX};
pub use pmi::{LINE_BYTES_MAX as PMI_LINE_BYTES_MAX, PmiError, PmiReply, PmiSpace};
pub use pmix::PmixError;
pub use secret::JobSecret;
pub use store::GIVEN_BYTES_MAX;
