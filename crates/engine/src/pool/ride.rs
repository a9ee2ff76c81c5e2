//! How comms come to ride on groups of shared queue pairs, and leave them: what the pool says is done here, for the end that
//! asks and for the end that answers. Called under the control plane's claim; not on a message's path.

use std::sync::atomic::Ordering;

use trunkline_fabric::{Fabric, Host, Level, Rail};
use trunkline_proto::comm::receiver::Receiver;
use trunkline_proto::comm::sender::Sender;
use trunkline_proto::counters::Tally;
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::MEMBERS_OF_GROUP_MAX;
use trunkline_proto::link::LinkLife;
use trunkline_proto::nics;
use trunkline_proto::pool::config::{Config, Sharing, Wish};
use trunkline_proto::pool::group::GroupId;
use trunkline_proto::pool::key::{End, Key};
use trunkline_proto::pool::{Ask, Left, Place, Pool};
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::cts::Lines;
use trunkline_proto::wire::frame::{Frame, Reply};
use trunkline_proto::wire::member::MemberId;
use trunkline_proto::wire::share::{Given, Offer};

use crate::comm::Comm;
use crate::comm::plan::Plan;
use crate::comm::send::SendLane;
use crate::comm::send_tables::SendTables;
use crate::control::Control;
use crate::link::links::SharedLinks;
use crate::link::path::{NO_LINK, Path, Paths, Proof};
use crate::link::rails::Rails;
use crate::memory::slab::Lot;
use crate::pool::groups::{Common, Group, Neighbours, Seat, Turn};
use crate::pool::member::{Open, Side};
use crate::pool::part::{RecvPart, SendPart};
use crate::{CommId, Engine, Error, Nics, Params};

/// What the links of a comm that is being connected are on.
pub(crate) enum Made<R: Rail> {
    /// Rails of its own; it may begin a group with them.
    Own(Rails<R>),
    /// Those of the group in that lane, where it has a mailbox.
    Rider {
        /// The lane.
        lane: u32,
        /// The mailbox.
        lot: Lot,
    },
}

/// What an attempt without a comm leaves behind. Each has a seat in the pool, so there are as many at most.
pub(crate) struct Leftover<R: Rail> {
    pub(crate) made: Option<(SendLane, Made<R>)>,
    place: Option<Place>,
}

/// The control plane of a process that shares as its parameters say.
pub(crate) fn new_control<F: Fabric, H: Host>(
    fabric: &F,
    host: &H,
    params: &Params,
    process: ProcessId,
) -> Control<H, F::Rail> {
    // What is out of range was refused when the parameters were read.
    let config = params.sharing.config().unwrap_or(Config::OFF);
    let random = host.random();
    let base = u64::from_le_bytes(random[..8].try_into().unwrap_or_default());
    let mut pool = Pool::new(config, base, params.mutant);
    let budget = params.sharing.budget;
    if params.sharing.sharing != Sharing::Off || budget > 0 {
        for (nic, found) in fabric.nics().iter().enumerate() {
            let all = found.caps.links_max;
            // At most sixteen.
            pool.set_budget(nic as u16, if budget == 0 { all } else { budget.min(all) });
        }
    }
    Control::new(process, config.offer(), pool)
}

impl<F: Fabric, H: Host> Engine<F, H> {
    /// What a comm of so many links wishes of the pool.
    pub(crate) fn wish(&self, nics: &Nics, links: usize) -> Wish {
        let caps = self.fabric.nics().get(nics.first()).map(|nic| nic.caps);
        // At most four.
        let wish = Wish::new(links as u8);
        match caps.is_none_or(|caps| Plan::new(&caps, &self.params, links).shares()) {
            true => wish,
            false => Wish { groups_at_most: 0, ..wish },
        }
    }

    fn shares(&self) -> bool {
        self.params.sharing.sharing != Sharing::Off
    }

