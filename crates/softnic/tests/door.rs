//! A peer that dials while this process has no descriptor left: both ends report it. The only test of its program,
//! because the limit is the process's.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{hello, poll, poll_until, rail, waiting};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use trunkline_fabric::{LinkControl, LinkError};
use trunkline_softnic::{SoftConfig, WireMode};

#[test]
fn dialled_end_reports_missing_descriptors() {
    let config = || SoftConfig { wire: WireMode::Tcp, ..SoftConfig::default() };
    let (mut rail, mut other) = (rail(config()), rail(config()));
    let (link, door, token) = waiting(&mut rail, &mut other);
    let usual = getrlimit(Resource::Nofile);
    let set = |current| setrlimit(Resource::Nofile, Rlimit { current, ..usual }).unwrap();

    set(Some(1));
    for _ in 0..10 {
        poll(&mut rail);
        assert!(!rail.poll_link_up(link).expect("no error before a peer has dialled"));
    }
    set(usual.current);
    let mut peer = TcpStream::connect(door).unwrap();
    peer.write_all(&hello(&token)).unwrap();
    set(Some(1));
    let since = Instant::now();
    let told = std::iter::from_fn(|| {
        poll(&mut rail);
        (since.elapsed() < Duration::from_secs(3)).then(|| rail.poll_link_up(link))
    });
    let error = told.filter_map(Result::err).next().expect("an error within 3 seconds");
    let LinkError::System { source, .. } = &error else { panic!("{error}") };
    assert!(source.to_string().contains("open files"), "{source}");

    // The listener works again once descriptors are free.
    rail.destroy_link(link);
    set(usual.current);
    let (link, door, token) = waiting(&mut rail, &mut other);
    let mut peer = TcpStream::connect(door).unwrap();
    peer.write_all(&hello(&token)).unwrap();
    poll_until("the link", || rail.poll_link_up(link).unwrap().then_some(()));
    rail.check_link(link).unwrap();
}
