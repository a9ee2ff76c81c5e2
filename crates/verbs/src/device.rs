//! An open device with its protection domain, and one of its ports. Shared by all rails of the device; closed with the last
//! object that was created on it. It posts nothing.

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

/// Most entries that are read of a port's GID table.
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
    /// Its directory in sysfs.
    pub(crate) folder: PathBuf,
    /// The asynchronous events that it reports.
    pub(crate) faults: DeviceFaults,
    /// Its registered regions.
    pub(crate) regions: MrTable,
    /// Registrations that their owners abandoned and the device has not ended.
    pub(crate) abandoned: AbandonedKeys,
    /// Memory of GPUs that it can reach.
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

/// Returns the system's error of a call that returned a null pointer.
pub(crate) fn last_error() -> io::Error {
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(0) => io::ErrorKind::Other.into(),
        error => error,
    }
}

/// Converts the return value of a call into its error.
pub(crate) fn check_code(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        // Some functions return -1 and set errno instead of returning the number.
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
        // SAFETY: the caller promises that `raw` is an entry of a list that has not been freed.
        let name = unsafe { (calls.get_device_name)(raw) };
        // SAFETY: the library returns a zero-terminated text inside the device, which stays valid until the list is
        // freed.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY: the caller promises that `raw` is an entry of a list that has not been freed.
        let folder = unsafe { &(*raw).ibdev_path };
        // SAFETY: the library fills the array inside the device with a zero-terminated text.
        let folder = unsafe { CStr::from_ptr(folder.as_ptr()) };
        let folder = PathBuf::from(folder.to_string_lossy().into_owned());
        // SAFETY: the caller promises that `raw` is an entry of a list that has not been freed.
        let context = unsafe { (calls.open_device)(raw) };
        if context.is_null() {
            return Err(last_error());
        }
        // SAFETY: the context is open. The domain belongs to it until it is deallocated.
        let pd = unsafe { (calls.alloc_pd)(context) };
        if pd.is_null() {
            let error = last_error();
            // SAFETY: the context is open, and no object was created on it.
            unsafe { (calls.close_device)(context) };
            return Err(error);
        }
        // SAFETY: the attributes consist of plain numbers, for which all zeros is a valid value.
        let mut attr: DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and `attr` has the size that this version of the call fills.
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
        // The error is returned only now, so that dropping the device closes context and domain.
        queried.map(|()| device)
    }

    #[inline]
    pub(crate) fn calls(&self) -> &Calls {
        self.library.calls()
    }

    /// Returns the open device.
    #[inline]
    pub(crate) fn context(&self) -> *mut Context {
        self.context
    }

    /// Returns its protection domain.
    #[inline]
    pub(crate) fn protection_domain(&self) -> *mut Pd {
        self.pd
    }

    /// Returns the functions of the data path, which libibverbs' inline functions call through the context.
    #[inline]
    pub(crate) fn context_ops(&self) -> &ContextOps {
        // SAFETY: the context is open while `self` lives, and its table does not change.
        unsafe { &(*self.context).ops }
    }

    /// Returns the extended context if it has the slot at `reach`, counted from its end.
    pub(crate) fn extended_context(&self, reach: usize) -> Option<*const VerbsContext> {
        // SAFETY: the context is open.
        let mark = unsafe { (*self.context).abi_compat };
        if mark.addr() != ABI_IS_EXTENDED {
            return None;
        }
        let whole = self.context.wrapping_byte_sub(std::mem::offset_of!(VerbsContext, context));
        let whole = whole.cast_const().cast::<VerbsContext>();
        // SAFETY: a context with that mark is the end of an extended one, whose size is stored in `sz`.
        let size = unsafe { (*whole).sz };
        (size >= reach).then_some(whole)
    }

    /// Returns the attributes of a port.
    pub(crate) fn query_port(&self, port: u8) -> io::Result<PortAttrEx> {
        // Zeroed, because a library that is older than a field does not write it.
        // SAFETY: the attributes consist of plain numbers, for which all zeros is a valid value.
        let mut attr: PortAttrEx = unsafe { std::mem::zeroed() };
        let at = std::mem::offset_of!(VerbsContext, query_port);
        let newer = self.extended_context(size_of::<VerbsContext>() - at).and_then(|whole| {
            // SAFETY: `extended_context` checked that the slot lies inside the library's structure.
            unsafe { (*whole).query_port }
        });
        let code = match newer {
            // SAFETY: the context is open, and `attr` has the length that is passed.
            Some(call) => unsafe {
                call(self.context, port, (&raw mut attr).cast(), size_of::<PortAttrEx>())
            },
            // SAFETY: the context is open; the call fills the older attributes, with which `attr` begins.
            None => unsafe { (self.calls().query_port)(self.context, port, (&raw mut attr).cast()) },
        };
        check_code(code)?;
        Ok(attr)
    }

    /// Returns the entries of a port's GID table that are set.
    pub(crate) fn query_gids(&self, port: u8, attr: &PortAttr) -> Vec<gid::GidTableEntry> {
        // Limited, because each entry costs a call and the device reports the length.
        let most = attr.gid_tbl_len.unsigned_abs().min(GIDS_MAX);
        (0..most).filter_map(|index| self.query_gid(port, index)).collect()
    }

    fn query_gid(&self, port: u8, index: u32) -> Option<gid::GidTableEntry> {
        if let Some(query) = self.calls().query_gid_ex {
            // SAFETY: the entry consists of plain numbers, for which all zeros is a valid value.
            let mut entry: GidEntry = unsafe { std::mem::zeroed() };
            // SAFETY: the context is open, and `entry` has the length that is passed.
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
        // Without `_ibv_query_gid_ex` the type of an entry can only be read from sysfs.
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

    /// Returns its PCI path with function 0, and that of the card for a virtual function if `merges`. Returns `None` for a device without
    /// hardware.
    pub(crate) fn pci_path(&self, merges: bool) -> Option<String> {
        let path = std::fs::canonicalize(self.folder.join("device")).ok()?;
        first_function(&path, merges)
    }
}

/// Returns the path of function 0 of the card, because its functions count as one device. Virtual functions have further device numbers on the
/// bus, which are removed too if `merges`.
fn first_function(path: &Path, merges: bool) -> Option<String> {
    let path = path.to_str()?;
    let (card, function) = path.rsplit_once('.')?;
    let (bus, _) = card.rsplit_once(':').filter(|(_, device)| device.len() == 2 && function.len() == 1)?;
    Some(if merges { format!("{bus}:00.0") } else { format!("{card}.0") })
}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        // Regions before the domain, because ibv_dealloc_pd(3) fails while one is registered.
        self.regions.end_all(self.calls());
        // SAFETY: every object of the domain holds this device, so all of them have been destroyed.
        unsafe { (self.calls().dealloc_pd)(self.pd) };
        // SAFETY: as above: all objects of the context have been destroyed, and this was its last owner.
        unsafe { (self.calls().close_device)(self.context) };
    }
}

