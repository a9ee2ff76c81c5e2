//! One strand of a control stream: a TCP connection with records. Used by streams to other hosts; knows neither the contents of
//! frames nor other strands.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration as Time;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use trunkline_fabric::OobError;
use trunkline_proto::control::{ResumeWindow, StrandEnd, StrandPhase};
use trunkline_proto::time::Duration;
use trunkline_proto::wire::strand::{BODY_MAX, HEAD, StrandHead, StrandJoin, StrandRecordKind, StreamName};

/// Keepalive probes to a silent host before it is given up.
pub(super) const QUESTIONS: u32 = 3;
/// Approximate number of bytes per send call, so that small records share a system call.
const GATHERED: usize = 16 << 10;

pub(super) fn system_error(what: &'static str) -> impl Fn(Errno) -> OobError {
    move |errno| OobError::System { what, source: errno.into() }
}

/// Opens a socket of the family of this address.
pub(super) fn open_socket(like: SocketAddr) -> Result<OwnedFd, OobError> {
    let family = if like.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(system_error("socket"))
}

/// Makes the kernel detect that the other host has failed: by keepalive probes while the connection is idle, by a time limit for
/// acknowledgements while data is unacknowledged.
fn set_keepalive(socket: &OwnedFd, silence: Duration) -> Result<(), Errno> {
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

/// Why a strand ended; logged.
#[derive(Debug)]
pub(super) struct ConnectionFault {
    pub(super) end: StrandEnd,
    pub(super) error: OobError,
}

impl ConnectionFault {
    /// The other end sent a frame that is not valid.
    pub(super) const MALFORMED: Self = Self { end: StrandEnd::Refusal, error: OobError::Malformed };
    /// The other end closed the connection.
    pub(super) const CLOSED: Self = Self { end: StrandEnd::Refusal, error: OobError::Closed };

    /// The system refused a call on the strand's socket.
    fn from_errno(what: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET | Errno::CONNREFUSED | Errno::NOTCONN => Self::CLOSED,
            Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN | Errno::HOSTDOWN => {
                Self { end: StrandEnd::Silence, error: OobError::Closed }
            }
            // A local error: the other host reported nothing.
            errno => Self { end: StrandEnd::Silence, error: system_error(what)(errno) },
        }
    }
}

/// A record of a strand.
#[derive(Debug)]
pub(super) enum StreamRecord {
    /// The first one: the name of the stream, and how many of its frames the other end has received.
    Join { join: StrandJoin, received: u64 },
    /// A control frame.
    Frame { number: u64, received: u64, bytes: Vec<u8> },
    /// How many frames the other end has received.
    Taken { received: u64 },
    /// The stream has ended.
    End,
}

/// A strand.
#[derive(Debug)]
pub(super) struct ControlConnection {
    socket: OwnedFd,
    /// The slot of its end's attempts that made it.
    pub(super) slot: usize,
    /// The progress of its setup.
    pub(super) phase: StrandPhase,
    /// The frame to send next; `None` until the other end has reported the frames that it lacks.
    pub(super) next: Option<u64>,
    /// The number of received frames that its records have acknowledged.
    told: u64,
    /// Records; the first may be sent in part.
    unsent: VecDeque<u8>,
    /// Received bytes of records that were not returned yet.
    came: VecDeque<u8>,
}

impl ControlConnection {
    /// Creates a strand from an accepted socket.
    pub(super) fn from_accepted(socket: OwnedFd, silence: Duration) -> Self {
        // Fails only for a socket that has ended already, which its first read reports.
        let _ = set_keepalive(&socket, silence);
        Self::new(socket, 0, StrandPhase::Answered)
    }

