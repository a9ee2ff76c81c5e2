//! Hints for libfabric and its offers: owned `fi_info`s, single ones and never lists, allocated and freed by the library.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use trunkline_sys::ofi::{
    self, BUS_PCI, DomainAttr, EpAttr, FabricAttr, LINK_UP, RxAttr, TxAttr, ep_type, mode, mr_mode,
};

use crate::OfiLibrary;
use crate::errno::OfiErrno;

/// The maximum number of offers used per query.
const OFFERS: usize = 1024;
/// Modes that this crate supports: a context for every operation.
const MODES: u64 = mode::CONTEXT | mode::CONTEXT2;
/// Registration modes that this crate supports; a provider selects those that it needs.
const MR_MODES: i32 = mr_mode::LOCAL
    | mr_mode::VIRT_ADDR
    | mr_mode::ALLOCATED
    | mr_mode::PROV_KEY
    | mr_mode::ENDPOINT
    | mr_mode::HMEM;

/// An offer of a provider.
pub struct OfiInfo {
    library: Arc<OfiLibrary>,
    raw: NonNull<ofi::Info>,
}

// SAFETY: only the owner has the pointer, and the library's calls for it may be made in any thread.
unsafe impl Send for OfiInfo {}
// SAFETY: no data changes behind a shared reference, because providers only read an info that is passed to them.
unsafe impl Sync for OfiInfo {}

/// The device of an offer, as far as the provider reports it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NicAttributes {
    /// Its name.
    pub name: Option<String>,
    /// Its PCI address: domain, bus, device, function.
    pub pci: Option<(u16, u8, u8, u8)>,
    /// Bits per second, 0 if unknown.
    pub speed: u64,
    /// Whether its link is up, if known.
    pub up: Option<bool>,
}

