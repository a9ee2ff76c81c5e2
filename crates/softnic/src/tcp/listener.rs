//! The listener of a NIC: one listening socket, and accepted sockets whose link is not yet known. Rails call it while
//! they poll; it owns no thread and never blocks. A dialler first sends the token of the link it wants, 128 random bits
//! that only the control stream carries. All other connections are closed.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use trunkline_proto::control::WorkBudget;

use super::socket::{MovedBytes, TcpSocket};

/// Names a link to the process that dials it.
pub(crate) type DialToken = [u8; 16];

/// Bytes that a dialler sends first.
pub(crate) const HELLO: usize = 32;
const MAGIC: [u8; 8] = *b"TLSOFTCP";
const VERSION: u16 = 1;

/// Most sockets whose link is not known yet. Beyond that the oldest is closed. It has been read before, so silent peers cannot keep a link
/// out.
const STRANGERS_MAX: usize = 256;
/// Sockets accepted per call, and pending sockets that are read again per call.
const ACCEPTS_MAX: usize = 64;
const READS_MAX: usize = 32;
/// Interval of those calls while many sockets are pending, because each read is a system call.
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// Time within which a pending socket must send its token, and within which the link of that token must be expected.
pub(crate) const STRANGER_TIME: Duration = Duration::from_secs(10);
/// Backlog of listen(2), for a process that does not accept at the moment; the kernel may allow fewer (`somaxconn`).
const BACKLOG: i32 = 4096;

/// Encodes the first bytes of a dialler.
pub(crate) fn hello_bytes(token: &DialToken) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..10].copy_from_slice(&VERSION.to_le_bytes());
    hello[16..].copy_from_slice(token);
    hello
}

/// Returns the token in a hello; `None` if it is invalid.
pub(crate) fn parse_hello(hello: &[u8; HELLO]) -> Option<DialToken> {
    let known = hello[..8] == MAGIC && hello[8..10] == VERSION.to_le_bytes() && hello[10..16] == [0; 6];
    let mut token = [0; 16];
    token.copy_from_slice(&hello[16..]);
    known.then_some(token)
}

/// The listening socket of a NIC, with its pending and expected connections.
pub(crate) struct LinkListener {
    listener: OwnedFd,
    address: SocketAddr,
    hall: Mutex<AcceptQueue>,
}

/// Accepted sockets, and the links that wait for one.
struct AcceptQueue {
    /// Sockets without a link, oldest first.
    strangers: Vec<PendingSocket>,
    /// Index of the socket that is read next.
    turn: usize,
    /// The work that may be done for unauthenticated peers.
    budget: WorkBudget,
    /// Start of the budget's time.
    opened: Instant,
    /// Time of the last accept and read.
    looked: Instant,
    /// Links that are expected to be dialled.
    links: HashMap<DialToken, ExpectedLink>,
}

/// State of a link that is expected to be dialled.
enum ExpectedLink {
    /// Not dialled yet.
    Empty,
    /// Its socket has arrived.
    Taken(TcpSocket),
    /// The link ended before it was dialled. A late dialler is rejected at once. Forgotten after [`STRANGER_TIME`].
    Ended(Instant),
}

struct PendingSocket {
    socket: TcpSocket,
    since: Instant,
    said: [u8; HELLO],
    count: usize,
}

/// How much of a hello was read.
enum HelloRead {
    /// A part; the rest may still arrive.
    Less,
    /// All of it, with the token of its link.
    All(DialToken),
    /// An invalid hello, or the connection has ended.
    Nonsense,
}

impl PendingSocket {
    fn read_hello(&mut self) -> HelloRead {
        while self.count < HELLO {
            match self.socket.fill_buffer(&mut self.said[self.count..]) {
                MovedBytes::Bytes(count) => self.count += count,
                MovedBytes::Later => return HelloRead::Less,
                MovedBytes::Ended => return HelloRead::Nonsense,
            }
        }
        parse_hello(&self.said).map_or(HelloRead::Nonsense, HelloRead::All)
    }
}

