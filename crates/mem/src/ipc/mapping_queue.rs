//! Requests for those calls of a driver that may wait for a running kernel: opening and closing imports, pinning memory
//! of the host, and releasing handles. The progress thread posts them, polls for their results and never waits; a
//! thread of the kind executes them in order.
//!
//! At most [`MAPPING_REQUESTS_MAX`] requests are outstanding, until their results are taken; a further one is returned
//! to the caller. Objects whose destruction is such a call ([`MappingQueue::post_release`]) have no result. Their
//! places are reserved when they are created; their number is bounded by the number of pins. No thread holds the
//! queue's lock while it calls a driver.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use trunkline_proto::limits::MAPPING_REQUESTS_MAX;
use trunkline_proto::reserve::{OutOfMemory, try_deque, try_grow, try_vec};

use super::{
    CloseError, ExportedHandle, HandleOpenError, IpcHandle, IpcMemory, MappingUser, NotClosed, OpenedHandle,
    StagePin,
};
use crate::MemoryRange;

/// A posted request whose result has not been taken.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a request keeps its place in the queue until its result is taken"]
pub struct MappingTicket(u64);

/// A driver call that the mapping thread makes.
#[derive(Debug)]
pub enum MappingRequest {
    /// Opens a handle, as [`IpcMemory::open_for`].
    Open {
        /// The handle.
        handle: IpcHandle,
        /// The descriptor that was received with it, if any.
        descriptor: Option<OwnedFd>,
        /// The user for which the memory is mapped.
        user: MappingUser,
    },
    /// Closes a mapping, as [`IpcMemory::close`].
    Close(OpenedHandle),
    /// Creates the streams and events of a device's copies. It has no result to take: the kind stores it.
    Prepare(u32),
    /// Pins memory of the host, as [`IpcMemory::pin_stage`].
    Pin(MemoryRange),
    /// Releases a handle, as [`IpcMemory::unexport`].
    Unexport(Box<ExportedHandle>),
}

/// The result of a request.
#[derive(Debug)]
pub enum MappingAnswer {
    /// Of [`MappingRequest::Open`].
    Opened(Result<OpenedHandle, HandleOpenError>),
    /// Of [`MappingRequest::Close`].
    Closed(Result<(), NotClosed>),
    /// Of [`MappingRequest::Prepare`].
    Prepared,
    /// Of [`MappingRequest::Pin`]. `None`: the kind does not pin memory, or the driver failed.
    Pinned(Option<StagePin>),
    /// Of [`MappingRequest::Unexport`].
    Unexported(Result<(), CloseError>),
}

impl MappingRequest {
    /// Executes the request by a kind; may block while a kernel runs.
    pub fn carry_out(self, of: &impl IpcMemory) -> MappingAnswer {
        match self {
            Self::Open { handle, descriptor, user } => {
                MappingAnswer::Opened(of.open_for(&handle, descriptor, user))
            }
            Self::Close(mapped) => MappingAnswer::Closed(of.close(mapped)),
            Self::Prepare(_) => MappingAnswer::Prepared,
            Self::Pin(memory) => MappingAnswer::Pinned(of.pin_stage(&memory)),
            Self::Unexport(export) => MappingAnswer::Unexported(of.unexport(*export)),
        }
    }
}

/// An object whose destruction is a driver call that may wait for a running kernel.
pub(super) type DeferredRelease = Box<dyn Any + Send + Sync>;

/// The next step of a thread that serves a queue.
enum NextStep {
    CarryOut(u64, MappingRequest),
    End(DeferredRelease),
}

/// The requests of one kind, and their results.
#[derive(Debug)]
pub struct MappingQueue {
    state: Mutex<QueuedRequests>,
    /// Signalled when a request is posted, or the queue ends.
    wake: Condvar,
}

