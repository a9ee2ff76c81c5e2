//! One strand of a control stream: a TCP connection that carries records. Used by streams to other hosts; knows nothing
//! of what the frames say, nor of other strands.

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

/// Questions to a silent host before it is given up.
pub(super) const QUESTIONS: u32 = 3;
/// Bytes that are given to the kernel at once, about.
const GATHERED: usize = 16 << 10;

pub(super) fn system_error(what: &'static str) -> impl Fn(Errno) -> OobError {
    move |errno| OobError::System { what, source: errno.into() }
}

/// A socket that can reach, or be, that address.
pub(super) fn open_socket(like: SocketAddr) -> Result<OwnedFd, OobError> {
    let family = if like.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(system_error("socket"))
}

/// Lets the kernel find out that the other host is gone: by questions when nothing is said, by the time an answer to
/// what was said takes.
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
            // The other host did not say so.
            errno => Self { end: StrandEnd::Silence, error: system_error(what)(errno) },
        }
    }
}

/// What came over a strand.
#[derive(Debug)]
pub(super) enum StreamRecord {
    /// The first one: which stream, and how many of its frames the other end has taken.
    Join { join: StrandJoin, received: u64 },
    /// A control frame.
    Frame { number: u64, received: u64, bytes: Vec<u8> },
    /// How many frames the other end has taken.
    Taken { received: u64 },
    /// The stream is over.
    End,
}

/// One connection.
#[derive(Debug)]
pub(super) struct ControlConnection {
    socket: OwnedFd,
    /// Which of its end's attempts made it.
    pub(super) slot: usize,
    /// How far it has come.
    pub(super) phase: StrandPhase,
    /// The frame to send next; none may go before the other end has said what it lacks.
    pub(super) next: Option<u64>,
    /// How many frames taken its records have told.
    told: u64,
    /// Records, the first of them perhaps in part.
    unsent: VecDeque<u8>,
    /// What came of records that were not returned.
    came: VecDeque<u8>,
}

impl ControlConnection {
    /// One that was accepted.
    pub(super) fn from_accepted(socket: OwnedFd, silence: Duration) -> Self {
        // Refused by a socket that has ended already, which its first look tells.
        let _ = set_keepalive(&socket, silence);
        Self::new(socket, 0, StrandPhase::Answered)
    }

    /// Begins to connect, from one of our addresses or whichever the kernel takes.
    pub(super) fn start_connect(
        to: SocketAddr,
        from: Option<IpAddr>,
        silence: Duration,
        slot: usize,
    ) -> Result<Self, ConnectionFault> {
        let socket = open_socket(to).map_err(|error| ConnectionFault { end: StrandEnd::Silence, error })?;
        let refused = |what| move |errno| ConnectionFault::from_errno(what, errno);
        set_keepalive(&socket, silence).map_err(refused("setsockopt"))?;
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

    /// Both ends have said which stream it belongs to.
    pub(super) fn is_joined(&self) -> bool {
        self.phase == StrandPhase::Joined
    }

    /// Says which stream an attempt belongs to, in the place of an earlier frame, of which no byte was sent.
    pub(super) fn queue_first_join(&mut self, name: StreamName, resume: &ResumeWindow) {
        self.unsent.clear();
        self.queue_join(name, &[], resume.frames_received());
        self.next = (resume.first_kept() == 0).then_some(0);
    }

    /// Says which stream this strand belongs to; before anything else.
    pub(super) fn queue_join(&mut self, name: StreamName, places: &[SocketAddr], received: u64) {
        let body = StrandJoin { name, places: places.to_vec() }.to_bytes();
        self.queue_record(StrandRecordKind::Join, 0, received, &body);
    }

    /// Ends the stream for the other end, if all of it is said over this strand.
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

    /// Sends what the stream has for this strand, as far as the kernel takes it.
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
        // What was taken over another strand needs not go.
        self.next = Some(next.max(resume.first_kept()));
        if self.unsent.is_empty() && resume.taken_due(self.told) {
            self.queue_record(StrandRecordKind::Taken, resume.frames_sent(), resume.frames_received(), &[]);
        }
    }

    /// Gives what is unsent to the kernel; whether it took all.
    fn flush_unsent(&mut self) -> Result<bool, ConnectionFault> {
        while !self.unsent.is_empty() {
            match rustix::net::send(self.socket.as_fd(), self.unsent.as_slices().0, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    drop(self.unsent.drain(..sent));
                    // The kernel takes nothing for a connection that the other host has not answered.
                    if self.phase == StrandPhase::Dialled {
                        self.phase = StrandPhase::Answered;
                    }
                }
                // Of a connection that is not there yet, too.
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return Ok(false),
                Err(errno) => return Err(ConnectionFault::from_errno("send", errno)),
            }
        }
        Ok(true)
    }

    /// The next record, if a whole one is there.
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

    /// The first record of what came, if it is whole.
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
