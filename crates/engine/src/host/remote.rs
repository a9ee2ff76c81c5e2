//! Control streams to processes of other hosts: TCP connections with a length before each frame. When a process dies its
//! kernel ends them; when a host falls silent the kernel of this one does, after a time. A process that only says
//! nothing is seen by nobody here.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration as Time;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use trunkline_fabric::{Frame, OobError};
use trunkline_proto::time::Duration;

/// Bytes that wait for a peer that does not read.
const QUEUE_MAX: usize = 1 << 20;
/// Connections that wait for a process that does not accept; the kernel may allow fewer.
const BACKLOG: i32 = 4096;
/// Bytes of the length before a frame.
const LENGTH: usize = 4;
/// Questions to a silent host before it is given up.
const QUESTIONS: u32 = 3;

fn failed(what: &'static str) -> impl Fn(Errno) -> OobError {
    move |errno| OobError::System { what, source: errno.into() }
}

fn socket(like: SocketAddr) -> Result<OwnedFd, OobError> {
    let family = if like.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed("socket"))
}

/// Lets the kernel find out that the other host is gone: by questions when nothing is said, by the time an answer to
/// what was said takes.
fn watch(socket: &OwnedFd, silence: Duration) -> Result<(), Errno> {
    let whole = Time::from_nanos(silence.0).max(Time::from_secs(1));
    // The kernel counts whole seconds, and would round up.
    let step = Time::from_secs((whole.as_secs() / u64::from(QUESTIONS + 1)).max(1));
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, step)?;
    sockopt::set_tcp_keepintvl(socket, step)?;
    sockopt::set_tcp_keepcnt(socket, QUESTIONS)?;
    sockopt::set_tcp_user_timeout(socket, u32::try_from(whole.as_millis()).unwrap_or(u32::MAX))
}

/// Accepts control streams.
#[derive(Debug)]
pub(super) struct RemoteListener {
    socket: OwnedFd,
    address: SocketAddr,
    silence: Duration,
}

impl RemoteListener {
    /// Listens at a free port of an address.
    pub(super) fn new(at: IpAddr, silence: Duration) -> Result<Self, OobError> {
        let wanted = SocketAddr::new(at, 0);
        let socket = socket(wanted)?;
        rustix::net::bind(&socket, &wanted).map_err(failed("bind"))?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed("listen"))?;
        let bound = rustix::net::getsockname(&socket).map_err(failed("getsockname"))?;
        let address = SocketAddr::try_from(bound).map_err(failed("getsockname"))?;
        Ok(Self { socket, address, silence })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next stream, if one waits.
    pub(super) fn accept(&mut self) -> Result<Option<RemoteStream>, OobError> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                // Refused by a socket that has ended already, which its first look tells.
                let _ = watch(&socket, self.silence);
                Ok(Some(RemoteStream::new(socket)))
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(failed("accept")(errno)),
        }
    }
}

/// One control stream.
#[derive(Debug)]
pub(super) struct RemoteStream {
    socket: OwnedFd,
    unsent: VecDeque<u8>,
    /// What came of frames that were not returned.
    came: VecDeque<u8>,
}

