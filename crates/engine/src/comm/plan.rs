//! The transfer plan of a comm, decided once from the capabilities of both NICs. The data path reads its fields and queries no
//! NIC.

use trunkline_fabric::{Caps, DeviceReach};
use trunkline_proto::limits::{
    EAGER_CREDITS_MAX, MAILBOX_SLOTS, MEMBERS_OF_GROUP_MAX, RECV_BUFFERS_MAX, SLICE_MAX, SLICES_MAX,
    STRIPES_MAX, whole_lines,
};
use trunkline_proto::wire::share;

use crate::comm::outgoing::FinDue;
use crate::{EngineParams, MatchBy};

/// The size up to which a NIC that pairs messages must accept them whole: the largest message of NCCL's plug-in API version 8.
const MATCHED_MESSAGE_MIN: u64 = 1 << 30;

/// Bits of a matching key: the 32 bits of a message's tag, and 8 bits of a member's name. These distinguish the member from all
/// others and from the previous user of its membership.
const MATCH_BITS_MIN: u32 = 32 + 8;

/// Returns the mask of the key bits that are left for a member's name.
const fn match_mask(bits: u32) -> u32 {
    match bits {
        0..=32 => 0,
        33..64 => (1 << (bits - 32)) - 1,
        _ => u32::MAX,
    }
}

/// Largest payload copied into an operation. It is bounded because the operation is assembled in one stack buffer.
pub(crate) const INLINE_MAX: usize = 256;

/// Bounce buffers of a link in addition to the eager messages that may be unmatched. They are needed because some must
/// stay free while matched messages are still being copied.
const COPIED_SPARE: u32 = 8;

/// Receives of a link that no eager message can hold, where immediates consume receives. One of them would let every immediate
/// arrive eventually, even if all eager messages wait for receives that the caller posts only afterwards. This many let the
/// slices of a group arrive concurrently, without RNR retries by the NIC.
const IMMEDIATES_SPARE: u32 = SLICES_MAX;

/// A comm's plan.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TransferPlan {
    /// The NIC pairs sends and receives.
    pub(crate) matched: bool,
    /// The bits of a member's name that the NIC compares in addition to the message's tag.
    pub(crate) match_mask: u32,
    /// The receiver's NIC reports the length of a write.
    pub(crate) remote_len: bool,
    /// A completed operation has arrived at the target.
    pub(crate) arrives: bool,
    /// A write may carry an immediate. Without that, only messages notify the receiver.
    pub(crate) write_data: bool,
    /// A receive is followed by a flush before its bytes may be read.
    pub(crate) needs_flush: bool,
    /// Memory of devices that may be registered.
    pub(crate) devices: DeviceReach,
    /// All operations are posted on one link, which keeps their order.
    pub(crate) link_order: bool,
    /// Small operations are signalled too, because order alone does not show when they are complete.
    pub(crate) signal_all: bool,
    /// Largest payload that is copied into the operation.
    pub(crate) inline_max: u64,
    /// Largest payload that is copied when its operation is sent; known once the link is connected.
    pub(crate) copied_max: u64,
    /// Largest message that is sent eagerly without a check for a new record of its receive.
    pub(crate) blind_max: u64,
    /// Largest single operation.
    pub(crate) message_max: u64,
    /// Fewest bytes of a piece of a message that is spread over several links.
    pub(crate) stripe_min: u64,
    /// Whether such a message is spread over several links of one rail too.
    pub(crate) split: bool,
    /// Largest eager payload.
    pub(crate) eager_max: u32,
    /// Eager messages the sender may have unmatched.
    pub(crate) eager_credits: u32,
    /// Bounce buffers of the receiver on each link; also for immediates that take receives.
    pub(crate) bounces: u32,
    /// Most receives that can be posted on a link.
    depth_max: u32,
    /// Matched sends, and matched receives, that one member of a group may have posted. The number is bounded so that
    /// unpaired operations of one member then leave room for those of all others.
    pub(crate) matched_part: u32,
}

impl TransferPlan {
    /// Returns whether a message's memory is free once its operation has been sent.
    #[inline]
    pub(crate) fn is_copied_on_post(&self, len: u64) -> bool {
        self.copied_max > 0 && len <= self.copied_max
    }

