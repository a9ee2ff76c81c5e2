//! Control streams to processes of other hosts, made of TCP connections over each of the hosts' interfaces (docs/wire.md,
//! "Control streams between hosts"). When a process dies, its kernel ends them. When a host falls silent, the kernel of this one
//! ends them after a time. A process that is alive and sends nothing is not detected here.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use trunkline_fabric::{OobError, OobFrame, StreamConnections};
use trunkline_proto::control::{DialStep, FrameArrival, ResumeWindow, StrandPhase, StreamLife};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::strand::{STRANDS_MAX, StrandJoin, StreamName};

use super::accept_queue::{PendingConnection, StreamAcceptQueue};
use super::control_connection::{
    ConnectionFault, ControlConnection, StreamRecord, open_socket, system_error,
};
use super::dial::ConnectionDialer;
use super::unix_host::monotonic_now;

/// The listen backlog: pending connections of a process that does not accept. The kernel may allow fewer.
const BACKLOG: i32 = 4096;
/// Records read from a strand per call, so that one strand does not delay the others.
const BURST: usize = 64;

/// Accepts control streams, at each address of the process.
#[derive(Debug)]
pub(super) struct RemoteListener {
    sockets: Vec<OwnedFd>,
    places: Arc<[SocketAddr]>,
    silence: Duration,
    lobby: Arc<StreamAcceptQueue>,
}

