//! An open simulated NIC: posting, credit, and a completion queue with a limit. Completions beyond the limit are
//! queued outside, and their senders wait for the acknowledgement.

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_fabric::{
    Caps, Completion, CompletionKind, LinkId, MatchKey, MemoryRegistrar, Op, OpSource, OpStatus, PostError,
    Rail, RailConfig, WaitMethod,
};
use trunkline_proto::time::Duration;

use crate::link::{
    DialPhase, LinkPhase, PostedWork, QueuedReceive, SendQueueEntry, SourceBytes, WorkProgress,
};
use crate::register::SimRegistrar;
use crate::wire::NetworkEvent;
use crate::world::SimCore;
use crate::{SimPid, SimWorld};

/// A completion, and the actions once it has room in the queue.
#[derive(Clone)]
pub(crate) struct QueuedCompletion {
    pub(crate) completion: Completion,
    pub(crate) link: usize,
    /// Whether polling it frees a send slot.
    pub(crate) frees_slot: bool,
    /// The peer's operation to acknowledge when it enters the queue.
    pub(crate) ack: Option<u64>,
}

/// An open NIC.
pub(crate) struct RailEntry {
    pub(crate) process: SimPid,
    pub(crate) nic: usize,
    pub(crate) config: RailConfig,
    pub(crate) open: bool,
    /// Until then the NIC accepts no work.
    pub(crate) busy_until: u64,
    pub(crate) links: Vec<Option<usize>>,
    pub(crate) queue: VecDeque<QueuedCompletion>,
    /// When its completions were last polled.
    pub(crate) polled: u64,
    pub(crate) waiting: VecDeque<QueuedCompletion>,
}

/// A simulated NIC, opened by one process.
pub struct SimRail {
    pub(crate) world: SimWorld,
    pub(crate) rail: usize,
    pub(crate) process: SimPid,
    caps: Caps,
    registrar: Arc<SimRegistrar>,
}

impl SimRail {
    pub(crate) fn new(world: SimWorld, rail: usize, process: SimPid, caps: Caps) -> Self {
        let registrar = Arc::new(SimRegistrar::new(world.clone(), rail, process));
        Self { world, rail, process, caps, registrar }
    }
}

impl std::fmt::Debug for SimRail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimRail({} of {})", self.rail, self.process)
    }
}

impl Drop for SimRail {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        let links = std::mem::take(&mut state.rails[self.rail].links);
        for link in links.into_iter().flatten() {
            state.destroy_link(link);
        }
        state.end_abandoned(self.rail);
        state.rails[self.rail].open = false;
    }
}

impl Rail for SimRail {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn registrar(&self) -> Arc<dyn MemoryRegistrar> {
        Arc::<SimRegistrar>::clone(&self.registrar)
    }

