//! The engine's one-sided job over the chosen fabric: one match per call, behind which the type of the fabric is
//! known. [`OneSided`](crate::OneSided) calls it; nothing here waits.

use std::io;
use std::sync::Arc;

use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{
    ContextId, FetchHandle, HeapMemory, HeapRange, MemberRank, PutSource, RmaError, RmaJob,
};
use trunkline_engine::{CommNics, EngineParams, HelperThread};
use trunkline_fabric::{DeviceReach, Fabric, Host as _, LogLevel, NicPort};
use trunkline_ofi::OfiFabric;
use trunkline_proto::rma::atomic::TypedAtomic;
use trunkline_proto::wire::dial::{CARD_BYTES, RemoteHeap};
use trunkline_proto::wire::rma::signal::SignalUpdate;
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};
use trunkline_softnic::SoftFabric;
use trunkline_verbs::VerbsFabric;

use crate::error::{ChooseError, MembershipError};
use crate::{FrontEnd, HardwareFabric, NicChoice, ProcessBanner, soft_config};

pub(crate) type SharedJob<F> = Arc<RmaJob<F, UnixHost>>;

/// This process's part of a job; one variant per fabric.
pub(crate) enum FabricJob {
    /// Over software NICs.
    Soft(SharedJob<SoftFabric>),
    /// Over RDMA devices.
    Verbs(SharedJob<VerbsFabric>),
    /// Over a provider of libfabric.
    Ofi(SharedJob<OfiFabric>),
}

impl FabricJob {
    /// Opens the fabric with the chosen NICs, and listens. Also returns the fabric and the NICs that carry the data.
    /// Logs the banner of the process to the host, with the name of this front end.
    ///
    /// # Errors
    /// [`MembershipError::NoNic`], [`MembershipError::Start`], and errors of the fabric.
    pub(crate) fn new(
        params: EngineParams,
        hardware: HardwareFabric,
        choice: &NicChoice,
        host: UnixHost,
        addresses: Vec<std::net::IpAddr>,
        front_end: &FrontEnd,
    ) -> Result<(Self, JobCarrier), MembershipError> {
        fn make_job<F: Fabric>(
            fabric: F,
            name: &str,
            host: UnixHost,
            params: EngineParams,
            choice: &NicChoice,
            front_end: &FrontEnd,
        ) -> Result<(SharedJob<F>, JobCarrier), MembershipError> {
            let nics = choice.resolve_nics(fabric.nics());
            let carrier = JobCarrier::from_fabric(&fabric, nics)?;
            let all = fabric.nics();
            let used: Vec<NicPort> =
                nics.numbers().iter().filter_map(|&number| all.get(number).cloned()).collect();
            let banner =
                ProcessBanner { front_end, fabric: name, nics: &used, rails: used.len(), params: &params };
            if let Some(text) = banner.text_once() {
                host.log(LogLevel::Info, &text);
            }
            let job = RmaJob::new(fabric, host, params, nics).map_err(MembershipError::Start)?;
            Ok((Arc::new(job), carrier))
        }
        Ok(match hardware {
            HardwareFabric::None | HardwareFabric::PassedOver => {
                let config = soft_config(&params, addresses);
                let fabric = SoftFabric::new(config).map_err(ChooseError::from)?;
                let (job, carrier) = make_job(fabric, "soft", host, params, choice, front_end)?;
                (Self::Soft(job), carrier)
            }
            HardwareFabric::Verbs(fabric) => {
                let (job, carrier) = make_job(fabric, "verbs", host, params, choice, front_end)?;
                (Self::Verbs(job), carrier)
            }
            HardwareFabric::Ofi(fabric) => {
                let name = format!("ofi:{}", fabric.provider_name());
                let (job, carrier) = make_job(fabric, &name, host, params, choice, front_end)?;
                (Self::Ofi(job), carrier)
            }
        })
    }

    /// Starts a thread that serves other members.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn serve_beside(&self) -> io::Result<HelperThread> {
        match self {
            Self::Soft(job) => RmaJob::serve_beside(Arc::clone(job)),
            Self::Verbs(job) => RmaJob::serve_beside(Arc::clone(job)),
            Self::Ofi(job) => RmaJob::serve_beside(Arc::clone(job)),
        }
    }

    /// Returns a counter that changes with progress: [`RmaJob::sample_progress`].
    pub(crate) fn sample_progress(&self, id: ContextId) -> Option<u64> {
        match self {
            Self::Soft(job) => job.sample_progress(Some(id)),
            Self::Verbs(job) => job.sample_progress(Some(id)),
            Self::Ofi(job) => job.sample_progress(Some(id)),
        }
    }
}

