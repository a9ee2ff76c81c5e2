//! Puts and gets of every type and size: `shmem_TYPE_put`, `shmem_putSIZE`, `shmem_putmem`, their variants with a
//! context, non-blocking (`_nbi`), with strides (`iput`), and for one element (`p`, `g`).

use std::ffi::{c_int, c_void};

use trunkline_mem::MemoryRange;

use crate::abi::table::{all_types, scalars, sizes};
use crate::abi::{byte_len, caller_memory, export, saturating_len, too_many};
use crate::ctx::DEFAULT;
use crate::error::Result;
use crate::fast_path;
use crate::memory::raw_memory;
use crate::memory::rma::{ByteStrides, ReturnPoint};
use crate::process_pe::with_pe;

#[inline]
pub(super) fn put(
    call: &str,
    ctx: usize,
    dest: *mut c_void,
    source: *const c_void,
    len: usize,
    pe: c_int,
    when: ReturnPoint,
) {
    if ctx == DEFAULT && fast_path::put(dest, source, len, pe).is_some() {
        return;
    }
    with_pe(call, |world| {
        let on = world.context_target(ctx)?;
        let pe = on.team.checked_pe(pe.into())?;
        if len == 0 {
            return Ok(());
        }
        let to = world.symmetric_memory().find_place(dest.addr(), len)?;
        world.symmetric_memory().put(on.lane, pe, to, &caller_memory(source, len)?, when)
    });
}

#[inline]
pub(super) fn get(
    call: &str,
    ctx: usize,
    dest: *mut c_void,
    source: *const c_void,
    len: usize,
    pe: c_int,
    when: ReturnPoint,
) {
    if ctx == DEFAULT && fast_path::get(dest, source, len, pe).is_some() {
        return;
    }
    with_pe(call, |world| {
        let on = world.context_target(ctx)?;
        let pe = on.team.checked_pe(pe.into())?;
        if len == 0 {
            return Ok(());
        }
        let from = world.symmetric_memory().find_place(source.addr(), len)?;
        world.symmetric_memory().get(on.lane, pe, from, &caller_memory(dest, len)?, when)
    });
}

/// The memory of strided elements: the address of the lowest one, and the bytes from there to the end of the highest
/// one. `first` is the number of bytes before the first element. With a negative stride, that is the highest one.
#[derive(Clone, Copy)]
struct ElementSpan {
    low: usize,
    len: usize,
    first: i64,
}

impl ElementSpan {
    /// Returns the span of the elements from an address on.
    ///
    /// # Errors
    /// [`ShmemError::Argument`] if the span exceeds the address space.
    fn new(at: usize, stride: isize, how: StridedElements) -> Result<Self> {
        let steps = byte_len(byte_len(how.count - 1, stride.unsigned_abs())?, how.element)?;
        let back = if stride < 0 { steps } else { 0 };
        let low = at.checked_sub(back);
        let len = steps.checked_add(how.element);
        match (low, len.filter(|len| isize::try_from(*len).is_ok())) {
            (Some(low), Some(len)) => Ok(Self { low, len, first: back as i64 }),
            _ => Err(too_many()),
        }
    }

    /// Returns the span as memory of this PE.
    fn local_memory(self, at: *const c_void) -> Result<MemoryRange> {
        caller_memory(at, self.len)?;
        Ok(raw_memory(at.expose_provenance().wrapping_sub(self.first as usize), self.len))
    }
}

/// Elements with their size in bytes, and their strides in elements at either end.
#[derive(Clone, Copy)]
struct StridedElements {
    dst: isize,
    sst: isize,
    count: usize,
    element: usize,
}

impl StridedElements {
    /// The strides in bytes: `there` at the other PE and `here` at this one, where `first` bytes precede the
    /// first element.
    fn to_byte_strides(self, there: isize, here: isize, first: i64) -> ByteStrides {
        let bytes = |stride: isize| (stride as i64).wrapping_mul(self.element as i64);
        ByteStrides {
            there: bytes(there),
            here: bytes(here),
            first,
            element: self.element,
            count: self.count,
        }
    }
}

fn iput(call: &str, ctx: usize, dest: *mut c_void, source: *const c_void, how: StridedElements, pe: c_int) {
    with_pe(call, |world| {
        let on = world.context_target(ctx)?;
        let pe = on.team.checked_pe(pe.into())?;
        if how.count == 0 {
            return Ok(());
        }
        let there = ElementSpan::new(dest.addr(), how.dst, how)?;
        let here = ElementSpan::new(source.addr(), how.sst, how)?;
        let to = world.symmetric_memory().find_place(there.low, there.len)?.offset_by(there.first);
        world.symmetric_memory().put_strided(
            on.lane,
            pe,
            to,
            &here.local_memory(source)?,
            how.to_byte_strides(how.dst, how.sst, here.first),
        )
    });
}

fn iget(call: &str, ctx: usize, dest: *mut c_void, source: *const c_void, how: StridedElements, pe: c_int) {
    with_pe(call, |world| {
        let on = world.context_target(ctx)?;
        let pe = on.team.checked_pe(pe.into())?;
        if how.count == 0 {
            return Ok(());
        }
        let there = ElementSpan::new(source.addr(), how.sst, how)?;
        let here = ElementSpan::new(dest.addr(), how.dst, how)?;
        let from = world.symmetric_memory().find_place(there.low, there.len)?.offset_by(there.first);
        world.symmetric_memory().get_strided(
            on.lane,
            pe,
            from,
            &here.local_memory(dest)?,
            how.to_byte_strides(how.sst, how.dst, here.first),
        )
    });
}

