//! Tagged messages between the ranks of one host, of any memory: what goes from a rank to another without a NIC.
//!
//! [`Messages`] are made by all ranks of a [`World`] together. Ranks that share this one's host can be sent to; whether a rank does is not
//! asked of names but tried ([`Messages::is_near`]).
//!
//! ```
//! use trunkline::World;
//! use trunkline::messages::{Any, HostMemory, Messages};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let world = World::start()?;
//!     let mut messages = Messages::start(&world, HostMemory::new()?)?;
//!     let (rank, size) = (world.rank(), world.size());
//!     if size > 1 {
//!         messages.send((rank + 1) % size, 7, b"hello")?;
//!         let mut text = [0; 5];
//!         let got = messages.recv(Any, 7, &mut text)?;
//!         assert_eq!((got.rank, &text), ((rank + size - 1) % size, b"hello"));
//!     }
//!     messages.finish()?;
//!     Ok(world.finish()?)
//! }
//! ```
//!
//! # How bytes go
//!
//! - Up to 8 KiB they go with the message, and a send is done when it comes back.
//! - Longer ones are copied once, by the rank that can map the other's memory: a [`Buffer`] of the kind of memory that the messages were
//!   started with ([`HostMemory`], a GPU's, the [`MemfdDevice`] in a memory file) can be mapped by all ranks near. That kind may also be all private memory
//!   ([`AnyMemory::open`] with `private`), also that of [`Buffer::private`]: it is attached by XPMEM where that works, and else reached by system calls.
//!   Where both buffers can be reached either rank could copy. Whether the one that receives does ([`CopyMethod::Pull`]), or both at the same time, one message each
//!   ([`CopyMethod::Turns`]), or both by way of a stage ([`CopyMethod::Stage`], only of private memory) is learned from the messages, for each rank and size; or said,
//!   by `TRUNKLINE_NODE_COPY` (`auto`, `pull`, `turns`, `stage`) or [`Messages::choose_method`]. Handles are
//!   exported on first use, mapped once, kept as far as a budget goes, and given back when they are idle, when the memory is freed and its address
//!   seen again, or on demand.
//!   Who holds what is seen in [`Messages::list_exports`], and from outside with `trunkline top --buffers` and `trunkline info --pid`.
//! - Of a broadcast and of [`Messages::all_to_all`] all ranks read at the same time, if that can be done with the memory of all who give: the ranks decide it
//!   together, before anything moves.
//! - Between two private buffers they go through a stage that both ranks copy through at the same time.
//! - A driver that refuses costs a message the stage, is counted ([`Messages::counts`]), and fails nothing.
//!
//! # Freed memory
//!
//! GPU memory that was sent stays mapped in other processes for a while, and the driver gives it back only when the last of them unmaps it.
//! A program that starts with `LD_PRELOAD=libtrunkline_freehook.so` (`cargo xtask dist` puts it into `lib`) has it unmapped within a
//! millisecond after its free, as long as the ranks make calls of this type: the library counts the calls of `cudaFree`, `cuMemFree`,
//! `cuMemUnmap`, `cuMemRelease`, `hipFree`, `zeMemFree` and their asynchronous forms. It sees none that go to the driver by pointers of the
//! program's own, as those of a static CUDA runtime do. A program with an allocator of its own calls [`Messages::free_hook`] instead.
//!
//! # What is guaranteed
//!
//! - *Order.* Of two messages of one rank that a receive fits, it gets the one that was sent first; of two receives that fit a message, the
//!   one posted first gets it.
//! - *Length.* A message that is longer than its receive ends it with [`MessageError::Truncated`], and what fits is there. Its sender does not care.
//! - *Progress.* Messages move in calls of this type, of both ranks; no thread serves beside.
//! - *Windows* ([`Messages::window`]) are memory of all ranks that each puts to and gets from: through mappings, where the drivers of all agree, without
//!   its owner; else by messages that the owner serves in its calls.
//! - *Death.* What a rank sent whole before it died or left can be received. Everything else with it ends with [`MessageError::Gone`], never
//!   hangs.

