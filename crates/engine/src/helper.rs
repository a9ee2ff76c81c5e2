//! A thread that makes progress for idle callers: it drives open comms that no caller polls, and polls the control streams.
//! The engine's owner starts it; by default there is none. It locks a lane only if that is free, and skips comms that were polled
//! since its last round. Without it, a lane that waits polls others of its own thread.

use std::any::Any;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use trunkline_fabric::{Fabric, Host};

use crate::Engine;
use crate::wait::{WaitBackoff, WaitPolicy};

/// Rounds with progress per poll of the control streams, because that poll costs system calls.
const STREAMS_EVERY: u32 = 64;

/// The longest sleep while the thread drives a comm. It is short because it bounds the delay of a peer. While callers
/// poll all comms, the policy's longest sleep applies.
const REST_MAX: Duration = WaitPolicy::HELPER.first;

/// The result of a round.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HelperRound {
    /// Comms that no other thread had polled, and that were driven now.
    pub driven: usize,
    /// Something moved on one of them.
    pub moved: bool,
    /// How soon the fabric requests another poll.
    wake: Option<Duration>,
}

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Drives each open comm that no thread has polled since the last call. A [`HelperThread`] calls this in each round; callers
    /// with a thread to spare may call it there. Never waits for a lock.
    pub fn drive_unpolled(&self) -> HelperRound {
        let mut tended = HelperRound::default();
        for (id, comm) in self.driver.setup.core.comms.open_comms() {
            if let Some((moved, wake)) = self.driver.drive_if_unpolled(id, comm) {
                tended.driven += 1;
                tended.moved |= moved;
                tended.wake = tended.wake.into_iter().chain(wake).min();
            }
        }
        tended
    }
}

/// The engine or job that a helper thread serves, returned at its end. Its last owner frees memory that GPUs map, and a driver
/// may wait for a kernel first, so the caller's thread drops it.
type ServedOwner = Box<dyn Any + Send>;

/// A helper thread. It ends when this value is dropped.
#[derive(Debug)]
pub struct HelperThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<ServedOwner>>,
    /// The process that runs the thread. It is compared because a forked child has this value, but not the thread.
    process: u32,
}

impl HelperThread {
    /// Starts a thread that makes progress for the callers of an engine.
    ///
    /// # Errors
    /// The system cannot create another thread.
    pub fn spawn_for<F, H, E>(engine: E) -> io::Result<Self>
    where
        F: Fabric,
        H: Host,
        E: Deref<Target = Engine<F, H>> + Send + 'static,
    {
        Self::spawn_with(move |stop| {
            run_helper(&engine, stop);
            Box::new(engine)
        })
    }

    /// Starts a thread that runs until `stop` is set, and sleeps only by [`BackoffStep`](crate::wait::BackoffStep). Its value is
    /// dropped together with the helper.
    ///
    /// # Errors
    /// The system cannot create another thread.
    pub(crate) fn spawn_with(
        run: impl FnOnce(&AtomicBool) -> ServedOwner + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("trunkline".to_owned());
        let thread = thread.spawn(move || run(&asked))?;
        Ok(Self { stop, thread: Some(thread), process: std::process::id() })
    }
}

impl Drop for HelperThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && self.process == std::process::id()
        {
            thread.thread().unpark();
            // Without its value it has ended by a panic, which the panic hook has reported.
            drop(thread.join());
        }
    }
}

fn run_helper<F: Fabric, H: Host>(engine: &Engine<F, H>, stop: &AtomicBool) {
    let mut waiting = WaitBackoff::new(WaitPolicy::HELPER);
    let mut busy = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        let tended = engine.drive_unpolled();
        busy = if tended.moved { busy.wrapping_add(1) } else { 0 };
        if busy.is_multiple_of(STREAMS_EVERY) {
            engine.progress_all();
        }
        if tended.moved {
            waiting.reset_backoff();
        } else {
            let most = if tended.driven > 0 { REST_MAX } else { WaitPolicy::HELPER.most };
            waiting.next_step_within(tended.wake.unwrap_or(REST_MAX), most).wait_once();
        }
    }
}
