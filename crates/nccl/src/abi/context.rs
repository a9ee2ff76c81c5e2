//! The calls of versions 11 and 12 that open, configure and close a communicator's context. Used in the tables of
//! these versions.

use core::ffi::c_void;

use trunkline_sys::nccl_net::{CommConfig, Logger, NetAttr, ProfilerCallback, ResultCode};

use super::calls::{class_of, pointer_bits, to_pointer};
use super::log::NcclLog;
use crate::guard::{ResultPlace, guard_call};
use crate::status::NetCallError;
use crate::world;

/// `init` of versions 11 and 12.
pub(super) unsafe extern "C" fn init_v11(
    ctx: *mut *mut c_void,
    _: u64,
    config: *mut CommConfig,
    log: Option<Logger>,
    _: Option<ProfilerCallback>,
) -> ResultCode {
    guard_call("init", || {
        // SAFETY: NCCL passes a place for the context.
        let ctx = unsafe { ResultPlace::new(ctx) }?;
        let world = world::start_world(NcclLog::new(log))?;
        // SAFETY: NCCL passes the communicator's configuration, or none.
        let class = unsafe { class_of(config) };
        let context = world.contexts.open_context(class)?;
        world.enter_communicator();
        ctx.set(to_pointer(context));
        Ok(())
    })
}

/// `finalize`.
pub(super) unsafe extern "C" fn finalize(ctx: *mut c_void) -> ResultCode {
    guard_call("finalize", || {
        let world = world::world()?;
        if !world.contexts.close_context(pointer_bits(ctx)) {
            return Err(NetCallError::Argument("the context is unknown or was finalized"));
        }
        world.leave_communicator();
        Ok(())
    })
}

/// `setNetAttr`. The hints determine the weight of later connections where queue pairs are shared.
pub(super) unsafe extern "C" fn set_net_attr(ctx: *mut c_void, attr: *mut NetAttr) -> ResultCode {
    guard_call("setNetAttr", || {
        if attr.is_null() {
            return Err(NetCallError::Argument("null attributes"));
        }
        // SAFETY: not null, and NCCL passes its attributes.
        let attr = unsafe { attr.read() };
        world::world()?.contexts.set_traffic(pointer_bits(ctx), &attr);
        Ok(())
    })
}
