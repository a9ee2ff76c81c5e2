//! A kind of memory selected by name, for front ends that learn it at run time.

use std::os::fd::OwnedFd;

use super::error::{
    CloseError, CopyError, ExportError, FindAllocationError, HandleOpenError, NoMemory, NotClosed,
};
use super::{
    CopyBatch, CopyPlace, CopyTarget, CudaMemory, ExportedHandle, HandlePassing, HipMemory, HostError,
    HostMemory, IpcAllocation, IpcCaps, IpcHandle, IpcMemory, LevelZero, MappingQueue, MappingUser,
    OpenedHandle, PrivateMemory, StagePin, XpmemMemory,
};

use crate::MemoryRange;

/// One of the kinds of memory. Each call is dispatched by one match.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyMemory {
    /// Memory of the host.
    Host(HostMemory),
    /// Any private memory, by system calls.
    Private(PrivateMemory),
    /// Any private memory, attached by XPMEM.
    Xpmem(XpmemMemory),
    /// Memory of NVIDIA's devices.
    Cuda(CudaMemory),
    /// Memory of AMD's devices.
    Hip(HipMemory),
    /// Memory of Intel's devices.
    LevelZero(LevelZero),
}

impl AnyMemory {
    /// The names of the kinds that are memory of GPUs.
    pub const GPUS: [&'static str; 3] = ["cuda", "hip", "ze"];

    /// Opens the kind of a name: `host`, `private`, `xpmem`, `cuda`, `hip`, `ze`, or `auto`. `auto` selects the first GPU kind whose driver is
    /// available, else `host`. The kind `private` selects `xpmem` where a trial shows that XPMEM works, and system calls elsewhere; the two open each
    /// other's handles. Memory of other processes is mapped for device number `device`, if the kind has devices.
    ///
    /// # Errors
    /// [`NoMemory`] names the missing part.
    pub fn open(name: &str, device: u32) -> Result<Self, NoMemory> {
        match name {
            "host" => Ok(Self::Host(HostMemory::new()?)),
            "private" => match XpmemMemory::open() {
                Ok(xpmem) => Ok(Self::Xpmem(xpmem)),
                Err(_) => Ok(Self::Private(PrivateMemory::new()?)),
            },
            "xpmem" => XpmemMemory::open().map(Self::Xpmem),
            "cuda" => CudaMemory::open_device(device).map(Self::Cuda),
            "hip" => HipMemory::open_device(device).map(Self::Hip),
            "ze" => LevelZero::open_device(device).map(Self::LevelZero),
            "auto" => match Self::GPUS.iter().find_map(|name| Self::open(name, device).ok()) {
                Some(found) => Ok(found),
                None => Self::open("host", device),
            },
            other => Err(NoMemory::Unknown(other.to_owned())),
        }
    }

    /// Returns its name.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::Private(_) => "private",
            Self::Xpmem(_) => "xpmem",
            Self::Cuda(_) => "cuda",
            Self::Hip(_) => "hip",
            Self::LevelZero(_) => "ze",
        }
    }

    /// Allocates memory; memory of devices is not zeroed.
    ///
    /// # Errors
    /// [`HostError`], with the driver's error.
    pub fn alloc(&self, len: usize) -> Result<usize, HostError> {
        match self {
            Self::Host(host) => host.alloc(len),
            Self::Private(private) => private.alloc(len),
            Self::Xpmem(xpmem) => xpmem.alloc(len),
            Self::Cuda(cuda) => Ok(cuda.alloc(len)?),
            Self::Hip(hip) => Ok(hip.alloc(len)?),
            Self::LevelZero(ze) => Ok(ze.alloc(len)?),
        }
    }

    /// Frees memory of [`AnyMemory::alloc`].
    ///
    /// # Errors
    /// As [`AnyMemory::alloc`].
    pub fn free(&self, addr: usize) -> Result<(), HostError> {
        match self {
            Self::Host(host) => host.free(addr),
            Self::Private(private) => private.free(addr),
            Self::Xpmem(xpmem) => xpmem.free(addr),
            Self::Cuda(cuda) => Ok(cuda.free(addr)?),
            Self::Hip(hip) => Ok(hip.free(addr)?),
            Self::LevelZero(ze) => Ok(ze.free(addr)?),
        }
    }
}

/// Dispatches a call to the selected kind.
macro_rules! any {
    ($self:ident, $kind:ident => $call:expr) => {
        match $self {
            AnyMemory::Host($kind) => $call,
            AnyMemory::Private($kind) => $call,
            AnyMemory::Xpmem($kind) => $call,
            AnyMemory::Cuda($kind) => $call,
            AnyMemory::Hip($kind) => $call,
            AnyMemory::LevelZero($kind) => $call,
        }
    };
}

