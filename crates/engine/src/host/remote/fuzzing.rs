//! A control stream over loopback connections, driven by a list of actions: frames in both directions, connections that are cut
//! at any moment, and connections of unrelated processes that send anything. Frames arrive once and in order, whatever happens.
//! All of them arrive while a connection is left and no other process knows the stream's name.

use std::collections::VecDeque;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd;

use rustix::net::sockopt;
use trunkline_proto::control::StrandEnd;
use trunkline_proto::fuzzing::{FuzzAction, make_variants, read_actions, write_script};
use trunkline_proto::wire::strand::{StrandHead, StrandRecordKind};

use super::*;

/// The maximum number of actions of one input.
const ACTIONS_MAX: usize = 96;
const SILENCE: Duration = Duration::from_secs(30);
const NAME: StreamName = [7; 16];
/// The maximum number of connections of unrelated processes.
const STRANGERS_MAX: usize = 8;
/// The maximum number of polls of both ends until sent frames have arrived.
const LOOKS_MAX: usize = 20_000;

/// Four bytes per action: its kind, the end, and two numbers. The first byte of the input is the number of connections.
pub(crate) fn check_actions(bytes: &[u8]) {
    let Some((strands, actions)) = read_actions(bytes, ACTIONS_MAX) else { return };
    let Some(mut world) = StreamFuzzer::new(1 + strands % 3) else { return };
    actions.for_each(|action| world.run_action(action));
    world.finish_run();
}

pub(crate) fn action_seeds() -> Vec<Vec<u8>> {
    let send = 0;
    let look = 2;
    let cut = 4;
    let stranger = 5;
    let say = 6;
    let drop_end = 9;
    let scripts: [Vec<[u8; 4]>; 5] = [
        vec![
            [send, 0, 9, 0],
            [look, 1, 0, 0],
            [send, 1, 200, 3],
            [look, 0, 0, 0],
            [send, 0, 1, 255],
            [3, 0, 0, 0],
        ],
        vec![
            [3, 0, 0, 0],
            [send, 0, 9, 1],
            [cut, 0, 0, 0],
            [send, 1, 9, 1],
            [cut, 1, 1, 0],
            [send, 0, 7, 0],
            [3, 0, 0, 0],
        ],
        vec![
            [stranger, 0, 0, 0],
            [say, 0, 0, 0],
            [say, 1, 0, 3],
            [send, 0, 4, 0],
            [say, 0, 0, 5],
            [3, 0, 0, 0],
            [7, 0, 0, 0],
        ],
        vec![
            [send, 0, 4, 0],
            [3, 0, 0, 0],
            [stranger, 0, 0, 0],
            [8, 0, 0, 1],
            [8, 0, 1, 2],
            [8, 0, 2, 3],
            [send, 1, 4, 0],
        ],
        vec![
            [send, 0, 4, 0],
            [send, 1, 4, 0],
            [drop_end, 0, 0, 0],
            [look, 1, 0, 0],
            [send, 1, 1, 0],
            [look, 1, 0, 0],
        ],
    ];
    let mut all: Vec<Vec<u8>> = Vec::new();
    for (strands, script) in (0..).zip(scripts) {
        all.push(write_script(strands, &script));
    }
    make_variants(&all)
}

/// One end of the stream.
#[derive(Default)]
struct FuzzedEnd {
    stream: Option<RemoteStream>,
    /// Frames for this end that have not arrived.
    coming: VecDeque<Vec<u8>>,
}

struct StreamFuzzer {
    listener: RemoteListener,
    /// The opening end, and the accepting end.
    ends: [FuzzedEnd; 2],
    /// Accepted connections that are not the stream.
    others: Vec<RemoteStream>,
    strangers: Vec<TcpStream>,
    sent: u8,
    /// An unrelated process has used the stream's name, so the stream may have ended, or received anything.
    known: bool,
    /// An end has ended, or all of its connections were cut.
    apart: bool,
}