    /// Asks the pool where an attempt goes; `None` as long as nobody knows what the peer offers.
    pub(crate) fn place(
        &self,
        control: &mut Control<H, F::Rail>,
        id: SlotId,
    ) -> Result<Option<(Ask, Wish)>, Error> {
        let Some(attempt) = control.attempts.get_mut(id) else { return Ok(None) };
        let stream = attempt.stream;
        let wish = attempt.wish;
        let local = attempt.nics.told().ok_or(Error::Argument("a NIC's number is too large"))?;
        let key = Key { peer: attempt.process, end: End::Sending, local, remote: attempt.remote };
        let offer = match control.peer(stream) {
            Some(peer) => peer.offer,
            None if self.shares() => return Ok(None),
            None => Offer::NONE,
        };
        self.weigh(control, &key);
        let ask = control.pool.ask(&key, wish.agreed(offer))?;
        Ok(Some((ask, wish)))
    }

    /// Tells the pool what the groups of a key had to do since it was last asked for one, in operations.
    fn weigh(&self, control: &mut Control<H, F::Rail>, key: &Key) {
        if self.params.mutant.is("ride-ignores-load") {
            return;
        }
        let groups: Vec<GroupId> = control.pool.of_key(key).collect();
        for group in groups {
            let lane = control.riding.get(&group).map(|&lane| Seat::alone(lane));
            // One that is in use keeps what was said of it last.
            if let Some(mut held) = lane.and_then(|lane| self.groups.try_claim(lane))
                && let Some(load) = held.as_mut().and_then(Group::take_load)
            {
                control.pool.set_load(group, load);
            }
        }
    }

    /// What was asked for was refused, and is of no use: the next turn asks for something else.
    pub(crate) fn unask(&self, control: &mut Control<H, F::Rail>, id: SlotId, wish: Wish) {
        let Some(attempt) = control.attempts.get_mut(id) else { return };
        (attempt.wish, attempt.reply) = (wish, None);
        let leftover = Leftover { made: attempt.lane.take(), place: attempt.place.take() };
        self.clear(control, leftover);
    }

    /// An attempt ends without a comm.
    pub(crate) fn forget_attempt(&self, control: &mut Control<H, F::Rail>, id: SlotId) {
        let Some(attempt) = control.attempts.remove(id) else { return };
        let kept = self.params.mutant.is("ride-keeps-places-of-attempts");
        self.clear(control, Leftover { made: attempt.lane, place: attempt.place.filter(|_| !kept) });
    }

    /// Clears away what waited for a lane that was in use.
    pub(crate) fn clear_leftovers(&self, control: &mut Control<H, F::Rail>) {
        for _ in 0..control.leftovers.len() {
            if let Some(oldest) = control.leftovers.pop_front() {
                self.clear(control, oldest);
            }
        }
    }

    /// Never waits for the lane: who makes this call may have it in hand.
    fn clear(&self, control: &mut Control<H, F::Rail>, leftover: Leftover<F::Rail>) {
        let Leftover { made, place } = leftover;
        if let Some((sender, Made::Rider { lane, lot })) = made {
            let held = match self.params.mutant.is("ride-waits-for-a-lane-in-hand") {
                true => Some(self.groups.claim_lane(lane)),
                false => self.groups.try_claim(Seat::alone(lane)),
            };
            let Some(mut held) = held else {
                let made = Some((sender, Made::Rider { lane, lot }));
                return control.leftovers.push_back(Leftover { made, place });
            };
            if let Some((common, rails)) = held.as_mut().and_then(Group::common) {
                common.give(lot);
                sender.paths.destroy(rails);
            }
        }
        if let Some(place) = place {
            self.leave_pool(control, place);
        }
    }

    /// A lane on the links of a group that is up.
    pub(crate) fn make_rider(
        &self,
        control: &Control<H, F::Rail>,
        group: GroupId,
    ) -> Result<(SendLane, Made<F::Rail>), Error> {
        let unknown = Error::Unknown("group of queue pairs");
        let Some(&lane) = control.riding.get(&group) else { return Err(unknown) };
        let mut held = self.groups.claim_lane(lane);
        let Some((common, rails)) = held.as_mut().and_then(Group::common) else { return Err(unknown) };
        let Some(paths) = self.paths_of(common, rails, true) else { return Err(Error::Draining) };
        let tables = SendTables::new(paths.are_many(), common.plan.mutant);
        let tables = tables.inspect_err(|_| self.quit_unseated(&paths, rails))?;
        let (lot, mailbox) = common.mailbox(rails).inspect_err(|_| self.quit_unseated(&paths, rails))?;
        let sender = Sender::new(0, 0, self.params.mutant);
        let regions_max = self.params.regions_max as usize;
        let sender = SendLane::new(tables, paths, common.plan, sender, mailbox, regions_max);
        Ok((sender, Made::Rider { lane, lot }))
    }

