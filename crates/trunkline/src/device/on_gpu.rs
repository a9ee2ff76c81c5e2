//! Windows whose kernels run on a GPU: their memory, their queues, and the arguments of kernels. Host threads call it
//! before kernels are launched and after they have ended, never while kernels wait.

use std::sync::Arc;

use trunkline_device::{DeviceCopier, EntryKey, EntryRegion, ErrorTable, KernelLanes};
use trunkline_device_queue::QueueView;
use trunkline_mem::gpu::{DeviceCopyQueue, GpuDevice, KernelArg, PinnedMemory};
use trunkline_mem::{MemoryRange, OutOfMemory};
use trunkline_proto::reserve::{try_filled, try_vec};
use trunkline_proto::wire::device_queue::WindowLayout;

use super::error::DeviceError;
use super::view::{DeviceTables, DeviceView, LaneView, PeerView, VIEW_VERSION};
use super::window::Window;

/// The location of windows whose kernels run on a GPU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Residence {
    /// Pinned memory of the host. The GPU accesses it over its bus, and networks reach it.
    Pinned,
    /// Memory of the GPU.
    ///
    /// If all NICs in use reach that memory, the data is registered with them, and signals, counters, barriers and
    /// streams are in pinned memory. If not, pinned memory beside the window receives bytes from other ranks, until
    /// the executor copies them to the GPU. Bytes for other ranks are staged in rooms of their own there.
    Device,
}

/// The GPU that runs kernels.
#[derive(Clone, Debug)]
pub struct GpuPlacement {
    /// The device.
    pub device: GpuDevice,
    /// The location of windows.
    pub residence: Residence,
}

/// The memory of a window before it is created.
pub(super) enum PartPlace {
    Host(MemoryRange),
    Pinned(PinnedMemory),
    Device {
        region: MemoryRange,
        beside: PinnedMemory,
        mover: DeviceCopyQueue,
    },
    /// Memory of the GPU that NICs reach. Everything except the data is stored apart from it.
    Reached {
        region: MemoryRange,
        words: PinnedMemory,
        first: u64,
        mover: DeviceCopyQueue,
    },
}

impl GpuPlacement {
    /// Allocates the memory of a window that is in host memory, or that NICs reach only through host memory.
    pub(super) fn allocate_part(&self, bytes: usize, window: u64) -> Result<PartPlace, DeviceError> {
        let beside = self.device.allocate_pinned(bytes)?;
        Ok(match self.residence {
            Residence::Pinned => PartPlace::Pinned(beside),
            Residence::Device => {
                let window = usize::try_from(window).map_err(|_| DeviceError::Regions)?;
                PartPlace::Device {
                    region: self.device.allocate(window)?,
                    beside,
                    mover: self.device.copy_queue()?,
                }
            }
        })
    }
}

impl PartPlace {
    pub(super) fn allocate_host(bytes: usize) -> Result<Self, OutOfMemory> {
        MemoryRange::try_heap(bytes).map(Self::Host)
    }

    /// Returns the memory that is registered with the network and contains the boxes; of a divided part, everything
    /// except the data.
    pub(super) const fn network_memory(&self) -> &MemoryRange {
        match self {
            Self::Host(memory) => memory,
            Self::Pinned(pinned)
            | Self::Device { beside: pinned, .. }
            | Self::Reached { words: pinned, .. } => pinned.memory(),
        }
    }

    pub(super) const fn is_posted(&self) -> bool {
        matches!(self, Self::Device { .. })
    }

    pub(super) fn to_region(&self, heap: u8) -> EntryRegion {
        let table = ErrorTable::default();
        match self {
            Self::Host(_) | Self::Pinned(_) => {
                EntryRegion::of_host(self.network_memory().clone(), heap, table)
            }
            Self::Device { region, beside, mover } => {
                let copies = Some(Arc::new(mover.clone_for_user()) as Arc<dyn DeviceCopier>);
                let words = Some(beside.memory().clone());
                EntryRegion { memory: region.clone(), heap, table, copies, words }
            }
            Self::Reached { region, mover, .. } => {
                let copies = Some(Arc::new(mover.clone_for_user()) as Arc<dyn DeviceCopier>);
                EntryRegion { memory: region.clone(), heap, table, copies, words: None }
            }
        }
    }

    /// Returns the device's memory and the copy queue that moves its bytes for other ranks.
    pub(super) fn device_memory(&self) -> Option<(MemoryRange, Arc<dyn DeviceCopier>)> {
        match self {
            Self::Host(_) | Self::Pinned(_) | Self::Reached { .. } => None,
            Self::Device { region, mover, .. } => Some((region.clone(), Arc::new(mover.clone_for_user()))),
        }
    }
}

/// The resources of a window on a GPU.
#[derive(Debug)]
pub(super) struct OnGpu {
    device: GpuDevice,
    /// The memory of the window on the device, and the pinned memory.
    region: Option<MemoryRange>,
    pinned: PinnedMemory,
    lanes: KernelLanes,
    /// The tables of the view: peers, queues, words of channels, bases and epochs; all in the device's memory.
    tables: [MemoryRange; 4],
    view: DeviceView,
}

fn upload_words(device: &GpuDevice, words: &[u64]) -> Result<MemoryRange, DeviceError> {
    let memory = device.allocate(words.len() * 8)?;
    let mut bytes = try_vec(words.len() * 8)?;
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    device.copy_to_device(&memory, 0, &bytes)?;
    Ok(memory)
}

