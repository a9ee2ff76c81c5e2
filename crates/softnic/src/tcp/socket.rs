//! One TCP socket that never blocks: gathered sends and scattered reads of buffers of ours and of registered memory.
//! Knows nothing of frames.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt};

use super::health::{TcpHealth, TcpPhase};

/// How often a connection is asked for before its host counts as unreachable: about half a minute.
const ASKED: i32 = 4;
/// Questions to an idle peer after which the kernel itself ends the connection. As many as there can be: until then it
/// comes back with its network, if nobody has left it.
const QUESTIONS_MAX: u32 = 127;
/// Bytes asked for as room of a connection that does not leave the host; the kernel doubles it, and grants it to everybody.
/// What waits there should still be in the processor's cache when it is read. Towards other hosts the kernel finds out
/// how much the network holds.
const SEND_ROOM_INSIDE: usize = 208 << 10;
/// The kernel's number for a connection that has ended.
const TCP_CLOSE: u8 = 7;
/// The kernel's numbers for one that is being made.
const TCP_SYN: [u8; 2] = [2, 3];

/// What a call moved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MovedBytes {
    /// So many bytes, at least one.
    Bytes(usize),
    /// None now.
    Later,
    /// None, and never again.
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
        // Without it, it is slower, not wrong.
        let _ = sockopt::set_tcp_nodelay(&fd, true);
        keep_inside(&fd, rustix::net::getpeername(&fd).ok().flatten().and_then(ip_of));
        Self(fd)
    }

    /// Begins to connect, from address `from` of this host if one is given. What is sent before there is a connection
    /// waits.
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
        // SAFETY: the header names two ranges, one borrowed here and one the caller vouches for; both are only read.
        moved_bytes(unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
    }

    /// Reads up to `len` bytes to `body` and, after it, what fits into `buffer`.
    ///
    /// # Safety
    /// `body` is writable for `len` bytes.
    pub(crate) unsafe fn read(&self, body: *mut u8, len: usize, buffer: &mut [u8]) -> MovedBytes {
        let parts = [
            libc::iovec { iov_base: body.cast(), iov_len: len },
            libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() },
        ];
        let parts = if len == 0 { &parts[1..] } else { &parts[..] };
        // SAFETY: at most two ranges, one borrowed here and one the caller vouches for.
        let count = unsafe { libc::readv(self.0.as_raw_fd(), parts.as_ptr(), parts.len() as libc::c_int) };
        if count == 0 { MovedBytes::Ended } else { moved_bytes(count) }
    }

    /// Reads what fits into `buffer`.
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
        let looked = rustix::net::recv(&self.0, &mut [0], rustix::net::RecvFlags::PEEK);
        !matches!(looked, Ok((_, 1..)) | Err(Errno::AGAIN | Errno::INTR))
    }

    /// From now on asks the peer whether it is there, each time that nothing came from it for so long.
    pub(crate) fn ask_each(&self, step: Duration) {
        // Refused by a socket that has ended, which its next use tells.
        let _ = sockopt::set_tcp_keepidle(&self.0, step);
        let _ = sockopt::set_tcp_keepintvl(&self.0, step);
        let _ = sockopt::set_tcp_keepcnt(&self.0, QUESTIONS_MAX);
        let _ = sockopt::set_socket_keepalive(&self.0, true);
    }

    /// What the kernel has counted.
    pub(super) fn tcp_health(&self) -> io::Result<TcpHealth> {
        // SAFETY: all zeros is such a table, of plain numbers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: a table that the kernel fills up to its length, of a socket that is open.
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

    /// Sends nothing more; the peer sees that when it has read everything.
    pub(crate) fn shut_down(&self) {
        // A connection that is gone has ended too.
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

/// Limits what waits in a connection from an address of this host to itself.
fn keep_inside(fd: &OwnedFd, peer: Option<IpAddr>) {
    // Without it, it is slower, not wrong.
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

    /// Room for what is sent, at both ends of a connection from one address to another.
    fn rooms(from: [u8; 4], to: [u8; 4]) -> [usize; 2] {
        let listener = TcpListener::bind((IpAddr::from(to), 0)).unwrap();
        let dialled = TcpSocket::dial(listener.local_addr().unwrap(), Some(from.into())).unwrap();
        let accepted = TcpSocket::from_accepted(listener.accept().unwrap().0.into());
        [dialled, accepted].map(|socket| sockopt::socket_send_buffer_size(socket.0).unwrap())
    }

    #[test]
    fn dialling_from_an_address_leaves_its_ports_to_others() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let dialled = TcpSocket::dial(listener.local_addr().unwrap(), Some([127, 0, 0, 2].into())).unwrap();
        let from = rustix::net::getsockname(&dialled.0).ok().and_then(ip_of);
        assert_eq!(from, Some(IpAddr::from([127, 0, 0, 2])));
        let mut value = 0;
        let mut len = size_of::<i32>() as libc::socklen_t;
        // SAFETY: fills at most four bytes of an int of ours.
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
    fn little_waits_in_a_connection_that_does_not_leave_the_host() {
        let inside = rooms([127, 0, 0, 1], [127, 0, 0, 1]);
        assert!(inside.iter().all(|&room| room <= 2 * SEND_ROOM_INSIDE), "{inside:?}");
        // Two addresses might be two hosts': the kernel decides.
        let outside = rooms([127, 0, 0, 1], [127, 0, 0, 2]);
        assert!(outside.iter().zip(inside).all(|(&room, limited)| room != limited), "{outside:?}");
    }
}
