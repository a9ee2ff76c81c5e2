//! What the owner of a part does that others reach by messages: it is asked, places what comes, gives what it is asked for, and says how that ended; in
//! its own calls, and bounded.
//!
//! Whoever asks has checked that the bytes are there; the owner checks again, and denies what is not.

use trunkline_mem::ipc::IpcMemory;
use trunkline_node::ipc::Spot;
use trunkline_node::tagged::{Begun, PeerId, RequestId};
use trunkline_proto::wire::window::{ACCESS_BYTES, Access, Deed};

use super::{Buffer, Messages, OWN_TAGS};
use crate::planted;

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
pub(super) struct Numbered {
    request: RequestId,
    into: Buffer,
}

/// What another rank asked for.
#[derive(Debug)]
pub(super) struct Serving {
    from: PeerId,
    access: Access,
    step: Step,
}

/// How far it is.
#[derive(Debug)]
enum Step {
    /// It is to begin.
    New,
    /// Its bytes come; whether they are placed, or denied.
    Placing(RequestId, bool),
    /// It is to be said how it ended.
    Answer(bool),
    /// Its bytes go.
    Giving(RequestId),
    Over,
}

impl Serving {
    /// Which window it is of.
    pub(super) const fn window(&self) -> u64 {
        self.access.window
    }
}

impl<M: IpcMemory> Messages<M> {
    /// Asks, or asks no more, what others want: as long as any of them reaches a part of this rank by messages.
    pub(super) fn listen(&mut self) {
        let wanted = self.windows.denies || self.windows.live.iter().any(|live| live.served);
        match &self.windows.asked {
            None if wanted => self.ask_next(),
            Some(asked) if !wanted => {
                let request = asked.request;
                // Nobody asks any more; what was asked has ended.
                if self.endpoint.cancel(request) {
                    let _ = self.endpoint.test(request);
                    self.windows.asked = None;
                }
            }
            None | Some(_) => {}
        }
    }

    fn ask_next(&mut self) {
        // Without memory for it, it is posted later, as without room.
        match Buffer::private(ACCESS_BYTES) {
            Ok(into) => self.post_asked(into),
            Err(_) => self.windows.asked = None,
        }
    }

    fn post_asked(&mut self, into: Buffer) {
        // With no room for it, it is posted later.
        let posted = self.endpoint.receive(None, (ASK, u64::MAX), into.inner().clone());
        self.windows.asked = posted.ok().map(|request| Numbered { request, into });
    }

    /// Goes on with what others asked for; whether anything happened.
    #[inline]
    pub(super) fn serve(&mut self) -> bool {
        if self.windows.asked.is_none() && self.windows.serving.is_empty() {
            return false;
        }
        self.serve_some()
    }

    #[inline(never)]
    fn serve_some(&mut self) -> bool {
        let mut moved = self.hear_asked();
        for _ in 0..self.windows.serving.len() {
            let Some(mut one) = self.windows.serving.pop_front() else { break };
            let (step, went) = self.serve_one(&one);
            moved |= went;
            one.step = step;
            match one.step {
                Step::Over => self.windows.counts.served += 1,
                _ => self.windows.serving.push_back(one),
            }
        }
        if self.windows.asked.is_none() && self.windows.serving.len() < SERVING_MAX {
            self.listen();
        }
        moved
    }

    /// Takes in what is asked.
    fn hear_asked(&mut self) -> bool {
        let Some(asked) = &self.windows.asked else { return false };
        let Some(end) = self.endpoint.test(asked.request) else { return false };
        let Some(Numbered { into, .. }) = self.windows.asked.take() else { return false };
        let mut bytes = [0; ACCESS_BYTES];
        let read = into.read(0, &mut bytes).is_ok();
        // What is no question is nobody's.
        if let (Ok(done), Ok(access), true) = (end, Access::from_bytes(&bytes), read) {
            self.windows.serving.push_back(Serving { from: done.peer, access, step: Step::New });
        }
        if self.windows.serving.len() < SERVING_MAX {
            self.post_asked(into);
        }
        true
    }

    /// What comes next, and whether that is something else than before.
    fn serve_one(&mut self, one: &Serving) -> (Step, bool) {
        let from = one.from;
        let access = &one.access;
        match one.step {
            // Its rank has the window already, and this one is about to.
            Step::New if access.window > self.windows.settled => (Step::New, false),
            Step::New => match access.deed {
                Deed::Put => self.take_put(from, access),
                Deed::Get => self.give_get(from, access),
            },
            Step::Placing(request, placed) => match self.endpoint.test(request) {
                None if planted("window-answers-early") => (Step::Answer(placed), true),
                None => (Step::Placing(request, placed), false),
                Some(end) => (
                    Step::Answer(
                        placed
                            && (end.is_ok_and(|done| done.len == access.len)
                                || planted("window-places-anywhere")),
                    ),
                    true,
                ),
            },
            Step::Answer(placed) => {
                match self.endpoint.send_bytes(from, ACK | access.number, &[u8::from(placed)]) {
                    Ok(Begun::Busy) => (Step::Answer(placed), false),
                    Ok(Begun::Done | Begun::Request(_)) | Err(_) => (Step::Over, true),
                }
            }
            Step::Giving(request) => match self.endpoint.test(request) {
                None => (Step::Giving(request), false),
                Some(_) => (Step::Over, true),
            },
            Step::Over => (Step::Over, false),
        }
    }

    /// Where the bytes are, if they are in a part that is this rank's.
    fn asked_for(&self, access: &Access) -> Option<Buffer> {
        let live = self.windows.find(access.window)?;
        let spot = Spot { at: access.at, rows: access.rows };
        live.spot(spot, access.len).ok().filter(|found| found.len() as u64 == access.len)
    }

    fn take_put(&mut self, from: PeerId, access: &Access) -> (Step, bool) {
        let into = self.asked_for(access).filter(|into| into.inner().is_there(self.memory()));
        let there = into.is_some();
        let Some(into) = into.or_else(|| Buffer::private(0).ok()) else { return (Step::New, false) };
        let placed = there || planted("window-places-anywhere");
        let tag = (PUT | access.number, u64::MAX);
        match self.endpoint.receive(Some(from), tag, into.inner().clone()) {
            Ok(request) => (Step::Placing(request, placed), true),
            Err(trunkline_node::tagged::ReceiveRefused::TooMany) => (Step::New, false),
            Err(_) => (Step::Over, true),
        }
    }

    fn give_get(&mut self, to: PeerId, access: &Access) -> (Step, bool) {
        let given = self.asked_for(access).filter(|given| given.inner().is_there(self.memory()));
        let Some(given) = given.or_else(|| Buffer::private(0).ok()) else { return (Step::New, false) };
        match self.endpoint.send(to, GOT | access.number, given.inner()) {
            Ok(Begun::Busy) => (Step::New, false),
            Ok(Begun::Request(request)) => (Step::Giving(request), true),
            Ok(Begun::Done) | Err(_) => (Step::Over, true),
        }
    }
}
