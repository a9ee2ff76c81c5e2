//! Beginning and end of a program.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::abi::export;
use crate::collect::memory;
use crate::rma::inside;
use crate::world::{self, with};

/// `SHMEM_THREAD_MULTIPLE`: all that is asked for is granted.
const MULTIPLE: c_int = 3;

fn init(call: &str, threads: c_int) {
    match world::start() {
        Ok(()) => with(call, |world| {
            world.threads.store(threads.clamp(0, MULTIPLE) as u32, Ordering::Relaxed);
            Ok(())
        }),
        Err(error) => world::end(call, &error),
    }
}

fn store(at: *mut c_int, value: c_int) {
    let _ = inside(memory(at.expose_provenance(), 4).write(0, &value.to_le_bytes()));
}

export!("init" => fn() {
    init("shmem_init", 0);
});

export!("init_thread" => fn(requested: c_int, provided: *mut c_int) -> c_int {
    init("shmem_init_thread", requested);
    store(provided, requested.clamp(0, MULTIPLE));
    0
});

export!("query_thread" => fn(provided: *mut c_int) {
    let level = with("shmem_query_thread", |world| Ok(world.threads.load(Ordering::Relaxed)));
    store(provided, level as c_int);
});

export!("finalize" => fn() {
    // Some call it twice.
    if world::running().is_ok() {
        with("shmem_finalize", crate::pe::Pe::leave);
    }
});

export!("global_exit" => fn(status: c_int) {
    if let Ok(world) = world::running() {
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