mod buffer;
mod collective;
mod error;
mod introduction;
mod memory;
mod pattern;
mod serve;
mod start;
mod wait;
mod window;
mod window_copy;

#[cfg(feature = "fuzzing")]
pub(crate) use start::fuzzing as rank_card;
use std::sync::Arc;

use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_fabric::Host as _;
pub use trunkline_mem::ipc::{AnyMemory, HostMemory, IpcMemory, MemfdDevice, NoMemory, PrivateMemory};
pub use trunkline_node::tagged::TaggedCounts;
use trunkline_node::tagged::{
    MessageStatus, SendRefused, TaggedEndpoint, TaggedFailure, TaggedPeerId, TaggedRequestId, TaggedSendStart,
};
pub use trunkline_proto::tagged::{CopyMethod, MethodChoice};
use trunkline_proto::time::Instant;

pub use buffer::Buffer;
pub use collective::CollectiveCounts;
pub use error::MessageError;
pub use memory::{
    Driver, ExportAmount, ExportHolder, ExportState, ExportUsage, ExportedAllocation, FallbackReason,
    FreeHook, ImportedMemory, Sharing, SharingReport,
};
pub use pattern::{Any, SourceSelector, TagBits, TagSelector};
pub use start::shared_device;
pub use window::{HostWindow, MAPPED_MAX, WINDOWS_MAX, WindowCounts, WindowPlace};

use crate::world::World;
use wait::WaitRounds;
use window::WindowTable;

/// Messages inside a host. Has one owner; what is begun goes on in any of its calls.
#[derive(Debug)]
pub struct Messages<M> {
    pub(self) endpoint: TaggedEndpoint<M, UnixStream>,
    host: UnixHostClock,
    rank: usize,
    /// Which peer a rank is; `None`: itself, or one that is elsewhere.
    peers: Box<[Option<TaggedPeerId>]>,
    /// Ranks of this host, this one apart: the same ones from the start on.
    near: Arc<Vec<usize>>,
    /// Which rank a peer is.
    ranks: Vec<usize>,
    /// Barriers so far.
    meetings: u64,
    rounds: WaitRounds,
    windows: WindowTable,
    together: CollectiveCounts,
    /// A rank that was near and has died: what all do together does not end any more.
    died: Option<usize>,
}

/// The clock that the endpoint lives by.
struct UnixHostClock(UnixHost);

impl std::fmt::Debug for UnixHostClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the clock of this host")
    }
}

/// A message that was begun and whose end was not asked for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[must_use = "a message that was begun is waited for"]
pub struct Request(Option<TaggedRequestId>);

/// A message that went well.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Message {
    /// The other rank.
    pub rank: usize,
    /// Its tag.
    pub tag: u64,
    /// Its bytes.
    pub len: u64,
}

/// Tags from here on are this crate's own.
const OWN_TAGS: u64 = 1 << 63;

