//! Memory that processes of a node share, between real processes: the test binary runs itself again as each of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

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
