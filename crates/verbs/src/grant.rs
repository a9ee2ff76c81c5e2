//! The largest queues that a port's queue pairs can have: determined by creating one when the fabric is created.
//!
//! The limits that a device reports (`max_qp_wr`) only hold for its smallest requests. The number of larger requests depends on
//! their inline bytes and ranges. So a queue pair of the wanted size is tried, then smaller ones.

use std::io;
use std::sync::Arc;

use trunkline_sys::verbs::QpCap;

use crate::VerbsConfig;
use crate::cq::CompletionQueue;
use crate::device::VerbsDevice;
use crate::qp::VerbsQp;

/// Inline bytes that are tried, most first: 96 is the maximum of some devices of Broadcom and Intel.
const INLINE: [u32; 7] = [256, 192, 128, 96, 64, 32, 0];
/// Most operations of a link, because each needs memory here.
const DEPTH_MAX: u32 = 16_384;
/// Fewest operations of a link that are tried, which is the engine's own minimum.
const DEPTH_MIN: u32 = 32;

/// The sizes that a device granted to the queue pairs of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueGrant {
    /// Most operations, and most receives, of a link.
    pub(crate) depth: u32,
    /// Most inline bytes of a request.
    pub(crate) inline: u32,
    /// Whether requests are built in place.
    pub(crate) extended: bool,
    asked: QpCap,
    granted: QpCap,
}

/// Returns the sizes of a queue pair for `depth` operations, of `places` requests each.
pub(crate) fn qp_sizes(depth: u32, receives: u32, places: u32, inline: u32) -> QpCap {
    QpCap {
        // One more for the mark that ends a link.
        max_send_wr: places * depth + 1,
        max_recv_wr: receives.max(1),
        // A send has a head and a body.
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline_data: inline,
    }
}

/// Whether a smaller queue pair may succeed after this error: providers return "invalid" and "no memory" for sizes
/// beyond their own.
fn may_shrink(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM))
}

impl QueueGrant {
    /// Creates queue pairs for the operations that `config` wants, of `places` requests each, and smaller ones until the device accepts
    /// one. It first tries fewer inline bytes, because the rail copies the bytes that the device does not, then half the operations.
    ///
    /// # Errors
    /// Why the device accepts none, as a text for the user.
    pub(crate) fn probe_grant(
        device: &Arc<VerbsDevice>,
        config: &VerbsConfig,
        places: u32,
    ) -> Result<Self, String> {
        let cq =
            CompletionQueue::new(device, 1).map_err(|error| format!("has no completion queue ({error})"))?;
        let limit = device.attr.max_qp_wr.unsigned_abs().saturating_sub(1).min(DEPTH_MAX) / places;
        let wanted = config.depth.min(limit).max(1);
        let asked = qp_sizes(wanted, wanted, places, config.inline);
        let mut last = String::new();
        for extended in [true, false].into_iter().skip(usize::from(!config.extended)) {
            for (depth, inline) in size_attempts(wanted, config.inline) {
                match VerbsQp::new(device, &cq, qp_sizes(depth, depth, places, inline), extended) {
                    Ok(qp) => {
                        let granted = qp.granted_sizes();
                        let inline = inline.min(granted.max_inline_data);
                        return Ok(Self { depth, inline, extended, asked, granted });
                    }
                    Err(error) => {
                        last = error.to_string();
                        if !may_shrink(&error) {
                            break;
                        }
                    }
                }
            }
        }
        let least = DEPTH_MIN.min(wanted);
        Err(format!("creates no queue pair, not even for {least} operations without inline bytes ({last})"))
    }

    /// Returns a line for the log: the request to the device called `name`, and its grant.
    pub(crate) fn log_line(&self, name: &str) -> String {
        let QpCap { max_send_wr, max_recv_wr, max_inline_data, .. } = self.asked;
        let granted = self.granted;
        format!(
            "NIC {name}: requested queue pairs of {max_send_wr} requests, {max_recv_wr} receives and {max_inline_data} inline \
             bytes, granted {}, {} and {}; {} operations per link",
            granted.max_send_wr, granted.max_recv_wr, granted.max_inline_data, self.depth
        )
    }
}

/// Returns depths and inline bytes in the order in which they are tried: depths from `wanted`, inline bytes of at most `most`.
fn size_attempts(wanted: u32, most: u32) -> impl Iterator<Item = (u32, u32)> {
    let smaller = move |depth: &u32| Some(depth / 2).filter(|half| *half >= DEPTH_MIN);
    let depths = std::iter::successors(Some(wanted), smaller);
    let rooms = move || INLINE.into_iter().filter(move |inline| *inline <= most);
    depths.flat_map(move |depth| rooms().map(move |inline| (depth, inline)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_bytes_shrink_before_the_depth() {
        let all: Vec<_> = size_attempts(100, 256).collect();
        assert_eq!(all.len(), 2 * INLINE.len(), "100 and 50, as 25 is below the least");
        assert_eq!((all[0], all[6], all[7]), ((100, 256), (100, 0), (50, 256)));
        assert_eq!(
            size_attempts(5, 100).next(),
            Some((5, 96)),
            "a device that has fewer operations is tried too"
        );
    }
}
