//! A cable of two TUN devices and a thread between them.
//!
//! Called by the testbed and by tests. After [`RelayCable::cut`] has returned, no packet leaves the cable: the thread
//! holds a direction's lock while it accepts and delivers packets.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::cable::NetworkCable;
use super::host::TestHost;
use super::inner_program::{refuse_testbed, require_granted};
use super::line::{CableLine, LineShape, LineTally};

/// Packets read from one device before the other is read.
const TURN: usize = 64;

/// Largest packet.
const PACKET_MAX: usize = 65_536;

const TUN: &str = "/dev/net/tun";

/// A cable that can delay, lose and slow down packets, and can be cut. It is also a [`NetworkCable`].
#[must_use = "dropping a cable removes it"]
pub struct RelayCable {
    cable: NetworkCable,
    inner: Arc<RelayCore>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the thread and the handle share.
struct RelayCore {
    /// At the near and at the far end.
    devices: [SyncDevice; 2],
    /// From the near end, from the far end.
    lines: [Mutex<CableLine>; 2],
    /// Ends the thread's wait.
    wake: OwnedFd,
    stop: AtomicBool,
}

impl RelayCable {
    pub(super) fn new(
        near: &TestHost,
        far: &TestHost,
        number: usize,
        mtu: u16,
        lines: [CableLine; 2],
    ) -> Self {
        let cable = NetworkCable::plan_cable(near, far, number, false);
        let devices = cable.both_ends().each_ref().map(|end| end.host.call_on_host(|| open_tun(&end.device)));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.unwrap_or_else(|error| panic!("eventfd: {error}"));
        let lines = lines.map(Mutex::new);
        let inner = Arc::new(RelayCore { devices, lines, wake, stop: AtomicBool::new(false) });
        cable.set_up(mtu);
        let thread = std::thread::spawn({
            let inner = Arc::clone(&inner);
            move || inner.forward_packets()
        });
        Self { cable, inner, thread: Some(thread) }
    }

    /// Sets the shape of both directions from now on.
    pub fn set_shape(&self, shape: LineShape) {
        self.change_line(0, |line| line.set_shape(shape));
        self.change_line(1, |line| line.set_shape(shape));
    }

    /// Sets the shape of packets that leave a host from now on.
    #[track_caller]
    pub fn set_shape_from(&self, host: &TestHost, shape: LineShape) {
        self.change_line(self.cable.side_of(host), |line| line.set_shape(shape));
    }

    /// Cuts both directions: when this returns, no packet leaves at either end, also none that was in flight.
    pub fn cut(&self) {
        self.change_line(0, CableLine::cut);
        self.change_line(1, CableLine::cut);
    }

    /// Cuts the direction that leaves a host. The other direction continues to work.
    #[track_caller]
    pub fn cut_from(&self, host: &TestHost) {
        self.change_line(self.cable.side_of(host), CableLine::cut);
    }

    /// Reconnects both directions.
    pub fn mend(&self) {
        self.change_line(0, CableLine::mend);
        self.change_line(1, CableLine::mend);
    }

    /// Returns the outcomes of the packets that left a host.
    #[track_caller]
    #[must_use]
    pub fn tally_from(&self, host: &TestHost) -> LineTally {
        self.inner.lock_line(self.cable.side_of(host)).line_tally()
    }

    fn change_line(&self, side: usize, change: impl FnOnce(&mut CableLine)) {
        assert!(self.thread.as_ref().is_some_and(|thread| !thread.is_finished()), "the relay's thread ended");
        change(&mut self.inner.lock_line(side));
        self.inner.wake_thread();
    }
}

impl std::ops::Deref for RelayCable {
    type Target = NetworkCable;

    fn deref(&self) -> &NetworkCable {
        &self.cable
    }
}

impl fmt::Debug for RelayCable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("cable", &self.cable).field("lines", &self.inner.lines).finish()
    }
}

impl Drop for RelayCable {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::Release);
        self.inner.wake_thread();
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl RelayCore {
    fn lock_line(&self, side: usize) -> MutexGuard<'_, CableLine> {
        self.lines[side].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_thread(&self) {
        // The write can fail only if the counter is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Forwards packets until the cable is dropped; runs on the thread.
    fn forward_packets(&self) {
        // Without this, the kernel may delay a timeout by its slack.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
        let mut buffer = vec![0; PACKET_MAX];
        while !self.stop.load(Ordering::Acquire) {
            let waits: [Option<Instant>; 2] = [0, 1].map(|side| self.forward_side(side, &mut buffer));
            self.wait_for_packets(waits.into_iter().flatten().min());
        }
    }

    /// Accepts packets at one side and delivers due packets at the other; returns when the next one is due.
    fn forward_side(&self, side: usize, buffer: &mut [u8]) -> Option<Instant> {
        let mut line = self.lock_line(side);
        for _ in 0..TURN {
            match self.devices[side].recv(buffer) {
                Ok(bytes) => line.push(Instant::now(), buffer[..bytes].to_vec()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("a relay cannot read its device: {error}"),
            }
        }
        while let Some(packet) = line.pop(Instant::now()) {
            if self.devices[1 - side].send(&packet).is_err() {
                line.tally.refused += 1;
            }
        }
        line.next()
    }

    /// Waits until a packet arrives at a device, a packet is due, or the shape or the state of the cable changes.
    fn wait_for_packets(&self, until: Option<Instant>) {
        let [near, far] = &self.devices;
        let mut fds = [
            PollFd::new(near, PollFlags::IN),
            PollFd::new(far, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left =
            left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("a relay cannot wait for its devices: {error}"),
        }
        // Resets the counter, whether it was written or not.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

/// Creates a TUN device on the calling thread's host.
fn open_tun(name: &str) -> SyncDevice {
    if !std::path::Path::new(TUN).exists() {
        refuse_testbed(format!("{TUN} does not exist"));
    }
    let builder = DeviceBuilder::new().name(name).enable(false);
    let device = require_granted(TUN, builder.build_sync());
    device.set_nonblocking(true).unwrap_or_else(|error| panic!("{TUN}: {error}"));
    device
}
