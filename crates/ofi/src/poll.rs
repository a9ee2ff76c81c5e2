//! Converts the queue's entries into completions of the contract. Called by the rail's poll, and before operations that need all completions.

use trunkline_fabric::{Completion, CompletionKind, LinkId, OpStatus};
use trunkline_sys::ofi::caps;

use crate::contexts::OpSlot;
use crate::errno::OfiErrno;
use crate::link::{HelloProgress, OfiLink, OfiLinkStage};
use crate::ops::LinkOpKind;
use crate::queue::{BATCH, CompletionEntry, FailedOperation, QueueRead};
use crate::rail::OfiRail;

/// The maximum number of batches per poll.
const BATCHES: u32 = 16;
/// Reads of the queue until a canceled operation must be reported.
const TAKE_BACK_READS: u32 = 10_000;
/// Bits of a mark that contain the link's place.
pub(crate) const PLACE_BITS: u32 = 12;

/// Number of consecutive links of a place that use different slots, so that a late completion is not mistaken for one of the next link.
pub(crate) const LIVES: u32 = 4;

/// Errors by which providers report that the target rejected an operation.
const REFUSALS: [i32; 4] = [libc::EACCES, libc::EPERM, libc::EKEYREJECTED, libc::EREMOTEIO];

/// The result of one read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PollOutcome {
    /// Entries; more may be available.
    Some,
    /// All available entries.
    All,
    Nothing,
    Broken,
}

fn status_of(failure: &FailedOperation, kind: LinkOpKind) -> OpStatus {
    match failure.errno {
        OfiErrno::TRUNCATED => OpStatus::TooLong,
        OfiErrno::CANCELED if kind.is_receive() => OpStatus::Flushed,
        // Operations that were lost with a connection.
        OfiErrno::CANCELED => OpStatus::PeerDead,
        OfiErrno::NO_KEY => OpStatus::RemoteAccess,
        errno if REFUSALS.contains(&errno.number()) => OpStatus::RemoteAccess,
        errno => OpStatus::Other(errno.number().unsigned_abs()),
    }
}

