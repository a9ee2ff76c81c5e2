//! The network of the device queues' executor over the chosen fabric: one match per call. The executor calls it; it
//! keeps no state.

use trunkline_device::{BeginOutcome, MemberNetwork, NetworkCompletion, RmaNetwork};
use trunkline_engine::rma::{HeapAddress, HeapRange, MemberRank, PutSource, RmaError};
use trunkline_ofi::OfiFabric;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_softnic::SoftFabric;
use trunkline_verbs::VerbsFabric;

use crate::fabric_job::{FabricJob, SharedJob};

/// A context of a job for the executor of device queues; one variant for each fabric.
pub enum DeviceQueueContext {
    /// Over software NICs.
    Soft(RmaNetwork<SharedJob<SoftFabric>>),
    /// Over RDMA devices.
    Verbs(RmaNetwork<SharedJob<VerbsFabric>>),
    /// Over a provider of libfabric.
    Ofi(RmaNetwork<SharedJob<OfiFabric>>),
}

/// Evaluates an expression for the network of any variant.
macro_rules! of {
    ($carrying:expr, $network:ident => $what:expr) => {
        match $carrying {
            Self::Soft($network) => $what,
            Self::Verbs($network) => $what,
            Self::Ofi($network) => $what,
        }
    };
}

impl FabricJob {
    /// Creates a context for the executor of device queues: [`RmaNetwork::new`].
    ///
    /// # Errors
    /// As [`RmaNetwork::new`].
    pub(crate) fn device_queue_context(&self) -> Result<DeviceQueueContext, RmaError> {
        Ok(match self {
            Self::Soft(job) => DeviceQueueContext::Soft(RmaNetwork::new(job.clone())?),
            Self::Verbs(job) => DeviceQueueContext::Verbs(RmaNetwork::new(job.clone())?),
            Self::Ofi(job) => DeviceQueueContext::Ofi(RmaNetwork::new(job.clone())?),
        })
    }
}

impl MemberNetwork for DeviceQueueContext {
    fn own_rank(&self) -> MemberRank {
        of!(self, network => network.own_rank())
    }

    fn can_execute_locally(&self) -> bool {
        of!(self, network => network.can_execute_locally())
    }

    #[inline]
    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        of!(self, network => network.put(cookie, to, from))
    }

    #[inline]
    fn get(&mut self, cookie: u64, from: HeapAddress, into: HeapRange) -> BeginOutcome {
        of!(self, network => network.get(cookie, from, into))
    }

    #[inline]
    fn post_atomic(
        &mut self,
        cookie: u64,
        at: HeapAddress,
        action: AtomicAction,
        fetches: bool,
    ) -> BeginOutcome {
        of!(self, network => network.post_atomic(cookie, at, action, fetches))
    }

    #[inline]
    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        of!(self, network => network.make_progress(ended))
    }

    fn send_error_word(&mut self, at: HeapAddress, value: u64) -> bool {
        of!(self, network => network.send_error_word(at, value))
    }

    fn detach_job(&mut self) {
        of!(self, network => network.detach_job());
    }

    fn poll_control_streams(&mut self) {
        of!(self, network => network.poll_control_streams());
    }

    fn is_gone(&mut self, member: MemberRank) -> bool {
        of!(self, network => network.is_gone(member))
    }
}
