//! Networks whose completions mean that the network has accepted an operation, and not that it has arrived
//! ([`Caps::arrives`](trunkline_fabric::Caps::arrives) is false), such as those over sockets. Called by the wire when
//! operations leave and when they are carried out. On these networks, only the completion of an empty operation
//! proves arrival.

use trunkline_fabric::{CompletionKind, OpStatus};

use crate::link::{LinkPhase, PostedWork, SendQueueEntry, SourceBytes, WorkProgress};
use crate::wire::NetworkEvent;
use crate::world::SimCore;

/// Longest time in which the network accepts bytes that cannot leave.
const STUCK_TIME: u64 = 1_000_000;

/// Whether an operation may complete before it has arrived.
const fn completes_early(work: &PostedWork) -> bool {
    carries_payload(work) && !matches!(work, PostedWork::Write { placed: true, .. })
}

/// Whether an operation carries bytes of its owner to the peer, unmatched.
const fn carries_payload(work: &PostedWork) -> bool {
    matches!(work, PostedWork::Send { .. } | PostedWork::Write { .. })
}

impl SimCore {
    /// Schedules an early completion of an operation that leaves, before its arrival.
    pub(crate) fn schedule_taken(&mut self, link: usize, seq: u64, arrival: u64) {
        if !self.weather.caps.arrives
            && self.links[link].send_entry(seq).is_some_and(|wqe| completes_early(&wqe.work))
        {
            let at = self.dice.between(self.now + 1, arrival.max(self.now + 1));
            self.schedule_at(at, NetworkEvent::Taken { link, seq });
        }
    }

    /// Schedules early completions of flushed operations that cannot leave; some of them may complete.
    pub(crate) fn takes_stuck(&mut self, link: usize) {
        if self.weather.caps.arrives {
            return;
        }
        let flushed = self.links[link].flushed;
        let stuck = |wqe: &&SendQueueEntry| {
            wqe.progress == WorkProgress::Posted && wqe.seq < flushed && completes_early(&wqe.work)
        };
        let stuck: Vec<u64> = self.links[link].sends.iter().filter(stuck).map(|wqe| wqe.seq).collect();
        for seq in stuck {
            if self.dice.coin() {
                let after = self.dice.below(STUCK_TIME);
                self.schedule_after(after, NetworkEvent::Taken { link, seq });
            }
        }
    }

    /// Completes an operation early: the network copies its bytes, and its memory is free.
    pub(crate) fn complete_early(&mut self, link: usize, seq: u64) {
        if self.links[link].phase == LinkPhase::Ready && self.copy_bytes(link, seq) {
            if let Some(wqe) = self.links[link].send_entry(seq) {
                wqe.taken = true;
            }
            self.retire_sends(link);
        }
    }

    /// Copies the bytes of an operation from registered memory; returns `false` if they are not registered any more.
    pub(crate) fn copy_bytes(&mut self, link: usize, seq: u64) -> bool {
        let Some(wqe) = self.links[link].send_entry(seq) else { return false };
        let (PostedWork::Send { body: from, .. } | PostedWork::Write { from, .. }) = wqe.work.clone() else {
            return false;
        };
        let bytes = match from {
            SourceBytes::Inline(_) => return wqe.broken.is_none(),
            SourceBytes::Region(_) => self.source_bytes(link, &from, 0, from.len()),
        };
        let Some(wqe) = self.links[link].send_entry(seq) else { return false };
        match (&mut wqe.work, bytes) {
            (PostedWork::Send { body: from, .. } | PostedWork::Write { from, .. }, Some(bytes)) => {
                *from = SourceBytes::Inline(bytes);
            }
            _ => wqe.broken = Some(OpStatus::LocalProtection),
        }
        wqe.broken.is_none()
    }

    /// Queues the early completion of an operation.
    pub(crate) fn report_taken(&mut self, link: usize, at: usize) {
        let Some(wqe) = self.links[link].sends.get_mut(at) else { return };
        if std::mem::replace(&mut wqe.told, true) {
            return;
        }
        let wr_id = wqe.wr_id;
        let signalled = wqe.signalled;
        if signalled {
            self.queue_completion(link, wr_id, CompletionKind::Posted, OpStatus::Ok, None, 0, true, None);
        } else {
            self.links[link].slots -= 1;
        }
    }

    /// Records that operation `seq` of a link was carried out at its target.
    pub(crate) fn carried_out(&mut self, link: usize, seq: u64) {
        if let Some(wqe) = self.links[link].send_entry(seq) {
            wqe.carried_out = true;
        }
    }

    /// Whether operation `seq` of a link must wait: its completion proves the arrival of all operations before it,
    /// and some of them are not carried out.
    pub(crate) fn has_to_wait(&self, link: usize, seq: u64) -> bool {
        let before = |wqe: &&SendQueueEntry| wqe.seq < seq;
        let open = |wqe: &SendQueueEntry| {
            carries_payload(&wqe.work) && !wqe.carried_out && !matches!(wqe.progress, WorkProgress::Done(_))
        };
        !self.weather.caps.arrives && self.links[link].sends.iter().take_while(before).any(open)
    }
}
