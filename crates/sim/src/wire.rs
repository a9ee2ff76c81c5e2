//! The transfer of operations: departure, pieces that land, arrival, acknowledgement, timeouts. Driven by the world's
//! events and by the rail. Order is kept only where the capabilities promise it.

use trunkline_fabric::{CompletionKind, OpStatus, RecvOrder, RegionExtent, RemoteLocation, WriteVisibility};
use trunkline_mem::MemoryRange;

use crate::link::{LinkPhase, PostedWork, QueuedReceive, SendQueueEntry, SourceBytes, WorkProgress};
use crate::region_bytes::{RequiredRight, WritePiece};
use crate::world::SimCore;

/// An event that is due at a time.
pub(crate) enum NetworkEvent {
    /// No effect except that the clock stops at it.
    Wake,
    /// Part of a write lands.
    Land { link: usize, seq: u64, piece: WritePiece },
    /// An operation has arrived completely.
    Arrive { link: usize, seq: u64 },
    /// The data of a read or atomic has returned.
    Reply { link: usize, seq: u64, bytes: Vec<u8> },
    /// The target's acknowledgement has returned.
    Ack { link: usize, seq: u64, status: OpStatus },
    /// The network has copied the bytes of an operation.
    Taken { link: usize, seq: u64 },
    /// The time limit for reaching the peer has expired.
    Check { link: usize },
    /// The time limit for finding a receive has expired.
    Starved { link: usize, seq: u64 },
    /// The bytes of a stuck copy land, after their completion.
    Late { memory: MemoryRange, offset: u64, bytes: Vec<u8> },
    /// A NIC writes a word back that it had cached.
    WriteBack { region: u64, offset: u64 },
    /// A NIC that was cut off works again.
    Mended,
    /// A delayed write of a dead rail lands.
    Ghost(u64),
}

/// The vendor status of a NIC for a link that has ended.
const LINK_ENDED: u32 = 3;
/// Writes up to this length into strict regions arrive word by word.
const RECORD_MAX: u64 = 512;

impl SimCore {
    pub(crate) fn handle_event(&mut self, event: NetworkEvent) {
        match event {
            NetworkEvent::Wake => {}
            NetworkEvent::Land { link, seq, piece } => self.land_write(link, seq, piece),
            NetworkEvent::Arrive { link, seq } => self.on_arrival(link, seq),
            NetworkEvent::Reply { link, seq, bytes } => self.on_reply(link, seq, &bytes),
            NetworkEvent::Ack { link, seq, status } => self.on_ack(link, seq, status),
            NetworkEvent::Taken { link, seq } => self.complete_early(link, seq),
            NetworkEvent::Check { link } => self.check_reachable(link),
            NetworkEvent::Starved { link, seq } => self.fail_starved(link, seq),
            NetworkEvent::WriteBack { region, offset } => self.write_back(region, offset),
            NetworkEvent::Late { memory, offset, bytes } => {
                let _ = memory.write(offset, &bytes);
            }
            NetworkEvent::Mended => self.resume_after_cut(),
            NetworkEvent::Ghost(number) => self.land_delayed_write(number),
        }
    }

    /// Sends all operations that were passed to the network and have not left.
    pub(crate) fn depart_sends(&mut self, link: usize) {
        if self.links[link].phase != LinkPhase::Ready {
            return;
        }
        let flushed = self.links[link].flushed;
        let leaves = |wqe: &SendQueueEntry| wqe.progress == WorkProgress::Posted && wqe.seq < flushed;
        let Some(peer) = self.reachable_peer(link) else {
            if self.links[link].sends.iter().any(leaves) {
                self.schedule_after(self.weather.retry_time, NetworkEvent::Check { link });
                self.takes_stuck(link);
            }
            return;
        };
        let mut leaving = Vec::new();
        for wqe in self.links[link].sends.iter_mut().filter(|wqe| leaves(wqe)) {
            wqe.progress = WorkProgress::Departed;
            leaving.push(wqe.seq);
        }
        for seq in leaving {
            self.send_off(link, peer, seq);
        }
    }