impl<M: IpcMemory> Messages<M> {
    /// Makes the messages of a world's ranks. All of them call it, with memory of the same kind. Of memory of GPUs it waits for no kernel that runs; short and staged messages of
    /// such memory wait until the driver has pinned the inbox.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn start(world: &World, memory: M) -> Result<Self, MessageError> {
        start::start_messages(world, memory)
    }

    /// This rank.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// All ranks of the world.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.peers.len()
    }

    /// Whether a rank can be sent to: it shares this host, and is another one.
    #[must_use]
    pub fn is_near(&self, rank: usize) -> bool {
        self.peers.get(rank).is_some_and(Option::is_some)
    }

    /// The kind of memory, to allocate and free.
    #[must_use]
    pub const fn memory(&self) -> &M {
        self.endpoint.node().memory()
    }

    /// What has been done.
    #[must_use]
    pub const fn counts(&self) -> TaggedCounts {
        self.endpoint.counts()
    }

    /// How what ranks do together has gone.
    #[must_use]
    pub const fn collective_counts(&self) -> CollectiveCounts {
        self.together
    }

    /// Who copies long messages that this rank sends from now on, of memory that the other rank reaches. At first it is what
    /// `TRUNKLINE_NODE_COPY` says, and without that learned.
    pub const fn choose_method(&mut self, choice: MethodChoice) {
        self.endpoint.set_copy_choice(choice);
    }

    /// What is kept of exported memory from now on: so many allocations, and bytes of them. What is more is given back as soon as no message uses it;
    /// with 0 everything is, after each message.
    pub fn set_export_budget(&mut self, allocations: usize, bytes: u64) {
        let budget = ExportAmount { entries: allocations, bytes };
        let node = self.endpoint.node_mut();
        node.shrink_budget(budget);
        node.grow_budget(budget);
    }

    /// Asks exported memory back until at most so many bytes are kept: for who is short of memory.
    pub fn trim_exports(&mut self, bytes: u64) {
        self.endpoint.node_mut().trim_exports(bytes);
    }

    /// Asks the allocation around an address back; whether it was exported. It is back when [`Messages::is_exported`] says no.
    pub fn release_export(&mut self, addr: usize) -> bool {
        self.endpoint.node_mut().release_export(addr)
    }

    /// Whether any of those bytes is exported, or still mapped by a rank.
    #[must_use]
    pub fn is_exported(&self, addr: usize, len: usize) -> bool {
        self.endpoint.node().is_exported(addr, len)
    }

    /// Copies bytes into a buffer of any memory.
    ///
    /// # Errors
    /// [`MessageError::Range`], [`MessageError::Failed`].
    pub fn write(&self, into: &Buffer, at: usize, bytes: &[u8]) -> Result<(), MessageError> {
        into.check_range(at, bytes.len())?;
        Ok(into.ipc_buffer().write_bytes(self.memory(), at as u64, bytes).map_err(TaggedFailure::from)?)
    }

    /// Copies bytes out of a buffer of any memory.
    ///
    /// # Errors
    /// As [`Messages::write`].
    pub fn read(&self, from: &Buffer, at: usize, into: &mut [u8]) -> Result<(), MessageError> {
        from.check_range(at, into.len())?;
        Ok(from.ipc_buffer().read_bytes(self.memory(), at as u64, into).map_err(TaggedFailure::from)?)
    }

    /// Copies all of a buffer into another one of this rank, which is as long or longer.
    ///
    /// # Errors
    /// As [`Messages::write`].
    pub fn copy(&self, from: &Buffer, into: &Buffer) -> Result<(), MessageError> {
        into.check_range(0, from.len())?;
        Ok(from.ipc_buffer().copy_into(self.memory(), into.ipc_buffer()).map_err(TaggedFailure::from)?)
    }

    fn peer_id(&self, rank: usize) -> Result<TaggedPeerId, MessageError> {
        let found = self.peers.get(rank).copied().flatten();
        found.ok_or(match rank < self.peers.len() {
            _ if rank == self.rank => MessageError::Own,
            true => MessageError::Far { rank },
            false => MessageError::NoRank { rank, size: self.peers.len() },
        })
    }

    const fn user_tag(tag: u64) -> Result<u64, MessageError> {
        if tag < OWN_TAGS { Ok(tag) } else { Err(MessageError::Tag(tag)) }
    }

    /// Sends bytes; they may be written when this comes back. More than 8 KiB are copied once more than those of a [`Buffer`], and the other rank
    /// must receive them meanwhile.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn send(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), MessageError> {
        self.send_tagged(to, Self::user_tag(tag)?, bytes)
    }

    fn send_tagged(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), MessageError> {
        if bytes.len() > EAGER_MAX {
            let buffer = Buffer::private(bytes.len())?;
            buffer.write(0, bytes)?;
            let request = self.isend_tagged(to, tag, &buffer)?;
            return self.wait(request).map(drop);
        }
        let peer = self.peer_id(to)?;
        self.wait_until(|one| {
            Ok(match one.endpoint.send_bytes(peer, tag, bytes)? {
                TaggedSendStart::Busy => None,
                TaggedSendStart::Done | TaggedSendStart::Request(_) => Some(()),
            })
        })
        .map_err(|error: MessageError| error.with_rank(to))
    }

    /// Receives the first message that fits into `into`, and says which it was.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn recv(
        &mut self,
        from: impl Into<SourceSelector>,
        tag: impl Into<TagSelector>,
        into: &mut [u8],
    ) -> Result<Message, MessageError> {
        let from = from.into();
        let bits = tag.into().check_user_tag()?;
        self.recv_tagged(from, bits, into)
    }

    fn recv_tagged(
        &mut self,
        from: SourceSelector,
        bits: TagBits,
        into: &mut [u8],
    ) -> Result<Message, MessageError> {
        let peer = self.source(from)?;
        if into.len() <= EAGER_MAX
            && let Some(taken) = self.take_short(peer, bits, into)?
        {
            return self.request_outcome(taken);
        }
        let buffer = Buffer::private(into.len())?;
        let request = self.irecv_tagged(from, bits, &buffer)?;
        let got = self.wait(request);
        let there = match &got {
            Ok(message) => message.len as usize,
            Err(MessageError::Truncated { .. }) => into.len(),
            Err(_) => 0,
        };
        buffer.read(0, into.get_mut(..there).unwrap_or_default())?;
        got
    }

    /// Waits for a message, and takes it if it is a short one. `None`: it is not.
    fn take_short(
        &mut self,
        peer: Option<TaggedPeerId>,
        bits: TagBits,
        into: &mut [u8],
    ) -> Result<Option<Result<MessageStatus, TaggedFailure>>, MessageError> {
        loop {
            if let Some(taken) = self.endpoint.take_bytes(peer, bits.tag, bits.mask, into) {
                return Ok(Some(taken));
            }
            if self.endpoint.probe(peer, bits.tag, bits.mask).is_some() {
                return Ok(None);
            }
            if peer.is_some_and(|peer| self.endpoint.is_gone(peer)) {
                return Err(MessageError::Gone { rank: peer.map(|peer| self.rank_of(peer)) });
            }
            self.progress_or_pause();
        }
    }

    /// Begins to send a buffer, which is the message's until [`wait`](Self::wait) or [`test`](Self::test) says that it is over.
    ///
    /// # Errors
    /// [`MessageError`].
    #[inline]
    pub fn isend(&mut self, to: usize, tag: u64, buffer: &Buffer) -> Result<Request, MessageError> {
        self.isend_tagged(to, Self::user_tag(tag)?, buffer)
    }

    #[inline]
    fn isend_tagged(&mut self, to: usize, tag: u64, buffer: &Buffer) -> Result<Request, MessageError> {
        self.begin_send(to, buffer, |endpoint, peer, buffer| endpoint.send(peer, tag, buffer))
    }

    #[inline]
    fn begin_send(
        &mut self,
        to: usize,
        buffer: &Buffer,
        send: impl Fn(
            &mut TaggedEndpoint<M, UnixStream>,
            TaggedPeerId,
            &trunkline_node::ipc::MessageBuffer,
        ) -> Result<TaggedSendStart, SendRefused>,
    ) -> Result<Request, MessageError> {
        let peer = self.peer_id(to)?;
        if buffer.len() > EAGER_MAX {
            // Its time may be taken, and this rank may have done something else for long.
            self.rounds.now = self.current_time();
            self.endpoint.set_time(self.rounds.now);
        }
        loop {
            match send(&mut self.endpoint, peer, buffer.ipc_buffer()) {
                Ok(TaggedSendStart::Done) => return Ok(Request(None)),
                Ok(TaggedSendStart::Request(request)) => return Ok(Request(Some(request))),
                Ok(TaggedSendStart::Busy) => self.progress_or_pause(),
                Err(error) => return Err(MessageError::from(error).with_rank(to)),
            }
        }
    }

    /// Begins to receive into a buffer, which is the message's until it is over.
    ///
    /// # Errors
    /// [`MessageError`].
    #[inline]
    pub fn irecv(
        &mut self,
        from: impl Into<SourceSelector>,
        tag: impl Into<TagSelector>,
        buffer: &Buffer,
    ) -> Result<Request, MessageError> {
        let bits = tag.into().check_user_tag()?;
        self.irecv_tagged(from.into(), bits, buffer)
    }

    #[inline]
    fn irecv_tagged(
        &mut self,
        from: SourceSelector,
        bits: TagBits,
        into: &Buffer,
    ) -> Result<Request, MessageError> {
        let peer = self.source(from)?;
        let posted = self.endpoint.receive(peer, bits.tag, bits.mask, into.ipc_buffer().clone());
        posted.map(|request| Request(Some(request))).map_err(|error| {
            let error = MessageError::from(error);
            if let SourceSelector::Rank(rank) = from { error.with_rank(rank) } else { error }
        })
    }

    fn source(&self, from: SourceSelector) -> Result<Option<TaggedPeerId>, MessageError> {
        match from {
            SourceSelector::Any => Ok(None),
            SourceSelector::Rank(rank) => self.peer_id(rank).map(Some),
        }
    }

    /// Waits until a message is over.
    ///
    /// # Errors
    /// [`MessageError`].
    #[inline]
    pub fn wait(&mut self, request: Request) -> Result<Message, MessageError> {
        loop {
            match self.poll_request(request)? {
                Some(message) => return Ok(message),
                None => self.progress_or_pause(),
            }
        }
    }

    /// Whether a message is over, after a look at what there is to do. It is asked for no more once it is.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn test(&mut self, request: Request) -> Result<Option<Message>, MessageError> {
        self.progress();
        self.poll_request(request)
    }

    #[inline]
    fn poll_request(&mut self, request: Request) -> Result<Option<Message>, MessageError> {
        let Some(request) = request.0 else { return Ok(Some(Message { rank: self.rank, tag: 0, len: 0 })) };
        match self.endpoint.test(request) {
            Some(end) => self.request_outcome(end).map(Some),
            None => Ok(None),
        }
    }

    /// Takes a receive back that no message has come for; whether it was.
    pub fn cancel(&mut self, request: Request) -> bool {
        let Some(request) = request.0 else { return false };
        // Its end is known.
        self.endpoint.cancel_receive(request) && self.endpoint.test(request).is_some()
    }

    /// The message that a receive would get now, if one has come.
    ///
    /// # Errors
    /// [`MessageError::NoRank`], [`MessageError::Far`].
    pub fn probe(
        &mut self,
        from: impl Into<SourceSelector>,
        tag: impl Into<TagSelector>,
    ) -> Result<Option<Message>, MessageError> {
        let peer = self.source(from.into())?;
        let TagBits { tag, mask } = tag.into().check_user_tag()?;
        self.progress();
        Ok(self.endpoint.probe(peer, tag, mask).map(|done| self.completed_message(&done)))
    }

    #[inline]
    fn request_outcome(&self, end: Result<MessageStatus, TaggedFailure>) -> Result<Message, MessageError> {
        match end {
            Ok(done) => Ok(self.completed_message(&done)),
            Err(TaggedFailure::Truncated { peer, tag, len, room }) => {
                Err(MessageError::Truncated { rank: self.rank_of(peer), tag, len, room })
            }
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    fn completed_message(&self, done: &MessageStatus) -> Message {
        Message { rank: self.rank_of(done.peer), tag: done.tag, len: done.len }
    }

    #[inline]
    fn rank_of(&self, peer: TaggedPeerId) -> usize {
        self.ranks.get(peer.peer_number() as usize).copied().unwrap_or(usize::MAX)
    }

    fn current_time(&self) -> Instant {
        self.host.0.now()
    }
}

/// Most bytes that go with a message.
const EAGER_MAX: usize = trunkline_proto::wire::tagged::EAGER_MAX as usize;
