//! An open comm as a member of its group: its side, and the handling of its completions. Used only under the group's lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_fabric::{Completion, CompletionKind, OpStatus, Rail};
use trunkline_proto::counters::MessageCounts;
use trunkline_proto::pool::GroupPlace;
use trunkline_proto::pool::life::MemberLife;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::status::{self as shown, CommDirection, CommState};

use crate::comm::RemoteProcess;
use crate::comm::recv::RecvLane;
use crate::comm::request::RequestTable;
use crate::comm::send::SendLane;
use crate::link::link_frames::LinkFrame;
use crate::link::path::{CommPaths, PROBE};
use crate::link::rails::GroupRails;
use crate::memory::idle_timer::IdleTimer;
use crate::memory::regions::CommRegions;
use crate::memory::slab::SlabSlot;
use crate::status::CommStatusRow;
use crate::{CommFault, CommId};

/// Completions per poll of a rail.
pub(crate) const BATCH: usize = 16;

/// Batches polled when a peer has ended, to find messages that it sent before. Bounded, because a faulty network may
/// report completions without end.
pub(crate) const DRAIN_MAX: usize = 4096;

/// The buffer for completions of rails.
pub(crate) type CompletionBatch = [Completion; BATCH];

/// An open comm, as a member of its group.
pub(crate) struct OpenComm {
    /// Its id.
    pub(crate) id: CommId,
    pub(crate) side: CommSide,
    pub(crate) peer: Arc<RemoteProcess>,
    pub(crate) ends: CommNames,
    pub(crate) fault: Option<CommFault>,
    /// Fruitless polls since the last check of the control stream.
    pub(crate) idle: u32,
    /// When the control stream was last checked, if the clock was read.
    pub(crate) looked: Option<Instant>,
    /// Its link, its message intake and its drain.
    pub(crate) life: MemberLife,
    /// The network's status of its end, if any.
    pub(crate) ended_by: OpStatus,
    /// For how long that, or the peer's close, has been observed.
    pub(crate) down: Option<FailureTimer>,
    /// Frames to be sent on the control stream, for several links.
    pub(crate) words: Vec<LinkFrame>,
    /// Whether it should release idle memory.
    pub(crate) idle_for: IdleTimer,
    /// When links were last driven, for several links.
    pub(crate) tended: Instant,
    /// The peer's join count at the last time that links were retried for it.
    pub(crate) joins: u32,
    /// When the network was last queried about the links.
    pub(crate) asked: Instant,
    /// For how long none of its links has been up, while others are made.
    pub(crate) adrift: Option<FailureTimer>,
    /// Polls, for several links.
    pub(crate) turns: u32,
    /// There are several links.
    pub(crate) many: bool,
    /// Set if its caller has closed it, or it shares its link and has failed: the requests that remaining completions end.
    pub(crate) closed: Option<Box<RequestTable>>,
    /// Its place in the pool.
    pub(crate) place: Option<GroupPlace>,
    /// Its name in its group, as bits; 0 for a comm of its own.
    pub(crate) member: u32,
    /// Its mailbox, if that is one of its group's.
    pub(crate) lot: Option<SlabSlot>,
    /// For how long its message memory has been in revocation.
    pub(crate) revoking: Option<FailureTimer>,
}

/// The time since a peer has closed or a link has ended, during which remaining completions and messages are awaited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailureTimer {
    /// The last check.
    looked: Instant,
    /// The time counted so far.
    waited: Duration,
}

impl FailureTimer {
    /// Advances the timer; returns its total. At most `step` counts between two checks, because a process that made no
    /// call for longer was stopped, and finds messages that arrived meanwhile only now.
    pub(crate) fn advance_timer(down: &mut Option<Self>, now: Instant, step: Duration) -> Duration {
        let Self { looked, waited } = down.unwrap_or(Self { looked: now, waited: Duration::default() });
        // A process that was stopped between two checks adds one step only, because its peer had no chance to
        // be polled meanwhile.
        let waited = Duration(waited.0.saturating_add((now - looked).min(step).0));
        *down = Some(Self { looked: now, waited });
        waited
    }
}

