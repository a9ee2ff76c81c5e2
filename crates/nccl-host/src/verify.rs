//! Where a row's data lies in a rank's memory, how it is filled, and what must be there afterwards.
//!
//! Called by a rank's main thread while its progress thread rests. Every byte of the result, of the input of an
//! out-of-place run, and of the guards is looked at.

use crate::collective::Collective;
use crate::data::{POISON, fill_bytes, fill_values, wrong_bytes, wrong_values};
use crate::executor::Bases;
use crate::links::{INPUT, Memory, OUTPUT, SCRATCH};
use crate::schedule::Plan;

/// What stands in an extent.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// The bytes of a block.
    Block(u64),
    /// The values of one rank, before reduction.
    Values,
    /// The reduction of all ranks' values, from this element on.
    Reduced(usize),
}

/// An extent of elements and what stands there.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: usize,
    len: usize,
    content: Content,
}

/// The data of one row on one rank and communicator.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    plan: Plan,
    seed: u64,
    comm: u64,
}

impl Layout {
    pub(crate) fn new(plan: &Plan, seed: u64) -> Self {
        Self { plan: *plan, seed, comm: 0 }
    }

    pub(crate) fn with_seed(&self, seed: u64) -> Self {
        Self { seed, ..self.clone() }
    }

    pub(crate) fn with_comm(&self, index: usize) -> Self {
        Self { comm: index as u64, ..self.clone() }
    }

    /// Where the schedule's buffers lie.
    pub(crate) fn bases(&self) -> Bases {
        let plan = &self.plan;
        if !plan.in_place {
            return [(INPUT, 0), (OUTPUT, 0), (SCRATCH, 0)];
        }
        let (send, recv) = plan.collective.in_place_offsets(plan.block, plan.rank, plan.root);
        let size = plan.dtype.bytes();
        [(OUTPUT, send * size), (OUTPUT, recv * size), (SCRATCH, 0)]
    }

    /// Puts a pattern nobody expects where the result goes, then the input.
    pub(crate) fn fill(&self, memory: &Memory) {
        let size = self.plan.dtype.bytes();
        let counts = self.counts();
        let [(send_memory, send_base), (recv_memory, _), _] = self.bases();
        let whole = counts.0.max(counts.1) * size;
        // SAFETY: the progress thread rests, and the plugin has no request in flight.
        let output = unsafe { memory.buffers[recv_memory].slice_mut(0, whole) };
        fill_bytes(self.seed_here(), POISON, output);
        for part in self.input() {
            let offset = send_base + part.start * size;
            let bytes = part.len * size;
            // SAFETY: as above; the slice before is no longer used.
            let out = unsafe { memory.buffers[send_memory].slice_mut(offset, bytes) };
            self.fill_part(part, out);
        }
    }

    /// Counts what is wrong after a run.
    pub(crate) fn wrong(&self, memory: &Memory) -> u64 {
        let size = self.plan.dtype.bytes();
        let [(send_memory, send_base), (recv_memory, recv_base), _] = self.bases();
        let mut wrong: u64 = memory.buffers.iter().map(|buffer| buffer.damaged_guard_bytes()).sum();
        for part in self.output() {
            let offset = recv_base + part.start * size;
            let bytes = part.len * size;
            // SAFETY: the progress thread rests, and the plugin has no request in flight.
            let found = unsafe { memory.buffers[recv_memory].slice(offset, bytes) };
            wrong += self.wrong_part(part, found);
        }
        if !self.plan.in_place {
            for part in self.input() {
                let offset = send_base + part.start * size;
                let bytes = part.len * size;
                // SAFETY: as above.
                let found = unsafe { memory.buffers[send_memory].slice(offset, bytes) };
                wrong += self.wrong_part(part, found);
            }
        }
        wrong
    }

    fn fill_part(&self, part: Part, out: &mut [u8]) {
        let plan = &self.plan;
        match part.content {
            Content::Block(block) => fill_bytes(self.seed_here(), block, out),
            Content::Values | Content::Reduced(_) => {
                fill_values(plan.dtype, plan.op, self.seed_here(), plan.rank, part.start, out);
            }
        }
    }