impl LinkListener {
    /// Listens on a free port of an address.
    pub(crate) fn listen_at(at: IpAddr) -> io::Result<Self> {
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&listener, true)?;
        // Port 0 lets the kernel choose a free one, because the link address carries the number to the peer.
        rustix::net::bind(&listener, &SocketAddr::new(at, 0))?;
        rustix::net::listen(&listener, BACKLOG)?;
        let address = SocketAddr::try_from(rustix::net::getsockname(&listener)?)?;
        Ok(Self { listener, address, hall: Mutex::new(AcceptQueue::new(Instant::now())) })
    }

    /// Returns the address at which it is reachable.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Registers a link that waits for its socket.
    pub(crate) fn expect_link(&self, token: DialToken) {
        self.hall.lock().unwrap_or_else(PoisonError::into_inner).links.insert(token, ExpectedLink::Empty);
    }

    /// Removes a link that has ended. A process that dials it within the next seconds is rejected, provided that
    /// [`LinkListener::accept_pending`] or [`LinkListener::fetch_socket`] is called.
    pub(crate) fn forget_link(&self, token: DialToken) {
        let mut hall = self.hall.lock().unwrap_or_else(PoisonError::into_inner);
        hall.links.insert(token, ExpectedLink::Ended(Instant::now()));
        // The dialler may already be pending; it is rejected now and not only by a later poll.
        let _ = self.accept_and_read(&mut hall);
    }

    /// Accepts pending connections, if it is due and no other thread does so.
    pub(crate) fn accept_pending(&self) {
        if let Ok(mut hall) = self.hall.try_lock()
            && hall.is_due()
        {
            // An error is dropped: a link that still waits for a socket gets it from its own call of `fetch_socket`.
            let _ = self.accept_and_read(&mut hall);
        }
    }

    /// Accepts pending connections, and reads the tokens of their links.
    fn accept_and_read(&self, hall: &mut AcceptQueue) -> Result<(), Errno> {
        let mut accepted = 0;
        let let_in = self.let_in(hall, &mut accepted);
        hall.read_hellos(accepted);
        let_in
    }

    /// Accepts pending connections, and returns the socket of an expected link once it has arrived. Returns `None` while another thread
    /// holds the listener.
    ///
    /// # Errors
    /// A connection is pending and cannot be accepted.
    pub(crate) fn fetch_socket(&self, token: &DialToken) -> io::Result<Option<TcpSocket>> {
        let Ok(mut hall) = self.hall.try_lock() else { return Ok(None) };
        let let_in = if hall.is_due() { self.accept_and_read(&mut hall) } else { Ok(()) };
        match hall.links.remove(token) {
            Some(ExpectedLink::Taken(socket)) => return Ok(Some(socket)),
            Some(place) => drop(hall.links.insert(*token, place)),
            None => {}
        }
        Ok(let_in.map(|()| None)?)
    }

    fn let_in(&self, hall: &mut AcceptQueue, accepted: &mut usize) -> Result<(), Errno> {
        while *accepted < ACCEPTS_MAX && hall.may_work() {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(fd) => {
                    hall.budget.spend_units(1);
                    *accepted += 1;
                    if hall.strangers.len() >= STRANGERS_MAX {
                        hall.strangers.remove(0);
                    }
                    hall.strangers.push(PendingSocket {
                        socket: TcpSocket::from_accepted(fd),
                        since: Instant::now(),
                        said: [0; HELLO],
                        count: 0,
                    });
                }
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // Without free descriptors accept fails whether or not a connection is pending. Only a pending one makes it an error.
                Err(full @ (Errno::MFILE | Errno::NFILE)) if self.is_rung() => return Err(full),
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether a connection is pending.
    fn is_rung(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

impl AcceptQueue {
    fn new(now: Instant) -> Self {
        Self {
            strangers: Vec::new(),
            turn: 0,
            budget: WorkBudget::for_strangers(),
            opened: now,
            looked: now,
            links: HashMap::new(),
        }
    }

    /// Whether pending sockets should be read now: in every call while there are few, else once per [`LOOK_EVERY`].
    fn is_due(&mut self) -> bool {
        let is_due = self.strangers.len() <= READS_MAX || self.looked.elapsed() >= LOOK_EVERY;
        if is_due && self.strangers.len() > READS_MAX {
            self.looked = Instant::now();
        }
        is_due
    }

    /// Whether the budget allows one more accepted socket.
    fn may_work(&mut self) -> bool {
        let now = trunkline_proto::time::Instant(self.opened.elapsed().as_nanos() as u64);
        self.budget.check_room(now)
    }

    /// Hands sockets to the links whose tokens they sent. A socket whose link is not yet expected stays pending. Reads the sockets that were accepted
    /// last, and some of the others in rotation.
    fn read_hellos(&mut self, accepted: usize) {
        let now = Instant::now();
        let is_over = |since: Instant| now.saturating_duration_since(since) >= STRANGER_TIME;
        self.links.retain(|_, place| !matches!(place, ExpectedLink::Ended(since) if is_over(*since)));
        let count = self.strangers.len();
        let new = count - accepted.min(count);
        let first = self.turn.checked_rem(count).unwrap_or(0);
        // New sockets are read at once, because a hello usually follows directly; older ones in rotation, because each read is a system call.
        let is_read = |number: usize| number >= new || (number + count - first) % count < READS_MAX;
        self.turn = (first + READS_MAX).checked_rem(count).unwrap_or(0);
        let mut at = 0;
        for number in 0..count {
            let Some(stranger) = self.strangers.get_mut(at) else { break };
            let is_old = is_over(stranger.since);
            if !is_old && !is_read(number) {
                at += 1;
                continue;
            }
            match stranger.read_hello() {
                HelloRead::All(token) if self.links.contains_key(&token) => {
                    let stranger = self.strangers.remove(at);
                    // The token proves that the peer has the control stream, so its work is not charged.
                    self.budget.refund_units(1);
                    // A second dialler with the same token has learned it elsewhere, so the first socket stays.
                    if let Some(place) = self.links.get_mut(&token)
                        && matches!(place, ExpectedLink::Empty)
                    {
                        *place = ExpectedLink::Taken(stranger.socket);
                    }
                }
                HelloRead::Less | HelloRead::All(_) if !is_old => at += 1,
                HelloRead::Less | HelloRead::All(_) | HelloRead::Nonsense => {
                    self.strangers.remove(at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn door() -> LinkListener {
        LinkListener::listen_at(IpAddr::from([127, 0, 0, 1])).unwrap()
    }

    fn fetch(door: &LinkListener, token: &DialToken) -> Option<TcpSocket> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(200) {
            if let Some(socket) = door.fetch_socket(token).unwrap() {
                return Some(socket);
            }
        }
        None
    }

    /// Whether the other side has closed the socket.
    fn is_closed(mut stream: TcpStream) -> bool {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        matches!(stream.read(&mut [0]), Ok(0) | Err(_))
    }

    #[test]
    fn slow_dialler_with_the_token_reaches_its_link() {
        let door = door();
        let token = [7; 16];
        door.expect_link(token);
        let mut dialled = TcpStream::connect(door.local_address()).unwrap();
        for byte in hello_bytes(&token) {
            assert!(door.fetch_socket(&token).unwrap().is_none());
            dialled.write_all(&[byte]).unwrap();
        }
        dialled.write_all(b"more").unwrap();
        let socket = fetch(&door, &token).unwrap();
        let mut bytes = [0; 8];
        assert_eq!((socket.fill_buffer(&mut bytes), &bytes[..4]), (MovedBytes::Bytes(4), &b"more"[..]));
        assert!(door.fetch_socket(&token).unwrap().is_none(), "once");
    }

    #[test]
    fn early_dialler_waits_for_its_link() {
        let door = door();
        let token = [8; 16];
        let mut early = TcpStream::connect(door.local_address()).unwrap();
        early.write_all(&hello_bytes(&token)).unwrap();
        assert!(fetch(&door, &[9; 16]).is_none(), "the socket is for another link");
        door.expect_link(token);
        assert!(fetch(&door, &token).is_some());
    }

    #[test]
    fn unauthenticated_peers_are_closed_and_exhaust_nothing() {
        let door = door();
        let token = [1; 16];
        door.expect_link(token);
        let mut garbled = TcpStream::connect(door.local_address()).unwrap();
        garbled.write_all(&[0x55; HELLO]).unwrap();
        let mut versioned = TcpStream::connect(door.local_address()).unwrap();
        let mut other = hello_bytes(&token);
        other[8] = 9;
        versioned.write_all(&other).unwrap();
        assert!(fetch(&door, &token).is_none());
        assert!(is_closed(garbled) && is_closed(versioned));
        assert!(door.hall.lock().unwrap().strangers.is_empty());

        let silent = TcpStream::connect(door.local_address()).unwrap();
        assert!(fetch(&door, &token).is_none());
        for stranger in &mut door.hall.lock().unwrap().strangers {
            stranger.since -= STRANGER_TIME;
        }
        door.accept_pending();
        assert!(is_closed(silent));
    }

    #[test]
    fn silent_peers_keep_no_link_out() {
        let door = door();
        let token = [4; 16];
        door.expect_link(token);
        let connect = || TcpStream::connect(door.local_address()).unwrap();
        let silent: Vec<_> = (0..STRANGERS_MAX + 9).map(|_| connect()).collect();
        assert!(fetch(&door, &token).is_none());
        let mut right = connect();
        right.write_all(&hello_bytes(&token)).unwrap();
        assert!(fetch(&door, &token).is_some(), "the oldest silent peer was not replaced");
        assert!(door.hall.lock().unwrap().strangers.len() <= STRANGERS_MAX);
        drop(silent);
    }

    #[test]
    fn dialler_of_an_ended_link_is_rejected() {
        let door = door();
        let token = [3; 16];
        door.expect_link(token);
        door.forget_link(token);
        let mut late = TcpStream::connect(door.local_address()).unwrap();
        late.write_all(&hello_bytes(&token)).unwrap();
        let started = Instant::now();
        while door.hall.lock().unwrap().strangers.is_empty() && started.elapsed() < Duration::from_millis(50)
        {
            door.accept_pending();
        }
        assert!(is_closed(late));
        for place in door.hall.lock().unwrap().links.values_mut() {
            *place = ExpectedLink::Ended(Instant::now() - STRANGER_TIME);
        }
        door.accept_pending();
        assert!(door.hall.lock().unwrap().links.is_empty(), "an ended link is still listed");
    }

    #[test]
    fn first_of_two_diallers_is_kept() {
        let door = door();
        let token = [2; 16];
        door.expect_link(token);
        let mut first = TcpStream::connect(door.local_address()).unwrap();
        first.write_all(&hello_bytes(&token)).unwrap();
        let mut second = TcpStream::connect(door.local_address()).unwrap();
        second.write_all(&hello_bytes(&token)).unwrap();
        let socket = fetch(&door, &token).unwrap();
        first.write_all(b"1").unwrap();
        let mut byte = [0];
        let started = Instant::now();
        while socket.fill_buffer(&mut byte) == MovedBytes::Later && started.elapsed() < Duration::from_secs(5)
        {
        }
        assert_eq!(byte, *b"1");
        assert!(door.fetch_socket(&token).unwrap().is_none());
    }
}
