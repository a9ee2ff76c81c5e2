//! A cable of two TUN devices and a thread between them.
//!
//! Called by the testbed and by tests. After [`Relay::cut`] has returned, no packet comes out of it any more: the
//! thread holds a direction's lock while it takes packets in and hands them out.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::cable::Cable;
use super::host::Host;
use super::line::{Line, Shape, Tally};
use super::world::{need, unavailable};

/// Packets taken from one device before the other's turn.
const TURN: usize = 64;

/// Largest packet.
const PACKET_MAX: usize = 65_536;

const TUN: &str = "/dev/net/tun";

/// A cable that can delay, lose, slow down and be cut. It is a [`Cable`] too.
#[must_use = "a cable is gone when nobody holds it"]
pub struct Relay {
    cable: Cable,
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

/// What thread and handle share.
struct Inner {
    /// At the near and at the far end.
    devices: [SyncDevice; 2],
    /// From the near end, from the far end.
    lines: [Mutex<Line>; 2],
    /// Ends the thread's wait.
    wake: OwnedFd,
    stop: AtomicBool,
}

impl Relay {
    pub(super) fn new(near: &Host, far: &Host, number: usize, mtu: u16, lines: [Line; 2]) -> Self {
        let cable = Cable::planned(near, far, number, false);
        let devices = cable.ends().each_ref().map(|end| end.host.run(|| open(&end.device)));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.unwrap_or_else(|error| panic!("eventfd: {error}"));
        let lines = lines.map(Mutex::new);
        let inner = Arc::new(Inner { devices, lines, wake, stop: AtomicBool::new(false) });
        cable.set_up(mtu);
        let thread = std::thread::spawn({
            let inner = Arc::clone(&inner);
            move || inner.forward()
        });
        Self { cable, inner, thread: Some(thread) }
    }

    /// Treats packets of both directions like this from now on.
    pub fn set_shape(&self, shape: Shape) {
        self.change(0, |line| line.set_shape(shape));
        self.change(1, |line| line.set_shape(shape));
    }

    /// Treats packets that leave a host like this from now on.
    #[track_caller]
    pub fn set_shape_from(&self, host: &Host, shape: Shape) {
        self.change(self.cable.side(host), |line| line.set_shape(shape));
    }

    /// Cuts both directions: when this returns, nothing comes out at either end, nor what was under way.
    pub fn cut(&self) {
        self.change(0, Line::cut);
        self.change(1, Line::cut);
    }

    /// Cuts what leaves a host. The other direction works on.
    #[track_caller]
    pub fn cut_from(&self, host: &Host) {
        self.change(self.cable.side(host), Line::cut);
    }

    /// Makes both directions whole again.
    pub fn mend(&self) {
        self.change(0, Line::mend);
        self.change(1, Line::mend);
    }

    /// What became of the packets that left a host.
    #[track_caller]
    #[must_use]
    pub fn tally(&self, host: &Host) -> Tally {
        self.inner.line(self.cable.side(host)).tally()
    }

    fn change(&self, side: usize, change: impl FnOnce(&mut Line)) {
        assert!(self.thread.as_ref().is_some_and(|thread| !thread.is_finished()), "the relay's thread ended");
        change(&mut self.inner.line(side));
        self.inner.wake();
    }
}

impl std::ops::Deref for Relay {
    type Target = Cable;

    fn deref(&self) -> &Cable {
        &self.cable
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("cable", &self.cable).field("lines", &self.inner.lines).finish()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::Release);
        self.inner.wake();
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Inner {
    fn line(&self, side: usize) -> MutexGuard<'_, Line> {
        self.lines[side].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It can only fail when it is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The thread: until it is stopped.
    fn forward(&self) {
        // Delays are kept to the kernel's clock, not to its idle habits.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
        let mut buffer = vec![0; PACKET_MAX];
        while !self.stop.load(Ordering::Acquire) {
            let waits: [Option<Instant>; 2] = [0, 1].map(|side| self.turn(side, &mut buffer));
            self.wait(waits.into_iter().flatten().min());
        }
    }

    /// Takes packets in at one side and hands out what is due at the other; says when the next is due.
    fn turn(&self, side: usize, buffer: &mut [u8]) -> Option<Instant> {
        let mut line = self.line(side);
        for _ in 0..TURN {
            match self.devices[side].recv(buffer) {
                Ok(bytes) => line.push(Instant::now(), buffer[..bytes].to_vec()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("a relay reads: {error}"),
            }
        }
        while let Some(packet) = line.pop(Instant::now()) {
            if self.devices[1 - side].send(&packet).is_err() {
                line.tally.refused += 1;
            }
        }
        line.next()
    }

    /// Until a packet comes, one is due, or somebody changes something.
    fn wait(&self, until: Option<Instant>) {
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
            Err(error) => panic!("a relay waits: {error}"),
        }
        // Emptied whether it was rung or not.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

/// Makes a TUN device on the calling thread's host.
fn open(name: &str) -> SyncDevice {
    if !std::path::Path::new(TUN).exists() {
        unavailable(format!("{TUN} does not exist"));
    }
    let builder = DeviceBuilder::new().name(name).enable(false);
    let device = need(TUN, builder.build_sync());
    device.set_nonblocking(true).unwrap_or_else(|error| panic!("{TUN}: {error}"));
    device
}
