//! Star schedules: gather to a root, scatter from a root.
//!
//! Built by `RankSchedule::build` for one channel; every byte is sent directly between users' buffers.

use super::{NONE, ScheduleBuilder, recv_at, send_at};

/// Every rank sends its block to the root.
pub(super) fn gather(b: &mut ScheduleBuilder<'_>) {
    let n = b.plan.ranks;
    let r = b.plan.rank;
    let block = b.plan.block;
    let size = b.plan.dtype.element_bytes();
    let own = b.channel_share(0, block);
    if r != b.plan.root {
        for chunk in own {
            b.push_send(0, send_at(chunk.offset), chunk.bytes, NONE);
        }
        return;
    }
    for chunk in &own {
        for distance in 1..n {
            let from = (r + n - distance) % n;
            let into = recv_at(from * block * size + chunk.offset);
            b.push_recv(distance - 1, into, chunk.bytes, NONE);
        }
    }
    let base = own.first().map_or(0, |chunk| chunk.offset);
    b.copy_own(&own, r * block * size + base);
}

/// The root sends every rank its block.
pub(super) fn scatter(b: &mut ScheduleBuilder<'_>) {
    let n = b.plan.ranks;
    let r = b.plan.rank;
    let block = b.plan.block;
    let size = b.plan.dtype.element_bytes();
    let share = b.channel_share(0, block);
    if r != b.plan.root {
        for chunk in share {
            b.push_recv(0, recv_at(chunk.offset), chunk.bytes, NONE);
        }
        return;
    }
    for chunk in &share {
        for distance in 1..n {
            let to = (r + distance) % n;
            b.push_send(distance - 1, send_at(to * block * size + chunk.offset), chunk.bytes, NONE);
        }
    }
    let own = b.channel_share(r * block, block);
    let base = share.first().map_or(0, |chunk| chunk.offset);
    b.copy_own(&own, base);
}