    fn send_off(&mut self, link: usize, peer: usize, seq: u64) {
        let Some(wqe) = self.links[link].send_entry(seq) else { return };
        let len = wqe.work.len();
        let flush = matches!(wqe.work, PostedWork::Flush);
        let target = match wqe.work {
            PostedWork::Write { to, .. } => Some(to),
            _ => None,
        };
        let now = self.now;
        let mut travel = self.latency_of(link) + self.dice.below(self.weather.jitter + 1);
        if self.dice.chance(self.weather.slow) {
            travel += self.dice.below(50 * self.weather.latency);
        }
        let ordered = self.weather.caps.link_order;
        let entry = &mut self.links[link];
        entry.free_at = entry.free_at.max(now) + (len * self.weather.kib_time) / 1024;
        let mut arrival = entry.free_at + travel;
        let mut first = now + 1;
        if ordered {
            first = first.max(entry.last_arrival + 1);
            arrival = arrival.max(first);
            entry.last_arrival = arrival;
        }
        if flush {
            // A flush is a read of the process's own memory: it never leaves the host, but keeps its place in the
            // order.
            self.schedule_at(arrival, NetworkEvent::Ack { link, seq, status: OpStatus::Ok });
            return;
        }
        if let Some(to) = target
            && len > 0
        {
            for piece in self.split_write(peer, to, len) {
                let at = self.dice.between(first.min(arrival), arrival);
                self.schedule_at(at, NetworkEvent::Land { link, seq, piece });
            }
        }
        self.schedule_taken(link, seq, arrival);
        self.schedule_at(arrival, NetworkEvent::Arrive { link, seq });
    }

    /// Cuts a write into pieces: records into single words in any order, payload anywhere.
    fn split_write(&mut self, peer: usize, to: RemoteLocation, len: u64) -> Vec<WritePiece> {
        let strict = self
            .remote_range(peer, to, len, RequiredRight::Write)
            .and_then(|(region, _)| self.regions.get(&region))
            .is_some_and(|region| region.purpose.write_visibility() == WriteVisibility::Strict);
        let count = self.dice.between(1, self.weather.pieces);
        if strict && len <= RECORD_MAX && len.is_multiple_of(8) && to.addr.is_multiple_of(8) {
            return self.torn_words(len / 8, count);
        }
        let mut cuts = vec![0, len];
        for _ in 1..count {
            let cut = self.dice.below(len);
            cuts.push(if strict { (cut + to.addr) / 8 * 8 } else { cut });
        }
        if strict {
            // Cuts are at words of the target's address space.
            for cut in &mut cuts[2..] {
                *cut = cut.saturating_sub(to.addr).min(len);
            }
        }
        cuts.sort_unstable();
        let pairs = cuts.windows(2).filter(|pair| pair[0] < pair[1]);
        pairs.map(|pair| WritePiece::Bytes { from: pair[0], len: pair[1] - pair[0] }).collect()
    }

    fn torn_words(&mut self, words: u64, groups: u64) -> Vec<WritePiece> {
        let mut masks = vec![0_u64; groups as usize];
        for word in 0..words {
            let group = self.dice.below(groups) as usize;
            masks[group] |= 1 << word;
        }
        masks.retain(|mask| *mask != 0);
        masks.into_iter().map(WritePiece::Words).collect()
    }

    /// Returns the peer's end, if operations that left `link` may still reach it.
    fn target_of(&self, link: usize) -> Option<usize> {
        match self.links[link].phase {
            LinkPhase::Ready | LinkPhase::Dead { ghost: true } => self.reachable_peer(link),
            _ => None,
        }
    }

    fn land_write(&mut self, link: usize, seq: u64, piece: WritePiece) {
        let Some(peer) = self.target_of(link) else { return };
        let Some(wqe) = self.links[link].send_entry(seq) else { return };
        let PostedWork::Write { from, to, .. } = wqe.work.clone() else { return };
        if wqe.broken.is_some() {
            return;
        }
        let broken = self.land_piece(link, peer, seq, &from, to, piece).err();
        if let Some(wqe) = self.links[link].send_entry(seq) {
            wqe.broken = broken;
        }
    }

