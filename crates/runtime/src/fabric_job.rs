//! One-sided work over the fabric that was chosen: one match a call, behind which the fabric is known. Called by front ends with
//! symmetric memory; waits for nothing.

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
use trunkline_proto::wire::dial::{CARD_BYTES, RemoteHeap as Told};
use trunkline_proto::wire::rma::signal::SignalUpdate;
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};
use trunkline_softnic::SoftFabric;
use trunkline_verbs::VerbsFabric;

use crate::error::{ChooseError, MembershipError};
use crate::{FrontEnd, HardwareFabric, NicChoice, ProcessBanner, soft_config};

pub(crate) type SharedJob<F> = Arc<RmaJob<F, UnixHost>>;

/// A job's part of this process; one variant for each fabric.
pub enum FabricJob {
    /// Over software NICs.
    Soft(SharedJob<SoftFabric>),
    /// Over RDMA devices.
    Verbs(SharedJob<VerbsFabric>),
    /// Over what libfabric has a provider for.
    Ofi(SharedJob<OfiFabric>),
}

/// The same of whichever job it is.
macro_rules! of {
    ($running:expr, $job:ident => $what:expr) => {
        match $running {
            Self::Soft($job) => $what,
            Self::Verbs($job) => $what,
            Self::Ofi($job) => $what,
        }
    };
}

impl FabricJob {
    /// Opens the fabric and listens, with the NICs of that choice; also the fabric's name, and its NICs. The host's log gets
    /// the process's banner, as of this front end.
    ///
    /// # Errors
    /// [`MembershipError::NoNic`], [`MembershipError::Start`], and what the fabric says.
    pub fn new(
        params: EngineParams,
        hardware: HardwareFabric,
        nics: impl Into<NicChoice>,
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
        let choice = nics.into();
        Ok(match hardware {
            HardwareFabric::None | HardwareFabric::PassedOver => {
                let config = soft_config(&params, addresses);
                let fabric = SoftFabric::new(config).map_err(ChooseError::from)?;
                let (job, carrier) = make_job(fabric, "soft", host, params, &choice, front_end)?;
                (Self::Soft(job), carrier)
            }
            HardwareFabric::Verbs(fabric) => {
                let (job, carrier) = make_job(fabric, "verbs", host, params, &choice, front_end)?;
                (Self::Verbs(job), carrier)
            }
            HardwareFabric::Ofi(fabric) => {
                let name = format!("ofi:{}", fabric.provider_name());
                let (job, carrier) = make_job(fabric, &name, host, params, &choice, front_end)?;
                (Self::Ofi(job), carrier)
            }
        })
    }

    /// What other members need to reach this process: [`RmaJob::process_card`].
    pub fn process_card(&self) -> [u8; CARD_BYTES] {
        of!(self, job => job.process_card())
    }

    /// Who is in the job: [`RmaJob::set_members`].
    ///
    /// # Errors
    /// As that.
    pub fn set_members(&self, me: MemberRank, cards: &[[u8; CARD_BYTES]]) -> Result<(), RmaError> {
        of!(self, job => job.set_members(me, cards))
    }

    /// Adds memory that others reach: [`RmaJob::add_heap`].
    ///
    /// # Errors
    /// As that.
    pub fn add_heap(&self, memory: impl Into<HeapMemory>) -> Result<u8, RmaError> {
        of!(self, job => job.add_heap(memory))
    }

    /// Removes it: [`RmaJob::remove_heap`].
    ///
    /// # Errors
    /// As that.
    pub fn remove_heap(&self, number: u8) -> Result<(), RmaError> {
        of!(self, job => job.remove_heap(number))
    }

    /// What others need to reach it: [`RmaJob::heap_descriptors`].
    ///
    /// # Errors
    /// As that.
    pub fn heap_descriptors(&self, number: u8) -> Result<Vec<Told>, RmaError> {
        of!(self, job => job.heap_descriptors(number))
    }

    /// What a member has told of its memory: [`RmaJob::set_member_heap`].
    ///
    /// # Errors
    /// As that.
    pub fn set_member_heap(&self, member: MemberRank, number: u8, told: &[Told]) -> Result<(), RmaError> {
        of!(self, job => job.set_member_heap(member, number, told))
    }

    /// A new context: [`RmaJob::create_context`].
    ///
    /// # Errors
    /// As that.
    pub fn create_context(&self) -> Result<ContextId, RmaError> {
        of!(self, job => job.create_context())
    }

    /// Most bytes that a context copies at once: [`RmaJob::inline_max`].
    ///
    /// # Errors
    /// As that.
    pub fn inline_max(&self, id: ContextId) -> Result<u64, RmaError> {
        of!(self, job => job.inline_max(id))
    }

    /// Starts a thread that serves for this process: [`RmaJob::serve_beside`].
    ///
    /// # Errors
    /// As that.
    pub fn serve_beside(&self) -> io::Result<HelperThread> {
        of!(self, job => RmaJob::serve_beside(Arc::clone(job)))
    }

