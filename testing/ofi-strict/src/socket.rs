//! Sockets of endpoints: abstract names, nothing blocks.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::wire::StrictAddress;

/// Connections that wait to be taken.
const BACKLOG: i32 = 4096;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// What a listener is known by to its `epoll`.
pub(crate) const LISTENER: u64 = 0;

fn socket_name(address: &StrictAddress) -> io::Result<SocketAddrUnix> {
    let mut name = b"strict-fi/".to_vec();
    for byte in address {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    Ok(SocketAddrUnix::new_abstract_name(&name)?)
}

/// An address that nobody else has.
///
/// # Errors
/// The kernel's.
pub(crate) fn random_address() -> io::Result<StrictAddress> {
    let mut address = StrictAddress::default();
    let filled = rustix::rand::getrandom(&mut address, rustix::rand::GetRandomFlags::empty())?;
    if filled == address.len() { Ok(address) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Listens at an address.
///
/// # Errors
/// The kernel's.
pub(crate) fn listen_at(address: &StrictAddress) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    rustix::net::bind(&socket, &socket_name(address)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A socket that is to be connected.
///
/// # Errors
/// The kernel's.
pub(crate) fn open_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?)
}

/// Connects it; would-block where too many wait there already.
///
/// # Errors
/// The kernel's.
pub(crate) fn connect_socket(socket: &OwnedFd, address: &StrictAddress) -> io::Result<()> {
    Ok(rustix::net::connect(socket, &socket_name(address)?)?)
}

/// Takes one connection.
///
/// # Errors
/// The kernel's; would-block if there is none.
pub(crate) fn accept_socket(listener: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, FLAGS)?)
}

/// A set of sockets, of which those that have something are told.
///
/// # Errors
/// The kernel's.
pub(crate) fn new_watcher() -> io::Result<OwnedFd> {
    Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

/// Adds one.
///
/// # Errors
/// The kernel's.
pub(crate) fn watch_socket(watcher: &OwnedFd, socket: &OwnedFd, token: u64) -> io::Result<()> {
    Ok(epoll::add(watcher, socket, epoll::EventData::new_u64(token), EventFlags::IN)?)
}

/// Whether room for writing is to be told, too.
pub(crate) fn watch_room(watcher: &OwnedFd, socket: &OwnedFd, token: u64, wanted: bool) {
    let flags = if wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
    // It was added before, and goes with its socket.
    let _ = epoll::modify(watcher, socket, epoll::EventData::new_u64(token), flags);
}

/// Those that have something now; at most as many as there is room for.
pub(crate) fn ready_tokens(watcher: &OwnedFd, tokens: &mut Vec<u64>) {
    let mut events = [epoll::Event { flags: EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 64];
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let count = epoll::wait(watcher, &mut events[..], Some(&zero)).unwrap_or(0);
    tokens.clear();
    tokens.extend(events.iter().take(count).map(|event| event.data.u64()));
}
