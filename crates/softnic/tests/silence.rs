//! The results of `check_link`: a network without acknowledgements is reported in time, and a stopped peer never is.
//!
//! A cut cable is simulated by a filter at the peer's socket that drops every packet, so that nothing is acknowledged
//! any more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::{connect, hello, poll, poll_until, rail, rail_config, waiting};
use trunkline_fabric::{
    AccessRights, Fabric, LinkControl, LinkError, LinkId, Op, OpSource, OpStatus, Rail, RailConfig,
    RegionExtent, RegionPurpose, RemoteKey, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::time::Duration as Span;
use trunkline_softnic::{SoftConfig, SoftFabric, SoftRail, WireMode};

/// More than the buffers of both sockets hold.
const LARGE: usize = 16 << 20;
const TO: RemoteLocation = RemoteLocation { key: RemoteKey(7), addr: 0, purpose: RegionPurpose::Data };

/// A link whose other end is a socket of the test.
struct Victim {
    rail: SoftRail,
    link: LinkId,
    peer: TcpStream,
}

impl Victim {
    /// Creates a link with a `rail_time` of `limit` seconds.
    fn new(limit: u64) -> Self {
        let fabric = SoftFabric::new(SoftConfig { wire: WireMode::Tcp, ..SoftConfig::default() }).unwrap();
        let config = RailConfig { rail_time: Span::from_secs(limit), ..rail_config() };
        let mut rail = fabric.open_rail(0, &config).unwrap();
        let mut other = fabric.open_rail(0, &config).unwrap();
        let (link, door, token) = waiting(&mut rail, &mut other);
        rail.check_link(link).expect("no error before a peer has dialled");
        let mut peer = TcpStream::connect(door).unwrap();
        peer.write_all(&hello(&token)).unwrap();
        poll_until("the link", || rail.poll_link_up(link).unwrap().then_some(()));
        Self { rail, link, peer }
    }

    fn write(&mut self, bytes: &[u8]) {
        let op = Op::Write { from: OpSource::Inline(bytes), to: TO, imm: None };
        self.rail.post(self.link, 1, op, true).unwrap();
        self.rail.flush();
    }

    /// Writes more than the network accepts while the peer does not read.
    fn write_much(&mut self) {
        let memory = MemoryRange::heap(LARGE);
        let keys =
            self.rail.registrar().register(&memory, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap();
        let from = OpSource::Region(RegionExtent { key: keys.local, offset: 0, len: LARGE as u64 });
        self.rail.post(self.link, 1, Op::Write { from, to: TO, imm: None }, true).unwrap();
        self.rail.flush();
    }

    /// Checks the link repeatedly, for at most `seconds` seconds. The error is the time of the report, and the
    /// reported error.
    fn look_for(&mut self, seconds: u64) -> Result<(), (Duration, LinkError)> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(seconds) {
            self.rail.check_link(self.link).map_err(|error| (started.elapsed(), error))?;
            assert_eq!(poll(&mut self.rail), [], "nothing completes");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Drops all packets to the peer, or stops dropping them.
    fn cut(&self, cut: bool) {
        let mut drop_all =
            libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut drop_all };
        let option = if cut { libc::SO_ATTACH_FILTER } else { libc::SO_DETACH_FILTER };
        // SAFETY: a program of one instruction, which the kernel copies.
        let set = unsafe {
            libc::setsockopt(
                self.peer.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    /// Checks that the link is reported as unreachable within two seconds after `limit` seconds, and never before.
    fn is_told(&mut self, limit: u64) {
        let (after, error) = self.look_for(limit + 2).expect_err("the cut link was not reported");
        assert!(matches!(error, LinkError::Unreachable(_)), "{error}");
        assert!(after + Duration::from_millis(50) > Duration::from_secs(limit), "too soon: {after:?}");
    }
}

#[test]
fn cut_cable_is_reported_with_data_in_transit() {
    let mut victim = Victim::new(1);
    victim.cut(true);
    victim.write(&[1; 8]);
    victim.is_told(1);
    // The contract requires `fail_link` next.
    victim.rail.fail_link(victim.link);
    let failed = poll_until("the end", || poll(&mut victim.rail).first().copied());
    assert_ne!((failed.wr_id, failed.status), (1, OpStatus::Ok));
}

#[test]
fn cut_cable_is_reported_on_an_idle_link() {
    let mut victim = Victim::new(3);
    victim.cut(true);
    victim.is_told(3);
}

#[test]
fn cut_cable_is_reported_with_a_closed_window() {
    let mut victim = Victim::new(1);
    victim.write_much();
    victim.look_for(1).unwrap();
    victim.cut(true);
    // The kernel probes a closed window at growing intervals.
    let (_, error) = victim.look_for(9).expect_err("the cut link was not reported");
    assert!(matches!(error, LinkError::Unreachable(_)), "{error}");
}

#[test]
fn peer_that_does_not_read_counts_as_alive() {
    let mut victim = Victim::new(1);
    victim.write_much();
    victim.look_for(5).unwrap();
    // The peer reads a part, so that the kernel sends more.
    let mut peer = victim.peer.try_clone().unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let reader = std::thread::spawn(move || peer.read_exact(&mut vec![0; LARGE / 8]).unwrap());
    victim.look_for(2).unwrap();
    reader.join().unwrap();
    victim.look_for(1).unwrap();
}

#[test]
fn silent_peer_counts_as_alive() {
    let mut victim = Victim::new(1);
    victim.look_for(3).unwrap();
}

#[test]
fn short_outage_is_not_reported() {
    let mut victim = Victim::new(3);
    victim.cut(true);
    victim.write(&[1; 8]);
    victim.look_for(2).unwrap();
    victim.cut(false);
    victim.look_for(3).unwrap();
}

#[test]
fn check_link_reports_a_link_in_error() {
    for wire in [WireMode::Auto, WireMode::Shm, WireMode::Tcp] {
        let mut rail = rail(SoftConfig { wire, ..SoftConfig::default() });
        let mut other = common::rail(SoftConfig { wire, ..SoftConfig::default() });
        for by_peer in [false, true] {
            let (link, at_other) = connect(&mut rail, &mut other);
            poll_until("the link", || {
                let up = other.poll_link_up(at_other).unwrap();
                (rail.poll_link_up(link).unwrap() && up).then_some(())
            });
            rail.check_link(link).unwrap();
            if by_peer {
                other.destroy_link(at_other);
            } else {
                rail.fail_link(link);
            }
            poll_until("the error", || {
                poll(&mut rail);
                rail.check_link(link).is_err().then_some(())
            });
            rail.destroy_link(link);
            assert!(matches!(rail.check_link(link), Err(LinkError::State)));
        }
    }
}
