//! The control plane: one stream from this process to each one that it connects to, and one from each that connects to it, carry all handshakes.
//! The loss of a stream is the peer's death for the connections that it carries.
//!
//! Driven by the calls that set up and close, and periodically by lanes that wait; never by a thread of the engine.

pub(crate) mod accept;
mod admission;
pub(crate) mod connect;
pub(crate) mod lifecycle;
pub(crate) mod linger;
pub(crate) mod lingering_set;
pub(crate) mod member_key;
pub(crate) mod peer_check;
pub(crate) mod refusal;
pub(crate) mod seen_opens;
pub(crate) mod setup;
mod stream_carriers;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_fabric::{
    self as fabric, Host, LogLevel, OobAddress, OobError, OobListener, OobStream, OobTransport, PassedFd,
    Rail,
};
use trunkline_proto::control::{AcceptHandshake, ConnectHandshake, ConnectStep, UnprovenStreams, WorkBudget};
use trunkline_proto::counters::ProcessTally;
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::{OPENS_INVITED_MAX, OPENS_PENDING_MAX};
use trunkline_proto::log_rate::LogRate;
use trunkline_proto::nics;
use trunkline_proto::pool::config::GroupPreference;
use trunkline_proto::pool::group::GroupId;
use trunkline_proto::pool::{GroupPlace, GroupPool};
use trunkline_proto::slots::{SlotId, SlotTable};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::frame::{ControlFrame, OpenAnswer, OpenFrame, ResultFrame, VERSION};
use trunkline_proto::wire::share::{ShareOffer, ShareOutcome};
use trunkline_proto::wire::status::ControlStreams;

use crate::comm::send::SendLane;
use crate::comm::{CommTable, RemoteProcess};
use crate::control::admission::StreamStanding;
use crate::control::lingering_set::{GroupedComm, LingeringSet};
use crate::control::refusal::{refusal_frame, without_comm};
use crate::control::seen_opens::{OpenVerdict, SeenOpens};
use crate::link::link_frames::LinkFrame;
use crate::pool::membership::{AttemptLeftover, AttemptLinks};
use crate::status::EngineStatus;
use crate::{CommId, CommNics, EngineError, EngineParams};

/// The maximum number of streams of a process, bounded because each holds a descriptor.
const STREAMS_MAX: usize = 16384;
/// The maximum number of listeners of a process.
const LISTENS_MAX: usize = 65536;
/// The maximum number of connections that are requested and not closed.
pub(crate) const ATTEMPTS_MAX: usize = 65536;
/// Streams accepted, and frames read from a stream, per call, bounded because one peer must not occupy the control
/// plane for long.
const BURST: usize = 64;
/// Redials of the stream of an attempt. A process that was stopped before it sent OPEN finds its stream closed by a peer that is
/// alive, so one redial is justified.
const REDIALS_MAX: u8 = 1;
/// The interval at which attempts age. A process that made no call for longer was stopped, and its attempts age by one interval
/// only.
const AGE_STEP: Duration = Duration::from_secs(1);

