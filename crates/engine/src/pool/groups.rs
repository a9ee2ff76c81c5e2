//! Groups: rails with their links, and the comms that ride on them, each a member. A group is what one thread at a time
//! uses; its table gives each a lane. Knows who is where, and nothing of messages.

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

/// Where a comm is: which lane, and which member of the group there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MemberLocation {
    pub(crate) lane: u32,
    /// As bits; 0 where there are no others.
    member: u32,
}

impl MemberLocation {
    /// That of a comm that shares nothing.
    pub(crate) const fn of_single_comm(lane: u32) -> Self {
        Self { lane, member: 0 }
    }

    /// That of a member.
    pub(crate) const fn of_member(lane: u32, member: MemberId) -> Self {
        Self { lane, member: member.to_bits() }
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { lane: bits as u32, member: (bits >> 32) as u32 }
    }

    /// Which member.
    pub(crate) const fn member_id(self) -> Option<MemberId> {
        MemberId::from_bits(self.member)
    }

    /// Which lane, if others may have seats there too.
    pub(crate) fn shared_lane(self) -> Option<u32> {
        (self.member != 0).then_some(self.lane)
    }

    #[inline]
    pub(crate) const fn to_bits(self) -> u64 {
        self.lane as u64 | (self.member as u64) << 32
    }
}

/// One group.
pub(crate) struct CommGroup<R: Rail> {
    rails: GroupRails<R>,
    seats: MemberSet,
    /// Where the rails put completions; here, because to make it anew for each poll costs more than most polls.
    batch: CompletionBatch,
}

/// Who rides on the links of a group.
#[expect(clippy::large_enum_variant, reason = "most groups are of one comm, which is reached on every call")]
enum MemberSet {
    /// One comm, and never another one.
    Alone(OpenComm),
    /// Any number of them.
    Shared(Box<SharedGroup>),
}

struct SharedGroup {
    /// Each apart, because they are large and their places are used again late.
    members: GroupMembers<Box<OpenComm>>,
    common: GroupResources,
}

/// What the members of a group have in common besides its rails.
pub(crate) struct GroupResources {
    /// What the pool calls the group.
    pub(crate) id: GroupId,
    /// The rail and NIC of each link of a member.
    pub(crate) slots: Vec<(usize, usize)>,
    /// What both ends agreed on when the group was made.
    pub(crate) plan: TransferPlan,
    /// Where the mailboxes of members lie.
    slab: MailboxSlab,
    /// At the receiving end.
    pub(crate) receiving: Option<ReceiverResources>,
    /// The pool knows that all links have ended.
    pub(crate) told: bool,
    /// Members have failed whose owners did not call since.
    pub(crate) untold: bool,
    /// Completions that were another member's than the one whose turn it was.
    pub(crate) routed: u64,
    /// Operations that had been posted when the pool last asked.
    weighed: u64,
    /// Completions and messages that were nobody's.
    pub(crate) dropped: u64,
    /// What others see of it.
    pub(crate) shown: GroupDisplay,
}

/// What only the receiving end of a group has.
pub(crate) struct ReceiverResources {
    pub(crate) ranges: TokenRanges,
    pub(crate) bounces: Arc<BounceBuffers>,
}

/// What a member works with: itself, and what it shares with the others.
pub(crate) struct LockedMember<'a, R: Rail> {
    pub(crate) open: &'a mut OpenComm,
    pub(crate) rails: &'a mut GroupRails<R>,
    pub(crate) batch: &'a mut CompletionBatch,
    /// None where there can be no others.
    pub(crate) shared: Option<GroupContext<'a>>,
}

/// The others of a group, and what they have in common.
pub(crate) struct GroupContext<'a> {
    pub(crate) others: &'a mut OtherMembers<Box<OpenComm>>,
    pub(crate) common: &'a mut GroupResources,
}

impl<R: Rail> CommGroup<R> {
    /// Of one comm that shares nothing.
    pub(crate) fn of_single_comm(rails: GroupRails<R>, open: OpenComm) -> Self {
        Self { rails, seats: MemberSet::Alone(open), batch: no_batch() }
    }