    /// Starts to connect, from one of our addresses or from the kernel's choice.
    pub(super) fn start_connect(
        to: SocketAddr,
        from: Option<IpAddr>,
        silence: Duration,
        slot: usize,
    ) -> Result<Self, ConnectionFault> {
        let socket = open_socket(to).map_err(|error| ConnectionFault { end: StrandEnd::Silence, error })?;
        let refused = |what| move |errno| ConnectionFault::from_errno(what, errno);
        set_keepalive(&socket, silence).map_err(refused("setsockopt"))?;
        // Bound to an address, so that each strand uses another interface.
        if let Some(from) = from {
            trunkline_mem::defer_port_choice(socket.as_fd())
                .map_err(|source| OobError::System { what: "setsockopt", source })
                .map_err(|error| ConnectionFault { end: StrandEnd::Silence, error })?;
            rustix::net::bind(&socket, &SocketAddr::new(from, 0)).map_err(refused("bind"))?;
        }
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self::new(socket, slot, StrandPhase::Dialled)),
            Err(errno) => Err(ConnectionFault::from_errno("connect", errno)),
        }
    }

    fn new(socket: OwnedFd, slot: usize, phase: StrandPhase) -> Self {
        let unsent = VecDeque::new();
        let came = VecDeque::new();
        Self { socket, slot, phase, next: None, told: 0, unsent, came }
    }

    /// Returns whether both ends have named the stream of this strand.
    pub(super) fn is_joined(&self) -> bool {
        self.phase == StrandPhase::Joined
    }

    /// Queues the JOIN of an attempt. It replaces an earlier JOIN, of which no byte was sent.
    pub(super) fn queue_first_join(&mut self, name: StreamName, resume: &ResumeWindow) {
        self.unsent.clear();
        self.queue_join(name, &[], resume.frames_received());
        // Frames may follow JOIN at once only while all of them are kept. Otherwise the other end
        // first has to report the frames that it lacks.
        self.next = (resume.first_kept() == 0).then_some(0);
    }

    /// Queues a JOIN that names the stream of this strand; before any other record.
    pub(super) fn queue_join(&mut self, name: StreamName, places: &[SocketAddr], received: u64) {
        let body = StrandJoin { name, places: places.to_vec() }.to_bytes();
        self.queue_record(StrandRecordKind::Join, 0, received, &body);
    }

    /// Sends END to the other end, if all frames were sent over this strand.
    pub(super) fn send_end(&mut self, resume: &ResumeWindow) {
        if self.is_joined() && self.send_frames(resume).is_ok() && self.next == Some(resume.frames_sent()) {
            self.queue_record(StrandRecordKind::End, resume.frames_sent(), resume.frames_received(), &[]);
            let _ = self.flush_unsent();
        }
    }

    fn queue_record(&mut self, kind: StrandRecordKind, number: u64, received: u64, body: &[u8]) {
        // No frame and no JOIN is longer.
        let len = body.len() as u16;
        self.unsent.extend(StrandHead { kind, len, number, received }.to_bytes());
        self.unsent.extend(body);
        self.told = received;
    }

    /// Sends the stream's frames over this strand, as far as the kernel accepts them.
    pub(super) fn send_frames(&mut self, resume: &ResumeWindow) -> Result<(), ConnectionFault> {
        loop {
            self.queue_frames(resume);
            if self.unsent.is_empty() || !self.flush_unsent()? {
                return Ok(());
            }
        }
    }

    fn queue_frames(&mut self, resume: &ResumeWindow) {
        let Some(next) = &mut self.next else { return };
        let mut next = *next;
        while self.unsent.len() < GATHERED
            && let Some((number, frame)) = resume.next_from(next)
        {
            self.queue_record(StrandRecordKind::Frame, number, resume.frames_received(), frame);
            next = number + 1;
        }
        // Frames that were acknowledged over another strand need not be sent.
        self.next = Some(next.max(resume.first_kept()));
        // Frames acknowledge too, so a record of its own is needed only without them.
        if self.unsent.is_empty() && resume.taken_due(self.told) {
            self.queue_record(StrandRecordKind::Taken, resume.frames_sent(), resume.frames_received(), &[]);
        }
    }

    /// Passes unsent bytes to the kernel. Returns whether it accepted all.
    fn flush_unsent(&mut self) -> Result<bool, ConnectionFault> {
        while !self.unsent.is_empty() {
            match rustix::net::send(self.socket.as_fd(), self.unsent.as_slices().0, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    drop(self.unsent.drain(..sent));
                    // The kernel accepts nothing before the connection is established, so this one is.
                    if self.phase == StrandPhase::Dialled {
                        self.phase = StrandPhase::Answered;
                    }
                }
                // Also the error of a connection that is not established yet.
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return Ok(false),
                Err(errno) => return Err(ConnectionFault::from_errno("send", errno)),
            }
        }
        Ok(true)
    }

    /// Returns the next record, if it is complete.
    pub(super) fn read_record(&mut self) -> Result<Option<StreamRecord>, ConnectionFault> {
        loop {
            if let Some(record) = self.parse_record()? {
                return Ok(Some(record));
            }
            let mut bytes = [0; HEAD + BODY_MAX];
            match rustix::net::recv(self.socket.as_fd(), &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(ConnectionFault::CLOSED),
                Ok((_, count)) => self.came.extend(&bytes[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(errno) => return Err(ConnectionFault::from_errno("recv", errno)),
            }
        }
    }

    /// Returns the first record of the received bytes, if it is complete.
    fn parse_record(&mut self) -> Result<Option<StreamRecord>, ConnectionFault> {
        let mut head = [0; HEAD];
        if self.came.len() < HEAD {
            return Ok(None);
        }
        for (to, from) in head.iter_mut().zip(&self.came) {
            *to = *from;
        }
        let StrandHead { kind, len, number, received } =
            StrandHead::from_bytes(&head).map_err(|_| ConnectionFault::MALFORMED)?;
        if self.came.len() < HEAD + usize::from(len) {
            return Ok(None);
        }
        self.came.drain(..HEAD);
        let bytes: Vec<u8> = self.came.drain(..usize::from(len)).collect();
        Ok(Some(match kind {
            StrandRecordKind::Join => {
                let join = StrandJoin::from_bytes(&bytes).map_err(|_| ConnectionFault::MALFORMED)?;
                StreamRecord::Join { join, received }
            }
            StrandRecordKind::Frame => StreamRecord::Frame { number, received, bytes },
            StrandRecordKind::Taken => StreamRecord::Taken { received },
            StrandRecordKind::End => StreamRecord::End,
        }))
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.socket
    }
}
