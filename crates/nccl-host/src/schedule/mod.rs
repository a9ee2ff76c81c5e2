//! Schedules: a collective as a list of sends, receives, reductions and copies of one rank.
//!
//! Pure: numbers in, steps out. The rank builds a schedule once per row, and the executor runs it many times. A
//! schedule refers to links and extents, never to a plugin, a pointer or a clock.
//!
//! Order: steps of one link and direction run in list order, and so do the local steps of one queue; between queues,
//! only the dependencies of a step count. Every send and receive carries at most one chunk. For each send, the peer
//! has a receive at the same position of its list.

mod pairwise;
mod ring;
mod star;

use serde::{Deserialize, Serialize};

use crate::collective::Collective;
use crate::types::{DataType, RedOp};

/// Steps in flight on a link and direction, at most: NCCL's `NCCL_STEPS`.
pub(crate) const STEPS_IN_FLIGHT: usize = 8;

/// Chunks of a block that is reduced or forwarded, unless they become too small.
const CHUNKS_OF_A_BLOCK: usize = 4;
/// Bytes of a chunk that is reduced, at most: it should still be in the cache then.
const REDUCED_BYTES_MAX: usize = 1 << 20;
/// A chunk is not cut below this length, because each message has a fixed cost.
const CHUNK_BYTES_MIN: usize = 32 << 10;

/// One of the three buffers of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferSpace {
    /// The input; in place it lies inside the output's memory.
    Send,
    /// The output.
    Recv,
    /// Slots for chunks that are not at their final place yet.
    Scratch,
}

/// A position in a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferOffset {
    /// The buffer.
    pub(crate) space: BufferSpace,
    /// Byte offset in it.
    pub(crate) offset: usize,
}

/// Number of a step in its schedule.
pub(crate) type StepId = u32;

/// No dependency.
pub(crate) const NONE: StepId = StepId::MAX;

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepWork {
    /// Sends an extent on a link.
    Send {
        /// Outgoing link.
        link: usize,
        /// The source.
        from: BufferOffset,
    },
    /// Receives an extent from a link.
    Recv {
        /// Incoming link.
        link: usize,
        /// The target.
        into: BufferOffset,
    },
    /// `into = a op b`, followed by the division of `Avg` if it is the last operation.
    Reduce {
        /// Result.
        into: BufferOffset,
        /// One operand.
        a: BufferOffset,
        /// The other operand.
        b: BufferOffset,
        /// Whether the result contains every rank's values.
        last: bool,
    },
    /// Copies an extent.
    Copy {
        /// The target.
        into: BufferOffset,
        /// The source.
        from: BufferOffset,
    },
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduleStep {
    /// Its action.
    pub(crate) work: StepWork,
    /// Length in bytes.
    pub(crate) bytes: usize,
    /// Steps that must complete before it starts.
    pub(crate) after: [StepId; 2],
}

/// The connections that a rank needs.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum ConnectionGraph {
    /// To the next rank, and from the previous one.
    Ring,
    /// To and from every other rank.
    Full,
    /// From every rank to the root.
    Gather(usize),
    /// From the root to every rank.
    Scatter(usize),
}

impl ConnectionGraph {
    /// Returns the connections of a collective.
    pub(crate) fn for_collective(collective: Collective, root: usize) -> Self {
        match collective {
            Collective::AllToAll | Collective::AllToAllV => Self::Full,
            Collective::Gather => Self::Gather(root),
            Collective::Scatter => Self::Scatter(root),
            _ => Self::Ring,
        }
    }

    /// Returns the ranks that `rank` sends to, in the order of its outgoing links.
    pub(crate) fn peers_out(self, rank: usize, ranks: usize) -> Vec<usize> {
        match self {
            Self::Ring => vec![(rank + 1) % ranks],
            Self::Full => (1..ranks).map(|d| (rank + d) % ranks).collect(),
            Self::Gather(root) if rank != root => vec![root],
            Self::Scatter(root) if rank == root => (1..ranks).map(|d| (rank + d) % ranks).collect(),
            Self::Gather(_) | Self::Scatter(_) => Vec::new(),
        }
    }

    /// Returns the ranks that `rank` receives from, in the order of its incoming links.
    pub(crate) fn peers_in(self, rank: usize, ranks: usize) -> Vec<usize> {
        match self {
            Self::Ring => vec![(rank + ranks - 1) % ranks],
            Self::Full => (1..ranks).map(|d| (rank + ranks - d) % ranks).collect(),
            Self::Gather(root) if rank == root => (1..ranks).map(|d| (rank + ranks - d) % ranks).collect(),
            Self::Scatter(root) if rank != root => vec![root],
            Self::Gather(_) | Self::Scatter(_) => Vec::new(),
        }
    }
}

