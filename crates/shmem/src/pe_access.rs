//! The access of this PE to another one: its symmetric memory that is mapped here, and whether its process is alive.
//! Other memory is accessed over the fabric. Created when the library starts; immutable afterwards.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use trunkline_mem::{MemoryFileId, MemoryRange};
use trunkline_proto::wire::pe::{PeRecord as Told, SEGMENTS};

use crate::layout::{LEFT, OF_ANOTHER};
use crate::neighbour_statics::NeighbourStatics;
use crate::symmetric_segments::INNER;

/// Another PE, as this one accesses it.
#[derive(Debug, Default)]
pub(crate) struct PeAccess {
    memory: [Option<MemoryRange>; SEGMENTS],
    process: Option<OwnedFd>,
    /// Its static variables, if they are not mapped and the system copies from them.
    pub(crate) behind: Option<NeighbourStatics>,
}

impl PeAccess {
    /// Returns the access of this PE to itself.
    pub(crate) fn of_own_memory(memory: &[MemoryRange; SEGMENTS]) -> Self {
        Self { memory: memory.each_ref().map(|memory| Some(memory.clone())), process: None, behind: None }
    }

    /// Maps the memory of a PE of this host, as far as that is possible.
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

    /// Returns a segment of its memory, if it is mapped.
    #[inline]
    pub(crate) fn segment_memory(&self, segment: usize) -> Option<&MemoryRange> {
        self.memory[segment].as_ref()
    }

    /// Returns whether all of its memory is mapped.
    pub(crate) fn is_whole(&self) -> bool {
        self.memory.iter().all(Option::is_some)
    }

    /// Returns whether some of its memory is mapped and some is not.
    pub(crate) fn is_parted(&self) -> bool {
        self.memory.iter().any(Option::is_some) && !self.is_whole()
    }

    /// Returns the PE that died, if this process has ended without the others: this PE, which has number `pe`, or
    /// another one that caused its end.
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
