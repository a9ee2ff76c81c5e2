//! Reads hints and writes offers as `fi_info` structures. libfabric frees them with the C library's `free`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use trunkline_sys::ofi::{
    DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr, ep_type, order, resource_mgmt,
};

use crate::config::StrictConfig;
use crate::offer::{ADDR_FORMAT, InfoHints, NAME, ProviderOffer};
use crate::post::RANGES_MAX;
use crate::registry::CLIENT_KEY_BYTES;
use crate::wire::MESSAGE_MAX;

/// Zeroed bytes after each structure, for fields that later versions append.
const ROOM: usize = 256;
/// Number of the protocol, which no other provider uses.
const PROTOCOL: u32 = 0x8000_0001;
/// Entries of a completion queue if the application specifies none.
pub(super) const QUEUE: usize = 4096;

/// Converts hints.
///
/// # Safety
/// `hints` is NULL or valid, as `fi_getinfo` requires.
pub(super) unsafe fn read_hints(hints: *const Info) -> InfoHints {
    let mut wishes = InfoHints::default();
    // SAFETY: as this function's caller promises.
    let Some(hints) = (unsafe { hints.as_ref() }) else { return wishes };
    (wishes.caps, wishes.addr_format) = (hints.caps, hints.addr_format);
    // SAFETY: NULL, or valid attributes.
    if let Some(tx) = unsafe { hints.tx_attr.as_ref() } {
        (wishes.inject_size, wishes.tx_size) = (tx.inject_size, tx.size);
        (wishes.msg_order, wishes.comp_order, wishes.tx_flags) = (tx.msg_order, tx.comp_order, tx.op_flags);
    }
    // SAFETY: as above.
    if let Some(rx) = unsafe { hints.rx_attr.as_ref() } {
        (wishes.rx_size, wishes.rx_flags) = (rx.size, rx.op_flags);
        wishes.msg_order |= rx.msg_order;
        wishes.comp_order |= rx.comp_order;
    }
    // SAFETY: as above.
    if let Some(ep) = unsafe { hints.ep_attr.as_ref() } {
        wishes.ep_type = ep.r#type;
    }
    // SAFETY: as above.
    if let Some(domain) = unsafe { hints.domain_attr.as_ref() } {
        (wishes.threading, wishes.av_type) = (domain.threading, domain.av_type);
        (wishes.control_progress, wishes.data_progress) = (domain.control_progress, domain.data_progress);
        (wishes.mr_mode, wishes.cq_data_size) = (Some(domain.mr_mode), domain.cq_data_size);
        // SAFETY: NULL, or a zero-terminated text.
        wishes.domain = unsafe { read_text(domain.name) };
    }
    // SAFETY: NULL, or valid attributes.
    if let Some(fabric) = unsafe { hints.fabric_attr.as_ref() } {
        // SAFETY: NULL, or a zero-terminated text.
        wishes.fabric = unsafe { read_text(fabric.name) };
    }
    wishes
}

