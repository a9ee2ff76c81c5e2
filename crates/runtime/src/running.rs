//! One-sided work over the fabric that was chosen: one match a call, behind which the fabric is known. Called by front ends with
//! symmetric memory; waits for nothing.

use std::io;
use std::sync::Arc;

use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{ContextId, Fetch, HeapMemory, Job, Local, Member, RmaError, Source};
use trunkline_engine::{Helper, Nics, Params};
use trunkline_fabric::{DeviceReach, Fabric, Host as _, Level, Nic};
use trunkline_ofi::OfiFabric;
use trunkline_proto::rma::atomic::Atomic;
use trunkline_proto::wire::dial::{CARD_BYTES, Heap as Told};
use trunkline_proto::wire::rma::signal::Update;
use trunkline_proto::wire::rma::word::{Width, Word};
use trunkline_softnic::SoftFabric;
use trunkline_verbs::VerbsFabric;

use crate::error::{ChooseError, JobError};
use crate::{Banner, FrontEnd, Hardware, NicChoice, soft_config};

pub(crate) type Over<F> = Arc<Job<F, UnixHost>>;

/// A job's part of this process; one variant for each fabric.
pub enum Running {
    /// Over software NICs.
    Soft(Over<SoftFabric>),
    /// Over RDMA devices.
    Verbs(Over<VerbsFabric>),
    /// Over what libfabric has a provider for.
    Ofi(Over<OfiFabric>),
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

impl Running {
    /// Opens the fabric and listens, with the NICs of that choice; also the fabric's name, and its NICs. The host's log gets
    /// the process's banner, as of this front end.
    ///
    /// # Errors
    /// [`JobError::NoNic`], [`JobError::Start`], and what the fabric says.
    pub fn new(
        params: Params,
        hardware: Hardware,
        nics: impl Into<NicChoice>,
        host: UnixHost,
        addresses: Vec<std::net::IpAddr>,
        front_end: &FrontEnd,
    ) -> Result<(Self, Carrier), JobError> {
        fn make<F: Fabric>(
            fabric: F,
            name: &str,
            host: UnixHost,
            params: Params,
            choice: &NicChoice,
            front_end: &FrontEnd,
        ) -> Result<(Over<F>, Carrier), JobError> {
            let nics = choice.resolve(fabric.nics());
            let carrier = Carrier::of(&fabric, nics)?;
            let all = fabric.nics();
            let used: Vec<Nic> =
                nics.numbers().iter().filter_map(|&number| all.get(number).cloned()).collect();
            let banner = Banner { front_end, fabric: name, nics: &used, rails: used.len(), params: &params };
            if let Some(text) = banner.once() {
                host.log(Level::Info, &text);
            }
            let job = Job::new(fabric, host, params, nics).map_err(JobError::Start)?;
            Ok((Arc::new(job), carrier))
        }
        let choice = nics.into();
        Ok(match hardware {
            Hardware::None | Hardware::PassedOver => {
                let config = soft_config(&params, addresses);
                let fabric = SoftFabric::new(config).map_err(ChooseError::from)?;
                let (job, carrier) = make(fabric, "soft", host, params, &choice, front_end)?;
                (Self::Soft(job), carrier)
            }
            Hardware::Verbs(fabric) => {
                let (job, carrier) = make(fabric, "verbs", host, params, &choice, front_end)?;
                (Self::Verbs(job), carrier)
            }
            Hardware::Ofi(fabric) => {
                let name = format!("ofi:{}", fabric.provider());
                let (job, carrier) = make(fabric, &name, host, params, &choice, front_end)?;
                (Self::Ofi(job), carrier)
            }
        })
    }

    /// What other members need to reach this process: [`Job::card`].
    pub fn card(&self) -> [u8; CARD_BYTES] {
        of!(self, job => job.card())
    }

    /// Who is in the job: [`Job::meet`].
    ///
    /// # Errors
    /// As that.
    pub fn meet(&self, me: Member, cards: &[[u8; CARD_BYTES]]) -> Result<(), RmaError> {
        of!(self, job => job.meet(me, cards))
    }

    /// Adds memory that others reach: [`Job::add_heap`].
    ///
    /// # Errors
    /// As that.
    pub fn add_heap(&self, memory: impl Into<HeapMemory>) -> Result<u8, RmaError> {
        of!(self, job => job.add_heap(memory))
    }

    /// Removes it: [`Job::remove_heap`].
    ///
    /// # Errors
    /// As that.
    pub fn remove_heap(&self, number: u8) -> Result<(), RmaError> {
        of!(self, job => job.remove_heap(number))
    }

    /// What others need to reach it: [`Job::told`].
    ///
    /// # Errors
    /// As that.
    pub fn told(&self, number: u8) -> Result<Vec<Told>, RmaError> {
        of!(self, job => job.told(number))
    }

    /// What a member has told of its memory: [`Job::learn`].
    ///
    /// # Errors
    /// As that.
    pub fn learn(&self, member: Member, number: u8, told: &[Told]) -> Result<(), RmaError> {
        of!(self, job => job.learn(member, number, told))
    }

    /// A new context: [`Job::context`].
    ///
    /// # Errors
    /// As that.
    pub fn context(&self) -> Result<ContextId, RmaError> {
        of!(self, job => job.context())
    }

    /// Most bytes that a context copies at once: [`Job::inline_max`].
    ///
    /// # Errors
    /// As that.
    pub fn inline_max(&self, id: ContextId) -> Result<u64, RmaError> {
        of!(self, job => job.inline_max(id))
    }

