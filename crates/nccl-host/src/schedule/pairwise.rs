//! Pairwise schedules: alltoall, alltoallv and sendrecv.
//!
//! Built by `RankSchedule::build` for one channel. Out of place, every byte is sent directly from one user's buffer
//! to the other's. In place, a received chunk is kept in a scratch slot until the chunk that it replaces was sent.

use super::{BlockChunk, NONE, ScheduleBuilder, StepId, StepWork, recv_at, send_at};

/// Sends to the next rank, and receives from the previous one.
pub(super) fn sendrecv(b: &mut ScheduleBuilder<'_>) {
    let chunks = b.channel_share(0, b.plan.block);
    exchange_pairs(b, &[LinkPair { out: 0, sent: chunks.clone(), arriving: chunks.clone(), replaced_by: 0 }]);
}

/// Exchanges one block with every other rank; an empty block is one empty message.
pub(super) fn all_to_all(b: &mut ScheduleBuilder<'_>) {
    let n = b.plan.ranks;
    let r = b.plan.rank;
    let own = peer_blocks(b, r);
    let base = own.first().map_or(0, |chunk| chunk.offset);
    b.copy_own(&own, base);
    let pairs: Vec<LinkPair> = (1..n)
        .map(|distance| {
            let to = (r + distance) % n;
            let from = (r + n - distance) % n;
            // The block sent to `from` is sent on the link at distance n - distance.
            LinkPair {
                out: distance - 1,
                sent: or_empty(peer_blocks(b, to)),
                arriving: or_empty(peer_blocks(b, from)),
                replaced_by: n - distance - 1,
            }
        })
        .collect();
    exchange_pairs(b, &pairs);
}

/// One outgoing and one incoming link of the same number.
struct LinkPair {
    out: usize,
    sent: Vec<BlockChunk>,
    arriving: Vec<BlockChunk>,
    /// The outgoing link whose chunks the arriving ones replace, in place.
    replaced_by: usize,
}

/// This channel's chunks of the block between this rank and `peer`, by their place in the send buffer.
fn peer_blocks(b: &ScheduleBuilder<'_>, peer: usize) -> Vec<BlockChunk> {
    let plan = b.plan;
    let (start, len) = plan.collective.block_between(plan.block, plan.ranks, plan.rank, peer);
    b.channel_share(start, len)
}

fn or_empty(chunks: Vec<BlockChunk>) -> Vec<BlockChunk> {
    if chunks.is_empty() { vec![BlockChunk { offset: 0, bytes: 0 }] } else { chunks }
}

/// Posts all pairs chunk by chunk, so that every link is busy from the start.
fn exchange_pairs(b: &mut ScheduleBuilder<'_>, pairs: &[LinkPair]) {
    let rounds = pairs.iter().map(|pair| pair.sent.len().max(pair.arriving.len())).max().unwrap_or(0);
    let mut sends: Vec<Vec<StepId>> = vec![Vec::new(); pairs.len()];
    for round in 0..rounds {
        for pair in pairs {
            if let Some(chunk) = pair.sent.get(round) {
                let id = b.push_send(pair.out, send_at(chunk.offset), chunk.bytes, NONE);
                sends[pair.out].push(id);
            }
        }
    }
    for round in 0..rounds {
        for (link, pair) in pairs.iter().enumerate() {
            let Some(chunk) = pair.arriving.get(round) else { continue };
            if !b.plan.in_place || chunk.bytes == 0 {
                b.push_recv(link, recv_at(chunk.offset), chunk.bytes, NONE);
                continue;
            }
            let (arrived, from, slot) = b.recv_scratch(link, chunk.bytes);
            let left = sends[pair.replaced_by].get(round).copied().unwrap_or(NONE);
            let work = StepWork::Copy { into: recv_at(chunk.offset), from };
            let copied = b.push_local(Some(link), work, chunk.bytes, [arrived, left]);
            b.hold_slot(link, slot, copied);
        }
    }
}
