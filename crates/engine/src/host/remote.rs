//! Control streams to processes of other hosts, woven of TCP connections over each of the hosts' interfaces (docs/wire.md,
//! "Control streams between hosts"). When a process dies its kernel ends them; when a host falls silent the kernel of this
//! one does, after a time. A process that only says nothing is seen by nobody here.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use trunkline_fabric::{Frame, OobError, StreamConnections};
use trunkline_proto::control::{Arrival, DialStep, Resume, StrandPhase, StreamLife};
use trunkline_proto::mutant::Mutant;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::strand::{Join, Name, STRANDS_MAX};

use super::dial::Dial;
use super::lobby::{Guest, Lobby};
use super::machine::monotonic;
use super::strand::{Record, Strand, StrandFault, failed, socket};

/// Connections that wait for a process that does not accept; the kernel may allow fewer.
const BACKLOG: i32 = 4096;
/// Records taken from a strand in one go.
const BURST: usize = 64;

/// Accepts control streams, at each address of the process.
#[derive(Debug)]
pub(super) struct RemoteListener {
    sockets: Vec<OwnedFd>,
    places: Arc<[SocketAddr]>,
    silence: Duration,
    lobby: Arc<Lobby>,
    mutant: Mutant,
}

impl RemoteListener {
    /// Listens at a free port of each address. One that cannot be had is left out, unless there is no other.
    pub(super) fn new(at: &[IpAddr], silence: Duration, mutant: Mutant) -> Result<Self, OobError> {
        let mut refused = None;
        let mut listening = Vec::new();
        for &address in at.iter().take(STRANDS_MAX) {
            match listen(address) {
                Ok(one) => listening.push(one),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        if let (true, Some(error)) = (listening.is_empty(), refused) {
            return Err(error);
        }
        let (sockets, places): (Vec<_>, Vec<_>) = listening.into_iter().unzip();
        Ok(Self { sockets, places: places.into(), silence, lobby: Arc::default(), mutant })
    }

    pub(super) fn places(&self) -> &[SocketAddr] {
        &self.places
    }

    /// The next stream, if one waits. It may turn out to be another strand of one that is there.
    pub(super) fn accept(&mut self) -> Result<Option<RemoteStream>, OobError> {
        for socket in &self.sockets {
            match rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    let strand = Strand::accepted(socket, self.silence);
                    let end = End::Accepted { lobby: self.lobby.clone(), places: self.places.clone() };
                    let life = StreamLife::accepted(self.silence, monotonic(), self.mutant);
                    return Ok(Some(RemoteStream::new(None, end, life, vec![strand], self.mutant)));
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(failed("accept")(errno)),
            }
        }
        Ok(None)
    }
}

fn listen(at: IpAddr) -> Result<(OwnedFd, SocketAddr), OobError> {
    let wanted = SocketAddr::new(at, 0);
    let socket = socket(wanted)?;
    rustix::net::bind(&socket, &wanted).map_err(failed("bind"))?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed("listen"))?;
    let bound = rustix::net::getsockname(&socket).map_err(failed("getsockname"))?;
    let place = SocketAddr::try_from(bound).map_err(failed("getsockname"))?;
    Ok((socket, place))
}

/// One control stream.
#[derive(Debug)]
pub(super) struct RemoteStream {
    /// What an accepted stream hears first.
    name: Option<Name>,
    end: End,
    resume: Resume,
    /// When strands are dialled, and whether the stream is over.
    life: StreamLife,
    strands: Vec<Strand>,
    /// Why a strand ended, if there was more to it than an end.
    fault: Option<OobError>,
}

/// Which end of the stream this is.
#[derive(Debug)]
enum End {
    /// It began the stream, and begins its strands.
    Began(Dial),
    /// It accepts them.
    Accepted { lobby: Arc<Lobby>, places: Arc<[SocketAddr]> },
}

/// What ends.
enum Ending {
    /// One strand; others may go on.
    Strand(StrandFault),
    /// All of it.
    Stream(OobError),
}

fn malformed<E>(_: E) -> Ending {
    Ending::Strand(StrandFault::MALFORMED)
}

