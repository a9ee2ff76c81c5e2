//! How comms come to ride on groups of shared queue pairs, and leave them: what the pool says is done here, for the end that
//! asks and for the end that answers. Called under the control plane's claim; not on a message's path.

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

/// What the links of a comm that is being connected are on.
pub(crate) enum AttemptLinks<R: Rail> {
    /// Rails of its own; it may begin a group with them.
    Own(GroupRails<R>),
    /// Those of the group in that lane, where it has a mailbox.
    Rider {
        /// The lane.
        lane: u32,
        /// The mailbox.
        lot: SlabSlot,
    },
}

/// What an attempt without a comm leaves behind. Each has a seat in the pool, so there are as many at most.
pub(crate) struct AttemptLeftover<R: Rail> {
    pub(crate) made: Option<(SendLane, AttemptLinks<R>)>,
    place: Option<GroupPlace>,
}

/// The control plane of a process that shares as its parameters say.
pub(crate) fn new_control<F: Fabric, H: Host>(
    fabric: &F,
    host: &H,
    params: &EngineParams,
    process: ProcessId,
) -> ControlPlane<H, F::Rail> {
    // What is out of range was refused when the parameters were read.
    let config = params.sharing.pool_config().unwrap_or(PoolConfig::OFF);
    let random = host.random_bytes();
    let base = u64::from_le_bytes(random[..8].try_into().unwrap_or_default());
    let mut pool = GroupPool::new(config, base);
    let budget = params.sharing.budget;
    if params.sharing.sharing != SharingMode::Off || budget > 0 {
        for (nic, found) in fabric.nics().iter().enumerate() {
            let all = found.caps.links_max;
            // At most sixteen.
            pool.set_budget(nic as u16, if budget == 0 { all } else { budget.min(all) });
        }
    }
    ControlPlane::new(process, config.sharing_offer(), pool)
}

impl<F: Fabric, H: Host> ConnectionSetup<F, H> {
    /// What a comm of so many links wishes of the pool.
    pub(crate) fn group_preference(&self, nics: &CommNics, links: usize) -> GroupPreference {
        let caps = self.core.fabric.nics().get(nics.first_nic()).map(|nic| nic.caps);
        // At most four.
        let wish = GroupPreference::new(links as u8);
        match caps.is_none_or(|caps| TransferPlan::new(&caps, &self.core.params, links).can_share_links()) {
            true => wish,
            false => GroupPreference { groups_at_most: 0, ..wish },
        }
    }

    fn has_sharing(&self) -> bool {
        self.core.params.sharing.sharing != SharingMode::Off
    }

