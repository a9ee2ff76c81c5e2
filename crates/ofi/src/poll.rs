//! What the queue tells, as the contract tells it. Called by the rail's poll and by whoever has to know before something ends.

use trunkline_fabric::{Completion, Done, LinkId, Status};
use trunkline_sys::ofi::caps;

use crate::contexts::Slot;
use crate::errno::Errno;
use crate::link::{Hello, Link, State};
use crate::ops::Kind;
use crate::queue::{BATCH, Entry, Failure, Read};
use crate::rail::OfiRail;

/// Batches that one poll goes through at most.
const BATCHES: u32 = 16;
/// Reads until what was taken back has to be told.
const TAKE_BACK_READS: u32 = 10_000;
/// Bits of a mark that are the link's place.
pub(crate) const PLACE_BITS: u32 = 12;

/// Links that have each place one after another until its slots are used again: what is told late of an operation is not taken
/// for one of the next link's.
pub(crate) const LIVES: u32 = 4;

/// Errors by which providers say that the target has refused.
const REFUSALS: [i32; 4] = [libc::EACCES, libc::EPERM, libc::EKEYREJECTED, libc::EREMOTEIO];

/// What one read gave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Took {
    /// Something, and there may be more.
    Some,
    /// What there was.
    All,
    Nothing,
    Broken,
}

fn status_of(failure: &Failure, kind: Kind) -> Status {
    match failure.errno {
        Errno::TRUNCATED => Status::TooLong,
        Errno::CANCELED if kind.receives() => Status::Flushed,
        // What a connection took along that was lost.
        Errno::CANCELED => Status::PeerDead,
        Errno::NO_KEY => Status::RemoteAccess,
        errno if REFUSALS.contains(&errno.number()) => Status::RemoteAccess,
        errno => Status::Other(errno.number().unsigned_abs()),
    }
}

impl OfiRail {
    /// Fills `out` from the front with what has finished.
    #[inline]
    pub(crate) fn collect(&mut self, out: &mut [Completion]) -> usize {
        let mut count = self.tell_stashed(out, 0);
        for _ in 0..BATCHES {
            if count == out.len() {
                break;
            }
            let took = self.take();
            count = self.tell_stashed(out, count);
            if took != Took::Some {
                break;
            }
        }
        self.give_waiting();
        if self.flusher.as_ref().is_some_and(|flusher| flusher.is_busy()) {
            self.take_flushes();
        }
        self.tell_stashed(out, count)
    }

    #[inline]
    fn tell_stashed(&mut self, out: &mut [Completion], mut count: usize) -> usize {
        while count < out.len() {
            let Some(one) = self.stash.pop_front() else { break };
            out[count] = one;
            count += 1;
        }
        count
    }

    /// Reads the queue once.
    #[inline]
    fn take(&mut self) -> Took {
        match self.queue.read() {
            Read::Nothing => {
                if self.has_gone {
                    self.forget_gone();
                }
                Took::Nothing
            }
            Read::Entries(count) => {
                for index in 0..count {
                    if let Some(entry) = self.queue.entry(index) {
                        self.on_entry(&entry);
                    }
                }
                // To look again costs a system call with some providers.
                if count < BATCH { Took::All } else { Took::Some }
            }
            Read::ErrorWaits => match self.queue.error() {
                Some(failure) => {
                    self.on_failure(&failure);
                    Took::Some
                }
                None => Took::Nothing,
            },
            Read::Broken(errno) => {
                self.on_broken(errno);
                Took::Broken
            }
        }
    }

    /// Reads the queue until it is empty, or as often as may be.
    pub(crate) fn take_all(&mut self) {
        for _ in 0..BATCHES * 16 {
            if !matches!(self.take(), Took::Some | Took::All) {
                return;
            }
        }
    }

    /// Nothing of the queue is read any more: no link is of use.
    #[cold]
    fn on_broken(&mut self, errno: Errno) {
        for at in 0..self.links.len() {
            self.break_link(at, None);
        }
        let _ = errno;
    }

