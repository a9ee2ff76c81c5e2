//! The operating system's clock and random numbers, and control streams between processes of one host: sockets that
//! the kernel closes when a process dies. Their names live in the network namespace, so that processes in other PID,
//! IPC or mount namespaces reach each other; they can hand over descriptors.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use trunkline_fabric::{Frame, Host, HostPage, Level, Oob, OobAddress, OobError, OobListener, OobStream};
use trunkline_mem::Page;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::status;

/// Frames that wait for a peer that does not read.
const QUEUE_MAX: usize = 1024;

/// Connections that wait for a process that does not accept; the kernel may allow fewer.
const BACKLOG: i32 = 4096;

type Log = Box<dyn Fn(Level, &str) + Send + Sync>;

/// The machine.
pub struct UnixHost {
    oob: UnixOob,
    log: Log,
}

impl UnixHost {
    /// A host that gives its log lines to `log`.
    pub fn new(log: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        Self { oob: UnixOob, log: Box::new(log) }
    }
}

impl Host for UnixHost {
    type Oob = UnixOob;

    fn now(&self) -> Instant {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Instant((now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64))
    }

    fn random(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            // Fails only when interrupted before the pool is ready, early at boot.
            if let Ok(n) =
                rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            {
                filled += n;
            }
        }
        bytes
    }

    fn oob(&self) -> &UnixOob {
        &self.oob
    }

    fn log(&self, level: Level, text: &str) {
        (self.log)(level, text);
    }

    fn page(&self, bytes: usize) -> io::Result<Option<HostPage>> {
        let page = Arc::new(Page::make(status::NAME, bytes)?);
        let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let unix_ns = (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64);
        Ok(Some(HostPage { page, pid, unix_ns }))
    }
}

/// Control streams over local sockets.
#[derive(Clone, Copy, Debug)]
pub struct UnixOob;

fn failed(what: &'static str) -> impl Fn(Errno) -> OobError {
    move |errno| OobError::System { what, source: errno.into() }
}

fn socket() -> Result<OwnedFd, OobError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(failed("socket"))
}

impl Oob for UnixOob {
    type Listener = UnixListener;
    type Stream = UnixStream;

    fn listen(&self) -> Result<UnixListener, OobError> {
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(failed("getrandom"))?;
        let mut name = b"trunkline.".to_vec();
        for byte in random {
            name.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        let socket = socket()?;
        let address = SocketAddrUnix::new_abstract_name(&name).map_err(failed("socket name"))?;
        rustix::net::bind(&socket, &address).map_err(failed("bind"))?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed("listen"))?;
        Ok(UnixListener { socket, name })
    }

    fn connect(&self, address: &OobAddress) -> Result<UnixStream, OobError> {
        let socket = socket()?;
        let address = SocketAddrUnix::new_abstract_name(&address.0).map_err(failed("socket name"))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => Ok(UnixStream::new(socket)),
            Err(Errno::AGAIN) => Err(OobError::Overflow),
            Err(Errno::CONNREFUSED) => Err(OobError::Closed),
            Err(errno) => Err(failed("connect")(errno)),
        }
    }
}

/// Accepts control streams.
#[derive(Debug)]
pub struct UnixListener {
    socket: OwnedFd,
    name: Vec<u8>,
}

impl OobListener for UnixListener {
    type Stream = UnixStream;

    fn address(&self) -> OobAddress {
        OobAddress(self.name.clone())
    }

    fn accept(&mut self) -> Result<Option<UnixStream>, OobError> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(UnixStream::new(socket))),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(failed("accept")(errno)),
        }
    }
}

/// One control stream.
#[derive(Debug)]
pub struct UnixStream {
    socket: OwnedFd,
    unsent: VecDeque<Frame>,
    /// Room for one frame and a byte, to notice those that are too long.
    inbox: Box<[u8]>,
}

impl UnixStream {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, unsent: VecDeque::new(), inbox: vec![0; Frame::MAX + 1].into() }
    }

    /// Sends what is queued; false while the peer does not read.
    fn send_queued(&mut self) -> Result<bool, OobError> {
        while let Some(frame) = self.unsent.front() {
            if !send_one(&self.socket, frame)? {
                return Ok(false);
            }
            self.unsent.pop_front();
        }
        Ok(true)
    }
}

fn send_one(socket: &OwnedFd, frame: &Frame) -> Result<bool, OobError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = frame.fd.as_ref().map(|fd| [fd.as_fd()]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let bytes = [IoSlice::new(&frame.bytes)];
    match rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(false),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(OobError::Closed),
        Err(errno) => Err(failed("sendmsg")(errno)),
    }
}

impl OobStream for UnixStream {
    fn send(&mut self, frame: Frame) -> Result<(), OobError> {
        if frame.bytes.len() > Frame::MAX {
            return Err(OobError::Malformed);
        }
        if self.send_queued()? && send_one(&self.socket, &frame)? {
            return Ok(());
        }
        if self.unsent.len() >= QUEUE_MAX {
            return Err(OobError::Overflow);
        }
        self.unsent.push_back(frame);
        Ok(())
    }

    fn recv(&mut self) -> Result<Option<Frame>, OobError> {
        // A peer that is gone shows in what is received; what it sent before comes first.
        let _ = self.send_queued();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut self.inbox)], &mut control, flags);
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(OobError::Closed),
            Err(errno) => return Err(failed("recvmsg")(errno)),
        };
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        match received.bytes {
            0 => Err(OobError::Closed),
            n if n > Frame::MAX => Err(OobError::Malformed),
            n => Ok(Some(Frame { bytes: self.inbox[..n].to_vec(), fd })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let mut listener = UnixOob.listen().unwrap();
        let client = UnixOob.connect(&listener.address()).unwrap();
        (client, listener.accept().unwrap().unwrap())
    }

    #[test]
    fn frames_keep_their_bounds_and_carry_descriptors() {
        let (mut a, mut b) = pair();
        let fd = socket().unwrap();
        a.send(Frame { bytes: vec![1, 2], fd: Some(fd) }).unwrap();
        a.send(Frame { bytes: vec![3; Frame::MAX], fd: None }).unwrap();
        let first = b.recv().unwrap().unwrap();
        assert_eq!((first.bytes, first.fd.is_some()), (vec![1, 2], true));
        assert_eq!(b.recv().unwrap().unwrap().bytes.len(), Frame::MAX);
        assert!(b.recv().unwrap().is_none());
        drop(a);
        assert!(matches!(b.recv(), Err(OobError::Closed)));
    }

    #[test]
    fn a_peer_that_does_not_read_is_an_overflow_and_loses_nothing_before() {
        let (mut a, mut b) = pair();
        let mut sent = 0_u32;
        let error = loop {
            let mut bytes = sent.to_le_bytes().to_vec();
            bytes.resize(1024, 0);
            match a.send(Frame { bytes, fd: None }) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, OobError::Overflow));
        for expected in 0..sent {
            let frame = loop {
                if let Some(frame) = b.recv().unwrap() {
                    break frame;
                }
                assert!(a.recv().unwrap().is_none(), "receiving sends what is queued");
            };
            assert_eq!(frame.bytes[..4], expected.to_le_bytes());
        }
    }

    #[test]
    fn nobody_listens_there() {
        let gone = UnixOob.listen().unwrap().address();
        assert!(matches!(UnixOob.connect(&gone), Err(OobError::Closed)));
    }
}
