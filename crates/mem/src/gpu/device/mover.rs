//! Copies that the device makes while its kernels run: begun in order, and asked about until they have ended. Nothing here waits. One event is behind all
//! copies that were begun between two looks, as a driver takes about as long for an event as for a copy.

use std::collections::VecDeque;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_sys::cuda::Stream;
use trunkline_sys::cuda_run::{EVENT_DISABLE_TIMING, Event};

use super::{Device, Inner};
use crate::gpu::{CallError, planted};
use crate::{Kind, Memory};

/// Copies that may be under way together.
pub const MOVES_MAX: usize = 64;

/// A stream of copies, as one of its users has it: he hears of the end of his copies, and of no other's. Any thread may use it.
pub struct Mover {
    shared: Arc<Shared>,
    user: usize,
}

struct Shared {
    device: Arc<Inner>,
    state: Mutex<State>,
}

struct State {
    stream: *mut Stream,
    free: Vec<*mut Event>,
    /// In the order in which they were begun.
    under_way: VecDeque<Move>,
    /// Events behind them, the first one behind the first of them.
    marks: VecDeque<Mark>,
    /// Copies that have none behind them yet, the last ones.
    unmarked: usize,
    /// Both ends of copies whose end cannot be known: they are held until an event behind them says so.
    lost: Vec<[Memory; 2]>,
    /// What has ended, or could not begin, and was not told, by user.
    ended: Vec<Vec<(u64, Result<(), u32>)>>,
}

struct Move {
    user: usize,
    cookie: u64,
    /// Held so that the bytes stay until the copy has ended.
    ends: [Memory; 2],
}

/// An event, how many copies are between it and the one before, and the number of those lost before it.
struct Mark {
    event: *mut Event,
    copies: usize,
    lost: Vec<[Memory; 2]>,
}

// SAFETY: the driver may be called by any thread; handles are used under the lock.
unsafe impl Send for State {}

