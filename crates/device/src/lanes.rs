//! The data for a kernel of a GPU: the lanes of an executor by the device's addresses, and the words in the device's memory that belong to
//! them. Created by the code that launches kernels, before a launch; nothing here is called while a kernel runs.

use trunkline_device_queue::view::{CLAIMS_BYTES, DeviceWords, GROUP_BYTES, WORDS_BYTES};
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::{DriverCallError, GpuDevice, RangeError};

use crate::driver::DeviceQueues;
use crate::network::MemberNetwork;
use crate::queue_error::QueueError;

/// Bytes of a view.
const VIEW_BYTES: u64 = 128;
/// Bytes of a queue's producers' words, and of its claims, which have a line of their own.
const OWN_BYTES: u64 = WORDS_BYTES + 128;

const _: () =
    assert!(CLAIMS_BYTES <= 128 && size_of::<trunkline_device_queue::QueueView>() as u64 == VIEW_BYTES);

/// The lanes to create for kernels, and the number of blocks.
#[derive(Clone, Copy, Debug)]
pub struct LanePlan {
    /// The number of lanes.
    pub lanes: u32,
    /// The depth of each queue.
    pub depth: u32,
    /// The index of the first entry of each lane.
    pub first: u64,
    /// The largest number of blocks of a kernel.
    pub blocks: u32,
}

/// Lanes of one executor, for kernels of one device.
#[derive(Clone, Debug)]
pub struct KernelLanes {
    device: GpuDevice,
    /// Views of the lanes, and behind them those of their companions.
    views: MemoryRange,
    /// Held because the views contain addresses in it.
    _own: MemoryRange,
    /// Words of channels, and words of groups, for each block.
    channels: MemoryRange,
    groups: MemoryRange,
    blocks: u32,
    first: u64,
    numbers: Vec<[u32; 2]>,
}

/// Created lanes, whose queues are ended on drop: a failure leaves no queue behind.
struct LanesGuard<'q, N: MemberNetwork + 'static> {
    queues: &'q DeviceQueues<N>,
    numbers: Vec<[u32; 2]>,
}

impl<N: MemberNetwork + 'static> Drop for LanesGuard<'_, N> {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|&[number, _]| self.queues.end_queue(number));
    }
}

/// No lanes were created.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LanesError {
    /// No queue can be created.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// No memory of the device is available.
    #[error(transparent)]
    Call(#[from] DriverCallError),
    /// That memory cannot be written.
    #[error(transparent)]
    Range(#[from] RangeError),
}

impl KernelLanes {
    /// Creates the lanes of `plan`, with their companions, for kernels of `device`.
    ///
    /// # Errors
    /// [`LanesError`].
    pub fn new<N: MemberNetwork + 'static>(
        device: &GpuDevice,
        queues: &DeviceQueues<N>,
        plan: LanePlan,
    ) -> Result<Self, LanesError> {
        let LanePlan { lanes, depth, first, blocks } = plan;
        let count = u64::from(lanes) * 2;
        let own = device.allocate((count * OWN_BYTES) as usize)?;
        let views = device.allocate((count * VIEW_BYTES) as usize)?;
        let mut making = LanesGuard { queues, numbers: Vec::with_capacity(lanes as usize) };
        for _ in 0..lanes {
            making.numbers.push(queues.make_lane(device, depth, first)?);
        }
        for which in [0, 1] {
            for (lane, of) in (0_u64..).zip(&making.numbers) {
                let at = which as u64 * u64::from(lanes) + lane;
                let words = own.addr() as u64 + at * OWN_BYTES;
                let shared = DeviceWords { words, claims: words + WORDS_BYTES };
                let view = queues.with_executor(|executor| executor.queue_view(of[which], shared));
                let view = view.ok_or(QueueError::Device)?;
                device.copy_to_device(
                    &own,
                    at * OWN_BYTES,
                    &words_to_bytes(&DeviceWords::initial_words(first)),
                )?;
                device.copy_to_device(&views, at * VIEW_BYTES, &words_to_bytes(&view.to_words()))?;
            }
        }
        let channels = device.allocate((u64::from(blocks) * channel_bytes(lanes)) as usize)?;
        let groups = device.allocate((u64::from(blocks) * GROUP_BYTES) as usize)?;
        let device = device.clone();
        let numbers = making.numbers.clone();
        let made = Self { device, views, _own: own, channels, groups, blocks, first, numbers };
        made.begin_channels()?;
        // The lanes belong to the result now, so the guard must not end them.
        making.numbers.clear();
        Ok(made)
    }

    /// Sets the words of the channels to the first indices of the lanes.
    fn begin_channels(&self) -> Result<(), LanesError> {
        let mut words = vec![self.first; 2 * self.numbers.len()];
        words.extend([0, 0]);
        for block in 0..u64::from(self.blocks) {
            let at = block * channel_bytes(self.numbers.len() as u32);
            self.device.copy_to_device(&self.channels, at, &words_to_bytes(&words))?;
        }
        Ok(())
    }

    /// Returns the views, for [`KernelJob::to_words`].
    #[must_use]
    pub const fn lane_views(&self) -> &MemoryRange {
        &self.views
    }

    /// Returns the numbers of the queues and of their companions, by lane.
    #[must_use]
    pub fn queue_numbers(&self) -> &[[u32; 2]] {
        &self.numbers
    }

    /// Returns all memory that kernels access through these lanes. The caller holds it while they run.
    #[must_use]
    pub fn held_memory(&self) -> [MemoryRange; 4] {
        [self.views.clone(), self._own.clone(), self.channels.clone(), self.groups.clone()]
    }
}

fn channel_bytes(lanes: u32) -> u64 {
    (2 * u64::from(lanes) + 2) * 8
}

fn words_to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The arguments of the kernels in `crates/device-queue/src/kernels.h`: the twin of `kernels::Job`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelJob {
    /// The device's address of the slots of 16 bytes that are raised here.
    pub slots: u64,
    /// The device's address of the bases of these slots, one word each.
    pub bases: u64,
    /// The device's address of the region's bytes.
    pub data: u64,
    /// The device's address of the results, one word per thread.
    pub results: u64,
    /// The keys of the region here, and of the peer's region.
    pub keys: [u32; 2],
    /// The rank of the peer.
    pub peer: u32,
    /// Offset of the slots in the peer's region.
    pub slots_at: u64,
    /// The number of rounds.
    pub rounds: u64,
    /// The number of entries of a batch.
    pub batch: u64,
    /// The number of bytes of a transfer.
    pub bytes: u64,
    /// The limit of each wait, in ticks; 0 for no limit.
    pub ticks: u64,
    /// A number of the kernel's own, whose meaning depends on the kernel.
    pub number: u64,
}

impl KernelJob {
    /// Returns the words of the job with these lanes, in the order of `kernels::Job`.
    #[must_use]
    pub fn to_words(&self, lanes: &KernelLanes) -> Vec<u64> {
        vec![
            lanes.views.addr() as u64,
            lanes.numbers.len() as u64,
            lanes.channels.addr() as u64,
            lanes.groups.addr() as u64,
            self.slots,
            self.bases,
            self.data,
            self.results,
            u64::from(self.keys[0]) | u64::from(self.keys[1]) << 32,
            self.peer.into(),
            self.slots_at,
            self.rounds,
            self.batch,
            self.bytes,
            self.ticks,
            self.number,
        ]
    }
}
