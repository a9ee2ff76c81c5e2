//! What the owner of a part does that others reach by messages: it is asked, places what comes, gives what it is asked for, and says how that ended; in
//! its own calls, and bounded.
//!
//! Whoever asks has checked that the bytes are there; the owner checks again, and denies what is not.

use trunkline_mem::ipc::IpcMemory;
use trunkline_node::ipc::LoanRange;
use trunkline_node::tagged::{TaggedPeerId, TaggedRequestId, TaggedSendStart};
use trunkline_proto::wire::window::{ACCESS_BYTES, AccessKind, WindowAccess};

use super::{Buffer, Messages, OWN_TAGS};

/// Tags of windows' own messages: what is asked, and by the asking rank's number the bytes of a put, those of a get, and how a put ended.
pub(super) const ASK: u64 = OWN_TAGS | 1 << 61;
/// See [`ASK`].
pub(super) const PUT: u64 = ASK | 1 << 58;
/// See [`ASK`].
pub(super) const GOT: u64 = ASK | 2 << 58;
/// See [`ASK`].
pub(super) const ACK: u64 = ASK | 3 << 58;

/// What others asked for and has not ended, at most. What is asked beyond waits in its ring.
const SERVING_MAX: usize = 64;

/// A receive, and where it goes.
#[derive(Debug)]
pub(super) struct AccessReceive {
    request: TaggedRequestId,
    into: Buffer,
}

/// What another rank asked for.
#[derive(Debug)]
pub(super) struct ServedAccess {
    from: TaggedPeerId,
    access: WindowAccess,
    step: ServeStep,
}

/// How far it is.
#[derive(Debug)]
enum ServeStep {
    /// It is to begin.
    New,
    /// Its bytes come; whether they are placed, or denied.
    Placing(TaggedRequestId, bool),
    /// It is to be said how it ended.
    Answer(bool),
    /// Its bytes go.
    Giving(TaggedRequestId),
    Over,
}

impl ServedAccess {
    /// Which window it is of.
    pub(super) const fn window_id(&self) -> u64 {
        self.access.window
    }
}

impl<M: IpcMemory> Messages<M> {
    /// Asks, or asks no more, what others want: as long as any of them reaches a part of this rank by messages.
    pub(super) fn update_access_receive(&mut self) {
        let wanted = self.windows.denies || self.windows.live.iter().any(|live| live.served);
        match &self.windows.asked {
            None if wanted => self.post_access_receive(),
            Some(asked) if !wanted => {
                let request = asked.request;
                // Nobody asks any more; what was asked has ended.
                if self.endpoint.cancel_receive(request) {
                    let _ = self.endpoint.test(request);
                    self.windows.asked = None;
                }
            }
            None | Some(_) => {}
        }
    }

    fn post_access_receive(&mut self) {
        // Without memory for it, it is posted later, as without room.
        match Buffer::private(ACCESS_BYTES) {
            Ok(into) => self.repost_access_receive(into),
            Err(_) => self.windows.asked = None,
        }
    }

    fn repost_access_receive(&mut self, into: Buffer) {
        // With no room for it, it is posted later.
        let posted = self.endpoint.receive(None, ASK, u64::MAX, into.ipc_buffer().clone());
        self.windows.asked = posted.ok().map(|request| AccessReceive { request, into });
    }

    /// Goes on with what others asked for; whether anything happened.
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

    /// Takes in what is asked.
    fn poll_access_receive(&mut self) -> bool {
        let Some(asked) = &self.windows.asked else { return false };
        let Some(end) = self.endpoint.test(asked.request) else { return false };
        let Some(AccessReceive { into, .. }) = self.windows.asked.take() else { return false };
        let mut bytes = [0; ACCESS_BYTES];
        let read = into.read(0, &mut bytes).is_ok();
        // What is no question is nobody's.
        if let (Ok(done), Ok(access), true) = (end, WindowAccess::from_bytes(&bytes), read) {
            self.windows.serving.push_back(ServedAccess { from: done.peer, access, step: ServeStep::New });
        }
        if self.windows.serving.len() < SERVING_MAX {
            self.repost_access_receive(into);
        }
        true
    }

    /// What comes next, and whether that is something else than before.
    fn serve_one(&mut self, one: &ServedAccess) -> (ServeStep, bool) {
        let from = one.from;
        let access = &one.access;
        match one.step {
            // Its rank has the window already, and this one is about to.
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

    /// Where the bytes are, if they are in a part that is this rank's.
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