impl RemoteListener {
    /// Listens at a free port of each address. An address that cannot be used is left out, unless it is the only one.
    pub(super) fn new(at: &[IpAddr], silence: Duration) -> Result<Self, OobError> {
        let mut refused = None;
        let mut listening = Vec::new();
        for &address in at.iter().take(STRANDS_MAX) {
            match listen_at(address) {
                Ok(one) => listening.push(one),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        if let (true, Some(error)) = (listening.is_empty(), refused) {
            return Err(error);
        }
        let (sockets, places): (Vec<_>, Vec<_>) = listening.into_iter().unzip();
        Ok(Self { sockets, places: places.into(), silence, lobby: Arc::default() })
    }

    pub(super) fn listen_addresses(&self) -> &[SocketAddr] {
        &self.places
    }

    /// Accepts the next stream, if one is pending. It may turn out to be another strand of an existing stream.
    pub(super) fn accept(&mut self) -> Result<Option<RemoteStream>, OobError> {
        for socket in &self.sockets {
            match rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    let strand = ControlConnection::from_accepted(socket, self.silence);
                    let end = StreamRole::Accepted { lobby: self.lobby.clone(), places: self.places.clone() };
                    let life = StreamLife::new_accepted(self.silence, monotonic_now());
                    return Ok(Some(RemoteStream::new(None, end, life, vec![strand])));
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(system_error("accept")(errno)),
            }
        }
        Ok(None)
    }
}

fn listen_at(at: IpAddr) -> Result<(OwnedFd, SocketAddr), OobError> {
    let wanted = SocketAddr::new(at, 0);
    let socket = open_socket(wanted)?;
    rustix::net::bind(&socket, &wanted).map_err(system_error("bind"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(system_error("listen"))?;
    let bound = rustix::net::getsockname(&socket).map_err(system_error("getsockname"))?;
    let place = SocketAddr::try_from(bound).map_err(system_error("getsockname"))?;
    Ok((socket, place))
}

/// One control stream.
#[derive(Debug)]
pub(super) struct RemoteStream {
    /// `None` until an accepted stream has received its name.
    name: Option<StreamName>,
    end: StreamRole,
    resume: ResumeWindow,
    /// When strands are dialled, and whether the stream has ended.
    life: StreamLife,
    strands: Vec<ControlConnection>,
    /// Why a strand ended, if it was not a regular end.
    fault: Option<OobError>,
}

/// The role of this end.
#[derive(Debug)]
enum StreamRole {
    /// It opened the stream, and dials its strands.
    Began(ConnectionDialer),
    /// It accepts them.
    Accepted { lobby: Arc<StreamAcceptQueue>, places: Arc<[SocketAddr]> },
}

/// The scope of an error.
enum StreamFault {
    /// One strand; others may continue.
    Strand(ConnectionFault),
    /// The whole stream.
    Stream(OobError),
}

fn malformed_record<E>(_: E) -> StreamFault {
    StreamFault::Strand(ConnectionFault::MALFORMED)
}

impl RemoteStream {
    /// Starts to connect to all these addresses, from the addresses `from`; frames sent meanwhile are queued.
    pub(super) fn connect(
        name: StreamName,
        places: Vec<SocketAddr>,
        from: &[IpAddr],
        silence: Duration,
    ) -> Result<Self, OobError> {
        let now = monotonic_now();
        let dial = ConnectionDialer::new(places, from.to_vec(), silence);
        let life = StreamLife::new_dialling(dial.connection_count(), silence, now);
        let mut stream = Self::new(Some(name), StreamRole::Began(dial), life, Vec::new());
        stream.refresh_connections(now);
        // No address of either end works, so the caller gets the error of the last attempt.
        if stream.strands.is_empty() {
            return Err(stream.fault.take().unwrap_or(OobError::Closed));
        }
        Ok(stream)
    }

    fn new(
        name: Option<StreamName>,
        end: StreamRole,
        life: StreamLife,
        strands: Vec<ControlConnection>,
    ) -> Self {
        Self { name, end, resume: ResumeWindow::new(), life, strands, fault: None }
    }

    /// Returns the number of strands that both ends have joined.
    pub(super) fn connection_counts(&self) -> StreamConnections {
        StreamConnections { now: self.life.joined_count(), ever: self.life.ever_joined() }
    }

    /// As [`OobStream::send`](trunkline_fabric::OobStream::send).
    pub(super) fn send(&mut self, frame: Vec<u8>) -> Result<(), OobError> {
        if frame.is_empty() || frame.len() > OobFrame::MAX {
            return Err(OobError::Malformed);
        }
        if self.life.has_ended() {
            return Err(OobError::Closed);
        }
        // Kept until the other end acknowledges it, because its strand may fail after the send.
        self.resume.keep_frame(frame).map_err(|_| OobError::Overflow)?;
        (0..self.strands.len()).for_each(|at| self.flush_connection(at));
        Ok(())
    }

    /// Sends the frames that the stream has for a strand.
    fn flush_connection(&mut self, at: usize) {
        let strand = &mut self.strands[at];
        let before = strand.phase;
        if let (Some(name), StrandPhase::Dialled) = (self.name, before) {
            // The first JOIN is updated until a byte of it is sent: the other end may drop frames that were acknowledged since it
            // was queued.
            strand.queue_first_join(name, &self.resume);
        }
        // The end of a strand is detected by its reads, after the records that it delivered before.
        let _ = strand.send_frames(&self.resume);
        if before != strand.phase {
            self.life.on_answered(strand.slot);
        }
    }

    /// As [`OobStream::recv`](trunkline_fabric::OobStream::recv).
    pub(super) fn recv(&mut self) -> Result<Option<Vec<u8>>, OobError> {
        if self.life.has_ended() {
            return Err(OobError::Closed);
        }
        let now = monotonic_now();
        self.refresh_connections(now);
        let mut at = 0;
        while at < self.strands.len() {
            match self.recv_from(at, now) {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => at += 1,
                Err(StreamFault::Strand(fault)) => self.drop_connection(at, fault, now),
                Err(StreamFault::Stream(error)) => {
                    self.life.mark_over();
                    self.strands.clear();
                    return Err(error);
                }
            }
        }
        // Frames of all strands were returned first, because a stream that ends must not lose received frames.
        if !self.life.check_over(now) {
            return Ok(None);
        }
        self.strands.clear();
        Err(self.fault.take().unwrap_or(OobError::Closed))
    }

    /// Adds queued strands, or dials those that are due.
    fn refresh_connections(&mut self, now: Instant) {
        let Some(name) = self.name else { return };
        // Drops other attempts of a slot that has joined meanwhile.
        self.strands.retain(|strand| strand.is_joined() || !self.life.is_joined(strand.slot));
        match &self.end {
            StreamRole::Began(_) if self.life.next_deadline().is_none_or(|due| due > now) => {}
            StreamRole::Began(_) => {
                while let Some(step) = self.life.next_dial(now) {
                    self.dial_connection(name, step, now);
                }
            }
            StreamRole::Accepted { lobby, .. } => {
                for guest in lobby.take_connections(&name) {
                    // A strand that cannot continue this stream is dropped.
                    let _ = self.add_accepted(name, guest, now);
                }
            }
        }
    }

    fn dial_connection(&mut self, name: StreamName, step: DialStep, now: Instant) {
        let DialStep { slot, drops_oldest } = step;
        let StreamRole::Began(dial) = &self.end else { return };
        if drops_oldest {
            let waits =
                |strand: &ControlConnection| strand.slot == slot && strand.phase == StrandPhase::Dialled;
            if let Some(oldest) = self.strands.iter().position(waits) {
                self.strands.remove(oldest);
            }
        }
        match dial.dial_slot(slot) {
            Ok(mut strand) => {
                strand.queue_first_join(name, &self.resume);
                self.strands.push(strand);
            }
            Err(ConnectionFault { end, error }) => {
                self.life.on_ended(slot, StrandPhase::Dialled, end, now);
                self.fault = Some(error);
            }
        }
    }

    /// Adds an accepted strand. One beyond the limit replaces the oldest, which the other end has left.
    fn add_accepted(
        &mut self,
        name: StreamName,
        guest: PendingConnection,
        now: Instant,
    ) -> Result<(), StreamFault> {
        let PendingConnection { mut strand, received } = guest;
        let StreamRole::Accepted { places, .. } = &self.end else { return Ok(()) };
        // Checked before the strand counts as joined, because an invalid count must not affect the stream.
        self.resume.on_join(received).map_err(malformed_record)?;
        strand.phase = StrandPhase::Joined;
        strand.next = Some(received);
        strand.queue_join(name, places, self.resume.frames_received());
        let _ = strand.send_frames(&self.resume);
        self.life.on_joined(strand.slot, now);
        if self.strands.len() == 2 * STRANDS_MAX {
            self.drop_connection(0, ConnectionFault::CLOSED, now);
        }
        self.strands.push(strand);
        Ok(())
    }

    /// Returns the next frame of a strand, if it has one.
    fn recv_from(&mut self, at: usize, now: Instant) -> Result<Option<Vec<u8>>, StreamFault> {
        self.flush_connection(at);
        for _ in 0..BURST {
            let Some(record) = self.strands[at].read_record().map_err(StreamFault::Strand)? else { break };
            if let Some(frame) = self.on_record(at, record, now)? {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    fn on_record(
        &mut self,
        at: usize,
        record: StreamRecord,
        now: Instant,
    ) -> Result<Option<Vec<u8>>, StreamFault> {
        match record {
            StreamRecord::Join { join, received } if !self.strands[at].is_joined() => {
                self.on_join(at, join, received, now)?;
                Ok(None)
            }
            // JOIN is valid only as the first record of a strand.
            StreamRecord::Join { .. } => Err(malformed_record(())),
            _ if !self.strands[at].is_joined() => Err(malformed_record(())),
            StreamRecord::Frame { number, received, bytes } => {
                self.resume.on_received(received).map_err(malformed_record)?;
                match self.resume.on_frame(number).map_err(malformed_record)? {
                    FrameArrival::New => Ok(Some(bytes)),
                    FrameArrival::Known => Ok(None),
                }
            }
            StreamRecord::Taken { received } => {
                self.resume.on_received(received).map_err(malformed_record)?;
                Ok(None)
            }
            StreamRecord::End => Err(StreamFault::Stream(OobError::Closed)),
        }
    }

    fn on_join(
        &mut self,
        at: usize,
        join: StrandJoin,
        received: u64,
        now: Instant,
    ) -> Result<(), StreamFault> {
        match &mut self.end {
            StreamRole::Began(dial) => {
                if Some(join.name) != self.name {
                    return Err(malformed_record(()));
                }
                let strand = &mut self.strands[at];
                if self.life.is_joined(strand.slot) {
                    // Another attempt of its slot was faster.
                    return Err(StreamFault::Strand(ConnectionFault::CLOSED));
                }
                self.resume.on_join(received).map_err(malformed_record)?;
                strand.phase = StrandPhase::Joined;
                strand.next.get_or_insert(received);
                dial.update_addresses(join.places);
                self.life.set_slots(dial.connection_count());
                self.life.on_joined(strand.slot, now);
                Ok(())
            }
            StreamRole::Accepted { lobby, .. } => {
                let guest = PendingConnection { strand: self.strands.remove(at), received };
                let Some(guest) = lobby.enqueue_connection(&join.name, guest) else {
                    return Err(StreamFault::Stream(OobError::Merged));
                };
                if received > 0 {
                    // The strand continues a stream that this end has given up.
                    return Err(StreamFault::Stream(OobError::Closed));
                }
                lobby.add_stream(join.name);
                self.name = Some(join.name);
                // It is the stream's only strand, so an error ends the stream.
                self.add_accepted(join.name, guest, now).map_err(|_| StreamFault::Stream(OobError::Malformed))
            }
        }
    }

    fn drop_connection(&mut self, at: usize, fault: ConnectionFault, now: Instant) {
        let ControlConnection { slot, phase, .. } = self.strands.remove(at);
        self.life.on_ended(slot, phase, fault.end, now);
        // A regular end must not replace the cause of an earlier failure.
        if !matches!(fault.error, OobError::Closed) {
            self.fault = Some(fault.error);
        }
    }
}

impl Drop for RemoteStream {
    fn drop(&mut self) {
        // Over each strand, because END is sent only over a strand that has sent all frames.
        self.strands.iter_mut().for_each(|strand| strand.send_end(&self.resume));
        if let (Some(name), StreamRole::Accepted { lobby, .. }) = (&self.name, &self.end) {
            lobby.remove_stream(name);
        }
    }
}

#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
#[cfg(test)]
mod tests;
