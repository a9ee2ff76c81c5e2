//! An open device with its protection domain, and one of its ports. Shared by all rails of the device; closed with the last
//! thing that was made of it.

use std::ffi::{CStr, c_int};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use trunkline_fabric::{AbandonedKeys, DeviceReach, LinkError};
use trunkline_sys::verbs::{
    ABI_IS_EXTENDED, Calls, Context, ContextOps, Device as RawDevice, DeviceAttr, GID_TYPE_ROCE_V1,
    GID_TYPE_ROCE_V2, Gid, GidEntry, Pd, PortAttr, PortAttrEx, VerbsContext,
};

use crate::events::DeviceFaults;
use crate::flusher::PortFlusher;
use crate::grant::QueueGrant;
use crate::pipelines::DevicePipelines;
use crate::register::MrTable;
use crate::{VerbsConfig, VerbsLibrary, gid, gpudirect};

/// Most entries that are read of a port's table of addresses.
const GIDS_MAX: u32 = 256;

/// A device that is open.
pub(crate) struct VerbsDevice {
    library: Arc<VerbsLibrary>,
    context: *mut Context,
    pd: *mut Pd,
    /// Its limits.
    pub(crate) attr: DeviceAttr,
    /// Its name.
    pub(crate) name: String,
    /// Its folder in sysfs.
    pub(crate) folder: PathBuf,
    /// What it tells by itself.
    pub(crate) faults: DeviceFaults,
    /// Regions that are registered on it.
    pub(crate) regions: MrTable,
    /// Those whose owners are gone, and that the device would not end.
    pub(crate) abandoned: AbandonedKeys,
    /// Memory of GPUs that it reaches.
    pub(crate) reach: DeviceReach,
    /// Its pipelines.
    pub(crate) pipelines: DevicePipelines,
    /// Queue pairs in use by this process.
    pub(crate) queue_pairs: AtomicU32,
    /// Completion queues in use by this process.
    pub(crate) queues: AtomicU32,
}

// SAFETY: libibverbs may be called from any thread; the objects behind the pointers lock themselves.
unsafe impl Send for VerbsDevice {}
// SAFETY: as above.
unsafe impl Sync for VerbsDevice {}

/// The system's error of a call that tells by a null pointer.
pub(crate) fn last_error() -> io::Error {
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(0) => io::ErrorKind::Other.into(),
        error => error,
    }
}

