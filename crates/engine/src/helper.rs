//! A thread that goes on for callers who do not: it drives open comms that nobody polls, and answers on the control
//! streams. There is none unless the engine's owner starts one. It takes a lane only if that is free, and leaves alone
//! those that somebody has polled since it last came by. Without it, a lane that waits helps others of its own thread.

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

/// Rounds in which something moved between two looks at the control streams.
const STREAMS_EVERY: u32 = 64;

/// The longest rest while the thread drives a comm: this late, at most, is what a peer waits for. While every comm is polled by
/// its callers, the policy's longest rest holds.
const REST_MAX: Duration = WaitPolicy::HELPER.first;

/// What a round found.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HelperRound {
    /// Comms that nobody else had polled, and that were driven now.
    pub driven: usize,
    /// Something moved on one of them.
    pub moved: bool,
    /// How soon the fabric wants to be asked again.
    wake: Option<Duration>,
}

impl<F: Fabric, H: Host> Engine<F, H> {
    /// Drives each open comm that nobody has polled since the last call. What a [`HelperThread`] does in each round; whoever
    /// has a thread of their own to spare may call it there. Never waits for a lane.
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

/// The engine or job that a helper thread serves, given back at its end. Its last owner frees memory that GPUs see, and a driver may wait for a kernel first: that
/// is for the caller's thread.
type ServedOwner = Box<dyn Any + Send>;

/// A helper thread. It ends with this value.
#[derive(Debug)]
pub struct HelperThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<ServedOwner>>,
    /// The process it runs in: a forked child has this value and not the thread.
    process: u32,
}

impl HelperThread {
    /// Starts a thread that goes on for the callers of an engine.
    ///
    /// # Errors
    /// When the system has no thread left.
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

    /// Starts a thread that runs until it is asked to stop, and sleeps by [`BackoffStep`](crate::wait::BackoffStep) only. Its value is dropped together with
    /// the helper.
    ///
    /// # Errors
    /// When the system has no thread left.
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
            // Without its value it can only have ended by a panic, which was told where it happened.
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
