//! What `look` says of a link: a network that does not answer is told in time, and a peer that is stopped never is.
//!
//! A cable is cut by a filter at the peer's socket that drops all that comes: nothing is acknowledged any more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

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

/// More than the buffers of both sockets take.
const LARGE: usize = 16 << 20;
const TO: RemoteLocation = RemoteLocation { key: RemoteKey(7), addr: 0, purpose: RegionPurpose::Data };

/// A link whose other end is ours.
struct Victim {
    rail: SoftRail,
    link: LinkId,
    peer: TcpStream,
}

impl Victim {
    /// One that may go unanswered for so many seconds.
    fn new(limit: u64) -> Self {
        let fabric = SoftFabric::new(SoftConfig { wire: WireMode::Tcp, ..SoftConfig::default() }).unwrap();
        let config = RailConfig { rail_time: Span::from_secs(limit), ..rail_config() };
        let mut rail = fabric.open_rail(0, &config).unwrap();
        let mut other = fabric.open_rail(0, &config).unwrap();
        let (link, door, token) = waiting(&mut rail, &mut other);
        rail.check_link(link).expect("nobody has dialled yet");
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

    /// More than anybody takes who does not read.
    fn write_much(&mut self) {
        let memory = MemoryRange::heap(LARGE);
        let keys =
            self.rail.registrar().register(&memory, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap();
        let from = OpSource::Region(RegionExtent { key: keys.local, offset: 0, len: LARGE as u64 });
        self.rail.post(self.link, 1, Op::Write { from, to: TO, imm: None }, true).unwrap();
        self.rail.flush();
    }

    /// Looks again and again, for at most so many seconds; when it was told, and what.
    fn look_for(&mut self, seconds: u64) -> Result<(), (Duration, LinkError)> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(seconds) {
            self.rail.check_link(self.link).map_err(|error| (started.elapsed(), error))?;
            assert_eq!(poll(&mut self.rail), [], "nothing completes");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Nothing that is sent to the peer arrives, or all does again.
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

    /// What was told, within two seconds after `limit` seconds, and never before.
    fn is_told(&mut self, limit: u64) {
        let (after, error) = self.look_for(limit + 2).expect_err("it is cut");
        assert!(matches!(error, LinkError::Unreachable(_)), "{error}");
        assert!(after + Duration::from_millis(50) > Duration::from_secs(limit), "too soon: {after:?}");
    }
}

#[test]
fn a_cut_cable_is_told_while_data_is_under_way() {
    let mut victim = Victim::new(1);
    victim.cut(true);
    victim.write(&[1; 8]);
    victim.is_told(1);
    // As the contract has it, `fail` comes next.
    victim.rail.fail_link(victim.link);
    let failed = poll_until("the end", || poll(&mut victim.rail).first().copied());
    assert_ne!((failed.wr_id, failed.status), (1, OpStatus::Ok));
}

#[test]
fn a_cut_cable_is_told_on_an_idle_link() {
    let mut victim = Victim::new(3);
    victim.cut(true);
    victim.is_told(3);
}

#[test]
fn a_cut_cable_is_told_although_there_was_no_room() {
    let mut victim = Victim::new(1);
    victim.write_much();
    victim.look_for(1).unwrap();
    victim.cut(true);
    // Such a link is asked ever less often.
    let (_, error) = victim.look_for(9).expect_err("it is cut");
    assert!(matches!(error, LinkError::Unreachable(_)), "{error}");
}

#[test]
fn a_peer_that_does_not_read_is_there() {
    let mut victim = Victim::new(1);
    victim.write_much();
    victim.look_for(5).unwrap();
    // It takes some of it: more goes out as there is room.
    let mut peer = victim.peer.try_clone().unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let reader = std::thread::spawn(move || peer.read_exact(&mut vec![0; LARGE / 8]).unwrap());
    victim.look_for(2).unwrap();
    reader.join().unwrap();
    victim.look_for(1).unwrap();
}

#[test]
fn a_peer_that_says_nothing_is_there() {
    let mut victim = Victim::new(1);
    victim.look_for(3).unwrap();
}

#[test]
fn a_short_outage_is_none() {
    let mut victim = Victim::new(3);
    victim.cut(true);
    victim.write(&[1; 8]);
    victim.look_for(2).unwrap();
    victim.cut(false);
    victim.look_for(3).unwrap();
}

#[test]
fn a_link_in_error_says_so() {
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