impl RemoteStream {
    /// Begins to connect to all these addresses, from these; what is sent meanwhile waits.
    pub(super) fn connect(
        name: Name,
        places: Vec<SocketAddr>,
        from: &[IpAddr],
        silence: Duration,
        mutant: Mutant,
    ) -> Result<Self, OobError> {
        let now = monotonic();
        let dial = Dial::new(places, from.to_vec(), silence, mutant);
        let life = StreamLife::dialling(dial.count(), silence, now, mutant);
        let mut stream = Self::new(Some(name), End::Began(dial), life, Vec::new(), mutant);
        stream.gather(now);
        if stream.strands.is_empty() {
            return Err(stream.fault.take().unwrap_or(OobError::Closed));
        }
        Ok(stream)
    }

    fn new(name: Option<Name>, end: End, life: StreamLife, strands: Vec<Strand>, mutant: Mutant) -> Self {
        Self { name, end, resume: Resume::new(mutant), life, strands, fault: None }
    }

    /// Strands that both ends have joined.
    pub(super) fn connections(&self) -> StreamConnections {
        StreamConnections { now: self.life.joined(), ever: self.life.ever_joined() }
    }

    /// As [`OobStream::send`](trunkline_fabric::OobStream::send).
    pub(super) fn send(&mut self, frame: Vec<u8>) -> Result<(), OobError> {
        if frame.is_empty() || frame.len() > Frame::MAX {
            return Err(OobError::Malformed);
        }
        if self.life.has_ended() {
            return Err(OobError::Closed);
        }
        self.resume.keep(frame).map_err(|_| OobError::Overflow)?;
        (0..self.strands.len()).for_each(|at| self.write(at));
        Ok(())
    }

    /// Sends the frames that the stream has for a strand.
    fn write(&mut self, at: usize) {
        let strand = &mut self.strands[at];
        let before = strand.phase;
        if let (Some(name), StrandPhase::Dialled) = (self.name, before) {
            // The other end may forget the frames that were taken since the strand was begun.
            strand.say_stream(name, &self.resume);
        }
        // One that has ended shows in what is received; what it brought before comes first.
        let _ = strand.write(&self.resume);
        if before != strand.phase {
            self.life.on_answered(strand.slot);
        }
    }

    /// As [`OobStream::recv`](trunkline_fabric::OobStream::recv).
    pub(super) fn recv(&mut self) -> Result<Option<Vec<u8>>, OobError> {
        if self.life.has_ended() {
            return Err(OobError::Closed);
        }
        let now = monotonic();
        self.gather(now);
        let mut at = 0;
        while at < self.strands.len() {
            match self.take(at, now) {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => at += 1,
                Err(Ending::Strand(fault)) => self.lose(at, fault, now),
                Err(Ending::Stream(error)) => {
                    self.life.end();
                    self.strands.clear();
                    return Err(error);
                }
            }
        }
        if !self.life.is_over(now) {
            return Ok(None);
        }
        self.strands.clear();
        Err(self.fault.take().unwrap_or(OobError::Closed))
    }

    /// Takes up strands that have come, or begins those that are due.
    fn gather(&mut self, now: Instant) {
        let Some(name) = self.name else { return };
        // Other attempts of a slot that has joined meanwhile.
        self.strands.retain(|strand| strand.is_joined() || !self.life.is_joined(strand.slot));
        match &self.end {
            End::Began(_) if self.life.next_deadline().is_none_or(|due| due > now) => {}
            End::Began(_) => {
                while let Some(step) = self.life.dial(now) {
                    self.begin(name, step, now);
                }
            }
            End::Accepted { lobby, .. } => {
                for guest in lobby.fetch(&name) {
                    // One that cannot go on with this stream is dropped.
                    let _ = self.welcome(name, guest, now);
                }
            }
        }
    }

    fn begin(&mut self, name: Name, step: DialStep, now: Instant) {
        let DialStep { slot, drops_oldest } = step;
        let End::Began(dial) = &self.end else { return };
        if drops_oldest {
            let waits = |strand: &Strand| strand.slot == slot && strand.phase == StrandPhase::Dialled;
            if let Some(oldest) = self.strands.iter().position(waits) {
                self.strands.remove(oldest);
            }
        }
        match dial.begin(slot) {
            Ok(mut strand) => {
                strand.say_stream(name, &self.resume);
                self.strands.push(strand);
            }
            Err(StrandFault { end, error }) => {
                self.life.on_ended(slot, StrandPhase::Dialled, end, now);
                self.fault = Some(error);
            }
        }
    }

