//! An open comm as a member of its group: which side it is, and what becomes of what its rails have finished. Used only
//! under the group's lane.

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

/// Completions taken from a rail at once.
pub(crate) const BATCH: usize = 16;

/// Batches taken when a peer is gone, to find what it sent before.
pub(crate) const DRAIN_MAX: usize = 4096;

/// Where rails put completions.
pub(crate) type CompletionBatch = [Completion; BATCH];

/// An open comm, as a member of its group.
pub(crate) struct OpenComm {
    /// Which comm that is.
    pub(crate) id: CommId,
    pub(crate) side: CommSide,
    pub(crate) peer: Arc<RemoteProcess>,
    pub(crate) ends: CommNames,
    pub(crate) fault: Option<CommFault>,
    /// Fruitless polls since the last look at the control stream.
    pub(crate) idle: u32,
    /// When the control stream was last looked at, as far as the clock was asked.
    pub(crate) looked: Option<Instant>,
    /// Its link, its message intake and its drain.
    pub(crate) life: MemberLife,
    /// What the network said of it, if anything.
    pub(crate) ended_by: OpStatus,
    /// How long that, or the peer's close, has been looked at.
    pub(crate) down: Option<FailureTimer>,
    /// What is to be said on the control stream, where there are several links.
    pub(crate) words: Vec<LinkFrame>,
    /// Whether it should give memory back.
    pub(crate) idle_for: IdleTimer,
    /// When links were last looked after, where there are several.
    pub(crate) tended: Instant,
    /// The peer's joins when links were last hurried for them.
    pub(crate) joins: u32,
    /// When the network was last asked whether the links carry.
    pub(crate) asked: Instant,
    /// How long none of its links has carried, while others are made.
    pub(crate) adrift: Option<FailureTimer>,
    /// Polls, where there are several links.
    pub(crate) turns: u32,
    /// There are several links.
    pub(crate) many: bool,
    /// Its caller has closed it, or it shares its link and has failed: these take what still completes.
    pub(crate) closed: Option<Box<RequestTable>>,
    /// Its place in the pool.
    pub(crate) place: Option<GroupPlace>,
    /// What its group calls it, as bits; 0 where there are no others.
    pub(crate) member: u32,
    /// Its mailbox, if that is one of its group's.
    pub(crate) lot: Option<SlabSlot>,
    /// How long memory that messages use is to be given back.
    pub(crate) revoking: Option<FailureTimer>,
}

/// A peer that has closed or a link that has ended, which is looked at until all that can still come has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailureTimer {
    /// The last look.
    looked: Instant,
    /// How long it has been looked at.
    waited: Duration,
}

impl FailureTimer {
    /// Looks again; returns how long that has been going on. Between two looks at most `step` counts: who made no call
    /// for longer was stopped, and finds what came meanwhile only now.
    pub(crate) fn advance_timer(down: &mut Option<Self>, now: Instant, step: Duration) -> Duration {
        let Self { looked, waited } = down.unwrap_or(Self { looked: now, waited: Duration::default() });
        let waited = Duration(waited.0.saturating_add((now - looked).min(step).0));
        *down = Some(Self { looked: now, waited });
        waited
    }
}

/// How the two ends of a comm name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommNames {
    pub(crate) stream: SlotId,
    /// What CLOSE must name.
    pub(crate) remote: u64,
    /// Our attempt, if we asked for the comm.
    pub(crate) attempt: Option<SlotId>,
}