/// The parameters of a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchedulePlan {
    /// The collective.
    pub(crate) collective: Collective,
    /// Type of an element.
    pub(crate) dtype: DataType,
    /// The operator, if one is needed.
    pub(crate) op: RedOp,
    /// Elements of one rank's part.
    pub(crate) block: usize,
    /// This rank.
    pub(crate) rank: usize,
    /// Number of ranks.
    pub(crate) ranks: usize,
    /// The root rank.
    pub(crate) root: usize,
    /// Whether send and receive buffer are the same.
    pub(crate) in_place: bool,
    /// Channels that share the work.
    pub(crate) channels: usize,
    /// Bytes of one message, at most.
    pub(crate) chunk: usize,
    /// Bytes of a scratch slot: at least a chunk.
    pub(crate) slot: usize,
}

/// The schedule of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankSchedule {
    /// All steps.
    pub(crate) steps: Vec<ScheduleStep>,
    /// Steps of each outgoing link; link `c * peers + p` is channel `c` to peer `p`.
    pub(crate) send_queues: Vec<Vec<StepId>>,
    /// Steps of each incoming link.
    pub(crate) recv_queues: Vec<Vec<StepId>>,
    /// Local steps: one queue per incoming link, then one for each channel's own blocks.
    pub(crate) local_queues: Vec<Vec<StepId>>,
}

impl RankSchedule {
    /// Builds the schedule of one rank.
    pub(crate) fn build(plan: &SchedulePlan) -> Self {
        let graph = ConnectionGraph::for_collective(plan.collective, plan.root);
        let links_out = graph.peers_out(plan.rank, plan.ranks).len();
        let links_in = graph.peers_in(plan.rank, plan.ranks).len();
        let mut schedule = Self {
            steps: Vec::new(),
            send_queues: vec![Vec::new(); links_out * plan.channels],
            recv_queues: vec![Vec::new(); links_in * plan.channels],
            local_queues: vec![Vec::new(); (links_in + 1) * plan.channels],
        };
        for channel in 0..plan.channels {
            let mut builder = ScheduleBuilder {
                plan,
                schedule: &mut schedule,
                channel,
                links_out,
                links_in,
                slots: vec![SlotRing::default(); links_in],
            };
            match plan.collective {
                Collective::AllReduce => ring::all_reduce(&mut builder),
                Collective::AllGather => ring::all_gather(&mut builder),
                Collective::ReduceScatter => ring::reduce_scatter(&mut builder),
                Collective::Reduce => ring::reduce_chain(&mut builder),
                Collective::Broadcast => ring::broadcast_chain(&mut builder),
                Collective::SendRecv => pairwise::sendrecv(&mut builder),
                Collective::AllToAll | Collective::AllToAllV => pairwise::all_to_all(&mut builder),
                Collective::Gather => star::gather(&mut builder),
                Collective::Scatter => star::scatter(&mut builder),
            }
        }
        schedule
    }

    /// Returns the bytes of scratch that any rank of such a plan needs.
    pub(crate) fn scratch_bytes(
        graph: ConnectionGraph,
        rank: usize,
        ranks: usize,
        channels: usize,
        slot: usize,
    ) -> usize {
        graph.peers_in(rank, ranks).len() * channels * STEPS_IN_FLIGHT * slot
    }
}

/// The scratch slots of one incoming link, with the steps that must complete before a slot is free.
#[derive(Clone, Debug)]
struct SlotRing {
    next: usize,
    holder: [StepId; STEPS_IN_FLIGHT],
}

impl Default for SlotRing {
    fn default() -> Self {
        Self { next: 0, holder: [NONE; STEPS_IN_FLIGHT] }
    }
}

/// A chunk of a block: byte offset in the buffer, and length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockChunk {
    offset: usize,
    bytes: usize,
}

/// Appends the steps of one channel.
struct ScheduleBuilder<'a> {
    plan: &'a SchedulePlan,
    schedule: &'a mut RankSchedule,
    channel: usize,
    links_out: usize,
    links_in: usize,
    slots: Vec<SlotRing>,
}

