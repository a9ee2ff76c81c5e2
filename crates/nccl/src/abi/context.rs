//! The calls of versions 11 and 12 that begin, describe and end a communicator, which has a context there. Named by the
//! tables of these versions.

use core::ffi::c_void;

use trunkline_sys::nccl_net::{CommConfig, Logger, NetAttr, ProfilerCallback, ResultCode};

use super::calls::{bits, class_of, pointer};
use super::log::Log;
use crate::guard::{Out, guard};
use crate::status::CallError;
use crate::world;

/// `init` of versions 11 and 12.
pub(super) unsafe extern "C" fn init_v11(
    ctx: *mut *mut c_void,
    _: u64,
    config: *mut CommConfig,
    log: Option<Logger>,
    _: Option<ProfilerCallback>,
) -> ResultCode {
    guard("init", || {
        // SAFETY: NCCL passes a place for the context.
        let ctx = unsafe { Out::new(ctx) }?;
        let world = world::start(Log::new(log))?;
        // SAFETY: NCCL passes the communicator's configuration, or none.
        let class = unsafe { class_of(config) };
        let context = world.contexts.open(class)?;
        world.enter();
        ctx.set(pointer(context));
        Ok(())
    })
}

/// `finalize`.
pub(super) unsafe extern "C" fn finalize(ctx: *mut c_void) -> ResultCode {
    guard("finalize", || {
        let world = world::world()?;
        if !world.contexts.close(bits(ctx)) {
            return Err(CallError::Argument("no such context"));
        }
        world.leave();
        Ok(())
    })
}

/// `setNetAttr`. The hints say how much a connection that is made afterwards counts for where queue pairs are shared.
pub(super) unsafe extern "C" fn set_net_attr(ctx: *mut c_void, attr: *mut NetAttr) -> ResultCode {
    guard("setNetAttr", || {
        if attr.is_null() {
            return Err(CallError::Argument("null attributes"));
        }
        // SAFETY: not null, and NCCL passes its attributes.
        let attr = unsafe { attr.read() };
        world::world()?.contexts.set(bits(ctx), &attr);
        Ok(())
    })
}
