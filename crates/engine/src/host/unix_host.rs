//! The operating system's clock, random numbers and pages.

use std::io;
use std::sync::Arc;

use trunkline_fabric::{Host, HostPage, LogLevel};
use trunkline_mem::PublishedPage;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::status::{self, node};

use super::oob::UnixOob;
use super::reach::ControlReach;

type LogSink = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// The host.
pub struct UnixHost {
    oob: UnixOob,
    log: LogSink,
}

impl UnixHost {
    /// Creates a host that passes its log lines to `log`; only processes of the same host can connect.
    pub fn new(log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        Self::with_reach(ControlReach::default(), log)
    }

    /// As [`UnixHost::new`], for processes of other hosts too.
    pub fn with_reach(reach: ControlReach, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        Self { oob: UnixOob::new(reach), log: Box::new(log) }
    }

    /// Creates a page for an endpoint that shares memory inside this node; `None` without memory for it. Then the endpoint works,
    /// but is not visible.
    #[must_use]
    pub fn node_page(&self) -> Option<HostPage> {
        create_page(node::NAME, node::BYTES).ok()
    }
}

impl Host for UnixHost {
    type Oob = UnixOob;

    fn now(&self) -> Instant {
        monotonic_now()
    }

    fn random_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            // Fails only when interrupted before the pool is ready, early at boot.
            if let Ok(n) =
                rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            {
                filled += n;
            }
        }
        bytes
    }

    fn oob(&self) -> &UnixOob {
        &self.oob
    }

    fn log(&self, level: LogLevel, text: &str) {
        (self.log)(level, text);
    }

    fn publish_page(&self, bytes: usize) -> io::Result<Option<HostPage>> {
        create_page(status::NAME, bytes).map(Some)
    }
}

/// Returns the time since the machine started.
pub(super) fn monotonic_now() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant((now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64))
}

/// Creates a page of this name, which other processes may read.
fn create_page(name: &str, bytes: usize) -> io::Result<HostPage> {
    let page = Arc::new(PublishedPage::create_page(name, bytes)?);
    let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let unix_ns = (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64);
    Ok(HostPage { page, pid, unix_ns })
}
