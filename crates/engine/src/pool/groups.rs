//! Groups: rails with their links, and the comms that are their members. One thread at a time uses a group; the table gives each
//! group a lock. Knows the location of each comm, and nothing of messages.

mod audit;

use std::sync::{Arc, OnceLock};

use spin::mutex::SpinMutex;
use trunkline_fabric::{Completion, Rail, RegisterError};
use trunkline_proto::limits::MEMBER_MAILBOX_BYTES;
use trunkline_proto::pool::credits::GroupCredits;
use trunkline_proto::pool::group::GroupId;
use trunkline_proto::pool::members::{GroupMembers, OtherMembers};
use trunkline_proto::pool::ranges::TokenRanges;
use trunkline_proto::reserve::{OutOfMemory, try_filled_with};
use trunkline_proto::wire::member::MemberId;

pub use audit::SharingUsage;

use crate::comm::plan::TransferPlan;
use crate::comm::recv::{self, RecvLane};
use crate::lane::OwnerLock;
use crate::link::links::SharedLinks;
use crate::link::path::CommPaths;
use crate::link::rails::GroupRails;
use crate::memory::bounces::BounceBuffers;
use crate::memory::slab::{MailboxPiece, MailboxSlab, SlabSlot};
use crate::pool::member::{BATCH, CommSide, CompletionBatch, OpenComm};
use crate::status::groups::GroupDisplay;
use crate::sync::Guard;
use crate::{CommFault, CommId, EngineError};

/// The location of a comm: its lane, and its member id in the group there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MemberLocation {
    pub(crate) lane: u32,
    /// As bits; 0 for a comm of its own.
    member: u32,
}

impl MemberLocation {
    /// Returns the location of a comm that shares nothing.
    pub(crate) const fn of_single_comm(lane: u32) -> Self {
        Self { lane, member: 0 }
    }

    /// Returns the location of a member.
    pub(crate) const fn of_member(lane: u32, member: MemberId) -> Self {
        Self { lane, member: member.to_bits() }
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { lane: bits as u32, member: (bits >> 32) as u32 }
    }

    /// Returns the member id.
    pub(crate) const fn member_id(self) -> Option<MemberId> {
        MemberId::from_bits(self.member)
    }

    /// Returns the lane, if it may have other members.
    pub(crate) fn shared_lane(self) -> Option<u32> {
        (self.member != 0).then_some(self.lane)
    }

    #[inline]
    pub(crate) const fn to_bits(self) -> u64 {
        self.lane as u64 | (self.member as u64) << 32
    }
}

/// A group.
pub(crate) struct CommGroup<R: Rail> {
    rails: GroupRails<R>,
    seats: MemberSet,
    /// The buffer for completions; part of the group, because its initialisation costs more than most polls.
    batch: CompletionBatch,
}

/// The members of a group.
#[expect(clippy::large_enum_variant, reason = "most groups have one comm, and every call accesses it")]
enum MemberSet {
    /// Exactly one comm, for the group's whole life.
    Alone(OpenComm),
    /// Any number of them.
    Shared(Box<SharedGroup>),
}

struct SharedGroup {
    /// Boxed individually, because they are large and their slots are reused late.
    members: GroupMembers<Box<OpenComm>>,
    common: GroupResources,
}

/// The shared resources of a group, except for its rails.
pub(crate) struct GroupResources {
    /// The pool's id of the group.
    pub(crate) id: GroupId,
    /// The rail and NIC of each link of a member.
    pub(crate) slots: Vec<(usize, usize)>,
    /// The plan that both ends agreed on when the group was made.
    pub(crate) plan: TransferPlan,
    /// The mailboxes of members.
    slab: MailboxSlab,
    /// At the receiving end.
    pub(crate) receiving: Option<ReceiverResources>,
    /// The end of all links was reported to the pool.
    pub(crate) told: bool,
    /// Members have failed, and their owners have not called since.
    pub(crate) untold: bool,
    /// Completions delivered to another member than the polled one.
    pub(crate) routed: u64,
    /// Operations posted up to the last sample of the pool.
    weighed: u64,
    /// Completions and messages without a member.
    pub(crate) dropped: u64,
    /// Its row of the status page.
    pub(crate) shown: GroupDisplay,
}

/// The resources of a receiving group only.
pub(crate) struct ReceiverResources {
    pub(crate) ranges: TokenRanges,
    pub(crate) bounces: Arc<BounceBuffers>,
}