    fn post_credits(&self, link: LinkId) -> u32 {
        let state = self.world.lock();
        let Some(index) = state.find_link(self.rail, link) else { return 0 };
        let entry = &state.links[index];
        match entry.phase {
            // A link in error accepts work and completes it with an error, so that its owner detects the error.
            LinkPhase::Error => return state.queue_depth(self.rail),
            LinkPhase::Ready if !state.is_busy(self.rail) => {}
            _ => return 0,
        }
        state.queue_depth(self.rail).saturating_sub(entry.slots)
    }

    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        let mut state = self.world.lock();
        let index = state.find_link(self.rail, link).ok_or(PostError::Refused(OpStatus::Flushed))?;
        if !state.is_alive(self.process) {
            return Err(PostError::Busy);
        }
        match state.links[index].phase {
            // A flush is a read of the process's own memory, and needs no peer.
            LinkPhase::Ready
                if matches!(op, Op::Flush) && !matches!(state.links[index].dial, DialPhase::Up(_)) =>
            {
                state.flush_alone(index, wr_id, signalled);
                return Ok(());
            }
            LinkPhase::Made | LinkPhase::Ready => {}
            LinkPhase::Error if matches!(op, Op::Flush) => {
                state.flush_alone(index, wr_id, signalled);
                return Ok(());
            }
            _ => return Err(PostError::Refused(OpStatus::Flushed)),
        }
        if state.refusing == Some(index) {
            return Err(PostError::Refused(OpStatus::Other(12)));
        }
        state.post_op(index, wr_id, op, signalled)
    }

    fn take_back(&mut self, link: LinkId, wr_id: u64) -> bool {
        let mut state = self.world.lock();
        let found = state.find_link(self.rail, link).filter(|_| !state.weather.keeps_matched);
        found.is_some_and(|index| state.take_back(index, wr_id))
    }

    fn flush(&mut self) {
        let mut state = self.world.lock();
        if !state.is_alive(self.process) {
            return;
        }
        state.submit_all(self.rail);
    }

    fn unsent_ops(&self, link: LinkId) -> u32 {
        let state = self.world.lock();
        let entry = state.find_link(self.rail, link).map(|index| &state.links[index]);
        // At most the depth, which fits in 32 bits.
        entry.filter(|entry| entry.phase == LinkPhase::Ready).map_or(0, |entry| entry.unsent_count() as u32)
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut state = self.world.lock();
        state.poll_tick();
        state.maybe_busy(self.rail);
        state.rails[self.rail].polled = state.now;
        if state.is_alive(self.process) {
            state.submit_all(self.rail);
        }
        let mut most = out.len();
        let short = state.weather.short_poll;
        if state.dice.chance(short) {
            most = state.dice.below(most as u64 + 1) as usize;
        }
        let mut count = 0;
        for place in out.iter_mut().take(most) {
            let Some(found) = state.rails[self.rail].queue.pop_front() else { break };
            if found.frees_slot {
                let slots = &mut state.links[found.link].slots;
                *slots = slots.saturating_sub(1);
            }
            *place = found.completion;
            count += 1;
            if found.completion.done == CompletionKind::Written {
                state.give_back(found.link);
            }
            if state.kept.1 {
                let rail = self.rail;
                state.kept.0.push((rail, found.link, found.completion));
            }
        }
        state.fill_queue(self.rail);
        count
    }

    fn arm_wait(&mut self) -> WaitMethod {
        WaitMethod::After(Duration::from_micros(1))
    }
}

impl SimCore {
    pub(crate) fn find_link(&self, rail: usize, link: LinkId) -> Option<usize> {
        *self.rails.get(rail)?.links.get(link.0 as usize)?
    }

    /// Whether the NIC accepts no work for a while although it has room.
    fn is_busy(&self, rail: usize) -> bool {
        self.rails[rail].busy_until > self.now
    }

    /// Starts such a period at random; only in a poll, so that credit does not vanish between a query and a post.
    fn maybe_busy(&mut self, rail: usize) {
        if !self.is_busy(rail) && self.dice.chance(self.weather.busy) {
            let until = self.now + self.dice.between(1_000, 50_000);
            self.rails[rail].busy_until = until;
            self.schedule_at(until, NetworkEvent::Wake);
        }
    }

    fn queue_depth(&self, rail: usize) -> u32 {
        self.rails[rail].config.depth.min(self.weather.caps.depth_max)
    }

    /// Passes posted operations of a rail to the network, or part of them if the network is cramped.
    fn submit_all(&mut self, rail: usize) {
        for at in 0..self.rails[rail].links.len() {
            let Some(link) = self.rails[rail].links[at] else { continue };
            if self.links[link].phase != LinkPhase::Ready || !matches!(self.drive_up(link), Ok(true)) {
                continue;
            }
            let waiting = self.links[link].next_seq - self.links[link].flushed;
            let part = waiting > 0 && self.dice.chance(self.weather.cramped);
            let leaving = if part { self.dice.below(waiting) } else { waiting };
            if leaving > 0 {
                self.links[link].flushed += leaving;
                self.copy_out(link, leaving);
                self.depart_sends(link);
            }
        }
    }

