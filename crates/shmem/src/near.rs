//! What a PE is to this one: the symmetric memory of it that is mapped here, and whether its process lives. Memory that is not mapped is
//! reached over the fabric. Made when the library starts; never written afterwards.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use trunkline_mem::{Found, Memory};
use trunkline_proto::wire::pe::{Pe as Told, SEGMENTS};

use crate::behind::Behind;
use crate::layout::LEFT;
use crate::place::INNER;

/// A PE as this one reaches it.
#[derive(Debug, Default)]
pub(crate) struct Near {
    memory: [Option<Memory>; SEGMENTS],
    process: Option<OwnedFd>,
    /// Its static variables, where they are not mapped and the system copies from them.
    pub(crate) behind: Option<Behind>,
}

impl Near {
    /// This PE itself.
    pub(crate) fn own(memory: &[Memory; SEGMENTS]) -> Self {
        Self { memory: memory.each_ref().map(|memory| Some(memory.clone())), process: None, behind: None }
    }

    /// A process of this host: all that can be mapped of it.
    pub(crate) fn of(told: &Told) -> Self {
        let map = |segment: &trunkline_proto::wire::pe::Segment| {
            let found = Found { pid: told.pid, fd: segment.fd, inode: segment.inode, len: segment.len };
            if segment.inode == 0 { None } else { found.map().ok() }
        };
        let pid = i32::try_from(told.pid).ok().and_then(Pid::from_raw);
        let process = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { memory: told.segments.each_ref().map(map), process, behind: None }
    }

    /// A range of its memory.
    #[inline]
    pub(crate) fn segment(&self, segment: usize) -> Option<&Memory> {
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

    /// Whether its process has ended without having said so.
    pub(crate) fn is_dead(&self) -> bool {
        let Some(process) = &self.process else { return false };
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0);
        let left = self.segment(INNER).and_then(|inner| inner.load(LEFT).ok()).is_some_and(|word| word != 0);
        ended && !left
    }
}
