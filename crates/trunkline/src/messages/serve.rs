//! The owner's side of window parts that other ranks access by messages. It receives requests, places the bytes of
//! puts, sends the bytes of gets, and acknowledges puts. It runs in the owner's own calls, with bounded work and
//! bounded queues.
//!
//! The requesting rank has checked that the bytes are inside the part. The owner checks again, and denies invalid
//! requests.

use trunkline_mem::ipc::IpcMemory;
use trunkline_node::ipc::LoanRange;
use trunkline_node::tagged::{TaggedPeerId, TaggedRequestId, TaggedSendStart};
use trunkline_proto::wire::window::{ACCESS_BYTES, AccessKind, WindowAccess};

use super::{Buffer, Messages, OWN_TAGS};

/// Tags of windows' own messages. The request has this one; the bytes of a put, the bytes of a get and the
/// acknowledgement of a put have the following ones, with the requester's access number.
pub(super) const ASK: u64 = OWN_TAGS | 1 << 61;
/// See [`ASK`].
pub(super) const PUT: u64 = ASK | 1 << 58;
/// See [`ASK`].
pub(super) const GOT: u64 = ASK | 2 << 58;
/// See [`ASK`].
pub(super) const ACK: u64 = ASK | 3 << 58;

/// Accesses of other ranks that are pending here, at most. Further requests stay in the message ring.
const SERVING_MAX: usize = 64;

/// The posted receive for the next request, and its buffer.
#[derive(Debug)]
pub(super) struct AccessReceive {
    request: TaggedRequestId,
    into: Buffer,
}

/// A put or get that another rank requested.
#[derive(Debug)]
pub(super) struct ServedAccess {
    from: TaggedPeerId,
    access: WindowAccess,
    step: ServeStep,
}

/// The progress of a requested access.
#[derive(Debug)]
enum ServeStep {
    /// The access has not begun.
    New,
    /// The bytes of a put are being received. The flag is false if the access is denied, and its bytes are discarded.
    Placing(TaggedRequestId, bool),
    /// The acknowledgement of a put is to be sent, with its outcome.
    Answer(bool),
    /// The bytes of a get are being sent.
    Giving(TaggedRequestId),
    Over,
}

impl ServedAccess {
    /// Returns the window of the access.
    pub(super) const fn window_id(&self) -> u64 {
        self.access.window
    }
}

impl<M: IpcMemory> Messages<M> {
    /// Posts the receive for requests while other ranks access a part of this rank by messages, and cancels it
    /// afterwards.
    pub(super) fn update_access_receive(&mut self) {
        let wanted = self.windows.denies || self.windows.live.iter().any(|live| live.served);
        match &self.windows.asked {
            None if wanted => self.post_access_receive(),
            Some(asked) if !wanted => {
                let request = asked.request;
                // No rank accesses the part any more, and all requested accesses have ended.
                if self.endpoint.cancel_receive(request) {
                    let _ = self.endpoint.test(request);
                    self.windows.asked = None;
                }
            }
            None | Some(_) => {}
        }
    }

    fn post_access_receive(&mut self) {
        // Without memory for the buffer, a later call posts the receive.
        match Buffer::private(ACCESS_BYTES) {
            Ok(into) => self.repost_access_receive(into),
            Err(_) => self.windows.asked = None,
        }
    }

    fn repost_access_receive(&mut self, into: Buffer) {
        // If too many receives are posted, a later call posts this one.
        let posted = self.endpoint.receive(None, ASK, u64::MAX, into.ipc_buffer().clone());
        self.windows.asked = posted.ok().map(|request| AccessReceive { request, into });
    }

    /// Advances requested accesses. Returns whether anything moved.
    #[inline]
    pub(super) fn serve_accesses(&mut self) -> bool {
        if self.windows.asked.is_none() && self.windows.serving.is_empty() {
            return false;
        }
        self.serve_some()
    }

    #[inline(never)]
    fn serve_some(&mut self) -> bool {
        let mut moved = self.poll_access_receive();
        for _ in 0..self.windows.serving.len() {
            let Some(mut one) = self.windows.serving.pop_front() else { break };
            let (step, went) = self.serve_one(&one);
            moved |= went;
            one.step = step;
            match one.step {
                ServeStep::Over => self.windows.counts.served += 1,
                _ => self.windows.serving.push_back(one),
            }
        }
        if self.windows.asked.is_none() && self.windows.serving.len() < SERVING_MAX {
            self.update_access_receive();
        }
        moved
    }

