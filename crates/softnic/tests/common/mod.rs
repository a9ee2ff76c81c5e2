//! What the tests of the software NIC share.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::time::{Duration, Instant};

use trunkline_fabric::{Completion, Done, Fabric, LinkId, Rail, RailConfig, Status};
use trunkline_softnic::{SoftConfig, SoftFabric, SoftRail};

pub fn rail_config() -> RailConfig {
    RailConfig { depth: 64, recv_depth: 64, links: 4096, peer_time: trunkline_proto::time::Duration::secs(5) }
}

pub fn rail(config: SoftConfig) -> SoftRail {
    SoftFabric::new(config).unwrap().open(0, &rail_config()).unwrap()
}

pub fn connect(a: &mut SoftRail, b: &mut SoftRail) -> (LinkId, LinkId) {
    use trunkline_fabric::Links;
    let (at_a, at_b) = (a.create().unwrap(), b.create().unwrap());
    a.connect(at_a, b.address(at_b).unwrap()).unwrap();
    b.connect(at_b, a.address(at_a).unwrap()).unwrap();
    (at_a, at_b)
}

pub fn poll(rail: &mut SoftRail) -> Vec<Completion> {
    let nothing =
        Completion { wr_id: 0, link: LinkId(0), done: Done::Posted, status: Status::Ok, imm: None, len: 0 };
    let mut out = [nothing; 32];
    let count = rail.poll(&mut out);
    out[..count].to_vec()
}

pub fn poll_until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{what} did not come");
        std::thread::yield_now();
    }
}

/// A small generator; the tests need no good one.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
