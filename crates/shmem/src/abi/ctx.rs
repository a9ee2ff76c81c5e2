//! Contexts, and what orders and completes their work. `SHMEM_CTX_INVALID` is 0, `SHMEM_CTX_DEFAULT` 1.

use std::ffi::{c_int, c_long};

use crate::abi::{export, result};
use crate::ctx::DEFAULT;
use crate::error::{Error, Result};
use crate::pe::Pe;
use crate::rma::inside;
use crate::team::WORLD;
use crate::world::{gives, with};

/// Writes a handle to where C wants it.
pub(super) fn store(at: *mut usize, handle: usize) -> Result<()> {
    inside(result(at.cast(), 8)?.write(0, &handle.to_le_bytes()))
}

/// `SHMEM_CTX_SERIALIZED`, `_PRIVATE` and `_NOSTORE`: they promise what is not made use of, as every context may be used by any thread.
const OPTIONS: c_long = 7;

/// A context, for which the place is there.
fn create(world: &Pe, slot: usize, options: c_long, into: *mut usize) -> Result<c_int> {
    if options & !OPTIONS != 0 && !crate::planted("shmem-takes-any-option") {
        return Err(Error::Argument("options are SHMEM_CTX_SERIALIZED, _PRIVATE and _NOSTORE"));
    }
    let (handle, lane) = world.ctxs.make(slot)?;
    if let Some(far) = &world.far {
        far.make(lane).or_else(|error| world.ctxs.destroy(handle).and(Err(error)))?;
    }
    store(into, handle).map(|()| 0)
}

export!("ctx_create" => fn(options: c_long, into: *mut usize) -> c_int {
    with("shmem_ctx_create", |world| {
        store(into, 0)?;
        // A program can do without.
        Ok(create(world, WORLD, options, into).unwrap_or(1))
    })
});

export!("team_create_ctx" => fn(team: usize, options: c_long, into: *mut usize) -> c_int {
    with("shmem_team_create_ctx", |world| {
        let made = if team == 0 { None } else { Some(world.teams.named(team)?.slot) };
        store(into, 0)?;
        Ok(made.and_then(|slot| create(world, slot, options, into).ok()).unwrap_or(1))
    })
});

export!("ctx_destroy" => fn(ctx: usize) {
    if ctx != 0 {
        gives("shmem_ctx_destroy", |world| {
            world.quiet(world.ctxs.lane(ctx)?)?;
            world.ctxs.destroy(ctx)
        });
    }
});

export!("ctx_get_team" => fn(ctx: usize, into: *mut usize) -> c_int {
    with("shmem_ctx_get_team", |world| {
        if ctx == 0 {
            return store(into, 0).map(|()| 1);
        }
        let slot = world.on(ctx)?.team.slot;
        store(into, world.teams.handle(slot)).map(|()| 0)
    })
});

export!("fence" => fn() {
    with("shmem_fence", |world| world.fence(&world.on(DEFAULT)?));
});

export!("quiet" => fn() {
    with("shmem_quiet", |world| world.quiet(world.ctxs.lane(DEFAULT)?));
});

export!("ctx_fence" => fn(ctx: usize) {
    if ctx != 0 {
        with("shmem_ctx_fence", |world| world.fence(&world.on(ctx)?));
    }
});

export!("ctx_quiet" => fn(ctx: usize) {
    if ctx != 0 {
        with("shmem_ctx_quiet", |world| world.quiet(world.on(ctx)?.lane));
    }
});