impl ScheduleBuilder<'_> {
    fn push(&mut self, work: StepWork, bytes: usize, after: [StepId; 2]) -> StepId {
        let id = self.schedule.steps.len() as StepId;
        self.schedule.steps.push(ScheduleStep { work, bytes, after });
        id
    }

    fn push_send(&mut self, link: usize, from: BufferOffset, bytes: usize, after: StepId) -> StepId {
        let link = self.channel * self.links_out + link;
        let id = self.push(StepWork::Send { link, from }, bytes, [after, NONE]);
        self.schedule.send_queues[link].push(id);
        id
    }

    fn push_recv(&mut self, link: usize, into: BufferOffset, bytes: usize, after: StepId) -> StepId {
        let link = self.channel * self.links_in + link;
        let id = self.push(StepWork::Recv { link, into }, bytes, [after, NONE]);
        self.schedule.recv_queues[link].push(id);
        id
    }

    /// Receives into the link's next scratch slot; the caller later sets the steps that use the slot.
    fn recv_scratch(&mut self, link: usize, bytes: usize) -> (StepId, BufferOffset, usize) {
        let slot = self.slots[link].next % STEPS_IN_FLIGHT;
        let after = self.slots[link].holder[slot];
        self.slots[link].next += 1;
        let row = self.channel * self.links_in + link;
        let offset = (row * STEPS_IN_FLIGHT + slot) * self.plan.slot;
        let place = BufferOffset { space: BufferSpace::Scratch, offset };
        (self.push_recv(link, place, bytes, after), place, slot)
    }

    fn hold_slot(&mut self, link: usize, slot: usize, holder: StepId) {
        self.slots[link].holder[slot] = holder;
    }

    /// Adds a local step to the queue of an incoming link, or to the channel's own.
    fn push_local(
        &mut self,
        link: Option<usize>,
        work: StepWork,
        bytes: usize,
        after: [StepId; 2],
    ) -> StepId {
        let queue = self.channel * (self.links_in + 1) + link.map_or(self.links_in, |link| link);
        let id = self.push(work, bytes, after);
        self.schedule.local_queues[queue].push(id);
        id
    }

    /// Copies chunks inside this rank, if source and target differ.
    fn copy_own(&mut self, from: &[BlockChunk], into_offset: usize) {
        if self.plan.in_place {
            return;
        }
        let base = from.first().map_or(0, |chunk| chunk.offset);
        for chunk in from {
            let into = BufferOffset { space: BufferSpace::Recv, offset: into_offset + (chunk.offset - base) };
            let from = BufferOffset { space: BufferSpace::Send, offset: chunk.offset };
            self.push_local(None, StepWork::Copy { into, from }, chunk.bytes, [NONE, NONE]);
        }
    }

    /// Returns this channel's share of `len` elements that start at element `start`, in chunks.
    fn channel_share(&self, start: usize, len: usize) -> Vec<BlockChunk> {
        let (from, share) = split_part(len, self.plan.channels, self.channel);
        self.cut_chunks(start + from, share)
    }

    /// Returns the chunk length in bytes, at most, for a block of that length.
    ///
    /// A block that a rank reduces or forwards is cut at least into four, so that the next chunk is transferred
    /// meanwhile. For blocks that are only sent and received, fewer and larger messages are better.
    fn chunk_bytes(&self, block: usize) -> usize {
        let plan = self.plan;
        let passes_on = plan.collective.is_reduction()
            || (plan.ranks > 2
                && ConnectionGraph::for_collective(plan.collective, 0) == ConnectionGraph::Ring);
        if !passes_on || plan.collective == Collective::SendRecv {
            return plan.chunk;
        }
        let most =
            if plan.collective.is_reduction() { plan.chunk.min(REDUCED_BYTES_MAX) } else { plan.chunk };
        (block / CHUNKS_OF_A_BLOCK).max(CHUNK_BYTES_MIN).min(most)
    }

    /// Cuts elements into chunks of nearly equal size; empty for no elements.
    fn cut_chunks(&self, start: usize, len: usize) -> Vec<BlockChunk> {
        let size = self.plan.dtype.element_bytes();
        let per_chunk = (self.chunk_bytes(len * size) / size).max(1);
        let count = len.div_ceil(per_chunk);
        (0..count)
            .map(|index| {
                let (from, part) = split_part(len, count, index);
                BlockChunk { offset: (start + from) * size, bytes: part * size }
            })
            .collect()
    }
}

/// Returns part `index` of `len`, cut into `parts` nearly equal parts: (start, length).
fn split_part(len: usize, parts: usize, index: usize) -> (usize, usize) {
    let each = len / parts;
    let more = len % parts;
    (index * each + index.min(more), each + usize::from(index < more))
}

fn send_at(offset: usize) -> BufferOffset {
    BufferOffset { space: BufferSpace::Send, offset }
}

fn recv_at(offset: usize) -> BufferOffset {
    BufferOffset { space: BufferSpace::Recv, offset }
}

#[cfg(test)]
mod tests;