/// A member with the group's lock held: itself, and the resources that it shares.
pub(crate) struct LockedMember<'a, R: Rail> {
    pub(crate) open: &'a mut OpenComm,
    pub(crate) rails: &'a mut GroupRails<R>,
    pub(crate) batch: &'a mut CompletionBatch,
    /// `None` for a comm of its own.
    pub(crate) shared: Option<GroupContext<'a>>,
}

/// The other members of a group, and the shared resources.
pub(crate) struct GroupContext<'a> {
    pub(crate) others: &'a mut OtherMembers<Box<OpenComm>>,
    pub(crate) common: &'a mut GroupResources,
}

impl<R: Rail> CommGroup<R> {
    /// Creates the group of one comm that shares nothing.
    pub(crate) fn of_single_comm(rails: GroupRails<R>, open: OpenComm) -> Self {
        Self { rails, seats: MemberSet::Alone(open), batch: no_batch() }
    }

    /// Creates a sending group without members.
    pub(crate) fn new_sending(
        id: GroupId,
        mut rails: GroupRails<R>,
        paths: &CommPaths,
        plan: TransferPlan,
    ) -> Self {
        // Credits of all members together, because the receiver's buffers are the group's.
        rails.eager = Some(GroupCredits::new(plan.eager_credits));
        Self::new_shared(
            rails,
            paths,
            GroupResources::new(id, slots_of(paths), plan, MEMBER_MAILBOX_BYTES, None),
        )
    }

    /// Creates a receiving group without members.
    pub(crate) fn new_receiving(
        id: GroupId,
        rails: GroupRails<R>,
        paths: &CommPaths,
        plan: TransferPlan,
        bounces: Arc<BounceBuffers>,
    ) -> Self {
        let receiving = ReceiverResources { ranges: TokenRanges::new(), bounces };
        let slots = slots_of(paths);
        Self::new_shared(
            rails,
            paths,
            GroupResources::new(id, slots, plan, recv::RANGE_FINS_BYTES, Some(receiving)),
        )
    }

    fn new_shared(mut rails: GroupRails<R>, paths: &CommPaths, common: GroupResources) -> Self {
        let mut shared = SharedLinks::default();
        let first = paths.get(0);
        // Only the first link exists at creation; members request the others.
        shared.add_link(0, first.rail, first.link);
        rails.shared = Some(shared);
        let members = GroupMembers::new();
        Self { rails, seats: MemberSet::Shared(Box::new(SharedGroup { members, common })), batch: no_batch() }
    }

    /// Returns the shared resources and the rails; `None` for a comm of its own.
    pub(crate) fn shared_resources(&mut self) -> Option<(&mut GroupResources, &mut GroupRails<R>)> {
        match &mut self.seats {
            MemberSet::Alone(_) => None,
            MemberSet::Shared(shared) => Some((&mut shared.common, &mut self.rails)),
        }
    }

    /// Adds a comm as a member; `part` sets the names of its lane in the group.
    pub(crate) fn add_member(
        &mut self,
        open: OpenComm,
        part: impl FnOnce(&mut OpenComm, &mut GroupResources, MemberId) -> bool,
    ) -> Option<MemberId> {
        let MemberSet::Shared(shared) = &mut self.seats else { return None };
        let SharedGroup { members, common } = &mut **shared;
        let member = match members.add_member(Box::new(open)) {
            // The group is full. The comm is returned by the table, so that its resources can be
            // released.
            Ok(member) => member,
            Err(open) => {
                self.reject_member(*open);
                return None;
            }
        };
        let fits = members.split_member(member.to_bits()).is_some_and(|(open, _)| {
            // The names are set before `part`, which derives the lane's names from them.
            open.member = member.to_bits();
            part(open, common, member)
        });
        if !fits {
            // Undone completely, because a member without a lane would receive completions.
            if let Some(open) = members.remove_member(member) {
                self.reject_member(*open);
            }
            return None;
        }
        // The shares of all members change with their number.
        self.rails.slices.add_member();
        if let Some(eager) = &mut self.rails.eager {
            eager.add_member();
        }
        common.show_members(members.len(), &self.rails);
        Some(member)
    }

    /// Returns the number of operations posted since the last call; `None` for a comm of its own.
    pub(crate) fn take_load(&mut self) -> Option<u64> {
        let posts = self.rails.posts;
        let (common, _) = self.shared_resources()?;
        // The difference since the last sample, because the pool compares loads of one interval.
        Some(posts - std::mem::replace(&mut common.weighed, posts))
    }

