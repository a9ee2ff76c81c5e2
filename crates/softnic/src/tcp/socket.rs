//! One non-blocking TCP socket: gathered sends and scattered reads of this crate's buffers and of registered memory. The
//! stream and the listener call it; it knows nothing of frames.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt};

use super::health::{TcpHealth, TcpPhase};

/// SYN retransmissions before the peer counts as unreachable (`TCP_SYNCNT`, tcp(7)). With intervals of 1, 2, 4, 8 and 16 s: about half a
/// minute.
const ASKED: i32 = 4;
/// Keep-alive probes after which the kernel itself ends the connection (`TCP_KEEPCNT`, tcp(7)). The maximum, so that a connection survives
/// a network outage until its owner leaves it.
const QUESTIONS_MAX: u32 = 127;
/// Bytes requested as send buffer of a connection inside the host (`SO_SNDBUF`, socket(7)). The kernel doubles the value. It is the default of
/// `net.core.wmem_max`, so every process may set it. Bytes that wait there should still be in the processor's cache
/// when they are read. Between hosts the kernel sizes the buffer by the capacity of the network.
const SEND_ROOM_INSIDE: usize = 208 << 10;
/// The kernel's state number of a closed connection (`TCP_CLOSE`).
const TCP_CLOSE: u8 = 7;
/// The kernel's state numbers of a connection in setup (`TCP_SYN_SENT`, `TCP_SYN_RECV`).
const TCP_SYN: [u8; 2] = [2, 3];

/// The result of a send or read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MovedBytes {
    /// The number of bytes moved, at least one.
    Bytes(usize),
    /// No bytes now.
    Later,
    /// No bytes, and none ever again: the connection has ended.
    Ended,
}

/// A TCP socket.
#[derive(Debug)]
pub(crate) struct TcpSocket(OwnedFd);

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl TcpSocket {
    /// Wraps an accepted socket.
    pub(crate) fn from_accepted(fd: OwnedFd) -> Self {
        // Ignored: without `TCP_NODELAY` the socket is slower, not wrong.
        let _ = sockopt::set_tcp_nodelay(&fd, true);
        keep_inside(&fd, rustix::net::getpeername(&fd).ok().flatten().and_then(ip_of));
        Self(fd)
    }

    /// Begins to connect, from address `from` of this host if one is given. Bytes that are sent before the connection is established
    /// are queued.
    pub(crate) fn dial(to: SocketAddr, from: Option<IpAddr>) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        set_connect_attempts(&fd)?;
        if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
            trunkline_mem::defer_port_choice(fd.as_fd())?;
            rustix::net::bind(&fd, &SocketAddr::new(from, 0))?;
        }
        match rustix::net::connect(&fd, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        keep_inside(&fd, Some(to.ip()));
        Ok(Self(fd))
    }

    /// Sends `buffer` and, after it, `len` bytes at `body`.
    ///
    /// # Safety
    /// `body` is readable for `len` bytes.
    pub(crate) unsafe fn send(&self, buffer: &[u8], body: *const u8, len: usize) -> MovedBytes {
        if len == 0 {
            return match rustix::net::send(&self.0, buffer, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => MovedBytes::Bytes(count),
                Err(Errno::AGAIN | Errno::INTR) => MovedBytes::Later,
                Err(_) => MovedBytes::Ended,
            };
        }
        let mut parts = [
            libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: buffer.len() },
            libc::iovec { iov_base: body.cast_mut().cast(), iov_len: len },
        ];
        // SAFETY: all zeros is a message header without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = 2;
        // SAFETY: the header names two ranges that are only read: `buffer`, borrowed for the call, and `body`, readable by the caller's promise.
        moved_bytes(unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
    }

    /// Reads up to `len` bytes to `body` and, after it, up to the length of `buffer` into that.
    ///
    /// # Safety
    /// `body` is writable for `len` bytes.
    pub(crate) unsafe fn read(&self, body: *mut u8, len: usize, buffer: &mut [u8]) -> MovedBytes {
        let parts = [
            libc::iovec { iov_base: body.cast(), iov_len: len },
            libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() },
        ];
        let parts = if len == 0 { &parts[1..] } else { &parts[..] };
        // SAFETY: at most two ranges that are writable: `buffer`, borrowed for the call, and `body`, by the caller's promise.
        let count = unsafe { libc::readv(self.0.as_raw_fd(), parts.as_ptr(), parts.len() as libc::c_int) };
        if count == 0 { MovedBytes::Ended } else { moved_bytes(count) }
    }

    /// Reads up to the length of `buffer` into it.
    pub(crate) fn fill_buffer(&self, buffer: &mut [u8]) -> MovedBytes {
        match rustix::net::recv(&self.0, buffer, rustix::net::RecvFlags::empty()) {
            Ok((_, 0)) => MovedBytes::Ended,
            Ok((_, count)) => MovedBytes::Bytes(count),
            Err(Errno::AGAIN | Errno::INTR) => MovedBytes::Later,
            Err(_) => MovedBytes::Ended,
        }
    }

    /// Whether the peer has hung up and everything it sent was read.
    pub(crate) fn is_over(&self) -> bool {
        // Peeked, so that bytes that have arrived stay for the next read.
        let looked = rustix::net::recv(&self.0, &mut [0], rustix::net::RecvFlags::PEEK);
        !matches!(looked, Ok((_, 1..)) | Err(Errno::AGAIN | Errno::INTR))
    }

    /// Enables keep-alive probes: the kernel probes the peer each time that nothing has arrived from it for `step`.
    pub(crate) fn ask_each(&self, step: Duration) {
        // Ignored: only a socket that has ended refuses it, and the next use of the socket reports that.
        let _ = sockopt::set_tcp_keepidle(&self.0, step);
        let _ = sockopt::set_tcp_keepintvl(&self.0, step);
        let _ = sockopt::set_tcp_keepcnt(&self.0, QUESTIONS_MAX);
        let _ = sockopt::set_socket_keepalive(&self.0, true);
    }

    /// Returns the kernel's counters of the connection.
    pub(super) fn tcp_health(&self) -> io::Result<TcpHealth> {
        // SAFETY: `tcp_info` consists of plain numbers, for which all zeros is a valid value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, the size of `info`, and sets `len`; the socket is open while `self` lives.
        let got = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut len,
            )
        };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(TcpHealth {
            phase: match info.tcpi_state {
                TCP_CLOSE => TcpPhase::Gone,
                state if TCP_SYN.contains(&state) => TcpPhase::Dialled,
                _ => TcpPhase::Open,
            },
            retransmits: info.tcpi_retransmits,
            probes: info.tcpi_probes,
            backoff: info.tcpi_backoff,
            quiet: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        })
    }

    /// Ends the sending direction; the peer notices once it has read everything.
    pub(crate) fn shut_down(&self) {
        // Ignored: a connection that no longer exists has ended too.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Write);
    }
}