impl IpcMemory for AnyMemory {
    fn caps(&self) -> IpcCaps {
        any!(self, kind => kind.caps())
    }

    fn is_everything(&self) -> bool {
        any!(self, kind => kind.is_everything())
    }

    fn allocation_of(&self, addr: usize) -> Result<IpcAllocation, FindAllocationError> {
        any!(self, kind => kind.allocation_of(addr))
    }

    fn holds_range(&self, addr: usize, len: usize) -> bool {
        any!(self, kind => kind.holds_range(addr, len))
    }

    fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<ExportedHandle, ExportError> {
        any!(self, kind => kind.export(of, how))
    }

    fn unexport(&self, export: ExportedHandle) -> Result<(), CloseError> {
        any!(self, kind => kind.unexport(export))
    }

    fn unexport_queue(&self) -> Option<&MappingQueue> {
        any!(self, kind => kind.unexport_queue())
    }

    fn pin_queue(&self) -> Option<&MappingQueue> {
        any!(self, kind => kind.pin_queue())
    }

    fn open(&self, handle: &IpcHandle, descriptor: Option<OwnedFd>) -> Result<OpenedHandle, HandleOpenError> {
        any!(self, kind => IpcMemory::open(kind, handle, descriptor))
    }

    fn mapping_user(&self, own: Option<usize>) -> Option<MappingUser> {
        any!(self, kind => kind.mapping_user(own))
    }

    fn open_for(
        &self,
        handle: &IpcHandle,
        descriptor: Option<OwnedFd>,
        user: MappingUser,
    ) -> Result<OpenedHandle, HandleOpenError> {
        any!(self, kind => kind.open_for(handle, descriptor, user))
    }

    fn close(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        any!(self, kind => kind.close(mapped))
    }

    fn mapping_queue(&self) -> Option<&MappingQueue> {
        any!(self, kind => kind.mapping_queue())
    }

    fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        any!(self, kind => kind.read(from, out))
    }

    fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        any!(self, kind => kind.write(to, bytes))
    }

    fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        any!(self, kind => kind.copy(from, to, len))
    }

    fn fill_from(
        &self,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        any!(self, kind => kind.fill_from(to, from, offset, len))
    }

    fn pin_stage(&self, memory: &MemoryRange) -> Option<StagePin> {
        any!(self, kind => kind.pin_stage(memory))
    }

    fn batch_bytes(&self) -> Option<u64> {
        any!(self, kind => kind.batch_bytes())
    }

    fn begin_copy(
        &self,
        batch: &mut Option<CopyBatch>,
        from: CopyPlace<'_>,
        to: CopyTarget<'_>,
        len: usize,
    ) -> Result<(), CopyError> {
        any!(self, kind => kind.begin_copy(batch, from, to, len))
    }

    fn begin_fill(
        &self,
        batch: &mut Option<CopyBatch>,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        any!(self, kind => kind.begin_fill(batch, to, from, offset, len))
    }

    fn has_ended(&self, batch: &CopyBatch) -> Result<bool, CopyError> {
        any!(self, kind => kind.has_ended(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_open_by_name_and_report_missing_parts() {
        let host = AnyMemory::open("host", 0).unwrap();
        let addr = host.alloc(4096).unwrap();
        assert!(host.holds_range(addr, 4096) && !host.holds_range(addr, 4097));
        host.free(addr).unwrap();
        assert_eq!(host.kind_name(), "host");
        assert!(AnyMemory::open("auto", 0).is_ok());
        let error = AnyMemory::open("tpu", 0).unwrap_err().to_string();
        assert!(error.contains("tpu") && error.contains("private, xpmem, cuda, hip, ze"), "{error}");
        let private = AnyMemory::open("private", 0).unwrap();
        let addr = private.alloc(4096).unwrap();
        assert!(private.holds_range(addr, 4096) && private.free(addr).is_ok() && private.free(addr).is_err());
        assert!(
            private.alloc(usize::MAX / 2).is_err(),
            "the allocation must be refused, and must not abort the process"
        );
        match AnyMemory::open("xpmem", 0) {
            Ok(memory) => assert_eq!([memory.kind_name(), private.kind_name()], ["xpmem"; 2]),
            Err(error) => assert!(error.to_string().contains("hpc/xpmem"), "{error}"),
        }
        for name in AnyMemory::GPUS {
            match AnyMemory::open(name, 0) {
                Ok(memory) => assert_eq!(memory.kind_name(), name),
                Err(error) => assert!(error.to_string().contains("install"), "{error}"),
            }
        }
    }
}