struct QueuedRequests {
    posted: VecDeque<(u64, MappingRequest)>,
    answers: Vec<(u64, MappingAnswer)>,
    /// Posted requests whose results have not been taken.
    outstanding: usize,
    /// The current request, if its caller has abandoned it.
    abandoned: Option<u64>,
    /// Objects to be destroyed.
    releases: Vec<DeferredRelease>,
    /// Reserved places for such objects, both live and to be destroyed.
    release_places: usize,
    next: u64,
    is_over: bool,
}

impl fmt::Debug for QueuedRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests, {} objects that are to end", self.outstanding, self.releases.len())
    }
}

impl QueuedRequests {
    /// Returns a ticket for one more request; `None` if the queue is full or ended.
    fn reserve_ticket(&mut self) -> Option<MappingTicket> {
        if self.outstanding >= MAPPING_REQUESTS_MAX || self.is_over {
            return None;
        }
        self.outstanding += 1;
        self.next += 1;
        Some(MappingTicket(self.next))
    }

    /// Returns the next step of the serving thread. Once the queue has ended, only requests that release handles are returned.
    fn take_step(&mut self) -> Option<NextStep> {
        if let Some(release) = self.releases.pop() {
            self.release_places -= 1;
            return Some(NextStep::End(release));
        }
        while let Some((number, request)) = self.posted.pop_front() {
            if !self.is_over || matches!(request, MappingRequest::Unexport(_)) {
                return Some(NextStep::CarryOut(number, request));
            }
        }
        None
    }
}

impl MappingQueue {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new() -> Result<Self, OutOfMemory> {
        let posted = try_deque(MAPPING_REQUESTS_MAX)?;
        let answers = try_vec(MAPPING_REQUESTS_MAX)?;
        let state = QueuedRequests {
            posted,
            answers,
            outstanding: 0,
            abandoned: None,
            releases: Vec::new(),
            release_places: 0,
            next: 0,
            is_over: false,
        };
        Ok(Self { state: Mutex::new(state), wake: Condvar::new() })
    }

    fn lock_requests(&self) -> MutexGuard<'_, QueuedRequests> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a request to open a handle for a user. Returns `None` if the queue is full; retry once a result has been
    /// taken.
    pub fn post_open(
        &self,
        handle: &IpcHandle,
        descriptor: Option<OwnedFd>,
        user: MappingUser,
    ) -> Option<MappingTicket> {
        let mut state = self.lock_requests();
        let ticket = state.reserve_ticket()?;
        state.posted.push_back((ticket.0, MappingRequest::Open { handle: *handle, descriptor, user }));
        drop(state);
        self.wake.notify_one();
        Some(ticket)
    }

    /// Posts a request to close a mapping.
    ///
    /// # Errors
    /// The mapping, if the queue is full; retry once a result has been taken.
    pub fn post_close(&self, mapped: OpenedHandle) -> Result<MappingTicket, OpenedHandle> {
        let mut state = self.lock_requests();
        let Some(ticket) = state.reserve_ticket() else { return Err(mapped) };
        state.posted.push_back((ticket.0, MappingRequest::Close(mapped)));
        drop(state);
        self.wake.notify_one();
        Ok(ticket)
    }

    /// Posts a request to create the streams and events of a device's copies; returns whether there was room.
    pub(super) fn post_prepare(&self, device: u32) -> bool {
        let mut state = self.lock_requests();
        let Some(ticket) = state.reserve_ticket() else { return false };
        state.posted.push_back((ticket.0, MappingRequest::Prepare(device)));
        drop(state);
        self.wake.notify_one();
        true
    }

    /// Posts a request to pin memory of the host. Returns `None` if the queue is full; retry once a result has been
    /// taken.
    pub fn post_pin(&self, memory: &MemoryRange) -> Option<MappingTicket> {
        let mut state = self.lock_requests();
        let ticket = state.reserve_ticket()?;
        state.posted.push_back((ticket.0, MappingRequest::Pin(memory.clone())));
        drop(state);
        self.wake.notify_one();
        Some(ticket)
    }

