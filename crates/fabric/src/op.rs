//! Work that can be posted on a link. Small, `Copy`, and free of pointers to user memory.

use crate::{LocalKey, RegionPurpose, RemoteKey};

/// Bytes of a region that was registered here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RegionExtent {
    /// The region.
    pub key: LocalKey,
    /// First byte, from the start of the region.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A place in a region that the peer registered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RemoteLocation {
    /// The key that the peer has sent.
    pub key: RemoteKey,
    /// The peer's `RegionKeys::remote_base` plus the offset in its region.
    pub addr: u64,
    /// The purpose that the peer registered it for.
    pub purpose: RegionPurpose,
}

impl RemoteLocation {
    /// A place for payload.
    #[must_use]
    pub const fn for_data(key: u64, addr: u64) -> Self {
        Self { key: RemoteKey(key), addr, purpose: RegionPurpose::Data }
    }

    /// A place in a mailbox.
    #[must_use]
    pub const fn for_records(key: u64, addr: u64) -> Self {
        Self { key: RemoteKey(key), addr, purpose: RegionPurpose::Records }
    }
}

/// The source of an operation's bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OpSource<'a> {
    /// Bytes copied out before the post returns; at most `Caps::inline_max`.
    Inline(&'a [u8]),
    /// Registered memory, not to be changed before the operation completes.
    Region(RegionExtent),
}

impl OpSource<'_> {
    /// Bytes it holds.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Region(extent) => extent.len,
        }
    }

    /// Whether it holds no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The key by which a NIC pairs a matched send with a matched receive of the same link.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MatchKey(pub u64);

/// Names the completion queue of a rail, within one fabric ([`Rail::cq_position`](crate::Rail::cq_position)).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CqId(pub u64);

/// One operation. All operations are reliable; `Caps` defines their order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op<'a> {
    /// Sends `head` (inline) followed by `body` into a posted receive of the peer: the oldest, unless
    /// [`Caps::immediate_takes_receive`](crate::Caps::immediate_takes_receive) has changed their order.
    Send {
        /// First bytes, copied out before the post returns; at most `Caps::inline_max`.
        head: &'a [u8],
        /// The rest.
        body: OpSource<'a>,
        /// Delivered with the message.
        imm: Option<u32>,
    },
    /// Offers memory to the peer's next [`Op::Send`]; each completes as `CompletionKind::Received`.
    Recv {
        /// The destination of the bytes.
        into: RegionExtent,
    },
    /// Writes into the peer's memory.
    Write {
        /// The bytes.
        from: OpSource<'a>,
        /// Their destination.
        to: RemoteLocation,
        /// Only where [`Caps::write_data`](crate::Caps::write_data). If given, the peer gets a `CompletionKind::Written` once all bytes are placed; where
        /// [`Caps::immediate_takes_receive`](crate::Caps::immediate_takes_receive), once it also has a receive posted.
        imm: Option<u32>,
    },
    /// An [`Op::Write`] of payload that completes only once its bytes are placed. For callers that wait for the bytes at once (only where
    /// [`Caps::placed_writes`](crate::Caps::placed_writes)).
    PlacedWrite {
        /// The bytes.
        from: OpSource<'a>,
        /// Their destination.
        to: RemoteLocation,
        /// As of [`Op::Write`].
        imm: Option<u32>,
    },
    /// Reads the peer's memory.
    Read {
        /// The destination of the bytes.
        into: RegionExtent,
        /// Their source.
        from: RemoteLocation,
    },
    /// Adds to an aligned 8-byte word of the peer; the old value is stored at `old`.
    FetchAdd {
        /// Eight bytes for the value before.
        old: RegionExtent,
        /// The word.
        at: RemoteLocation,
        /// Added, wrapping.
        add: u64,
    },
    /// Replaces an aligned 8-byte word of the peer if it equals `expect`; the old value is stored at `old`.
    CompareSwap {
        /// Eight bytes for the value before.
        old: RegionExtent,
        /// The word.
        at: RemoteLocation,
        /// The word is replaced only if it equals this value.
        expect: u64,
        /// The new value.
        swap: u64,
    },
    /// Sends to the receive with the same key on the peer's end of this link; the first posted is paired first. The NIC
    /// holds it until that receive exists (only where `Caps::matched`). If it is longer than the receive, no bytes are transferred, and both
    /// complete as `OpStatus::TooLong`; the link stays usable.
    MatchedSend {
        /// The bytes.
        from: OpSource<'a>,
        /// Pairs it.
        key: MatchKey,
    },
    /// The other half of [`Op::MatchedSend`]; completes as `CompletionKind::Received` with the length sent.
    MatchedRecv {
        /// The destination of the bytes.
        into: RegionExtent,
        /// Pairs it.
        key: MatchKey,
    },
    /// Completes once every write that this side has seen complete on this link is visible to the CPU. It needs no
    /// peer: it works on a link in error too.
    Flush,
    /// Completes once every write of this NIC into memory of a device, which this side has seen complete, is visible to the
    /// device: a byte of that memory is read. As [`Op::Flush`], it needs no peer (only where
    /// [`DeviceReach`](crate::DeviceReach) reports such memory).
    FlushAt {
        /// A byte of the device's memory, in a region that was registered here for reads.
        at: RemoteLocation,
    },
    /// Does nothing, in order: when it completes, the operations posted before it on its link have arrived.
    Nop,
    /// Holds the operations posted after it on this link until a completion queue has produced completion number `index`.
    /// Then it completes, after the operations posted before it (only where `Caps::wait`). So the end of work on one link
    /// starts work on another, for example a count.
    ///
    /// - The queue is of a rail of this NIC, opened by this process; any other is refused. All its completions count:
    ///   signalled, received and written, successful and failed. [`CqPosition::next`](crate::CqPosition::next) is its position; numbers
    ///   wrap.
    /// - It holds nothing else: neither receives and flushes, nor other links, nor operations of the peer. A matched send is
    ///   ordered where it is paired, not where it is posted.
    /// - Once the queue has a completion in error whose number is at most `index`, or its rail is closed, the wait
    ///   ends as [`OpStatus::Flushed`](crate::OpStatus::Flushed). Its link is then in error, after the operations before it have
    ///   ended. The waiter cannot know which completions mattered. Rails that are waited for should therefore carry little,
    ///   best one link.
    /// - A NIC in software produces completions only while its rail is polled, so the owner must poll it.
    /// - A wait for a completion that never happens is not detected. [`LinkControl::fail_link`](crate::LinkControl::fail_link) ends it.
    Wait {
        /// The queue.
        cq: CqId,
        /// Number of the completion that ends it.
        index: u64,
    },
}

const _: () = assert!(size_of::<Op<'_>>() <= 72);
