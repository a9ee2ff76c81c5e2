//! Helpers that the tests of the software NIC share.
#![allow(dead_code, unreachable_pub, reason = "each test uses some of the module")]

use std::net::{Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use trunkline_fabric::{Completion, Fabric, LinkAddress, LinkControl, LinkId, Rail, RailConfig, RecvOrder};
use trunkline_proto::time::Duration as Span;
use trunkline_softnic::{SoftConfig, SoftFabric, SoftRail};

pub fn rail_config() -> RailConfig {
    let (peer_time, rail_time) = (Span::from_secs(5), Span::from_secs(3));
    RailConfig {
        depth: 64,
        recv_depth: 64,
        recv_order: RecvOrder::Posted,
        links: 4096,
        peer_time,
        rail_time,
        receives: false,
        traffic_class: None,
        many: false,
    }
}

pub fn rail(config: SoftConfig) -> SoftRail {
    SoftFabric::new(config).unwrap().open_rail(0, &rail_config()).unwrap()
}

pub fn connect(a: &mut SoftRail, b: &mut SoftRail) -> (LinkId, LinkId) {
    let (at_a, at_b) = (a.create_link().unwrap(), b.create_link().unwrap());
    a.connect(at_a, b.link_address(at_b).unwrap()).unwrap();
    b.connect(at_b, a.link_address(at_a).unwrap()).unwrap();
    (at_a, at_b)
}

pub fn poll(rail: &mut SoftRail) -> Vec<Completion> {
    let mut out = [Completion::BLANK; 32];
    let count = rail.poll(&mut out);
    out[..count].to_vec()
}

pub fn poll_until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "timed out after 30 s waiting for {what}");
        std::thread::yield_now();
    }
}

/// Returns the first bytes that a dialler of a link over TCP sends.
pub fn hello(token: &[u8]) -> Vec<u8> {
    [&b"TLSOFTCP"[..], &[1, 0, 0, 0, 0, 0, 0, 0], token].concat()
}

/// Returns the address at which a link is dialled, and its token.
pub fn place(address: &LinkAddress) -> (SocketAddr, Vec<u8>) {
    let bytes = &address.bytes;
    let octets: [u8; 16] = bytes[104..120].try_into().unwrap();
    let port = u16::from_le_bytes([bytes[100], bytes[101]]);
    (SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port), bytes[80..96].to_vec())
}

/// Creates a link over TCP that waits until the test dials it; returns it with its address and token.
pub fn waiting(rail: &mut SoftRail, other: &mut SoftRail) -> (LinkId, SocketAddr, Vec<u8>) {
    let (link, at_other) = (rail.create_link().unwrap(), other.create_link().unwrap());
    let mut ours = other.link_address(at_other).unwrap();
    // The end with the smaller token dials.
    ours.bytes[80..96].fill(0);
    let (door, token) = place(&rail.link_address(link).unwrap());
    rail.connect(link, ours).unwrap();
    (link, door, token)
}

/// A small generator; the tests need no better one.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
