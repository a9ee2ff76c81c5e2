//! Connects to the control sockets of the pair as another user of the host.

use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use trunkline_engine::host::UnixHost;
use trunkline_fabric::{Host as _, OobListener as _, OobTransport as _};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::dial::ProcessCard;
use trunkline_proto::wire::fabric::ChosenFabric;

use crate::attacker::{Attack, AttackReport, receive_facts, until};
use crate::channel::TestChannel;
use crate::stay::hello;

/// `nobody`.
const OTHER: u32 = 65534;
/// Connections to each victim at a time.
const BURST: usize = 16;

pub(crate) struct OtherUser {
    names: [Vec<u8>; 2],
    is_other: bool,
}

impl OtherUser {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        let cards = meet_as_stranger(channel);
        let names = [0, 1].map(|at: usize| {
            let address = &cards[at].address;
            assert_eq!(address[0], 1, "a local part comes first");
            let hex: String = address[1..17].iter().map(|byte| format!("{byte:02x}")).collect();
            format!("trunkline.{hex}").into_bytes()
        });
        receive_facts(channel);
        // Changes the user of this thread only, which does all the work of this process.
        let other = Some(Uid::from_raw(OTHER));
        let is_other = set_thread_res_uid(other, other, other).is_ok();
        Self { names, is_other }
    }

    pub(crate) fn is_other(&self) -> bool {
        self.is_other
    }

    fn dial(&self, victim: usize) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(&self.names[victim]).unwrap();
        connect(&socket, &address).ok().map(|()| socket)
    }
}

/// Publishes a card at which no member is reachable, in the place of the third member; returns all cards.
pub(crate) fn meet_as_stranger(channel: &mut TestChannel) -> [ProcessCard; 3] {
    let host = UnixHost::new(|_, _| {});
    let address = host.oob().listen().unwrap().listen_address().0;
    let (process, key) = (ProcessId(host.random_bytes()), [9; 32]);
    let fabric = ChosenFabric::new("soft", "");
    let card = ProcessCard { process, key, rails: 1, address, executes: false, fabric };
    channel.send(&card.to_bytes());
    channel.receive_cards().map(|card| ProcessCard::from_bytes(&card).unwrap())
}

impl Attack for OtherUser {
    fn go_on(&mut self, report: &mut AttackReport) {
        for victim in [0, 1] {
            let sockets: Vec<_> = (0..BURST).filter_map(|_| self.dial(victim)).collect();
            for socket in &sockets {
                let _ = send(socket, &hello(ProcessId([7; 16])), SendFlags::NOSIGNAL);
            }
            for socket in &sockets {
                let is_heard = until("the end of a connection", || {
                    let mut bytes = [0; 64];
                    match recv(socket, &mut bytes, RecvFlags::empty()) {
                        Ok((_, 0)) => Some(false),
                        Ok(_) => Some(true),
                        Err(rustix::io::Errno::AGAIN) => None,
                        Err(_) => Some(false),
                    }
                });
                report.acts += 1;
                if is_heard {
                    report.claim("a process of another user received a frame");
                }
            }
        }
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 200
    }
}
