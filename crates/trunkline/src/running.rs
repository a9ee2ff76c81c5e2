//! The engine over the fabric that was chosen: one match a call, behind which the fabric is known. Called by the rest of this
//! crate; waits for nothing.

use std::io;
use std::sync::Arc;

use trunkline_choose::{Hardware, soft_config};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{ContextId, Fetch, Job, Local, Member, RmaError, Source};
use trunkline_engine::{Helper, Nics, Params};
use trunkline_fabric::Fabric;
use trunkline_mem::Memory;
use trunkline_ofi::OfiFabric;
use trunkline_proto::rma::atomic::Atomic;
use trunkline_proto::wire::dial::CARD_BYTES;
use trunkline_proto::wire::rma::signal::Update;
use trunkline_proto::wire::rma::word::{Width, Word};
use trunkline_softnic::SoftFabric;
use trunkline_verbs::VerbsFabric;

use crate::error::Error;

type Over<F> = Arc<Job<F, UnixHost>>;

/// A job's part of this process; one variant for each fabric.
pub(crate) enum Running {
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
    /// Opens the fabric and listens. `nics` are by their places in the fabric's list; also what fabric it is, and its NICs.
    pub(crate) fn new(
        params: Params,
        hardware: Hardware,
        nics: Nics,
        host: UnixHost,
        addresses: Vec<std::net::IpAddr>,
    ) -> Result<(Self, Carrier), Error> {
        fn make<F: Fabric>(
            fabric: F,
            host: UnixHost,
            params: Params,
            nics: Nics,
        ) -> Result<(Over<F>, Carrier), Error> {
            let carrier = Carrier::of(&fabric, nics)?;
            let job = Job::new(fabric, host, params, nics).map_err(Error::Start)?;
            Ok((Arc::new(job), carrier))
        }
        Ok(match hardware {
            Hardware::None => {
                let config = soft_config(&params, addresses);
                let fabric = SoftFabric::new(config).map_err(trunkline_choose::ChooseError::from)?;
                let (job, carrier) = make(fabric, host, params, nics)?;
                (Self::Soft(job), carrier)
            }
            Hardware::Verbs(fabric) => {
                let (job, carrier) = make(fabric, host, params, nics)?;
                (Self::Verbs(job), carrier)
            }
            Hardware::Ofi(fabric) => {
                let (job, carrier) = make(fabric, host, params, nics)?;
                (Self::Ofi(job), carrier)
            }
        })
    }

    pub(crate) fn card(&self) -> [u8; CARD_BYTES] {
        of!(self, job => job.card())
    }

    pub(crate) fn meet(&self, me: Member, cards: &[[u8; CARD_BYTES]]) -> Result<(), RmaError> {
        of!(self, job => job.meet(me, cards))
    }

    pub(crate) fn add_heap(&self, memory: Memory) -> Result<u8, RmaError> {
        of!(self, job => job.add_heap(memory))
    }

    pub(crate) fn context(&self) -> Result<ContextId, RmaError> {
        of!(self, job => job.context())
    }

    pub(crate) fn inline_max(&self, id: ContextId) -> Result<u64, RmaError> {
        of!(self, job => job.inline_max(id))
    }

    pub(crate) fn serve_beside(&self) -> io::Result<Helper> {
        of!(self, job => Job::serve_beside(Arc::clone(job)))
    }

    pub(crate) fn progress(&self, id: ContextId) -> Result<bool, RmaError> {
        of!(self, job => job.progress(id))
    }

    pub(crate) fn reaches(&self, id: ContextId, member: Member) -> Result<bool, RmaError> {
        of!(self, job => job.reaches(id, member))
    }

    pub(crate) fn stirs(&self, id: ContextId) -> Option<u64> {
        of!(self, job => job.stirs(Some(id)))
    }

    pub(crate) fn executes(&self, width: Width) -> bool {
        of!(self, job => job.executes(width))
    }

    pub(crate) fn works_unseen(&self) -> bool {
        of!(self, job => job.works_unseen())
    }

    #[inline]
    pub(crate) fn put(
        &self,
        id: ContextId,
        member: Member,
        (heap, offset): (u8, u64),
        from: Source<'_>,
    ) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.put(id, member, heap, offset, from))
    }

    #[inline]
    pub(crate) fn get(
        &self,
        id: ContextId,
        member: Member,
        (heap, offset): (u8, u64),
        into: Local,
    ) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.get(id, member, heap, offset, into))
    }

    #[inline]
    pub(crate) fn atomic(
        &self,
        id: ContextId,
        member: Member,
        word: Word,
        atomic: Atomic,
    ) -> Result<Option<Fetch>, RmaError> {
        of!(self, job => job.atomic(id, member, word, atomic))
    }

    #[inline]
    pub(crate) fn fetched(&self, id: ContextId, fetch: Fetch) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.fetched(id, fetch))
    }

    #[inline]
    pub(crate) fn found(&self, id: ContextId, fetch: Fetch) -> Result<Option<u64>, RmaError> {
        of!(self, job => job.found(id, fetch))
    }

    #[inline]
    pub(crate) fn give_up(&self, id: ContextId, fetch: Fetch) -> Result<(), RmaError> {
        of!(self, job => job.give_up(id, fetch))
    }

    #[inline]
    pub(crate) fn signal(&self, id: ContextId, member: Member, update: Update) -> Result<bool, RmaError> {
        of!(self, job => job.signal(id, member, update))
    }

    pub(crate) fn put_signal(
        &self,
        id: ContextId,
        member: Member,
        to: (u8, u64),
        from: Source<'_>,
        update: Update,
    ) -> Result<bool, RmaError> {
        of!(self, job => job.put_signal(id, member, to, from, update))
    }

    #[inline]
    pub(crate) fn quiet(&self, id: ContextId) -> Result<bool, RmaError> {
        of!(self, job => job.quiet(id))
    }

    #[inline]
    pub(crate) fn quiet_member(&self, id: ContextId, member: Member) -> Result<bool, RmaError> {
        of!(self, job => job.quiet_member(id, member))
    }

    #[inline]
    pub(crate) fn fence(&self, id: ContextId) -> Result<(), RmaError> {
        of!(self, job => job.fence(id))
    }
}

/// What carries the data of a world.
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
    fn of<F: Fabric>(fabric: &F, nics: Nics) -> Result<Self, Error> {
        let all = fabric.nics();
        let mut carrier = Self { fabric: fabric.name(), nics: Vec::new(), speed_mbps: 0 };
        for &number in nics.numbers() {
            let nic = all.get(number).ok_or(Error::Argument("the fabric has no NIC of that number"))?;
            carrier.nics.push(nic.name.clone());
            carrier.speed_mbps = carrier.speed_mbps.saturating_add(nic.speed_mbps);
        }
        Ok(carrier)
    }
}
