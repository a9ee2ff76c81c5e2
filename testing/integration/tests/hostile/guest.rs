//! A process that was given a handle of each process of a two-sided pair, as a rank that is to connect: the handles,
//! and the streams that it opens. The attacks on control streams use it.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};
use trunkline_engine::host::UnixHost;
use trunkline_fabric::{Host as _, OobAddress, OobError, OobFrame, OobStream as _, OobTransport, PassedFd};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::frame::{ControlFrame as Control, OpenFrame, RemoteRegion};
use trunkline_proto::wire::handle::ConnectionHandle;
use trunkline_proto::wire::share::{ShareMode, ShareRequest};

use crate::attacker::receive_facts;
use crate::channel::TestChannel;
use crate::stay::hello;
use crate::two_sided::GivenHandles;

pub(crate) type ControlIo = <<UnixHost as trunkline_fabric::Host>::Oob as OobTransport>::Stream;

/// Bytes of a link address.
const LINK: usize = 120;

pub(crate) struct HandleGuest {
    host: UnixHost,
    /// For each victim: the handle of the pair, without its nonce, and the handle for guests.
    pub(crate) handles: [[ConnectionHandle; 2]; 2],
    file: OwnedFd,
    asked: u64,
}

impl HandleGuest {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        channel.send(b"guest");
        let all: [Vec<u8>; 3] = std::array::from_fn(|_| channel.receive());
        let handles = [0, 1].map(|victim: usize| GivenHandles::seen_by_guest(&all[victim]));
        receive_facts(channel);
        let file = memfd_create("attack", MemfdFlags::CLOEXEC).unwrap();
        Self { host: UnixHost::new(|_, _| {}), handles, file, asked: 0 }
    }

    /// Opens a stream to a victim and sends HELLO; `None` while the victim is too busy.
    pub(crate) fn connect(&self, victim: usize) -> Option<ControlIo> {
        let address = OobAddress(self.handles[victim][1].address.clone());
        let mut stream = self.host.oob().connect(&address).ok()?;
        let bytes = hello(ProcessId(self.host.random_bytes()));
        stream.send(OobFrame { bytes, fd: None }).ok().map(|()| stream)
    }

    /// An OPEN for a listener, with an invalid link.
    pub(crate) fn open(&mut self, of: &ConnectionHandle) -> OpenFrame {
        self.asked += 1;
        OpenFrame {
            conn: 1 << 40 | self.asked,
            listen: of.listen,
            nonce: of.nonce,
            matched: false,
            near: false,
            links: 1,
            mailbox: RemoteRegion { key: u64::MAX, addr: u64::MAX - 63 },
            link: vec![0x5a; LINK],
            share: ShareRequest { mode: ShareMode::Alone, turn: 0 },
        }
    }

    /// Sends a frame, every eighth one with a descriptor.
    pub(crate) fn send_with_file(&self, stream: &mut ControlIo, frame: &Control) -> Result<(), OobError> {
        // Not with each one: passing descriptors is work for the kernel, which no victim can refuse.
        let fd =
            self.asked.is_multiple_of(8).then(|| PassedFd::from_own_process(self.file.try_clone().unwrap()));
        stream.send(OobFrame { bytes: frame.to_bytes(), fd })
    }
}