    /// Asks the pool where an attempt goes; `None` as long as nobody knows what the peer offers.
    pub(crate) fn place_attempt(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<(ConnectPlan, GroupPreference)>, EngineError> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(None) };
        let stream = attempt.stream;
        let wish = attempt.wish;
        let local = attempt.nics.to_wire().ok_or(EngineError::Argument("a NIC's number is too large"))?;
        let key = GroupKey { peer: attempt.process, end: CommEnd::Sending, local, remote: attempt.remote };
        let offer = match control.stream_peer(stream) {
            Some(peer) => peer.offer,
            None if self.has_sharing() => return Ok(None),
            None => ShareOffer::NONE,
        };
        self.sample_load(control, &key);
        let ask = control.pool.plan_connect(&key, wish.with_offer(offer))?;
        Ok(Some((ask, wish)))
    }

    /// Tells the pool what the groups of a key had to do since it was last asked for one, in operations.
    fn sample_load(&self, control: &mut ControlPlane<H, F::Rail>, key: &GroupKey) {
        let groups: Vec<GroupId> = control.pool.of_key(key).collect();
        for group in groups {
            let lane = control.riding.get(&group).map(|&lane| MemberLocation::of_single_comm(lane));
            // One that is in use keeps what was said of it last.
            if let Some(mut held) = lane.and_then(|lane| self.core.groups.try_lock_group(lane))
                && let Some(load) = held.as_mut().and_then(CommGroup::take_load)
            {
                control.pool.set_load(group, load);
            }
        }
    }

    /// What was asked for was refused, and is of no use: the next turn asks for something else.
    pub(crate) fn withdraw_ask(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        id: SlotId,
        wish: GroupPreference,
    ) {
        let Some(attempt) = control.attempts.get_mut(id) else { return };
        (attempt.wish, attempt.reply) = (wish, None);
        let leftover = AttemptLeftover { made: attempt.lane.take(), place: attempt.place.take() };
        self.clear(control, leftover);
    }

    /// An attempt ends without a comm.
    pub(crate) fn forget_attempt(&self, control: &mut ControlPlane<H, F::Rail>, id: SlotId) {
        let Some(attempt) = control.attempts.remove(id) else { return };
        self.clear(control, AttemptLeftover { made: attempt.lane, place: attempt.place });
    }

    /// Clears away what waited for a lane that was in use.
    pub(crate) fn clear_leftovers(&self, control: &mut ControlPlane<H, F::Rail>) {
        for _ in 0..control.leftovers.len() {
            if let Some(oldest) = control.leftovers.pop_front() {
                self.clear(control, oldest);
            }
        }
    }

    /// Never waits for the lane: who makes this call may have it in hand.
    fn clear(&self, control: &mut ControlPlane<H, F::Rail>, leftover: AttemptLeftover<F::Rail>) {
        let AttemptLeftover { made, place } = leftover;
        if let Some((sender, AttemptLinks::Rider { lane, lot })) = made {
            let Some(mut held) = self.core.groups.try_lock_group(MemberLocation::of_single_comm(lane)) else {
                let made = Some((sender, AttemptLinks::Rider { lane, lot }));
                return control.leftovers.push_back(AttemptLeftover { made, place });
            };
            if let Some((common, rails)) = held.as_mut().and_then(CommGroup::shared_resources) {
                common.free_mailbox(lot);
                sender.paths.release_links(rails);
            }
        }
        if let Some(place) = place {
            self.leave_pool(control, place);
        }
    }

    /// A lane on the links of a group that is up.
    pub(crate) fn make_group_member(
        &self,
        control: &ControlPlane<H, F::Rail>,
        group: GroupId,
    ) -> Result<(SendLane, AttemptLinks<F::Rail>), EngineError> {
        let unknown = EngineError::Unknown("group of queue pairs");
        let Some(&lane) = control.riding.get(&group) else { return Err(unknown) };
        let mut held = self.core.groups.lock_lane(lane);
        let Some((common, rails)) = held.as_mut().and_then(CommGroup::shared_resources) else {
            return Err(unknown);
        };
        let Some(paths) = self.paths_of(common, rails, true) else { return Err(EngineError::Draining) };
        let tables = SendTables::new(paths.are_many());
        let tables = tables.inspect_err(|_| paths.release_links(rails))?;
        let (lot, mailbox) = common.take_mailbox(rails).inspect_err(|_| paths.release_links(rails))?;
        let sender = MessageSender::new(0, 0);
        let regions_max = self.core.params.regions_max as usize;
        let sender = SendLane::new(tables, paths, common.plan, sender, mailbox, regions_max);
        Ok((sender, AttemptLinks::Rider { lane, lot }))
    }

    /// The links of a group, as a member's own: the first carries, the others are joined as if they were made. `None` while
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
                _ => (NO_LINK, LinkLife::new_further(asks, now)),
            };
            LinkPath { rail, link, nic, life, leaving: None, proof: LinkProbe::None }
        };
        let mut paths = common.slots.iter().enumerate().map(path);
        let first = paths.next()?;
        Some(CommPaths::new(first, paths.collect()))
    }

    /// Opens a sending comm where it belongs.
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
            (AttemptLinks::Own(rails), ShareOutcome::Created { member, .. }, Some(place)) => {
                let CommSide::Send(lane) = &open.side else {
                    return Err(EngineError::Argument("not a sending comm"));
                };
                let group = CommGroup::new_sending(place.group, rails, &lane.paths, lane.plan);
                let lane = self.core.groups.insert(group)?;
                control.riding.insert(place.group, lane);
                self.core.install_in(lane, open, part(member))?
            }
            (AttemptLinks::Own(rails), ..) => return self.core.install_comm(open, rails),
            (AttemptLinks::Rider { lane, lot }, given, _) => {
                let mut open = open;
                open.lot = Some(lot);
                let ShareOutcome::Joined { member, .. } = given else {
                    self.core.reject_member(lane, open);
                    return Err(EngineError::Unknown("group of queue pairs"));
                };
                self.core.install_in(lane, open, part(member))?
            }
        };
        control.add_grouped_comm(name, stream);
        Ok(comm)
    }

    /// Opens a receiving comm in the group of that lane.
    pub(crate) fn add_receiver(
        &self,
        control: &mut ControlPlane<H, F::Rail>,
        lane: u32,
        open: OpenComm,
    ) -> Result<CommId, EngineError> {
        let stream = open.ends.stream;
        let comm = self.core.install_in(lane, open, |open, common, member| {
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

    /// How comms of that end and these NICs are told apart.
    pub(crate) fn receiving_key(&self, nics: &CommNics, peer: ProcessId) -> Result<GroupKey, EngineError> {
        let local = nics.to_wire().ok_or(EngineError::Argument("a NIC's number is too large"))?;
        Ok(GroupKey { peer, end: CommEnd::Receiving, local, remote: nics::NicList::NONE })
    }
}
