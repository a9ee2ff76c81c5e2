//! Device queues over the fabric that was chosen: what their executor asks of it, one match a call.

use trunkline_device::{Carried, Ended, Network, Place, Rma};
use trunkline_engine::rma::{Local, Member, RmaError, Source};
use trunkline_ofi::OfiFabric;
use trunkline_proto::rma::atomic::Action;
use trunkline_softnic::SoftFabric;
use trunkline_verbs::VerbsFabric;

use crate::running::{Over, Running};

/// A context of a job for the executor of device queues; one variant for each fabric.
pub enum Carrying {
    /// Over software NICs.
    Soft(Rma<Over<SoftFabric>>),
    /// Over RDMA devices.
    Verbs(Rma<Over<VerbsFabric>>),
    /// Over what libfabric has a provider for.
    Ofi(Rma<Over<OfiFabric>>),
}

/// The same of whichever it is.
macro_rules! of {
    ($carrying:expr, $network:ident => $what:expr) => {
        match $carrying {
            Self::Soft($network) => $what,
            Self::Verbs($network) => $what,
            Self::Ofi($network) => $what,
        }
    };
}

impl Running {
    /// A context for the executor of device queues: [`Rma::new`].
    ///
    /// # Errors
    /// As that.
    pub fn carrying(&self) -> Result<Carrying, RmaError> {
        Ok(match self {
            Self::Soft(job) => Carrying::Soft(Rma::new(job.clone())?),
            Self::Verbs(job) => Carrying::Verbs(Rma::new(job.clone())?),
            Self::Ofi(job) => Carrying::Ofi(Rma::new(job.clone())?),
        })
    }
}

impl Network for Carrying {
    fn me(&self) -> Member {
        of!(self, network => network.me())
    }

    fn executes(&self) -> bool {
        of!(self, network => network.executes())
    }

    #[inline]
    fn put(&mut self, cookie: u64, to: Place, from: Source<'_>) -> Carried {
        of!(self, network => network.put(cookie, to, from))
    }

    #[inline]
    fn get(&mut self, cookie: u64, from: Place, into: Local) -> Carried {
        of!(self, network => network.get(cookie, from, into))
    }

    #[inline]
    fn atomic(&mut self, cookie: u64, at: Place, action: Action, fetches: bool) -> Carried {
        of!(self, network => network.atomic(cookie, at, action, fetches))
    }

    #[inline]
    fn go_on(&mut self, ended: &mut Vec<Ended>) -> bool {
        of!(self, network => network.go_on(ended))
    }

    fn spoil(&mut self, at: Place, value: u64) -> bool {
        of!(self, network => network.spoil(at, value))
    }

    fn leave(&mut self) {
        of!(self, network => network.leave());
    }

    fn hear(&mut self) {
        of!(self, network => network.hear());
    }

    fn is_gone(&mut self, member: Member) -> bool {
        of!(self, network => network.is_gone(member))
    }
}
