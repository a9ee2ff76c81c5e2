//! How the processes of a job find each other, before any fabric is up: rank and size from whoever started them, a small
//! TCP store in the middle, exchanges and barriers over it.
//!
//! Used by the command's benchmarks and its launcher, and meant for every front end that is started as a job. It knows no
//! plugin, no fabric and no protocol of the engine, and starts no thread. From the environment inwards:
//!
//! - `own`, `torchrun`, `pmi`, `openmpi`, `slurm`: what each launcher's variables say, pure;
//! - `environment`: which of them started this process;
//! - `address`, `pmi`, `pmix`: where rank 0 is;
//! - `secret`, `store`: who belongs to the job;
//! - `bootstrap`: the job that has met.
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