    fn wrong_part(&self, part: Part, found: &[u8]) -> u64 {
        let plan = &self.plan;
        let seed = self.seed_here();
        match part.content {
            Content::Block(block) => wrong_bytes(seed, block, found, plan.dtype.bytes()),
            Content::Values => {
                let own = plan.rank..plan.rank + 1;
                wrong_values(plan.dtype, plan.op, seed, own, part.start, found)
            }
            Content::Reduced(first) => wrong_values(plan.dtype, plan.op, seed, 0..plan.ranks, first, found),
        }
    }

    /// Communicators carry different data, so that bytes of one never pass for those of another.
    fn seed_here(&self) -> u64 {
        self.seed.wrapping_add(self.comm.wrapping_mul(0x9e37_79b9))
    }

    fn counts(&self) -> (usize, usize) {
        let plan = &self.plan;
        let total = plan.collective.algorithm_bytes(plan.block, plan.ranks);
        let counts = plan.collective.counts(total, plan.ranks);
        (counts.send, counts.recv)
    }

    /// What this rank sends, by places in the send buffer.
    fn input(&self) -> Vec<Part> {
        let plan = &self.plan;
        let rank = plan.rank;
        let block = plan.block;
        let one = |content| vec![Part { start: 0, len: block, content }];
        match plan.collective {
            Collective::AllReduce | Collective::Reduce => one(Content::Values),
            Collective::ReduceScatter => {
                vec![Part { start: 0, len: block * plan.ranks, content: Content::Values }]
            }
            Collective::AllGather | Collective::Gather | Collective::SendRecv => {
                one(Content::Block(pair(rank, 0)))
            }
            Collective::Broadcast | Collective::Scatter if rank != plan.root => Vec::new(),
            Collective::Broadcast => one(Content::Block(pair(rank, 0))),
            Collective::Scatter | Collective::AllToAll | Collective::AllToAllV => (0..plan.ranks)
                .map(|peer| {
                    let (start, len) = plan.collective.block_between(block, plan.ranks, rank, peer);
                    Part { start, len, content: Content::Block(pair(rank, peer)) }
                })
                .collect(),
        }
    }

    /// What this rank must have received, by places in the receive buffer.
    fn output(&self) -> Vec<Part> {
        let plan = &self.plan;
        let rank = plan.rank;
        let block = plan.block;
        let ranks = plan.ranks;
        let one = |content| vec![Part { start: 0, len: block, content }];
        let untouched = |len| {
            let content = Content::Block(POISON);
            if plan.in_place { Vec::new() } else { vec![Part { start: 0, len, content }] }
        };
        match plan.collective {
            Collective::AllReduce => one(Content::Reduced(0)),
            Collective::ReduceScatter => one(Content::Reduced(rank * block)),
            Collective::Reduce if rank == plan.root => one(Content::Reduced(0)),
            Collective::Reduce => untouched(block),
            Collective::Broadcast => one(Content::Block(pair(plan.root, 0))),
            Collective::Scatter => one(Content::Block(pair(plan.root, rank))),
            Collective::SendRecv => one(Content::Block(pair((rank + ranks - 1) % ranks, 0))),
            Collective::Gather if rank != plan.root => untouched(block * ranks),
            Collective::AllGather | Collective::Gather => (0..ranks)
                .map(|peer| {
                    let content = Content::Block(pair(peer, 0));
                    Part { start: peer * block, len: block, content }
                })
                .collect(),
            Collective::AllToAll | Collective::AllToAllV => (0..ranks)
                .map(|peer| {
                    let (start, len) = plan.collective.block_between(block, ranks, rank, peer);
                    Part { start, len, content: Content::Block(pair(peer, rank)) }
                })
                .collect(),
        }
    }
}

/// Block number of what one rank sends to another.
fn pair(from: usize, to: usize) -> u64 {
    (from as u64) << 16 | to as u64
}
