//! The guarantees of a port. Read once when a fabric is created.

use trunkline_fabric::{Caps, DeviceReach};
use trunkline_sys::verbs::{ATOMIC_GLOB, ATOMIC_NONE, DeviceAttr, PortAttr};

use crate::stage::COPIED_MAX;

/// Largest operation, although some ports report more: the length of a work completion has 32 bits.
const MESSAGE_MAX: u64 = 1 << 31;

/// Returns the capabilities of a port whose links have `depth` operations, and whose device registers at most `regions`
/// regions and reaches the memory of GPUs in `reach`.
pub(crate) fn port_caps(
    device: &DeviceAttr,
    port: &PortAttr,
    depth: u32,
    regions: u32,
    reach: DeviceReach,
) -> Caps {
    Caps {
        // A reliable queue pair keeps the order.
        link_order: true,
        // Some devices report the length of the last packet only.
        remote_len: false,
        // A completion follows its bytes in host memory even with relaxed ordering, because the completion itself is written strictly ordered.
        needs_flush: false,
        devices: reach,
        matched: false,
        match_order: false,
        match_bits: 64,
        atomics: device.atomic_cap != ATOMIC_NONE,
        coherent_atomics: device.atomic_cap == ATOMIC_GLOB,
        offloads_atomics: true,
        wait: false,
        retires: false,
        // A device sends nothing to the peer when its queue pair is destroyed.
        ends_are_told: false,
        refusals_are_told: true,
        errors_reach_peers: true,
        sends_wait: true,
        arrives: true,
        placed_writes: false,
        immediate_takes_receive: true,
        write_data: true,
        // A head and a body may both be inline. The rail copies the bytes that the device does not, whatever its inline room.
        inline_max: COPIED_MAX as u32 / 2,
        message_max: u64::from(port.max_msg_sz).min(MESSAGE_MAX),
        depth_max: depth,
        links_max: device.max_qp.unsigned_abs(),
        pipelines: 1,
        completions_max: device.max_cqe.unsigned_abs(),
        unseen: false,
        receives_max: u32::MAX,
        regions_max: regions,
    }
}
