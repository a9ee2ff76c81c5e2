//! Contexts, with the calls that order and complete their operations. `SHMEM_CTX_INVALID` is 0, `SHMEM_CTX_DEFAULT`
//! 1.

use std::ffi::{c_int, c_long};

use crate::abi::{export, result_memory};
use crate::ctx::DEFAULT;
use crate::error::{Result, ShmemError};
use crate::memory::rma::map_bounds_error;
use crate::pe::Pe;
use crate::process_pe::{with_pe, with_pe_unless_ending};
use crate::team::WORLD;

/// Writes a handle to memory of the program.
pub(super) fn store_handle(at: *mut usize, handle: usize) -> Result<()> {
    map_bounds_error(result_memory(at.cast(), 8)?.write(0, &handle.to_le_bytes()))
}

/// `SHMEM_CTX_SERIALIZED`, `_PRIVATE` and `_NOSTORE`: accepted without effect, because every context may be used by
/// any thread.
const OPTIONS: c_long = 7;

/// Creates a context. The caller has checked `into`.
fn create_context(world: &Pe, slot: usize, options: c_long, into: *mut usize) -> Result<c_int> {
    if options & !OPTIONS != 0 {
        return Err(ShmemError::Argument(
            "unknown options; valid are SHMEM_CTX_SERIALIZED, _PRIVATE and _NOSTORE",
        ));
    }
    let (handle, lane) = world.ctxs.create_context(slot)?;
    if let Some(far) = world.symmetric_memory().find_fabric() {
        far.create_context(lane).or_else(|error| world.ctxs.destroy(handle).and(Err(error)))?;
    }
    store_handle(into, handle).map(|()| 0)
}

export!("ctx_create" => fn(options: c_long, into: *mut usize) -> c_int {
    with_pe("shmem_ctx_create", |world| {
        store_handle(into, 0)?;
        // A failure is a return value here: a program can continue without the context.
        Ok(create_context(world, WORLD, options, into).unwrap_or(1))
    })
});

export!("team_create_ctx" => fn(team: usize, options: c_long, into: *mut usize) -> c_int {
    with_pe("shmem_team_create_ctx", |world| {
        let made = if team == 0 { None } else { Some(world.team_table().find_team(team)?.slot) };
        store_handle(into, 0)?;
        Ok(made.and_then(|slot| create_context(world, slot, options, into).ok()).unwrap_or(1))
    })
});

export!("ctx_destroy" => fn(ctx: usize) {
    if ctx != 0 {
        with_pe_unless_ending("shmem_ctx_destroy", |world| {
            world.symmetric_memory().quiet(world.ctxs.fabric_context(ctx)?)?;
            world.ctxs.destroy(ctx)
        });
    }
});

export!("ctx_get_team" => fn(ctx: usize, into: *mut usize) -> c_int {
    with_pe("shmem_ctx_get_team", |world| {
        if ctx == 0 {
            return store_handle(into, 0).map(|()| 1);
        }
        let slot = world.context_target(ctx)?.team.slot;
        store_handle(into, world.team_table().team_handle(slot)).map(|()| 0)
    })
});

export!("fence" => fn() {
    with_pe("shmem_fence", |world| world.symmetric_memory().fence(&world.context_target(DEFAULT)?));
});

export!("quiet" => fn() {
    with_pe("shmem_quiet", |world| world.symmetric_memory().quiet(world.ctxs.fabric_context(DEFAULT)?));
});

export!("ctx_fence" => fn(ctx: usize) {
    if ctx != 0 {
        with_pe("shmem_ctx_fence", |world| world.symmetric_memory().fence(&world.context_target(ctx)?));
    }
});

export!("ctx_quiet" => fn(ctx: usize) {
    if ctx != 0 {
        with_pe("shmem_ctx_quiet", |world| world.symmetric_memory().quiet(world.context_target(ctx)?.lane));
    }
});