/// Forwards calls to the engine's job, each documented at the method of [`RmaJob`] with the same name.
macro_rules! forward_calls {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        impl FabricJob {$(
            #[inline]
            pub(crate) fn $name(&self $(, $argument: $type)*) $(-> $returned)? {
                match self {
                    Self::Soft(job) => job.$name($($argument),*),
                    Self::Verbs(job) => job.$name($($argument),*),
                    Self::Ofi(job) => job.$name($($argument),*),
                }
            }
        )*}
    };
}

forward_calls! {
    fn process_card() -> [u8; CARD_BYTES];
    fn set_members(me: MemberRank, cards: &[[u8; CARD_BYTES]]) -> Result<(), RmaError>;
    fn add_heap(memory: HeapMemory) -> Result<u8, RmaError>;
    fn remove_heap(number: u8) -> Result<(), RmaError>;
    fn heap_descriptors(number: u8) -> Result<Vec<RemoteHeap>, RmaError>;
    fn set_member_heap(member: MemberRank, number: u8, told: &[RemoteHeap]) -> Result<(), RmaError>;
    fn create_context() -> Result<ContextId, RmaError>;
    fn inline_max(id: ContextId) -> Result<u64, RmaError>;
    fn progress(id: ContextId) -> Result<bool, RmaError>;
    fn connect_member(id: ContextId, member: MemberRank) -> Result<bool, RmaError>;
    fn send_error_word(member: MemberRank, heap: u8, offset: u64, value: u64) -> Result<bool, RmaError>;
    fn device_reach() -> DeviceReach;
    fn log(level: LogLevel, text: &str);
    fn can_execute_locally(width: WordWidth) -> bool;
    fn works_unseen() -> bool;
    fn put(id: ContextId, member: MemberRank, heap: u8, offset: u64, from: PutSource<'_>)
        -> Result<Option<u64>, RmaError>;
    fn get(id: ContextId, member: MemberRank, heap: u8, offset: u64, into: HeapRange)
        -> Result<Option<u64>, RmaError>;
    fn post_atomic(id: ContextId, member: MemberRank, word: SymmetricWord, atomic: TypedAtomic)
        -> Result<Option<FetchHandle>, RmaError>;
    fn collect_fetch(id: ContextId, fetch: FetchHandle) -> Result<Option<u64>, RmaError>;
    fn collect_ready_fetch(id: ContextId, fetch: FetchHandle) -> Result<Option<u64>, RmaError>;
    fn give_up(id: ContextId, fetch: FetchHandle) -> Result<(), RmaError>;
    fn set_batching(id: ContextId, more: bool) -> Result<(), RmaError>;
    fn send_signal(id: ContextId, member: MemberRank, update: SignalUpdate) -> Result<bool, RmaError>;
    fn put_signal(
        id: ContextId, member: MemberRank, heap: u8, offset: u64, from: PutSource<'_>, update: SignalUpdate
    ) -> Result<bool, RmaError>;
    fn quiet(id: ContextId) -> Result<bool, RmaError>;
    fn quiet_member(id: ContextId, member: MemberRank) -> Result<bool, RmaError>;
    fn fence(id: ContextId) -> Result<(), RmaError>;
}

/// The fabric and the NICs that carry the data of a job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JobCarrier {
    /// The fabric: `soft`, `verbs` or `ofi`.
    pub fabric: &'static str,
    /// Names of the NICs in use, in order.
    pub nics: Vec<String>,
    /// The sum of their speeds, Mbit/s.
    pub speed_mbps: u32,
}

impl JobCarrier {
    fn from_fabric<F: Fabric>(fabric: &F, nics: CommNics) -> Result<Self, MembershipError> {
        let all = fabric.nics();
        let mut carrier = Self { fabric: fabric.fabric_name(), nics: Vec::new(), speed_mbps: 0 };
        for &number in nics.numbers() {
            let nic = all.get(number).ok_or(MembershipError::NoNic(number))?;
            carrier.nics.push(nic.name.clone());
            carrier.speed_mbps = carrier.speed_mbps.saturating_add(nic.speed_mbps);
        }
        Ok(carrier)
    }
}
