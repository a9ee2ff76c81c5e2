//! What is asked of libfabric and what it offers: owned `fi_info`s, one each and never a list, made and freed by the library.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use trunkline_sys::ofi::{
    self, BUS_PCI, DomainAttr, EpAttr, FabricAttr, LINK_UP, RxAttr, TxAttr, ep_type, mode, mr_mode,
};

use crate::OfiLibrary;
use crate::errno::OfiErrno;

/// Most offers that are taken of one question.
const OFFERS: usize = 1024;
/// Modes that this crate goes along with: a context of every operation.
const MODES: u64 = mode::CONTEXT | mode::CONTEXT2;
/// What this crate does for registrations; of these a provider asks for what it needs.
const MR_MODES: i32 = mr_mode::LOCAL
    | mr_mode::VIRT_ADDR
    | mr_mode::ALLOCATED
    | mr_mode::PROV_KEY
    | mr_mode::ENDPOINT
    | mr_mode::HMEM;

/// One way to communicate that a provider offers.
pub struct OfiInfo {
    library: Arc<OfiLibrary>,
    raw: NonNull<ofi::Info>,
}

// SAFETY: it is memory that only its owner knows, and the library's calls for it belong to no thread.
unsafe impl Send for OfiInfo {}
// SAFETY: nothing changes behind a shared reference: providers read what they are given.
unsafe impl Sync for OfiInfo {}

/// The device under an offer, as far as the provider tells.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NicAttributes {
    /// Its name.
    pub name: Option<String>,
    /// Its place on the PCI bus: domain, bus, device, function.
    pub pci: Option<(u16, u8, u8, u8)>,
    /// Bits a second, 0 if unknown.
    pub speed: u64,
    /// Whether its cable is up, if that is known.
    pub up: Option<bool>,
}

/// The text at a pointer, if there is one.
fn text_at(at: *const c_char) -> Option<String> {
    // SAFETY: the library's texts end with zero and live as long as what they are in.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

impl OfiInfo {
    /// Takes one that belongs to nobody else.
    ///
    /// # Safety
    /// It is null, or the library made it, alone and with all that its attributes point to.
    unsafe fn adopt_raw(library: &Arc<OfiLibrary>, raw: *mut ofi::Info) -> Result<Self, OfiErrno> {
        let raw = NonNull::new(raw).ok_or(OfiErrno::new(libc::ENOMEM))?;
        let info = Self { library: Arc::clone(library), raw };
        let it = info.fi_info();
        let whole = !it.tx_attr.is_null()
            && !it.rx_attr.is_null()
            && !it.ep_attr.is_null()
            && !it.domain_attr.is_null()
            && !it.fabric_attr.is_null();
        if whole { Ok(info) } else { Err(OfiErrno::INVALID) }
    }

    /// Another one that says the same.
    ///
    /// # Errors
    /// There is no memory.
    pub fn duplicate_info(&self) -> Result<Self, OfiErrno> {
        // SAFETY: the info is whole.
        let raw = unsafe { (self.library.calls().dupinfo)(self.raw.as_ptr()) };
        // SAFETY: it was just made.
        unsafe { Self::adopt_raw(&self.library, raw) }
    }

    /// The library it is of.
    #[must_use]
    pub fn library(&self) -> &Arc<OfiLibrary> {
        &self.library
    }

    /// Names of provider, fabric and domain.
    #[must_use]
    pub fn names(&self) -> [String; 3] {
        let fabric = self.fabric_attr();
        let domain = self.domain_attr();
        [fabric.prov_name, fabric.name, domain.name].map(|at| text_at(at).unwrap_or_default())
    }

    /// Version of the provider, as it counts.
    #[must_use]
    pub fn provider_version(&self) -> u32 {
        self.fabric_attr().prov_version
    }

    /// How addresses look, a number of libfabric's `FI_SOCKADDR` and those after it.
    #[must_use]
    pub fn addr_format(&self) -> u32 {
        self.fi_info().addr_format
    }

    /// The own address that endpoints begin with, empty if there is none.
    #[must_use]
    pub fn source(&self) -> &[u8] {
        let it = self.fi_info();
        if it.src_addr.is_null() {
            return &[];
        }
        // SAFETY: the address has so many bytes and lives as long as the info.
        unsafe { std::slice::from_raw_parts(it.src_addr.cast(), it.src_addrlen) }
    }

    /// The device, as far as the provider tells.
    #[must_use]
    pub fn nic_attributes(&self) -> Option<NicAttributes> {
        // SAFETY: null, or the device's, which lives as long as the info.
        let nic = unsafe { self.fi_info().nic.as_ref() }?;
        // SAFETY: null, or whole.
        let device = unsafe { nic.device_attr.as_ref() };
        // SAFETY: null, or whole.
        let bus = unsafe { nic.bus_attr.as_ref() };
        // SAFETY: null, or whole.
        let link = unsafe { nic.link_attr.as_ref() };
        let pci = bus.filter(|bus| bus.bus_type == BUS_PCI).map(|bus| bus.attr);
        Some(NicAttributes {
            name: device.and_then(|device| text_at(device.name)),
            pci: pci.map(|pci| (pci.domain_id, pci.bus_id, pci.device_id, pci.function_id)),
            speed: link.map_or(0, |link| link.speed as u64),
            up: link.filter(|link| link.state != 0).map(|link| link.state == LINK_UP),
        })
    }

    /// Capabilities.
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
        // SAFETY: it is whole, and lives as long as this.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn raw_fabric_attr(&self) -> *mut FabricAttr {
        self.fi_info().fabric_attr
    }

    pub(crate) fn fabric_attr(&self) -> &FabricAttr {
        // SAFETY: looked at when the info was taken.
        unsafe { &*self.fi_info().fabric_attr }
    }

    pub(crate) fn domain_attr(&self) -> &DomainAttr {
        // SAFETY: looked at when the info was taken.
        unsafe { &*self.fi_info().domain_attr }
    }

    pub(crate) fn ep_attr(&self) -> &EpAttr {
        // SAFETY: looked at when the info was taken.
        unsafe { &*self.fi_info().ep_attr }
    }

    pub(crate) fn tx_attr(&self) -> &TxAttr {
        // SAFETY: looked at when the info was taken.
        unsafe { &*self.fi_info().tx_attr }
    }

    pub(crate) fn rx_attr(&self) -> &RxAttr {
        // SAFETY: looked at when the info was taken.
        unsafe { &*self.fi_info().rx_attr }
    }
}

