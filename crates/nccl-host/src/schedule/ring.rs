//! Ring schedules: all_reduce, all_gather, reduce_scatter, and the chains of reduce and broadcast.
//!
//! Built by `RankSchedule::build` for one channel. Partial results are kept in scratch slots; everything else is sent
//! from and received into the user's buffers.

use super::{
    BlockChunk, BufferOffset, NONE, STEPS_IN_FLIGHT, ScheduleBuilder, StepId, StepWork, recv_at, send_at,
    split_part,
};

/// Chunks of a reduce_scatter that are sent in a group: half of the slots, so that the other half can receive.
const CHUNKS_TOGETHER: usize = STEPS_IN_FLIGHT / 2;

/// Sends the chunks of a step, and records the last reader of each.
fn send_all(
    b: &mut ScheduleBuilder<'_>,
    chunks: &[BlockChunk],
    from_recv: bool,
    ready: &[StepId],
) -> Vec<StepId> {
    let mut sent = Vec::with_capacity(chunks.len());
    for (index, chunk) in chunks.iter().enumerate() {
        let from = if from_recv { recv_at(chunk.offset) } else { send_at(chunk.offset) };
        sent.push(b.push_send(0, from, chunk.bytes, ready.get(index).copied().unwrap_or(NONE)));
    }
    sent
}

/// Returns the chunks of each of the `ranks` blocks of this channel's share of an all_reduce.
fn all_reduce_blocks(b: &ScheduleBuilder<'_>) -> Vec<Vec<BlockChunk>> {
    let (start, len) = split_part(b.plan.block, b.plan.channels, b.channel);
    (0..b.plan.ranks)
        .map(|block| {
            let (from, part) = split_part(len, b.plan.ranks, block);
            b.cut_chunks(start + from, part)
        })
        .collect()
}

/// Reduce-scatter then all-gather over blocks of one buffer.
pub(super) fn all_reduce(b: &mut ScheduleBuilder<'_>) {
    let n = b.plan.ranks;
    let r = b.plan.rank;
    let blocks = all_reduce_blocks(b);
    let mut ready: Vec<Vec<StepId>> = vec![Vec::new(); n];
    let mut sent: Vec<Vec<StepId>> = vec![Vec::new(); n];
    for step in 0..n - 1 {
        let out = (r + n - step) % n;
        let into = (r + 2 * n - step - 1) % n;
        let ids = send_all(b, &blocks[out], step > 0, &ready[out]);
        // Out of place, the first step reads the input, which no step overwrites.
        if step > 0 || b.plan.in_place {
            sent[out] = ids;
        }
        for chunk in &blocks[into] {
            let (arrived, slot_place, slot) = b.recv_scratch(0, chunk.bytes);
            let work = StepWork::Reduce {
                into: recv_at(chunk.offset),
                a: send_at(chunk.offset),
                b: slot_place,
                last: step + 2 == n,
            };
            let reduced = b.push_local(Some(0), work, chunk.bytes, [arrived, NONE]);
            b.hold_slot(0, slot, reduced);
            ready[into].push(reduced);
        }
    }
    for step in 0..n - 1 {
        let out = (r + 1 + n - step) % n;
        let into = (r + n - step) % n;
        send_all(b, &blocks[out], true, &ready[out].clone());
        ready[into].clear();
        for (index, chunk) in blocks[into].iter().enumerate() {
            let after = sent[into].get(index).copied().unwrap_or(NONE);
            let arrived = b.push_recv(0, recv_at(chunk.offset), chunk.bytes, after);
            ready[into].push(arrived);
        }
    }
}