    fn land_piece(
        &mut self,
        link: usize,
        peer: usize,
        seq: u64,
        source: &SourceBytes,
        to: RemoteLocation,
        piece: WritePiece,
    ) -> Result<(), OpStatus> {
        let Some((region, offset)) = self.remote_range(peer, to, source.len(), RequiredRight::Write) else {
            return if self.goes_nowhere(peer, to) { Ok(()) } else { Err(OpStatus::RemoteAccess) };
        };
        let (from, len) = match piece {
            WritePiece::Bytes { from, len } => (from, len),
            WritePiece::Words(_) => (0, source.len()),
        };
        let bytes = self.source_bytes(link, source, from, len).ok_or(OpStatus::LocalProtection)?;
        if let WritePiece::Words(mask) = piece
            && self.place_words(region, offset, &bytes, mask)
        {
            return Ok(());
        }
        self.place_bytes(peer, region, offset + from, bytes, seq);
        Ok(())
    }

    /// Makes a write in flight stick in the middle of a region that is being deregistered; it ends later. Returns
    /// `false` if no write is in flight, or by chance.
    pub(crate) fn begin_stuck_copy(&mut self, key: u64) -> bool {
        let stuck = self.weather.stuck;
        let Some((remote, rail)) = self.regions.get(&key).map(|region| (region.remote, region.rail)) else {
            return false;
        };
        let peers: Vec<usize> =
            self.rails[rail].links.iter().flatten().filter_map(|&link| self.links[link].remote).collect();
        let under_way = peers.into_iter().find_map(|link| {
            let sends = self.links[link].sends.iter();
            let sends = sends.filter(|wqe| wqe.progress == WorkProgress::Departed && !wqe.executed);
            let hits = |wqe: &&SendQueueEntry| matches!(wqe.work, PostedWork::Write { to, .. } if to.key.0 == remote);
            Some((link, sends.filter(hits).map(|wqe| wqe.work.clone()).next()?))
        });
        let Some((link, PostedWork::Write { from, to, .. })) = under_way else { return false };
        if !self.dice.chance(stuck) {
            return false;
        }
        let bytes = self.source_bytes(link, &from, 0, from.len()).unwrap_or_default();
        let after = self.dice.between(1_000, self.weather.stuck_time);
        let until = self.now + after;
        let Some(region) = self.regions.get_mut(&key) else { return false };
        region.copying = Some(until);
        let memory = region.memory.clone();
        let offset = to.addr.wrapping_sub(region.base);
        self.schedule_at(until, NetworkEvent::Late { memory, offset, bytes });
        self.close_region(key);
        self.note_trace(format_args!("a copy into region {key:#x} is stuck for {} us", after / 1000));
        true
    }

    /// Closes a region for new operations.
    pub(crate) fn close_region(&mut self, key: u64) {
        let Some(region) = self.regions.get_mut(&key) else { return };
        region.closed = true;
        let remote = region.remote;
        self.remote_keys.remove(&remote);
    }

    pub(crate) fn source_bytes(
        &self,
        link: usize,
        source: &SourceBytes,
        from: u64,
        len: u64,
    ) -> Option<Vec<u8>> {
        match source {
            SourceBytes::Inline(bytes) => Some(bytes.get(from as usize..(from + len) as usize)?.to_vec()),
            SourceBytes::Region(extent) => {
                let memory = self.local_memory(link, *extent)?;
                let mut bytes = vec![0; len as usize];
                memory.read(extent.offset + from, &mut bytes).ok()?;
                Some(bytes)
            }
        }
    }

