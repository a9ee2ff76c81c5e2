//! Rails that die and recover. No operation passes while one is cut, and its operations in flight are lost for
//! their owner. Some of them still land later, unless their target was fenced by then. Called by the run.

use trunkline_fabric::RemoteLocation;
use trunkline_mem::MemoryRange;

use crate::link::{LinkPhase, PostedWork, SourceBytes, WorkProgress};
use crate::region_bytes::RequiredRight;
use crate::wire::NetworkEvent;
use crate::world::{ProcessNic, SimCore, SimPid};

/// Longest delay of a write of a dead rail.
const GHOST_TIME: u64 = 8_000_000_000;

/// A NIC of a process that is cut off for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NicCut {
    process: SimPid,
    nic: usize,
    until: u64,
}

/// A write that left on a rail before the rail died.
#[derive(Debug)]
pub(crate) struct DelayedWrite {
    target: usize,
    to: RemoteLocation,
    bytes: Vec<u8>,
    imm: Option<u32>,
}

impl SimCore {
    /// Cuts a NIC off until then.
    pub(crate) fn cut_nic(&mut self, process: SimPid, nic: usize, until: u64) {
        self.note_trace(format_args!("{process} loses NIC {nic} for {} us", (until - self.now) / 1000));
        self.cuts.retain(|cut| cut.until > self.now);
        self.cuts.push(NicCut { process, nic, until });
        self.schedule_at(until, NetworkEvent::Mended);
        for link in 0..self.links.len() {
            let rail = &self.rails[self.links[link].rail];
            let phase = self.links[link].phase;
            if rail.process == process && rail.nic == nic && phase == LinkPhase::Ready {
                self.strand_link(link);
                if let Some(remote) = self.links[link].remote {
                    self.strand_link(remote);
                }
            }
        }
    }

    /// Resumes after a cut: operations that wait on links which did not detect the cut leave now.
    pub(crate) fn resume_after_cut(&mut self) {
        for link in 0..self.links.len() {
            self.depart_sends(link);
        }
    }

    /// Whether one of the two NICs of a link is cut off.
    pub(crate) fn is_cut(&self, link: usize) -> bool {
        let off = |link: usize| {
            let rail = &self.rails[self.links[link].rail];
            let hit =
                |cut: &NicCut| cut.process == rail.process && cut.nic == rail.nic && self.now < cut.until;
            self.cuts.iter().any(hit)
        };
        !self.cuts.is_empty() && (off(link) || self.links[link].remote.is_some_and(off))
    }

    /// Whether a link in a working state has lost its rail, now or earlier, or its peer's end has.
    pub(crate) fn is_lost(&self, link: usize) -> bool {
        let stranded = |link: usize| self.links[link].stranded;
        let lost = stranded(link) || self.links[link].remote.is_some_and(stranded) || self.is_cut(link);
        lost && self.links[link].phase == LinkPhase::Ready
    }

    /// Whether a NIC is cut off.
    pub(crate) fn is_nic_cut(&self, process: SimPid, nic: usize) -> bool {
        self.cuts.iter().any(|cut| cut.process == process && cut.nic == nic && self.now < cut.until)
    }

    /// Whether a link between those two NICs, of two processes, is in error, or has lost its rail without detecting
    /// that.
    pub(crate) fn has_stranded(&self, one: ProcessNic, other: ProcessNic) -> bool {
        let place = |link: usize| {
            let rail = &self.rails[self.links[link].rail];
            ProcessNic { process: rail.process, nic: rail.nic }
        };
        let between = |link: usize| {
            let ends = (Some(place(link)), self.links[link].remote.map(place));
            ends == (Some(one), Some(other)) || ends == (Some(other), Some(one))
        };
        let dead = |link: &usize| match self.links[*link].phase {
            LinkPhase::Ready => self.links[*link].stranded,
            phase => phase == LinkPhase::Error,
        };
        (0..self.links.len()).filter(dead).any(between)
    }