    /// Copies the bytes of the latest `leaving` operations, which leave now, if they are not too long: their memory
    /// is free from now on.
    fn copy_out(&mut self, link: usize, leaving: u64) {
        let to = self.links[link].flushed;
        let max = self.weather.copied_max;
        for seq in to - leaving..to {
            let Some(wqe) = self.links[link].send_entry(seq) else { continue };
            let (PostedWork::Send { body: source, .. } | PostedWork::Write { from: source, .. }) = &wqe.work
            else {
                continue;
            };
            if source.len() > max || matches!(source, SourceBytes::Inline(_)) {
                continue;
            }
            self.copy_bytes(link, seq);
        }
    }

    /// Moves completions into the queue while there is room, and acknowledges their operations.
    pub(crate) fn fill_queue(&mut self, rail: usize) {
        let room = self.weather.caps.completions_max as usize;
        while self.rails[rail].queue.len() < room {
            let Some(waiting) = self.rails[rail].waiting.pop_front() else { return };
            if let Some(seq) = waiting.ack
                && let Some(from) = self.links[waiting.link].remote
            {
                self.send_ack(from, seq, OpStatus::Ok);
            }
            self.rails[rail].queue.push_back(waiting);
        }
    }

    fn post_op(&mut self, link: usize, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        let rail = self.links[link].rail;
        let local = match op {
            Op::Recv { into } | Op::MatchedRecv { into, .. } | Op::Read { into, .. } => Some(into),
            Op::FetchAdd { old, .. } | Op::CompareSwap { old, .. } => Some(old),
            Op::Send { body: OpSource::Region(from), .. }
            | Op::Write { from: OpSource::Region(from), .. }
            | Op::PlacedWrite { from: OpSource::Region(from), .. }
            | Op::MatchedSend { from: OpSource::Region(from), .. } => Some(from),
            _ => None,
        };
        if local.is_some_and(|extent| extent.len > 0 && !self.is_usable(link, extent, &op)) {
            return Err(PostError::Refused(OpStatus::LocalProtection));
        }
        let entry = &self.links[link];
        let held = entry.recvs.len() + entry.lent.len() + entry.matched.len();
        let receive_room = held < self.rails[rail].config.recv_depth as usize;
        match op {
            Op::Recv { .. } | Op::MatchedRecv { .. } if !receive_room => return Err(PostError::Busy),
            Op::Recv { into } => {
                self.links[link].recvs.push_back(QueuedReceive { wr_id, into });
                self.execute_arrived(link);
                return Ok(());
            }
            Op::MatchedRecv { into, key } => {
                return self.post_matched(link, wr_id, self.compared_bits(key), into);
            }
            _ => {}
        }
        let work = self.copy_op(op)?;
        let entry = &self.links[link];
        if entry.phase != LinkPhase::Ready || self.is_busy(rail) || entry.slots >= self.queue_depth(rail) {
            return Err(PostError::Busy);
        }
        let entry = &mut self.links[link];
        let seq = entry.next_seq;
        entry.next_seq += 1;
        entry.slots += 1;
        if let PostedWork::Flush = work {
            self.mark_shadow(link, seq);
        }
        let progress = WorkProgress::Posted;
        let executed = false;
        let haunts = false;
        let carried_out = false;
        let taken = false;
        let told = false;
        let wqe = SendQueueEntry {
            seq,
            wr_id,
            signalled,
            work,
            progress,
            executed,
            haunts,
            carried_out,
            taken,
            told,
            broken: None,
        };
        self.links[link].sends.push_back(wqe);
        Ok(())
    }

