//! The engine over the selected fabric. Each call of NCCL matches the fabric here once; the code behind it is
//! monomorphic.

use std::io;

use trunkline_engine::host::UnixHost;
use trunkline_engine::{
    CommId, CommNics, Engine, EngineError, HelperThread, ListenId, MrId, OffsetBase, RecvBuf, RequestId,
    TrafficHint,
};
use trunkline_fabric::trace::TracedFabric;
use trunkline_fabric::{ExportedDmaBuf, Fabric, NicPort, SplitFabric};
use trunkline_mem::MemoryRange;
use trunkline_ofi::OfiFabric;
use trunkline_proto::wire::handle;
use trunkline_softnic::SoftFabric;
use trunkline_verbs::VerbsFabric;

/// A fabric that uses shared memory between processes of the same host, if enabled.
pub(crate) type NearSplit<F> = SplitFabric<SoftFabric, F>;

/// An engine, with one variant per fabric.
pub(crate) enum FabricEngine {
    /// Over software NICs.
    Soft(Engine<TracedFabric<SoftFabric>, UnixHost>),
    /// Over RDMA devices.
    Verbs(Engine<TracedFabric<NearSplit<VerbsFabric>>, UnixHost>),
    /// Over a provider of libfabric.
    Ofi(Engine<TracedFabric<NearSplit<OfiFabric>>, UnixHost>),
}

/// Evaluates an expression with the engine of either variant.
macro_rules! of {
    ($running:expr, $engine:ident => $what:expr) => {
        match $running {
            Self::Soft($engine) => $what,
            Self::Verbs($engine) => $what,
            Self::Ofi($engine) => $what,
        }
    };
}

/// The functions of [`Engine`], by the same names.
impl FabricEngine {
    pub(crate) fn fabric_name(&self) -> &'static str {
        of!(self, engine => engine.fabric().fabric_name())
    }

    pub(crate) fn can_fuse(&self) -> bool {
        of!(self, engine => engine.fabric().can_fuse_nics())
    }

    pub(crate) fn nics(&self) -> &[NicPort] {
        of!(self, engine => engine.nics())
    }

    /// Returns the NICs that devices are made of.
    pub(crate) fn device_nics(&self) -> &[NicPort] {
        of!(self, engine => {
            let all = engine.nics();
            &all[..engine.fabric().intra_host_nic().unwrap_or(all.len())]
        })
    }

    pub(crate) fn listen(&self, nics: CommNics) -> Result<(ListenId, [u8; handle::BYTES]), EngineError> {
        of!(self, engine => engine.listen(nics))
    }

    pub(crate) fn connect_in(
        &self,
        traffic: TrafficHint,
        nics: CommNics,
        handle: &mut [u8; handle::BYTES],
    ) -> Result<Option<CommId>, EngineError> {
        of!(self, engine => engine.connect_in(traffic, nics, handle))
    }

    pub(crate) fn accept(&self, listen: ListenId) -> Result<Option<CommId>, EngineError> {
        of!(self, engine => engine.accept(listen))
    }

    pub(crate) fn close_listen(&self, listen: ListenId) -> Result<(), EngineError> {
        of!(self, engine => engine.close_listen(listen))
    }

    pub(crate) fn prepare_close(&self, comm: CommId) -> Result<bool, EngineError> {
        of!(self, engine => engine.prepare_close(comm))
    }

    pub(crate) fn close(&self, comm: CommId) -> Result<(), EngineError> {
        of!(self, engine => engine.close(comm))
    }

    pub(crate) fn register(&self, comm: CommId, memory: MemoryRange) -> Result<MrId, EngineError> {
        of!(self, engine => engine.register(comm, memory))
    }

    pub(crate) fn register_exported(
        &self,
        comm: CommId,
        memory: MemoryRange,
        exported: ExportedDmaBuf<'_>,
    ) -> Result<MrId, EngineError> {
        of!(self, engine => engine.register_exported(comm, memory, exported))
    }

    pub(crate) fn deregister(&self, comm: CommId, mr: MrId) -> Result<(), EngineError> {
        of!(self, engine => engine.deregister(comm, mr))
    }

    #[inline]
    pub(crate) fn isend_from(
        &self,
        comm: CommId,
        base: OffsetBase,
        buffer: RecvBuf,
    ) -> Result<Option<RequestId>, EngineError> {
        of!(self, engine => engine.isend_from(comm, base, buffer))
    }

    #[inline]
    pub(crate) fn irecv_into(
        &self,
        comm: CommId,
        base: OffsetBase,
        buffers: &[RecvBuf],
    ) -> Result<Option<RequestId>, EngineError> {
        of!(self, engine => engine.irecv_into(comm, base, buffers))
    }

    pub(crate) fn iflush_from(
        &self,
        comm: CommId,
        base: OffsetBase,
        buffers: &[RecvBuf],
    ) -> Result<Option<RequestId>, EngineError> {
        of!(self, engine => engine.iflush_from(comm, base, buffers))
    }

    #[inline]
    pub(crate) fn test_count(
        &self,
        request: RequestId,
        sizes: &mut [u64; 8],
    ) -> Result<Option<usize>, EngineError> {
        of!(self, engine => engine.test_count(request, sizes))
    }

    /// Makes progress on comms that no caller waits for.
    pub(crate) fn go_on(&self) {
        of!(self, engine => {
            engine.progress_all();
            let _ = engine.drive_unpolled();
        });
    }

    pub(crate) fn start_helper(&'static self) -> io::Result<HelperThread> {
        of!(self, engine => HelperThread::spawn_for(engine))
    }

    pub(crate) fn shutdown(&self) {
        of!(self, engine => engine.shutdown());
    }

    pub(crate) fn shutdown_for_unload(&self) {
        of!(self, engine => engine.shutdown_for_unload());
    }
}
