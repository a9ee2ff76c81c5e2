//! A peer that dials while this process has no descriptor left: both hear of it. Alone in its program, because the limit
//! is the process's.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{hello, poll, poll_until, rail, waiting};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use trunkline_fabric::{LinkControl, LinkError};
use trunkline_softnic::{SoftConfig, WireMode};

#[test]
fn who_waits_to_be_dialled_hears_that_there_is_no_descriptor() {
    let config = || SoftConfig { wire: WireMode::Tcp, ..SoftConfig::default() };
    let (mut rail, mut other) = (rail(config()), rail(config()));
    let (link, door, token) = waiting(&mut rail, &mut other);
    let usual = getrlimit(Resource::Nofile);
    let set = |current| setrlimit(Resource::Nofile, Rlimit { current, ..usual }).unwrap();

    set(Some(1));
    for _ in 0..10 {
        poll(&mut rail);
        assert!(!rail.poll_link_up(link).expect("nobody is kept waiting"));
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

    // And all is well again afterwards.
    rail.destroy_link(link);
    set(usual.current);
    let (link, door, token) = waiting(&mut rail, &mut other);
    let mut peer = TcpStream::connect(door).unwrap();
    peer.write_all(&hello(&token)).unwrap();
    poll_until("the link", || rail.poll_link_up(link).unwrap().then_some(()));
    rail.check_link(link).unwrap();
}
