//! The guarantees of a software NIC. Read once when a fabric is created.

use trunkline_fabric::{Caps, DeviceReach};

use crate::SoftConfig;
use crate::record::INLINE_U32;

/// Returns the capabilities of every NIC created from `config`, whose pipelines have `pipeline_qps` queue pairs each.
pub(crate) fn nic_caps(config: &SoftConfig, pipeline_qps: u32) -> Caps {
    Caps {
        link_order: true,
        remote_len: true,
        needs_flush: config.delayed_visibility,
        devices: DeviceReach {
            dmabuf: config.takes_dmabufs,
            needs_flush: config.takes_dmabufs && config.delayed_visibility,
            ..DeviceReach::default()
        },
        matched: true,
        match_order: true,
        match_bits: 64,
        atomics: true,
        coherent_atomics: true,
        offloads_atomics: false,
        wait: true,
        retires: true,
        ends_are_told: true,
        refusals_are_told: true,
        errors_reach_peers: true,
        sends_wait: true,
        arrives: true,
        placed_writes: false,
        immediate_takes_receive: false,
        write_data: true,
        inline_max: INLINE_U32,
        message_max: 1 << 40,
        depth_max: config.max_depth,
        links_max: pipeline_qps * config.pipelines,
        pipelines: config.pipelines,
        completions_max: config.max_cqe,
        unseen: false,
        receives_max: u32::MAX,
        regions_max: config.max_mr,
    }
}