/// The names of a comm at its two ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommNames {
    pub(crate) stream: SlotId,
    /// The name that CLOSE must contain.
    pub(crate) remote: u64,
    /// The attempt, if this process requested the comm.
    pub(crate) attempt: Option<SlotId>,
}

/// The side of the comm. It is large, so it is created in place and never moved.
#[expect(clippy::large_enum_variant, reason = "each comm has one, and every call accesses it")]
pub(crate) enum CommSide {
    /// It sends.
    Send(SendLane),
    /// It receives.
    Recv(RecvLane),
}

impl CommSide {
    #[inline]
    pub(crate) fn paths_mut(&mut self) -> &mut CommPaths {
        match self {
            Self::Send(lane) => &mut lane.paths,
            Self::Recv(lane) => &mut lane.paths,
        }
    }

    /// Leaves an unusable path; others may still be up.
    #[cold]
    pub(crate) fn drain_path(&mut self, rails: &mut GroupRails<impl Rail>, path: usize) {
        match self {
            Self::Send(lane) => lane.drain_path(rails, path),
            Self::Recv(lane) => lane.drain_path(rails, path),
        }
    }

    /// Returns whether the NIC has messages that may wait for their other half.
    pub(crate) fn waits_in_nic(&self) -> bool {
        match self {
            Self::Send(lane) => lane.plan.matched && lane.posted > 0,
            Self::Recv(lane) => lane.matched_posted > 0 || !lane.matched_due.is_empty(),
        }
    }

    /// Returns the tag in the `wr_id` of all its posted operations.
    pub(crate) fn wr_id_tag(&self) -> u64 {
        match self {
            Self::Send(lane) => lane.part.tag,
            Self::Recv(lane) => lane.part.tag,
        }
    }

    pub(crate) fn regions_mut(&mut self) -> &mut CommRegions {
        match self {
            Self::Send(lane) => &mut lane.regions,
            Self::Recv(lane) => &mut lane.regions,
        }
    }

    /// Handles a link that flushes its posted operations: its other end has been closed, or has failed.
    #[cold]
    pub(crate) fn mark_gone(&mut self) {
        if let Self::Recv(lane) = self {
            // Only a receiver needs the flag, because a sender's operations are flushed, and report the end
            // themselves.
            lane.gone = true;
        }
    }

    #[inline]
    pub(crate) fn on_completion(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        path: usize,
        completion: &Completion,
    ) -> Result<(), CommFault> {
        match self {
            Self::Send(lane) => lane.on_completion(rails, requests, completion),
            Self::Recv(lane) => lane.on_completion(rails, requests, path, completion),
        }
    }
}

impl OpenComm {
    pub(crate) fn new(mut side: CommSide, peer: Arc<RemoteProcess>, ends: CommNames) -> Self {
        let many = side.paths_mut().are_many();
        // Read before the first link is driven, so that a later join is noticed.
        let joins = peer.joins.load(Ordering::Relaxed);
        Self {
            id: CommId { index: 0, generation: 0 },
            side,
            peer,
            ends,
            fault: None,
            idle: 0,
            looked: None,
            life: MemberLife::default(),
            // The cause if the network reports no other one.
            ended_by: OpStatus::Flushed,
            down: None,
            words: Vec::new(),
            idle_for: IdleTimer::default(),
            tended: Instant::default(),
            joins,
            asked: Instant::default(),
            adrift: None,
            turns: 0,
            many,
            closed: None,
            place: None,
            member: 0,
            lot: None,
            revoking: None,
        }
    }

    /// Posts operations that waited for credit, after completions were processed.
    #[inline]
    pub(crate) fn go_on(&mut self, rails: &mut GroupRails<impl Rail>, requests: &RequestTable) {
        let posted = match &mut self.side {
            CommSide::Recv(lane) => lane.announce_and_post(rails, requests),
            CommSide::Send(lane) => {
                // A lost link sends nothing, so the operations behind it never leave.
                if !self.life.is_link_lost() {
                    lane.after_poll(rails, requests);
                }
                lane.post_due(rails, requests)
            }
        };
        if let Err(fault) = posted {
            self.fail_requests(rails, requests, fault);
        }
        // The lane detects the end of its link when it posts; here the comm starts to wait for the
        // cause.
        if matches!(&self.side, CommSide::Recv(lane) if lane.gone) {
            self.life.lose_link();
        }
    }

