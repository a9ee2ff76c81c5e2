//! Speeds of ports, over libraries that report them in the newer field, that are older than it, and that are older than the call.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::Arc;

use trunkline_fabric::Fabric as _;
use trunkline_sys::verbs::{Context, PortAttr, PortAttrEx, QueryPortEx};
use trunkline_verbs::{VerbsConfig, VerbsFabric};

use crate::device::{self, library};

/// The report of a thread's library on a port of four lanes.
#[derive(Clone, Copy)]
struct Reported {
    speed: u8,
    /// `None`: the library is older than the field, and fills attributes of its own, shorter length.
    speed_ex: Option<u32>,
}

thread_local! {
    static REPORTED: Cell<Option<Reported>> = const { Cell::new(None) };
}

/// The call by which contexts of this thread report ports; `None` for a library that is older than it.
pub(crate) fn slot() -> Option<QueryPortEx> {
    REPORTED.get().map(|_| query_port_ex as QueryPortEx)
}

unsafe extern "C" fn query_port_ex(
    context: *mut Context,
    port: u8,
    attr: *mut PortAttr,
    bytes: usize,
) -> c_int {
    let Some(Reported { speed, speed_ex }) = REPORTED.get() else { return 95 };
    // SAFETY: the caller passes attributes that begin with the older ones.
    let code = unsafe { device::query_port(context, port, attr.cast()) };
    // SAFETY: as above.
    unsafe { (*attr).active_width = 2 };
    // SAFETY: as above.
    unsafe { (*attr).active_speed = speed };
    if let Some(speed_ex) = speed_ex {
        assert_eq!(bytes, size_of::<PortAttrEx>(), "the caller passes the length with the newer field");
        let at = attr.wrapping_byte_add(offset_of!(PortAttrEx, active_speed_ex)).cast::<u32>();
        // SAFETY: the caller's attributes have the passed length.
        unsafe { *at = speed_ex };
    }
    code
}

fn speed(reported: Option<Reported>) -> u32 {
    REPORTED.set(reported);
    let fabric = VerbsFabric::with_library(Arc::new(library()), VerbsConfig::default()).unwrap();
    REPORTED.set(None);
    fabric.nics()[0].speed_mbps
}

#[test]
fn ports_report_xdr_by_the_newer_field() {
    assert_eq!(speed(Some(Reported { speed: 0, speed_ex: Some(256) })), 800_000);
    assert_eq!(speed(Some(Reported { speed: 128, speed_ex: Some(0) })), 400_000);
}

#[test]
fn older_libraries_report_the_speeds_they_know() {
    assert_eq!(speed(Some(Reported { speed: 64, speed_ex: None })), 200_000);
}

#[test]
fn ports_of_unknown_speed_do_not_report_xdr() {
    assert_eq!(speed(Some(Reported { speed: 0, speed_ex: None })), 10_000);
    assert_eq!(speed(Some(Reported { speed: 0, speed_ex: Some(1 << 12) })), 10_000);
    // Without the call, this device reports neither speed nor width.
    assert_eq!(speed(None), 10_000);
}