    /// Drops a comm that could not become a member; nothing was posted for it.
    pub(crate) fn reject_member(&mut self, mut open: OpenComm) {
        let MemberSet::Shared(shared) = &mut self.seats else { return };
        if let Some(lot) = open.lot {
            shared.common.slab.free_slot(lot);
        }
        open.side.paths_mut().release_links(&mut self.rails);
    }

    /// Removes a member. This is safe because no operation of it or its peer can land any more, so its resources become
    /// free for other members.
    pub(crate) fn remove_member(&mut self, seat: MemberLocation) {
        let MemberSet::Shared(shared) = &mut self.seats else { return };
        let SharedGroup { members, common } = &mut **shared;
        let Some(open) = MemberId::from_bits(seat.member).and_then(|member| members.remove_member(member))
        else {
            return;
        };
        self.rails.slices.remove_member();
        if let Some(eager) = &mut self.rails.eager {
            eager.remove_member();
        }
        if let Some(lot) = open.lot {
            common.slab.free_slot(lot);
        }
        let mut open = open;
        // The last user of a link destroys its queue pair.
        open.side.paths_mut().release_links(&mut self.rails);
        match open.side {
            CommSide::Send(lane) => {
                // Credits of operations that never completed would be lost to the group.
                self.rails.slices.return_credits(lane.part.slices);
                if let Some(eager) = &mut self.rails.eager {
                    eager.return_credits(lane.part.eager);
                }
            }
            CommSide::Recv(lane) => {
                // Kept for the leak check, which sums over closed members too.
                common.dropped += lane.dropped;
                if let (Some(receiving), Some(range)) = (&mut common.receiving, lane.part.range) {
                    // The range gets a new generation, so late writes of the old member are
                    // recognised as stale.
                    receiving.ranges.release_range(range);
                }
            }
        }
        common.show_members(members.len(), &self.rails);
    }

    /// Returns a mailbox for one more member.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(crate) fn take_mailbox(&mut self) -> Result<(SlabSlot, MailboxPiece), RegisterError> {
        match &mut self.seats {
            MemberSet::Shared(shared) => shared.common.take_mailbox(&self.rails),
            MemberSet::Alone(_) => Err(RegisterError::Exhausted(0)),
        }
    }

    /// Posts the bounce buffers of a new group, by its first member's lane.
    pub(crate) fn post_bounces(&mut self, lane: &mut RecvLane) -> Result<(), CommFault> {
        lane.post_bounces(&mut self.rails, 0)
    }

    /// Destroys the links of the members.
    pub(crate) fn destroy_links(&mut self) {
        self.rails.destroy_all();
    }

    /// Returns the comm of this name as a locked member, if it still has that location, because another comm may have
    /// taken it before the lock was acquired.
    #[inline]
    pub(crate) fn locked_member_of(
        &mut self,
        seat: MemberLocation,
        id: CommId,
    ) -> Option<LockedMember<'_, R>> {
        let Self { rails, seats, batch } = self;
        match seats {
            // The id is compared, because the lane may hold another comm by now.
            MemberSet::Alone(open) if open.id == id => {
                Some(LockedMember { open, rails, batch, shared: None })
            }
            MemberSet::Alone(_) => None,
            MemberSet::Shared(shared) => {
                let SharedGroup { members, common } = &mut **shared;
                let (open, others) = members.split_member(seat.member)?;
                let shared = Some(GroupContext { others, common });
                // A member's slot may also be reused, hence the comparison.
                if open.id == id { Some(LockedMember { open, rails, batch, shared }) } else { None }
            }
        }
    }

    /// Returns the member at a location.
    #[inline]
    pub(crate) fn locked_member(&mut self, seat: MemberLocation) -> Option<LockedMember<'_, R>> {
        let Self { rails, seats, batch } = self;
        match seats {
            MemberSet::Alone(open) => Some(LockedMember { open, rails, batch, shared: None }),
            MemberSet::Shared(shared) => {
                let SharedGroup { members, common } = &mut **shared;
                let (open, others) = members.split_member(seat.member)?;
                Some(LockedMember { open, rails, batch, shared: Some(GroupContext { others, common }) })
            }
        }
    }
}

impl GroupResources {
    fn new(
        id: GroupId,
        slots: Vec<(usize, usize)>,
        plan: TransferPlan,
        bytes: usize,
        receiving: Option<ReceiverResources>,
    ) -> Self {
        Self {
            id,
            slots,
            plan,
            slab: MailboxSlab::new(bytes),
            receiving,
            told: false,
            untold: false,
            routed: 0,
            weighed: 0,
            dropped: 0,
            shown: GroupDisplay::default(),
        }
    }

