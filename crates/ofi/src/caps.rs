//! A NIC's capabilities, derived from the provider's grant and its known behaviour. Computed once when a fabric is created.

use trunkline_fabric::{Caps, DeviceReach};

use crate::connect::LINKS_MAX;
use crate::profile::ProviderProfile;
use crate::provider_grant::ProviderGrant;
use crate::rail::{INLINE_MAX, PAIRED};
use crate::table::REGIONS_MAX;

/// The maximum number of operations in flight on a link.
const DEPTH_MAX: usize = 1024;
/// The maximum length of an operation, in bytes: callers split longer messages.
const MESSAGE_MAX: usize = 1 << 40;

/// Returns the capabilities of a NIC.
pub(crate) fn nic_caps(granted: &ProviderGrant, profile: &ProviderProfile) -> Caps {
    let sizes = &granted.sizes;
    Caps {
        // False with two endpoints, because libfabric orders operations within one endpoint only (fi_endpoint(3)).
        link_order: profile.one_stream,
        // False, because some providers report a length of 0 for remote writes.
        remote_len: false,
        needs_flush: false,
        devices: DeviceReach::default(),
        matched: profile.matches,
        match_order: profile.matches,
        // One tag bit separates matched messages from others.
        match_bits: granted.tag_bits - PAIRED,
        atomics: false,
        coherent_atomics: false,
        offloads_atomics: false,
        wait: false,
        retires: false,
        ends_are_told: false,
        refusals_are_told: profile.tells_refusals,
        errors_reach_peers: false,
        sends_wait: false,
        arrives: profile.arrives,
        placed_writes: !profile.arrives,
        immediate_takes_receive: granted.data_takes_receive,
        write_data: profile.write_data,
        // Not limited to the provider's inject size, because longer heads are staged in registered memory of the rail.
        inline_max: INLINE_MAX as u32,
        message_max: sizes.message.min(MESSAGE_MAX) as u64,
        // Limited to the operations that an endpoint accepts, because each link may have an endpoint of its own.
        depth_max: sizes.transmits.min(sizes.receives).clamp(1, DEPTH_MAX) as u32,
        links_max: LINKS_MAX,
        pipelines: 1,
        completions_max: u32::MAX,
        // With manual progress, the provider executes peers' operations only inside calls of this side, and does not report them.
        unseen: profile.lingers,
        // A shared endpoint has one receive queue for all links, so its size bounds them together.
        receives_max: if profile.endpoint_each {
            u32::MAX
        } else {
            u32::try_from(sizes.receives).unwrap_or(u32::MAX)
        },
        regions_max: REGIONS_MAX as u32,
    }
}