fn moved_bytes(result: isize) -> MovedBytes {
    match usize::try_from(result) {
        Ok(0) => MovedBytes::Later,
        Ok(count) => MovedBytes::Bytes(count),
        Err(_) => match io::Error::last_os_error().kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => MovedBytes::Later,
            _ => MovedBytes::Ended,
        },
    }
}

/// Limits the send buffer of a connection from an address of this host to itself.
fn keep_inside(fd: &OwnedFd, peer: Option<IpAddr>) {
    // Ignored: without the limit the connection is slower, not wrong.
    if peer.is_some() && rustix::net::getsockname(fd).ok().and_then(ip_of) == peer {
        let _ = sockopt::set_socket_send_buffer_size(fd, SEND_ROOM_INSIDE);
    }
}

fn ip_of(address: SocketAddrAny) -> Option<IpAddr> {
    SocketAddr::try_from(address).ok().map(|address| address.ip())
}

fn set_connect_attempts(fd: &OwnedFd) -> io::Result<()> {
    let asked = ASKED;
    // SAFETY: an int option of a socket that is open.
    let set = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SYNCNT,
            (&raw const asked).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns the send buffer sizes of both ends of a connection from one address to another.
    fn rooms(from: [u8; 4], to: [u8; 4]) -> [usize; 2] {
        let listener = TcpListener::bind((IpAddr::from(to), 0)).unwrap();
        let dialled = TcpSocket::dial(listener.local_addr().unwrap(), Some(from.into())).unwrap();
        let accepted = TcpSocket::from_accepted(listener.accept().unwrap().0.into());
        [dialled, accepted].map(|socket| sockopt::socket_send_buffer_size(socket.0).unwrap())
    }

    #[test]
    fn dialling_from_an_address_reserves_no_port() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let dialled = TcpSocket::dial(listener.local_addr().unwrap(), Some([127, 0, 0, 2].into())).unwrap();
        let from = rustix::net::getsockname(&dialled.0).ok().and_then(ip_of);
        assert_eq!(from, Some(IpAddr::from([127, 0, 0, 2])));
        let mut value = 0;
        let mut len = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the call writes at most four bytes to a local `int`.
        let code = unsafe {
            libc::getsockopt(
                dialled.0.as_raw_fd(),
                libc::IPPROTO_IP,
                libc::IP_BIND_ADDRESS_NO_PORT,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        assert_eq!((code, value), (0, 1), "the port is chosen per destination");
    }

    #[test]
    fn send_buffer_is_small_inside_the_host() {
        let inside = rooms([127, 0, 0, 1], [127, 0, 0, 1]);
        assert!(inside.iter().all(|&room| room <= 2 * SEND_ROOM_INSIDE), "{inside:?}");
        // Two different addresses may belong to two hosts, so the kernel decides.
        let outside = rooms([127, 0, 0, 1], [127, 0, 0, 2]);
        assert!(outside.iter().zip(inside).all(|(&room, limited)| room != limited), "{outside:?}");
    }
}