/// Which side of the comm this process is. Large as it is, it is made once and then stays where it is.
#[expect(clippy::large_enum_variant, reason = "one lives in each comm, and is reached on every call")]
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

    /// A path is of no more use, others may be.
    #[cold]
    pub(crate) fn drain_path(&mut self, rails: &mut GroupRails<impl Rail>, path: usize) {
        match self {
            Self::Send(lane) => lane.drain_path(rails, path),
            Self::Recv(lane) => lane.drain_path(rails, path),
        }
    }

    /// Whether the NIC has messages that may wait for their other half.
    pub(crate) fn waits_in_nic(&self) -> bool {
        match self {
            Self::Send(lane) => lane.plan.matched && lane.posted > 0,
            Self::Recv(lane) => lane.matched_posted > 0 || !lane.matched_due.is_empty(),
        }
    }

    /// In the `wr_id` of all it posts.
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

    /// The link flushes what is posted: its other end is gone, in order or not.
    #[cold]
    pub(crate) fn mark_gone(&mut self) {
        if let Self::Recv(lane) = self {
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

    /// Posts what was waiting for credit, after what the rails had finished was taken.
    #[inline]
    pub(crate) fn go_on(&mut self, rails: &mut GroupRails<impl Rail>, requests: &RequestTable) {
        let posted = match &mut self.side {
            CommSide::Recv(lane) => lane.announce_and_post(rails, requests),
            CommSide::Send(lane) => {
                if !self.life.is_link_lost() {
                    lane.after_poll(rails, requests);
                }
                lane.post_due(rails, requests)
            }
        };
        if let Err(fault) = posted {
            self.fail_requests(rails, requests, fault);
        }
        if matches!(&self.side, CommSide::Recv(lane) if lane.gone) {
            self.life.lose_link();
        }
    }

    /// Takes one completion.
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
            // Of a link that was destroyed nothing comes any more.
            true => match self.side.paths_mut().of_link(rail, link) {
                Some(path) => path,
                None => return Ok(()),
            },
        };
        if status != OpStatus::Ok && self.is_end(status) {
            self.on_link_lost(rails, path);
            return Ok(());
        }
        if self.many && wr_id >= PROBE && done == CompletionKind::Posted {
            self.on_link_sign(path, wr_id);
            return Ok(());
        }
        self.side.on_completion(rails, requests, path, completion)
    }

    /// Whether a link has ended, which the comm may live through or has to be told the reason of.
    #[cold]
    fn is_end(&mut self, status: OpStatus) -> bool {
        if status != OpStatus::Flushed {
            self.ended_by = status;
        }
        // Where there is no other link, a number of the network's own is the reason.
        status.is_of_link() && (self.many || !matches!(status, OpStatus::Other(_)))
    }

    /// A link gives back what was posted: it carries nothing more.
    #[cold]
    pub(crate) fn on_link_lost(&mut self, rails: &mut GroupRails<impl Rail>, path: usize) {
        if let CommSide::Recv(lane) = &mut self.side {
            lane.forget_end();
        }
        if self.side.paths_mut().are_many() {
            self.side.drain_path(rails, path);
        } else {
            self.life.lose_link();
            self.side.mark_gone();
        }
    }

    /// The name that the peer has for it.
    pub(crate) fn remote_name(&self) -> u64 {
        self.ends.attempt.map_or(self.id.to_bits(), SlotId::to_bits)
    }

    /// Whether others ride on the same link.
    #[inline]
    pub(crate) fn is_grouped(&self) -> bool {
        self.member != 0
    }

    /// It is of no more use, the link of its group is: what completes for it is nobody's news, and what lies in bounce
    /// buffers goes to nobody.
    pub(crate) fn withdraw_requests(&mut self, rails: &mut GroupRails<impl Rail>) {
        self.life.stop_intake();
        if self.closed.is_none() {
            self.closed = Some(Box::new(RequestTable::of_closed_comm(CommStatusRow::without_page)));
        }
        match &mut self.side {
            CommSide::Send(lane) => lane.take_matched_back(rails),
            CommSide::Recv(lane) => {
                lane.take_matched_back(rails);
                lane.forget_eager(rails);
            }
        }
    }

    /// Messages that it has sent, or that have arrived.
    pub(crate) fn message_count(&self) -> u64 {
        match &self.side {
            CommSide::Send(lane) => lane.sent,
            CommSide::Recv(lane) => lane.arrived,
        }
    }

    /// Ends what its caller has registered, where others share the link: whether nothing can use that memory any more.
    pub(crate) fn gives_memory_back(&mut self, rails: &GroupRails<impl Rail>) -> bool {
        let given = match &mut self.side {
            CommSide::Send(lane) => !lane.reads_user_memory(rails),
            CommSide::Recv(lane) => !lane.regions.any_in_use() || lane.can_retire_memory(rails),
        };
        self.side.regions_mut().retire_all() && given
    }

    /// How the status page shows it.
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

    /// The link is of no more use: every outstanding request fails once.
    pub(crate) fn fail_requests(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        fault: CommFault,
    ) -> usize {
        let fault = match fault {
            CommFault::Link(_) if self.peer.dead.load(Ordering::Relaxed) => {
                CommFault::PeerDead(self.peer.process)
            }
            other => other,
        };
        if self.fault.is_none() {
            self.fault = Some(fault);
        }
        if self.member == 0 {
            self.side.paths_mut().fail_links(rails);
        } else {
            self.withdraw_requests(rails);
        }
        requests.fail_all()
    }

    /// The peer closed its end after so many messages. Returns whether all that can still happen here has happened.
    pub(crate) fn on_peer_closed(&mut self, requests: &RequestTable, messages: u64) -> bool {
        match &mut self.side {
            // A flush needs no peer; what it makes visible has arrived.
            CommSide::Recv(lane) => {
                (lane.arrived >= messages || self.life.is_link_lost()) && !lane.is_flush_pending()
            }
            CommSide::Send(lane) => {
                if lane.sent <= messages {
                    lane.complete_all(requests);
                }
                true
            }
        }
    }

    /// The peer is gone: takes what it sent before, then fails what can never be done. Returns how many failed.
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

    /// The peer is gone and what it sent before was taken: fails what can never be done. Returns how many failed.
    pub(crate) fn fail_remaining(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        fault: CommFault,
    ) -> usize {
        match &mut self.side {
            // What has arrived may still be asked for; only what cannot come any more fails.
            CommSide::Recv(lane) if !requests.has_pending() => {
                lane.gone = true;
                0
            }
            _ => self.fail_requests(rails, requests, fault),
        }
    }

    /// Takes what a rail has finished well.
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
                |completion: &&Completion| completion.status == OpStatus::Ok && completion.wr_id < PROBE;
            for completion in batch[..taken].iter().filter(well) {
                self.on_completion(rails, requests, rail, completion)?;
            }
            if taken == 0 {
                break;
            }
        }
        Ok(())
    }
}
