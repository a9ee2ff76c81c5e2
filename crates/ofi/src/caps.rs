//! What a NIC guarantees, from what its provider granted and what is known of it. Read once when a fabric is made.

use trunkline_fabric::{Caps, DeviceReach};

use crate::connect::LINKS_MAX;
use crate::profile::ProviderProfile;
use crate::provider_grant::ProviderGrant;
use crate::rail::{INLINE_MAX, PAIRED};
use crate::table::REGIONS_MAX;

/// Most operations of a link.
const DEPTH_MAX: usize = 1024;
/// Most bytes of one operation: what does not fit is cut by whoever posts.
const MESSAGE_MAX: usize = 1 << 40;

/// The capabilities of a NIC.
pub(crate) fn nic_caps(granted: &ProviderGrant, profile: &ProviderProfile) -> Caps {
    let sizes = &granted.sizes;
    Caps {
        // Elsewhere payload and records go over two endpoints.
        link_order: profile.one_stream,
        // Some providers say 0.
        remote_len: false,
        needs_flush: false,
        devices: DeviceReach::default(),
        matched: profile.matches,
        match_order: profile.matches,
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
        // What the provider does not copy goes from a place of the rail's.
        inline_max: INLINE_MAX as u32,
        message_max: sizes.message.min(MESSAGE_MAX) as u64,
        depth_max: sizes.transmits.min(sizes.receives).clamp(1, DEPTH_MAX) as u32,
        links_max: LINKS_MAX,
        pipelines: 1,
        completions_max: u32::MAX,
        unseen: profile.lingers,
        receives_max: if profile.endpoint_each {
            u32::MAX
        } else {
            u32::try_from(sizes.receives).unwrap_or(u32::MAX)
        },
        regions_max: REGIONS_MAX as u32,
    }
}
