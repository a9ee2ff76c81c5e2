//! How a call of this crate waits: by the one policy of front ends with symmetric memory.

use trunkline_engine::WaitBackoff;

use crate::context::Context;
use crate::error::Error;

/// Tries until there is something.
pub(crate) fn wait_until<T>(
    context: &Context,
    mut attempt: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    until_moved(context, |_| attempt())
}

/// The same, where an attempt also says when anything moved, for others or for itself: then more is likely to come at once.
pub(crate) fn until_moved<T>(
    context: &Context,
    attempt: impl FnMut(&mut WaitBackoff) -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    context.shared.job.wait_until(context.id, context.shared.unseen, attempt)
}