    /// The queue has told all of what was closed before.
    #[cold]
    fn forget_gone(&mut self) {
        self.has_gone = false;
        for left in &mut self.gone {
            // Of endpoints that are closed nothing is out.
            if left.as_ref().is_some_and(|left| left.out == 0) {
                *left = None;
            }
            self.has_gone |= left.is_some();
        }
    }

    /// Something of a link that is gone has ended.
    #[cold]
    fn on_left(&mut self, at: usize, slot: Slot) {
        self.dying.end(&self.nic, slot.0);
        if let Some(Some(left)) = self.gone.get_mut(at) {
            left.out = left.out.saturating_sub(1);
        }
        self.close_if_idle();
    }

    /// Something of a link in error has ended, well if there is an entry: only what was received counts. With the last of it the link has told all.
    #[cold]
    fn on_ended(&mut self, at: usize, slot: Slot, entry: Option<&Entry>) {
        self.dying.end(&self.nic, slot.0);
        let (_, place) = self.split(slot);
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        let Some(op) = link.ops.end(place) else { return };
        let id = link.id;
        link.out = link.out.saturating_sub(1);
        let last = link.out == 0;
        match entry.filter(|_| op.kind.receives()) {
            Some(entry) => self.received(id, op.wr_id, entry),
            // It may have been executed, as what is flushed may.
            None => self.give_back(id, op, Status::Flushed),
        }
        if last {
            self.end_rest(at);
            self.close_if_idle();
        }
    }

    /// Keeps for the next poll that a message has come.
    #[inline]
    fn received(&mut self, link: LinkId, wr_id: u64, entry: &Entry) {
        let imm = entry.data.map(|data| data as u32);
        let len = entry.len as u64;
        let done = Done::Received;
        let status = Status::Ok;
        self.stash.push_back(Completion { wr_id, link, done, status, imm, len });
    }

    #[inline]
    fn on_entry(&mut self, entry: &Entry) {
        let Some(slot) = entry.slot else { return self.on_written(entry) };
        self.heads.release(slot.0);
        let (at, place) = self.split(slot);
        let one_stream = self.profile.one_stream;
        let Some(link) = self.link_of(slot) else { return self.on_left(at, slot) };
        if link.state == State::Error {
            return self.on_ended(at, slot, Some(entry));
        }
        let Some(op) = link.ops.get_mut(place) else { return };
        if let Kind::Proof(2) = op.kind {
            // Records have arrived; now payload.
            op.kind = Kind::Proof(1);
            return self.go_on_proving(at, place);
        }
        let Some(op) = link.ops.end(place) else { return };
        let id = link.id;
        match op.kind {
            Kind::Hello if link.hello == Hello::Said && !one_stream => {
                link.hello = Hello::Half;
                // There is a place, which the first has left. If not, the link is not up, and ends.
                let _ = self.begin_own(at, Kind::Hello, true);
            }
            Kind::Hello => link.hello = Hello::Heard,
            Kind::Receive | Kind::Paired => self.received(id, op.wr_id, entry),
            Kind::Work | Kind::Proof(_) => {
                if op.told {
                    self.tell(id, op.wr_id, Done::Posted, Status::Ok);
                }
                self.end_nops(at);
            }
        }
    }

    /// A peer wrote, and said so.
    #[inline]
    fn on_written(&mut self, entry: &Entry) {
        let Some(data) = entry.data.filter(|_| entry.flags & caps::REMOTE_WRITE != 0) else { return };
        let mark = (data >> 32) as u32;
        let at = (mark & ((1 << PLACE_BITS) - 1)) as usize;
        match self.links.get(at) {
            Some(Some(link)) if link.mark == mark && link.state != State::Error => {
                let link = link.id;
                let imm = Some(data as u32);
                let len = entry.len as u64;
                let done = Done::Written;
                let status = Status::Ok;
                self.stash.push_back(Completion { wr_id: 0, link, done, status, imm, len });
            }
            _ => self.strays += 1,
        }
    }

