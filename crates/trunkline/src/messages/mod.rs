//! Tagged messages between the ranks of one host, of any kind of memory. They use no NIC.
//!
//! All ranks of a [`World`] create [`Messages`] together. A rank can send to the ranks that share its host
//! ([`Messages::is_near`]). Which ranks do is found by connecting to them, not by comparing host names.
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
//! # How messages are transferred
//!
//! - Messages of up to 8 KiB are sent eagerly, with the envelope. Their send is complete when the call returns.
//! - Longer messages are copied once, by a rank that can map the other's memory. All near ranks can map a [`Buffer`]
//!   of the kind of memory that the messages were started with: [`HostMemory`], a GPU's memory, or the
//!   [`MemfdDevice`] in a memory file.
//! - That kind may also be all private memory ([`AnyMemory::open`] with `private`), which includes
//!   [`Buffer::private`]. It is attached by XPMEM where that works, and else accessed by system calls.
//! - Where each rank can access the other's buffer, one of three methods is used. The receiver copies
//!   ([`CopyMethod::Pull`]); both ranks copy at the same time, every other message each ([`CopyMethod::Turns`]); or
//!   both copy through a stage ([`CopyMethod::Stage`], only for private memory). The fastest method is learned from the
//!   messages, for each rank and size. `TRUNKLINE_NODE_COPY` (`auto`, `pull`, `turns`, `stage`) or
//!   [`Messages::choose_method`] fixes it.
//! - Memory is exported on first use, and mapped once. Exports are kept up to a budget. They are retired when they
//!   are idle, on demand, or when the memory was freed and its address is used again. [`Messages::list_exports`]
//!   lists them with their holders; `trunkline top --buffers` and `trunkline info --pid` show them from outside.
//! - In a broadcast and in [`Messages::all_to_all`] all ranks read at the same time, if all of them can map the
//!   memory of all senders. The ranks decide that together, before any data moves.
//! - Messages between two private buffers are copied through a stage, by both ranks at the same time.
//! - If a driver rejects an export or a mapping, the message uses the stage. [`Messages::counts`] counts such
//!   messages; they do not fail.
//!
//! # Freed memory
//!
//! GPU memory that was sent stays mapped in other processes for a while, and the driver frees it only when the last
//! of them unmaps it. A program that starts with `LD_PRELOAD=libtrunkline_freehook.so` (`cargo xtask dist` puts it
//! into `lib`) has it unmapped within a millisecond after its free, as long as the ranks make calls of this type.
//!
//! The library counts the calls of `cudaFree`, `cuMemFree`, `cuMemUnmap`, `cuMemRelease`, `hipFree`, `zeMemFree` and
//! their asynchronous forms. It misses calls through function pointers of the program, as those of a static CUDA
//! runtime. A program with an allocator of its own calls [`Messages::free_hook`] instead.
//!
//! # Guarantees
//!
//! - *Order.* A receive that matches several messages of one rank gets the one that was sent first. A message that
//!   matches several receives completes the one that was posted first.
//! - *Length.* A message that is longer than its receive completes it with [`MessageError::Truncated`]; the receive
//!   buffer contains the part that fits. The send succeeds.
//! - *Progress.* Messages advance in calls of this type, of both ranks. No thread serves them in the background.
//! - *Windows* ([`Messages::window`]) are memory of all ranks, for puts and gets. Where the drivers of all ranks
//!   agree, a rank accesses the others' parts through mappings, without their help; else by messages that the owner
//!   serves in its calls.
//! - *Death.* Messages that a rank sent completely before it died or left can be received. All other operations with
//!   it fail with [`MessageError::Gone`]; none hangs.

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

/// The tagged messages of a rank with the other ranks of its host. It has one owner. Each call of it advances all
/// pending messages.
#[derive(Debug)]
pub struct Messages<M> {
    pub(self) endpoint: TaggedEndpoint<M, UnixStream>,
    host: UnixHostClock,
    rank: usize,
    /// The peer of each rank; `None` for this rank and for ranks on other hosts.
    peers: Box<[Option<TaggedPeerId>]>,
    /// The other ranks of this host. The list never changes.
    near: Arc<Vec<usize>>,
    /// The rank of each peer.
    ranks: Vec<usize>,
    /// The number of collective calls so far.
    meetings: u64,
    rounds: WaitRounds,
    windows: WindowTable,
    together: CollectiveCounts,
    /// A near rank that has died. Later collective calls fail instead of waiting for it.
    died: Option<usize>,
}

/// The clock of the endpoint.
struct UnixHostClock(UnixHost);

impl std::fmt::Debug for UnixHostClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the clock of this host")
    }
}

/// A send or receive that was posted and has not been waited for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[must_use = "a posted message must be waited for"]
pub struct Request(Option<TaggedRequestId>);