    /// A group that sends, and has no members yet.
    pub(crate) fn new_sending(
        id: GroupId,
        mut rails: GroupRails<R>,
        paths: &CommPaths,
        plan: TransferPlan,
    ) -> Self {
        rails.eager = Some(GroupCredits::new(plan.eager_credits));
        Self::new_shared(
            rails,
            paths,
            GroupResources::new(id, slots_of(paths), plan, MEMBER_MAILBOX_BYTES, None),
        )
    }

    /// A group that receives, and has no members yet.
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
        shared.add_link(0, first.rail, first.link);
        rails.shared = Some(shared);
        let members = GroupMembers::new();
        Self { rails, seats: MemberSet::Shared(Box::new(SharedGroup { members, common })), batch: no_batch() }
    }

    /// What members have in common, and the rails; `None` where there is one comm alone.
    pub(crate) fn shared_resources(&mut self) -> Option<(&mut GroupResources, &mut GroupRails<R>)> {
        match &mut self.seats {
            MemberSet::Alone(_) => None,
            MemberSet::Shared(shared) => Some((&mut shared.common, &mut self.rails)),
        }
    }

    /// A comm comes; its lane is given its part in the group by `part`.
    pub(crate) fn add_member(
        &mut self,
        open: OpenComm,
        part: impl FnOnce(&mut OpenComm, &mut GroupResources, MemberId) -> bool,
    ) -> Option<MemberId> {
        let MemberSet::Shared(shared) = &mut self.seats else { return None };
        let SharedGroup { members, common } = &mut **shared;
        let member = match members.add_member(Box::new(open)) {
            Ok(member) => member,
            Err(open) => {
                self.reject_member(*open);
                return None;
            }
        };
        let fits = members.split_member(member.to_bits()).is_some_and(|(open, _)| {
            open.member = member.to_bits();
            part(open, common, member)
        });
        if !fits {
            if let Some(open) = members.remove_member(member) {
                self.reject_member(*open);
            }
            return None;
        }
        self.rails.slices.add_member();
        if let Some(eager) = &mut self.rails.eager {
            eager.add_member();
        }
        common.show_members(members.len(), &self.rails);
        Some(member)
    }

    /// Operations posted since the last call; nothing of a comm alone.
    pub(crate) fn take_load(&mut self) -> Option<u64> {
        let posts = self.rails.posts;
        let (common, _) = self.shared_resources()?;
        Some(posts - std::mem::replace(&mut common.weighed, posts))
    }

    /// What was to be a member finds no seat; nothing was posted for it.
    pub(crate) fn reject_member(&mut self, mut open: OpenComm) {
        let MemberSet::Shared(shared) = &mut self.seats else { return };
        if let Some(lot) = open.lot {
            shared.common.slab.free_slot(lot);
        }
        open.side.paths_mut().release_links(&mut self.rails);
    }

    /// A member goes, and nothing that it or its peer has posted for it can land any more. What it had is for others.
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
        open.side.paths_mut().release_links(&mut self.rails);
        match open.side {
            CommSide::Send(lane) => {
                self.rails.slices.return_credits(lane.part.slices);
                if let Some(eager) = &mut self.rails.eager {
                    eager.return_credits(lane.part.eager);
                }
            }
            CommSide::Recv(lane) => {
                common.dropped += lane.dropped;
                if let (Some(receiving), Some(range)) = (&mut common.receiving, lane.part.range) {
                    receiving.ranges.release_range(range);
                }
            }
        }
        common.show_members(members.len(), &self.rails);
    }

    /// A mailbox for one more member.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(crate) fn take_mailbox(&mut self) -> Result<(SlabSlot, MailboxPiece), RegisterError> {
        match &mut self.seats {
            MemberSet::Shared(shared) => shared.common.take_mailbox(&self.rails),
            MemberSet::Alone(_) => Err(RegisterError::Exhausted(0)),
        }
    }

    /// Posts the bounce buffers of a group that is new, by its first member's lane.
    pub(crate) fn post_bounces(&mut self, lane: &mut RecvLane) -> Result<(), CommFault> {
        lane.post_bounces(&mut self.rails, 0)
    }

    /// Ends the links that members ride on.
    pub(crate) fn destroy_links(&mut self) {
        self.rails.destroy_all();
    }

    /// The turn of the comm of that name, if it has that seat: another one may have come before the lane was claimed.
    #[inline]
    pub(crate) fn locked_member_of(
        &mut self,
        seat: MemberLocation,
        id: CommId,
    ) -> Option<LockedMember<'_, R>> {
        let Self { rails, seats, batch } = self;
        match seats {
            MemberSet::Alone(open) if open.id == id => {
                Some(LockedMember { open, rails, batch, shared: None })
            }
            MemberSet::Alone(_) => None,
            MemberSet::Shared(shared) => {
                let SharedGroup { members, common } = &mut **shared;
                let (open, others) = members.split_member(seat.member)?;
                let shared = Some(GroupContext { others, common });
                if open.id == id { Some(LockedMember { open, rails, batch, shared }) } else { None }
            }
        }
    }

    /// The turn of who has that seat.
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

    /// A mailbox for one more member.
    pub(crate) fn take_mailbox(
        &mut self,
        rails: &GroupRails<impl Rail>,
    ) -> Result<(SlabSlot, MailboxPiece), RegisterError> {
        self.slab.take_slot(rails)
    }

    /// A mailbox that was of no use.
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

