//! Collectives: of teams, as `shmem_TYPE_broadcast`, and the older ones of active sets, as `shmem_broadcast64` and
//! `shmem_TYPE_sum_to_all`. They return 0; an error ends the program.

use std::ffi::{c_int, c_void};

use crate::abi::table::{all_types, integers};
use crate::abi::{byte_len, caller_memory, export};
use crate::collective::collect::ElementBlocks;
use crate::collective::group::CollectiveGroup;
use crate::collective::reduce::{And, CombineFn, Complex, Max, Min, Or, Prod, Sum, Xor, combine_slices};
use crate::error::{Result, ShmemError};
use crate::pe::Pe;
use crate::process_pe::with_pe;
use crate::symmetric_segments::SymmetricPlace;

/// Returns the place of `len` bytes, or any place for 0 bytes.
fn find_place(world: &Pe, addr: usize, len: usize) -> Result<SymmetricPlace> {
    if len == 0 { Ok(SymmetricPlace::in_inner(0)) } else { world.symmetric_memory().find_place(addr, len) }
}

fn find_team(world: &Pe, team: usize) -> Result<CollectiveGroup> {
    Ok(CollectiveGroup::Team(world.team_table().find_team(team)?))
}

/// Broadcasts `len` bytes of the PE with the index `root`, which copies them to its own `dest` too if `own`.
fn broadcast(
    world: &Pe,
    group: &CollectiveGroup,
    dest: *mut c_void,
    source: *const c_void,
    len: usize,
    root: c_int,
    own: bool,
) -> Result<()> {
    let to = find_place(world, dest.addr(), len)?;
    let from = find_place(world, source.addr(), len)?;
    world.team_member.broadcast(group, to, from, len, root.into(), own)
}

/// Checks that strides are positive, because blocks that overlap have no order.
fn check_strides(element: usize, count: usize, dst: isize, sst: isize) -> Result<ElementBlocks> {
    if count > 0 && (dst < 1 || sst < 1) {
        return Err(ShmemError::Argument("dst and sst must be at least 1"));
    }
    Ok(ElementBlocks { element, count, to: dst.unsigned_abs(), from: sst.unsigned_abs() })
}

fn alltoall(
    world: &Pe,
    group: &CollectiveGroup,
    dest: *mut c_void,
    source: *const c_void,
    how: ElementBlocks,
) -> Result<()> {
    let all = |stride: usize| {
        byte_len(byte_len(byte_len(how.count, stride)?, how.element)?, group.group_team().size)
    };
    let len = all(how.to)?;
    all(how.from)?;
    // The last element has no gap behind it.
    let len = len.saturating_sub((how.to - usize::from(how.to > 0)) * how.element);
    let to = find_place(world, dest.addr(), len)?;
    caller_memory(source, len)?;
    world.team_member.alltoall(group, to, source.expose_provenance(), how)
}

macro_rules! typed {
    ($name:literal, $of:ty) => {
        moved!($name, "_", "", size_of::<$of>());
    };
}

/// Defines collectives of a team with these parts of a name.
macro_rules! moved {
    ($type:literal, $line:literal, $size:literal, $element:expr) => {
        export!($type, $line, "broadcast", $size => fn(
            of: usize,
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
            root: c_int,
        ) -> c_int {
            with_pe(concat!("shmem_", $type, $line, "broadcast", $size), |world| {
                broadcast(world, &find_team(world, of)?, dest, source, byte_len(count, $element)?, root, true)
            });
            0
        });
        export!($type, $line, "collect", $size => fn(
            of: usize,
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
        ) -> c_int {
            with_pe(concat!("shmem_", $type, $line, "collect", $size), |world| {
                world.team_member.collect(&find_team(world, of)?, dest.addr(), &caller_memory(source, byte_len(count, $element)?)?)
            });
            0
        });
        export!($type, $line, "fcollect", $size => fn(
            of: usize,
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
        ) -> c_int {
            with_pe(concat!("shmem_", $type, $line, "fcollect", $size), |world| {
                world.team_member.fcollect(&find_team(world, of)?, dest.addr(), &caller_memory(source, byte_len(count, $element)?)?)
            });
            0
        });
        export!($type, $line, "alltoall", $size => fn(
            of: usize,
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
        ) -> c_int {
            with_pe(concat!("shmem_", $type, $line, "alltoall", $size), |world| {
                let how = ElementBlocks { element: $element, count, to: 1, from: 1 };
                alltoall(world, &find_team(world, of)?, dest, source, how)
            });
            0
        });
        export!($type, $line, "alltoalls", $size => fn(
            of: usize,
            dest: *mut c_void,
            source: *const c_void,
            dst: isize,
            sst: isize,
            count: usize,
        ) -> c_int {
            with_pe(concat!("shmem_", $type, $line, "alltoalls", $size), |world| {
                let how = check_strides($element, count, dst, sst)?;
                alltoall(world, &find_team(world, of)?, dest, source, how)
            });
            0
        });
    };
}
all_types!(typed);
moved!("", "", "mem", 1);

