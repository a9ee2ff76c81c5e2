//! Queries: the PE's number, accessible memory, and the version of the library.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::{export, result_memory};
use crate::memory::rma::map_bounds_error;
use crate::pe::Pe;
use crate::process_pe::{end_program, with_pe};

/// The name fits into `SHMEM_MAX_NAME_LEN` bytes with its terminating zero.
const NAME: &[u8] = b"Trunkline\0";
const VERSION: (c_int, c_int) = (1, 5);

export!("my_pe" => fn() -> c_int {
    with_pe("shmem_my_pe", |world| Ok(world.symmetric_memory().own_pe() as c_int))
});

export!("n_pes" => fn() -> c_int {
    with_pe("shmem_n_pes", |world| Ok(world.symmetric_memory().pe_count() as c_int))
});

export!("pe_accessible" => fn(pe: c_int) -> c_int {
    with_pe("shmem_pe_accessible", |world| {
        Ok(usize::try_from(pe).is_ok_and(|pe| pe < world.symmetric_memory().pe_count()).into())
    })
});

export!("addr_accessible" => fn(addr: *const c_void, pe: c_int) -> c_int {
    with_pe("shmem_addr_accessible", |world| {
        let there = usize::try_from(pe).is_ok_and(|pe| pe < world.symmetric_memory().pe_count());
        Ok((there && world.symmetric_memory().own_segments().find_place(addr.addr(), 1).is_some()).into())
    })
});

/// Returns the address in this process of memory of a PE, if it can be accessed by loads and stores.
fn pe_pointer(world: &Pe, addr: *const c_void, pe: usize) -> *mut c_void {
    let place = world.symmetric_memory().own_segments().find_place(addr.addr(), 1);
    let at = place.and_then(|place| world.symmetric_memory().mapped_address(place, pe));
    at.map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
}

export!("ptr" => fn(addr: *const c_void, pe: c_int) -> *mut c_void {
    with_pe("shmem_ptr", |world| {
        let pe = usize::try_from(pe).ok().filter(|pe| *pe < world.symmetric_memory().pe_count());
        Ok(pe.map_or(std::ptr::null_mut(), |pe| pe_pointer(world, addr, pe)))
    })
});

export!("team_ptr" => fn(team: usize, addr: *const c_void, pe: c_int) -> *mut c_void {
    with_pe("shmem_team_ptr", |world| {
        if team == 0 {
            return Ok(std::ptr::null_mut());
        }
        let pe = world.team_table().find_team(team)?.checked_pe(pe.into());
        Ok(pe.map_or(std::ptr::null_mut(), |pe| pe_pointer(world, addr, pe)))
    })
});

/// Writes a result of a call that is also valid before the library starts.
fn write_result(call: &str, at: *mut c_void, what: &[u8]) {
    if let Err(error) = result_memory(at, what.len()).and_then(|at| map_bounds_error(at.write(0, what))) {
        end_program(call, &error);
    }
}

export!("info_get_version" => fn(major: *mut c_int, minor: *mut c_int) {
    write_result("shmem_info_get_version", major.cast(), &VERSION.0.to_le_bytes());
    write_result("shmem_info_get_version", minor.cast(), &VERSION.1.to_le_bytes());
});

export!("info_get_name" => fn(name: *mut c_char) {
    write_result("shmem_info_get_name", name.cast(), NAME);
});

// For profiling tools; the library contains none. C passes further arguments, which are ignored.
export!("pcontrol" => fn(_level: c_int) {});
