//! The local port of outgoing connections. A socket bound to a local address before it connects would reserve a port for all destinations; the
//! kernel can choose one per destination instead. Used by code that connects from a given address.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Defers the choice of the local port to `connect`, for a socket that is then bound to an address and port 0 (ip(7),
/// `IP_BIND_ADDRESS_NO_PORT`; also valid for IPv6 sockets).
///
/// Without it, `bind` takes one of the about 28,000 ports of the host for all destinations.
///
/// # Errors
/// The error of `setsockopt(2)`: the descriptor is not an IP socket.
pub fn defer_port_choice(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the call reads a local `int`, and changes an option of an open socket.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::net::{AddressFamily, SocketType};

    use super::*;

    fn port(socket: &OwnedFd) -> u16 {
        SocketAddr::try_from(rustix::net::getsockname(socket).unwrap()).unwrap().port()
    }

    #[test]
    fn bound_socket_has_no_port_before_it_connects() {
        for (family, at) in [
            (AddressFamily::INET, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            (AddressFamily::INET6, SocketAddr::from((Ipv6Addr::LOCALHOST, 0))),
        ] {
            // A host without IPv6 has no such address.
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let socket = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
            defer_port_choice(socket.as_fd()).unwrap();
            rustix::net::bind(&socket, &at).unwrap();
            assert_eq!(port(&socket), 0, "{at}");
            rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
            assert_ne!(port(&socket), 0, "{at}");
        }
    }

    #[test]
    fn descriptor_that_is_not_a_socket_is_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(defer_port_choice(null.as_fd()).is_err());
    }
}