/// # Safety
/// `at` is NULL or a zero-terminated text.
pub(super) unsafe fn read_text(at: *const c_char) -> Option<String> {
    if at.is_null() {
        return None;
    }
    // SAFETY: as this function's caller promises.
    Some(unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

/// Allocates a zeroed structure with the C library; returns NULL if there is no memory.
fn alloc_zeroed<T>() -> *mut T {
    // SAFETY: the call has no preconditions.
    unsafe { libc::calloc(1, size_of::<T>() + ROOM) }.cast()
}

/// Copies a text with the C library; returns NULL if there is no memory.
fn copy_text(text: &str) -> *mut c_char {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: a zero-terminated text.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// Writes a list of offers; returns NULL if there is no memory.
pub(super) fn write_offers(offers: &[ProviderOffer], config: &StrictConfig) -> *mut Info {
    let mut first = ptr::null_mut();
    for offer in offers.iter().rev() {
        let made = write_offer(offer, config, first);
        if made.is_null() {
            free_list(first);
            return ptr::null_mut();
        }
        first = made;
    }
    first
}

fn write_offer(offer: &ProviderOffer, config: &StrictConfig, next: *mut Info) -> *mut Info {
    let made = alloc_zeroed::<Info>();
    // SAFETY: NULL, or zeroed memory, which is a valid `Info`.
    let Some(info) = (unsafe { made.as_mut() }) else { return made };
    (info.caps, info.addr_format) = (offer.caps, ADDR_FORMAT);
    (info.tx_attr, info.rx_attr, info.ep_attr) = (alloc_zeroed(), alloc_zeroed(), alloc_zeroed());
    (info.domain_attr, info.fabric_attr) = (alloc_zeroed(), alloc_zeroed());
    // SAFETY: NULL, or zeroed memory, which is a valid structure of attributes; likewise below.
    let tx = unsafe { info.tx_attr.as_mut() };
    // SAFETY: as above.
    let rx = unsafe { info.rx_attr.as_mut() };
    // SAFETY: as above.
    let ep = unsafe { info.ep_attr.as_mut() };
    // SAFETY: as above.
    let domain = unsafe { info.domain_attr.as_mut() };
    // SAFETY: as above.
    let fabric = unsafe { info.fabric_attr.as_mut() };
    let (Some(tx), Some(rx), Some(ep), Some(domain), Some(fabric)) = (tx, rx, ep, domain, fabric) else {
        free_list(made);
        return ptr::null_mut();
    };
    fill_sides(tx, rx, offer, config);
    fill_endpoint(ep, offer);
    fill_domain(domain, offer, config);
    fill_fabric(fabric);
    info.next = next;
    made
}

fn fill_sides(tx: &mut TxAttr, rx: &mut RxAttr, offer: &ProviderOffer, config: &StrictConfig) {
    use trunkline_sys::ofi::caps::{READ, RECV, REMOTE_READ, REMOTE_WRITE, SEND, WRITE};
    tx.caps = offer.caps & !(RECV | REMOTE_READ | REMOTE_WRITE);
    (tx.op_flags, tx.msg_order) = (offer.tx_flags, offer.msg_order);
    (tx.inject_size, tx.size) = (config.inject, config.depth);
    (tx.iov_limit, tx.rma_iov_limit) = (RANGES_MAX, 1);
    rx.caps = offer.caps & !(SEND | READ | WRITE);
    (rx.op_flags, rx.msg_order) = (offer.rx_flags, offer.msg_order);
    (rx.size, rx.iov_limit) = (config.depth, RANGES_MAX);
}

fn fill_endpoint(ep: &mut EpAttr, offer: &ProviderOffer) {
    (ep.r#type, ep.protocol, ep.protocol_version) = (ep_type::RDM, PROTOCOL, 1);
    ep.max_msg_size = usize::try_from(MESSAGE_MAX).unwrap_or(usize::MAX);
    let ordered = |bit: u64| if offer.msg_order & bit != 0 { ep.max_msg_size } else { 0 };
    let raw = ordered(order::RAW);
    let war = ordered(order::WAR);
    let waw = ordered(order::WAW);
    (ep.max_order_raw_size, ep.max_order_war_size, ep.max_order_waw_size) = (raw, war, waw);
    ep.mem_tag_format = u64::MAX;
    (ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (1, 1);
}

fn fill_domain(domain: &mut DomainAttr, offer: &ProviderOffer, config: &StrictConfig) {
    domain.name = copy_text(&format!("{NAME}{}", offer.nic));
    (domain.threading, domain.av_type) = (offer.threading, offer.av_type);
    (domain.control_progress, domain.data_progress) = (offer.progress, offer.progress);
    domain.resource_mgmt = resource_mgmt::ENABLED;
    domain.mr_mode = offer.mr_mode;
    let provider_keys = offer.mr_mode & trunkline_sys::ofi::mr_mode::PROV_KEY != 0;
    domain.mr_key_size = if provider_keys { 8 } else { CLIENT_KEY_BYTES };
    domain.cq_data_size = config.cq_data;
    (domain.cq_cnt, domain.ep_cnt) = (1024, 1024);
    (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (1024, 1024);
    (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (1, 1);
    domain.mr_iov_limit = 1;
    domain.caps = trunkline_sys::ofi::caps::LOCAL_COMM | trunkline_sys::ofi::caps::REMOTE_COMM;
    domain.mr_cnt = usize::try_from(config.entries / 2).unwrap_or(usize::MAX);
}

fn fill_fabric(fabric: &mut FabricAttr) {
    // libfabric itself writes the provider's name.
    fabric.name = copy_text(NAME);
    fabric.prov_version = super::fabric::VERSION;
}

/// Frees a list that no caller has received.
fn free_list(mut info: *mut Info) {
    // SAFETY: NULL, or allocated by `write_offer`, completely or in part.
    while let Some(this) = unsafe { info.as_ref() } {
        let next = this.next;
        // SAFETY: NULL, or allocated by `write_offer`.
        let domain = unsafe { this.domain_attr.as_ref() }.map_or(ptr::null_mut(), |attr| attr.name);
        // SAFETY: as above.
        let fabric = unsafe { this.fabric_attr.as_ref() }.map_or(ptr::null_mut(), |attr| attr.name);
        let parts: [*mut c_void; 8] = [
            domain.cast(),
            fabric.cast(),
            this.tx_attr.cast(),
            this.rx_attr.cast(),
            this.ep_attr.cast(),
            this.domain_attr.cast(),
            this.fabric_attr.cast(),
            info.cast(),
        ];
        for part in parts {
            // SAFETY: NULL, or allocated with the C library, and no other pointer to it is used afterwards.
            unsafe { libc::free(part) };
        }
        info = next;
    }
}