    fn on_arrival(&mut self, link: usize, seq: u64) {
        let Some(peer) = self.target_of(link) else {
            self.schedule_after(self.weather.retry_time, NetworkEvent::Check { link });
            return;
        };
        let Some(wqe) = self.links[link].send_entry(seq).filter(|wqe| !wqe.haunts) else { return };
        if wqe.broken == Some(OpStatus::LocalProtection) {
            wqe.progress = WorkProgress::Done(OpStatus::LocalProtection);
            self.retire_sends(link);
            return;
        }
        let takes = self.weather.caps.immediate_takes_receive;
        let is_send = match wqe.work {
            PostedWork::Send { .. } => true,
            PostedWork::Write { imm, .. } => imm.is_some() && takes,
            _ => false,
        };
        self.links[peer].arrived.push_back(seq);
        self.execute_arrived(peer);
        if let Some(limit) = self.weather.receiver_time
            && is_send
            && self.links[peer].arrived.contains(&seq)
        {
            self.schedule_after(limit, NetworkEvent::Starved { link: peer, seq });
        }
    }

    /// Carries out the operations that have arrived at a link, as far as possible.
    pub(crate) fn execute_arrived(&mut self, link: usize) {
        let Some(from) = self.links[link].remote else { return };
        let mut at = 0;
        while let Some(&seq) = self.links[link].arrived.get(at) {
            if self.execute_op(link, from, seq) {
                self.links[link].arrived.remove(at);
                self.carried_out(from, seq);
                // An earlier operation may have waited for this one.
                at = 0;
            } else if self.weather.caps.link_order {
                return;
            } else {
                at += 1;
            }
        }
    }

    /// Carries out operation `seq` of `from` at `link`; returns `false` if it has to wait.
    fn execute_op(&mut self, link: usize, from: usize, seq: u64) -> bool {
        let waits = self.weather.caps.immediate_takes_receive && self.links[link].recvs.is_empty();
        let Some(wqe) = self.links[from].send_entry(seq) else { return true };
        // The bytes of a write have arrived even if its immediate has to wait.
        wqe.executed |= matches!(wqe.work, PostedWork::Write { .. });
        if waits && matches!(wqe.work, PostedWork::Write { imm: Some(_), .. }) {
            return false;
        }
        let broken = wqe.broken;
        match wqe.work.clone() {
            PostedWork::Write { from: source, to, imm, .. } => {
                let len = source.len();
                let lost = len > 0 && self.remote_range(link, to, len, RequiredRight::Write).is_none();
                let refused = lost && !self.goes_nowhere(link, to);
                if refused || broken.is_some() {
                    self.refuse_op(link, from, seq, OpStatus::RemoteAccess);
                } else {
                    self.finish_write(link, from, seq, imm, len);
                }
            }
            PostedWork::Send { head, body, imm } => {
                let recvs = &self.links[link].recvs;
                let next = match self.rails[self.links[link].rail].config.recv_order {
                    RecvOrder::Posted => 0,
                    RecvOrder::Any => recvs.len().saturating_sub(1),
                };
                let Some(receive) = recvs.get(next).copied() else { return false };
                let Some(bytes) = self.source_bytes(from, &body, 0, body.len()) else {
                    self.on_ack(from, seq, OpStatus::LocalProtection);
                    return true;
                };
                self.links[link].recvs.remove(next);
                self.deliver_send(link, from, seq, receive, [head, bytes].concat(), imm);
            }
            PostedWork::MatchedSend { key, .. } => {
                let at = self.links[link].matched.iter().position(|(known, _, _)| *known == key);
                match at.and_then(|at| self.links[link].matched.remove(at)) {
                    Some((_, wr_id, into)) => self.receive_matched(link, seq, wr_id, into),
                    None => self.links[link].parked.push_back((key, seq)),
                }
            }
            PostedWork::Read { from: at, into } => self.execute_read(link, from, seq, at, into.len),
            PostedWork::FetchAdd { at, add, .. } => {
                self.execute_atomic(link, from, seq, at, |word| word.wrapping_add(add))
            }
            PostedWork::CompareSwap { at, expect, swap, .. } => {
                self.execute_atomic(link, from, seq, at, |word| if word == expect { swap } else { word });
            }
            PostedWork::Nop if self.has_to_wait(from, seq) => return false,
            PostedWork::Flush | PostedWork::Nop => self.send_ack(from, seq, OpStatus::Ok),
        }
        true
    }

