//! Windows in memory of a GPU that the NICs in use reach: their data is registered with the NICs, and nothing of it lies beside in memory of the host. Called by `making`, which falls
//! back to memory beside it (`Residence::Device` in `on_gpu`) where this says why not.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_engine::rma::{Cells, HeapMemory};
use trunkline_fabric::{DeviceReach, Level};
use trunkline_mem::Memory;
use trunkline_mem::gpu::{Device, Export, Refusal};
use trunkline_proto::wire::rma::word::Width;

use super::error::DeviceError;
use super::on_gpu::Gpus;
use super::window::{Inner, planted};

/// Data of a window in memory of a GPU, as a heap.
pub(super) struct ReachedData {
    pub(super) region: Memory,
    pub(super) heap: u8,
    /// Writes of this rank's NICs there are flushed before their end is told.
    pub(super) needs_flush: bool,
}

/// Words of the data that the driver copies, for atomics of other ranks that this process executes. Each waits for its copies, and for no kernel.
#[derive(Debug)]
struct CopiedWords {
    device: Device,
    memory: Memory,
}

impl Cells for CopiedWords {
    fn load(&self, offset: u64, width: Width) -> Option<u64> {
        let mut bytes = [0; 8];
        self.device.read(&self.memory, offset, bytes.get_mut(..width.bytes() as usize)?).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn store(&self, offset: u64, width: Width, value: u64) -> bool {
        let bytes = value.to_le_bytes();
        let bytes = bytes.get(..width.bytes() as usize);
        bytes.is_some_and(|bytes| self.device.write(&self.memory, offset, bytes).is_ok())
    }
}

impl Inner {
    /// Allocates `len` bytes in memory of the GPU and registers them with the NICs in use; `None` if those do not reach them, of which the cause is logged, once.
    ///
    /// # Errors
    /// The device has no room.
    pub(super) fn reach(&self, gpu: &Gpus, len: u64) -> Result<Option<ReachedData>, DeviceError> {
        let reach = self.shared.job.device_reach();
        if !(reach.dmabuf || reach.nvidia) || planted().is("window-ignores-reach") {
            self.say_why_shadowed(Level::Info, "no NIC in use reaches memory of GPUs, or not all do");
            return Ok(None);
        }
        let len = usize::try_from(len).map_err(|_| DeviceError::Regions)?;
        let region = gpu.device.allocate(len)?;
        let exported = match exported(&gpu.device, &region, reach) {
            Ok(exported) => exported,
            Err(cause) => {
                self.say_why_shadowed(Level::Warn, &cause);
                return Ok(None);
            }
        };
        let words = CopiedWords { device: gpu.device.clone(), memory: region.clone() };
        let memory = HeapMemory { memory: region.clone(), exported, cells: Some(Arc::new(words)) };
        match self.shared.job.add_heap(memory) {
            Ok(heap) => Ok(Some(ReachedData { region, heap, needs_flush: reach.needs_flush })),
            Err(error) => {
                self.say_why_shadowed(Level::Warn, &format!("a NIC does not register it: {error}"));
                Ok(None)
            }
        }
    }

    fn say_why_shadowed(&self, level: Level, cause: &str) {
        if !self.said_why_shadowed.swap(true, Ordering::Relaxed)
            && !planted().is("window-falls-back-silently")
        {
            let line = format!(
                "windows in memory of the GPU have as much pinned memory of the host beside them, by way of which all puts and gets go: {cause}; docs/device.md, \"Windows that NICs reach\", says \
                 what NICs need"
            );
            self.shared.job.log(level, &line);
        }
    }
}

/// Memory as a dma-buf; `None` where NICs reach it by its address alone.
fn exported(
    device: &Device,
    memory: &Memory,
    reach: DeviceReach,
) -> Result<Option<(Arc<OwnedFd>, u64)>, String> {
    if !reach.dmabuf {
        return Ok(None);
    }
    match device.export(memory) {
        Ok(Export::Given(given)) => Ok(Some((Arc::new(given.fd), given.offset))),
        Ok(Export::Refused(_)) if reach.nvidia => Ok(None),
        Ok(Export::Refused(why)) => Err(match why {
            Refusal::Function { symbol } => {
                format!("the GPU's driver has no {symbol} to export it as a dma-buf")
            }
            Refusal::Memory(error) => format!("the GPU's driver does not export it as a dma-buf: {error}"),
            _ => "the GPU does not export its memory as dma-bufs".to_owned(),
        }),
        Err(error) => Err(error.to_string()),
    }
}
