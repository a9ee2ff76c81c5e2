//! Pairwise schedules: alltoall, alltoallv and sendrecv.
//!
//! Built by `Schedule::build` for one channel. Out of place every byte goes straight from one user's buffer to
//! the other's; in place a received chunk waits in a scratch slot until the chunk it replaces has left.

use super::{Builder, Chunk, NONE, StepId, Work, recv_at, send_at};

/// To the next rank, from the one before.
pub(super) fn sendrecv(b: &mut Builder<'_>) {
    let chunks = b.share(0, b.plan.block);
    exchange(b, &[Pair { out: 0, sent: chunks.clone(), arriving: chunks.clone(), replaced_by: 0 }]);
}

/// One block to and from every other rank; an empty block travels as one empty message.
pub(super) fn all_to_all(b: &mut Builder<'_>) {
    let n = b.plan.ranks;
    let r = b.plan.rank;
    let own = blocks(b, r);
    let base = own.first().map_or(0, |chunk| chunk.offset);
    b.copy_own(&own, base);
    let pairs: Vec<Pair> = (1..n)
        .map(|distance| {
            let to = (r + distance) % n;
            let from = (r + n - distance) % n;
            // The block sent to `from` is sent on the link at distance n - distance.
            Pair {
                out: distance - 1,
                sent: or_empty(blocks(b, to)),
                arriving: or_empty(blocks(b, from)),
                replaced_by: n - distance - 1,
            }
        })
        .collect();
    exchange(b, &pairs);
}

/// One outgoing and one incoming link of the same number.
struct Pair {
    out: usize,
    sent: Vec<Chunk>,
    arriving: Vec<Chunk>,
    /// The outgoing link whose chunks the arriving ones replace, in place.
    replaced_by: usize,
}

/// This channel's chunks of the block between this rank and `peer`, by their place in the send buffer.
fn blocks(b: &Builder<'_>, peer: usize) -> Vec<Chunk> {
    let plan = b.plan;
    let (start, len) = plan.collective.block_between(plan.block, plan.ranks, plan.rank, peer);
    b.share(start, len)
}

fn or_empty(chunks: Vec<Chunk>) -> Vec<Chunk> {
    if chunks.is_empty() { vec![Chunk { offset: 0, bytes: 0 }] } else { chunks }
}

/// Posts all pairs chunk by chunk, so that every link is busy from the start.
fn exchange(b: &mut Builder<'_>, pairs: &[Pair]) {
    let rounds = pairs.iter().map(|pair| pair.sent.len().max(pair.arriving.len())).max().unwrap_or(0);
    let mut sends: Vec<Vec<StepId>> = vec![Vec::new(); pairs.len()];
    for round in 0..rounds {
        for pair in pairs {
            if let Some(chunk) = pair.sent.get(round) {
                let id = b.send(pair.out, send_at(chunk.offset), chunk.bytes, NONE);
                sends[pair.out].push(id);
            }
        }
    }
    for round in 0..rounds {
        for (link, pair) in pairs.iter().enumerate() {
            let Some(chunk) = pair.arriving.get(round) else { continue };
            if !b.plan.in_place || chunk.bytes == 0 {
                b.recv(link, recv_at(chunk.offset), chunk.bytes, NONE);
                continue;
            }
            let (arrived, from, slot) = b.recv_scratch(link, chunk.bytes);
            let left = sends[pair.replaced_by].get(round).copied().unwrap_or(NONE);
            let work = Work::Copy { into: recv_at(chunk.offset), from };
            let copied = b.local(Some(link), work, chunk.bytes, [arrived, left]);
            b.hold(link, slot, copied);
        }
    }
}