impl OfiRail {
    /// Fills `out` from the front with completions.
    #[inline]
    pub(crate) fn collect_completions(&mut self, out: &mut [Completion]) -> usize {
        let mut count = self.tell_stashed(out, 0);
        // Bounded, so that a busy queue cannot keep the poll from returning.
        for _ in 0..BATCHES {
            if count == out.len() {
                break;
            }
            let took = self.read_queue();
            count = self.tell_stashed(out, count);
            if took != PollOutcome::Some {
                break;
            }
        }
        self.give_waiting();
        // The flusher has a queue of its own, whose completions the queue of the rail does not report.
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
    fn read_queue(&mut self) -> PollOutcome {
        match self.queue.read_batch() {
            QueueRead::Nothing => {
                // An empty queue contains no entry of a destroyed link.
                if self.has_gone {
                    self.forget_gone();
                }
                PollOutcome::Nothing
            }
            QueueRead::Entries(count) => {
                for index in 0..count {
                    if let Some(entry) = self.queue.batch_entry(index) {
                        self.on_entry(&entry);
                    }
                }
                // A short batch was the last one: another read would cost a system call with some providers.
                if count < BATCH { PollOutcome::All } else { PollOutcome::Some }
            }
            QueueRead::ErrorWaits => match self.queue.read_error() {
                Some(failure) => {
                    self.on_failure(&failure);
                    PollOutcome::Some
                }
                None => PollOutcome::Nothing,
            },
            QueueRead::Broken(errno) => {
                self.on_broken(errno);
                PollOutcome::Broken
            }
        }
    }

    /// Reads the queue until it is empty, at most a bounded number of times.
    pub(crate) fn take_all(&mut self) {
        for _ in 0..BATCHES * 16 {
            if !matches!(self.read_queue(), PollOutcome::Some | PollOutcome::All) {
                return;
            }
        }
    }

    /// Breaks all links, because no further completion can be read from the queue.
    #[cold]
    fn on_broken(&mut self, errno: OfiErrno) {
        // Without further completions no link could report its operations.
        for at in 0..self.links.len() {
            self.break_link(at, None);
        }
        let _ = errno;
    }

    /// Forgets ended links whose last completions have been read.
    #[cold]
    fn forget_gone(&mut self) {
        self.has_gone = false;
        for left in &mut self.gone {
            // Closed endpoints have no operation in flight.
            if left.as_ref().is_some_and(|left| left.out == 0) {
                *left = None;
            }
            self.has_gone |= left.is_some();
        }
    }

    /// Handles a completion for a link that was destroyed.
    #[cold]
    fn on_left(&mut self, at: usize, slot: OpSlot) {
        self.dying.end_op(&self.nic, slot.0);
        if let Some(Some(left)) = self.gone.get_mut(at) {
            left.out = left.out.saturating_sub(1);
        }
        self.close_if_idle();
    }

    /// Handles a completion for a link in error; `entry` is set for success. Only received messages count as successful. With the last one the link
    /// has reported all its operations.
    #[cold]
    fn on_ended(&mut self, at: usize, slot: OpSlot, entry: Option<&CompletionEntry>) {
        self.dying.end_op(&self.nic, slot.0);
        let (_, place) = self.split_slot(slot);
        let Some(Some(link)) = self.links.get_mut(at) else { return };
        let Some(op) = link.ops.end_op(place) else { return };
        let id = link.id;
        link.out = link.out.saturating_sub(1);
        // The rest waits for the last completion, because the provider may access the memory until then.
        let last = link.out == 0;
        match entry.filter(|_| op.kind.is_receive()) {
            Some(entry) => self.stash_received(id, op.wr_id, entry),
            // Flushed does not mean "not executed": the operation may have reached its target.
            None => self.give_back(id, op, OpStatus::Flushed),
        }
        if last {
            self.end_rest(at);
            self.close_if_idle();
        }
    }

    /// Stashes the completion of a received message for the next poll.
    #[inline]
    fn stash_received(&mut self, link: LinkId, wr_id: u64, entry: &CompletionEntry) {
        let imm = entry.data.map(|data| data as u32);
        let len = entry.len as u64;
        let done = CompletionKind::Received;
        let status = OpStatus::Ok;
        self.stash.push_back(Completion { wr_id, link, done, status, imm, len });
    }

    #[inline]
    fn on_entry(&mut self, entry: &CompletionEntry) {
        let Some(slot) = entry.slot else { return self.on_written(entry) };
        // The provider no longer reads the bytes of a completed operation.
        self.heads.release_slot(slot.0);
        let (at, place) = self.split_slot(slot);
        let one_stream = self.profile.one_stream;
        let Some(link) = self.link_of(slot) else { return self.on_left(at, slot) };
        if link.state == OfiLinkStage::Error {
            return self.on_ended(at, slot, Some(entry));
        }
        let Some(op) = link.ops.get_mut(place) else { return };
        if let LinkOpKind::Proof(2) = op.kind {
            // Records have arrived; continue with payload.
            op.kind = LinkOpKind::Proof(1);
            return self.go_on_proving(at, place);
        }
        let Some(op) = link.ops.end_op(place) else { return };
        let id = link.id;
        match op.kind {
            // With two endpoints, each has a connection of its own to verify.
            LinkOpKind::Hello if link.hello == HelloProgress::Said && !one_stream => {
                link.hello = HelloProgress::Half;
                // The place of the first hello is free again. If posting fails, the link stays down.
                let _ = self.begin_own(at, LinkOpKind::Hello, true);
            }
            LinkOpKind::Hello => link.hello = HelloProgress::Heard,
            LinkOpKind::Receive | LinkOpKind::Paired => self.stash_received(id, op.wr_id, entry),
            LinkOpKind::Work | LinkOpKind::Proof(_) => {
                if op.told {
                    self.stash_completion(id, op.wr_id, CompletionKind::Posted, OpStatus::Ok);
                }
                self.end_nops(at);
            }
        }
    }

    /// Handles a remote write with CQ data.
    #[inline]
    fn on_written(&mut self, entry: &CompletionEntry) {
        let Some(data) = entry.data.filter(|_| entry.flags & caps::REMOTE_WRITE != 0) else { return };
        let mark = (data >> 32) as u32;
        let at = (mark & ((1 << PLACE_BITS) - 1)) as usize;
        match self.links.get(at) {
            Some(Some(link)) if link.mark == mark && link.state != OfiLinkStage::Error => {
                let link = link.id;
                let imm = Some(data as u32);
                let len = entry.len as u64;
                let done = CompletionKind::Written;
                let status = OpStatus::Ok;
                self.stash.push_back(Completion { wr_id: 0, link, done, status, imm, len });
            }
            // Dropped, because a write with another mark was sent to an earlier link of this place.
            _ => self.strays += 1,
        }
    }

    #[cold]
    fn on_failure(&mut self, failure: &FailedOperation) {
        // A failed injected operation, or a failure of a peer's operation: no local operation is concerned.
        let Some(slot) = failure.slot else { return };
        self.heads.release_slot(slot.0);
        let (at, place) = self.split_slot(slot);
        let Some(link) = self.link_of(slot) else { return self.on_left(at, slot) };
        if link.state == OfiLinkStage::Error {
            return self.on_ended(at, slot, None);
        }
        let Some(op) = link.ops.get_mut(place) else { return };
        let status = status_of(failure, op.kind);
        self.break_link(at, Some((place, status)));
    }

    /// Returns the link of an operation, if it still exists.
    #[inline]
    fn link_of(&mut self, OpSlot(slot): OpSlot) -> Option<&mut OfiLink> {
        let span = self.span;
        let link = self.links.get_mut((slot / (LIVES * span)) as usize)?.as_deref_mut()?;
        (slot >= link.base && slot < link.base + span).then_some(link)
    }

    fn split_slot(&self, OpSlot(slot): OpSlot) -> (usize, u32) {
        ((slot / (LIVES * self.span)) as usize, slot % self.span)
    }

    /// Queues the second part of a proof, behind waiting operations.
    fn go_on_proving(&mut self, at: usize, place: u32) {
        self.give_again(at, place, crate::link::ProviderOp::Proof { records: false });
    }

    /// Completes proofs that only waited for earlier operations.
    pub(crate) fn end_nops(&mut self, at: usize) {
        while let Some(Some(link)) = self.links.get_mut(at)
            && let Some(&place) = link.nops.front()
            && link.ops.is_oldest_work(place)
        {
            link.nops.pop_front();
            let id = link.id;
            let ended = link.ops.end_op(place);
            if let Some(op) = ended.filter(|op| op.told) {
                self.stash_completion(id, op.wr_id, CompletionKind::Posted, OpStatus::Ok);
            }
        }
    }

    /// Cancels a matched receive, unless it has met its message. Sent operations cannot be canceled.
    pub(crate) fn take_back_paired(&mut self, id: LinkId, wr_id: u64) -> bool {
        let at = id.0 as usize;
        let Some(Some(link)) = self.links.get_mut(at) else { return false };
        let Some(place) = link.ops.find_paired(wr_id) else { return false };
        // A receive that was never submitted can be removed without the provider.
        if let Some(waits) = link.waiting.iter().position(|&(waiting, _)| waiting == place) {
            link.waiting.remove(waits);
            self.waits -= u32::from(link.waiting.is_empty());
            return link.ops.end_op(place).is_some();
        }
        let slot = OpSlot(link.base + place);
        let Some(pair) = link.pair.as_mut().or(self.shared.as_mut()) else { return false };
        if pair.data.cancel(slot).is_err() {
            return false;
        }
        self.await_cancelled(at, place)
    }

    /// Returns whether a canceled receive completes as canceled.
    fn await_cancelled(&mut self, at: usize, place: u32) -> bool {
        let Some(Some(link)) = self.links.get(at) else { return false };
        let wanted = OpSlot(link.base + place);
        // The result of fi_cancel is only reported by the queue: the receive may have matched before (fi_endpoint(3)).
        for _ in 0..TAKE_BACK_READS {
            match self.queue.read_batch() {
                QueueRead::ErrorWaits => {
                    let Some(failure) = self.queue.read_error() else { continue };
                    if failure.slot == Some(wanted) && failure.errno == OfiErrno::CANCELED {
                        let Some(Some(link)) = self.links.get_mut(at) else { return false };
                        return link.ops.end_op(place).is_some();
                    }
                    self.on_failure(&failure);
                }
                QueueRead::Entries(count) => {
                    for index in 0..count {
                        if let Some(entry) = self.queue.batch_entry(index) {
                            self.on_entry(&entry);
                        }
                    }
                }
                QueueRead::Nothing => {}
                QueueRead::Broken(_) => return false,
            }
            let Some(Some(link)) = self.links.get_mut(at) else { return false };
            if link.ops.get_mut(place).is_none() {
                return false;
            }
        }
        false
    }
}
