//! Requests to open and to close memory of peers, of a kind whose driver may wait for a kernel that runs. The thread that makes progress posts them, polls for
//! their answers and never waits; a thread of the kind carries them out, one after the other.
//!
//! At most [`MAPPING_REQUESTS_MAX`] requests wait for an answer or to have it taken: one more is given back. No thread holds the queue's lock while it calls a driver.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use trunkline_proto::limits::MAPPING_REQUESTS_MAX;
use trunkline_proto::reserve::{OutOfMemory, try_deque, try_vec};

use super::{Handle, IpcMemory, Mapped, NotClosed, OpenError, User};

/// A request that was posted and whose answer was not taken.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a request keeps its place in the queue until its answer is taken"]
pub struct MappingTicket(u64);

/// A call of the driver that the thread of a kind makes.
#[derive(Debug)]
pub enum MappingRequest {
    /// To open a handle, as [`IpcMemory::open_for`].
    Open {
        /// The handle.
        handle: Handle,
        /// The descriptor that came with it, if one did.
        descriptor: Option<OwnedFd>,
        /// The copier that the memory is opened for.
        user: User,
    },
    /// To close a mapping, as [`IpcMemory::close`].
    Close(Mapped),
    /// To make the streams and events of a device's copies. It has no answer to take: the kind keeps the result itself.
    Prepare(u32),
}

/// The result of a request.
#[derive(Debug)]
pub enum MappingAnswer {
    /// Of [`MappingRequest::Open`].
    Opened(Result<Mapped, OpenError>),
    /// Of [`MappingRequest::Close`].
    Closed(Result<(), NotClosed>),
    /// Of [`MappingRequest::Prepare`].
    Prepared,
}

impl MappingRequest {
    /// Has a kind carry it out; may take as long as a kernel runs.
    pub fn carry_out(self, of: &impl IpcMemory) -> MappingAnswer {
        match self {
            Self::Open { handle, descriptor, user } => {
                MappingAnswer::Opened(of.open_for(&handle, descriptor, user))
            }
            Self::Close(mapped) => MappingAnswer::Closed(of.close(mapped)),
            Self::Prepare(_) => MappingAnswer::Prepared,
        }
    }
}

/// The requests of one kind, and their answers.
#[derive(Debug)]
pub struct MappingQueue {
    state: Mutex<QueuedRequests>,
    /// Signalled when a request is posted, or the queue ends.
    wake: Condvar,
}

#[derive(Debug)]
struct QueuedRequests {
    posted: VecDeque<(u64, MappingRequest)>,
    answers: Vec<(u64, MappingAnswer)>,
    /// Requests that were posted and whose answers were not taken.
    outstanding: usize,
    next: u64,
    is_over: bool,
}

impl QueuedRequests {
    /// A ticket for one more request, if there is room.
    fn reserve_ticket(&mut self) -> Option<MappingTicket> {
        if self.outstanding >= MAPPING_REQUESTS_MAX || self.is_over {
            return None;
        }
        self.outstanding += 1;
        self.next += 1;
        Some(MappingTicket(self.next))
    }
}