/// The process's control plane.
pub(crate) struct ControlPlane<H: Host, R: Rail> {
    process: ProcessId,
    /// The sharing offer of every HELLO.
    offer: ShareOffer,
    /// The pool of shared queue pairs and their members.
    pub(crate) pool: GroupPool,
    /// The lanes of shared groups.
    pub(crate) riding: HashMap<GroupId, u32>,
    /// The comms that are members of them, by their peers' names of them.
    pub(crate) riders: HashMap<u64, GroupedComm>,
    /// Closed comms that linger.
    pub(crate) left: LingeringSet,
    listener: Option<<H::Oob as OobTransport>::Listener>,
    /// The last log line about the listener: a failure recurs at each call until its cause is removed, and is logged once.
    listener_told: Option<String>,
    /// How often refusals are logged: any process can cause them.
    refusals: LogRate,
    streams: SlotTable<ControlStream<<H::Oob as OobTransport>::Stream>>,
    /// Streams that other processes have opened and that carry no connection.
    unproven: UnprovenStreams,
    /// Work budget of streams that carry no connection of this process.
    strangers: WorkBudget,
    /// Those of them that have shown a nonce, oldest first, with the process id from the kernel.
    invited: VecDeque<(SlotId, Option<u32>)>,
    /// Scratch list of the streams to read, kept so that a poll allocates nothing.
    names: Vec<SlotId>,
    pub(crate) listens: SlotTable<CommListener>,
    pub(crate) attempts: SlotTable<ConnectAttempt<R>>,
    /// When attempts last aged.
    aged: Instant,
    /// Attempts that are given up, to be freed by the engine.
    pub(crate) abandoned: Vec<SlotId>,
    /// Resources of ended attempts, to be freed when their lane is unlocked.
    pub(crate) leftovers: VecDeque<AttemptLeftover<R>>,
}

struct ControlStream<S> {
    io: S,
    /// Connections that had carried it when it was last read.
    joins: u64,
    /// Known once its HELLO has arrived.
    peer: Option<Arc<RemoteProcess>>,
    /// The process a stream we opened must lead to.
    expected: Option<ProcessId>,
    /// The peer's versions, if they do not include ours.
    versions: Option<(u16, u16)>,
    standing: StreamStanding,
    /// Units of work that it has cost before it carried a connection.
    cost: u32,
}

/// A listener.
pub(crate) struct CommListener {
    pub(crate) nics: CommNics,
    nonce: [u8; 16],
    pub(crate) pending: VecDeque<PendingOpen>,
    pub(crate) current: Option<AcceptAttempt>,
    pub(crate) seen: SeenOpens,
}

/// An OPEN that waits for accept.
pub(crate) struct PendingOpen {
    pub(crate) open: OpenFrame,
    pub(crate) fd: Option<PassedFd>,
    pub(crate) stream: SlotId,
    pub(crate) peer: Arc<RemoteProcess>,
}

/// The connection a listener is accepting.
pub(crate) struct AcceptAttempt {
    pub(crate) machine: AcceptHandshake,
    pub(crate) comm: CommId,
    pub(crate) conn: u64,
    /// The turn of the OPEN of that connection that is being processed.
    pub(crate) turn: u32,
    /// The links that the comm got.
    pub(crate) given: ShareOutcome,
    /// Its place in the pool.
    pub(crate) place: GroupPlace,
    pub(crate) stream: SlotId,
    pub(crate) peer: Arc<RemoteProcess>,
    /// RESULT is sent again, because OPEN was repeated.
    pub(crate) repeat: bool,
}

/// A connection that this process requested. It stays until the comm is closed, because repeated RESULTs need a reply.
pub(crate) struct ConnectAttempt<R: Rail> {
    pub(crate) machine: ConnectHandshake,
    pub(crate) stream: SlotId,
    pub(crate) process: ProcessId,
    /// The listener's address of that process.
    pub(crate) address: Vec<u8>,
    /// How often its stream was redialled, because it ended before a reply.
    pub(crate) redials: u8,
    /// NICs of this end.
    pub(crate) nics: CommNics,
    /// NICs of the other end.
    pub(crate) remote: nics::NicList,
    /// Its preference for the pool.
    pub(crate) wish: GroupPreference,
    /// Its place in the pool; `None` before it has requested one.
    pub(crate) place: Option<GroupPlace>,
    pub(crate) open: OpenFrame,
    pub(crate) lane: Option<(SendLane, AttemptLinks<R>)>,
    pub(crate) reply: Option<(ResultFrame, Option<PassedFd>)>,
    /// The link is connected to the address in the reply, and may not be up yet.
    pub(crate) joined: bool,
    pub(crate) comm: Option<CommId>,
    /// The accepting side has closed its end already.
    pub(crate) closed: bool,
    /// The time for which this process has made calls since connect was last called for it.
    pub(crate) unasked: Duration,
}