    /// Processes one completion.
    #[inline]
    pub(crate) fn on_completion(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        rail: usize,
        completion: &Completion,
    ) -> Result<(), CommFault> {
        let &Completion { status, wr_id, done, link, .. } = completion;
        let path = match self.many {
            false => 0,
            // A destroyed link reports no completions any more, so this one belongs to a previous link.
            true => match self.side.paths_mut().of_link(rail, link) {
                Some(path) => path,
                None => return Ok(()),
            },
        };
        if status != OpStatus::Ok && self.is_end(status) {
            self.on_link_lost(rails, path);
            return Ok(());
        }
        // Probes and last flushes have `wr_id`s above those of messages.
        if self.many && wr_id >= PROBE && done == CompletionKind::Posted {
            self.on_link_sign(path, wr_id);
            return Ok(());
        }
        self.side.on_completion(rails, requests, path, completion)
    }

    /// Returns whether a link has ended. Then the comm survives on other links, or fails with the cause.
    #[cold]
    fn is_end(&mut self, status: OpStatus) -> bool {
        // A flushed operation is a consequence; the first other status is the cause.
        if status != OpStatus::Flushed {
            self.ended_by = status;
        }
        // Without another link, a status of the network's own is the cause.
        status.is_of_link() && (self.many || !matches!(status, OpStatus::Other(_)))
    }

    /// Handles a link that flushes its posted operations: it transfers nothing more.
    #[cold]
    pub(crate) fn on_link_lost(&mut self, rails: &mut GroupRails<impl Rail>, path: usize) {
        if let CommSide::Recv(lane) = &mut self.side {
            // The final operations may have been on this link, so the proof starts again.
            lane.forget_end();
        }
        // With several links, the others carry on, and only this one is drained.
        if self.side.paths_mut().are_many() {
            self.side.drain_path(rails, path);
        } else {
            self.life.lose_link();
            self.side.mark_gone();
        }
    }

    /// Returns the peer's name of it.
    pub(crate) fn remote_name(&self) -> u64 {
        // The connecting end is named by its attempt, the accepting end by its comm.
        self.ends.attempt.map_or(self.id.to_bits(), SlotId::to_bits)
    }

    /// Returns whether it shares its links with other members.
    #[inline]
    pub(crate) fn is_grouped(&self) -> bool {
        self.member != 0
    }

    /// Withdraws the requests of a member that has failed although its group's links work, so that its later
    /// completions end no request, and its messages in bounce buffers are dropped.
    pub(crate) fn withdraw_requests(&mut self, rails: &mut GroupRails<impl Rail>) {
        self.life.stop_intake();
        // Its later completions need a table of requests, and the caller's table belongs to the
        // next comm soon.
        if self.closed.is_none() {
            self.closed = Some(Box::new(RequestTable::of_closed_comm(CommStatusRow::without_page)));
        }
        match &mut self.side {
            // Matched operations may wait for their other half forever, so they are revoked.
            CommSide::Send(lane) => lane.take_matched_back(rails),
            CommSide::Recv(lane) => {
                lane.take_matched_back(rails);
                // Its messages in bounce buffers occupy buffers of the whole group.
                lane.forget_eager(rails);
            }
        }
    }

    /// Returns the number of messages that it has sent, or that have arrived.
    pub(crate) fn message_count(&self) -> u64 {
        match &self.side {
            CommSide::Send(lane) => lane.sent,
            CommSide::Recv(lane) => lane.arrived,
        }
    }

    /// Revokes the registrations of its caller, for shared links. Returns whether nothing can use that memory any more.
    pub(crate) fn gives_memory_back(&mut self, rails: &GroupRails<impl Rail>) -> bool {
        let given = match &mut self.side {
            CommSide::Send(lane) => !lane.reads_user_memory(rails),
            CommSide::Recv(lane) => !lane.regions.any_in_use() || lane.can_retire_memory(rails),
        };
        // Retired in any case, so that memory in use becomes unreachable as far as the NIC supports
        // it.
        self.side.regions_mut().retire_all() && given
    }