    /// Returns when the fin record of a message of this many pieces is due, for one link. NCCL's receives are longer than most of
    /// its messages, so the record waits for completions only where nothing else shows that the bytes have arrived.
    pub(crate) fn fin_due(&self, pieces: u64) -> FinDue {
        if self.link_order {
            return FinDue::Now(0);
        }
        if self.write_data && pieces <= STRIPES_MAX as u64 {
            return FinDue::Now(pieces as u8);
        }
        if self.arrives { FinDue::Placed } else { FinDue::Proven }
    }

    /// Returns the maximum number of bytes of a slice.
    pub(crate) fn slice_max(&self) -> u64 {
        SLICE_MAX.min(self.message_max)
    }

    /// Returns whether a group can have members. Where the NIC pairs messages, each member needs room for a grouped receive.
    /// Also, an unpaired send must not have completed, because it could not be revoked then.
    pub(crate) fn can_share_links(&self) -> bool {
        !self.matched || self.arrives && self.matched_part >= RECV_BUFFERS_MAX as u32
    }

    /// Returns the factor of the queue depths of a group, compared with one comm. Where the NIC pairs messages, a group uses the
    /// full depth, and each member has a share of it.
    pub(crate) fn depth_factor(&self, group: Option<u32>) -> u32 {
        match group {
            Some(_) if self.matched => u32::MAX,
            Some(times) => times,
            None => 1,
        }
    }

    /// Returns this plan for a group whose queues are `times` as deep.
    pub(crate) fn with_depth_factor(self, times: u32) -> Self {
        let spare = self.bounces - self.eager_credits;
        let eager_credits = self.eager_credits.saturating_mul(times);
        let bounces = eager_credits.saturating_add(spare).min(self.bounces.max(self.depth_max));
        Self { eager_credits: bounces - spare, bounces, ..self }
    }

    /// Returns the plan as far as one side alone can decide it.
    pub(crate) fn new(caps: &Caps, params: &EngineParams, links: usize) -> Self {
        // Messages over different links overtake each other.
        let order = caps.link_order && links == 1;
        let paired = caps.matched && caps.match_order && links == 1 && caps.match_bits >= MATCH_BITS_MIN;
        let head = share::EAGER_BYTES as u64;
        let eager_max = u64::from(params.eager_max).min(caps.message_max.saturating_sub(head));
        // Where messages overtake each other, all that may wait for an earlier one also need buffers.
        let spare = if order { COPIED_SPARE } else { (MAILBOX_SLOTS - EAGER_CREDITS_MAX) as u32 };
        // A fin record that is a message of its own consumes a receive, too.
        let takes = caps.immediate_takes_receive || !caps.write_data;
        let immediates = if takes { IMMEDIATES_SPARE } else { 0 };
        let spare = spare + immediates;
        let room = caps.depth_max.saturating_sub(spare);
        // The CPU copies eager messages, and it cannot reach device memory. The destination of a message is known only after its
        // arrival.
        let copies = !caps.devices.reaches_any();
        let eager_max = if copies { eager_max } else { 0 };
        let eager_credits = params.eager_credits.min(EAGER_CREDITS_MAX as u32).min(room);
        Self {
            // The NIC pairs messages in order of arrival. Where they overtake each other, or are split, the engine has to pair
            // them.
            matched: paired && caps.message_max >= MATCHED_MESSAGE_MIN && params.match_by == MatchBy::Nic,
            match_mask: match_mask(caps.match_bits),
            remote_len: caps.remote_len,
            arrives: caps.arrives,
            write_data: caps.write_data,
            needs_flush: caps.needs_flush,
            devices: caps.devices,
            link_order: order,
            signal_all: !caps.link_order,
            inline_max: u64::from(caps.inline_max).min(INLINE_MAX as u64),
            copied_max: 0,
            blind_max: u64::from(caps.inline_max).min(INLINE_MAX as u64),
            message_max: whole_lines(caps.message_max),
            stripe_min: u64::from(params.stripe_min),
            split: params.split,
            eager_max: if eager_credits == 0 { 0 } else { eager_max as u32 },
            eager_credits: if eager_max == 0 { 0 } else { eager_credits },
            bounces: if eager_max.min(eager_credits.into()) > 0 { eager_credits + spare } else { immediates },
            depth_max: caps.depth_max,
            // One entry is reserved for the operation that ends a member.
            matched_part: (caps.depth_max.min(caps.completions_max) / MEMBERS_OF_GROUP_MAX as u32)
                .saturating_sub(1),
        }
    }
}
