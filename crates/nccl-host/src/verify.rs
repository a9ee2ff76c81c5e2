//! The layout of a row's data in a rank's memory, how it is filled, and its expected content after a run.
//!
//! Called by a rank's main thread while its progress thread is idle. It checks every byte of the result, of the input
//! of an out-of-place run, and of the guards.

use crate::collective::Collective;
use crate::data::{POISON, fill_bytes, fill_values, wrong_bytes, wrong_values};
use crate::executor::BufferBases;
use crate::links::{CommMemory, INPUT, OUTPUT, SCRATCH};
use crate::schedule::SchedulePlan;

/// The content of an extent.
#[derive(Clone, Copy, Debug)]
enum ExtentContent {
    /// The bytes of a block.
    Block(u64),
    /// The values of one rank before the reduction.
    Values,
    /// The reduction of all ranks' values, from this element on.
    Reduced(usize),
}

/// An extent of elements and its content.
#[derive(Clone, Copy, Debug)]
struct CheckedExtent {
    start: usize,
    len: usize,
    content: ExtentContent,
}

/// The data of one row on one rank and communicator.
#[derive(Clone, Debug)]
pub(crate) struct RowExtents {
    plan: SchedulePlan,
    seed: u64,
    comm: u64,
}

impl RowExtents {
    pub(crate) fn new(plan: &SchedulePlan, seed: u64) -> Self {
        Self { plan: *plan, seed, comm: 0 }
    }

    pub(crate) fn with_seed(&self, seed: u64) -> Self {
        Self { seed, ..self.clone() }
    }

    pub(crate) fn with_comm(&self, index: usize) -> Self {
        Self { comm: index as u64, ..self.clone() }
    }

    /// Returns the positions of the schedule's buffers.
    pub(crate) fn buffer_bases(&self) -> BufferBases {
        let plan = &self.plan;
        if !plan.in_place {
            return [(INPUT, 0), (OUTPUT, 0), (SCRATCH, 0)];
        }
        let (send, recv) = plan.collective.in_place_offsets(plan.block, plan.rank, plan.root);
        let size = plan.dtype.element_bytes();
        [(OUTPUT, send * size), (OUTPUT, recv * size), (SCRATCH, 0)]
    }

    /// Fills the result with a pattern that no check expects, then the input.
    pub(crate) fn fill_memory(&self, memory: &CommMemory) {
        let size = self.plan.dtype.element_bytes();
        let counts = self.buffer_counts();
        let [(send_memory, send_base), (recv_memory, _), _] = self.buffer_bases();
        let whole = counts.0.max(counts.1) * size;
        // SAFETY: the progress thread is idle and the plugin has no request in flight, so nothing else accesses the
        // memory.
        let output = unsafe { memory.buffers[recv_memory].slice_mut(0, whole) };
        fill_bytes(self.seed_here(), POISON, output);
        for part in self.input_extents() {
            let offset = send_base + part.start * size;
            let bytes = part.len * size;
            // SAFETY: as above; the earlier slice is no longer used.
            let out = unsafe { memory.buffers[send_memory].slice_mut(offset, bytes) };
            self.fill_part(part, out);
        }
    }

    /// Counts wrong elements after a run.
    pub(crate) fn count_wrong(&self, memory: &CommMemory) -> u64 {
        let size = self.plan.dtype.element_bytes();
        let [(send_memory, send_base), (recv_memory, recv_base), _] = self.buffer_bases();
        let mut wrong: u64 = memory.buffers.iter().map(|buffer| buffer.damaged_guard_bytes()).sum();
        for part in self.output_extents() {
            let offset = recv_base + part.start * size;
            let bytes = part.len * size;
            // SAFETY: the progress thread is idle and the plugin has no request in flight, so nothing writes the
            // memory.
            let found = unsafe { memory.buffers[recv_memory].slice(offset, bytes) };
            wrong += self.wrong_part(part, found);
        }
        if !self.plan.in_place {
            for part in self.input_extents() {
                let offset = send_base + part.start * size;
                let bytes = part.len * size;
                // SAFETY: as above.
                let found = unsafe { memory.buffers[send_memory].slice(offset, bytes) };
                wrong += self.wrong_part(part, found);
            }
        }
        wrong
    }

    fn fill_part(&self, part: CheckedExtent, out: &mut [u8]) {
        let plan = &self.plan;
        match part.content {
            ExtentContent::Block(block) => fill_bytes(self.seed_here(), block, out),
            ExtentContent::Values | ExtentContent::Reduced(_) => {
                fill_values(plan.dtype, plan.op, self.seed_here(), plan.rank, part.start, out);
            }
        }
    }