/// The engine state that the dispatch of frames uses in addition to the control plane.
pub(crate) struct ControlContext<'a, H: Host> {
    pub(crate) host: &'a H,
    pub(crate) comms: &'a CommTable,
    pub(crate) params: &'a EngineParams,
    pub(crate) status: &'a EngineStatus,
}

impl<H: Host, R: Rail> ControlPlane<H, R> {
    pub(crate) fn new(process: ProcessId, offer: ShareOffer, pool: GroupPool) -> Self {
        Self {
            process,
            offer,
            pool,
            riding: HashMap::new(),
            riders: HashMap::new(),
            left: LingeringSet::default(),
            listener: None,
            listener_told: None,
            refusals: LogRate::new(Instant::default()),
            streams: SlotTable::new(STREAMS_MAX),
            unproven: UnprovenStreams::new(),
            strangers: WorkBudget::for_strangers(),
            invited: VecDeque::new(),
            names: Vec::new(),
            listens: SlotTable::new(LISTENS_MAX),
            attempts: SlotTable::new(ATTEMPTS_MAX),
            aged: Instant::default(),
            abandoned: Vec::new(),
            leftovers: VecDeque::new(),
        }
    }

    /// Returns the address of this process, which listens from now on.
    pub(crate) fn listen_address(&mut self, host: &H) -> Result<OobAddress, OobError> {
        // Started with the first use: processes that only connect need no listener.
        if self.listener.is_none() {
            self.listener = Some(host.oob().listen()?);
        }
        self.listener.as_ref().map(OobListener::listen_address).ok_or(OobError::Closed)
    }

    pub(crate) fn add_listener(&mut self, nics: CommNics, nonce: [u8; 16]) -> Result<SlotId, EngineError> {
        let listen =
            CommListener { nics, nonce, pending: VecDeque::new(), current: None, seen: SeenOpens::default() };
        let exhausted = |_| EngineError::Exhausted { what: "listeners", limit: LISTENS_MAX };
        self.listens.insert(listen).map_err(exhausted)
    }