    /// Goes on with everything: [`RmaJob::progress`].
    ///
    /// # Errors
    /// As that.
    pub fn progress(&self, id: ContextId) -> Result<bool, RmaError> {
        of!(self, job => job.progress(id))
    }

    /// Whether a member can be asked for something now: [`RmaJob::connect_member`].
    ///
    /// # Errors
    /// As that.
    pub fn connect_member(&self, id: ContextId, member: MemberRank) -> Result<bool, RmaError> {
        of!(self, job => job.connect_member(id, member))
    }

    /// Changes an error word of a member's heap by the control stream, which needs no link: [`RmaJob::send_error_word`].
    ///
    /// # Errors
    /// As that.
    pub fn send_error_word(
        &self,
        member: MemberRank,
        heap: u8,
        offset: u64,
        value: u64,
    ) -> Result<bool, RmaError> {
        of!(self, job => job.send_error_word(member, heap, offset, value))
    }

    /// Memory of devices that all NICs in use reach: [`RmaJob::device_reach`].
    pub fn device_reach(&self) -> DeviceReach {
        of!(self, job => job.device_reach())
    }

    /// Says something to people, by the host's log.
    pub fn log(&self, level: LogLevel, text: &str) {
        of!(self, job => job.log(level, text));
    }

    /// Whether anything has moved lately: [`RmaJob::sample_progress`].
    pub fn sample_progress(&self, id: ContextId) -> Option<u64> {
        of!(self, job => job.sample_progress(Some(id)))
    }

    /// Whether this process may change its own words: [`RmaJob::can_execute_locally`].
    pub fn can_execute_locally(&self, width: WordWidth) -> bool {
        of!(self, job => job.can_execute_locally(width))
    }

    /// Whether others' work here goes on in calls of this process only: [`RmaJob::works_unseen`].
    pub fn works_unseen(&self) -> bool {
        of!(self, job => job.works_unseen())
    }

    /// Puts bytes: [`RmaJob::put`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn put(
        &self,
        id: ContextId,
        member: MemberRank,
        heap: u8,
        offset: u64,
        from: PutSource<'_>,
    ) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.put(id, member, heap, offset, from))
    }

    /// Gets bytes: [`RmaJob::get`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn get(
        &self,
        id: ContextId,
        member: MemberRank,
        heap: u8,
        offset: u64,
        into: HeapRange,
    ) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.get(id, member, heap, offset, into))
    }

    /// Asks for an atomic: [`RmaJob::post_atomic`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn post_atomic(
        &self,
        id: ContextId,
        member: MemberRank,
        word: SymmetricWord,
        atomic: TypedAtomic,
    ) -> Result<Option<FetchHandle>, RmaError> {
        of!(self, job => job.post_atomic(id, member, word, atomic))
    }

    /// What an atomic has found: [`RmaJob::collect_fetch`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn collect_fetch(&self, id: ContextId, fetch: FetchHandle) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.collect_fetch(id, fetch))
    }

    /// The same of what is known: [`RmaJob::collect_ready_fetch`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn collect_ready_fetch(&self, id: ContextId, fetch: FetchHandle) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.collect_ready_fetch(id, fetch))
    }

    /// Gives up a value: [`RmaJob::give_up`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn give_up(&self, id: ContextId, fetch: FetchHandle) -> Result<(), RmaError> {
        of!(self, job => job.give_up(id, fetch))
    }

    /// Begins or ends a batch: [`RmaJob::set_batching`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn set_batching(&self, id: ContextId, more: bool) -> Result<(), RmaError> {
        of!(self, job => job.set_batching(id, more))
    }

    /// Signals: [`RmaJob::send_signal`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn send_signal(
        &self,
        id: ContextId,
        member: MemberRank,
        update: SignalUpdate,
    ) -> Result<bool, RmaError> {
        of!(self, job => job.send_signal(id, member, update))
    }

    /// Puts, then signals: [`RmaJob::put_signal`].
    ///
    /// # Errors
    /// As that.
    pub fn put_signal(
        &self,
        id: ContextId,
        member: MemberRank,
        heap: u8,
        offset: u64,
        from: PutSource<'_>,
        update: SignalUpdate,
    ) -> Result<bool, RmaError> {
        of!(self, job => job.put_signal(id, member, heap, offset, from, update))
    }

    /// Whether all is complete: [`RmaJob::quiet`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn quiet(&self, id: ContextId) -> Result<bool, RmaError> {
        of!(self, job => job.quiet(id))
    }

    /// Whether all towards a member is: [`RmaJob::quiet_member`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn quiet_member(&self, id: ContextId, member: MemberRank) -> Result<bool, RmaError> {
        of!(self, job => job.quiet_member(id, member))
    }

    /// Orders what comes after behind what came before: [`RmaJob::fence`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn fence(&self, id: ContextId) -> Result<(), RmaError> {
        of!(self, job => job.fence(id))
    }
}

/// What carries the data of a job.
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
