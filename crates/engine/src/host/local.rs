//! Control streams between processes of one host: sockets that the kernel closes when a process dies. Their names are in the
//! network namespace, so processes in other PID, IPC or mount namespaces can connect. A successful connection proves that both
//! are on one host. The streams can pass descriptors.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use trunkline_fabric::{OobError, OobFrame, PassedFd, PeerProcess};
use trunkline_mem::ipc::{peer_credentials, peer_pidfd, process_across};
use trunkline_mem::try_zeros;

use super::reach::LocalUsers;

/// The maximum number of frames queued for a peer that does not read, bounded because the queue is in this process's
/// memory.
const QUEUE_MAX: usize = 1024;

/// The listen backlog: pending connections of a process that does not accept. The kernel may allow fewer.
const BACKLOG: i32 = 4096;

/// The name of a listener: random, so that it is unique.
pub(super) type SocketName = [u8; 16];

/// Returns the kernel's address of a listener's name.
fn socket_address(name: &SocketName) -> Result<SocketAddrUnix, OobError> {
    let mut text = b"trunkline.".to_vec();
    for byte in name {
        text.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    SocketAddrUnix::new_abstract_name(&text).map_err(system_error("socket name"))
}

fn system_error(what: &'static str) -> impl Fn(Errno) -> OobError {
    move |errno| OobError::System { what, source: errno.into() }
}

/// Checks that the process at the other end of a socket belongs to a permitted user.
fn check_user(socket: &OwnedFd, users: LocalUsers) -> Result<(), OobError> {
    if users == LocalUsers::Any {
        return Ok(());
    }
    let ours = rustix::process::geteuid().as_raw();
    // A socket without a process counts as another user's.
    let theirs = peer_credentials(socket.as_fd()).map_or(u32::MAX, |credentials| credentials.uid);
    if theirs == ours { Ok(()) } else { Err(OobError::OtherUser { theirs, ours }) }
}

fn open_socket() -> Result<OwnedFd, OobError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system_error("socket"))
}

/// Accepts control streams.
#[derive(Debug)]
pub(super) struct LocalListener {
    socket: OwnedFd,
    name: SocketName,
    users: LocalUsers,
}

impl LocalListener {
    /// Listens under a new name, for processes of permitted users.
    pub(super) fn new(name: SocketName, users: LocalUsers) -> Result<Self, OobError> {
        let socket = open_socket()?;
        rustix::net::bind(&socket, &socket_address(&name)?).map_err(system_error("bind"))?;
        rustix::net::listen(&socket, BACKLOG).map_err(system_error("listen"))?;
        Ok(Self { socket, name, users })
    }

    pub(super) fn socket_name(&self) -> SocketName {
        self.name
    }

    /// Accepts the next stream, if one is pending. A stream of another user is closed, and the error names that user; further
    /// streams may be pending after it.
    pub(super) fn accept(&mut self) -> Result<Option<LocalStream>, OobError> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => check_user(&socket, self.users).and_then(|()| LocalStream::new(socket).map(Some)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(system_error("accept")(errno)),
        }
    }
}

/// One control stream.
#[derive(Debug)]
pub(super) struct LocalStream {
    socket: OwnedFd,
    unsent: VecDeque<OobFrame>,
    /// Room for one frame and a byte, to detect frames that are too long.
    inbox: Box<[u8]>,
}

impl LocalStream {
    /// Connects to the listener of a name; [`OobError::Closed`] if there is none on this host, [`OobError::OtherUser`] if a
    /// process of another user has the name.
    pub(super) fn connect(name: &SocketName, users: LocalUsers) -> Result<Self, OobError> {
        let socket = open_socket()?;
        match rustix::net::connect(&socket, &socket_address(name)?) {
            Ok(()) => check_user(&socket, users).and_then(|()| Self::new(socket)),
            Err(Errno::AGAIN) => Err(OobError::Overflow),
            Err(Errno::CONNREFUSED) => Err(OobError::Closed),
            Err(errno) => Err(system_error("connect")(errno)),
        }
    }