/// The error of a call that returns its number.
pub(crate) fn check_code(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        // Some tell it by -1 and the thread's error.
        -1 => Err(last_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}

impl VerbsDevice {
    /// Opens a device of the list.
    ///
    /// # Errors
    /// The system's error.
    ///
    /// # Safety
    /// `raw` is an entry of a list of devices of this library that has not been freed.
    pub(crate) unsafe fn open(
        library: &Arc<VerbsLibrary>,
        raw: *mut RawDevice,
        config: &VerbsConfig,
    ) -> io::Result<Self> {
        let (faults, regions) =
            DeviceFaults::new().and_then(|faults| Ok((faults, MrTable::new()?))).map_err(io::Error::other)?;
        let calls = library.calls();
        // SAFETY: the caller's promise.
        let name = unsafe { (calls.get_device_name)(raw) };
        // SAFETY: the library's text ends with zero and lives as long as the device.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY: the caller's promise.
        let folder = unsafe { &(*raw).ibdev_path };
        // SAFETY: a text inside the device that ends with zero.
        let folder = unsafe { CStr::from_ptr(folder.as_ptr()) };
        let folder = PathBuf::from(folder.to_string_lossy().into_owned());
        // SAFETY: the caller's promise.
        let context = unsafe { (calls.open_device)(raw) };
        if context.is_null() {
            return Err(last_error());
        }
        // SAFETY: the context is open. A domain belongs to it until it is given back.
        let pd = unsafe { (calls.alloc_pd)(context) };
        if pd.is_null() {
            let error = last_error();
            // SAFETY: nothing was made of the context.
            unsafe { (calls.close_device)(context) };
            return Err(error);
        }
        // SAFETY: all zeros are such attributes.
        let mut attr: DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the attributes are whole.
        let queried = check_code(unsafe { (calls.query_device)(context, &raw mut attr) });
        // SAFETY: the context is open.
        let events = unsafe { (*context).async_fd };
        let mut device = Self {
            library: Arc::clone(library),
            context,
            pd,
            attr,
            name,
            folder,
            faults: faults.with_descriptor(events),
            regions: regions.with_limit(attr.max_mr.unsigned_abs()),
            abandoned: AbandonedKeys::default(),
            reach: DeviceReach::default(),
            pipelines: DevicePipelines::from_context(library.ionic_calls(), context),
            queue_pairs: AtomicU32::new(0),
            queues: AtomicU32::new(0),
        };
        device.reach = gpudirect::device_reach(&device, config);
        queried.map(|()| device)
    }

    #[inline]
    pub(crate) fn calls(&self) -> &Calls {
        self.library.calls()
    }

    /// The open device.
    #[inline]
    pub(crate) fn context(&self) -> *mut Context {
        self.context
    }

    /// Its domain.
    #[inline]
    pub(crate) fn protection_domain(&self) -> *mut Pd {
        self.pd
    }

    /// What is called for each message.
    #[inline]
    pub(crate) fn context_ops(&self) -> &ContextOps {
        // SAFETY: the context is open as long as this lives, and its table does not change.
        unsafe { &(*self.context).ops }
    }

    /// The newer slots of the context, where `reach`, counted from its end, lies inside.
    pub(crate) fn extended_context(&self, reach: usize) -> Option<*const VerbsContext> {
        // SAFETY: the context is open.
        let mark = unsafe { (*self.context).abi_compat };
        if mark.addr() != ABI_IS_EXTENDED {
            return None;
        }
        let whole = self.context.wrapping_byte_sub(std::mem::offset_of!(VerbsContext, context));
        let whole = whole.cast_const().cast::<VerbsContext>();
        // SAFETY: a context with that mark is the end of an extended one, which has at least its size.
        let size = unsafe { (*whole).sz };
        (size >= reach).then_some(whole)
    }

    /// The attributes of a port.
    pub(crate) fn query_port(&self, port: u8) -> io::Result<PortAttrEx> {
        // A library that is older than a field leaves it as it is.
        // SAFETY: all zeros are such attributes.
        let mut attr: PortAttrEx = unsafe { std::mem::zeroed() };
        let at = std::mem::offset_of!(VerbsContext, query_port);
        let newer = self.extended_context(size_of::<VerbsContext>() - at).and_then(|whole| {
            // SAFETY: the slot lies inside what the library has.
            unsafe { (*whole).query_port }
        });
        let code = match newer {
            // SAFETY: the context is open; the attributes are as long as is said.
            Some(call) => unsafe {
                call(self.context, port, (&raw mut attr).cast(), size_of::<PortAttrEx>())
            },
            // SAFETY: the context is open; the call fills the beginning of the attributes.
            None => unsafe { (self.calls().query_port)(self.context, port, (&raw mut attr).cast()) },
        };
        check_code(code)?;
        Ok(attr)
    }

    /// The entries of a port's table of addresses that are set.
    pub(crate) fn query_gids(&self, port: u8, attr: &PortAttr) -> Vec<gid::GidTableEntry> {
        let most = attr.gid_tbl_len.unsigned_abs().min(GIDS_MAX);
        (0..most).filter_map(|index| self.query_gid(port, index)).collect()
    }

    fn query_gid(&self, port: u8, index: u32) -> Option<gid::GidTableEntry> {
        if let Some(query) = self.calls().query_gid_ex {
            // SAFETY: all zeros are such an entry.
            let mut entry: GidEntry = unsafe { std::mem::zeroed() };
            // SAFETY: the context is open; the entry is as long as is said.
            let found =
                unsafe { query(self.context, port.into(), index, &raw mut entry, 0, size_of::<GidEntry>()) };
            let roce = match entry.gid_type {
                GID_TYPE_ROCE_V1 => 1,
                GID_TYPE_ROCE_V2 => 2,
                _ => 0,
            };
            return (found == 0).then_some(gid::GidTableEntry { index, raw: entry.gid.raw, roce });
        }
        let mut gid = Gid { raw: [0; 16] };
        // SAFETY: the context is open; the address is whole.
        let found = unsafe { (self.calls().query_gid)(self.context, port, index as c_int, &raw mut gid) };
        let roce = match std::fs::read_to_string(self.gid_type_path(port, index)) {
            Ok(text) if text.contains("v2") => 2,
            Ok(text) if text.contains("RoCE") => 1,
            _ => 0,
        };
        (found == 0 && gid.raw != [0; 16]).then_some(gid::GidTableEntry { index, raw: gid.raw, roce })
    }

    fn gid_type_path(&self, port: u8, index: u32) -> PathBuf {
        self.folder.join(format!("ports/{port}/gid_attrs/types/{index}"))
    }

    /// Its place on the bus, function 0, and of virtual functions the card's if they count as that; none for a device that is
    /// no hardware.
    pub(crate) fn pci_path(&self, merges: bool) -> Option<String> {
        let path = std::fs::canonicalize(self.folder.join("device")).ok()?;
        first_function(&path, merges)
    }
}

/// The path of function 0 of the card: its functions count as one device. Virtual ones have further numbers of devices on the
/// bus, which are left out too if they are to count as it.
fn first_function(path: &Path, merges: bool) -> Option<String> {
    let path = path.to_str()?;
    let (card, function) = path.rsplit_once('.')?;
    let (bus, _) = card.rsplit_once(':').filter(|(_, device)| device.len() == 2 && function.len() == 1)?;
    Some(if merges { format!("{bus}:00.0") } else { format!("{card}.0") })
}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        self.regions.end_all(self.calls());
        // SAFETY: all that was made of the domain held this device, and is gone.
        unsafe { (self.calls().dealloc_pd)(self.pd) };
        // SAFETY: as above; nobody uses the context any more.
        unsafe { (self.calls().close_device)(self.context) };
    }
}

