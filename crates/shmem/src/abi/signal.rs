//! Puts with signals, as `shmem_TYPE_put_signal`, and reads of and waits for signals.

use std::ffi::{c_int, c_void};

use trunkline_proto::rma::atomic::AtomicType;
use trunkline_proto::wire::rma::signal::UpdateOp;
use trunkline_proto::wire::rma::word::WordWidth;

use crate::abi::table::{all_types, sizes};
use crate::abi::wait::{CompareOp, wait_until};
use crate::abi::{caller_memory, export, saturating_len};
use crate::ctx::DEFAULT;
use crate::error::ShmemError;
use crate::memory::atomics::SymmetricSignal;
use crate::memory::rma::ReturnPoint;
use crate::process_pe::with_pe;
use crate::symmetric_segments::SymmetricPlace;

/// `SHMEM_SIGNAL_SET` and `SHMEM_SIGNAL_ADD` of `shmem.h`.
const SET: c_int = 0;
const ADD: c_int = 1;

/// The word of a signal, and its change.
struct SignalCall {
    addr: *mut c_void,
    value: u64,
    op: c_int,
}

/// The two ends of a put, and its length in bytes.
#[derive(Clone, Copy)]
struct PutBuffers {
    dest: *mut c_void,
    source: *const c_void,
    len: usize,
}

fn put_signal(call: &str, ctx: usize, data: PutBuffers, signal: SignalCall, pe: c_int, when: ReturnPoint) {
    let PutBuffers { dest, source, len } = data;
    with_pe(call, |world| {
        let on = world.context_target(ctx)?;
        let pe = on.team.checked_pe(pe.into())?;
        let op = match signal.op {
            SET => UpdateOp::Set,
            ADD => UpdateOp::Add,
            _ => return Err(ShmemError::Argument("sig_op must be SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD")),
        };
        if !signal.addr.addr().is_multiple_of(8) {
            return Err(ShmemError::Unaligned(signal.addr.addr()));
        }
        let place = world.symmetric_memory().find_place(signal.addr.addr(), 8)?;
        let to = if len == 0 {
            SymmetricPlace::in_inner(0)
        } else {
            world.symmetric_memory().find_place(dest.addr(), len)?
        };
        let from = caller_memory(source, len)?;
        let update = SymmetricSignal { op, place, value: signal.value };
        world.symmetric_memory().put_signal(on.lane, pe, to, &from, update, when)
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
            let data = PutBuffers { dest, source, len: saturating_len(count, $element) };
            put_signal(call, DEFAULT, data, SignalCall { addr, value, op }, pe, ReturnPoint::$when);
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
            let data = PutBuffers { dest, source, len: saturating_len(count, $element) };
            put_signal(call, ctx, data, SignalCall { addr, value, op }, pe, ReturnPoint::$when);
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
    with_pe("shmem_signal_fetch", |world| {
        let memory = world.symmetric_memory();
        memory.look_at(memory.find_place(addr.addr(), 8)?, AtomicType::U64.word_width())
    })
});

export!("signal_wait_until" => fn(addr: *const c_void, cmp: c_int, value: u64) -> u64 {
    with_pe("shmem_signal_wait_until", |world| {
        let (at, compare) = (world.symmetric_memory().find_place(addr.addr(), 8)?, CompareOp::check_code(cmp)?);
        wait_until(world, || {
            let now = world.symmetric_memory().look_at(at, WordWidth::Eight)?;
            Ok(compare.holds(&now, &value).then_some(now))
        })
    })
});