    /// Returns a stream that this process has opened to that process at its listening address: an existing or a new one. A stream
    /// that was accepted is never used for it, since its opener has only claimed to be that process. `None` if the peer is too
    /// busy right now.
    pub(crate) fn stream_to(
        &mut self,
        host: &H,
        process: ProcessId,
        address: &[u8],
    ) -> Result<Option<SlotId>, EngineError> {
        let leads = |s: &ControlStream<_>| s.expected == Some(process) && s.versions.is_none();
        if let Some((id, _)) = self.streams.iter().find(|(_, stream)| leads(stream)) {
            return Ok(Some(id));
        }
        let io = match host.oob().connect(&OobAddress(address.to_vec())) {
            Ok(io) => io,
            // The listen queue of the peer is full, so the caller tries again later.
            Err(OobError::Overflow) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.add_stream(io, Some(process)).map(Some)
    }

    fn add_stream(
        &mut self,
        mut io: <H::Oob as OobTransport>::Stream,
        expected: Option<ProcessId>,
    ) -> Result<SlotId, EngineError> {
        let hello =
            ControlFrame::Hello { min: VERSION, max: VERSION, offer: self.offer, process: self.process };
        // HELLO is the first frame of each stream, and the other end waits for it.
        io.send(fabric::OobFrame { bytes: hello.to_bytes(), fd: None })?;
        // This process chose the address, so the stream needs no further proof.
        let standing = if expected.is_some() { StreamStanding::Carries } else { StreamStanding::Unproven };
        let stream = ControlStream { io, joins: 0, peer: None, expected, versions: None, standing, cost: 1 };
        self.streams
            .insert(stream)
            .map_err(|_| EngineError::Exhausted { what: "control streams", limit: STREAMS_MAX })
    }

    /// Sends a frame. A stream that cannot send it has ended, which its next read reports.
    pub(crate) fn send_frame(&mut self, stream: SlotId, frame: &ControlFrame, fd: Option<PassedFd>) {
        if let Some(stream) = self.streams.get_mut(stream) {
            // The error recurs permanently from the next receive, which handles it.
            let _ = stream.io.send(fabric::OobFrame { bytes: frame.to_bytes(), fd });
        }
    }

    /// Redials the stream of an unanswered attempt, if it has ended. `false`: a redial is not permitted, or not possible right
    /// now.
    pub(crate) fn redial_attempt(&mut self, host: &H, id: SlotId) -> bool {
        let Some(attempt) = self.attempts.get(id) else { return false };
        let process = attempt.process;
        let address = attempt.address.clone();
        let was_local = attempt.open.near;
        let spent = attempt.redials >= REDIALS_MAX;
        // An existing stream means that the attempt's frames are still in flight.
        if spent || self.streams.get(attempt.stream).is_some() {
            return false;
        }
        let Ok(Some(stream)) = self.stream_to(host, process, &address) else { return false };
        // The OPEN was made for a peer of this host.
        if was_local && !self.is_local(stream) {
            return false;
        }
        if let Some(attempt) = self.attempts.get_mut(id) {
            (attempt.stream, attempt.redials) = (stream, attempt.redials + 1);
            // A new handshake: OPEN has to be sent again on the new stream.
            attempt.machine = ConnectHandshake::new(host.now());
        }
        true
    }

    /// Returns why an attempt on this stream cannot succeed any more.
    pub(crate) fn stream_fault(&self, stream: SlotId, process: ProcessId) -> Option<EngineError> {
        let Some(stream) = self.streams.get(stream) else {
            return Some(crate::CommFault::PeerDead(process).into());
        };
        stream.versions.map(|(min, max)| EngineError::Version { min, max, ours: VERSION })
    }

    /// Adds a comm that shares its queue pairs, under its peer's name of it.
    pub(crate) fn add_grouped_comm(&mut self, name: u64, stream: SlotId) {
        self.riders.insert(name, GroupedComm { stream, gone: false });
    }

    /// Returns whether nothing of the peer will land any more for the comm of this name, as the peer has reported.
    pub(crate) fn is_gone(&self, name: u64) -> bool {
        self.riders.get(&name).is_none_or(|rider| rider.gone)
    }

    /// Removes a comm that has left its group.
    pub(crate) fn remove_grouped_comm(&mut self, name: u64) {
        self.riders.remove(&name);
    }

    pub(crate) fn stream_peer(&self, stream: SlotId) -> Option<Arc<RemoteProcess>> {
        self.streams.get(stream)?.peer.clone()
    }

    /// Accepts streams and reads frames, a bounded number of each.
    pub(crate) fn progress_streams(&mut self, around: &ControlContext<'_, H>) {
        let now = around.host.now();
        self.age_attempts(around, now);
        let accepted = self.accept_streams(around, now);
        let mut carried = ControlStreams::default();
        // Taken out of `self`, because reading a stream changes the table of streams.
        let mut names = std::mem::take(&mut self.names);
        self.list_streams_to_read(&mut names, accepted, now);
        names.iter().for_each(|&id| self.take_frames(around, id, now));
        names.clear();
        // Listed again: streams were added and removed above.
        names.extend(self.streams.iter().map(|(id, _)| id));
        names.iter().for_each(|&id| self.count_connections(id, &mut carried));
        self.names = names;
        around.status.show_control(carried);
        // Expires last: a stream's proof may have arrived while this process made no calls.
        self.expire_streams(around, now);
    }

    /// Resets the age of an attempt: its caller has called connect for it.
    pub(crate) fn reset_attempt_age(&mut self, id: SlotId) {
        if let Some(attempt) = self.attempts.get_mut(id) {
            attempt.unasked = Duration::default();
        }
    }

    /// Gives up attempts for which connect was not called for long: each of them holds a link.
    fn age_attempts(&mut self, around: &ControlContext<'_, H>, now: Instant) {
        // At most one step per call: the time in which the process made no calls does not count.
        let passed = now - self.aged;
        if passed < AGE_STEP {
            return;
        }
        self.aged = now;
        let limit = around.params.connect_time;
        let mut forgotten = Vec::new();
        for (id, attempt) in self.attempts.iter_mut().filter(|(_, attempt)| attempt.comm.is_none()) {
            attempt.unasked = Duration(attempt.unasked.0.saturating_add(AGE_STEP.0));
            if attempt.unasked > limit {
                // Collected first, because giving up changes the table.
                forgotten.push(id);
            }
        }
        forgotten.into_iter().for_each(|id| self.give_up(around, id));
    }

    fn give_up(&mut self, around: &ControlContext<'_, H>, id: SlotId) {
        let Some(attempt) = self.attempts.get_mut(id) else { return };
        around.status.add_tally(ProcessTally::AttemptsAbandoned, 1);
        let text = format!(
            "connection to process {} given up: connect was not called for it for {} s",
            attempt.process,
            attempt.unasked.0 / 1_000_000_000
        );
        around.host.log(LogLevel::Warn, &text);
        let stream = attempt.stream;
        let reply = attempt.reply.take();
        // The engine frees it later: its links need a lock that is not held here.
        self.abandoned.push(id);
        // If the reply is still in flight, the peer is notified when it arrives.
        if let Some((reply, _)) = reply {
            self.refuse_reply(stream, &reply, 0);
        }
    }

    /// Refuses an accepted connection: the other end closes, and nothing of this end will land there.
    pub(crate) fn refuse_reply(&mut self, stream: SlotId, reply: &ResultFrame, messages: u64) {
        self.send_frame(stream, &ControlFrame::Close { id: reply.comm, messages }, None);
        if matches!(reply.share.given, ShareOutcome::Created { .. } | ShareOutcome::Joined { .. }) {
            // No member of the group was created here, so nothing of this end can land.
            self.send_frame(stream, &ControlFrame::Gone { id: reply.comm }, None);
        }
    }

    /// Ends a stream; its peer counts as dead.
    fn drop_stream(&mut self, id: SlotId) {
        self.unproven.remove(id);
        self.invited.retain(|(invited, _)| *invited != id);
        for (_, listen) in self.listens.iter_mut() {
            // A later stream may get the same slot, and its OPENs must not count as repetitions.
            listen.seen.forget_stream(id);
        }
        if let Some(stream) = self.streams.remove(id)
            && let Some(peer) = stream.peer
        {
            // Release: comms that see the flag also see the frames that were processed before.
            peer.dead.store(true, Ordering::Release);
        }
    }

    fn dispatch_frame(
        &mut self,
        around: &ControlContext<'_, H>,
        id: SlotId,
        frame: fabric::OobFrame,
    ) -> Result<(), String> {
        let fabric::OobFrame { bytes, fd } = frame;
        let frame = ControlFrame::from_bytes(&bytes).map_err(|error| error.to_string())?;
        // A copy of the handle, as the handlers below change the table of streams.
        let peer = self.streams.get(id).and_then(|s| s.peer.clone());
        match (frame, peer) {
            (ControlFrame::Hello { min, max, offer, process }, None) => {
                self.on_hello(id, min, max, process, offer)
            }
            // A repeated HELLO changes nothing, so it is ignored.
            (ControlFrame::Hello { .. }, Some(_)) => Ok(()),
            // Without HELLO the version of further frames is unknown.
            (_, None) => Err("the first frame is not HELLO".to_owned()),
            (ControlFrame::Open(open), Some(peer)) => {
                self.on_open(around, id, peer, open, fd);
                Ok(())
            }
            (ControlFrame::Result(reply), Some(_)) => {
                self.on_result(id, reply, fd);
                Ok(())
            }
            (ControlFrame::Ready { comm, conn }, Some(_)) => {
                // READY names the comm and the connection, because an older READY may still arrive.
                let current = self.listens.iter_mut().filter_map(|(_, l)| l.current.as_mut());
                for current in current.filter(|c| c.stream == id && c.conn == conn) {
                    if current.comm.to_bits() == comm {
                        current.machine.on_ready();
                    }
                }
                Ok(())
            }
            (ControlFrame::Close { id: end, messages }, Some(_)) => {
                self.on_close(around, id, end, messages);
                Ok(())
            }
            (ControlFrame::Gone { id: end }, Some(_)) => {
                // Only the member's own peer may report GONE: a false one would free memory in use.
                if let Some(rider) = self.riders.get_mut(&end).filter(|rider| rider.stream == id) {
                    rider.gone = true;
                }
                Ok(())
            }
            (ControlFrame::Stop { id: end }, Some(_)) => {
                if self.riders.get(&end).is_some_and(|rider| rider.stream == id) {
                    self.on_link_frame(around, id, end, (ControlFrame::Stop { id: end }, None));
                }
                Ok(())
            }
            (word, Some(_)) => {
                if let Some((end, _)) = word.about_link() {
                    self.on_link_frame(around, id, end, (word, fd));
                }
                Ok(())
            }
        }
    }

    fn on_hello(
        &mut self,
        id: SlotId,
        min_version: u16,
        max_version: u16,
        process: ProcessId,
        offer: ShareOffer,
    ) -> Result<(), String> {
        let Some(stream) = self.streams.get_mut(id) else { return Ok(()) };
        let ours = stream.expected.is_some();
        // The address leads to another process, for example after a restart.
        if stream.expected.is_some_and(|expected| expected != process) {
            return Err(format!("process {process} replied, but the stream was opened to another process"));
        }
        if VERSION < min_version || VERSION > max_version {
            // Stored for the error message of the attempts on this stream.
            stream.versions = Some((min_version, max_version));
            let why = format!(
                "process {process} supports protocol versions {min_version} to {max_version}, this process {VERSION}"
            );
            return if ours { Ok(()) } else { Err(why) };
        }
        // Each stream gets a peer entry of its own, even if another stream names the same process. A stream that only claims that
        // name must not be able to mark the real process dead when it ends.
        stream.peer = Some(Arc::new(RemoteProcess::new(process, offer)));
        Ok(())
    }

    fn on_open(
        &mut self,
        around: &ControlContext<'_, H>,
        stream: SlotId,
        peer: Arc<RemoteProcess>,
        open: OpenFrame,
        fd: Option<PassedFd>,
    ) {
        let conn = open.conn;
        let turn = open.share.turn;
        let id = SlotId::from_bits(open.listen);
        // The nonce proves that the peer has the handle of this listener.
        if self.listens.get(id).is_none_or(|listen| listen.nonce != open.nonce) {
            around.status.add_tally(ProcessTally::OpensRefused, 1);
            let text =
                format!("connection from process {} refused: stale handle or wrong nonce", peer.process);
            self.warn_refusal(around, &text);
            self.send_frame(stream, &refusal_frame(&open, OpenAnswer::Refused), None);
            return;
        }
        // Before the request is classified: also a repeated OPEN proves the invitation.
        self.mark_invited(around, stream);
        let Some(listen) = self.listens.get_mut(id) else { return };
        match listen.seen.classify_open(stream, conn, turn) {
            OpenVerdict::New => {}
            OpenVerdict::Again => {
                if let Some(current) = listen.current.as_mut().filter(|c| c.conn == conn) {
                    // RESULT was lost or is late, so it is sent again.
                    current.repeat = true;
                }
                return;
            }
            OpenVerdict::Refused(given) => {
                return self.send_frame(stream, &without_comm(&open, OpenAnswer::Accepted, given), None);
            }
        }
        let carries = self.streams.get(stream).is_some_and(|one| one.standing == StreamStanding::Carries);
        // An excess OPEN is dropped, and its sender repeats it later.
        if listen.pending.len() >= if carries { OPENS_PENDING_MAX } else { OPENS_INVITED_MAX } {
            return;
        }
        listen.seen.record_open(stream, conn, turn);
        listen.pending.push_back(PendingOpen { open, fd, stream, peer });
    }

    fn on_result(&mut self, stream: SlotId, reply: ResultFrame, fd: Option<PassedFd>) {
        let conn = reply.conn;
        let Some(attempt) = self.attempts.get_mut(SlotId::from_bits(conn)) else {
            // The comm is closed, or was given up. A CLOSE that this reply crossed has reported the number of its messages.
            return self.refuse_reply(stream, &reply, u64::MAX);
        };
        // RESULT of a stream other than the attempt's may be forged, or is of an abandoned stream.
        if attempt.stream != stream {
            return;
        }
        // A reply to an earlier request; its resources were freed with that request.
        if reply.share.turn != attempt.open.share.turn {
            return;
        }
        if attempt.comm.is_none() {
            // Without a place, the attempt has not sent its changed request yet, so this reply is to an older one.
            if attempt.place.is_some() {
                attempt.reply.get_or_insert((reply, fd));
            }
        } else if attempt.machine.on_result(reply.answer) == ConnectStep::SendReady {
            // READY is repeated, because the accepting side repeats RESULT until it arrives.
            self.send_frame(stream, &ControlFrame::Ready { comm: reply.comm, conn }, None);
        }
    }

    /// Queues a frame about one link of a comm: its lane processes it when it is polled.
    fn on_link_frame(&self, around: &ControlContext<'_, H>, stream: SlotId, end: u64, word: LinkFrame) {
        let asked = || self.attempts.get(SlotId::from_bits(end)).filter(|a| a.stream == stream)?.comm;
        let id = if end >> 32 == 0 { Some(CommId::from_bits(end)) } else { asked() };
        if let Some(comm) = id.and_then(|id| around.comms.get(id))
            && comm.stream.load(Ordering::Relaxed) == stream.to_bits()
        {
            // Queued: the lane of the comm is not locked here.
            comm.news.push_frame(word);
            // Release: the driver that sees the flag also sees the frame.
            around.comms.news.store(true, Ordering::Release);
        }
    }

    /// Ids of attempts have a generation above bit 31, ids of comms are below it, so the two never collide.
    fn on_close(&mut self, around: &ControlContext<'_, H>, stream: SlotId, end: u64, messages: u64) {
        self.left.on_close(end, stream);
        let attempt = self.attempts.get_mut(SlotId::from_bits(end)).filter(|a| a.stream == stream);
        let attempt = attempt.and_then(|attempt| {
            // The attempt has no comm yet, so connect reports the close.
            attempt.closed |= attempt.comm.is_none();
            attempt.comm
        });
        let id = if end >> 32 == 0 { Some(CommId::from_bits(end)) } else { attempt };
        if let Some(comm) = id.and_then(|id| around.comms.get(id))
            && comm.stream.load(Ordering::Relaxed) == stream.to_bits()
        {
            let known =
                comm.peer_closed.load(Ordering::Relaxed).then(|| comm.peer_messages.load(Ordering::Relaxed));
            // The smaller count of two CLOSEs is the reliable one: the other was sent for an
            // unknown comm.
            comm.peer_messages.store(known.map_or(messages, |known| known.min(messages)), Ordering::Relaxed);
            comm.peer_closed.store(true, Ordering::Release);
        }
    }
}