/// Defines collectives of an active set.
macro_rules! of_set {
    ($bits:literal, $element:expr) => {
        export!("broadcast", $bits => fn(
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
            root: c_int,
            start: c_int,
            log_stride: c_int,
            size: c_int,
            words: *mut c_void,
        ) {
            with_pe(concat!("shmem_broadcast", $bits), |world| {
                let set = world.team_member.active_set(start, log_stride, size, words.addr())?;
                broadcast(world, &set, dest, source, byte_len(count, $element)?, root, false)
            });
        });
        export!("collect", $bits => fn(
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
            start: c_int,
            log_stride: c_int,
            size: c_int,
            words: *mut c_void,
        ) {
            with_pe(concat!("shmem_collect", $bits), |world| {
                let set = world.team_member.active_set(start, log_stride, size, words.addr())?;
                world.team_member.collect(&set, dest.addr(), &caller_memory(source, byte_len(count, $element)?)?)
            });
        });
        export!("fcollect", $bits => fn(
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
            start: c_int,
            log_stride: c_int,
            size: c_int,
            words: *mut c_void,
        ) {
            with_pe(concat!("shmem_fcollect", $bits), |world| {
                let set = world.team_member.active_set(start, log_stride, size, words.addr())?;
                world.team_member.fcollect(&set, dest.addr(), &caller_memory(source, byte_len(count, $element)?)?)
            });
        });
        export!("alltoall", $bits => fn(
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
            start: c_int,
            log_stride: c_int,
            size: c_int,
            words: *mut c_void,
        ) {
            with_pe(concat!("shmem_alltoall", $bits), |world| {
                let set = world.team_member.active_set(start, log_stride, size, words.addr())?;
                let how = ElementBlocks { element: $element, count, to: 1, from: 1 };
                alltoall(world, &set, dest, source, how)
            });
        });
        export!("alltoalls", $bits => fn(
            dest: *mut c_void,
            source: *const c_void,
            dst: isize,
            sst: isize,
            count: usize,
            start: c_int,
            log_stride: c_int,
            size: c_int,
            words: *mut c_void,
        ) {
            with_pe(concat!("shmem_alltoalls", $bits), |world| {
                let set = world.team_member.active_set(start, log_stride, size, words.addr())?;
                let how = check_strides($element, count, dst, sst)?;
                alltoall(world, &set, dest, source, how)
            });
        });
    };
}
of_set!("32", 4);
of_set!("64", 8);

macro_rules! reduced {
    ($name:literal, $of:ty, $verb:literal, $op:ident) => {
        export!($name, "_", $verb, "_reduce" => fn(
            of: usize,
            dest: *mut c_void,
            source: *const c_void,
            count: usize,
        ) -> c_int {
            with_pe(concat!("shmem_", $name, "_", $verb, "_reduce"), |world| {
                let group = find_team(world, of)?;
                let (to, from) = (dest.expose_provenance(), source.expose_provenance());
                byte_len(count, size_of::<$of>())?;
                let combine = combine_slices::<$of, $op> as CombineFn;
                world.team_member.reduce(&group, to, from, count, size_of::<$of>(), combine)
            });
            0
        });
        export!($name, "_", $verb, "_to_all" => fn(
            dest: *mut c_void,
            source: *const c_void,
            count: c_int,
            start: c_int,
            log_stride: c_int,
            size: c_int,
            _work: *mut c_void,
            words: *mut c_void,
        ) {
            with_pe(concat!("shmem_", $name, "_", $verb, "_to_all"), |world| {
                let set = world.team_member.active_set(start, log_stride, size, words.addr())?;
                let (to, from) = (dest.expose_provenance(), source.expose_provenance());
                let count = usize::try_from(count).unwrap_or(0);
                let combine = combine_slices::<$of, $op> as CombineFn;
                world.team_member.reduce(&set, to, from, count, size_of::<$of>(), combine)
            });
        });
    };
}

macro_rules! by_bits {
    ($name:literal, $of:ty) => {
        reduced!($name, $of, "and", And);
        reduced!($name, $of, "or", Or);
        reduced!($name, $of, "xor", Xor);
    };
}
integers!(by_bits);

macro_rules! ordered {
    ($name:literal, $of:ty) => {
        reduced!($name, $of, "min", Min);
        reduced!($name, $of, "max", Max);
        reduced!($name, $of, "sum", Sum);
        reduced!($name, $of, "prod", Prod);
    };
}
all_types!(ordered);

macro_rules! complex {
    ($name:literal, $of:ty) => {
        reduced!($name, Complex<$of>, "sum", Sum);
        reduced!($name, Complex<$of>, "prod", Prod);
    };
}
complex!("complexf", f32);
complex!("complexd", f64);

export!("barrier_all" => fn() {
    with_pe("shmem_barrier_all", |world| world.team_member.barrier_all());
});

export!("sync_all" => fn() {
    with_pe("shmem_sync_all", |world| world.team_member.sync_group(&find_team(world, 1)?));
});

export!("barrier" => fn(start: c_int, log_stride: c_int, size: c_int, words: *mut c_void) {
    with_pe("shmem_barrier", |world| {
        let set = world.team_member.active_set(start, log_stride, size, words.addr())?;
        world.symmetric_memory().quiet_all()?;
        world.team_member.sync_group(&set)
    });
});

export!("sync" => fn(start: c_int, log_stride: c_int, size: c_int, words: *mut c_void) {
    with_pe("shmem_sync", |world| {
        let set = world.team_member.active_set(start, log_stride, size, words.addr())?;
        world.team_member.sync_group(&set)
    });
});

export!("team_sync" => fn(of: usize) -> c_int {
    with_pe("shmem_team_sync", |world| world.team_member.sync_group(&find_team(world, of)?));
    0
});