/// A port that is in use.
pub(crate) struct VerbsPort {
    /// Its device.
    pub(crate) device: Arc<VerbsDevice>,
    /// Its number, from 1.
    pub(crate) number: u8,
    /// What users choose.
    pub(crate) config: Arc<VerbsConfig>,
    /// Its attributes and address when the fabric was made.
    pub(crate) first: PortAddress,
    /// Its speed then.
    pub(crate) speed_mbps: u32,
    /// The address that was read last.
    pub(crate) last_gid: Mutex<gid::GidTableEntry>,
    /// The sizes that the device granted to its queue pairs.
    pub(crate) grant: QueueGrant,
    /// What flushes, while somebody does.
    pub(crate) flusher: Mutex<Weak<PortFlusher>>,
    /// Whether the network may send the packets of one write over several ways.
    pub(crate) adaptive: bool,
}

/// The address by which peers reach a port, as it was read for one link.
#[derive(Clone, Copy)]
pub(crate) struct PortAddress {
    /// The attributes of the port, among them its local address on InfiniBand.
    pub(crate) attr: PortAttr,
    /// Its global address.
    pub(crate) gid: gid::GidTableEntry,
}

impl VerbsPort {
    /// Reads the address by which peers reach the port now. Called for each link that is created, because a RoCE port whose interface gets
    /// another address has it at another place of its table.
    ///
    /// # Errors
    /// The system's; [`LinkError::Unreachable`] while the address that the port had is gone and no other of its kind has come,
    /// so that the caller tries again later.
    pub(crate) fn read_address(&self) -> Result<PortAddress, LinkError> {
        let attr = self.read_attributes()?;
        let mut last = self.last_gid.lock().unwrap_or_else(PoisonError::into_inner);
        // One question to the kernel in place of one for each entry of the table.
        if self.device.query_gid(self.number, last.index) != Some(*last) {
            let found = self.choose_gid(&attr).filter(|found| found.may_replace(&self.first.gid));
            *last = found.ok_or(LinkError::Unreachable(
                "the address of the port was removed, and the port has no other of its kind yet",
            ))?;
        }
        Ok(PortAddress { attr, gid: *last })
    }

    /// Reads the address by which the port reaches itself. While the address that peers use is gone, any other does.
    ///
    /// # Errors
    /// As [`VerbsPort::read_address`], where the port has no address at all.
    pub(crate) fn read_own_address(&self) -> Result<PortAddress, LinkError> {
        self.read_address().or_else(|error| {
            let attr = self.read_attributes()?;
            let gid = self.choose_gid(&attr).ok_or(error)?;
            Ok(PortAddress { attr, gid })
        })
    }

    fn read_attributes(&self) -> Result<PortAttr, LinkError> {
        let what = "reading the attributes of a port";
        self.device
            .query_port(self.number)
            .map(|port| port.attr)
            .map_err(|source| LinkError::System { what, source })
    }

    fn choose_gid(&self, attr: &PortAttr) -> Option<gid::GidTableEntry> {
        gid::choose_gid(attr.link_layer, &self.device.query_gids(self.number, attr), &self.config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_card_are_one_device() {
        let path = |text: &str, merges| first_function(Path::new(text), merges);
        let of = |name: &str, merges| path(&format!("/sys/devices/pci0/{name}"), merges).unwrap();
        for merges in [false, true] {
            assert_eq!(of("0000:3b:00.1", merges), "/sys/devices/pci0/0000:3b:00.0");
            assert_eq!(path("/sys/devices/virtual/net", merges), None);
            assert_eq!(path("/sys/devices/virtual/net.1", merges), None);
        }
        assert_eq!(of("0000:3b:02.5", true), "/sys/devices/pci0/0000:3b:00.0");
        assert_eq!(of("0000:3b:02.5", false), "/sys/devices/pci0/0000:3b:02.0");
    }

    #[test]
    fn errors_are_told_in_either_way() {
        assert!(check_code(0).is_ok());
        assert_eq!(check_code(22).unwrap_err().raw_os_error(), Some(22));
        assert_eq!(check_code(-22).unwrap_err().raw_os_error(), Some(22));
    }
}
