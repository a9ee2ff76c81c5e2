//! An open NIC port: its links and one completion queue, with one owner at a time. The engine calls it while it holds its lane's lock. No method
//! blocks, spins, logs or (after set-up) allocates.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_proto::time::Duration;

use crate::{Caps, Completion, CqId, LinkError, MemoryRegistrar, Op, PassedFd, PostError};

/// A reliable connection from a rail to one remote rail, by its number on this rail.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LinkId(pub u32);

/// The order in which posted receives are filled by sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecvOrder {
    /// The receive that was posted first is filled first.
    Posted,
    /// Any order: the owner treats all posted receives alike. A NIC that can choose fills the receive that was posted last. Its memory was used last, so
    /// the NIC keeps touching the same few buffers and the others stay untouched.
    Any,
}

/// The parameters with which the owner opens a rail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RailConfig {
    /// Operations that may be outstanding on a link.
    pub depth: u32,
    /// Posted receives a link may hold.
    pub recv_depth: u32,
    /// The order in which those receives are filled.
    pub recv_order: RecvOrder,
    /// Links this rail will have.
    pub links: u32,
    /// How long a peer may be stopped inside a copy before that is an error.
    pub peer_time: Duration,
    /// How long the network may leave a link without a response before [`LinkControl::check_link`] reports an error.
    /// A silent peer is a different case: the peer counts as reachable while the network acknowledges for it.
    pub rail_time: Duration,
    /// This end of its connections receives their messages; its own sends and writes are records.
    pub receives: bool,
    /// The traffic class that the connections' communicator requests. A class that is configured for the whole fabric has precedence.
    pub traffic_class: Option<u8>,
    /// All links are needed. A NIC whose immediates have no room for a link number then creates them nevertheless, but without
    /// [`Caps::write_data`](crate::Caps::write_data). Both ends must set it, or neither. If it is false, such a NIC has one link.
    pub many: bool,
}

/// Everything a peer needs to connect to a link; carried by the control stream.
#[derive(Debug)]
pub struct LinkAddress {
    /// The fabric's own bytes, at most [`LinkAddress::BYTES_MAX`].
    pub bytes: Vec<u8>,
    /// A descriptor to pass along, if both ends share a host. The fabric that connects to this address trusts only the descriptor's sender for the
    /// identity of the link's process.
    pub fd: Option<PassedFd>,
}

impl LinkAddress {
    /// Most bytes of an address.
    pub const BYTES_MAX: usize = 256;
}

/// The completion queue of a rail, for the links that wait for it ([`Op::Wait`](crate::Op::Wait)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CqPosition {
    /// Its name.
    pub id: CqId,
    /// Number of the completion that the next [`Rail::poll`] returns first, modulo 2^64.
    pub next: u64,
}

/// How to wait for something to happen on a rail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WaitMethod {
    /// Poll again after this long.
    After(Duration),
    /// Wait until the descriptor of [`Rail::event_descriptor`] is readable, then poll.
    Event,
}

/// Creates, connects and ends links.
pub trait LinkControl {
    /// Creates an unconnected link on the NIC's pipeline that has the fewest links of this process.
    ///
    /// # Errors
    /// [`LinkError::Exhausted`] names the limit.
    fn create_link(&mut self) -> Result<LinkId, LinkError> {
        self.create_link_on(None)
    }

    /// Creates an unconnected link on pipeline number `pipeline`, or as [`LinkControl::create_link`] without one. It cannot be changed later, because
    /// NICs that have pipelines need the number before they create a queue pair.
    ///
    /// # Errors
    /// As [`LinkControl::create_link`]; also [`LinkError::PipelineExhausted`], although others may have room, and
    /// [`LinkError::NoSuchPipeline`].
    fn create_link_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError>;

    /// The pipeline that a link is on, from 0; `None` for an unknown link.
    fn link_pipeline(&self, link: LinkId) -> Option<u32>;

    /// Returns the address that the peer needs. Each call creates its descriptor again until the peer has connected. After that the peer needs no
    /// descriptor, and the link may have closed it.
    ///
    /// # Errors
    /// When the system refuses a descriptor.
    fn link_address(&self, link: LinkId) -> Result<LinkAddress, LinkError>;

    /// Connects a link to the peer's. Both directions carry work as soon as both ends have connected. Receives may be posted
    /// before.
    ///
    /// # Errors
    /// [`LinkError`]; afterwards the link can only be passed to [`LinkControl::destroy_link`].
    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError>;