    fn finish_write(&mut self, link: usize, from: usize, seq: u64, imm: Option<u32>, len: u64) {
        self.complete_shadow(link, seq);
        match imm {
            Some(imm) => {
                self.consume_receive(link);
                let len = if self.weather.caps.remote_len { len } else { self.dice.below(1 << 20) };
                self.queue_completion(
                    link,
                    0,
                    CompletionKind::Written,
                    OpStatus::Ok,
                    Some(imm),
                    len,
                    false,
                    Some(seq),
                );
            }
            None => self.send_ack(from, seq, OpStatus::Ok),
        }
    }

    /// Consumes any receive for an immediate, on networks that need one.
    fn consume_receive(&mut self, link: usize) {
        let count = self.links[link].recvs.len() as u64;
        if self.weather.caps.immediate_takes_receive && count > 0 {
            let taken = self.dice.below(count) as usize;
            let entry = &mut self.links[link];
            entry.lent.extend(entry.recvs.remove(taken));
        }
    }

    /// Matches a matched send with its receive.
    pub(crate) fn receive_matched(&mut self, link: usize, seq: u64, wr_id: u64, into: RegionExtent) {
        let Some(from) = self.links[link].remote else { return };
        let Some(wqe) = self.links[from].send_entry(seq) else { return };
        let PostedWork::MatchedSend { from: source, .. } = wqe.work.clone() else { return };
        wqe.executed = true;
        if source.len() > into.len {
            self.queue_completion(
                link,
                wr_id,
                CompletionKind::Received,
                OpStatus::TooLong,
                None,
                0,
                false,
                None,
            );
            return self.send_ack(from, seq, OpStatus::TooLong);
        }
        match self.source_bytes(from, &source, 0, source.len()) {
            Some(bytes) => self.deliver_send(link, from, seq, QueuedReceive { wr_id, into }, bytes, None),
            None => {
                // The sender's memory is not registered any more; the link ends, so the receive stays unused.
                self.links[link].recvs.push_back(QueuedReceive { wr_id, into });
                self.on_ack(from, seq, OpStatus::LocalProtection);
            }
        }
    }

    fn deliver_send(
        &mut self,
        link: usize,
        from: usize,
        seq: u64,
        receive: QueuedReceive,
        bytes: Vec<u8>,
        imm: Option<u32>,
    ) {
        let QueuedReceive { wr_id, into } = receive;
        let len = bytes.len() as u64;
        let bad = if len > into.len {
            Some((OpStatus::TooLong, OpStatus::TooLong))
        } else if self.local_memory(link, into).is_none() {
            Some((OpStatus::LocalProtection, OpStatus::Other(1)))
        } else {
            None
        };
        if let Some((here, there)) = bad {
            self.queue_completion(link, wr_id, CompletionKind::Received, here, None, 0, false, None);
            self.refuse_op(link, from, seq, there);
            return;
        }
        if len > 0 {
            self.place_bytes(link, into.key.0, into.offset, bytes, seq);
            self.complete_shadow(link, seq);
        }
        self.queue_completion(
            link,
            wr_id,
            CompletionKind::Received,
            OpStatus::Ok,
            imm,
            len,
            false,
            Some(seq),
        );
    }

    fn execute_read(&mut self, link: usize, from: usize, seq: u64, at: RemoteLocation, len: u64) {
        let Some((region, offset)) = self.remote_range(link, at, len, RequiredRight::Read) else {
            self.refuse_op(link, from, seq, OpStatus::RemoteAccess);
            return;
        };
        self.reveal_region(link, region);
        let mut bytes = vec![0; len as usize];
        if let Some(region) = self.regions.get(&region) {
            let _ = region.memory.read(offset, &mut bytes);
        }
        let at = self.answer_time(from) + (len * self.weather.kib_time) / 1024;
        self.schedule_at(at, NetworkEvent::Reply { link: from, seq, bytes });
    }