impl Drop for OfiInfo {
    fn drop(&mut self) {
        // SAFETY: it is whole, and nobody else knows it.
        unsafe { (self.library.calls().freeinfo)(self.raw.as_ptr()) };
    }
}

impl std::fmt::Debug for OfiInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [provider, fabric, domain] = self.names();
        write!(f, "Info({provider}, {fabric}, {domain})")
    }
}

/// What is asked for. What is not said leaves the choice to the provider.
#[derive(Debug)]
pub struct OfiHints(OfiInfo);

impl OfiHints {
    /// Reliable endpoints without connections, with these capabilities (`FI_MSG` and its like) and all that this crate can do
    /// for a provider: registrations of every mode it knows, and a context for each operation.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(library: &Arc<OfiLibrary>, caps: u64) -> Result<Self, OfiErrno> {
        // SAFETY: for null it makes an empty one.
        let raw = unsafe { (library.calls().dupinfo)(std::ptr::null()) };
        // SAFETY: it was just made.
        let mut hints = Self(unsafe { OfiInfo::adopt_raw(library, raw) }?);
        let it = hints.fi_info_mut();
        (it.caps, it.mode) = (caps, MODES);
        hints.ep_attr().r#type = ep_type::RDM;
        hints.domain_attr().mr_mode = MR_MODES;
        Ok(hints)
    }

    fn fi_info_mut(&mut self) -> &mut ofi::Info {
        // SAFETY: it is whole, and borrowed as the hints are.
        unsafe { self.0.raw.as_mut() }
    }

    fn ep_attr(&mut self) -> &mut EpAttr {
        // SAFETY: looked at when it was made.
        unsafe { &mut *self.fi_info_mut().ep_attr }
    }

    /// Attributes of the domain.
    pub(crate) fn domain_attr(&mut self) -> &mut DomainAttr {
        // SAFETY: looked at when it was made.
        unsafe { &mut *self.fi_info_mut().domain_attr }
    }

    fn tx_attr(&mut self) -> &mut TxAttr {
        // SAFETY: looked at when it was made.
        unsafe { &mut *self.fi_info_mut().tx_attr }
    }

    fn rx_attr(&mut self) -> &mut RxAttr {
        // SAFETY: looked at when it was made.
        unsafe { &mut *self.fi_info_mut().rx_attr }
    }

    fn fabric_attr(&mut self) -> &mut FabricAttr {
        // SAFETY: looked at when it was made.
        unsafe { &mut *self.fi_info_mut().fabric_attr }
    }

    /// Of one provider, as `fi_info` names it.
    #[must_use]
    pub fn with_provider(mut self, name: &CStr) -> Self {
        replace_text(&mut self.fabric_attr().prov_name, name);
        self
    }

    /// On one fabric.
    #[must_use]
    pub fn with_fabric(mut self, name: &CStr) -> Self {
        replace_text(&mut self.fabric_attr().name, name);
        self
    }

    /// On one domain.
    #[must_use]
    pub fn with_domain(mut self, name: &CStr) -> Self {
        replace_text(&mut self.domain_attr().name, name);
        self
    }

    /// Providers may take a receive for remote CQ data that comes with a write, too.
    #[must_use]
    pub fn with_data_taking_receives(mut self) -> Self {
        self.fi_info_mut().mode |= mode::RX_CQ_DATA;
        self
    }

    /// Modes of registrations that are done (`FI_MR_*`), instead of all that this crate knows.
    #[must_use]
    pub fn with_mr_modes(mut self, modes: i32) -> Self {
        self.domain_attr().mr_mode = modes & MR_MODES;
        self
    }

    /// How addresses look (`FI_SOCKADDR_IN` and its like).
    #[must_use]
    pub fn with_addr_format(mut self, format: u32) -> Self {
        self.fi_info_mut().addr_format = format;
        self
    }

    /// Operations, and receives, that an endpoint is to take at once.
    #[must_use]
    pub fn with_depth(mut self, transmits: usize, receives: usize) -> Self {
        self.tx_attr().size = transmits;
        self.rx_attr().size = receives;
        self
    }

    /// The threading model (`FI_THREAD_*`). Of those that ask more of a caller than `FI_THREAD_SAFE`, `FI_THREAD_COMPLETION` and
    /// `FI_THREAD_DOMAIN` are what every version takes: 2.x offers nothing for `FI_THREAD_FID` and `FI_THREAD_ENDPOINT`.
    #[must_use]
    pub fn with_threading(mut self, model: u32) -> Self {
        self.domain_attr().threading = model;
        self
    }

    /// Bytes of remote CQ data at least.
    #[must_use]
    pub fn with_cq_data(mut self, bytes: usize) -> Self {
        self.domain_attr().cq_data_size = bytes;
        self
    }

    /// What arrives in order (`FI_ORDER_*`), in both directions.
    #[must_use]
    pub fn with_order(mut self, messages: u64) -> Self {
        self.tx_attr().msg_order = messages;
        self.rx_attr().msg_order = messages;
        self
    }

    /// What completions tell if nothing is said (`FI_DELIVERY_COMPLETE`, `FI_TRANSMIT_COMPLETE`).
    #[must_use]
    pub fn with_completion_flags(mut self, flags: u64) -> Self {
        self.tx_attr().op_flags = flags;
        self
    }

    /// Bytes that can be injected at least.
    #[must_use]
    pub fn with_inject(mut self, bytes: usize) -> Self {
        self.tx_attr().inject_size = bytes;
        self
    }

    /// The traffic class (`FI_TC_*`).
    #[must_use]
    pub fn with_traffic_class(mut self, class: u32) -> Self {
        self.tx_attr().tclass = class;
        self
    }
}