impl StreamFuzzer {
    fn new(strands: u8) -> Option<Self> {
        let addresses: Vec<IpAddr> =
            (1..=strands).map(|last| Ipv4Addr::new(127, 0, 0, last).into()).collect();
        let listener = RemoteListener::new(&addresses, SILENCE).ok()?;
        let places = listener.listen_addresses()[..1].to_vec();
        let client = RemoteStream::connect(NAME, places, &addresses[..1], SILENCE).ok()?;
        let began = FuzzedEnd { stream: Some(client), coming: VecDeque::new() };
        Some(Self {
            listener,
            ends: [began, FuzzedEnd::default()],
            others: Vec::new(),
            strangers: Vec::new(),
            sent: 0,
            known: false,
            apart: false,
        })
    }

    fn run_action(&mut self, FuzzAction { what, at, one, two }: FuzzAction) {
        match what % 10 {
            0 | 1 => self.send_frame(at, 1 + usize::from(one) * 16 + usize::from(two) % 16),
            2 => self.check_frames(at),
            3 => self.await_frames(),
            4 => self.cut_connection(at, usize::from(one)),
            5 if self.strangers.len() < STRANGERS_MAX => {
                let place = self.listener.listen_addresses()
                    [usize::from(one) % self.listener.listen_addresses().len()];
                self.strangers.extend(TcpStream::connect(place).ok());
            }
            6 => self.send_record(one, StrandJoin { name: [one; 16], places: Vec::new() }.to_bytes(), two),
            7 => drop(self.strangers.pop().map(|stranger| set_zero_linger(&stranger))),
            8 => {
                self.known = true;
                self.send_record(
                    one,
                    StrandJoin { name: NAME, places: self.listener.listen_addresses().to_vec() }.to_bytes(),
                    two,
                );
            }
            9 if two.is_multiple_of(4) => {
                self.apart = true;
                self.ends[at].stream = None;
            }
            _ => {}
        }
    }

    fn send_frame(&mut self, at: usize, len: usize) {
        self.sent = self.sent.wrapping_add(1);
        let frame = vec![self.sent; len.min(OobFrame::MAX)];
        let Some(stream) = &mut self.ends[at].stream else { return };
        match stream.send(frame.clone()) {
            Ok(()) => self.ends[1 - at].coming.push_back(frame),
            Err(OobError::Overflow) => {}
            Err(error) => assert!(self.known || self.apart, "an intact stream refused a frame: {error}"),
        }
    }

    /// Sends a record on an unrelated connection, whole or in part.
    fn send_record(&mut self, kind: u8, join: Vec<u8>, number: u8) {
        let Some(stranger) = self.strangers.last_mut() else { return };
        let (kind, body) = match kind % 5 {
            0 | 1 => (StrandRecordKind::Join, join),
            2 => (StrandRecordKind::Frame, vec![number; 9]),
            3 => (StrandRecordKind::Taken, Vec::new()),
            _ => (StrandRecordKind::End, Vec::new()),
        };
        let received = if number.is_multiple_of(3) { 0 } else { u64::from(number % 8) };
        let head = StrandHead { kind, len: body.len() as u16, number: u64::from(number / 8), received };
        let mut bytes = head.to_bytes().to_vec();
        bytes.extend(body);
        if number > 200 {
            bytes.truncate(usize::from(number) - 200);
        }
        // The connection may have been refused.
        let _ = stranger.write_all(&bytes);
    }

    /// Receives and checks the frames that have arrived at one end.
    fn check_frames(&mut self, at: usize) {
        if at == 1 {
            self.accept_streams();
        }
        let end = &mut self.ends[at];
        let Some(stream) = &mut end.stream else { return };
        for _ in 0..BURST {
            match stream.recv() {
                Ok(Some(frame)) if self.known => drop(frame),
                Ok(Some(frame)) => {
                    assert_eq!(
                        Some(frame),
                        end.coming.pop_front(),
                        "a frame was lost, repeated or reordered"
                    );
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(self.known || self.apart, "an intact stream has ended: {error}");
                    end.stream = None;
                    self.apart = true;
                    return;
                }
            }
        }
        // A stream holds two connections per interface, and those it is dialling.
        assert!(
            stream.strands.len() <= 2 * STRANDS_MAX + 1,
            "the stream holds {} connections",
            stream.strands.len()
        );
    }

