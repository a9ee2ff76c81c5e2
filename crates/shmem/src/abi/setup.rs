//! The start and the end of a program.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::abi::{export, result_memory};
use crate::error::{Result, ShmemError};
use crate::memory::rma::map_bounds_error;
use crate::process_pe::{self, with_pe};

/// `SHMEM_THREAD_MULTIPLE`, the highest level. Every requested level is granted.
const MULTIPLE: c_int = 3;

fn init_library(call: &str, threads: c_int) {
    match process_pe::start_pe() {
        // The level of the first start stays.
        Ok(starts) => with_pe(call, |world| {
            if starts {
                world.threads.store(threads as u32, Ordering::Relaxed);
            }
            Ok(())
        }),
        Err(error) => process_pe::end_program(call, &error),
    }
}

/// Checks the pointer for the granted level, and the requested level.
fn check_level(requested: c_int, provided: *mut c_int) -> Result<()> {
    result_memory(provided.cast(), 4)?;
    if !(0..=MULTIPLE).contains(&requested) {
        return Err(ShmemError::Argument(
            "requested must be SHMEM_THREAD_SINGLE, _FUNNELED, _SERIALIZED or _MULTIPLE",
        ));
    }
    Ok(())
}

export!("init" => fn() {
    init_library("shmem_init", 0);
});

export!("init_thread" => fn(requested: c_int, provided: *mut c_int) -> c_int {
    let call = "shmem_init_thread";
    if let Err(error) = check_level(requested, provided) {
        process_pe::end_program(call, &error);
    }
    init_library(call, requested);
    tell_level(call, provided);
    0
});

/// Writes the granted level to the program.
fn tell_level(call: &str, provided: *mut c_int) {
    with_pe(call, |world| {
        let level = world.threads.load(Ordering::Relaxed);
        map_bounds_error(result_memory(provided.cast(), 4)?.write(0, &level.to_le_bytes()))
    });
}

export!("query_thread" => fn(provided: *mut c_int) {
    tell_level("shmem_query_thread", provided);
});

export!("finalize" => fn() {
    // Programs may call it twice.
    if process_pe::running_pe().is_ok() {
        with_pe("shmem_finalize", crate::pe::Pe::finalize_pe);
    }
});

export!("global_exit" => fn(status: c_int) {
    let world = process_pe::running_pe();
    process_pe::begin_end(status);
    if let Ok(world) = world {
        world.exit_all(status);
    }
    std::process::exit(status)
});

/// Finalizes at exit, because programs that start with `start_pes` do not call `shmem_finalize`.
extern "C" fn at_exit() {
    if let Ok(world) = process_pe::running_pe() {
        let _ = world.finalize_pe();
    }
}

/// The oldest function that starts a program.
#[unsafe(no_mangle)]
extern "C" fn start_pes(_count: c_int) {
    if process_pe::running_pe().is_err() {
        init_library("start_pes", 0);
        // SAFETY: `at_exit` is a function of this library, which is never unloaded before the process exits.
        unsafe { libc::atexit(at_exit) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn _my_pe() -> c_int {
    with_pe("_my_pe", |world| Ok(world.symmetric_memory().own_pe() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn _num_pes() -> c_int {
    with_pe("_num_pes", |world| Ok(world.symmetric_memory().pe_count() as c_int))
}