/// Puts a text in the place of another.
fn replace_text(place: &mut *mut c_char, name: &CStr) {
    // SAFETY: null, or a text that was allocated as the library frees it.
    unsafe { libc::free((*place).cast::<c_void>()) };
    // SAFETY: the text ends with zero. The library frees the copy with `free`.
    *place = unsafe { libc::strdup(name.as_ptr()) };
}

/// What the library's providers offer for some hints, best first; nothing where there is nothing. `node` is an address of
/// ours that endpoints are to begin with, as text.
///
/// # Errors
/// What the library said.
pub fn query_infos(hints: &OfiHints, node: Option<&CStr>) -> Result<Vec<OfiInfo>, OfiErrno> {
    let library = &hints.0.library;
    let mut list = std::ptr::null_mut();
    let at = node.map_or(std::ptr::null(), CStr::as_ptr);
    let flags = if node.is_some() { ofi::caps::SOURCE } else { 0 };
    let getinfo = library.calls().getinfo;
    // SAFETY: the hints are whole, texts end with zero, and the list has a place.
    let code = unsafe {
        getinfo(library.requested_version(), at, std::ptr::null(), flags, hints.0.as_raw(), &raw mut list)
    };
    match OfiErrno::check_code(code) {
        Err(OfiErrno::NO_DATA) => return Ok(Vec::new()),
        other => other?,
    }
    // Version 1.17 gives all domains whatever name is asked for.
    let domain = text_at(hints.0.domain_attr().name);
    let mut offers: Vec<OfiInfo> = Vec::new();
    let mut next = list;
    while !next.is_null() && offers.len() < OFFERS {
        // SAFETY: an entry of the list. What is made is the first of what it begins, alone.
        let raw = unsafe { (library.calls().dupinfo)(next) };
        // SAFETY: it was just made.
        let offer = unsafe { OfiInfo::adopt_raw(library, raw) }.ok();
        offers.extend(offer.filter(|offer| domain.as_ref().is_none_or(|name| offer.names()[2] == *name)));
        // SAFETY: an entry of the list.
        next = unsafe { (*next).next };
    }
    // SAFETY: the list belongs to nobody else, and what was taken of it are copies.
    unsafe { (library.calls().freeinfo)(list) };
    Ok(offers)
}