    /// Posts a request to release a handle.
    ///
    /// # Errors
    /// The export, if the queue is full; retry once a result has been taken.
    pub fn post_unexport(&self, export: Box<ExportedHandle>) -> Result<MappingTicket, Box<ExportedHandle>> {
        let mut state = self.lock_requests();
        let Some(ticket) = state.reserve_ticket() else { return Err(export) };
        state.posted.push_back((ticket.0, MappingRequest::Unexport(export)));
        drop(state);
        self.wake.notify_one();
        Ok(ticket)
    }

    /// Reserves a place for an object to be destroyed by [`MappingQueue::post_release`], so that dropping it never waits for room.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn reserve_release(&self) -> Result<(), OutOfMemory> {
        let mut state = self.lock_requests();
        let wanted = state.release_places + 1 - state.releases.len();
        try_grow(&mut state.releases, wanted)?;
        state.release_places += 1;
        Ok(())
    }

    /// Frees a place reserved by [`MappingQueue::reserve_release`].
    pub(super) fn cancel_release(&self) {
        self.lock_requests().release_places -= 1;
    }

    /// Posts an object with a reserved place, to be destroyed by the serving thread. Returns the object if the queue has ended: its owner then
    /// destroys it.
    pub(super) fn post_release(&self, object: DeferredRelease) -> Option<DeferredRelease> {
        let mut state = self.lock_requests();
        if state.is_over {
            state.release_places -= 1;
            return Some(object);
        }
        state.releases.push(object);
        drop(state);
        self.wake.notify_one();
        None
    }

    /// Abandons a request: it is not executed if it has not started, and its result is dropped.
    pub fn abandon_request(&self, ticket: MappingTicket) {
        let MappingTicket(number) = ticket;
        let mut state = self.lock_requests();
        let answer = state.answers.iter().position(|(of, _)| *of == number);
        let answer = answer.map(|at| state.answers.swap_remove(at));
        let posted = state.posted.iter().position(|(of, _)| *of == number);
        let request = posted.and_then(|at| state.posted.remove(at));
        if answer.is_some() || request.is_some() {
            state.outstanding -= 1;
        } else {
            state.abandoned = Some(number);
        }
        // Dropped after the lock is released: dropping a pin posts to this queue.
        drop(state);
        drop((answer, request));
    }

    fn take_answer(&self, ticket: &MappingTicket) -> Option<MappingAnswer> {
        let mut state = self.lock_requests();
        let at = state.answers.iter().position(|(number, _)| *number == ticket.0)?;
        state.outstanding -= 1;
        Some(state.answers.swap_remove(at).1)
    }

    /// Takes the result of a request to open, if available; the ticket is then used up. Never waits.
    pub fn take_opened(&self, ticket: &MappingTicket) -> Option<Result<OpenedHandle, HandleOpenError>> {
        match self.take_answer(ticket)? {
            MappingAnswer::Opened(opened) => Some(opened),
            _ => None,
        }
    }

    /// Takes the result of a request to close, if available; the ticket is then used up. Never waits.
    pub fn take_closed(&self, ticket: &MappingTicket) -> Option<Result<(), NotClosed>> {
        match self.take_answer(ticket)? {
            MappingAnswer::Closed(closed) => Some(closed),
            _ => None,
        }
    }

    /// Takes the result of a request to pin, if available; the ticket is then used up. Never waits.
    pub fn take_pinned(&self, ticket: &MappingTicket) -> Option<Option<StagePin>> {
        match self.take_answer(ticket)? {
            MappingAnswer::Pinned(pin) => Some(pin),
            _ => None,
        }
    }

    /// Takes the result of a request to release a handle, if available; the ticket is then used up. Never waits.
    pub fn take_unexported(&self, ticket: &MappingTicket) -> Option<Result<(), CloseError>> {
        match self.take_answer(ticket)? {
            MappingAnswer::Unexported(unexported) => Some(unexported),
            _ => None,
        }
    }

    /// Destroys one posted object, or executes the oldest posted request; returns whether there was either.
    pub fn serve_one(&self, carry_out: impl FnOnce(MappingRequest) -> MappingAnswer) -> bool {
        let step = self.lock_requests().take_step();
        let (number, request) = match step {
            None => return false,
            Some(NextStep::End(release)) => {
                drop(release);
                return true;
            }
            Some(NextStep::CarryOut(number, request)) => (number, request),
        };
        let answer = carry_out(request);
        let mut state = self.lock_requests();
        let is_abandoned = state.abandoned.take_if(|of| *of == number).is_some();
        match answer {
            answer if is_abandoned || matches!(answer, MappingAnswer::Prepared) => {
                state.outstanding -= 1;
                drop(state);
                drop(answer);
            }
            answer => state.answers.push((number, answer)),
        }
        true
    }

    /// Executes posted requests, and waits for more, until [`MappingQueue::end_service`]; then destroys the remaining objects and releases the
    /// handles posted for release.
    pub(super) fn serve_requests(&self, mut carry_out: impl FnMut(MappingRequest) -> MappingAnswer) {
        loop {
            let mut state = self.lock_requests();
            while state.posted.is_empty() && state.releases.is_empty() && !state.is_over {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let is_over = state.is_over;
            drop(state);
            if !self.serve_one(&mut carry_out) && is_over {
                return;
            }
        }
    }

    /// Ends the queue: only the current request and those that release handles are still executed.
    pub(super) fn end_service(&self) {
        self.lock_requests().is_over = true;
        self.wake.notify_all();
    }

    /// Drops the results that no caller has taken, once no thread serves the queue: pins among them hold references to
    /// the queue.
    pub(super) fn drop_answers(&self) {
        let answers = std::mem::take(&mut self.lock_requests().answers);
        drop(answers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::CloseError;

    fn mapped(number: u64) -> OpenedHandle {
        OpenedHandle { number, address: None, len: 1 }
    }

    /// Refuses to close, so that the result contains the number of its request.
    fn refuse(request: MappingRequest) -> MappingAnswer {
        match request {
            MappingRequest::Close(mapped) => {
                MappingAnswer::Closed(Err(NotClosed { mapped, error: CloseError::Unknown }))
            }
            MappingRequest::Open { .. } => MappingAnswer::Opened(Err(HandleOpenError::Own)),
            MappingRequest::Prepare(_) => MappingAnswer::Prepared,
            MappingRequest::Pin(_) => MappingAnswer::Pinned(None),
            MappingRequest::Unexport(_) => MappingAnswer::Unexported(Err(CloseError::Unknown)),
        }
    }

    fn number(answer: Option<Result<(), NotClosed>>) -> Option<u64> {
        answer.map(|closed| closed.unwrap_err().mapped.number)
    }

    #[test]
    fn each_ticket_gets_its_result_once() {
        let queue = MappingQueue::new().unwrap();
        let [first, second] = [7, 8].map(|number| queue.post_close(mapped(number)).unwrap());
        assert_eq!(number(queue.take_closed(&first)), None, "the request was not executed yet");
        assert!(queue.serve_one(refuse) && queue.serve_one(refuse) && !queue.serve_one(refuse));
        assert_eq!(number(queue.take_closed(&second)), Some(8));
        assert_eq!(number(queue.take_closed(&first)), Some(7));
        assert_eq!(number(queue.take_closed(&first)), None, "a result can be taken only once");
    }

    #[test]
    fn full_queue_has_room_after_a_taken_result() {
        let queue = MappingQueue::new().unwrap();
        let tickets: Vec<MappingTicket> = (0..MAPPING_REQUESTS_MAX as u64)
            .map(|number| queue.post_close(mapped(number)).unwrap())
            .collect();
        assert_eq!(queue.post_close(mapped(99)), Err(mapped(99)));
        while queue.serve_one(refuse) {}
        assert_eq!(
            queue.post_close(mapped(99)),
            Err(mapped(99)),
            "the queue must be full until a result is taken"
        );
        assert_eq!(number(queue.take_closed(&tickets[3])), Some(3));
        assert!(queue.post_close(mapped(99)).is_ok());
        assert!(!queue.post_prepare(0));
    }

    #[test]
    fn request_without_a_result_frees_its_place() {
        let queue = MappingQueue::new().unwrap();
        for _ in 0..2 * MAPPING_REQUESTS_MAX {
            assert!(queue.post_prepare(3) && queue.serve_one(refuse));
        }
    }

    #[test]
    fn abandoned_requests_free_their_places() {
        let queue = MappingQueue::new().unwrap();
        let memory = MemoryRange::heap(8);
        for stage in 0..3 * MAPPING_REQUESTS_MAX {
            let ticket = queue.post_pin(&memory).expect("there is room");
            match stage % 3 {
                0 => queue.abandon_request(ticket),
                1 => {
                    assert!(queue.serve_one(refuse));
                    queue.abandon_request(ticket);
                }
                _ => assert!(queue.serve_one(|request| {
                    queue.abandon_request(ticket);
                    refuse(request)
                })),
            }
            assert!(!queue.serve_one(refuse), "no request may be left");
        }
        let tickets: Vec<_> = std::iter::from_fn(|| queue.post_pin(&memory)).collect();
        assert_eq!(tickets.len(), MAPPING_REQUESTS_MAX);
    }

    /// Counts how often it has ended.
    struct Ends(std::sync::Arc<std::sync::atomic::AtomicU32>);

    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[test]
    fn released_objects_end_in_the_serving_thread() {
        let queue = MappingQueue::new().unwrap();
        let count = std::sync::Arc::<std::sync::atomic::AtomicU32>::default();
        let ended = || count.load(std::sync::atomic::Ordering::Relaxed);
        let release = || {
            queue.reserve_release().unwrap();
            queue.post_release(Box::new(Ends(std::sync::Arc::clone(&count))))
        };
        // A queue without room for requests accepts them.
        let tickets: Vec<_> = std::iter::from_fn(|| queue.post_pin(&MemoryRange::heap(8))).collect();
        assert!((0..3).all(|_| release().is_none()));
        assert_eq!(ended(), 0);
        assert!((0..3).all(|_| queue.serve_one(|_| panic!("no request is first"))));
        assert_eq!(ended(), 3);
        assert!(release().is_none());
        queue.end_service();
        queue.serve_requests(|_| panic!("no request may be executed after the end of the queue"));
        assert_eq!(ended(), 4, "objects posted before the end must be destroyed");
        assert!(release().is_some(), "after the end the owner must destroy the object");
        assert_eq!((ended(), tickets.len()), (5, MAPPING_REQUESTS_MAX));
    }

    #[test]
    fn handles_are_released_after_the_queue_ends() {
        let queue = MappingQueue::new().unwrap();
        let export = ExportedHandle { handle: IpcHandle::new(16, &[1]).unwrap(), descriptor: None };
        let ticket = queue.post_unexport(Box::new(export)).unwrap();
        let _closed = queue.post_close(mapped(5)).unwrap();
        queue.end_service();
        queue.serve_requests(refuse);
        assert!(matches!(queue.take_unexported(&ticket), Some(Err(CloseError::Unknown))));
        queue.drop_answers();
    }

    #[test]
    fn thread_serves_requests_until_the_queue_ends() {
        let queue = MappingQueue::new().unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| queue.serve_requests(refuse));
            let ticket = queue.post_close(mapped(5)).unwrap();
            let answer = loop {
                match queue.take_closed(&ticket) {
                    None => std::thread::yield_now(),
                    answer => break answer,
                }
            };
            assert_eq!(number(answer), Some(5));
            queue.end_service();
            thread.join().unwrap();
        });
        assert_eq!(
            queue.post_close(mapped(6)),
            Err(mapped(6)),
            "a request must be refused after the end of the queue"
        );
    }
}