/// A port that is in use.
pub(crate) struct VerbsPort {
    /// Its device.
    pub(crate) device: Arc<VerbsDevice>,
    /// Its number, from 1.
    pub(crate) number: u8,
    /// The user's configuration.
    pub(crate) config: Arc<VerbsConfig>,
    /// Its attributes and address when the fabric was created.
    pub(crate) first: PortAddress,
    /// Its speed at that time.
    pub(crate) speed_mbps: u32,
    /// The address that was read last.
    pub(crate) last_gid: Mutex<gid::GidTableEntry>,
    /// The sizes that the device granted to its queue pairs.
    pub(crate) grant: QueueGrant,
    /// The flusher, while a rail is a member.
    pub(crate) flusher: Mutex<Weak<PortFlusher>>,
    /// Whether the network may send the packets of one write over several paths (adaptive routing).
    pub(crate) adaptive: bool,
}

/// The address by which peers reach a port, as it was read for one link.
#[derive(Clone, Copy)]
pub(crate) struct PortAddress {
    /// The attributes of the port, including its local address (LID) on InfiniBand.
    pub(crate) attr: PortAttr,
    /// Its global address (GID).
    pub(crate) gid: gid::GidTableEntry,
}

impl VerbsPort {
    /// Reads the address at which peers reach the port now. Called for each link that is created, because a RoCE port whose interface gets
    /// another address has it at another index of its table.
    ///
    /// # Errors
    /// The system's error. [`LinkError::Unreachable`] while the port's address has left the table and no other of its kind has been added,
    /// so that the caller tries again later.
    pub(crate) fn read_address(&self) -> Result<PortAddress, LinkError> {
        let attr = self.read_attributes()?;
        let mut last = self.last_gid.lock().unwrap_or_else(PoisonError::into_inner);
        // One query to the kernel instead of one per entry of the table.
        if self.device.query_gid(self.number, last.index) != Some(*last) {
            let found = self.choose_gid(&attr).filter(|found| found.may_replace(&self.first.gid));
            *last = found.ok_or(LinkError::Unreachable(
                "the address of the port was removed, and the port has no other address of its kind yet",
            ))?;
        }
        Ok(PortAddress { attr, gid: *last })
    }

    /// Reads the address at which the port reaches itself. While the address for peers is missing, any other address works.
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
    fn errors_are_read_from_code_or_errno() {
        assert!(check_code(0).is_ok());
        assert_eq!(check_code(22).unwrap_err().raw_os_error(), Some(22));
        assert_eq!(check_code(-22).unwrap_err().raw_os_error(), Some(22));
    }
}