    /// Reposts the receive that an immediate consumed, after the completion of the immediate was polled.
    fn give_back(&mut self, link: usize) {
        let Some(receive) = self.links[link].lent.pop_front() else { return };
        match self.links[link].phase {
            LinkPhase::Made | LinkPhase::Ready => {
                self.links[link].recvs.push_back(receive);
                self.execute_arrived(link);
            }
            _ => self.queue_completion(
                link,
                receive.wr_id,
                CompletionKind::Received,
                OpStatus::Flushed,
                None,
                0,
                false,
                None,
            ),
        }
    }

    fn post_matched(
        &mut self,
        link: usize,
        wr_id: u64,
        key: u64,
        into: trunkline_fabric::RegionExtent,
    ) -> Result<(), PostError> {
        if !self.weather.caps.matched {
            return Err(PostError::Refused(OpStatus::Other(2)));
        }
        let parked = &mut self.links[link].parked;
        let at = parked.iter().position(|(known, _)| *known == key);
        match at.and_then(|at| parked.remove(at)) {
            Some((_, seq)) => self.receive_matched(link, seq, wr_id, into),
            None => self.links[link].matched.push_back((key, wr_id, into)),
        }
        Ok(())
    }

    /// Returns the bits of a key that this NIC compares.
    fn compared_bits(&self, key: MatchKey) -> u64 {
        let above = 64 - self.weather.caps.match_bits.min(64);
        key.0.checked_shl(above).map_or(0, |low| low >> above)
    }

    /// Copies an operation, or refuses one that this network does not support.
    fn copy_op(&self, op: Op<'_>) -> Result<PostedWork, PostError> {
        let caps = self.weather.caps;
        let bytes = |source: OpSource<'_>| match source {
            OpSource::Inline(bytes) => SourceBytes::Inline(bytes.to_vec()),
            OpSource::Region(extent) => SourceBytes::Region(extent),
        };
        let inline = match op {
            Op::Send { head, body: OpSource::Inline(bytes), .. } => head.len().max(bytes.len()) as u64,
            Op::Send { head, .. } => head.len() as u64,
            Op::Write { from: OpSource::Inline(bytes), .. }
            | Op::PlacedWrite { from: OpSource::Inline(bytes), .. }
            | Op::MatchedSend { from: OpSource::Inline(bytes), .. } => bytes.len() as u64,
            _ => 0,
        };
        let work = match op {
            Op::Send { head, body, imm } => PostedWork::Send { head: head.to_vec(), body: bytes(body), imm },
            Op::Write { from, to, imm } => PostedWork::Write { from: bytes(from), to, imm, placed: false },
            Op::PlacedWrite { from, to, imm } => {
                PostedWork::Write { from: bytes(from), to, imm, placed: true }
            }
            Op::Read { into, from } => PostedWork::Read { into, from },
            Op::FetchAdd { old, at, add } => PostedWork::FetchAdd { old, at, add },
            Op::CompareSwap { old, at, expect, swap } => PostedWork::CompareSwap { old, at, expect, swap },
            Op::MatchedSend { from, key } => {
                PostedWork::MatchedSend { from: bytes(from), key: self.compared_bits(key) }
            }
            Op::Flush => PostedWork::Flush,
            // The simulator registers no device memory.
            Op::FlushAt { .. } => return Err(PostError::Refused(OpStatus::Other(2))),
            Op::Nop | Op::Wait { .. } | Op::Recv { .. } | Op::MatchedRecv { .. } => PostedWork::Nop,
        };
        let able = match op {
            Op::FetchAdd { .. } | Op::CompareSwap { .. } => caps.atomics,
            Op::MatchedSend { .. } => caps.matched,
            Op::Wait { .. } => caps.wait,
            Op::PlacedWrite { imm, .. } => caps.placed_writes && (imm.is_none() || caps.write_data),
            Op::Write { imm: Some(_), .. } => caps.write_data,
            _ => true,
        };
        if !able || inline > u64::from(caps.inline_max) || work.len() > caps.message_max {
            return Err(PostError::Refused(OpStatus::Other(2)));
        }
        Ok(work)
    }
}