    /// Receives a request if one has arrived.
    fn poll_access_receive(&mut self) -> bool {
        let Some(asked) = &self.windows.asked else { return false };
        let Some(end) = self.endpoint.test(asked.request) else { return false };
        let Some(AccessReceive { into, .. }) = self.windows.asked.take() else { return false };
        let mut bytes = [0; ACCESS_BYTES];
        let read = into.read(0, &mut bytes).is_ok();
        // An invalid request is dropped: it contains no access number to answer to.
        if let (Ok(done), Ok(access), true) = (end, WindowAccess::from_bytes(&bytes), read) {
            self.windows.serving.push_back(ServedAccess { from: done.peer, access, step: ServeStep::New });
        }
        if self.windows.serving.len() < SERVING_MAX {
            self.repost_access_receive(into);
        }
        true
    }

    /// Performs the next step of an access. Returns its new step, and whether anything moved.
    fn serve_one(&mut self, one: &ServedAccess) -> (ServeStep, bool) {
        let from = one.from;
        let access = &one.access;
        match one.step {
            // The requester has completed the collective call that makes this window, and this rank is about to.
            ServeStep::New if access.window > self.windows.settled => (ServeStep::New, false),
            ServeStep::New => match access.deed {
                AccessKind::Put => self.take_put(from, access),
                AccessKind::Get => self.give_get(from, access),
            },
            ServeStep::Placing(request, placed) => match self.endpoint.test(request) {
                None => (ServeStep::Placing(request, placed), false),
                Some(end) => {
                    (ServeStep::Answer(placed && end.is_ok_and(|done| done.len == access.len)), true)
                }
            },
            ServeStep::Answer(placed) => {
                match self.endpoint.send_bytes(from, ACK | access.number, &[u8::from(placed)]) {
                    Ok(TaggedSendStart::Busy) => (ServeStep::Answer(placed), false),
                    Ok(TaggedSendStart::Done | TaggedSendStart::Request(_)) | Err(_) => {
                        (ServeStep::Over, true)
                    }
                }
            }
            ServeStep::Giving(request) => match self.endpoint.test(request) {
                None => (ServeStep::Giving(request), false),
                Some(_) => (ServeStep::Over, true),
            },
            ServeStep::Over => (ServeStep::Over, false),
        }
    }

    /// Returns the bytes of an access as a buffer, if they are inside a part of this rank.
    fn asked_for(&self, access: &WindowAccess) -> Option<Buffer> {
        let live = self.windows.find_window(access.window)?;
        let spot = LoanRange { at: access.at, rows: access.rows };
        live.spot_buffer(spot, access.len).ok().filter(|found| found.len() as u64 == access.len)
    }

    fn take_put(&mut self, from: TaggedPeerId, access: &WindowAccess) -> (ServeStep, bool) {
        let into = self.asked_for(access).filter(|into| into.ipc_buffer().is_there(self.memory()));
        let there = into.is_some();
        let Some(into) = into.or_else(|| Buffer::private(0).ok()) else { return (ServeStep::New, false) };
        let tag = PUT | access.number;
        match self.endpoint.receive(Some(from), tag, u64::MAX, into.ipc_buffer().clone()) {
            Ok(request) => (ServeStep::Placing(request, there), true),
            Err(trunkline_node::tagged::ReceiveRefused::TooMany) => (ServeStep::New, false),
            Err(_) => (ServeStep::Over, true),
        }
    }

    fn give_get(&mut self, to: TaggedPeerId, access: &WindowAccess) -> (ServeStep, bool) {
        let given = self.asked_for(access).filter(|given| given.ipc_buffer().is_there(self.memory()));
        let Some(given) = given.or_else(|| Buffer::private(0).ok()) else { return (ServeStep::New, false) };
        match self.endpoint.send(to, GOT | access.number, given.ipc_buffer()) {
            Ok(TaggedSendStart::Busy) => (ServeStep::New, false),
            Ok(TaggedSendStart::Request(request)) => (ServeStep::Giving(request), true),
            Ok(TaggedSendStart::Done) | Err(_) => (ServeStep::Over, true),
        }
    }
}
