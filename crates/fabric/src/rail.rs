//! An open NIC port: links, one completion queue, one owner at a time. The engine calls it under its lane's claim;
//! no method blocks, spins, logs or (after set-up) allocates.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_proto::time::Duration;

use crate::{Caps, Completion, CqId, LinkError, MemoryRegistrar, Op, PassedFd, PostError};

/// A reliable connection from a rail to one remote rail, by its number on this rail.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LinkId(pub u32);

/// Which posted receive takes a send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecvOrder {
    /// The one that was posted first.
    Posted,
    /// Any: to their owner one is as good as another. A NIC that has the choice takes the one posted last, whose memory
    /// was used last, and so comes by with little of it.
    Any,
}

/// What the owner of a rail asks for when it opens it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RailConfig {
    /// Operations that may be outstanding on a link.
    pub depth: u32,
    /// Posted receives a link may hold.
    pub recv_depth: u32,
    /// Which of them takes a send.
    pub recv_order: RecvOrder,
    /// Links this rail will have.
    pub links: u32,
    /// How long a peer may be stopped inside a copy before that is an error.
    pub peer_time: Duration,
    /// How long a link may go unanswered by the network before [`LinkControl::check_link`] says so. A peer that is silent is
    /// something else: as long as the network answers for it, it is there.
    pub rail_time: Duration,
    /// This end of its connections receives their messages; what it sends by itself are records.
    pub receives: bool,
    /// The traffic class that the connections' communicator asks for; what the fabric was told for all comes first.
    pub traffic_class: Option<u8>,
    /// All links are needed. A NIC whose immediates have no room to name one of several has them all the same, and then no
    /// [`Caps::write_data`](crate::Caps::write_data); both ends are to ask for it, or none. Elsewhere it has one link.
    pub many: bool,
}

/// Everything a peer needs to connect to a link; carried by the control stream.
#[derive(Debug)]
pub struct LinkAddress {
    /// The fabric's own bytes, at most [`LinkAddress::BYTES_MAX`].
    pub bytes: Vec<u8>,
    /// A descriptor to hand over, where the two share a host. The fabric that connects to this address believes only the descriptor's sender
    /// about which process the link is of.
    pub fd: Option<PassedFd>,
}

impl LinkAddress {
    /// Most bytes of an address.
    pub const BYTES_MAX: usize = 256;
}

/// The completion queue of a rail, for those that wait for it.
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

/// Making and ending links.
pub trait LinkControl {
    /// Makes a link, not yet connected, on the pipeline of the NIC that has the fewest of this process.
    ///
    /// # Errors
    /// [`LinkError::Exhausted`] names the limit.
    fn create_link(&mut self) -> Result<LinkId, LinkError> {
        self.create_link_on(None)
    }

    /// The same, on pipeline number `pipeline`, if one is given. It is given here and cannot be changed later, because
    /// NICs that have pipelines want to know before they make a queue pair.
    ///
    /// # Errors
    /// As [`LinkControl::create_link`]; also [`LinkError::PipelineExhausted`], although others may have room, and
    /// [`LinkError::NoSuchPipeline`].
    fn create_link_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError>;

    /// The pipeline that a link is on, from 0; `None` for an unknown link.
    fn link_pipeline(&self, link: LinkId) -> Option<u32>;

    /// The address the peer must be given. Each call makes its descriptor anew, until the peer has connected; then it
    /// needs none, and the link may have closed it.
    ///
    /// # Errors
    /// When the system refuses a descriptor.
    fn link_address(&self, link: LinkId) -> Result<LinkAddress, LinkError>;

    /// Connects a link to the peer's; afterwards both directions carry work as soon as the peer did the same.
    /// Receives may be posted before.
    ///
    /// # Errors
    /// [`LinkError`]; the link is then only good for [`LinkControl::destroy_link`].
    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError>;