/// What a lane holds.
type GroupLock<R> = OwnerLock<Option<CommGroup<R>>>;

/// A lane that was claimed.
pub(crate) type GroupGuard<'a, R> = Guard<'a, Option<CommGroup<R>>>;

/// All groups of an engine.
pub(crate) struct GroupTable<R: Rail> {
    /// Made as they are needed, some at a time: most processes have few.
    chunks: Box<[OnceLock<GroupChunk<R>>]>,
    free: SpinMutex<FreeGroups>,
    /// Of seats that nobody ever had; holds no group.
    nowhere: GroupLock<R>,
}

/// Lanes that are made at a time.
const CHUNK: usize = 8;

/// So many of them.
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

    /// The group of a seat, unless somebody has it or waits for it.
    #[inline]
    pub(crate) fn try_lock_group(&self, seat: MemberLocation) -> Option<GroupGuard<'_, R>> {
        self.group_lock(seat).try_lock()
    }

    /// The group of a seat, when it is free.
    pub(crate) fn lock_group(&self, seat: MemberLocation) -> GroupGuard<'_, R> {
        self.group_lock(seat).lock()
    }

    /// The lane of a seat. There is one for each that a comm ever had.
    #[inline]
    fn group_lock(&self, seat: MemberLocation) -> &GroupLock<R> {
        let chunk = seat.lane as usize / CHUNK;
        let at = seat.lane as usize % CHUNK;
        self.chunks.get(chunk).and_then(OnceLock::get).map_or(&self.nowhere, |chunk| &chunk[at])
    }

    /// The group in that lane, when it is free.
    pub(crate) fn lock_lane(&self, lane: u32) -> GroupGuard<'_, R> {
        self.lock_group(MemberLocation::of_single_comm(lane))
    }

    /// A lane for a group, not one that exists.
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
            let lanes = lanes.inspect_err(|_| self.free.lock().used.push(index))?;
            // Another thread may have made them meanwhile, and another one's are as good.
            let _ = chunk.set(lanes);
        }
        *self.lock_lane(index) = Some(group);
        Ok(index)
    }

    /// A lane's group is gone.
    pub(crate) fn remove(&self, lane: u32, mut held: GroupGuard<'_, R>) -> Option<CommGroup<R>> {
        let group = held.take();
        drop(held);
        if group.is_some() {
            self.free.lock().used.push(lane);
        }
        group
    }
}
