//! How large the queues of a port's queue pairs may be: found out by creating one when the fabric is made.
//!
//! The limits that a device reports (`max_qp_wr`) hold for its smallest requests alone. How many of ours it takes depends on
//! their inline bytes and ranges, so a queue pair of the wanted size is tried, then smaller ones.

use std::io;
use std::sync::Arc;

use trunkline_sys::verbs::QpCap;

use crate::VerbsConfig;
use crate::cq::CompletionQueue;
use crate::device::VerbsDevice;
use crate::qp::VerbsQp;

/// Inline bytes that are tried, most first: 96 is the maximum of some devices of Broadcom and Intel.
const INLINE: [u32; 7] = [256, 192, 128, 96, 64, 32, 0];
/// Most operations of a link; what is kept for each takes memory.
const DEPTH_MAX: u32 = 16_384;
/// Fewest operations of a link that are tried, as the engine's own least depth is.
const DEPTH_MIN: u32 = 32;

/// The sizes that a device granted to the queue pairs of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueueGrant {
    /// Most operations, and most receives, of a link.
    pub(crate) depth: u32,
    /// Most inline bytes of a request.
    pub(crate) inline: u32,
    /// Whether work is built in place.
    pub(crate) extended: bool,
    asked: QpCap,
    granted: QpCap,
}

/// The sizes of a queue pair for `depth` operations, of `places` requests each.
pub(crate) fn qp_sizes(depth: u32, receives: u32, places: u32, inline: u32) -> QpCap {
    QpCap {
        // The last is for the request that ends a link.
        max_send_wr: places * depth + 1,
        max_recv_wr: receives.max(1),
        // Sends have heads and bodies.
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline_data: inline,
    }
}

/// Whether a smaller queue pair may be had where this error came: "invalid" and "no memory" are the providers' answers to sizes
/// beyond their own.
fn may_shrink(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM))
}

impl QueueGrant {
    /// Creates queue pairs for as many operations as `config` wants, of `places` requests each, and smaller ones until the device takes
    /// one: with fewer inline bytes first, because the rail copies the bytes that the device does not, then with half the operations.
    ///
    /// # Errors
    /// Why the device takes none, for a person.
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
        Err(format!("makes no queue pair, not even for {least} operations without inline bytes ({last})"))
    }

    /// One line for the log: the request to the device called `name`, and its grant.
    pub(crate) fn log_line(&self, name: &str) -> String {
        let QpCap { max_send_wr, max_recv_wr, max_inline_data, .. } = self.asked;
        let granted = self.granted;
        format!(
            "NIC {name}: asked for queue pairs of {max_send_wr} requests, {max_recv_wr} receives and {max_inline_data} inline \
             bytes, granted {}, {} and {}; {} operations per link",
            granted.max_send_wr, granted.max_recv_wr, granted.max_inline_data, self.depth
        )
    }
}

/// Depths and inline bytes, of at most so many, in the order in which they are tried.
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