    /// The links of a group, as a member's own: the first carries, the others are joined as if they were made. `None` while
    /// the first is in error.
    pub(crate) fn paths_of(&self, common: &Common, rails: &mut Rails<F::Rail>, asks: bool) -> Option<Paths> {
        let first = rails.shared.as_mut()?.join(0)?;
        let now = self.host.now();
        let mutant = self.params.mutant;
        let path = |(at, &(rail, nic)): (usize, &(usize, usize))| {
            let (link, life) = match at {
                0 => (first, LinkLife::first(asks, now, mutant)),
                _ => (NO_LINK, LinkLife::further(asks, now, mutant)),
            };
            Path { rail, link, nic, life, leaving: None, proof: Proof::None }
        };
        let mut paths = common.slots.iter().enumerate().map(path);
        let first = paths.next()?;
        Some(Paths::new(first, paths.collect()))
    }

    /// Who was to ride on the links of a group finds no mailbox.
    pub(crate) fn quit_unseated(&self, paths: &Paths, rails: &mut Rails<F::Rail>) {
        if self.params.mutant.is("ride-ends-links-for-want-of-a-mailbox") {
            paths.fail(rails);
        }
        paths.destroy(rails);
    }

    /// Opens a sending comm where it belongs.
    pub(crate) fn seat_sender(
        &self,
        control: &mut Control<H, F::Rail>,
        open: Open,
        made: Made<F::Rail>,
        reply: &Reply,
    ) -> Result<CommId, Error> {
        let place = open.place;
        let name = open.ends.attempt.map_or(0, SlotId::to_bits);
        let stream = open.ends.stream;
        let part = |remote: MemberId| {
            move |open: &mut Open, _: &mut Common, member: MemberId| {
                let Side::Send(lane) = &mut open.side else { return false };
                lane.joins(SendPart::of(member, remote));
                true
            }
        };
        let comm = match (made, reply.share.given, place) {
            (Made::Own(rails), Given::Created { member, .. }, Some(place)) => {
                let Side::Send(lane) = &open.side else { return Err(Error::Argument("not a sending comm")) };
                let group = Group::sending(place.group, rails, &lane.paths, lane.plan);
                let lane = self.groups.insert(group)?;
                control.riding.insert(place.group, lane);
                self.install_in(lane, open, part(member))?
            }
            (Made::Own(rails), ..) => return self.install(open, rails),
            (Made::Rider { lane, lot }, given, _) => {
                let mut open = open;
                open.lot = Some(lot);
                let Given::Joined { member, .. } = given else {
                    self.turn_away(lane, open);
                    return Err(Error::Unknown("group of queue pairs"));
                };
                self.install_in(lane, open, part(member))?
            }
        };
        control.rides(name, stream);
        Ok(comm)
    }

    /// Opens a receiving comm in the group of that lane.
    pub(crate) fn seat_receiver(
        &self,
        control: &mut Control<H, F::Rail>,
        lane: u32,
        open: Open,
    ) -> Result<CommId, Error> {
        let stream = open.ends.stream;
        let mutant = self.params.mutant;
        let comm = self.install_in(lane, open, |open, common, member| {
            let range = common.receiving.as_mut().and_then(|receiving| receiving.ranges.enter(member));
            let (Side::Recv(lane), Some(range)) = (&mut open.side, range) else { return false };
            lane.part = RecvPart::of(member, range);
            let lines = Lines::of(lane.paths.len());
            *lane.receiver = Receiver::new(mutant).in_range(range.generation, lines);
            true
        })?;
        control.rides(comm.to_bits(), stream);
        Ok(comm)
    }

    fn turn_away(&self, lane: u32, open: Open) {
        if let Some(group) = self.groups.claim_lane(lane).as_mut() {
            group.turn_away(open);
        }
    }