    /// Starts a thread that serves for this process: [`Job::serve_beside`].
    ///
    /// # Errors
    /// As that.
    pub fn serve_beside(&self) -> io::Result<Helper> {
        of!(self, job => Job::serve_beside(Arc::clone(job)))
    }

    /// Goes on with everything: [`Job::progress`].
    ///
    /// # Errors
    /// As that.
    pub fn progress(&self, id: ContextId) -> Result<bool, RmaError> {
        of!(self, job => job.progress(id))
    }

    /// Whether a member can be asked for something now: [`Job::reaches`].
    ///
    /// # Errors
    /// As that.
    pub fn reaches(&self, id: ContextId, member: Member) -> Result<bool, RmaError> {
        of!(self, job => job.reaches(id, member))
    }

    /// Changes an error word of a member's heap by the control stream, which needs no link: [`Job::spoil`].
    ///
    /// # Errors
    /// As that.
    pub fn spoil(&self, member: Member, heap: u8, offset: u64, value: u64) -> Result<bool, RmaError> {
        of!(self, job => job.spoil(member, heap, offset, value))
    }

    /// Memory of devices that all NICs in use reach: [`Job::device_reach`].
    pub fn device_reach(&self) -> DeviceReach {
        of!(self, job => job.device_reach())
    }

    /// Says something to people, by the host's log.
    pub fn log(&self, level: Level, text: &str) {
        of!(self, job => job.log(level, text));
    }

    /// Whether anything has moved lately: [`Job::stirs`].
    pub fn stirs(&self, id: ContextId) -> Option<u64> {
        of!(self, job => job.stirs(Some(id)))
    }

    /// Whether this process may change its own words: [`Job::executes`].
    pub fn executes(&self, width: Width) -> bool {
        of!(self, job => job.executes(width))
    }

    /// Whether others' work here goes on in calls of this process only: [`Job::works_unseen`].
    pub fn works_unseen(&self) -> bool {
        of!(self, job => job.works_unseen())
    }

    /// Puts bytes: [`Job::put`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn put(
        &self,
        id: ContextId,
        member: Member,
        (heap, offset): (u8, u64),
        from: Source<'_>,
    ) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.put(id, member, heap, offset, from))
    }

    /// Gets bytes: [`Job::get`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn get(
        &self,
        id: ContextId,
        member: Member,
        (heap, offset): (u8, u64),
        into: Local,
    ) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.get(id, member, heap, offset, into))
    }

    /// Asks for an atomic: [`Job::atomic`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn atomic(
        &self,
        id: ContextId,
        member: Member,
        word: Word,
        atomic: Atomic,
    ) -> Result<Option<Fetch>, RmaError> {
        of!(self, job => job.atomic(id, member, word, atomic))
    }

    /// What an atomic has found: [`Job::fetched`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn fetched(&self, id: ContextId, fetch: Fetch) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.fetched(id, fetch))
    }

    /// The same of what is known: [`Job::found`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn found(&self, id: ContextId, fetch: Fetch) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.found(id, fetch))
    }

    /// Gives up a value: [`Job::give_up`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn give_up(&self, id: ContextId, fetch: Fetch) -> Result<(), RmaError> {
        of!(self, job => job.give_up(id, fetch))
    }

    /// Begins or ends a batch: [`Job::batch`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn batch(&self, id: ContextId, more: bool) -> Result<(), RmaError> {
        of!(self, job => job.batch(id, more))
    }

    /// Signals: [`Job::signal`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn signal(&self, id: ContextId, member: Member, update: Update) -> Result<bool, RmaError> {
        of!(self, job => job.signal(id, member, update))
    }

    /// Puts, then signals: [`Job::put_signal`].
    ///
    /// # Errors
    /// As that.
    pub fn put_signal(
        &self,
        id: ContextId,
        member: Member,
        to: (u8, u64),
        from: Source<'_>,
        update: Update,
    ) -> Result<bool, RmaError> {
        of!(self, job => job.put_signal(id, member, to, from, update))
    }

    /// Whether all is complete: [`Job::quiet`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn quiet(&self, id: ContextId) -> Result<bool, RmaError> {
        of!(self, job => job.quiet(id))
    }

    /// Whether all towards a member is: [`Job::quiet_member`].
    ///
    /// # Errors
    /// As that.
    #[inline]
    pub fn quiet_member(&self, id: ContextId, member: Member) -> Result<bool, RmaError> {
        of!(self, job => job.quiet_member(id, member))
    }

    /// Orders what comes after behind what came before: [`Job::fence`].
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
pub struct Carrier {
    /// The fabric: `soft`, `verbs` or `ofi`.
    pub fabric: &'static str,
    /// Names of the NICs in use, in order.
    pub nics: Vec<String>,
    /// The sum of their speeds, Mbit/s.
    pub speed_mbps: u32,
}

impl Carrier {
    fn of<F: Fabric>(fabric: &F, nics: Nics) -> Result<Self, JobError> {
        let all = fabric.nics();
        let mut carrier = Self { fabric: fabric.name(), nics: Vec::new(), speed_mbps: 0 };
        for &number in nics.numbers() {
            let nic = all.get(number).ok_or(JobError::NoNic(number))?;
            carrier.nics.push(nic.name.clone());
            carrier.speed_mbps = carrier.speed_mbps.saturating_add(nic.speed_mbps);
        }
        Ok(carrier)
    }
}
