//! Windows in GPU memory that the NICs in use reach: their data is registered with the NICs, without a copy in host
//! memory. Called by `window_setup`, which uses host memory beside the window (`Residence::Device` in `on_gpu`) where
//! this module cannot register it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_engine::rma::{HeapMemory, WordAccess};
use trunkline_fabric::{DeviceReach, LogLevel};
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::{DmaBufExport, ExportRefusal, GpuDevice};
use trunkline_proto::wire::rma::word::WordWidth;

use super::error::DeviceError;
use super::on_gpu::GpuPlacement;
use super::window::ExecutorResources;

/// The data of a window in GPU memory, as a registered heap.
pub(super) struct ReachedHeap {
    pub(super) region: MemoryRange,
    pub(super) heap: u8,
    /// Whether writes of this rank's NICs must be flushed before their completion is reported.
    pub(super) needs_flush: bool,
}

/// Words of the data that the driver copies, for atomics of other ranks that this process executes. Each access waits
/// for its copy, and for no kernel.
#[derive(Debug)]
struct CopiedWords {
    device: GpuDevice,
    memory: MemoryRange,
}

impl WordAccess for CopiedWords {
    fn load(&self, offset: u64, width: WordWidth) -> Option<u64> {
        let mut bytes = [0; 8];
        self.device
            .copy_from_device(&self.memory, offset, bytes.get_mut(..width.byte_len() as usize)?)
            .ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn store(&self, offset: u64, width: WordWidth, value: u64) -> bool {
        let bytes = value.to_le_bytes();
        let bytes = bytes.get(..width.byte_len() as usize);
        bytes.is_some_and(|bytes| self.device.copy_to_device(&self.memory, offset, bytes).is_ok())
    }
}

impl ExecutorResources {
    /// Allocates `len` bytes of GPU memory and registers them with the NICs in use. Returns `None` if not all of them
    /// reach it, and logs the reason once.
    ///
    /// # Errors
    /// The device has no memory left.
    pub(super) fn allocate_reached(
        &self,
        gpu: &GpuPlacement,
        len: u64,
    ) -> Result<Option<ReachedHeap>, DeviceError> {
        let reach = self.shared.network.device_reach();
        if !(reach.dmabuf || reach.nvidia) {
            self.say_why_shadowed(LogLevel::Info, "not all NICs in use reach GPU memory");
            return Ok(None);
        }
        let len = usize::try_from(len).map_err(|_| DeviceError::Regions)?;
        let region = gpu.device.allocate(len)?;
        let exported = match export_dmabuf(&gpu.device, &region, reach) {
            Ok(exported) => exported,
            Err(cause) => {
                self.say_why_shadowed(LogLevel::Warn, &cause);
                return Ok(None);
            }
        };
        let words = CopiedWords { device: gpu.device.clone(), memory: region.clone() };
        let memory = HeapMemory { memory: region.clone(), exported, cells: Some(Arc::new(words)) };
        match self.shared.network.add_heap(memory) {
            Ok(heap) => Ok(Some(ReachedHeap { region, heap, needs_flush: reach.needs_flush })),
            Err(error) => {
                self.say_why_shadowed(
                    LogLevel::Warn,
                    &format!("a NIC cannot register the GPU memory: {error}"),
                );
                Ok(None)
            }
        }
    }

    fn say_why_shadowed(&self, level: LogLevel, cause: &str) {
        if !self.said_why_shadowed.swap(true, Ordering::Relaxed) {
            let line = format!(
                "windows in GPU memory use pinned host memory of the same size, through which all puts and gets are \
                 copied: {cause}; docs/device.md, \"Windows that NICs reach\", lists the requirements of NICs"
            );
            self.shared.network.write_log(level, &line);
        }
    }
}

/// Exports memory as a dma-buf. Returns `None` where NICs reach it by its address alone.
fn export_dmabuf(
    device: &GpuDevice,
    memory: &MemoryRange,
    reach: DeviceReach,
) -> Result<Option<(Arc<OwnedFd>, u64)>, String> {
    if !reach.dmabuf {
        return Ok(None);
    }
    match device.export_dmabuf(memory) {
        Ok(DmaBufExport::Given(given)) => Ok(Some((Arc::new(given.fd), given.offset))),
        Ok(DmaBufExport::Refused(_)) if reach.nvidia => Ok(None),
        Ok(DmaBufExport::Refused(why)) => Err(match why {
            ExportRefusal::Function { symbol } => {
                format!("the GPU's driver has no {symbol}, by which memory is exported as a dma-buf")
            }
            ExportRefusal::Memory(error) => {
                format!("the GPU's driver cannot export the memory as a dma-buf: {error}")
            }
            _ => "the GPU cannot export its memory as dma-bufs".to_owned(),
        }),
        Err(error) => Err(error.to_string()),
    }
}
