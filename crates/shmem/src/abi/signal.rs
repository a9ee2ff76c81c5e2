//! Puts with signals, `shmem_TYPE_put_signal` and the like, and signals that are read and waited for.

use std::ffi::{c_int, c_void};

use trunkline_proto::rma::atomic::Type;
use trunkline_proto::wire::rma::signal::SignalOp;
use trunkline_proto::wire::rma::word::Width;

use crate::abi::table::{all_types, sizes};
use crate::abi::wait::{Compare, until};
use crate::abi::{bytes, export, long};
use crate::ctx::DEFAULT;
use crate::error::Error;
use crate::place::Place;
use crate::rma::When;
use crate::world::with;

/// `SHMEM_SIGNAL_SET` and `SHMEM_SIGNAL_ADD` of `shmem.h`.
const SET: c_int = 0;
const ADD: c_int = 1;

/// What is done to which word.
struct Signal {
    addr: *mut c_void,
    value: u64,
    op: c_int,
}

fn put_signal(
    call: &str,
    ctx: usize,
    (dest, source, len): (*mut c_void, *const c_void, usize),
    signal: Signal,
    (pe, when): (c_int, When),
) {
    with(call, |world| {
        let on = world.on(ctx)?;
        let pe = on.team.named(pe.into())?;
        let op = match signal.op {
            SET => SignalOp::Set,
            ADD => SignalOp::Add,
            _ => return Err(Error::Argument("sig_op is SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD")),
        };
        if !signal.addr.addr().is_multiple_of(8) {
            return Err(Error::Unaligned(signal.addr.addr()));
        }
        let word = world.place(signal.addr.addr(), 8)?;
        let to = if len == 0 { Place::inner(0) } else { world.place(dest.addr(), len)? };
        let from = bytes(source, len)?;
        world.put_signal(on.lane, pe, (to, &from), (op, word, signal.value), when)
    });
}

macro_rules! signals {
    ($type:literal, $put:literal, $size:literal, $element:expr) => {
        signals!(@ $type, $put, $size, $element, "", Local);
        signals!(@ $type, $put, $size, $element, "_nbi", Now);
    };
    (@ $type:literal, $put:literal, $size:literal, $element:expr, $nbi:literal, $when:ident) => {
        export!($type, $put, $size, "_signal", $nbi => fn(
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
            addr: *mut c_void,
            value: u64,
            op: c_int,
            pe: c_int,
        ) {
            let call = concat!("shmem_", $type, $put, $size, "_signal", $nbi);
            let data = (dest, source, long(count, $element));
            put_signal(call, DEFAULT, data, Signal { addr, value, op }, (pe, When::$when));
        });
        export!("ctx_", $type, $put, $size, "_signal", $nbi => fn(
            ctx: usize,
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
            addr: *mut c_void,
            value: u64,
            op: c_int,
            pe: c_int,
        ) {
            let call = concat!("shmem_ctx_", $type, $put, $size, "_signal", $nbi);
            let data = (dest, source, long(count, $element));
            put_signal(call, ctx, data, Signal { addr, value, op }, (pe, When::$when));
        });
    };
}

macro_rules! typed {
    ($name:literal, $of:ty) => {
        signals!($name, "_put", "", size_of::<$of>());
    };
}
all_types!(typed);

macro_rules! sized {
    ($bits:literal, $bytes:literal) => {
        signals!("", "put", $bits, $bytes);
    };
}
sizes!(sized);
signals!("", "put", "mem", 1);

export!("signal_fetch" => fn(addr: *const c_void) -> u64 {
    with("shmem_signal_fetch", |world| world.look_at(world.place(addr.addr(), 8)?, Type::U64.width()))
});

export!("signal_wait_until" => fn(addr: *const c_void, cmp: c_int, value: u64) -> u64 {
    with("shmem_signal_wait_until", |world| {
        let (at, compare) = (world.place(addr.addr(), 8)?, Compare::named(cmp)?);
        until(world, || {
            let now = world.look_at(at, Width::Eight)?;
            Ok(compare.holds(&now, &value).then_some(now))
        })
    })
});
