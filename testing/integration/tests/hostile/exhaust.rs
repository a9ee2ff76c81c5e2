//! Holds more connections to the store of a job than its rank 0 has descriptors. Or sends frames there that no rank
//! sends, with lengths that overflow, and ends connections in the middle.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::attacker::{Attack, AttackReport, receive_facts};
use crate::channel::TestChannel;
use crate::stay::raise_limit;
use crate::stream::reset;
use crate::user::meet_as_stranger;

/// Connections held: more than rank 0 has descriptors.
const HELD: usize = 400;
/// Connections at a time.
const BURST: usize = 32;
/// Ports after the job's port on which rank 0 may listen.
const WINDOW: u16 = 8;

pub(crate) struct StoreExhaustion {
    port: u16,
    held: Vec<TcpStream>,
    /// Whether it also sends frames.
    speaks: bool,
}

impl StoreExhaustion {
    /// Creates an attack that sends frames, or one that only holds connections.
    pub(crate) fn new(channel: &mut TestChannel, speaks: bool) -> Self {
        meet_as_stranger(channel);
        let [facts, _] = receive_facts(channel);
        raise_limit();
        Self { port: facts.store as u16, held: Vec::new(), speaks }
    }

    fn knock(&self) -> Option<TcpStream> {
        (1..=WINDOW).find_map(|step| {
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port + step));
            // The queue of a listener that is not accepting may be full.
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
            let Some(mut stream) = self.knock() else { return std::thread::yield_now() };
            report.acts += 1;
            if self.speaks {
                let bytes = &[[0xff; 64], [0; 64]][report.acts as usize % 2][..1 + report.acts as usize % 64];
                let _ = stream.set_nonblocking(true);
                let _ = stream.write(bytes);
            }
            if self.speaks && report.acts.is_multiple_of(3) {
                reset(stream);
            } else {
                self.held.push(stream);
            }
        }
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 200
    }
}