    /// Strands one end of a cut link: its operations in flight are lost. It detects that after a random time, unless
    /// NICs are deaf.
    fn strand_link(&mut self, link: usize) {
        if self.links[link].phase != LinkPhase::Ready {
            return;
        }
        let sends = self.links[link].sends.iter();
        let under_way: Vec<u64> =
            sends.filter(|wqe| wqe.progress == WorkProgress::Departed).map(|wqe| wqe.seq).collect();
        self.links[link].stranded = !under_way.is_empty() || self.dice.coin();
        if !self.weather.deaf {
            let notices = self.dice.below(2 * self.weather.retry_time + 1);
            self.schedule_after(notices, NetworkEvent::Check { link });
        }
        for seq in under_way {
            if self.dice.coin() {
                self.delay_write(link, seq);
            }
        }
    }

    /// Makes a write in flight land late.
    fn delay_write(&mut self, link: usize, seq: u64) {
        let Some(target) = self.links[link].remote else { return };
        // An operation that waits at the target is carried out from there.
        let waits = self.links[target].arrived.contains(&seq);
        let Some(wqe) = self.links[link].send_entry(seq) else { return };
        // A rail may be cut at both ends, one after the other.
        if wqe.executed || waits || std::mem::replace(&mut wqe.haunts, true) {
            return;
        }
        let PostedWork::Write { from, to, imm, .. } = wqe.work.clone() else { return };
        let bytes = match &from {
            SourceBytes::Inline(bytes) => Some(bytes.clone()),
            SourceBytes::Region(extent) => self.local_memory(link, *extent).and_then(|memory| {
                let mut bytes = vec![0; extent.len as usize];
                memory.read(extent.offset, &mut bytes).ok().map(|()| bytes)
            }),
        };
        let Some(bytes) = bytes else { return };
        let after = match self.dice.below(3) {
            0 => self.dice.below(1_000_000),
            1 => self.dice.below(500_000_000),
            _ => self.dice.below(GHOST_TIME),
        };
        let number = self.haunted;
        self.haunted += 1;
        self.ghosts.insert(number, DelayedWrite { target, to, bytes, imm });
        self.schedule_after(after, NetworkEvent::Ghost(number));
    }

    /// Makes delayed writes to this memory land now, because the application reuses it.
    pub(crate) fn force_delayed_writes(&mut self, memory: &MemoryRange, offset: u64, len: u64) {
        let hits = |ghost: &&DelayedWrite| {
            let size = ghost.bytes.len() as u64;
            let range = self.remote_range(ghost.target, ghost.to, size, RequiredRight::Write);
            range.is_some_and(|(region, at)| {
                let same = self.regions.get(&region).is_some_and(|r| r.memory.addr() == memory.addr());
                same && at < offset + len && offset < at + size
            })
        };
        let found: Vec<u64> =
            self.ghosts.iter().filter(|(_, ghost)| hits(ghost)).map(|(number, _)| *number).collect();
        found.into_iter().for_each(|number| self.land_delayed_write(number));
    }

    /// Lands a delayed write of a dead rail, if its target still accepts it.
    pub(crate) fn land_delayed_write(&mut self, number: u64) {
        let Some(ghost) = self.ghosts.remove(&number) else { return };
        let target = ghost.target;
        if self.links[target].phase != LinkPhase::Ready {
            return;
        }
        let len = ghost.bytes.len() as u64;
        let Some((region, offset)) = self.remote_range(target, ghost.to, len, RequiredRight::Write) else {
            return;
        };
        self.note_trace(format_args!("a write of {len} bytes lands late"));
        let words = len.is_multiple_of(8) && ghost.to.addr.is_multiple_of(8) && len <= 512;
        let strict = self
            .regions
            .get(&region)
            .is_some_and(|r| r.purpose.write_visibility() == trunkline_fabric::WriteVisibility::Strict);
        if !(strict && words && self.place_words(region, offset, &ghost.bytes, u64::MAX)) {
            let seq = u64::MAX - 1;
            self.place_bytes(target, region, offset, ghost.bytes.clone(), seq);
            self.complete_shadow(target, seq);
        }
        if let Some(imm) = ghost.imm
            && self.dice.coin()
        {
            self.queue_completion(
                target,
                0,
                trunkline_fabric::CompletionKind::Written,
                trunkline_fabric::OpStatus::Ok,
                Some(imm),
                len,
                false,
                None,
            );
        }
    }
}
