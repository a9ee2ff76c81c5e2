//! Teams. `SHMEM_TEAM_INVALID` is 0, `SHMEM_TEAM_WORLD` 1, `SHMEM_TEAM_SHARED` 2.

use std::ffi::{c_int, c_long, c_void};

use crate::abi::ctx::store_handle;
use crate::abi::{export, result_memory};
use crate::collective::split::TeamPart;
use crate::memory::raw_memory;
use crate::memory::rma::map_bounds_error;
use crate::process_pe::{with_pe, with_pe_unless_ending};

export!("team_my_pe" => fn(team: usize) -> c_int {
    with_pe("shmem_team_my_pe", |world| match team {
        0 => Ok(-1),
        _ => {
            let team = world.team_table().find_team(team)?;
            Ok(team.index(world.symmetric_memory().own_pe()).map_or(-1, |index| index as c_int))
        }
    })
});

export!("team_n_pes" => fn(team: usize) -> c_int {
    with_pe("shmem_team_n_pes", |world| match team {
        0 => Ok(-1),
        _ => Ok(world.team_table().find_team(team)?.size as c_int),
    })
});

// The configuration has one member, `num_contexts`, which limits nothing here.
export!("team_get_config" => fn(team: usize, mask: c_long, config: *mut c_void) -> c_int {
    with_pe("shmem_team_get_config", |world| {
        if team == 0 {
            return Ok(-1);
        }
        let team = world.team_table().find_team(team)?;
        if mask & 1 != 0 {
            let contexts = world.team_table().context_count(&team);
            map_bounds_error(result_memory(config, 4)?.write(0, &contexts.to_le_bytes()))?;
        }
        Ok(0)
    })
});

export!("team_translate_pe" => fn(from: usize, pe: c_int, to: usize) -> c_int {
    with_pe("shmem_team_translate_pe", |world| match (from, to) {
        (0, _) | (_, 0) => Ok(-1),
        _ => Ok(world.team_table().translate_index(from, pe.into(), to)?.map_or(-1, |index| index as c_int)),
    })
});

/// Returns `num_contexts`, if the mask selects it.
fn requested_contexts(config: *const c_void, mask: c_long) -> crate::error::Result<u32> {
    let mut contexts = [0; 4];
    if mask & 1 != 0 && !config.is_null() {
        map_bounds_error(raw_memory(config.expose_provenance(), 4).read(0, &mut contexts))?;
    }
    Ok(u32::from_le_bytes(contexts))
}

export!("team_split_strided" => fn(
    parent: usize,
    start: c_int,
    stride: c_int,
    size: c_int,
    config: *const c_void,
    mask: c_long,
    into: *mut usize,
) -> c_int {
    with_pe("shmem_team_split_strided", |world| {
        let part = TeamPart { start: start.into(), stride: stride.into(), size: size.into(), contexts: requested_contexts(config, mask)? };
        store_handle(into, 0)?;
        let made = if parent == 0 { None } else { world.team_member.split_strided(parent, part)? };
        store_handle(into, made.unwrap_or(0))?;
        Ok(if made.is_some() { 0 } else { -1 })
    })
});

export!("team_split_2d" => fn(
    parent: usize,
    width: c_int,
    row_config: *const c_void,
    row_mask: c_long,
    row: *mut usize,
    column_config: *const c_void,
    column_mask: c_long,
    column: *mut usize,
) -> c_int {
    with_pe("shmem_team_split_2d", |world| {
        let row_contexts = requested_contexts(row_config, row_mask)?;
        let column_contexts = requested_contexts(column_config, column_mask)?;
        store_handle(row, 0)?;
        store_handle(column, 0)?;
        let made = if parent == 0 {
            None
        } else {
            world.team_member.split_2d(parent, width.into(), row_contexts, column_contexts)?
        };
        let (rows, columns) = made.unwrap_or((0, 0));
        store_handle(row, rows)?;
        store_handle(column, columns)?;
        Ok(if made.is_some() { 0 } else { -1 })
    })
});

export!("team_destroy" => fn(team: usize) {
    if team != 0 {
        with_pe_unless_ending("shmem_team_destroy", |world| {
            world.symmetric_memory().quiet_all()?;
            let slot = world.team_table().find_team(team)?.slot;
            world.team_table().destroy(team)?;
            world.ctxs.lose_team(slot);
            Ok(())
        });
    }
});