const fn join_halves(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

impl OnGpu {
    pub(super) fn new(
        gpu: &GpuPlacement,
        place: PartPlace,
        layout: &WindowLayout,
        channels: u32,
        lanes: KernelLanes,
        keys: &[EntryKey],
        rank: usize,
    ) -> Result<Self, DeviceError> {
        let device = &gpu.device;
        let shape = *layout.shape();
        let (region, pinned, first) = match place {
            PartPlace::Host(_) => return Err(DeviceError::OnHost),
            PartPlace::Pinned(pinned) => (None, pinned, None),
            PartPlace::Device { region, beside, .. } => (Some(region), beside, None),
            PartPlace::Reached { region, words, first, .. } => (Some(region), words, Some(first)),
        };
        let peer = |(rank, key): (u32, &EntryKey)| PeerView { rank, key: key.to_bits() };
        let mut peers = try_vec(keys.len())?;
        peers.extend((0..).zip(keys).map(peer).map(|peer| join_halves(peer.rank, peer.key)));
        let lane = |nth: u64| {
            let main = lanes.lane_views().addr() as u64 + nth * size_of::<QueueView>() as u64;
            [main, 0, 0]
        };
        let count = channels * shape.lanes;
        let mut queued = try_vec(count as usize * size_of::<LaneView>() / 8)?;
        queued.extend((0..u64::from(count)).flat_map(lane));
        const { assert!(size_of::<LaneView>() == 24 && size_of::<PeerView>() == 8) };
        let words = try_filled(0, channels as usize * DeviceTables::words_of_channel(shape.lanes))?;
        let [signals, counters] = [shape.ranks * shape.signals, shape.counters].map(u64::from);
        let bases = try_filled(0, (signals + counters + u64::from(shape.barriers)) as usize)?;
        let tables = [
            upload_words(device, &peers)?,
            upload_words(device, &queued)?,
            upload_words(device, &words)?,
            upload_words(device, &bases)?,
        ];
        let [peers, queued, words, bases] = tables.each_ref().map(|table| table.addr() as u64);
        let base = region.as_ref().map_or(pinned.device_address(), |region| region.addr() as u64);
        let view = DeviceView {
            base,
            slots: first.map_or(base, |first| pinned.device_address().wrapping_sub(first)),
            channels,
            signal_bases: bases,
            counter_bases: bases + signals * 8,
            epochs: bases + (signals + counters) * 8,
            peers,
            queues: queued,
            words,
            ..DeviceView::from_layout(layout, rank as u32)
        };
        debug_assert_eq!(view.version, VIEW_VERSION);
        Ok(Self { device: device.clone(), region, pinned, lanes, tables, view })
    }

    pub(super) fn write_bytes(&self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        match &self.region {
            Some(region) => Ok(self.device.copy_to_device(region, at, bytes)?),
            None => {
                // The caller has checked the range.
                let _ = self.pinned.memory().write(at, bytes);
                Ok(())
            }
        }
    }

    pub(super) fn read_bytes(&self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        match &self.region {
            Some(region) => Ok(self.device.copy_from_device(region, at, into)?),
            None => {
                let _ = self.pinned.memory().read(at, into);
                Ok(())
            }
        }
    }
}

/// The arguments of GPU kernels that use a window.
#[derive(Clone, Debug)]
pub struct GpuView {
    /// The numbers: `Window` in C++, passed by value.
    pub view: DeviceView,
    held: Vec<KernelArg>,
}

impl GpuView {
    /// Returns the numbers as words: the first words of a kernel's argument.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{DeviceError, Window};
    /// use trunkline::device::gpu::KernelArg;
    ///
    /// # fn example(window: &Window) -> Result<(), DeviceError> {
    /// let mut words = window.gpu_view()?.to_words();
    /// words.push(1000); // the argument is a structure of a `Window` and a length
    /// let arg = KernelArg::Words(words);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        self.view.to_words().to_vec()
    }

    /// Returns arguments that keep the memory of the view alive. Pass them after the arguments that the kernel reads;
    /// no kernel reads them.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::error::Error;
    /// # use trunkline::device::Window;
    /// # use trunkline::device::gpu::{KernelArg, KernelModule};
    /// # fn example(window: &Window, module: &KernelModule) -> Result<(), Box<dyn Error>> {
    /// let view = window.gpu_view()?;
    /// let mut args = vec![KernelArg::Words(view.to_words())];
    /// args.extend(view.held_args()); // the memory stays allocated until the kernel has ended
    /// let running = module.launch_kernel("ring_sum", 1, 32, args)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn held_args(&self) -> Vec<KernelArg> {
        self.held.clone()
    }
}

impl Window {
    /// Returns the arguments of GPU kernels that use this window.
    ///
    /// # Errors
    /// [`DeviceError::OnHost`] if kernels of this window run on the host.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::error::Error;
    /// # use std::time::Duration;
    /// # use trunkline::device::Window;
    /// # use trunkline::device::gpu::{KernelArg, KernelModule};
    /// # fn example(window: &Window, module: &KernelModule) -> Result<(), Box<dyn Error>> {
    /// let view = window.gpu_view()?;
    /// let mut args = vec![KernelArg::Words(view.to_words())]; // `Window` in C++, by value
    /// args.extend(view.held_args());
    /// let running = module.launch_kernel("ring_sum", 1, 32, args)?; // one block of 32 threads
    /// if !running.wait(Duration::from_secs(10))? {
    ///     eprintln!("the kernel has not ended after 10 seconds");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn gpu_view(&self) -> Result<GpuView, DeviceError> {
        let on_gpu = self.on_gpu.as_ref().ok_or(DeviceError::OnHost)?;
        let held =
            on_gpu.lanes.held_memory().into_iter().chain(on_gpu.tables.clone()).chain(on_gpu.region.clone());
        let held = held.map(KernelArg::Memory).chain([KernelArg::Pinned(on_gpu.pinned.clone())]);
        Ok(GpuView { view: on_gpu.view, held: held.collect() })
    }
}
