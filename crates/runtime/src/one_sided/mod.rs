//! One-sided operations over the chosen fabric: puts, gets, atomics and signals that wait for room and for replies, and
//! quiets. The front ends with symmetric memory (`trunkline`, `shmem`, `nvshmem`) call it, so they need no loop around
//! calls of the engine.
//!
//! A front end adds its memory ([`OneSided::add_heap`]), creates contexts ([`OneSided::create_context`]), and calls
//! them by [`OneSided::calls_on`]. A call to the own rank uses the fabric like any other, so front ends that access
//! memory by loads and stores do that before they call. Teams, symmetric objects and C interfaces are outside of this
//! module.
//!
//! The loss of a member is an error of every call that needs the member ([`RmaError::Lost`]). The failure of an earlier
//! operation is an error of one quiet ([`RmaError::Failed`]), which may be a quiet that only frees a stage.

mod context;
mod stage;
mod transfer;
mod wait;

use std::io;

use trunkline_engine::EngineParams;
use trunkline_engine::HelperThread;
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{HeapMemory, MemberRank, RmaError};
use trunkline_fabric::{DeviceReach, LogLevel};
use trunkline_proto::wire::dial::{CARD_BYTES, RemoteHeap};
use trunkline_proto::wire::rma::word::WordWidth;

pub use context::{ContextCalls, FetchSink, OneSidedContext};
pub use stage::StageLayout;
pub use transfer::{CopyFrom, CopyInto};
pub use wait::{CheckTimer, watch_memory};

use crate::fabric_job::{FabricJob, JobCarrier};
use crate::{DeviceQueueContext, FrontEnd, HardwareFabric, MembershipError, NicChoice};

/// This process's part of a job, over the chosen fabric.
pub struct OneSided {
    job: FabricJob,
    /// Whether operations of other members are executed inside of this process's calls, which do not report them.
    is_unseen: bool,
}

impl OneSided {
    /// Opens the fabric with the chosen NICs, and listens. Logs the banner of the process to the host, with the name of
    /// this front end. Returns the job, and the fabric and NICs that carry its data.
    ///
    /// # Errors
    /// [`MembershipError::NoNic`], [`MembershipError::Start`], and the errors of the fabric.
    pub fn new(
        params: EngineParams,
        hardware: HardwareFabric,
        nics: impl Into<NicChoice>,
        host: UnixHost,
        addresses: Vec<std::net::IpAddr>,
        front_end: &FrontEnd,
    ) -> Result<(Self, JobCarrier), MembershipError> {
        let (job, carrier) = FabricJob::new(params, hardware, &nics.into(), host, addresses, front_end)?;
        let is_unseen = job.works_unseen();
        Ok((Self { job, is_unseen }, carrier))
    }

    /// Returns the card by which other members connect to this process.
    #[must_use]
    pub fn process_card(&self) -> [u8; CARD_BYTES] {
        self.job.process_card()
    }

    /// Sets the members of the job by their cards. This process is number `me`.
    ///
    /// # Errors
    /// As [`RmaJob::set_members`](trunkline_engine::rma::RmaJob::set_members).
    pub fn set_members(&self, me: MemberRank, cards: &[[u8; CARD_BYTES]]) -> Result<(), RmaError> {
        self.job.set_members(me, cards)
    }

    /// Registers memory that other members access, and returns its number.
    ///
    /// # Errors
    /// As [`RmaJob::add_heap`](trunkline_engine::rma::RmaJob::add_heap).
    pub fn add_heap(&self, memory: impl Into<HeapMemory>) -> Result<u8, RmaError> {
        self.job.add_heap(memory.into())
    }

    /// Ends the registration of such memory.
    ///
    /// # Errors
    /// As [`RmaJob::remove_heap`](trunkline_engine::rma::RmaJob::remove_heap).
    pub fn remove_heap(&self, number: u8) -> Result<(), RmaError> {
        self.job.remove_heap(number)
    }

    /// Returns the descriptors by which other members access a heap of this process, by rail.
    ///
    /// # Errors
    /// As [`RmaJob::heap_descriptors`](trunkline_engine::rma::RmaJob::heap_descriptors).
    pub fn heap_descriptors(&self, number: u8) -> Result<Vec<RemoteHeap>, RmaError> {
        self.job.heap_descriptors(number)
    }

    /// Sets the descriptors of a member's heap.
    ///
    /// # Errors
    /// As [`RmaJob::set_member_heap`](trunkline_engine::rma::RmaJob::set_member_heap).
    pub fn set_member_heap(
        &self,
        member: MemberRank,
        number: u8,
        told: &[RemoteHeap],
    ) -> Result<(), RmaError> {
        self.job.set_member_heap(member, number, told)
    }

    /// Returns the kinds of device memory that all NICs in use reach.
    #[must_use]
    pub fn device_reach(&self) -> DeviceReach {
        self.job.device_reach()
    }

    /// Returns whether this process may change its own words of that width while other members execute atomics on them.
    #[must_use]
    pub fn can_execute_locally(&self, width: WordWidth) -> bool {
        self.job.can_execute_locally(width)
    }

    /// Starts a thread that serves other members for this process until it is dropped.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn serve_beside(&self) -> io::Result<HelperThread> {
        self.job.serve_beside()
    }

    /// Changes an error word of a member's heap by the control stream, which needs no link. Returns whether it was
    /// sent.
    ///
    /// # Errors
    /// As [`RmaJob::send_error_word`](trunkline_engine::rma::RmaJob::send_error_word).
    pub fn send_error_word(
        &self,
        member: MemberRank,
        heap: u8,
        offset: u64,
        value: u64,
    ) -> Result<bool, RmaError> {
        self.job.send_error_word(member, heap, offset, value)
    }

    /// Writes a line to the host's log.
    pub fn write_log(&self, level: LogLevel, text: &str) {
        self.job.log(level, text);
    }

    /// Creates a context for the executor of device queues.
    ///
    /// # Errors
    /// The engine has no room for a context.
    pub fn device_queue_context(&self) -> Result<DeviceQueueContext, RmaError> {
        self.job.device_queue_context()
    }
}