    /// Whether operations posted on a connected link can be sent, as far as this side knows. Links that have to be
    /// dialled are connected some time after [`LinkControl::connect`]; repeated calls drive that. Operations posted
    /// before are queued.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`] if the peer cannot be reached after all; the link can then only be passed to
    /// [`LinkControl::destroy_link`].
    fn poll_link_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        let _ = link;
        Ok(true)
    }

    /// Checks whether the network still carries a link. For owners that have work outstanding on it, or wait for it. They call it periodically, about
    /// as often as [`RailConfig::rail_time`] requires, and not per message. The first call that finds a link unanswered for that time may only suspect it.
    ///
    /// # Errors
    /// The link carries nothing more, or is in error. It can only be passed to [`LinkControl::fail_link`] and
    /// [`LinkControl::destroy_link`].
    fn check_link(&mut self, link: LinkId) -> Result<(), LinkError> {
        let _ = link;
        Ok(())
    }

    /// Whether polling a connected link costs a system call, so that speculative polls are not worthwhile.
    fn poll_is_call(&self, link: LinkId) -> bool {
        let _ = link;
        false
    }

    /// Largest write or send of registered memory, in bytes, whose payload is copied when it leaves ([`Rail::unsent_ops`]). Its source may be reused
    /// from then on, before the operation completes. Known once the link is connected; 0 means no such promise.
    fn copied_max(&self, link: LinkId) -> u64 {
        let _ = link;
        0
    }

    /// Frees memory of a link that has been idle for a while; the next work allocates it again. Returns whether the owner may also discard the pages of
    /// the receives that are posted: no bytes have arrived in them, completed or not, and the NIC resolves their pages only when a message arrives.
    fn trim_idle_memory(&mut self, link: LinkId) -> bool {
        let _ = link;
        false
    }

    /// Puts a link into error: its posted operations (but for [`Op::Flush`]) complete as flushed, and the peer places nothing more
    /// here.
    fn fail_link(&mut self, link: LinkId);

    /// Whether a link that was put into error, by [`LinkControl::fail_link`] or by itself, has drained. That means
    /// three things; polling drives them:
    ///
    /// - Everything that had arrived was executed and has completed.
    /// - All posted operations have completed, except flushes that were posted since.
    /// - No write of the peer is placed any more.
    ///
    /// True for an unknown link.
    fn poll_link_quiet(&mut self, link: LinkId) -> bool;

    /// Ends a link and discards its completions. No write of the peer is placed after this returns.
    fn destroy_link(&mut self, link: LinkId);
}

/// Posting and polling.
pub trait Rail: LinkControl + Send + 'static {
    /// Guarantees and limits.
    fn caps(&self) -> &Caps;

    /// Registers memory for this rail; may be called while another thread owns the rail.
    fn registrar(&self) -> Arc<dyn MemoryRegistrar>;

    /// Operations (receives apart) that can be posted on the link now without `Busy`.
    fn post_credits(&self, link: LinkId) -> u32;

    /// Posts one operation. Signalled ones complete with `wr_id`; others only if they fail.
    ///
    /// # Errors
    /// [`PostError::Busy`]: nothing was accepted, post again after a poll. [`PostError::Refused`]: the operation can never be posted on this link.
    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError>;

    /// Cancels the matched operation, send or receive, that was posted on a link as `wr_id`. Returns true if it was cancelled: it never completes, its
    /// memory is not touched any more, and its slot in the queue is free. Returns false if there is none, or if it was already paired; it then completes
    /// as if it had not been cancelled.
    ///
    /// A send that was already paired with a cancelled receive completes successfully, and its bytes are dropped. The same may happen to a send of the
    /// same key that is posted before the peer's NIC has learned of the cancellation.
    fn take_back(&mut self, link: LinkId, wr_id: u64) -> bool {
        let _ = (link, wr_id);
        false
    }

    /// Hands the posted operations to the network: one doorbell or one system call.
    fn flush(&mut self);

    /// Returns how many of the operations posted last on a link, not counting receives and matched sends, have not left. They wait for
    /// [`Rail::flush`] or [`Rail::poll`], either of which hands them to the network, or for room there.
    fn unsent_ops(&self, link: LinkId) -> u32 {
        let _ = link;
        0
    }

    /// Makes progress, as [`Rail::flush`] does too, and fills `out` from the front with completions; returns their number.
    fn poll(&mut self, out: &mut [Completion]) -> usize;

    /// The position that an [`Op::Wait`] needs to wait for this rail; `None` without [`Caps::wait`].
    fn cq_position(&self) -> Option<CqPosition> {
        None
    }

    /// Prepares a wait after a poll that returned nothing, and returns how to wait. Links that other threads connect, and work that they post, do not
    /// end the wait, so it needs a time limit.
    fn arm_wait(&mut self) -> WaitMethod;

    /// The descriptor to wait for once [`Rail::arm_wait`] has returned [`WaitMethod::Event`]. It stays valid after the rail is closed, and waiters
    /// never read from it.
    fn event_descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}