/// A completed message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Message {
    /// The other rank: the sender of a received message, the receiver of a sent one.
    pub rank: usize,
    /// The tag of the message.
    pub tag: u64,
    /// The length of the message in bytes.
    pub len: u64,
}

/// Tags from here on are reserved for this crate.
const OWN_TAGS: u64 = 1 << 63;

impl<M: IpcMemory> Messages<M> {
    /// Creates the messages of a world's ranks. All ranks call it, with the same kind of memory. It waits for no
    /// running kernel of a GPU. Short and staged messages of GPU memory wait until the driver has pinned the inbox.
    ///
    /// # Errors
    /// - [`MessageError::World`]: the ranks could not exchange their addresses.
    /// - [`MessageError::Absent`]: a rank of this host did not connect within 30 s.
    /// - [`MessageError::Gone`]: a rank of this host has ended.
    /// - [`MessageError::Stream`], [`MessageError::Endpoint`], [`MessageError::Buffer`]: this host has no socket or
    ///   no memory left.
    ///
    /// # Examples
    /// ```no_run
    /// use trunkline::World;
    /// use trunkline::messages::{HostMemory, Messages};
    ///
    /// let world = World::start()?;
    /// let messages = Messages::start(&world, HostMemory::new()?)?;
    /// println!("rank {} of {}", messages.rank(), messages.size());
    /// messages.finish()?; // Before the world, since its ranks may still exchange messages.
    /// world.finish()?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn start(world: &World, memory: M) -> Result<Self, MessageError> {
        start::start_messages(world, memory)
    }

    /// Returns the number of this rank.
    ///
    /// See [`Messages::is_near`] for an example.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks of the world.
    ///
    /// See [`Messages::is_near`] for an example.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.peers.len()
    }

    /// Returns whether messages can be sent to a rank: it shares this host, and is not this rank.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// let text = format!("rank {} is ready", messages.rank());
    /// for rank in 0..messages.size() {
    ///     // A send to a rank of another host, or to this rank, is an error.
    ///     if messages.is_near(rank) {
    ///         messages.send(rank, 7, text.as_bytes())?;
    ///     }
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub fn is_near(&self, rank: usize) -> bool {
        self.peers.get(rank).is_some_and(Option::is_some)
    }

    /// Returns the kind of memory of these messages, which allocates and frees buffers.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// let address = messages.memory().alloc(1 << 20)?;
    /// let buffer = Buffer::from_address(address, 1 << 20);
    /// messages.write(&buffer, 0, b"first bytes")?;
    /// messages.memory().free(address)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub const fn memory(&self) -> &M {
        self.endpoint.node().memory()
    }

    /// Returns counts of the messages so far, and of their methods.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// let counts = messages.counts();
    /// println!("{} eager, {} mapped, {} staged", counts.eager, counts.mapped, counts.staged);
    /// if counts.fallbacks > 0 {
    ///     println!("{} messages could not share memory", counts.fallbacks);
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub const fn counts(&self) -> TaggedCounts {
        self.endpoint.counts()
    }

    /// Returns counts of the collective calls so far.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// let buffer = Buffer::from_address(messages.memory().alloc(1 << 20)?, 1 << 20);
    /// messages.broadcast(0, &buffer)?;
    /// let counts = messages.collective_counts();
    /// println!("{} calls by reading, {} by separate messages", counts.read, counts.apart);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub const fn collective_counts(&self) -> CollectiveCounts {
        self.together
    }

    /// Sets the copy method of long messages that this rank sends from now on, for memory that the other rank can
    /// access. The initial method is that of `TRUNKLINE_NODE_COPY`, or learned.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Messages, PrivateMemory};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, PrivateMemory::new()?)?;
    /// use trunkline::messages::{CopyMethod, MethodChoice};
    ///
    /// // Measures the stage alone. A learned choice would try the other methods, too.
    /// messages.choose_method(MethodChoice::Fixed(CopyMethod::Stage));
    /// // ...
    /// messages.choose_method(MethodChoice::Learned);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub const fn choose_method(&mut self, choice: MethodChoice) {
        self.endpoint.set_copy_choice(choice);
    }

    /// Sets the budget of exports: at most `allocations` of them, and `bytes` in total. Exports beyond it are retired
    /// as soon as no message uses them. With 0 of either, messages export nothing.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// use trunkline::messages::ExportAmount;
    ///
    /// // Other ranks keep at most 1 GiB of this rank's memory mapped.
    /// messages.set_export_budget(64, 1 << 30);
    /// let budget = messages.sharing_report().budget;
    /// assert_eq!(budget, ExportAmount { entries: 64, bytes: 1 << 30 });
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn set_export_budget(&mut self, allocations: usize, bytes: u64) {
        let budget = ExportAmount { entries: allocations, bytes };
        let node = self.endpoint.node_mut();
        node.shrink_budget(budget);
        node.grow_budget(budget);
    }

    /// Retires exports until at most `bytes` are kept. For programs that are short of memory.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// messages.trim_exports(64 << 20);
    /// // Zombies are retired exports that other ranks still have mapped.
    /// while messages.sharing_report().usage.zombies.entries > 0 {
    ///     messages.progress();
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn trim_exports(&mut self, bytes: u64) {
        self.endpoint.node_mut().trim_exports(bytes);
    }

    /// Retires the export of the allocation around `addr`, and returns whether there was one. No rank has it mapped
    /// any more once [`Messages::is_exported`] returns false.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let address = messages.memory().alloc(1 << 20)?;
    /// messages.release_export(address);
    /// while messages.is_exported(address, 1 << 20) {
    ///     messages.progress(); // The other ranks unmap the allocation in their calls.
    /// }
    /// messages.memory().free(address)?; // The memory is available again at once.
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn release_export(&mut self, addr: usize) -> bool {
        self.endpoint.node_mut().release_export(addr)
    }

    /// Returns whether any of the bytes is exported, or still mapped by another rank.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let address = messages.memory().alloc(1 << 20)?;
    /// if messages.is_exported(address, 1 << 20) {
    ///     // Another rank may have it mapped: free it later.
    ///     messages.release_export(address);
    /// } else {
    ///     messages.memory().free(address)?;
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub fn is_exported(&self, addr: usize, len: usize) -> bool {
        self.endpoint.node().is_exported(addr, len)
    }

    /// Copies bytes into a buffer of any memory, from `at` on.
    ///
    /// # Errors
    /// [`MessageError::Range`]; [`MessageError::Failed`] if the memory cannot be written.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// let buffer = Buffer::from_address(messages.memory().alloc(4096)?, 4096);
    /// messages.write(&buffer, 0, &[7; 4096])?;
    /// messages.write(&buffer, 8, b"header")?; // Bytes 8 to 13.
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn write(&self, into: &Buffer, at: usize, bytes: &[u8]) -> Result<(), MessageError> {
        into.check_range(at, bytes.len())?;
        Ok(into.ipc_buffer().write_bytes(self.memory(), at as u64, bytes).map_err(TaggedFailure::from)?)
    }

    /// Copies bytes out of a buffer of any memory, from `at` on.
    ///
    /// # Errors
    /// As [`Messages::write`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// let buffer = Buffer::from_address(messages.memory().alloc(4096)?, 4096);
    /// messages.write(&buffer, 0, &[7; 4096])?;
    /// let mut last = [0; 2];
    /// messages.read(&buffer, 4094, &mut last)?;
    /// assert_eq!(last, [7, 7]);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn read(&self, from: &Buffer, at: usize, into: &mut [u8]) -> Result<(), MessageError> {
        from.check_range(at, into.len())?;
        Ok(from.ipc_buffer().read_bytes(self.memory(), at as u64, into).map_err(TaggedFailure::from)?)
    }

    /// Copies a whole buffer into another one of this rank, which must not be shorter.
    ///
    /// # Errors
    /// As [`Messages::write`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// let source = Buffer::private(4096)?;
    /// source.write(0, &[7; 4096])?;
    /// // Other ranks can map the target, but not the private source.
    /// let target = Buffer::from_address(messages.memory().alloc(4096)?, 4096);
    /// messages.copy(&source, &target)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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

    /// Sends bytes to a rank with a tag below 2^63. Returns when `bytes` may be changed.
    ///
    /// Up to 8 KiB are sent eagerly. Longer messages are copied once more than those of a [`Buffer`], and the call
    /// returns only after the other rank has received them.
    ///
    /// # Errors
    /// - [`MessageError::Tag`]: the tag is reserved.
    /// - [`MessageError::NoRank`], [`MessageError::Own`], [`MessageError::Far`]: the rank is out of range, is this
    ///   one, or is on another host.
    /// - [`MessageError::Gone`]: the rank has ended.
    /// - [`MessageError::Buffer`]: no memory for the copy.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// if messages.rank() == 0 {
    ///     messages.send(1, 7, b"the table is complete")?; // Tag 7.
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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

    /// Receives the first message that matches `from` and `tag` into `into`. Returns its sender, tag and length when
    /// it has arrived.
    ///
    /// # Errors
    /// - [`MessageError::Truncated`]: the message is longer than `into`, which contains its first bytes.
    /// - [`MessageError::Gone`]: the rank has ended.
    /// - [`MessageError::TooMany`]: too many receives are pending.
    /// - Otherwise as [`send`](Self::send).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// use trunkline::messages::Any;
    ///
    /// let mut bytes = [0; 256];
    /// let message = messages.recv(Any, 7, &mut bytes)?;
    /// let text = String::from_utf8_lossy(&bytes[..message.len as usize]);
    /// println!("rank {}: {text}", message.rank);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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

    /// Waits for a matching message, and receives it if it is short. Returns `None` for a long one.
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

    /// Posts a send of a buffer, and returns without waiting for the receiver. The buffer must not change until
    /// [`wait`](Self::wait) or [`test`](Self::test) reports the end of the request.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`MessageError::Outside`] if the buffer is not inside one allocation of
    /// [`memory`](Self::memory).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// let other = 1 - messages.rank(); // Of two ranks.
    /// let [from, into] = [Buffer::private(1 << 20)?, Buffer::private(1 << 20)?];
    /// let receiving = messages.irecv(other, 7, &into)?;
    /// let sending = messages.isend(other, 7, &from)?;
    /// // Both directions are transferred at the same time.
    /// messages.wait(receiving)?;
    /// messages.wait(sending)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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
            // A long message may be timed, and the last reading of the clock may be old.
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

    /// Posts a receive into a buffer, and returns without waiting for a message. The buffer must not be used until
    /// [`wait`](Self::wait) or [`test`](Self::test) reports the end of the request.
    ///
    /// # Errors
    /// [`MessageError::TooMany`], [`MessageError::Outside`], [`MessageError::Tag`], and those of the rank as in
    /// [`send`](Self::send).
    ///
    /// # Examples
    /// ```no_run
    /// # fn compute_interior() {}
    /// # fn compute_border(_: &Buffer) {}
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// let halo = Buffer::private(1 << 16)?;
    /// let receiving = messages.irecv(0, 7, &halo)?;
    /// compute_interior(); // It does not use `halo`, which the message may be changing.
    /// messages.wait(receiving)?;
    /// compute_border(&halo);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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

    /// Waits until a request has ended, and returns its message. Serves other ranks meanwhile.
    ///
    /// # Errors
    /// [`MessageError::Truncated`] of a receive; [`MessageError::Gone`] if the rank has ended;
    /// [`MessageError::Failed`] if memory could not be copied.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// let [left, right] = [Buffer::private(4096)?, Buffer::private(4096)?];
    /// let requests = [messages.irecv(1, 7, &left)?, messages.irecv(2, 7, &right)?];
    /// for request in requests {
    ///     let message = messages.wait(request)?; // The other receive advances, too.
    ///     println!("{} bytes of rank {}", message.len, message.rank);
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[inline]
    pub fn wait(&mut self, request: Request) -> Result<Message, MessageError> {
        loop {
            match self.poll_request(request)? {
                Some(message) => return Ok(message),
                None => self.progress_or_pause(),
            }
        }
    }

    /// Advances pending messages once, and returns the message if the request has ended, else `None`. A request that
    /// has ended must not be tested again.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// # Examples
    /// ```no_run
    /// # fn compute_next_block() {}
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// let into = Buffer::private(1 << 20)?;
    /// let request = messages.irecv(0, 7, &into)?;
    /// let message = loop {
    ///     match messages.test(request)? {
    ///         Some(message) => break message,
    ///         None => compute_next_block(),
    ///     }
    /// };
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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

    /// Cancels a receive, and returns whether it was cancelled: a receive that has matched a message is not.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// use trunkline::messages::Any;
    ///
    /// let into = Buffer::private(4096)?;
    /// let request = messages.irecv(Any, 7, &into)?;
    /// // ... until no further message is expected.
    /// if !messages.cancel(request) {
    ///     messages.wait(request)?; // A message had matched it before.
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn cancel(&mut self, request: Request) -> bool {
        let Some(request) = request.0 else { return false };
        // The request has ended as cancelled; testing it frees its slot.
        self.endpoint.cancel_receive(request) && self.endpoint.test(request).is_some()
    }

    /// Returns the message that a receive would match now, without receiving it. Returns `None` if none has arrived.
    ///
    /// # Errors
    /// [`MessageError::NoRank`], [`MessageError::Own`], [`MessageError::Far`], [`MessageError::Tag`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// use trunkline::messages::Any;
    ///
    /// if let Some(message) = messages.probe(Any, 7)? {
    ///     let mut bytes = vec![0; message.len as usize];
    ///     // Of that rank: the next message of another rank may be longer.
    ///     messages.recv(message.rank, message.tag, &mut bytes)?;
    /// }
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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

/// The largest message in bytes that is sent eagerly.
const EAGER_MAX: usize = trunkline_proto::wire::tagged::EAGER_MAX as usize;