    /// The first accepted connection with the stream's name is the stream; others end, or wait for a name that they never send.
    fn accept_streams(&mut self) {
        while let Ok(Some(stream)) = self.listener.accept() {
            self.others.push(stream);
        }
        let mut at = 0;
        while at < self.others.len() {
            let came = self.others[at].recv();
            let is_it = self.others[at].name == Some(NAME);
            if is_it && self.ends[1].stream.is_none() && !self.apart {
                let stream = self.others.remove(at);
                if let Ok(Some(frame)) = came
                    && !self.known
                {
                    let expected = self.ends[1].coming.pop_front();
                    assert_eq!(Some(frame), expected, "the first frame differs from the sent one");
                }
                self.ends[1].stream = Some(stream);
                continue;
            }
            match came {
                // An unrelated connection has a stream of its own once it has sent a name.
                Ok(_) => at += 1,
                Err(_) => {
                    let stream = self.others.remove(at);
                    stream.strands.iter().for_each(|strand| set_zero_linger(strand.fd()));
                }
            }
        }
    }

    /// Cuts one connection at both ends, without a record.
    fn cut_connection(&mut self, at: usize, which: usize) {
        let [began, accepted] = &mut self.ends;
        let (Some(a), Some(b)) = (&mut began.stream, &mut accepted.stream) else { return };
        let (one, other) = if at == 0 { (a, b) } else { (b, a) };
        let joined =
            |stream: &RemoteStream| stream.strands.iter().filter(|strand| strand.is_joined()).count();
        if joined(one) == 0 || joined(other) == 0 {
            return;
        }
        let of: Vec<usize> = (0..one.strands.len()).filter(|at| one.strands[*at].is_joined()).collect();
        let cut = of[which % of.len()];
        let port = rustix::net::getsockname(one.strands[cut].fd()).ok();
        let is_it = |strand: &ControlConnection| {
            port.is_some() && rustix::net::getpeername(strand.fd()).ok().flatten() == port
        };
        let Some(there) = other.strands.iter().position(is_it) else { return };
        // A connection that the other end has not joined still has to deliver the frames that this end has sent over it.
        if !other.strands[there].is_joined() {
            return;
        }
        for (stream, at) in [(&mut *one, cut), (&mut *other, there)] {
            let fault = ConnectionFault { end: StrandEnd::Silence, error: OobError::Closed };
            set_zero_linger(stream.strands[at].fd());
            stream.drop_connection(at, fault, monotonic_now());
        }
        self.apart |= joined(one) == 0 || joined(other) == 0;
    }

    /// Waits until all sent frames have arrived, unless the two ends are apart.
    fn await_frames(&mut self) {
        for looks in 0.. {
            [0, 1].into_iter().for_each(|at| self.check_frames(at));
            let all_came = self.ends.iter().all(|end| end.coming.is_empty() && end.stream.is_some());
            if all_came || ((self.known || self.apart) && looks > 16) {
                return;
            }
            assert!(looks < LOOKS_MAX, "a frame did not arrive");
            if looks > 64 {
                std::thread::yield_now();
            }
        }
    }

    fn finish_run(mut self) {
        self.await_frames();
        let streams = self.ends.iter().filter_map(|end| end.stream.as_ref()).chain(&self.others);
        streams.flat_map(|stream| &stream.strands).for_each(|strand| set_zero_linger(strand.fd()));
        self.strangers.iter().for_each(set_zero_linger);
    }
}

/// Makes the kernel keep no port for it, because many inputs follow one another.
fn set_zero_linger(socket: &impl AsFd) {
    // A socket that has ended already keeps none.
    let _ = sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use trunkline_proto::fuzzing::{RandomNumbers, random_script};

    use super::*;

    #[test]
    fn random_actions_hold() {
        action_seeds().iter().for_each(|seed| check_actions(seed));
        let mut numbers = RandomNumbers::new(19);
        for _ in 0..300 {
            check_actions(&random_script(&mut numbers, 48));
        }
    }
}