/// Sends every block once around the ring.
pub(super) fn all_gather(b: &mut ScheduleBuilder<'_>) {
    let n = b.plan.ranks;
    let r = b.plan.rank;
    let block = b.plan.block;
    let size = b.plan.dtype.element_bytes();
    // The send buffer starts with this rank's block, wherever it lies.
    let own = b.channel_share(0, block);
    send_all(b, &own, false, &[]);
    for step in 0..n - 1 {
        let into = (r + n - step - 1) % n;
        let chunks = b.channel_share(into * block, block);
        let mut arrived = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            arrived.push(b.push_recv(0, recv_at(chunk.offset), chunk.bytes, NONE));
        }
        if step + 2 < n {
            send_all(b, &chunks, true, &arrived);
        }
    }
    let base = own.first().map_or(0, |chunk| chunk.offset);
    b.copy_own(&own, r * block * size + base);
}

/// Sends partial sums once around the ring, each up to the rank of its block.
///
/// A slot becomes free only when its partial sum has left for the next rank, whose slots wait for the rank after it,
/// and so on. To keep this circle from filling up, a few chunks complete the whole ring before the next ones start.
pub(super) fn reduce_scatter(b: &mut ScheduleBuilder<'_>) {
    let n = b.plan.ranks;
    let r = b.plan.rank;
    let block = b.plan.block;
    let size = b.plan.dtype.element_bytes();
    let whole: Vec<Vec<BlockChunk>> = (0..n).map(|owner| b.channel_share(owner * block, block)).collect();
    let count = whole.first().map_or(0, Vec::len);
    for start in (0..count).step_by(CHUNKS_TOGETHER) {
        let together = start..count.min(start + CHUNKS_TOGETHER);
        send_all(b, &whole[(r + n - 1) % n][together.clone()], false, &[]);
        for step in 0..n - 1 {
            let into = (r + 2 * n - step - 2) % n;
            let last = step + 2 == n;
            for chunk in whole[into][together.clone()].iter().copied() {
                let to = last.then(|| recv_at(chunk.offset - into * block * size));
                pass_on(b, chunk, to);
            }
        }
    }
}

/// Receives a partial sum and adds this rank's values; then forwards it, or puts the final one at `to`.
fn pass_on(b: &mut ScheduleBuilder<'_>, chunk: BlockChunk, to: Option<BufferOffset>) {
    let (arrived, partial, slot) = b.recv_scratch(0, chunk.bytes);
    let work = StepWork::Reduce {
        into: to.unwrap_or(partial),
        a: send_at(chunk.offset),
        b: partial,
        last: to.is_some(),
    };
    let reduced = b.push_local(Some(0), work, chunk.bytes, [arrived, NONE]);
    let holder = if to.is_some() { reduced } else { b.push_send(0, partial, chunk.bytes, reduced) };
    b.hold_slot(0, slot, holder);
}

/// A chain that starts after the root and ends at it, every rank adding its values.
pub(super) fn reduce_chain(b: &mut ScheduleBuilder<'_>) {
    let n = b.plan.ranks;
    let r = b.plan.rank;
    let root = b.plan.root;
    let chunks = b.channel_share(0, b.plan.block);
    if r == (root + 1) % n {
        send_all(b, &chunks, false, &[]);
        return;
    }
    for chunk in chunks {
        let to = (r == root).then(|| recv_at(chunk.offset));
        pass_on(b, chunk, to);
    }
}

/// A chain that starts at the root and ends before it.
pub(super) fn broadcast_chain(b: &mut ScheduleBuilder<'_>) {
    let n = b.plan.ranks;
    let r = b.plan.rank;
    let root = b.plan.root;
    let chunks = b.channel_share(0, b.plan.block);
    if r == root {
        send_all(b, &chunks, false, &[]);
        let base = chunks.first().map_or(0, |chunk| chunk.offset);
        b.copy_own(&chunks, base);
        return;
    }
    let forward = (r + 1) % n != root;
    for chunk in chunks {
        let arrived = b.push_recv(0, recv_at(chunk.offset), chunk.bytes, NONE);
        if forward {
            b.push_send(0, recv_at(chunk.offset), chunk.bytes, arrived);
        }
    }
}
