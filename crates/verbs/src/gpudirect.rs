//! The memory of GPUs that a device reaches: determined from library, kernel and modules once, when the device is opened. It opens no
//! driver of a GPU; the front end checks whether one is present.

use std::io;
use std::path::Path;

use crate::VerbsConfig;
use crate::device::{VerbsDevice, last_error};
use trunkline_fabric::{DeviceReach, RegisterError};

/// Files that show that NVIDIA's module for peer memory is loaded, relative to the root: today's name, and two older ones.
const NVIDIA: [&str; 3] = [
    "sys/module/nvidia_peermem/version",
    "sys/kernel/mm/memory_peers/nvidia-peermem/version",
    "sys/kernel/mm/memory_peers/nv_mem/version",
];
/// Files that show the same of AMD's module, which is part of its kernel driver.
const AMD: [&str; 2] = ["sys/kernel/mm/memory_peers/amdkfd/version", "sys/memory_peers/amdkfd/version"];

/// How memory is registered as a dma-buf, for messages.
const BY_DMABUF: &str = "as a dma-buf";
/// How memory is registered by its address, for messages.
const BY_ADDRESS: &str = "by its address";
/// The remedy if the kernel or the NIC's driver registers no dma-bufs.
const LOAD_PEER_MEMORY: &str = "load the module for peer memory (modprobe nvidia-peermem; AMD: amdgpu of ROCm with it), or \
     use a kernel and a driver of the NIC that register dma-bufs (Linux 5.12 or later, rdma-core 34 or later)";

/// Returns the memory of GPUs that a device reaches.
pub(crate) fn device_reach(device: &VerbsDevice, config: &VerbsConfig) -> DeviceReach {
    let there = |names: &[&str]| names.iter().any(|name| is_there(&config.root, name));
    DeviceReach {
        dmabuf: registers_dmabufs(device),
        nvidia: there(&NVIDIA),
        amd: there(&AMD),
        needs_flush: config.device_flush,
    }
}

fn is_there(root: &Path, name: &str) -> bool {
    root.join(name).exists()
}

/// Whether library, kernel and driver register dma-bufs. Tries it with an invalid descriptor: only a driver that supports the call reads the
/// descriptor and returns EBADF.
fn registers_dmabufs(device: &VerbsDevice) -> bool {
    let calls = device.calls();
    let Some(register) = calls.reg_dmabuf_mr else { return false };
    // SAFETY: the domain is open; no memory is involved, because the descriptor is invalid and the length is 0.
    let mr = unsafe { register(device.protection_domain(), 0, 0, 0, -1, 0) };
    if !mr.is_null() {
        // SAFETY: registered just now, and used nowhere else. A driver that accepts an invalid descriptor does not count as support.
        unsafe { (calls.dereg_mr)(mr) };
        return false;
    }
    last_error().raw_os_error() == Some(libc::EBADF)
}

/// Returns the error that memory of a device cannot be registered by its address.
pub(crate) fn no_peer_memory() -> RegisterError {
    let why = "no kernel module for peer memory is loaded".to_owned();
    RegisterError::Device { how: BY_ADDRESS, why, remedy: LOAD_PEER_MEMORY }
}

/// Returns the error that registration by address failed although a module is loaded.
pub(crate) fn not_by_address(error: &io::Error) -> RegisterError {
    let remedy = match error.raw_os_error() {
        Some(libc::EFAULT | libc::EINVAL) => {
            "the module for peer memory does not know the memory: it may be another vendor's, managed, or freed"
        }
        Some(libc::ENOMEM) => {
            "raise the limit of memory that may be locked (ulimit -l unlimited), or free BAR space"
        }
        _ => "see the kernel's log (dmesg)",
    };
    RegisterError::Device { how: BY_ADDRESS, why: error.to_string(), remedy }
}

/// Returns the error that the device registers no dma-bufs.
pub(crate) fn no_dmabufs() -> RegisterError {
    let why = "the kernel, rdma-core or the NIC's driver has no call for it".to_owned();
    RegisterError::Device { how: BY_DMABUF, why, remedy: LOAD_PEER_MEMORY }
}

/// Returns the error that a dma-buf was refused.
pub(crate) fn not_as_dmabuf(error: &io::Error) -> RegisterError {
    let remedy = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS) => LOAD_PEER_MEMORY,
        Some(libc::EBADF) => "the descriptor is closed, or of no dma-buf",
        Some(libc::EINVAL) => {
            "the bytes may not all be in the dma-buf, or the driver that exported it lets no NIC have it"
        }
        Some(libc::ENOMEM) => {
            "raise the limit of memory that may be locked (ulimit -l unlimited), or free BAR space"
        }
        _ => "see the kernel's log (dmesg)",
    };
    RegisterError::Device { how: BY_DMABUF, why: error.to_string(), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_remedy() {
        let text = |code| not_as_dmabuf(&io::Error::from_raw_os_error(code)).to_string();
        for code in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS] {
            let text = text(code);
            assert!(text.contains("as a dma-buf") && text.contains("modprobe nvidia-peermem"), "{text}");
        }
        assert!(text(libc::EBADF).contains("of no dma-buf"));
        assert!(text(libc::EINVAL).contains("not all be in the dma-buf"));
        let text = |code| not_by_address(&io::Error::from_raw_os_error(code)).to_string();
        assert!(text(libc::EFAULT).contains("does not know the memory"));
        assert!(text(libc::ENOMEM).contains("ulimit -l"));
    }

    #[test]
    fn modules_are_found_by_any_of_their_names() {
        let root = std::env::temp_dir().join(format!("trunkline-reach-{}", std::process::id()));
        for name in NVIDIA.iter().chain(&AMD) {
            assert!(!is_there(&root, name));
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "1.0\n").unwrap();
            assert!(is_there(&root, name), "{name}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