    fn new(socket: OwnedFd) -> Result<Self, OobError> {
        Ok(Self { socket, unsent: VecDeque::new(), inbox: try_zeros(OobFrame::MAX + 1)? })
    }

    /// Sends the queued frames; false while the peer does not read.
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

fn send_one(socket: &OwnedFd, frame: &OobFrame) -> Result<bool, OobError> {
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
        Err(errno) => Err(system_error("sendmsg")(errno)),
    }
}

impl LocalStream {
    /// As [`OobStream::peer_pid`](trunkline_fabric::OobStream::peer_pid).
    pub(super) fn peer_pid(&self) -> Option<u32> {
        process_across(self.socket.as_fd())
    }

    /// Returns the process at the other end, for a fabric that accesses its memory.
    fn peer_process(&self) -> Option<PeerProcess> {
        let socket = self.socket.as_fd();
        process_across(socket).and_then(|pid| PeerProcess::new(pid, peer_pidfd(socket)))
    }

    /// As [`OobStream::send`](trunkline_fabric::OobStream::send).
    pub(super) fn send(&mut self, frame: OobFrame) -> Result<(), OobError> {
        if frame.bytes.len() > OobFrame::MAX {
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

    /// As [`OobStream::recv`](trunkline_fabric::OobStream::recv).
    pub(super) fn recv(&mut self) -> Result<Option<OobFrame>, OobError> {
        // The end of a peer is detected by the receive below, after the frames that the peer sent before.
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
            Err(errno) => return Err(system_error("recvmsg")(errno)),
        };
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        match received.bytes {
            0 => Err(OobError::Closed),
            n if n > OobFrame::MAX => Err(OobError::Malformed),
            n => {
                let fd = fd.map(|fd| PassedFd { fd, sender: self.peer_process() });
                Ok(Some(OobFrame { bytes: self.inbox[..n].to_vec(), fd }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a name that no other test has.
    fn name(number: u8) -> SocketName {
        let mut name = [number; 16];
        name[..4].copy_from_slice(&std::process::id().to_le_bytes());
        name
    }

    fn pair(number: u8) -> (LocalStream, LocalStream) {
        let mut listener = LocalListener::new(name(number), LocalUsers::Same).unwrap();
        let client = LocalStream::connect(&listener.socket_name(), LocalUsers::Same).unwrap();
        (client, listener.accept().unwrap().unwrap())
    }

    #[test]
    fn frames_keep_their_bounds_and_carry_descriptors() {
        let (mut a, mut b) = pair(1);
        assert_eq!([&a, &b].map(LocalStream::peer_pid), [Some(std::process::id()); 2]);
        let fd = open_socket().unwrap();
        a.send(OobFrame { bytes: vec![1, 2], fd: Some(fd.into()) }).unwrap();
        a.send(OobFrame { bytes: vec![3; OobFrame::MAX], fd: None }).unwrap();
        let first = b.recv().unwrap().unwrap();
        assert_eq!(first.bytes, [1, 2]);
        assert!(first.fd.unwrap().is_own(), "the kernel reports the process that sent the descriptor");
        assert_eq!(b.recv().unwrap().unwrap().bytes.len(), OobFrame::MAX);
        assert!(b.recv().unwrap().is_none());
        drop(a);
        assert!(matches!(b.recv(), Err(OobError::Closed)));
    }

    #[test]
    fn unread_frames_overflow_without_losing_earlier_ones() {
        let (mut a, mut b) = pair(2);
        let mut sent = 0_u32;
        let error = loop {
            let mut bytes = sent.to_le_bytes().to_vec();
            bytes.resize(1024, 0);
            match a.send(OobFrame { bytes, fd: None }) {
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
                assert!(a.recv().unwrap().is_none(), "receiving flushes the send queue and returns no frame");
            };
            assert_eq!(frame.bytes[..4], expected.to_le_bytes());
        }
    }

    #[test]
    fn connect_fails_without_a_listener() {
        let gone = LocalListener::new(name(3), LocalUsers::Same).unwrap().socket_name();
        assert!(matches!(LocalStream::connect(&gone, LocalUsers::Same), Err(OobError::Closed)));
    }
}
