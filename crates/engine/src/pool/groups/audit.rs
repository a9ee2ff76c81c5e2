//! Leak checks of the groups of an engine: whether their grants add up, and whether all are returned when no comm is a member any
//! more. Waits for each lane, and decides nothing.

use trunkline_fabric::{Host, Rail};
use trunkline_proto::pool::{GroupUsage, PoolUsage};

use super::{CHUNK, CommGroup, GroupTable, MemberSet, SharedGroup};
use crate::control::ControlPlane;
use crate::pool::member::CommSide;
use crate::pool::membership::AttemptLinks;

/// The resources in use for an engine's shared queue pairs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SharingUsage {
    /// The usage of the pool.
    pub pool: PoolUsage,
    /// Lanes that hold a group, those of comms alone included.
    pub lanes: usize,
    /// Memberships of all shared groups, of closed comms too.
    pub seats: usize,
    /// Comms that are members, as the control plane counts them.
    pub riders: usize,
    /// Attempts to connect that were not freed.
    pub attempts: usize,
    /// Completions and messages without a member, in the existing groups.
    pub dropped: u64,
    /// Each group of the pool.
    pub groups: Vec<GroupUsage>,
    /// The pipeline of the first link of each group, or comm alone.
    pub pipelines: Vec<u32>,
    /// The first group whose accounts do not balance.
    pub wrong: Option<String>,
}

impl<R: Rail> GroupTable<R> {
    /// Returns the usage of these groups, and of the control plane, which the caller has locked.
    pub(crate) fn sharing_usage<H: Host>(&self, control: &ControlPlane<H, R>) -> SharingUsage {
        let mut riding = SharingUsage {
            pool: control.pool.pool_usage(),
            groups: control.pool.group_usages().collect(),
            riders: control.riders.len(),
            attempts: control.attempts.len(),
            ..SharingUsage::default()
        };
        self.for_each_group(|lane, group| {
            let made = control.attempts.iter().filter_map(|(_, attempt)| attempt.lane.as_ref());
            let left = control.leftovers.iter().filter_map(|leftover| leftover.made.as_ref());
            let made = made.chain(left).map(|(_, made)| made);
            let asks =
                made.filter(|made| matches!(made, AttemptLinks::Rider { lane: of, .. } if *of == lane));
            group.audit_usage(lane, asks.count(), &mut riding);
        });
        riding
    }

    fn for_each_group(&self, mut look: impl FnMut(u32, &mut CommGroup<R>)) {
        for lane in 0..self.free.lock().fresh {
            let chunk = self.chunks.get(lane as usize / CHUNK);
            if chunk.and_then(std::sync::OnceLock::get).is_some()
                && let Some(group) = self.lock_lane(lane).as_mut()
            {
                look(lane, group);
            }
        }
    }
}

impl<R: Rail> CommGroup<R> {
    fn first_pipeline(&self) -> Option<u32> {
        let open = match &self.seats {
            MemberSet::Alone(open) => open,
            MemberSet::Shared(shared) => shared.members.iter().next()?,
        };
        let path = match &open.side {
            CommSide::Send(lane) => lane.paths.lead_path(),
            CommSide::Recv(lane) => lane.paths.lead_path(),
        };
        self.rails.get(path.rail).link_pipeline(path.link)
    }

    /// Adds the usage of this group; `asks` attempts have a mailbox of it.
    fn audit_usage(&mut self, lane: u32, asks: usize, riding: &mut SharingUsage) {
        riding.lanes += 1;
        riding.pipelines.extend(self.first_pipeline());
        let MemberSet::Shared(shared) = &self.seats else { return };
        let SharedGroup { members, common } = &**shared;
        riding.seats += members.len();
        riding.dropped += common.dropped;
        let mut lots = asks;
        let mut ranges = 0;
        let mut eager = 0;
        let mut slices = 0;
        for open in members.iter() {
            lots += usize::from(open.lot.is_some());
            match &open.side {
                CommSide::Send(lane) => {
                    (eager, slices) = (eager + lane.part.eager, slices + lane.part.slices)
                }
                CommSide::Recv(lane) => ranges += usize::from(lane.part.range.is_some()),
            }
        }
        let given = (
            common.slab.used_slots(),
            common.receiving.as_ref().map_or(0, |receiving| receiving.ranges.used_ranges()),
            self.rails.eager.as_ref().map_or(0, trunkline_proto::pool::credits::GroupCredits::used_credits),
            self.rails.slices.used_credits(),
        );
        let held = (lots, ranges, eager, slices);
        if given != held && riding.wrong.is_none() {
            riding.wrong = Some(format!(
                "group {lane}: mailboxes, ranges, eager credits and slices allocated {given:?}, held {held:?}"
            ));
        }
    }
}
