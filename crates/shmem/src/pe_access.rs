//! What a PE is to this one: the symmetric memory of it that is mapped here, and whether its process lives. Memory that is not mapped is
//! reached over the fabric. Made when the library starts; never written afterwards.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use trunkline_mem::{MemoryFileId, MemoryRange};
use trunkline_proto::wire::pe::{PeRecord as Told, SEGMENTS};

use crate::layout::{LEFT, OF_ANOTHER};
use crate::neighbour_statics::NeighbourStatics;
use crate::symmetric_segments::INNER;

/// A PE as this one reaches it.
#[derive(Debug, Default)]
pub(crate) struct PeAccess {
    memory: [Option<MemoryRange>; SEGMENTS],
    process: Option<OwnedFd>,
    /// Its static variables, where they are not mapped and the system copies from them.
    pub(crate) behind: Option<NeighbourStatics>,
}

impl PeAccess {
    /// This PE itself.
    pub(crate) fn of_own_memory(memory: &[MemoryRange; SEGMENTS]) -> Self {
        Self { memory: memory.each_ref().map(|memory| Some(memory.clone())), process: None, behind: None }
    }

    /// A process of this host: all that can be mapped of it.
    pub(crate) fn map_neighbour(told: &Told) -> Self {
        let map = |segment: &trunkline_proto::wire::pe::SymmetricSegment| {
            let found =
                MemoryFileId { pid: told.pid, fd: segment.fd, inode: segment.inode, len: segment.len };
            if segment.inode == 0 { None } else { found.map_file().ok() }
        };
        let pid = i32::try_from(told.pid).ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { memory: told.segments.each_ref().map(map), process, behind: None }
    }

    /// A range of its memory.
    #[inline]
    pub(crate) fn segment_memory(&self, segment: usize) -> Option<&MemoryRange> {
        self.memory[segment].as_ref()
    }

    /// Whether all of its memory is mapped.
    pub(crate) fn is_whole(&self) -> bool {
        self.memory.iter().all(Option::is_some)
    }

    /// Whether some of its memory is mapped and some is not: then two ways lead to it.
    pub(crate) fn is_parted(&self) -> bool {
        self.memory.iter().any(Option::is_some) && !self.is_whole()
    }

    /// Who has died, if its process has ended and not with all others: itself, which has this number, or another, because of which it ended.
    pub(crate) fn dead_pe(&self, pe: usize) -> Option<usize> {
        let process = self.process.as_ref()?;
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0);
        let said = self.segment_memory(INNER).and_then(|inner| inner.load(LEFT).ok()).unwrap_or(0);
        match said {
            _ if !ended => None,
            0 => Some(pe),
            said => said.checked_sub(OF_ANOTHER).and_then(|first| usize::try_from(first).ok()),
        }
    }
}