/// Defines puts and gets with these parts of a name; `suffix` has the parts after the verb.
macro_rules! moves {
    ($type:literal, $size:literal, $element:expr) => {
        moves!(@ $type, $size, $element, put, "put", "", Local);
        moves!(@ $type, $size, $element, put, "put", "_nbi", Now);
        moves!(@ $type, $size, $element, get, "get", "", Local);
        moves!(@ $type, $size, $element, get, "get", "_nbi", Now);
    };
    (@ $type:literal, $size:literal, $element:expr, $do:ident, $verb:literal, $nbi:literal, $when:ident) => {
        export!($type, $verb, $size, $nbi => fn(dest: *mut c_void, source: *const c_void, count: usize, pe: c_int) {
            let call = concat!("shmem_", $type, $verb, $size, $nbi);
            $do(call, DEFAULT, dest, source, saturating_len(count, $element), pe, ReturnPoint::$when);
        });
        export!("ctx_", $type, $verb, $size, $nbi => fn(
            ctx: usize,
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
            pe: c_int,
        ) {
            let call = concat!("shmem_ctx_", $type, $verb, $size, $nbi);
            $do(call, ctx, dest, source, saturating_len(count, $element), pe, ReturnPoint::$when);
        });
    };
}

macro_rules! strided {
    ($type:literal, $size:literal, $element:expr) => {
        strided!(@ $type, $size, $element, iput, "iput");
        strided!(@ $type, $size, $element, iget, "iget");
    };
    (@ $type:literal, $size:literal, $element:expr, $do:ident, $verb:literal) => {
        export!($type, $verb, $size => fn(
            dest: *mut c_void,
            source: *const c_void,
            dst: isize,
            sst: isize,
            count: usize,
            pe: c_int,
        ) {
            let how = StridedElements { dst, sst, count, element: $element };
            $do(concat!("shmem_", $type, $verb, $size), DEFAULT, dest, source, how, pe);
        });
        export!("ctx_", $type, $verb, $size => fn(
            ctx: usize,
            dest: *mut c_void,
            source: *const c_void,
            dst: isize,
            sst: isize,
            count: usize,
            pe: c_int,
        ) {
            let how = StridedElements { dst, sst, count, element: $element };
            $do(concat!("shmem_ctx_", $type, $verb, $size), ctx, dest, source, how, pe);
        });
    };
}

macro_rules! typed {
    ($name:literal, $of:ty) => {
        typed!(@ $name, $of, put, "_put", "", Local);
        typed!(@ $name, $of, put, "_put", "_nbi", Now);
        typed!(@ $name, $of, get, "_get", "", Local);
        typed!(@ $name, $of, get, "_get", "_nbi", Now);
        strided!(@ $name, "", size_of::<$of>(), iput, "_iput");
        strided!(@ $name, "", size_of::<$of>(), iget, "_iget");
    };
    (@ $name:literal, $of:ty, $do:ident, $verb:literal, $nbi:literal, $when:ident) => {
        moves!(@ $name, "", size_of::<$of>(), $do, $verb, $nbi, $when);
    };
}
all_types!(typed);

macro_rules! sized {
    ($bits:literal, $bytes:literal) => {
        moves!("", $bits, $bytes);
        strided!("", $bits, $bytes);
    };
}
sizes!(sized);
moves!("", "mem", 1);

/// Defines the functions for one element.
macro_rules! single {
    ($name:literal, $of:ty) => {
        export!($name, "_p" => fn(dest: *mut c_void, value: $of, pe: c_int) {
            if fast_path::put_one(dest, &value, pe).is_none() {
                let source = (&raw const value).cast();
                put(concat!("shmem_", $name, "_p"), DEFAULT, dest, source, size_of::<$of>(), pe, ReturnPoint::Local);
            }
        });
        export!("ctx_", $name, "_p" => fn(ctx: usize, dest: *mut c_void, value: $of, pe: c_int) {
            let source = (&raw const value).cast();
            put(concat!("shmem_ctx_", $name, "_p"), ctx, dest, source, size_of::<$of>(), pe, ReturnPoint::Local);
        });
        export!($name, "_g" => fn(source: *const c_void, pe: c_int) -> $of {
            fast_path::get_one(source, pe).unwrap_or_else(|| get_element(concat!("shmem_", $name, "_g"), DEFAULT, source, pe))
        });
        export!("ctx_", $name, "_g" => fn(ctx: usize, source: *const c_void, pe: c_int) -> $of {
            get_element(concat!("shmem_ctx_", $name, "_g"), ctx, source, pe)
        });
    };
}
scalars!(single);

/// Gets one element of a PE.
#[inline]
fn get_element<T: bytemuck::Pod>(call: &str, ctx: usize, source: *const c_void, pe: c_int) -> T {
    let mut value = T::zeroed();
    with_pe(call, |world| {
        let on = world.context_target(ctx)?;
        let pe = on.team.checked_pe(pe.into())?;
        let from = world.symmetric_memory().find_place(source.addr(), size_of::<T>())?;
        let into = raw_memory((&raw mut value).expose_provenance(), size_of::<T>());
        world.symmetric_memory().get(on.lane, pe, from, &into, ReturnPoint::Local)
    });
    value
}