    /// Refuses an operation at the target: both ends enter the error state.
    pub(crate) fn refuse_op(&mut self, link: usize, from: usize, seq: u64, status: OpStatus) {
        self.send_ack(from, seq, status);
        self.break_link(link, None);
    }

    /// Returns the least latency between the NIC of a link and its peer, in either direction.
    fn latency_of(&self, link: usize) -> u64 {
        let slower = &self.weather.slower;
        let nic = self.rails[self.links[link].rail].nic.min(slower.len() - 1);
        self.weather.latency * slower[nic]
    }

    pub(crate) fn answer_time(&mut self, link: usize) -> u64 {
        let mut at = self.now + self.latency_of(link) + self.dice.below(self.weather.jitter + 1);
        if self.weather.caps.link_order {
            at = at.max(self.links[link].last_ack + 1);
            self.links[link].last_ack = at;
        }
        at
    }

    /// Sends the status of operation `seq` back to its link.
    pub(crate) fn send_ack(&mut self, link: usize, seq: u64, status: OpStatus) {
        let at = self.answer_time(link);
        self.schedule_at(at, NetworkEvent::Ack { link, seq, status });
    }

    fn on_ack(&mut self, link: usize, seq: u64, status: OpStatus) {
        // An operation of a rail that died meanwhile is not acknowledged any more.
        if self.links[link].phase != LinkPhase::Ready || self.links[link].stranded {
            return;
        }
        if let Some(wqe) = self.links[link].send_entry(seq) {
            wqe.progress = WorkProgress::Done(status);
            self.retire_sends(link);
        }
    }

    fn on_reply(&mut self, link: usize, seq: u64, bytes: &[u8]) {
        if self.links[link].phase != LinkPhase::Ready {
            return;
        }
        let Some(wqe) = self.links[link].send_entry(seq) else { return };
        let into = match wqe.work {
            PostedWork::Read { into, .. } => into,
            PostedWork::FetchAdd { old, .. } | PostedWork::CompareSwap { old, .. } => old,
            _ => return,
        };
        let written = self.local_memory(link, into).map(|memory| memory.write(into.offset, bytes));
        let status = if matches!(written, Some(Ok(()))) { OpStatus::Ok } else { OpStatus::LocalProtection };
        self.on_ack(link, seq, status);
    }

    fn check_reachable(&mut self, link: usize) {
        if self.weather.deaf && self.is_lost(link) {
            return;
        }
        if self.links[link].phase == LinkPhase::Ready && self.links[link].stranded {
            let first = self.links[link].sends.front().filter(|_| self.weather.numbered);
            let first = first.map(|wqe| (wqe.seq, OpStatus::Other(LINK_ENDED)));
            return self.break_link(link, first);
        }
        self.check_waiting(link);
    }

    /// Breaks a link that has waited too long for its peer.
    fn check_waiting(&mut self, link: usize) {
        if self.links[link].phase != LinkPhase::Ready || self.reachable_peer(link).is_some() {
            return;
        }
        let flushed = self.links[link].flushed;
        let waiting = |wqe: &SendQueueEntry| match wqe.progress {
            WorkProgress::Posted => wqe.seq < flushed,
            WorkProgress::Departed => true,
            WorkProgress::Done(_) => false,
        };
        let Some(seq) = self.links[link].sends.iter().find(|wqe| waiting(wqe)).map(|wqe| wqe.seq) else {
            return;
        };
        // An end that is not connected yet does not respond either.
        self.break_link(link, Some((seq, OpStatus::PeerDead)));
    }

    fn fail_starved(&mut self, link: usize, seq: u64) {
        let entry = &mut self.links[link];
        let Some(from) = entry.remote else { return };
        if !entry.recvs.is_empty() {
            return;
        }
        let before = entry.arrived.len();
        entry.arrived.retain(|known| *known != seq);
        if entry.arrived.len() < before {
            self.send_ack(from, seq, OpStatus::ReceiverNotReady);
        }
    }
}