    /// Returns its row for the status page.
    pub(crate) fn status_row(&mut self, generation: u16, now: Instant) -> shown::CommRecord {
        let nics: Vec<u16> = self.side.paths_mut().iter().map(|path| path.nic as u16).collect();
        shown::CommRecord {
            state: CommState::Open,
            direction: match self.side {
                CommSide::Send(_) => CommDirection::Send,
                CommSide::Recv(_) => CommDirection::Recv,
            },
            links: shown::RowLinks::new(&nics, self.side.paths_mut().carrying_mask()),
            generation,
            fault: None,
            peer: self.peer.process,
            opened: now.0,
            ride: None,
            before: MessageCounts::default(),
        }
    }

    /// Fails each outstanding request once, after the link has failed.
    pub(crate) fn fail_requests(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        fault: CommFault,
    ) -> usize {
        let fault = match fault {
            // The end of the link is only the consequence of the peer's death.
            CommFault::Link(_) if self.peer.dead.load(Ordering::Relaxed) => {
                CommFault::PeerDead(self.peer.process)
            }
            other => other,
        };
        // The first fault is kept, because later ones are usually its consequences.
        if self.fault.is_none() {
            self.fault = Some(fault);
        }
        // No other member uses the link, so everything on it may be flushed.
        if self.member == 0 {
            self.side.paths_mut().fail_links(rails);
        } else {
            // The link serves other members, so it stays up.
            self.withdraw_requests(rails);
        }
        requests.fail_all()
    }

    /// Handles the peer's CLOSE after this many messages. Returns whether everything that can still happen here has happened.
    pub(crate) fn on_peer_closed(&mut self, requests: &RequestTable, messages: u64) -> bool {
        match &mut self.side {
            // A flush needs no peer, because it makes bytes visible that have arrived.
            CommSide::Recv(lane) => {
                // After CLOSE no further messages arrive, so the counts decide; a lost link
                // delivers nothing more either.
                (lane.arrived >= messages || self.life.is_link_lost()) && !lane.is_flush_pending()
            }
            CommSide::Send(lane) => {
                // The peer's count covers all messages: the missing completions are not needed.
                if lane.sent <= messages {
                    lane.complete_all(requests);
                }
                true
            }
        }
    }

    /// Handles the end of the peer: processes messages that it sent before, then fails requests that can never complete. Returns
    /// how many failed.
    pub(crate) fn on_peer_gone(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        batch: &mut CompletionBatch,
        requests: &RequestTable,
        fault: CommFault,
    ) -> usize {
        if self.fault.is_some() {
            return 0;
        }
        // A peer that closed regularly may have messages in flight on a working link; a dead one
        // has not.
        if matches!(fault, CommFault::PeerDead(_)) {
            self.side.paths_mut().fail_links(rails);
        }
        for rail in 0..rails.len() {
            if let Err(fault) = self.drain_rail(rails, batch, requests, rail, DRAIN_MAX) {
                return self.fail_requests(rails, requests, fault);
            }
        }
        self.fail_remaining(rails, requests, fault)
    }

    /// Fails requests that can never complete, after the peer has ended and its messages were processed. Returns how many failed.
    pub(crate) fn fail_remaining(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        fault: CommFault,
    ) -> usize {
        match &mut self.side {
            // Messages that have arrived may still be received; only requests that nothing can complete fail.
            CommSide::Recv(lane) if !requests.has_pending() => {
                lane.gone = true;
                0
            }
            _ => self.fail_requests(rails, requests, fault),
        }
    }

    /// Processes the successful completions of a rail.
    fn drain_rail(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        batch: &mut CompletionBatch,
        requests: &RequestTable,
        rail: usize,
        most: usize,
    ) -> Result<(), CommFault> {
        for _ in 0..most {
            let taken = rails.poll(rail, batch);
            let well =
                // Failures are consequences of the end, and probes are of no interest any more.
                |completion: &&Completion| completion.status == OpStatus::Ok && completion.wr_id < PROBE;
            for completion in batch[..taken].iter().filter(well) {
                self.on_completion(rails, requests, rail, completion)?;
            }
            // Nothing left, or the bound of `most` batches is reached.
            if taken == 0 {
                break;
            }
        }
        Ok(())
    }
}