    /// Adds an accepted strand; one too many takes the place of the oldest, which the other end has left.
    fn welcome(&mut self, name: Name, guest: Guest, now: Instant) -> Result<(), Ending> {
        let Guest { mut strand, received } = guest;
        let End::Accepted { places, .. } = &self.end else { return Ok(()) };
        self.resume.on_join(received).map_err(malformed)?;
        strand.phase = StrandPhase::Joined;
        strand.next = Some(received);
        strand.say_join(name, places, self.resume.received());
        let _ = strand.write(&self.resume);
        self.life.on_joined(strand.slot, now);
        if self.strands.len() == 2 * STRANDS_MAX {
            self.lose(0, StrandFault::CLOSED, now);
        }
        self.strands.push(strand);
        Ok(())
    }

    /// The next frame that one strand brings, if it has one.
    fn take(&mut self, at: usize, now: Instant) -> Result<Option<Vec<u8>>, Ending> {
        self.write(at);
        for _ in 0..BURST {
            let Some(record) = self.strands[at].read().map_err(Ending::Strand)? else { break };
            if let Some(frame) = self.on_record(at, record, now)? {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    fn on_record(&mut self, at: usize, record: Record, now: Instant) -> Result<Option<Vec<u8>>, Ending> {
        match record {
            Record::Join { join, received } if !self.strands[at].is_joined() => {
                self.on_join(at, join, received, now)?;
                Ok(None)
            }
            // A JOIN comes first, and once.
            Record::Join { .. } => Err(malformed(())),
            _ if !self.strands[at].is_joined() => Err(malformed(())),
            Record::Frame { number, received, bytes } => {
                self.resume.on_received(received).map_err(malformed)?;
                match self.resume.on_frame(number).map_err(malformed)? {
                    Arrival::New => Ok(Some(bytes)),
                    Arrival::Known => Ok(None),
                }
            }
            Record::Taken { received } => {
                self.resume.on_received(received).map_err(malformed)?;
                Ok(None)
            }
            Record::End => Err(Ending::Stream(OobError::Closed)),
        }
    }

    fn on_join(&mut self, at: usize, join: Join, received: u64, now: Instant) -> Result<(), Ending> {
        match &mut self.end {
            End::Began(dial) => {
                if Some(join.name) != self.name {
                    return Err(malformed(()));
                }
                let strand = &mut self.strands[at];
                if self.life.is_joined(strand.slot) {
                    // Another attempt of its slot was first.
                    return Err(Ending::Strand(StrandFault::CLOSED));
                }
                self.resume.on_join(received).map_err(malformed)?;
                strand.phase = StrandPhase::Joined;
                strand.next.get_or_insert(received);
                dial.learn(join.places);
                self.life.set_slots(dial.count());
                self.life.on_joined(strand.slot, now);
                Ok(())
            }
            End::Accepted { lobby, .. } => {
                let guest = Guest { strand: self.strands.remove(at), received };
                let Some(guest) = lobby.leave(&join.name, guest) else {
                    return Err(Ending::Stream(OobError::Merged));
                };
                if received > 0 {
                    // It goes on with a stream that this end has given up.
                    return Err(Ending::Stream(OobError::Closed));
                }
                lobby.enter(join.name);
                self.name = Some(join.name);
                // Its only strand: if that cannot be, nor can the stream.
                self.welcome(join.name, guest, now).map_err(|_| Ending::Stream(OobError::Malformed))
            }
        }
    }

    fn lose(&mut self, at: usize, fault: StrandFault, now: Instant) {
        let Strand { slot, phase, .. } = self.strands.remove(at);
        self.life.on_ended(slot, phase, fault.end, now);
        if !matches!(fault.error, OobError::Closed) {
            self.fault = Some(fault.error);
        }
    }
}

impl Drop for RemoteStream {
    fn drop(&mut self) {
        self.strands.iter_mut().for_each(|strand| strand.say_end(&self.resume));
        if let (Some(name), End::Accepted { lobby, .. }) = (&self.name, &self.end) {
            lobby.exit(name);
        }
    }
}

#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
#[cfg(test)]
mod tests;
