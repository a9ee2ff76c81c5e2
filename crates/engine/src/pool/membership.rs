//! The entry of comms into groups of shared queue pairs, and their exit: carries out the pool's decisions, for the connecting and
//! the accepting end. Called under the control plane's lock; not on a message's path.

use trunkline_fabric::{Fabric, Host, Rail};
use trunkline_proto::comm::receiver::MessageReceiver;
use trunkline_proto::comm::sender::MessageSender;
use trunkline_proto::id::ProcessId;
use trunkline_proto::link::LinkLife;
use trunkline_proto::nics;
use trunkline_proto::pool::config::{GroupPreference, PoolConfig, SharingMode};
use trunkline_proto::pool::group::GroupId;
use trunkline_proto::pool::key::{CommEnd, GroupKey};
use trunkline_proto::pool::{ConnectPlan, GroupPlace, GroupPool};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::cts::RecordLines;
use trunkline_proto::wire::frame::ResultFrame;
use trunkline_proto::wire::member::MemberId;
use trunkline_proto::wire::share::{ShareOffer, ShareOutcome};

use crate::comm::plan::TransferPlan;
use crate::comm::send::SendLane;
use crate::comm::send_tables::SendTables;
use crate::control::ControlPlane;
use crate::control::setup::ConnectionSetup;
use crate::link::path::{CommPaths, LinkPath, LinkProbe, NO_LINK};
use crate::link::rails::GroupRails;
use crate::memory::slab::SlabSlot;
use crate::pool::groups::{CommGroup, GroupResources, MemberLocation};
use crate::pool::member::{CommSide, OpenComm};
use crate::pool::member_ids::{RecvMemberIds, SendMemberIds};
use crate::{CommId, CommNics, EngineError, EngineParams};

/// The links of a comm that is being connected.
pub(crate) enum AttemptLinks<R: Rail> {
    /// Rails of its own; it may begin a group with them.
    Own(GroupRails<R>),
    /// Those of the group in this lane, where it has a mailbox.
    Rider {
        /// The lane.
        lane: u32,
        /// The mailbox.
        lot: SlabSlot,
    },
}

/// The resources of an attempt without a comm. Each has a membership in the pool, which bounds their number.
pub(crate) struct AttemptLeftover<R: Rail> {
    pub(crate) made: Option<(SendLane, AttemptLinks<R>)>,
    place: Option<GroupPlace>,
}

/// Creates the control plane of a process with the sharing of its parameters.
pub(crate) fn new_control<F: Fabric, H: Host>(
    fabric: &F,
    host: &H,
    params: &EngineParams,
    process: ProcessId,
) -> ControlPlane<H, F::Rail> {
    // Out-of-range values were refused when the parameters were read.
    let config = params.sharing.pool_config().unwrap_or(PoolConfig::OFF);
    let random = host.random_bytes();
    // A random base makes group names of different processes differ, also across restarts.
    let base = u64::from_le_bytes(random[..8].try_into().unwrap_or_default());
    let mut pool = GroupPool::new(config, base);
    let budget = params.sharing.budget;
    // Without sharing and without a budget, the NIC's own limits apply, and nothing is counted.
    if params.sharing.sharing != SharingMode::Off || budget > 0 {
        for (nic, found) in fabric.nics().iter().enumerate() {
            let all = found.caps.links_max;
            // At most sixteen NICs, so the index fits.
            pool.set_budget(nic as u16, if budget == 0 { all } else { budget.min(all) });
        }
    }
    ControlPlane::new(process, config.sharing_offer(), pool)
}

impl<F: Fabric, H: Host> ConnectionSetup<F, H> {
    /// Returns the pool preference of a comm with this many links.
    pub(crate) fn group_preference(&self, nics: &CommNics, links: usize) -> GroupPreference {
        let caps = self.core.fabric.nics().get(nics.first_nic()).map(|nic| nic.caps);
        // At most four links, so the number fits.
        let wish = GroupPreference::new(links as u8);
        match caps.is_none_or(|caps| TransferPlan::new(&caps, &self.core.params, links).can_share_links()) {
            true => wish,
            // Not an error, because the comm gets links of its own.
            false => GroupPreference { groups_at_most: 0, ..wish },
        }
    }

    fn has_sharing(&self) -> bool {
        self.core.params.sharing.sharing != SharingMode::Off
    }

