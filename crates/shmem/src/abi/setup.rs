//! Beginning and end of a program.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::abi::{export, result};
use crate::error::{Error, Result};
use crate::rma::inside;
use crate::world::{self, with};

/// `SHMEM_THREAD_MULTIPLE`: all that is asked for is granted.
const MULTIPLE: c_int = 3;

fn init(call: &str, threads: c_int) {
    match world::start() {
        // What was granted once stays.
        Ok(starts) => with(call, |world| {
            if starts || crate::planted("shmem-grants-the-last-level") {
                world.threads.store(threads as u32, Ordering::Relaxed);
            }
            Ok(())
        }),
        Err(error) => world::end(call, &error),
    }
}

/// Where a level goes, and whether the one that is asked for can be.
fn asked(requested: c_int, provided: *mut c_int) -> Result<()> {
    result(provided.cast(), 4)?;
    if !(0..=MULTIPLE).contains(&requested) && !crate::planted("shmem-takes-any-level") {
        return Err(Error::Argument(
            "requested is one of SHMEM_THREAD_SINGLE, _FUNNELED, _SERIALIZED and _MULTIPLE",
        ));
    }
    Ok(())
}

export!("init" => fn() {
    init("shmem_init", 0);
});

export!("init_thread" => fn(requested: c_int, provided: *mut c_int) -> c_int {
    let call = "shmem_init_thread";
    if let Err(error) = asked(requested, provided) {
        world::end(call, &error);
    }
    init(call, requested);
    tell_level(call, provided);
    0
});

/// Says which level was granted.
fn tell_level(call: &str, provided: *mut c_int) {
    with(call, |world| {
        let level = world.threads.load(Ordering::Relaxed);
        inside(result(provided.cast(), 4)?.write(0, &level.to_le_bytes()))
    });
}

export!("query_thread" => fn(provided: *mut c_int) {
    tell_level("shmem_query_thread", provided);
});

export!("finalize" => fn() {
    // Some call it twice.
    if world::running().is_ok() {
        with("shmem_finalize", crate::pe::Pe::leave);
    }
});

export!("global_exit" => fn(status: c_int) {
    let world = world::running();
    world::begin_end(status);
    if let Ok(world) = world {
        world.exit_all(status);
    }
    std::process::exit(status)
});

/// As if the program had ended by `shmem_finalize`, which programs that begin by `start_pes` do not call.
extern "C" fn at_exit() {
    if let Ok(world) = world::running() {
        let _ = world.leave();
    }
}

/// The oldest way to begin.
#[unsafe(no_mangle)]
extern "C" fn start_pes(_count: c_int) {
    if world::running().is_err() {
        init("start_pes", 0);
        // SAFETY: a function that lives as long as this library.
        unsafe { libc::atexit(at_exit) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn _my_pe() -> c_int {
    with("_my_pe", |world| Ok(world.me as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn _num_pes() -> c_int {
    with("_num_pes", |world| Ok(world.size as c_int))
}
