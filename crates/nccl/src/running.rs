//! The engine over the fabric that was chosen. Each call of NCCL is one match here; behind it the fabric is known.

use std::io;

use trunkline_engine::host::UnixHost;
use trunkline_engine::{
    Base, CommId, Engine, Error, Helper, ListenId, MrId, Nics, RecvBuf, RequestId, Traffic,
};
use trunkline_fabric::trace::Traced;
use trunkline_fabric::{Exported, Fabric, Nic, Split};
use trunkline_mem::Memory;
use trunkline_ofi::OfiFabric;
use trunkline_proto::wire::handle;
use trunkline_softnic::SoftFabric;
use trunkline_verbs::VerbsFabric;

/// A fabric beside which neighbours may be connected by shared memory.
pub(crate) type Near<F> = Split<SoftFabric, F>;

/// An engine; one variant for each fabric.
pub(crate) enum Running {
    /// Over software NICs.
    Soft(Engine<Traced<SoftFabric>, UnixHost>),
    /// Over RDMA devices.
    Verbs(Engine<Traced<Near<VerbsFabric>>, UnixHost>),
    /// Over what libfabric has a provider for.
    Ofi(Engine<Traced<Near<OfiFabric>>, UnixHost>),
}

/// The same of whichever engine it is.
macro_rules! of {
    ($running:expr, $engine:ident => $what:expr) => {
        match $running {
            Self::Soft($engine) => $what,
            Self::Verbs($engine) => $what,
            Self::Ofi($engine) => $what,
        }
    };
}

/// What [`Engine`] does, by the same names.
impl Running {
    pub(crate) fn fabric(&self) -> &'static str {
        of!(self, engine => engine.fabric().name())
    }

    pub(crate) fn fuses(&self) -> bool {
        of!(self, engine => engine.fabric().fuses())
    }

    pub(crate) fn nics(&self) -> &[Nic] {
        of!(self, engine => engine.nics())
    }

    /// Those of them that a device is made of.
    pub(crate) fn devices(&self) -> &[Nic] {
        of!(self, engine => {
            let all = engine.nics();
            &all[..engine.fabric().near().unwrap_or(all.len())]
        })
    }

    pub(crate) fn listen(&self, nics: Nics) -> Result<(ListenId, [u8; handle::BYTES]), Error> {
        of!(self, engine => engine.listen(nics))
    }

    pub(crate) fn connect_in(
        &self,
        traffic: Traffic,
        nics: Nics,
        handle: &mut [u8; handle::BYTES],
    ) -> Result<Option<CommId>, Error> {
        of!(self, engine => engine.connect_in(traffic, nics, handle))
    }

    pub(crate) fn accept(&self, listen: ListenId) -> Result<Option<CommId>, Error> {
        of!(self, engine => engine.accept(listen))
    }

    pub(crate) fn close_listen(&self, listen: ListenId) -> Result<(), Error> {
        of!(self, engine => engine.close_listen(listen))
    }

    pub(crate) fn settle(&self, comm: CommId) -> Result<bool, Error> {
        of!(self, engine => engine.settle(comm))
    }

    pub(crate) fn close(&self, comm: CommId) -> Result<(), Error> {
        of!(self, engine => engine.close(comm))
    }

    pub(crate) fn register(&self, comm: CommId, memory: Memory) -> Result<MrId, Error> {
        of!(self, engine => engine.register(comm, memory))
    }

    pub(crate) fn register_exported(
        &self,
        comm: CommId,
        memory: Memory,
        exported: Exported<'_>,
    ) -> Result<MrId, Error> {
        of!(self, engine => engine.register_exported(comm, memory, exported))
    }

    pub(crate) fn deregister(&self, comm: CommId, mr: MrId) -> Result<(), Error> {
        of!(self, engine => engine.deregister(comm, mr))
    }

    #[inline]
    pub(crate) fn isend_from(
        &self,
        comm: CommId,
        base: Base,
        buffer: RecvBuf,
    ) -> Result<Option<RequestId>, Error> {
        of!(self, engine => engine.isend_from(comm, base, buffer))
    }

    #[inline]
    pub(crate) fn irecv_into(
        &self,
        comm: CommId,
        base: Base,
        buffers: &[RecvBuf],
    ) -> Result<Option<RequestId>, Error> {
        of!(self, engine => engine.irecv_into(comm, base, buffers))
    }

    pub(crate) fn iflush_from(
        &self,
        comm: CommId,
        base: Base,
        buffers: &[RecvBuf],
    ) -> Result<Option<RequestId>, Error> {
        of!(self, engine => engine.iflush_from(comm, base, buffers))
    }

    #[inline]
    pub(crate) fn test_count(
        &self,
        request: RequestId,
        sizes: &mut [u64; 8],
    ) -> Result<Option<usize>, Error> {
        of!(self, engine => engine.test_count(request, sizes))
    }

    /// Goes on with what no caller waits for.
    pub(crate) fn go_on(&self) {
        of!(self, engine => {
            engine.progress_all();
            let _ = engine.tend();
        });
    }

    pub(crate) fn help(&'static self) -> io::Result<Helper> {
        of!(self, engine => Helper::start(engine))
    }

    pub(crate) fn shutdown(&self) {
        of!(self, engine => engine.shutdown());
    }

    pub(crate) fn unload(&self) {
        of!(self, engine => engine.unload());
    }
}