impl RemoteStream {
    /// Begins to connect; what is sent meanwhile waits.
    pub(super) fn connect(to: SocketAddr, silence: Duration) -> Result<Self, OobError> {
        let socket = socket(to)?;
        watch(&socket, silence).map_err(failed("setsockopt"))?;
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self::new(socket)),
            Err(Errno::CONNREFUSED) => Err(OobError::Closed),
            Err(errno) => Err(failed("connect")(errno)),
        }
    }

    fn new(socket: OwnedFd) -> Self {
        Self { socket, unsent: VecDeque::new(), came: VecDeque::new() }
    }

    /// As [`OobStream::send`](trunkline_fabric::OobStream::send).
    pub(super) fn send(&mut self, frame: &[u8]) -> Result<(), OobError> {
        let Some(length) = u32::try_from(frame.len()).ok().filter(|_| frame.len() <= Frame::MAX) else {
            return Err(OobError::Malformed);
        };
        if self.unsent.len() + LENGTH + frame.len() > QUEUE_MAX {
            self.send_queued()?;
            if self.unsent.len() + LENGTH + frame.len() > QUEUE_MAX {
                return Err(OobError::Overflow);
            }
        }
        self.unsent.extend(length.to_le_bytes());
        self.unsent.extend(frame);
        self.send_queued()
    }

    fn send_queued(&mut self) -> Result<(), OobError> {
        while !self.unsent.is_empty() {
            let (first, _) = self.unsent.as_slices();
            match rustix::net::send(self.socket.as_fd(), first, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return Ok(()),
                Err(errno) if is_end(errno) => return Err(OobError::Closed),
                Err(errno) => return Err(failed("send")(errno)),
            }
        }
        Ok(())
    }

    /// As [`OobStream::recv`](trunkline_fabric::OobStream::recv).
    pub(super) fn recv(&mut self) -> Result<Option<Vec<u8>>, OobError> {
        // A peer that is gone shows in what is received; what it sent before comes first.
        let _ = self.send_queued();
        loop {
            if let Some(frame) = self.frame()? {
                return Ok(Some(frame));
            }
            let mut bytes = [0; Frame::MAX + LENGTH];
            match rustix::net::recv(self.socket.as_fd(), &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(OobError::Closed),
                Ok((_, count)) => self.came.extend(&bytes[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(errno) if is_end(errno) => return Err(OobError::Closed),
                Err(errno) => return Err(failed("recv")(errno)),
            }
        }
    }

    /// The first frame of what came, if it is whole.
    fn frame(&mut self) -> Result<Option<Vec<u8>>, OobError> {
        let mut length = [0; LENGTH];
        if self.came.len() < LENGTH {
            return Ok(None);
        }
        for (to, from) in length.iter_mut().zip(&self.came) {
            *to = *from;
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > Frame::MAX {
            return Err(OobError::Malformed);
        }
        if self.came.len() < LENGTH + length {
            return Ok(None);
        }
        self.came.drain(..LENGTH);
        Ok(Some(self.came.drain(..length).collect()))
    }
}

/// Whether the connection ended or never came to be, whatever the reason.
fn is_end(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::PIPE
            | Errno::CONNRESET
            | Errno::CONNREFUSED
            | Errno::TIMEDOUT
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::NOTCONN
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Instant;

    use super::*;

    fn until<T>(mut step: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = step() {
                return found;
            }
            assert!(started.elapsed().as_secs() < 10, "it did not come");
        }
    }

    fn pair() -> (RemoteStream, RemoteStream) {
        let silence = Duration::secs(10);
        let mut listener = RemoteListener::new(Ipv4Addr::LOCALHOST.into(), silence).unwrap();
        let client = RemoteStream::connect(listener.address(), silence).unwrap();
        (client, until(|| listener.accept().unwrap()))
    }

    #[test]
    fn frames_keep_their_bounds_at_every_size_and_come_before_the_end() {
        let (mut a, mut b) = pair();
        let sizes = [0, 1, 3, 4096, 4095, 2, 4096];
        for (number, size) in sizes.into_iter().enumerate() {
            a.send(&vec![number as u8; size]).unwrap();
        }
        drop(a);
        for (number, size) in sizes.into_iter().enumerate() {
            assert_eq!(until(|| b.recv().unwrap()), vec![number as u8; size]);
        }
        assert!(matches!(until(|| b.recv().map(|_| ()).err()), OobError::Closed));
    }

    #[test]
    fn what_is_too_long_is_refused_on_both_sides() {
        let (mut a, mut b) = pair();
        assert!(matches!(a.send(&[0; Frame::MAX + 1]), Err(OobError::Malformed)));
        a.unsent.extend((Frame::MAX as u32 + 1).to_le_bytes());
        a.send_queued().unwrap();
        assert!(matches!(until(|| b.recv().map(|_| ()).err()), OobError::Malformed));
    }

    #[test]
    fn a_peer_that_does_not_read_is_an_overflow_and_loses_nothing_before() {
        let (mut a, mut b) = pair();
        let mut sent = 0_u32;
        let error = loop {
            let mut bytes = sent.to_le_bytes().to_vec();
            bytes.resize(4096, 0);
            match a.send(&bytes) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, OobError::Overflow));
        for expected in 0..sent {
            let frame = until(|| {
                a.recv().unwrap();
                b.recv().unwrap()
            });
            assert_eq!(frame[..4], expected.to_le_bytes());
        }
    }

    #[test]
    fn nobody_listens_there() {
        let silence = Duration::secs(10);
        let gone = RemoteListener::new(Ipv4Addr::LOCALHOST.into(), silence).unwrap().address();
        let refused = match RemoteStream::connect(gone, silence) {
            Ok(mut stream) => until(|| stream.recv().map(|_| ()).err()),
            Err(error) => error,
        };
        assert!(matches!(refused, OobError::Closed));
    }

    #[test]
    fn the_kernel_watches_the_other_host() {
        let (a, b) = pair();
        for stream in [&a, &b] {
            assert!(sockopt::socket_keepalive(&stream.socket).unwrap());
            assert_eq!(sockopt::tcp_user_timeout(&stream.socket).unwrap(), 10_000);
            let idle = sockopt::tcp_keepidle(&stream.socket).unwrap();
            let step = sockopt::tcp_keepintvl(&stream.socket).unwrap();
            assert!(idle + step * QUESTIONS <= Time::from_secs(10), "{idle:?} {step:?}");
        }
    }
}
