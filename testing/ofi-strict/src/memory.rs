//! Access to the program's memory, by addresses and mostly through the kernel. Unmapped memory thus causes an error
//! of a system call instead of a crash.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// A range of the program's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ProgramRange {
    pub(crate) base: usize,
    pub(crate) len: usize,
}

impl ProgramRange {
    /// Whether it contains another range completely.
    pub(crate) fn contains_range(self, other: Self) -> bool {
        let end = |range: Self| range.base.checked_add(range.len);
        other.base >= self.base && matches!((end(other), end(self)), (Some(a), Some(b)) if a <= b)
    }
}

/// The sum of some ranges' bytes, or `None` if it overflows.
pub(crate) fn total_len(ranges: &[ProgramRange]) -> Option<usize> {
    ranges.iter().try_fold(0_usize, |sum, range| sum.checked_add(range.len))
}

/// Returns the parts of ranges after the first `skip` bytes, at most `most` bytes.
pub(crate) fn sub_ranges(ranges: &[ProgramRange], skip: usize, most: usize) -> Vec<ProgramRange> {
    let mut skip = skip;
    let mut most = most;
    let mut out = Vec::with_capacity(ranges.len());
    for range in ranges {
        let skipped = skip.min(range.len);
        skip -= skipped;
        let len = (range.len - skipped).min(most);
        most -= len;
        if len > 0 {
            out.push(ProgramRange { base: range.base + skipped, len });
        }
    }
    out
}

fn to_iovecs(head: &[u8], ranges: &[ProgramRange]) -> Vec<libc::iovec> {
    let head = ProgramRange { base: head.as_ptr() as usize, len: head.len() };
    let all = std::iter::once(head).chain(ranges.iter().copied()).filter(|range| range.len > 0);
    all.map(|range| libc::iovec { iov_base: range.base as *mut _, iov_len: range.len }).collect()
}

fn check_count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Writes a header, then ranges of the program's memory, to a socket.
///
/// # Errors
/// An error of the kernel; `EFAULT` if memory is unmapped.
pub(crate) fn write_socket(to: impl AsFd, head: &[u8], ranges: &[ProgramRange]) -> io::Result<usize> {
    let vectors = to_iovecs(head, ranges);
    // SAFETY: all-zero bytes are a valid empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_ptr().cast_mut();
    message.msg_iovlen = vectors.len();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the list lives during the call, which only reads the ranges; the kernel checks their addresses.
    check_count(unsafe { libc::sendmsg(to.as_fd().as_raw_fd(), &raw const message, flags) })
}

/// Reads from a socket into ranges of the program's memory; returns 0 if the peer has closed the connection.
///
/// # Errors
/// An error of the kernel; `EFAULT` if memory is unmapped.
pub(crate) fn read_socket(from: impl AsFd, ranges: &[ProgramRange]) -> io::Result<usize> {
    let vectors = to_iovecs(&[], ranges);
    let entries = i32::try_from(vectors.len()).unwrap_or(i32::MAX);
    // SAFETY: the kernel checks the addresses of the list, and the program passed those ranges to be written.
    check_count(unsafe { libc::readv(from.as_fd().as_raw_fd(), vectors.as_ptr(), entries) })
}

/// Copies bytes from the program's memory.
///
/// # Safety
/// The ranges are readable, as the caller of a posting function guarantees.
pub(crate) unsafe fn copy_in(ranges: &[ProgramRange]) -> Vec<u8> {
    let mut out = Vec::with_capacity(total_len(ranges).unwrap_or(0));
    for range in ranges.iter().filter(|range| range.len > 0) {
        // SAFETY: this function's caller guarantees that the range is readable.
        out.extend_from_slice(unsafe { std::slice::from_raw_parts(range.base as *const u8, range.len) });
    }
    out
}

/// Copies bytes into ranges of the program's memory; bytes that do not fit are dropped.
///
/// # Safety
/// The ranges are writable and no Rust reference points into them, as the caller of a receiving function guarantees.
pub(crate) unsafe fn copy_out(bytes: &[u8], ranges: &[ProgramRange]) {
    let mut rest = bytes;
    for range in ranges {
        let (now, later) = rest.split_at(range.len.min(rest.len()));
        rest = later;
        // SAFETY: this function's caller guarantees that the range is writable; `bytes` is memory of this crate.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), range.base as *mut u8, now.len()) };
    }
}

/// Whether all pages of a range are mapped and resident.
pub(crate) fn is_there(range: ProgramRange) -> bool {
    let page = rustix::param::page_size();
    let from = range.base & !(page - 1);
    let Some(end) = range.base.checked_add(range.len) else { return false };
    let pages = (end - from).div_ceil(page);
    let mut there = vec![0_u8; pages];
    // SAFETY: the call only inspects page tables, and `there` has one byte per page.
    let result = unsafe { libc::mincore(from as *mut _, end - from, there.as_mut_ptr()) };
    result == 0 && there.iter().all(|page| page & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_ranges_begin_and_end_anywhere() {
        let ranges = [
            ProgramRange { base: 100, len: 10 },
            ProgramRange { base: 200, len: 0 },
            ProgramRange { base: 300, len: 5 },
        ];
        assert_eq!(
            sub_ranges(&ranges, 0, 12),
            [ProgramRange { base: 100, len: 10 }, ProgramRange { base: 300, len: 2 }]
        );
        assert_eq!(sub_ranges(&ranges, 10, 100), [ProgramRange { base: 300, len: 5 }]);
        assert_eq!(sub_ranges(&ranges, 15, 100), []);
        assert_eq!(sub_ranges(&ranges, 3, 4), [ProgramRange { base: 103, len: 4 }]);
    }

    #[test]
    fn range_contains_only_ranges_inside() {
        let range = ProgramRange { base: 100, len: 10 };
        assert!(range.contains_range(range) && range.contains_range(ProgramRange { base: 110, len: 0 }));
        assert!(
            !range.contains_range(ProgramRange { base: 99, len: 2 })
                && !range.contains_range(ProgramRange { base: 101, len: 10 })
        );
        assert!(!range.contains_range(ProgramRange { base: 105, len: usize::MAX }));
    }

    #[test]
    fn untouched_and_unmapped_pages_are_not_resident() {
        let page = rustix::param::page_size();
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping; it replaces no memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * page, prot, flags, -1, 0) };
        let base = at as usize;
        assert!(!is_there(ProgramRange { base, len: 1 }));
        // SAFETY: mapped above.
        unsafe { at.cast::<u8>().write(1) };
        assert!(
            is_there(ProgramRange { base, len: page }) && !is_there(ProgramRange { base, len: page + 1 })
        );
        // SAFETY: mapped above, and no reference to it exists.
        unsafe { libc::munmap(at, 2 * page) };
        assert!(!is_there(ProgramRange { base, len: 1 }));
    }
}