    /// Returns a mailbox for one more member.
    pub(crate) fn take_mailbox(
        &mut self,
        rails: &GroupRails<impl Rail>,
    ) -> Result<(SlabSlot, MailboxPiece), RegisterError> {
        self.slab.take_slot(rails)
    }

    /// Frees a mailbox that was not used.
    pub(crate) fn free_mailbox(&mut self, lot: SlabSlot) {
        self.slab.free_slot(lot);
    }
}

fn slots_of(paths: &CommPaths) -> Vec<(usize, usize)> {
    paths.iter().map(|path| (path.rail, path.nic)).collect()
}

fn no_batch() -> CompletionBatch {
    [Completion::BLANK; BATCH]
}

/// The contents of a lane.
type GroupLock<R> = OwnerLock<Option<CommGroup<R>>>;

/// A lane whose lock is held.
pub(crate) type GroupGuard<'a, R> = Guard<'a, Option<CommGroup<R>>>;

/// All groups of an engine.
pub(crate) struct GroupTable<R: Rail> {
    /// Allocated on demand, in chunks, because most processes have few.
    chunks: Box<[OnceLock<GroupChunk<R>>]>,
    free: SpinMutex<FreeGroups>,
    /// The lane of locations that never existed; holds no group.
    nowhere: GroupLock<R>,
}

/// Lanes per chunk.
const CHUNK: usize = 8;

/// A chunk of [`CHUNK`] lanes.
type GroupChunk<R> = Box<[GroupLock<R>]>;

/// Lanes without a group.
struct FreeGroups {
    fresh: u32,
    used: Vec<u32>,
}

impl<R: Rail> GroupTable<R> {
    pub(crate) fn new(limit: usize) -> Result<Self, OutOfMemory> {
        let chunks = try_filled_with(limit.div_ceil(CHUNK), OnceLock::new)?;
        let free = SpinMutex::new(FreeGroups { fresh: 0, used: Vec::new() });
        Ok(Self { chunks, free, nowhere: OwnerLock::new(None) })
    }

    /// Locks the group of a location, unless another thread holds it or waits for it.
    #[inline]
    pub(crate) fn try_lock_group(&self, seat: MemberLocation) -> Option<GroupGuard<'_, R>> {
        self.group_lock(seat).try_lock()
    }

    /// Locks the group of a location; waits for other holders.
    pub(crate) fn lock_group(&self, seat: MemberLocation) -> GroupGuard<'_, R> {
        self.group_lock(seat).lock()
    }

    /// Returns the lane of a location. It exists for each location that a comm ever had.
    #[inline]
    fn group_lock(&self, seat: MemberLocation) -> &GroupLock<R> {
        let chunk = seat.lane as usize / CHUNK;
        let at = seat.lane as usize % CHUNK;
        // An unknown lane maps to an empty one, so callers need no separate error path.
        self.chunks.get(chunk).and_then(OnceLock::get).map_or(&self.nowhere, |chunk| &chunk[at])
    }

    /// Locks the group in a lane; waits for other holders.
    pub(crate) fn lock_lane(&self, lane: u32) -> GroupGuard<'_, R> {
        self.lock_group(MemberLocation::of_single_comm(lane))
    }

    /// Puts a group into a free lane.
    pub(crate) fn insert(&self, group: CommGroup<R>) -> Result<u32, EngineError> {
        let index = {
            let mut free = self.free.lock();
            match free.used.pop() {
                Some(index) => index,
                None if (free.fresh as usize) < self.chunks.len() * CHUNK => {
                    free.fresh += 1;
                    free.fresh - 1
                }
                None => {
                    return Err(EngineError::Exhausted {
                        what: "groups of connections",
                        limit: self.chunks.len() * CHUNK,
                    });
                }
            }
        };
        let chunk = &self.chunks[index as usize / CHUNK];
        if chunk.get().is_none() {
            let lanes = try_filled_with(CHUNK, || OwnerLock::new(None));
            // The lane number is returned on error, so that it is not lost.
            let lanes = lanes.inspect_err(|_| self.free.lock().used.push(index))?;
            // If another thread has allocated the chunk meanwhile, its lanes are equivalent.
            let _ = chunk.set(lanes);
        }
        *self.lock_lane(index) = Some(group);
        Ok(index)
    }

    /// Removes the group of a lane.
    pub(crate) fn remove(&self, lane: u32, mut held: GroupGuard<'_, R>) -> Option<CommGroup<R>> {
        let group = held.take();
        // Unlocked before the number is free: the next owner must not wait for this thread.
        drop(held);
        if group.is_some() {
            self.free.lock().used.push(lane);
        }
        group
    }
}