    /// Requests a place for an attempt from the pool; `None` until the peer's offer has arrived.
    pub(crate) fn place_attempt(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<(ConnectPlan, GroupPreference)>, EngineError> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(None) };
        let stream = attempt.stream;
        let wish = attempt.wish;
        let local =
            attempt.nics.to_wire().ok_or(EngineError::Argument("a NIC number does not fit in 16 bits"))?;
        let key = GroupKey { peer: attempt.process, end: CommEnd::Sending, local, remote: attempt.remote };
        let offer = match control.stream_peer(stream) {
            Some(peer) => peer.offer,
            // HELLO contains the offer. Without it the request might create a group that the peer
            // cannot share.
            None if self.has_sharing() => return Ok(None),
            None => ShareOffer::NONE,
        };
        // Sampled only now, because the pool needs loads only when it chooses a group.
        self.sample_load(control, &key);
        let ask = control.pool.plan_connect(&key, wish.with_offer(offer))?;
        Ok(Some((ask, wish)))
    }

    /// Reports to the pool how many operations the groups of a key have posted since the last report.
    fn sample_load(&self, control: &mut ControlPlane<H, F::Rail>, key: &GroupKey) {
        let groups: Vec<GroupId> = control.pool.of_key(key).collect();
        for group in groups {
            let lane = control.riding.get(&group).map(|&lane| MemberLocation::of_single_comm(lane));
            // A group in use keeps its last reported load, because waiting for its lock would block the
            // control plane.
            if let Some(mut held) = lane.and_then(|lane| self.core.groups.try_lock_group(lane))
                && let Some(load) = held.as_mut().and_then(CommGroup::take_load)
            {
                control.pool.set_load(group, load);
            }
        }
    }

    /// Withdraws a refused request: the next turn requests something else.
    pub(crate) fn withdraw_ask(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        id: SlotId,
        wish: GroupPreference,
    ) {
        let Some(attempt) = control.attempts.get_mut(id) else { return };
        // The next turn makes other links, so the ones of this turn are freed.
        (attempt.wish, attempt.reply) = (wish, None);
        let leftover = AttemptLeftover { made: attempt.lane.take(), place: attempt.place.take() };
        self.clear(control, leftover);
    }

    /// Ends an attempt without a comm.
    pub(crate) fn forget_attempt(&self, control: &mut ControlPlane<H, F::Rail>, id: SlotId) {
        let Some(attempt) = control.attempts.remove(id) else { return };
        self.clear(control, AttemptLeftover { made: attempt.lane, place: attempt.place });
    }

    /// Frees resources that waited for a lane in use.
    pub(crate) fn clear_leftovers(&self, control: &mut ControlPlane<H, F::Rail>) {
        // Each leftover once per call, because one whose lane is still in use is queued again.
        for _ in 0..control.leftovers.len() {
            if let Some(oldest) = control.leftovers.pop_front() {
                self.clear(control, oldest);
            }
        }
    }

    /// Never waits for the lane: the caller may hold its lock.
    fn clear(&self, control: &mut ControlPlane<H, F::Rail>, leftover: AttemptLeftover<F::Rail>) {
        let AttemptLeftover { made, place } = leftover;
        if let Some((sender, AttemptLinks::Rider { lane, lot })) = made {
            let Some(mut held) = self.core.groups.try_lock_group(MemberLocation::of_single_comm(lane)) else {
                // Queued again as a whole, because the place in the pool must not be freed before the links.
                let made = Some((sender, AttemptLinks::Rider { lane, lot }));
                return control.leftovers.push_back(AttemptLeftover { made, place });
            };
            if let Some((common, rails)) = held.as_mut().and_then(CommGroup::shared_resources) {
                // The mailbox before the links, because both belong to the group.
                common.free_mailbox(lot);
                sender.paths.release_links(rails);
            }
        }
        // Last, because the pool destroys the group's queue pairs with the last membership.
        if let Some(place) = place {
            self.leave_pool(control, place);
        }
    }

    /// Creates a lane on the links of a group that is up.
    pub(crate) fn make_group_member(
        &self,
        control: &ControlPlane<H, F::Rail>,
        group: GroupId,
    ) -> Result<(SendLane, AttemptLinks<F::Rail>), EngineError> {
        let unknown = EngineError::Unknown("group of queue pairs");
        let Some(&lane) = control.riding.get(&group) else { return Err(unknown) };
        // Waits for the lane: this call sets a connection up, and is not on a message's path.
        let mut held = self.core.groups.lock_lane(lane);
        let Some((common, rails)) = held.as_mut().and_then(CommGroup::shared_resources) else {
            return Err(unknown);
        };
        // The first link of the group has failed, so no member can join until it is replaced.
        let Some(paths) = self.paths_of(common, rails, true) else { return Err(EngineError::Draining) };
        let tables = SendTables::new(paths.are_many());
        // Errors release the resources of the attempt, because the group outlives the attempt.
        let tables = tables.inspect_err(|_| paths.release_links(rails))?;
        let (lot, mailbox) = common.take_mailbox(rails).inspect_err(|_| paths.release_links(rails))?;
        let sender = MessageSender::new(0, 0);
        let regions_max = self.core.params.regions_max as usize;
        let sender = SendLane::new(tables, paths, common.plan, sender, mailbox, regions_max);
        Ok((sender, AttemptLinks::Rider { lane, lot }))
    }

    /// Returns the links of a group, as a member's own: the first is up, the others are joined as if they were made. `None` while
    /// the first is in error.
    pub(crate) fn paths_of(
        &self,
        common: &GroupResources,
        rails: &mut GroupRails<F::Rail>,
        asks: bool,
    ) -> Option<CommPaths> {
        let first = rails.shared.as_mut()?.join_link(0)?;
        let now = self.core.host.now();
        let path = |(at, &(rail, nic)): (usize, &(usize, usize))| {
            let (link, life) = match at {
                0 => (first, LinkLife::new_first(asks, now)),
                // Further links have no queue pair yet: the member requests them when it is polled.
                _ => (NO_LINK, LinkLife::new_further(asks, now)),
            };
            LinkPath { rail, link, nic, life, leaving: None, proof: LinkProbe::None }
        };
        let mut paths = common.slots.iter().enumerate().map(path);
        let first = paths.next()?;
        Some(CommPaths::new(first, paths.collect()))
    }

    /// Opens a sending comm in its group, or on its own rails.
    pub(crate) fn add_sender(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        open: OpenComm,
        made: AttemptLinks<F::Rail>,
        reply: &ResultFrame,
    ) -> Result<CommId, EngineError> {
        let place = open.place;
        let name = open.ends.attempt.map_or(0, SlotId::to_bits);
        let stream = open.ends.stream;
        let part = |remote: MemberId| {
            move |open: &mut OpenComm, _: &mut GroupResources, member: MemberId| {
                let CommSide::Send(lane) = &mut open.side else { return false };
                lane.join_group(SendMemberIds::of_member(member, remote));
                true
            }
        };
        let comm = match (made, reply.share.given, place) {
            // The first member brings its rails into the new group.
            (AttemptLinks::Own(rails), ShareOutcome::Created { member, .. }, Some(place)) => {
                let CommSide::Send(lane) = &open.side else {
                    return Err(EngineError::Argument("a connecting comm must be a sending one"));
                };
                let group = CommGroup::new_sending(place.group, rails, &lane.paths, lane.plan);
                let lane = self.core.groups.insert(group)?;
                // Registered before the member is added, so that other attempts find the group.
                control.riding.insert(place.group, lane);
                self.core.install_in(lane, open, part(member))?
            }
            (AttemptLinks::Own(rails), ..) => return self.core.install_comm(open, rails),
            (AttemptLinks::Rider { lane, lot }, given, _) => {
                let mut open = open;
                // Kept with the comm, so that the mailbox returns to the slab with it.
                open.lot = Some(lot);
                let ShareOutcome::Joined { member, .. } = given else {
                    // The peer did not join the group, so this end must not send on the group's
                    // links.
                    self.core.reject_member(lane, open);
                    return Err(EngineError::Unknown("group of queue pairs"));
                };
                self.core.install_in(lane, open, part(member))?
            }
        };
        // Under the control plane's lock, because STOP and GONE of the peer may arrive at once.
        control.add_grouped_comm(name, stream);
        Ok(comm)
    }

    /// Opens a receiving comm in the group of a lane.
    pub(crate) fn add_receiver(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        lane: u32,
        open: OpenComm,
    ) -> Result<CommId, EngineError> {
        let stream = open.ends.stream;
        let comm = self.core.install_in(lane, open, |open, common, member| {
            // The range of tokens distinguishes the member's writes on the shared links.
            let range = common.receiving.as_mut().and_then(|receiving| receiving.ranges.assign_range(member));
            let (CommSide::Recv(lane), Some(range)) = (&mut open.side, range) else { return false };
            lane.part = RecvMemberIds::of_member(member, range);
            let lines = RecordLines::for_links(lane.paths.len());
            *lane.receiver = MessageReceiver::new().in_range(range.generation, lines);
            true
        })?;
        control.add_grouped_comm(comm.to_bits(), stream);
        Ok(comm)
    }

    /// Returns the group key of the comms of that peer and these NICs.
    pub(crate) fn receiving_key(&self, nics: &CommNics, peer: ProcessId) -> Result<GroupKey, EngineError> {
        let local = nics.to_wire().ok_or(EngineError::Argument("a NIC number does not fit in 16 bits"))?;
        Ok(GroupKey { peer, end: CommEnd::Receiving, local, remote: nics::NicList::NONE })
    }
}
