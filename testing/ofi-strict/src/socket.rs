//! Sockets of endpoints: non-blocking, with abstract names.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::wire::StrictAddress;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Token of the listener in its `epoll` set.
pub(crate) const LISTENER: u64 = 0;

fn socket_name(address: &StrictAddress) -> io::Result<SocketAddrUnix> {
    let mut name = b"strict-fi/".to_vec();
    for byte in address {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    Ok(SocketAddrUnix::new_abstract_name(&name)?)
}

/// Returns a new random address.
///
/// # Errors
/// An error of the kernel.
pub(crate) fn random_address() -> io::Result<StrictAddress> {
    let mut address = StrictAddress::default();
    let filled = rustix::rand::getrandom(&mut address, rustix::rand::GetRandomFlags::empty())?;
    if filled == address.len() { Ok(address) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Listens at an address.
///
/// # Errors
/// An error of the kernel.
pub(crate) fn listen_at(address: &StrictAddress) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    rustix::net::bind(&socket, &socket_name(address)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Opens an unconnected socket.
///
/// # Errors
/// An error of the kernel.
pub(crate) fn open_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?)
}

/// Connects a socket; would-block if the peer's queue of connections is full.
///
/// # Errors
/// An error of the kernel.
pub(crate) fn connect_socket(socket: &OwnedFd, address: &StrictAddress) -> io::Result<()> {
    Ok(rustix::net::connect(socket, &socket_name(address)?)?)
}

/// Accepts one connection.
///
/// # Errors
/// An error of the kernel; would-block if no connection waits.
pub(crate) fn accept_socket(listener: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, FLAGS)?)
}

/// Creates an `epoll` set that reports ready sockets.
///
/// # Errors
/// An error of the kernel.
pub(crate) fn new_watcher() -> io::Result<OwnedFd> {
    Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

/// Adds a socket to the set.
///
/// # Errors
/// An error of the kernel.
pub(crate) fn watch_socket(watcher: &OwnedFd, socket: &OwnedFd, token: u64) -> io::Result<()> {
    Ok(epoll::add(watcher, socket, epoll::EventData::new_u64(token), EventFlags::IN)?)
}

/// Selects whether space for writing is reported, too.
pub(crate) fn watch_room(watcher: &OwnedFd, socket: &OwnedFd, token: u64, wanted: bool) {
    let flags = if wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
    // The socket was added before, and leaves the set when it is closed, so this cannot fail.
    let _ = epoll::modify(watcher, socket, epoll::EventData::new_u64(token), flags);
}

/// Returns the tokens of the ready sockets, at most 64.
pub(crate) fn ready_tokens(watcher: &OwnedFd, tokens: &mut Vec<u64>) {
    let mut events = [epoll::Event { flags: EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 64];
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let count = epoll::wait(watcher, &mut events[..], Some(&zero)).unwrap_or(0);
    tokens.clear();
    tokens.extend(events.iter().take(count).map(|event| event.data.u64()));
}