impl Device {
    /// Copies beside kernels.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn mover(&self) -> Result<Mover, CallError> {
        let device = Arc::clone(&self.inner);
        let state = State {
            stream: device.new_stream()?,
            free: Vec::with_capacity(MOVES_MAX),
            under_way: VecDeque::with_capacity(MOVES_MAX),
            marks: VecDeque::with_capacity(MOVES_MAX),
            unmarked: 0,
            lost: Vec::new(),
            ended: vec![Vec::with_capacity(MOVES_MAX)],
        };
        let shared = Shared { device, state: Mutex::new(state) };
        for _ in 0..MOVES_MAX {
            let device = &shared.device;
            let mut event = ptr::null_mut();
            device.call("cuEventCreate", || {
                // SAFETY: writes a handle to a place of ours.
                unsafe { (device.calls.event_create)(&raw mut event, EVENT_DISABLE_TIMING) }
            })?;
            shared.state().free.push(event);
        }
        Ok(Mover { shared: Arc::new(shared), user: 0 })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mover {
    /// The same stream, for another user. Who changes the same words by way of the host shares a stream: else an older value may come last.
    #[must_use]
    pub fn share(&self) -> Self {
        let mut state = self.shared.state();
        state.ended.push(Vec::with_capacity(MOVES_MAX));
        Self { shared: Arc::clone(&self.shared), user: state.ended.len() - 1 }
    }

    /// Begins to copy `len` bytes behind all that were begun before; each end is memory of the device or of the host. `false`: not now. What it
    /// refuses for good is told by [`Mover::ended`].
    pub fn begin(&self, cookie: u64, from: (&Memory, u64), to: (&Memory, u64), len: u64) -> bool {
        let mut state = self.shared.state();
        let user = self.user;
        if state.ended[user].len() >= MOVES_MAX || state.under_way.len() + state.lost.len() >= MOVES_MAX {
            return false;
        }
        match self.copy(&state, from, to, len) {
            Ok(()) => {
                state.under_way.push_back(Move { user, cookie, ends: [from.0.clone(), to.0.clone()] });
                state.unmarked += 1;
            }
            Err(code) => state.ended[user].push((cookie, Err(code))),
        }
        true
    }

    fn copy(
        &self,
        state: &State,
        (from, at): (&Memory, u64),
        (to, offset): (&Memory, u64),
        len: u64,
    ) -> Result<(), u32> {
        let from = self.address(from, at, len)?;
        let to = self.address(to, offset, len)?;
        // SAFETY: both are inside of memory that is held until the copy has ended.
        let begun = unsafe { self.shared.device.copy(to, from, len as usize, state.stream) };
        begun.map_err(|error: CallError| error.code)
    }

    /// Where bytes are, of this device or of the host.
    fn address(&self, memory: &Memory, at: u64, len: u64) -> Result<usize, u32> {
        let own = Kind::Device(self.shared.device.ordinal);
        let is_reached = memory.kind() == Kind::Host || memory.kind() == own;
        let invalid = trunkline_sys::cuda::status::INVALID_VALUE;
        if is_reached { memory.checked(at, len).map_err(|_| invalid) } else { Err(invalid) }
    }

    /// Adds what has ended since of this user's: the bytes are there, or the driver's number of why not.
    pub fn ended(&self, into: &mut Vec<(u64, Result<(), u32>)>) {
        let mut state = self.shared.state();
        self.shared.look(&mut state);
        into.append(&mut state.ended[self.user]);
    }
}

impl Shared {
    /// Has an event behind all copies.
    fn mark(&self, state: &mut State) {
        if state.unmarked == 0 && state.lost.is_empty() {
            return;
        }
        // There are as many events as there may be copies.
        let Some(event) = state.free.pop() else { return };
        let copies = std::mem::take(&mut state.unmarked);
        let recorded = self.device.call("cuEventRecord", || {
            // SAFETY: an event and a stream of ours.
            unsafe { (self.device.calls.event_record)(event, state.stream) }
        });
        match recorded {
            Ok(()) => {
                let lost = std::mem::take(&mut state.lost);
                state.marks.push_back(Mark { event, copies, lost });
            }
            Err(error) => {
                state.free.push(event);
                let first = state.under_way.len().saturating_sub(copies);
                for Move { user, cookie, ends } in state.under_way.drain(first..) {
                    state.ended[user].push((cookie, Err(error.code)));
                    // The copies are on the stream all the same.
                    if !planted("mem-moves-let-lost-bytes-go") {
                        state.lost.push(ends);
                    }
                }
            }
        }
    }

    /// Asks about the copies that began first, until some have not ended.
    fn look(&self, state: &mut State) {
        self.mark(state);
        while let Some(event) = state.marks.front().map(|mark| mark.event) {
            let asked = self.device.ask("cuEventQuery", || {
                // SAFETY: an event of ours that was recorded.
                unsafe { (self.device.calls.event_query)(event) }
            });
            let how = match asked {
                Ok(false) if !planted("mem-moves-end-early") => return,
                Ok(_) => Ok(()),
                Err(error) => Err(error.code),
            };
            let Some(Mark { copies, lost, .. }) = state.marks.pop_front() else { return };
            state.free.push(event);
            for _ in 0..copies {
                let Some(Move { user, cookie, ends }) = state.under_way.pop_front() else { return };
                let user = if planted("mem-moves-are-told-to-anybody") { 0 } else { user };
                state.ended[user].push((cookie, how));
                if how.is_err() {
                    state.lost.push(ends);
                }
            }
            if how.is_err() {
                state.lost.extend(lost);
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Memory that is held for copies goes behind them.
        self.device.end_stream(state.stream);
        let marks = state.marks.drain(..).map(|mark| mark.event);
        for event in state.free.drain(..).chain(marks) {
            let _ = self.device.give_back("cuEventDestroy", || {
                // SAFETY: an event of ours, once.
                unsafe { (self.device.calls.event_destroy)(event) }
            });
        }
    }
}

impl fmt::Debug for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mover(device {}, user {})", self.shared.device.ordinal, self.user)
    }
}
