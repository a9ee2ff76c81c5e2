//! Memory of a simulated device. Its addresses cannot be accessed; its bytes are elsewhere, at addresses that the
//! tests' stand-in for `libcuda.so.1` knows. Writes of peers to it are held back until such memory is read, because a
//! PCIe bus may delay them, too.

use std::ffi::{c_char, c_int, c_void};

use trunkline_sys::ofi::errno;

use crate::memory::{ProgramRange, copy_out};
use crate::registry::StrictMrId;

/// First word of the driver's dma-bufs, before the address of their bytes.
const MAGIC: u64 = 0x7472_756e_6b6c_6e65;

/// Returns the address of the bytes of a device address, or `None` for other addresses.
fn find_bytes(addr: usize) -> Option<usize> {
    // SAFETY: the flags only search the loaded libraries, so no constructor runs.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if driver.is_null() {
        return None;
    }
    // SAFETY: the library is open, and the name is zero-terminated.
    let found = unsafe { libc::dlsym(driver, c"fake_bytes".as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the function of the tests' driver has this type.
    let find = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(usize) -> *mut c_char>(found) };
    Some(find(addr) as usize).filter(|at| *at != 0)
}

/// Returns the address of the bytes of a range, all of which must belong to the device.
///
/// # Errors
/// A positive error number.
pub(crate) fn bytes_of(range: ProgramRange) -> Result<usize, c_int> {
    let last = range.base.checked_add(range.len.max(1) - 1).ok_or(errno::EINVAL)?;
    let first = find_bytes(range.base);
    let last = find_bytes(last);
    match (first, last) {
        (Some(first), Some(_)) => Ok(first),
        _ => Err(errno::EFAULT),
    }
}

/// Returns the address of the bytes of a part of a dma-buf. The driver's dma-buf is a file that begins with a magic
/// number and that address.
///
/// # Errors
/// A positive error number.
pub(crate) fn bytes_of_dmabuf(fd: c_int, offset: u64, len: usize) -> Result<usize, c_int> {
    let mut told = [0_u64; 2];
    // SAFETY: `told` has room for the given number of bytes.
    let count = unsafe { libc::pread(fd, told.as_mut_ptr().cast(), size_of_val(&told), 0) };
    if count < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(errno::EBADF));
    }
    // SAFETY: the call only returns the length of the file.
    let size = u64::try_from(unsafe { libc::lseek(fd, 0, libc::SEEK_END) }).unwrap_or(0);
    let is_inside = offset.checked_add(len as u64).is_some_and(|end| end <= size);
    if count as usize != size_of_val(&told) || told[0] != MAGIC || !is_inside || len == 0 {
        return Err(errno::EINVAL);
    }
    Ok(told[1] as usize + offset as usize)
}

/// Writes of peers that the device does not see yet.
#[derive(Default)]
pub(crate) struct HeldDeviceWrites(Vec<(StrictMrId, Vec<u8>, ProgramRange)>);

impl HeldDeviceWrites {
    /// Holds a write back.
    pub(crate) fn push(&mut self, id: StrictMrId, bytes: Vec<u8>, range: ProgramRange) {
        self.0.push((id, bytes, range));
    }

    /// Makes all held writes visible, or those of one registration, before it is closed.
    pub(crate) fn show_writes(&mut self, only: Option<StrictMrId>) {
        let (shown, kept) =
            std::mem::take(&mut self.0).into_iter().partition(|(id, ..)| only.is_none_or(|only| only == *id));
        self.0 = kept;
        let shown: Vec<(StrictMrId, Vec<u8>, ProgramRange)> = shown;
        for (_, bytes, range) in shown {
            // SAFETY: the registration is open, so the program keeps its memory mapped.
            unsafe { copy_out(&bytes, &[range]) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn only_dmabufs_of_the_driver_are_accepted() {
        let mut file = tempfile::tempfile().unwrap();
        let of = |fd, offset, len| bytes_of_dmabuf(fd, offset, len);
        assert_eq!(of(-1, 0, 1), Err(errno::EBADF));
        assert_eq!(of(file.as_raw_fd(), 0, 1), Err(errno::EINVAL), "an empty file");
        file.write_all(&MAGIC.to_ne_bytes()).unwrap();
        file.write_all(&0x7000_u64.to_ne_bytes()).unwrap();
        file.set_len(4096).unwrap();
        let fd = file.as_raw_fd();
        assert_eq!((of(fd, 0, 4096), of(fd, 100, 8)), (Ok(0x7000), Ok(0x7000 + 100)));
        for (offset, len) in [(0, 0), (1, 4096), (4096, 1), (u64::MAX, 2)] {
            assert_eq!(of(fd, offset, len), Err(errno::EINVAL), "{offset} and {len}");
        }
        // Without the driver, no address belongs to the device.
        assert_eq!(bytes_of(ProgramRange { base: fd as usize, len: 8 }), Err(errno::EFAULT));
    }

    #[test]
    fn held_writes_become_visible_once() {
        let mut first = [0_u8; 4];
        let mut second = [0_u8; 4];
        let range = |bytes: &mut [u8; 4]| ProgramRange { base: bytes.as_mut_ptr() as usize, len: 4 };
        let to_first = range(&mut first);
        let to_second = range(&mut second);
        let mut held = HeldDeviceWrites::default();
        held.push(StrictMrId(1), vec![1; 4], to_first);
        held.push(StrictMrId(2), vec![2; 4], to_second);
        held.push(StrictMrId(1), vec![3; 2], to_first);
        held.show_writes(Some(StrictMrId(1)));
        assert_eq!((first, second, held.0.len()), ([3, 3, 1, 1], [0; 4], 1));
        held.show_writes(None);
        assert_eq!((second, held.0.len()), ([2; 4], 0));
    }
}