impl MappingQueue {
    /// One without requests.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new() -> Result<Self, OutOfMemory> {
        let posted = try_deque(MAPPING_REQUESTS_MAX)?;
        let answers = try_vec(MAPPING_REQUESTS_MAX)?;
        let state = QueuedRequests { posted, answers, outstanding: 0, next: 0, is_over: false };
        Ok(Self { state: Mutex::new(state), wake: Condvar::new() })
    }

    fn lock_requests(&self) -> MutexGuard<'_, QueuedRequests> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a request to open a handle for a user. `None`: the queue is full; post again once an answer was taken.
    pub fn post_open(
        &self,
        handle: &Handle,
        descriptor: Option<OwnedFd>,
        user: User,
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
    /// The mapping, if the queue is full: post again once an answer was taken.
    pub fn post_close(&self, mapped: Mapped) -> Result<MappingTicket, Mapped> {
        let mut state = self.lock_requests();
        let Some(ticket) = state.reserve_ticket() else { return Err(mapped) };
        state.posted.push_back((ticket.0, MappingRequest::Close(mapped)));
        drop(state);
        self.wake.notify_one();
        Ok(ticket)
    }

    /// Posts a request to make the streams and events of a device's copies; returns whether there was room.
    pub(super) fn post_prepare(&self, device: u32) -> bool {
        let mut state = self.lock_requests();
        let Some(ticket) = state.reserve_ticket() else { return false };
        state.posted.push_back((ticket.0, MappingRequest::Prepare(device)));
        drop(state);
        self.wake.notify_one();
        true
    }

    fn take_answer(&self, ticket: &MappingTicket) -> Option<MappingAnswer> {
        let mut state = self.lock_requests();
        let at = state.answers.iter().position(|(number, _)| *number == ticket.0)?;
        state.outstanding -= 1;
        Some(state.answers.swap_remove(at).1)
    }

    /// Takes the answer to a request to open, if there is one. The ticket is over then. Never waits.
    pub fn take_opened(&self, ticket: &MappingTicket) -> Option<Result<Mapped, OpenError>> {
        match self.take_answer(ticket)? {
            MappingAnswer::Opened(opened) => Some(opened),
            MappingAnswer::Closed(_) | MappingAnswer::Prepared => None,
        }
    }

    /// Takes the answer to a request to close, if there is one. The ticket is over then. Never waits.
    pub fn take_closed(&self, ticket: &MappingTicket) -> Option<Result<(), NotClosed>> {
        match self.take_answer(ticket)? {
            MappingAnswer::Closed(closed) => Some(closed),
            MappingAnswer::Opened(_) | MappingAnswer::Prepared => None,
        }
    }

    /// Carries out the oldest posted request, if there is one; returns whether there was.
    pub fn serve_one(&self, carry_out: impl FnOnce(MappingRequest) -> MappingAnswer) -> bool {
        let Some((number, request)) = self.lock_requests().posted.pop_front() else { return false };
        let answer = carry_out(request);
        let mut state = self.lock_requests();
        match answer {
            MappingAnswer::Prepared => state.outstanding -= 1,
            answer => state.answers.push((number, answer)),
        }
        true
    }

    /// Carries out all posted requests, and waits for more, until [`MappingQueue::end_service`].
    pub(super) fn serve_requests(&self, mut carry_out: impl FnMut(MappingRequest) -> MappingAnswer) {
        loop {
            let mut state = self.lock_requests();
            while state.posted.is_empty() && !state.is_over {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_over {
                return;
            }
            drop(state);
            self.serve_one(&mut carry_out);
        }
    }

    /// Ends the queue: no further request is carried out than the one under way.
    pub(super) fn end_service(&self) {
        self.lock_requests().is_over = true;
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::CloseError;

    fn mapped(number: u64) -> Mapped {
        Mapped { number, address: None, len: 1 }
    }

    /// Refuses to close, so that the answer says which request it is to.
    fn refuse(request: MappingRequest) -> MappingAnswer {
        match request {
            MappingRequest::Close(mapped) => {
                MappingAnswer::Closed(Err(NotClosed { mapped, error: CloseError::Unknown }))
            }
            MappingRequest::Open { .. } => MappingAnswer::Opened(Err(OpenError::Own)),
            MappingRequest::Prepare(_) => MappingAnswer::Prepared,
        }
    }

    fn number(answer: Option<Result<(), NotClosed>>) -> Option<u64> {
        answer.map(|closed| closed.unwrap_err().mapped.number)
    }

    #[test]
    fn each_ticket_gets_its_own_answer_once() {
        let queue = MappingQueue::new().unwrap();
        let [first, second] = [7, 8].map(|number| queue.post_close(mapped(number)).unwrap());
        assert_eq!(number(queue.take_closed(&first)), None, "it was not carried out");
        assert!(queue.serve_one(refuse) && queue.serve_one(refuse) && !queue.serve_one(refuse));
        assert_eq!(number(queue.take_closed(&second)), Some(8));
        assert_eq!(number(queue.take_closed(&first)), Some(7));
        assert_eq!(number(queue.take_closed(&first)), None, "it was taken");
    }

    #[test]
    fn full_queue_gives_requests_back_until_an_answer_is_taken() {
        let queue = MappingQueue::new().unwrap();
        let tickets: Vec<MappingTicket> = (0..MAPPING_REQUESTS_MAX as u64)
            .map(|number| queue.post_close(mapped(number)).unwrap())
            .collect();
        assert_eq!(queue.post_close(mapped(99)), Err(mapped(99)));
        while queue.serve_one(refuse) {}
        assert_eq!(queue.post_close(mapped(99)), Err(mapped(99)), "no answer was taken");
        assert_eq!(number(queue.take_closed(&tickets[3])), Some(3));
        assert!(queue.post_close(mapped(99)).is_ok());
        assert!(!queue.post_prepare(0));
    }

    #[test]
    fn request_without_an_answer_gives_its_place_back() {
        let queue = MappingQueue::new().unwrap();
        for _ in 0..2 * MAPPING_REQUESTS_MAX {
            assert!(queue.post_prepare(3) && queue.serve_one(refuse));
        }
    }

    #[test]
    fn thread_carries_out_requests_until_the_queue_ends() {
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
        assert_eq!(queue.post_close(mapped(6)), Err(mapped(6)), "no thread would carry it out");
    }
}