    fn install_in(
        &self,
        lane: u32,
        open: Open,
        part: impl FnOnce(&mut Open, &mut Common, MemberId) -> bool,
    ) -> Result<CommId, Error> {
        let reserved = match self.comms.reserve(&self.status) {
            Ok(reserved) => reserved,
            Err(error) => {
                self.turn_away(lane, open);
                return Err(error);
            }
        };
        let id = self.comms.insert(reserved, open, self.host.now(), &self.status, |open| {
            let mut held = self.groups.claim_lane(lane);
            let full = Error::Exhausted { what: "members of a group", limit: MEMBERS_OF_GROUP_MAX };
            let peer = open.peer.process;
            let member = held.as_mut().and_then(|group| group.enter(open, part)).ok_or(full)?;
            if let Some((common, rails)) = held.as_mut().and_then(Group::common) {
                self.status.show_group(lane, peer, common, rails);
            }
            Ok(Seat::of(lane, member))
        })?;
        self.status.add(Tally::CommsOpened, 1);
        self.show_usage();
        Ok(id)
    }

    /// A seat in the pool is of no use any more; with the last one of a group go its queue pairs.
    pub(crate) fn leave_pool(&self, control: &mut Control<H, F::Rail>, place: Place) {
        let Ok(Left::Last(_)) = control.pool.leave(place.seat) else { return };
        if let Some(lane) = control.riding.remove(&place.group) {
            self.end_group(lane);
            self.show_usage();
        }
        control.pool.destroyed(place.group);
    }

    /// The queue pairs of a group go.
    pub(crate) fn end_group(&self, lane: u32) {
        let mut held = self.groups.claim_lane(lane);
        if let Some(group) = held.as_mut() {
            group.destroy();
            if let Some((common, _)) = group.common() {
                self.status.hide_group(lane, common);
                self.status.add(Tally::CompletionsDropped, common.dropped);
            }
        }
        drop(self.groups.remove(lane, held));
    }

    /// Groups whose links have ended take nobody any more.
    pub(crate) fn tell_of_broken(&self, control: &mut Control<H, F::Rail>) {
        if !self.has_broken.swap(false, Ordering::Acquire) {
            return;
        }
        for group in self.broken.lock().drain(..) {
            let members = control.pool.on_broken(group).len();
            let text = format!("a group of shared queue pairs has ended, with {members} connections on it");
            self.host.log(Level::Warn, &text);
        }
    }

    /// After a turn of a member: what others of its group have failed of is told, and that its links have ended.
    pub(crate) fn tell_neighbours(&self, slot: &Comm, turn: &mut Turn<'_, F::Rail>) {
        while !turn.open.many
            && slot.news.has_some()
            && let Some((frame, _)) = slot.news.take()
        {
            let stop = matches!(frame, Frame::Stop { .. });
            turn.open.stopped |= stop && !self.params.mutant.is("ride-ignores-stop");
        }
        if turn.open.is_stopped() {
            self.end_stopped(slot, turn);
        }
        let Some(Neighbours { others, common }) = &mut turn.shared else { return };
        if !std::mem::take(&mut common.untold) {
            return;
        }
        let ended = turn.rails.shared.as_ref().is_some_and(SharedLinks::all_ended);
        if ended && !common.told && !self.params.mutant.is("ride-hides-the-end-from-the-pool") {
            common.told = true;
            self.broken.lock().push(common.id);
            self.has_broken.store(true, Ordering::Release);
        }
        for other in others.iter_mut().filter(|other| other.untold) {
            other.untold = false;
            let (Some(fault), Some(comm)) = (other.fault, self.comms.get(other.id)) else { continue };
            self.status.comm_fault(&comm.requests.row, true, fault, self.host.now());
            let over = self.nic_name(other.side.paths().leader().nic);
            let text = format!("connection with process {} over {over} failed: {fault}", other.peer.process);
            self.host.log(Level::Warn, &text);
        }
    }

    /// How comms of that end and these NICs are told apart.
    pub(crate) fn receiving_key(&self, nics: &Nics, peer: ProcessId) -> Result<Key, Error> {
        let local = nics.told().ok_or(Error::Argument("a NIC's number is too large"))?;
        Ok(Key { peer, end: End::Receiving, local, remote: nics::Nics::NONE })
    }
}
