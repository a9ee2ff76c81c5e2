//! Version 6 of the interface: NVSHMEM 3.7.

use core::ffi::c_int;

use trunkline_sys::nvshmem::v6::{AmoVerb, BatchHint, Transport, VERSION};
use trunkline_sys::nvshmem::{Head, SetUp};

use super::calls::{self, AtomicVerb, VerbOf};
use super::table::{self, TransportVersion};
use crate::error::Result;
use crate::plugin::TransportPlugin;

impl TransportVersion for Transport {
    fn head_pointer(this: *mut Self) -> *mut Head {
        this.cast()
    }

    fn into_head(self: Box<Self>) -> Box<Head> {
        Box::new(self.head)
    }
}

impl VerbOf for AmoVerb {
    fn atomic_verb(&self) -> AtomicVerb {
        AtomicVerb { kind: self.desc, float: self.is_float != 0 }
    }
}

/// Creates a transport for a host of this version.
pub(super) fn make_transport(host: c_int) -> Result<*mut Transport> {
    let plugin = TransportPlugin::new()?;
    let takes_hints = plugin.takes_batch_hints();
    let transport = Transport {
        head: table::make_head(plugin, VERSION, host),
        set_up: SetUp {
            can_reach_peer: Some(calls::can_reach_peer::<Transport>),
            connect_endpoints: Some(calls::connect_endpoints::<Transport>),
            get_mem_handle: Some(calls::get_mem_handle::<Transport>),
            release_mem_handle: Some(calls::release_mem_handle::<Transport>),
            finalize: Some(calls::finalize::<Transport>),
            show_info: Some(calls::show_info::<Transport>),
            progress: Some(calls::progress::<Transport>),
        },
        rma: Some(calls::rma::<Transport>),
        amo: Some(calls::amo::<Transport, AmoVerb>),
        fence: Some(calls::fence::<Transport>),
        quiet: Some(calls::quiet::<Transport>),
        put_signal: Some(calls::put_signal::<Transport, AmoVerb>),
        // Where needed, NVSHMEM makes arrived data visible to a GPU by a CUDA call, and requires no function of the
        // transport.
        enforce_cst: None,
        enforce_cst_at_target: None,
        add_device_remote_mem_handles: None,
        batch_hint: takes_hints.then_some(calls::batch_hint::<Transport> as BatchHint<Transport>),
    };
    Ok(Box::into_raw(Box::new(transport)))
}