    /// Whether what is posted on a connected link can leave, as far as this side knows. Links that have to be dialled are
    /// up some time after [`LinkControl::connect`]; asking again drives that. What is posted before waits.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`] if the peer cannot be reached after all; the link is then only good for
    /// [`LinkControl::destroy_link`].
    fn poll_link_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        let _ = link;
        Ok(true)
    }

    /// Whether the network still carries a link. For those that have work outstanding on it, or wait for it: asked now
    /// and then, about as often as [`RailConfig::rail_time`] is to be kept to, and not for each message. The first look
    /// that finds a link unanswered for so long may only suspect it.
    ///
    /// # Errors
    /// The link carries nothing more, or is in error, and should be left: it is only good for [`LinkControl::fail_link`] and
    /// [`LinkControl::destroy_link`].
    fn check_link(&mut self, link: LinkId) -> Result<(), LinkError> {
        let _ = link;
        Ok(())
    }

    /// Whether a poll of a connected link costs a system call, so that it is not for guesses.
    fn poll_is_call(&self, link: LinkId) -> bool {
        let _ = link;
        false
    }

    /// Writes and sends of registered memory up to this many bytes have been copied once they have left
    /// ([`Rail::unsent_ops`]): then their source may be reused although they have not completed. Known once the link is
    /// connected; 0 where nothing is promised.
    fn copied_max(&self, link: LinkId) -> u64 {
        let _ = link;
        0
    }

    /// A link has had nothing to do for a while: gives back memory that it takes again with the next work. Whether the
    /// owner may do so too with the memory of the receives that are posted: nothing has come into it, told or not, and the
    /// NIC finds its pages wherever they are when something does.
    fn trim_idle_memory(&mut self, link: LinkId) -> bool {
        let _ = link;
        false
    }

    /// Puts a link into error: what is posted (but for [`Op::Flush`]) completes as flushed, and nothing more is placed
    /// here by the peer.
    fn fail_link(&mut self, link: LinkId);

    /// Whether a link that was put into error, by [`LinkControl::fail_link`] or by itself, has told all: everything that had arrived
    /// was executed and has completed, what was posted (but for flushes posted since) was given back, and nothing of the
    /// peer lands any more. Polling drives that. True for an unknown link.
    fn poll_link_quiet(&mut self, link: LinkId) -> bool;

    /// Ends a link. Its completions are gone; nothing of the peer lands any more.
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
    /// [`PostError::Busy`] takes nothing; [`PostError::Refused`] will never work on this link.
    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError>;

    /// Takes back the matched operation, send or receive, that was posted on a link as `wr_id`. True: it never completes,
    /// its memory is not touched any more, and its place in the queue is free. False: there is none, or it has met its other
    /// half and completes as if nobody had asked. A send that had met a receive which is taken back completes well, and
    /// its bytes go nowhere; so may one of the same key that is posted before the peer's NIC has heard of it.
    fn take_back(&mut self, link: LinkId, wr_id: u64) -> bool {
        let _ = (link, wr_id);
        false
    }

    /// Gives what is posted to the network: one doorbell or one system call.
    fn flush(&mut self);

    /// How many of the operations posted last on a link, receives and matched sends apart, have not left: they wait for
    /// [`Rail::flush`] or [`Rail::poll`], either of which gives them to the network, or for room there.
    fn unsent_ops(&self, link: LinkId) -> u32 {
        let _ = link;
        0
    }

    /// Makes progress, as [`Rail::flush`] does too, and fills `out` from the front with what has finished; returns how many.
    fn poll(&mut self, out: &mut [Completion]) -> usize;

    /// What an [`Op::Wait`] needs to wait for this rail; `None` without [`Caps::wait`].
    fn cq_position(&self) -> Option<CqPosition> {
        None
    }

    /// Prepares a wait after a poll that has found nothing, and returns how to wait. Links that other threads connect, and work
    /// that they post, end no wait: it needs a limit.
    fn arm_wait(&mut self) -> WaitMethod;

    /// The descriptor to wait for once [`Rail::arm_wait`] has returned [`WaitMethod::Event`]. It stays valid when the rail is closed, and is
    /// never read by who waits.
    fn event_descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}