    fn wrong_part(&self, part: CheckedExtent, found: &[u8]) -> u64 {
        let plan = &self.plan;
        let seed = self.seed_here();
        match part.content {
            ExtentContent::Block(block) => wrong_bytes(seed, block, found, plan.dtype.element_bytes()),
            ExtentContent::Values => {
                let own = plan.rank..plan.rank + 1;
                wrong_values(plan.dtype, plan.op, seed, own, part.start, found)
            }
            ExtentContent::Reduced(first) => {
                wrong_values(plan.dtype, plan.op, seed, 0..plan.ranks, first, found)
            }
        }
    }

    /// Returns a seed that differs between communicators, so that bytes of one are never correct for another.
    fn seed_here(&self) -> u64 {
        self.seed.wrapping_add(self.comm.wrapping_mul(0x9e37_79b9))
    }

    fn buffer_counts(&self) -> (usize, usize) {
        let plan = &self.plan;
        let total = plan.collective.algorithm_bytes(plan.block, plan.ranks);
        let counts = plan.collective.element_counts(total, plan.ranks);
        (counts.send, counts.recv)
    }

    /// Returns the extents that this rank sends, as positions in the send buffer.
    fn input_extents(&self) -> Vec<CheckedExtent> {
        let plan = &self.plan;
        let rank = plan.rank;
        let block = plan.block;
        let one = |content| vec![CheckedExtent { start: 0, len: block, content }];
        match plan.collective {
            Collective::AllReduce | Collective::Reduce => one(ExtentContent::Values),
            Collective::ReduceScatter => {
                vec![CheckedExtent { start: 0, len: block * plan.ranks, content: ExtentContent::Values }]
            }
            Collective::AllGather | Collective::Gather | Collective::SendRecv => {
                one(ExtentContent::Block(pair_block(rank, 0)))
            }
            Collective::Broadcast | Collective::Scatter if rank != plan.root => Vec::new(),
            Collective::Broadcast => one(ExtentContent::Block(pair_block(rank, 0))),
            Collective::Scatter | Collective::AllToAll | Collective::AllToAllV => (0..plan.ranks)
                .map(|peer| {
                    let (start, len) = plan.collective.block_between(block, plan.ranks, rank, peer);
                    CheckedExtent { start, len, content: ExtentContent::Block(pair_block(rank, peer)) }
                })
                .collect(),
        }
    }

    /// Returns the extents that this rank must have received, as positions in the receive buffer.
    fn output_extents(&self) -> Vec<CheckedExtent> {
        let plan = &self.plan;
        let rank = plan.rank;
        let block = plan.block;
        let ranks = plan.ranks;
        let one = |content| vec![CheckedExtent { start: 0, len: block, content }];
        let untouched = |len| {
            let content = ExtentContent::Block(POISON);
            if plan.in_place { Vec::new() } else { vec![CheckedExtent { start: 0, len, content }] }
        };
        match plan.collective {
            Collective::AllReduce => one(ExtentContent::Reduced(0)),
            Collective::ReduceScatter => one(ExtentContent::Reduced(rank * block)),
            Collective::Reduce if rank == plan.root => one(ExtentContent::Reduced(0)),
            Collective::Reduce => untouched(block),
            Collective::Broadcast => one(ExtentContent::Block(pair_block(plan.root, 0))),
            Collective::Scatter => one(ExtentContent::Block(pair_block(plan.root, rank))),
            Collective::SendRecv => one(ExtentContent::Block(pair_block((rank + ranks - 1) % ranks, 0))),
            Collective::Gather if rank != plan.root => untouched(block * ranks),
            Collective::AllGather | Collective::Gather => (0..ranks)
                .map(|peer| {
                    let content = ExtentContent::Block(pair_block(peer, 0));
                    CheckedExtent { start: peer * block, len: block, content }
                })
                .collect(),
            Collective::AllToAll | Collective::AllToAllV => (0..ranks)
                .map(|peer| {
                    let (start, len) = plan.collective.block_between(block, ranks, rank, peer);
                    CheckedExtent { start, len, content: ExtentContent::Block(pair_block(peer, rank)) }
                })
                .collect(),
        }
    }
}

/// Returns the number of the block that one rank sends to another.
fn pair_block(from: usize, to: usize) -> u64 {
    (from as u64) << 16 | to as u64
}