/// Returns the text at a pointer, unless it is null.
fn text_at(at: *const c_char) -> Option<String> {
    // SAFETY: the library's texts end with zero and stay valid until the info that contains them is freed.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

impl OfiInfo {
    /// Takes ownership of an info.
    ///
    /// # Safety
    /// The pointer is null, or a single info that the library allocated with all its attributes, and that no other code owns.
    unsafe fn adopt_raw(library: &Arc<OfiLibrary>, raw: *mut ofi::Info) -> Result<Self, OfiErrno> {
        let raw = NonNull::new(raw).ok_or(OfiErrno::new(libc::ENOMEM))?;
        let info = Self { library: Arc::clone(library), raw };
        let it = info.fi_info();
        // Checked once here, so that accessors can dereference the attributes.
        let whole = !it.tx_attr.is_null()
            && !it.rx_attr.is_null()
            && !it.ep_attr.is_null()
            && !it.domain_attr.is_null()
            && !it.fabric_attr.is_null();
        if whole { Ok(info) } else { Err(OfiErrno::INVALID) }
    }

    /// Duplicates the info.
    ///
    /// # Errors
    /// Out of memory.
    pub fn duplicate_info(&self) -> Result<Self, OfiErrno> {
        // SAFETY: the info is valid.
        let raw = unsafe { (self.library.calls().dupinfo)(self.raw.as_ptr()) };
        // SAFETY: the library has just allocated it for this call.
        unsafe { Self::adopt_raw(&self.library, raw) }
    }

    /// Returns the library that allocated the info.
    #[must_use]
    pub fn library(&self) -> &Arc<OfiLibrary> {
        &self.library
    }

    /// Returns the names of provider, fabric and domain.
    #[must_use]
    pub fn names(&self) -> [String; 3] {
        let fabric = self.fabric_attr();
        let domain = self.domain_attr();
        [fabric.prov_name, fabric.name, domain.name].map(|at| text_at(at).unwrap_or_default())
    }

    /// Returns the version of the provider, in its own numbering.
    #[must_use]
    pub fn provider_version(&self) -> u32 {
        self.fabric_attr().prov_version
    }

    /// Returns the address format, one of libfabric's `FI_SOCKADDR` and the following numbers.
    #[must_use]
    pub fn addr_format(&self) -> u32 {
        self.fi_info().addr_format
    }

    /// Returns the local address of endpoints, empty if there is none.
    #[must_use]
    pub fn source(&self) -> &[u8] {
        let it = self.fi_info();
        if it.src_addr.is_null() {
            return &[];
        }
        // SAFETY: the address has `src_addrlen` bytes and stays valid until the info is freed.
        unsafe { std::slice::from_raw_parts(it.src_addr.cast(), it.src_addrlen) }
    }

    /// Returns the device's attributes, as far as the provider reports them.
    #[must_use]
    pub fn nic_attributes(&self) -> Option<NicAttributes> {
        // SAFETY: the pointer is null, or refers to attributes that stay valid until the info is freed.
        let nic = unsafe { self.fi_info().nic.as_ref() }?;
        // SAFETY: the pointer is null, or valid until the info is freed.
        let device = unsafe { nic.device_attr.as_ref() };
        // SAFETY: the pointer is null, or valid until the info is freed.
        let bus = unsafe { nic.bus_attr.as_ref() };
        // SAFETY: the pointer is null, or valid until the info is freed.
        let link = unsafe { nic.link_attr.as_ref() };
        let pci = bus.filter(|bus| bus.bus_type == BUS_PCI).map(|bus| bus.attr);
        Some(NicAttributes {
            name: device.and_then(|device| text_at(device.name)),
            pci: pci.map(|pci| (pci.domain_id, pci.bus_id, pci.device_id, pci.function_id)),
            speed: link.map_or(0, |link| link.speed as u64),
            up: link.filter(|link| link.state != 0).map(|link| link.state == LINK_UP),
        })
    }

    /// Returns the capabilities (`FI_MSG` and others).
    #[must_use]
    pub fn caps(&self) -> u64 {
        self.fi_info().caps
    }

    pub(crate) fn mode(&self) -> u64 {
        self.fi_info().mode
    }

    pub(crate) fn as_raw(&self) -> *mut ofi::Info {
        self.raw.as_ptr()
    }

    fn fi_info(&self) -> &ofi::Info {
        // SAFETY: the info is valid, and `self` frees it when it is dropped.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn raw_fabric_attr(&self) -> *mut FabricAttr {
        self.fi_info().fabric_attr
    }

    pub(crate) fn fabric_attr(&self) -> &FabricAttr {
        // SAFETY: `adopt_raw` checked that the pointer is not null.
        unsafe { &*self.fi_info().fabric_attr }
    }

    pub(crate) fn domain_attr(&self) -> &DomainAttr {
        // SAFETY: `adopt_raw` checked that the pointer is not null.
        unsafe { &*self.fi_info().domain_attr }
    }

    pub(crate) fn ep_attr(&self) -> &EpAttr {
        // SAFETY: `adopt_raw` checked that the pointer is not null.
        unsafe { &*self.fi_info().ep_attr }
    }

    pub(crate) fn tx_attr(&self) -> &TxAttr {
        // SAFETY: `adopt_raw` checked that the pointer is not null.
        unsafe { &*self.fi_info().tx_attr }
    }

    pub(crate) fn rx_attr(&self) -> &RxAttr {
        // SAFETY: `adopt_raw` checked that the pointer is not null.
        unsafe { &*self.fi_info().rx_attr }
    }
}

impl Drop for OfiInfo {
    fn drop(&mut self) {
        // SAFETY: the info is valid, and `self` owned it alone.
        unsafe { (self.library.calls().freeinfo)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for OfiInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [provider, fabric, domain] = self.names();
        write!(f, "Info({provider}, {fabric}, {domain})")
    }
}

/// Hints for a query. Attributes that are not set leave the choice to the provider.
#[derive(Debug)]
pub struct OfiHints(OfiInfo);

impl OfiHints {
    /// Requests reliable connectionless endpoints with these capabilities (`FI_MSG` and others), and offers everything that this crate supports:
    /// all known registration modes, and a context for each operation.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(library: &Arc<OfiLibrary>, caps: u64) -> Result<Self, OfiErrno> {
        // SAFETY: for a null argument the library allocates an empty info.
        let raw = unsafe { (library.calls().dupinfo)(std::ptr::null()) };
        // SAFETY: the library has just allocated it for this call.
        let mut hints = Self(unsafe { OfiInfo::adopt_raw(library, raw) }?);
        let it = hints.fi_info_mut();
        // All modes that this crate supports, because a provider clears those that it does not need (fi_getinfo(3)).
        (it.caps, it.mode) = (caps, MODES);
        hints.ep_attr().r#type = ep_type::RDM;
        hints.domain_attr().mr_mode = MR_MODES;
        Ok(hints)
    }

    fn fi_info_mut(&mut self) -> &mut ofi::Info {
        // SAFETY: the info is valid, and borrowed exclusively with the hints.
        unsafe { self.0.raw.as_mut() }
    }

    fn ep_attr(&mut self) -> &mut EpAttr {
        // SAFETY: `adopt_raw` checked that the pointer is not null.
        unsafe { &mut *self.fi_info_mut().ep_attr }
    }

    /// Returns the attributes of the domain.
    pub(crate) fn domain_attr(&mut self) -> &mut DomainAttr {
        // SAFETY: `adopt_raw` checked that the pointer is not null.
        unsafe { &mut *self.fi_info_mut().domain_attr }
    }

    fn tx_attr(&mut self) -> &mut TxAttr {
        // SAFETY: `adopt_raw` checked that the pointer is not null.
        unsafe { &mut *self.fi_info_mut().tx_attr }
    }

    fn rx_attr(&mut self) -> &mut RxAttr {
        // SAFETY: `adopt_raw` checked that the pointer is not null.
        unsafe { &mut *self.fi_info_mut().rx_attr }
    }

    fn fabric_attr(&mut self) -> &mut FabricAttr {
        // SAFETY: `adopt_raw` checked that the pointer is not null.
        unsafe { &mut *self.fi_info_mut().fabric_attr }
    }

    /// Requests one provider, as `fi_info` names it.
    #[must_use]
    pub fn with_provider(mut self, name: &CStr) -> Self {
        replace_text(&mut self.fabric_attr().prov_name, name);
        self
    }

    /// Requests one fabric.
    #[must_use]
    pub fn with_fabric(mut self, name: &CStr) -> Self {
        replace_text(&mut self.fabric_attr().name, name);
        self
    }

    /// Requests one domain.
    #[must_use]
    pub fn with_domain(mut self, name: &CStr) -> Self {
        replace_text(&mut self.domain_attr().name, name);
        self
    }

    /// Allows providers to consume a receive for the remote CQ data of a write (`FI_RX_CQ_DATA`).
    #[must_use]
    pub fn with_data_taking_receives(mut self) -> Self {
        self.fi_info_mut().mode |= mode::RX_CQ_DATA;
        self
    }

    /// Limits the registration modes (`FI_MR_*`), instead of all that this crate supports.
    #[must_use]
    pub fn with_mr_modes(mut self, modes: i32) -> Self {
        self.domain_attr().mr_mode = modes & MR_MODES;
        self
    }

    /// Requests an address format (`FI_SOCKADDR_IN` and others).
    #[must_use]
    pub fn with_addr_format(mut self, format: u32) -> Self {
        self.fi_info_mut().addr_format = format;
        self
    }

    /// Requests the number of operations, and of receives, that an endpoint accepts at once.
    #[must_use]
    pub fn with_depth(mut self, transmits: usize, receives: usize) -> Self {
        self.tx_attr().size = transmits;
        self.rx_attr().size = receives;
        self
    }

    /// Requests a threading model (`FI_THREAD_*`). Of the models that demand more of a caller than `FI_THREAD_SAFE`, every version accepts
    /// `FI_THREAD_COMPLETION` and `FI_THREAD_DOMAIN`; 2.x offers nothing for `FI_THREAD_FID` and `FI_THREAD_ENDPOINT`.
    #[must_use]
    pub fn with_threading(mut self, model: u32) -> Self {
        self.domain_attr().threading = model;
        self
    }

    /// Requests a minimum length of remote CQ data, in bytes.
    #[must_use]
    pub fn with_cq_data(mut self, bytes: usize) -> Self {
        self.domain_attr().cq_data_size = bytes;
        self
    }

    /// Requests message ordering (`FI_ORDER_*`), in both directions.
    #[must_use]
    pub fn with_order(mut self, messages: u64) -> Self {
        self.tx_attr().msg_order = messages;
        self.rx_attr().msg_order = messages;
        self
    }

    /// Requests the default completion level (`FI_DELIVERY_COMPLETE`, `FI_TRANSMIT_COMPLETE`).
    #[must_use]
    pub fn with_completion_flags(mut self, flags: u64) -> Self {
        self.tx_attr().op_flags = flags;
        self
    }

    /// Requests a minimum inject size, in bytes.
    #[must_use]
    pub fn with_inject(mut self, bytes: usize) -> Self {
        self.tx_attr().inject_size = bytes;
        self
    }

    /// Requests a traffic class (`FI_TC_*`).
    #[must_use]
    pub fn with_traffic_class(mut self, class: u32) -> Self {
        self.tx_attr().tclass = class;
        self
    }
}

/// Replaces a text of an info.
fn replace_text(place: &mut *mut c_char, name: &CStr) {
    // SAFETY: the pointer is null, or a text that was allocated by `malloc`, as the library frees it.
    unsafe { libc::free((*place).cast::<c_void>()) };
    // SAFETY: the text ends with zero. The library frees the copy with `free`.
    *place = unsafe { libc::strdup(name.as_ptr()) };
}

/// Returns the offers of the library's providers for some hints, best first; empty if there are none. `node` is a local address for the
/// endpoints, as text.
///
/// # Errors
/// The library's error.
pub fn query_infos(hints: &OfiHints, node: Option<&CStr>) -> Result<Vec<OfiInfo>, OfiErrno> {
    let library = &hints.0.library;
    let mut list = std::ptr::null_mut();
    let at = node.map_or(std::ptr::null(), CStr::as_ptr);
    // FI_SOURCE, because without it the node is taken as the address of the peer (fi_getinfo(3)).
    let flags = if node.is_some() { ofi::caps::SOURCE } else { 0 };
    let getinfo = library.calls().getinfo;
    // SAFETY: the hints are valid, texts end with zero, and the list is written to a local variable.
    let code = unsafe {
        getinfo(library.requested_version(), at, std::ptr::null(), flags, hints.0.as_raw(), &raw mut list)
    };
    match OfiErrno::check_code(code) {
        Err(OfiErrno::NO_DATA) => return Ok(Vec::new()),
        other => other?,
    }
    // Filtered here, because version 1.17 returns all domains whichever name is requested.
    let domain = text_at(hints.0.domain_attr().name);
    let mut offers: Vec<OfiInfo> = Vec::new();
    let mut next = list;
    // Bounded, so that a faulty list of a provider cannot loop forever.
    while !next.is_null() && offers.len() < OFFERS {
        // SAFETY: `next` is an entry of the list. `fi_dupinfo` copies only this entry.
        let raw = unsafe { (library.calls().dupinfo)(next) };
        // SAFETY: the library has just allocated it for this call.
        let offer = unsafe { OfiInfo::adopt_raw(library, raw) }.ok();
        offers.extend(offer.filter(|offer| domain.as_ref().is_none_or(|name| offer.names()[2] == *name)));
        // SAFETY: `next` is an entry of the list.
        next = unsafe { (*next).next };
    }
    // SAFETY: no other code owns the list, and the offers are copies.
    unsafe { (library.calls().freeinfo)(list) };
    Ok(offers)
}
