//! Devices with small inline space in requests, and with shorter queues than requested. A C library stands for them;
//! its queue pairs move bytes.

use crate::contract::messages::round;
use crate::gpu::fakes::over_fakes;
use crate::net::{Net, logged};
use crate::run::{Scene, Setting};

scenarios! {
    a_nic_logs_its_granted_depth,
}

/// Inline bytes of a request: none; less than a record; a record; as on Broadcom's and Intel's devices.
const ROOMS: [u32; 4] = [0, 32, 64, 96];

/// A scenario over a device that accesses no GPU, so that small messages are sent eagerly.
fn over_small(name: &'static str) -> Option<Setting> {
    over_fakes(name).map(|setting| setting.env("FAKE_VERBS_DMABUF", 0))
}

#[test]
fn messages_arrive_with_any_inline_room() {
    for room in ROOMS {
        let Some(setting) = over_small("every_message_size_between_threads") else { return };
        let over = |name| {
            over_small(name).expect("the libraries of the earlier call").env("FAKE_VERBS_INLINE", room)
        };
        setting.env("FAKE_VERBS_INLINE", room).alone();
        over("grouped_receives_match_by_tag").env("TRUNKLINE_LINKS_PER_RAIL", 2).alone();
        let shared = over("comms_close_with_work_in_flight").env("TRUNKLINE_QP_SHARING", "on");
        shared.env("TRUNKLINE_QP_GROUPS", 1).alone();
    }
}

#[test]
fn queues_are_as_deep_as_a_device_grants() {
    // Requested depth, blocks of the device, and granted depth: as mlx5 grants for sixteen times the default depth; and
    // a device with fewer requests than the default.
    let cases = [
        (
            8192,
            32_768,
            "8193 requests, 8192 receives and 256 inline bytes, granted 8193, 8192 and 128; 8192 operations",
        ),
        (512, 256, "513 requests, 512 receives and 256 inline bytes, granted 65, 64 and 128; 64 operations"),
    ];
    for (depth, blocks, granted) in cases {
        for name in ["a_nic_logs_its_granted_depth", "every_message_size_between_threads"] {
            let Some(setting) = over_small(name) else { return };
            let setting = setting.env("TRUNKLINE_DEPTH", depth).env("FAKE_VERBS_BLOCKS", blocks);
            setting.env("TEST_GRANTED", granted).alone();
        }
    }
}

fn a_nic_logs_its_granted_depth(scene: Scene) {
    let net = Net::start(scene.version);
    let granted = std::env::var("TEST_GRANTED").expect("TEST_GRANTED names the granted depth");
    let lines = logged(&format!("NIC fake0: requested queue pairs of {granted} per link"));
    assert_eq!(lines, 1, "one log line must report the granted depth");
    let comms = net.to_self();
    round(&net, comms, 1 << 20);
    net.close_send(comms.0).unwrap();
    net.close_recv(comms.1).unwrap();
}
