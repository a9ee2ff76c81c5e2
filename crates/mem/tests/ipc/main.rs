//! Memory that processes of a host share. The test binary starts itself again for each of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed setup step ends the test")]

mod acceptance;
mod batches;
mod copies;
mod cuda;
mod device;
mod devices;
mod hip;
mod host;
mod kept;
mod peer;
mod private;
mod stub;
mod subject;
mod vendor;
mod xpmem;
mod ze;
