//! How the tests of the verbs fabric open rails.
#![allow(unreachable_pub, reason = "a module of some tests, a part of a module of others")]

use trunkline_fabric::{RailConfig, RecvOrder};
use trunkline_proto::time::Duration;

/// The configuration of a rail of `links` links, each with queues of `depth`.
pub fn rail_config(depth: u32, links: u32) -> RailConfig {
    RailConfig {
        depth,
        recv_depth: depth,
        recv_order: RecvOrder::Any,
        links,
        peer_time: Duration::from_secs(1),
        rail_time: Duration::from_secs(1),
        receives: false,
        traffic_class: None,
        many: false,
    }
}