    #[cold]
    fn on_failure(&mut self, failure: &Failure) {
        // What was injected, or what a peer did: nothing here is told of it.
        let Some(slot) = failure.slot else { return };
        self.heads.release(slot.0);
        let (at, place) = self.split(slot);
        let Some(link) = self.link_of(slot) else { return self.on_left(at, slot) };
        if link.state == State::Error {
            return self.on_ended(at, slot, None);
        }
        let Some(op) = link.ops.get_mut(place) else { return };
        let status = status_of(failure, op.kind);
        self.break_link(at, Some((place, status)));
    }

    /// The link that an operation is of, if it is still there.
    #[inline]
    fn link_of(&mut self, Slot(slot): Slot) -> Option<&mut Link> {
        let span = self.span;
        let link = self.links.get_mut((slot / (LIVES * span)) as usize)?.as_deref_mut()?;
        (slot >= link.base && slot < link.base + span).then_some(link)
    }

    fn split(&self, Slot(slot): Slot) -> (usize, u32) {
        ((slot / (LIVES * self.span)) as usize, slot % self.span)
    }

    /// The second part of a proof goes out, behind what waits.
    fn go_on_proving(&mut self, at: usize, place: u32) {
        self.give_again(at, place, crate::link::Work::Proof { records: false });
    }

    /// Tells of what waits only for all before it.
    pub(crate) fn end_nops(&mut self, at: usize) {
        while let Some(Some(link)) = self.links.get_mut(at)
            && let Some(&place) = link.nops.front()
            && link.ops.is_oldest_work(place)
        {
            link.nops.pop_front();
            let id = link.id;
            let ended = link.ops.end(place);
            if let Some(op) = ended.filter(|op| op.told) {
                self.tell(id, op.wr_id, Done::Posted, Status::Ok);
            }
        }
    }

    /// Takes a paired receive back, unless it has met its message. Of what was sent nothing is taken back that has left.
    pub(crate) fn take_back_paired(&mut self, id: LinkId, wr_id: u64) -> bool {
        let at = id.0 as usize;
        let Some(Some(link)) = self.links.get_mut(at) else { return false };
        let Some(place) = link.ops.paired(wr_id) else { return false };
        if let Some(waits) = link.waiting.iter().position(|&(waiting, _)| waiting == place) {
            link.waiting.remove(waits);
            self.waits -= u32::from(link.waiting.is_empty());
            return link.ops.end(place).is_some();
        }
        let slot = Slot(link.base + place);
        let Some(pair) = link.pair.as_mut().or(self.shared.as_mut()) else { return false };
        if pair.data.cancel(slot).is_err() {
            return false;
        }
        self.await_cancelled(at, place)
    }

    /// Whether a receive that was given up comes back as such: the queue tells.
    fn await_cancelled(&mut self, at: usize, place: u32) -> bool {
        let Some(Some(link)) = self.links.get(at) else { return false };
        let wanted = Slot(link.base + place);
        for _ in 0..TAKE_BACK_READS {
            match self.queue.read() {
                Read::ErrorWaits => {
                    let Some(failure) = self.queue.error() else { continue };
                    if failure.slot == Some(wanted) && failure.errno == Errno::CANCELED {
                        let Some(Some(link)) = self.links.get_mut(at) else { return false };
                        return link.ops.end(place).is_some();
                    }
                    self.on_failure(&failure);
                }
                Read::Entries(count) => {
                    for index in 0..count {
                        if let Some(entry) = self.queue.entry(index) {
                            self.on_entry(&entry);
                        }
                    }
                }
                Read::Nothing => {}
                Read::Broken(_) => return false,
            }
            let Some(Some(link)) = self.links.get_mut(at) else { return false };
            if link.ops.get_mut(place).is_none() {
                return false;
            }
        }
        false
    }
}
