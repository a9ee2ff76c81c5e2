//! The control plane: one stream from this process to each one that it connects to, and one from each that connects to it, carry all handshakes.
//! The loss of a stream is the peer's death for the connections that it carries.
//!
//! Driven from the calls that set up and close, and now and then from lanes that wait; never from a thread of ours.

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

/// Streams of one process.
const STREAMS_MAX: usize = 16384;
/// Listeners of one process.
const LISTENS_MAX: usize = 65536;
/// Connections asked for and not closed yet.
pub(crate) const ATTEMPTS_MAX: usize = 65536;
/// Streams accepted, and frames taken from a stream, in one go.
const BURST: usize = 64;
/// How often the stream of an attempt is opened anew: a process that was stopped when it should have sent OPEN finds its stream ended by a peer that
/// is alive.
const REDIALS_MAX: u8 = 1;
/// How often attempts are looked at; a process that made no call for longer was stopped, and its attempts age no more.
const AGE_STEP: Duration = Duration::from_secs(1);

/// The process's control plane.
pub(crate) struct ControlPlane<H: Host, R: Rail> {
    process: ProcessId,
    /// What every HELLO offers of sharing.
    offer: ShareOffer,
    /// Who shares queue pairs with whom.
    pub(crate) pool: GroupPool,
    /// The lanes of the groups that comms share.
    pub(crate) riding: HashMap<GroupId, u32>,
    /// The comms that ride on them, by the names that their peers have for them.
    pub(crate) riders: HashMap<u64, GroupedComm>,
    /// Closed comms that linger.
    pub(crate) left: LingeringSet,
    listener: Option<<H::Oob as OobTransport>::Listener>,
    /// What was last said about it; the same failure comes again at each call until its cause is gone.
    listener_told: Option<String>,
    /// How often refusals are logged: any process can cause them.
    refusals: LogRate,
    streams: SlotTable<ControlStream<<H::Oob as OobTransport>::Stream>>,
    /// Those that others have opened and no connection was opened on.
    unproven: UnprovenStreams,
    /// Work for streams that carry no connection of this process.
    strangers: WorkBudget,
    /// Those of them that have shown a nonce, the oldest first, and the processes that the kernel names.
    invited: VecDeque<(SlotId, Option<u32>)>,
    /// Names of all streams, while they are looked at; kept so that looking allocates nothing.
    names: Vec<SlotId>,
    pub(crate) listens: SlotTable<CommListener>,
    pub(crate) attempts: SlotTable<ConnectAttempt<R>>,
    /// When attempts last aged.
    aged: Instant,
    /// Attempts that are given up, to be forgotten by the engine.
    pub(crate) abandoned: Vec<SlotId>,
    /// What others have left, to be cleared away when its lane is free.
    pub(crate) leftovers: VecDeque<AttemptLeftover<R>>,
}

struct ControlStream<S> {
    io: S,
    /// Connections that had carried it when it was last read.
    joins: u64,
    /// Known once its HELLO came.
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
    /// Which OPEN of that connection is answered.
    pub(crate) turn: u32,
    /// On what links the comm is.
    pub(crate) given: ShareOutcome,
    /// Its place in the pool.
    pub(crate) place: GroupPlace,
    pub(crate) stream: SlotId,
    pub(crate) peer: Arc<RemoteProcess>,
    /// Sent again when asked again.
    pub(crate) repeat: bool,
}

/// A connection this process asked for; it stays until the comm is closed, to answer repeated RESULTs.
pub(crate) struct ConnectAttempt<R: Rail> {
    pub(crate) machine: ConnectHandshake,
    pub(crate) stream: SlotId,
    pub(crate) process: ProcessId,
    /// Where that process listens.
    pub(crate) address: Vec<u8>,
    /// How often its stream was opened anew, because it ended before anything was answered.
    pub(crate) redials: u8,
    /// NICs of this end.
    pub(crate) nics: CommNics,
    /// NICs of the other end.
    pub(crate) remote: nics::NicList,
    /// What it wishes of the pool.
    pub(crate) wish: GroupPreference,
    /// Where the pool has placed it; none as long as it has not asked.
    pub(crate) place: Option<GroupPlace>,
    pub(crate) open: OpenFrame,
    pub(crate) lane: Option<(SendLane, AttemptLinks<R>)>,
    pub(crate) reply: Option<(ResultFrame, Option<PassedFd>)>,
    /// The link is connected as the reply says, and may not be up yet.
    pub(crate) joined: bool,
    pub(crate) comm: Option<CommId>,
    /// The answering side has closed its end already.
    pub(crate) closed: bool,
    /// How long this process has made calls since connect was last called for it.
    pub(crate) unasked: Duration,
}

/// What dispatching needs besides the control plane.
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

    /// The address of this process, listening from now on.
    pub(crate) fn listen_address(&mut self, host: &H) -> Result<OobAddress, OobError> {
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

    /// A stream to that process that this one has opened, at the address where that one listens: one that exists, or a new one. A stream that was
    /// accepted is never used for it, since its opener has only claimed to be a process. `None` if the peer is too busy right now.
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
        io.send(fabric::OobFrame { bytes: hello.to_bytes(), fd: None })?;
        let standing = if expected.is_some() { StreamStanding::Carries } else { StreamStanding::Unproven };
        let stream = ControlStream { io, joins: 0, peer: None, expected, versions: None, standing, cost: 1 };
        self.streams
            .insert(stream)
            .map_err(|_| EngineError::Exhausted { what: "control streams", limit: STREAMS_MAX })
    }

    /// Sends a frame; a stream that cannot take it is gone, which its receiving side notices.
    pub(crate) fn send_frame(&mut self, stream: SlotId, frame: &ControlFrame, fd: Option<PassedFd>) {
        if let Some(stream) = self.streams.get_mut(stream) {
            // The error comes again, for good, from the next receive.
            let _ = stream.io.send(fabric::OobFrame { bytes: frame.to_bytes(), fd });
        }
    }

    /// Opens the stream of an unanswered attempt anew, if it has ended. `false`: it cannot be, or not right now.
    pub(crate) fn redial_attempt(&mut self, host: &H, id: SlotId) -> bool {
        let Some(attempt) = self.attempts.get(id) else { return false };
        let process = attempt.process;
        let address = attempt.address.clone();
        let was_local = attempt.open.near;
        let spent = attempt.redials >= REDIALS_MAX;
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
            attempt.machine = ConnectHandshake::new(host.now());
        }
        true
    }

    /// Why an attempt on this stream cannot succeed any more.
    pub(crate) fn stream_fault(&self, stream: SlotId, process: ProcessId) -> Option<EngineError> {
        let Some(stream) = self.streams.get(stream) else {
            return Some(crate::CommFault::PeerDead(process).into());
        };
        stream.versions.map(|(min, max)| EngineError::Version { min, max, ours: VERSION })
    }

    /// A comm shares its queue pairs; its peer calls it by that name.
    pub(crate) fn add_grouped_comm(&mut self, name: u64, stream: SlotId) {
        self.riders.insert(name, GroupedComm { stream, gone: false });
    }

    /// Whether nothing of its peer's will land any more for the comm of that name, as the peer says.
    pub(crate) fn is_gone(&self, name: u64) -> bool {
        self.riders.get(&name).is_none_or(|rider| rider.gone)
    }

    /// The comm of that name has left its group.
    pub(crate) fn remove_grouped_comm(&mut self, name: u64) {
        self.riders.remove(&name);
    }

    pub(crate) fn stream_peer(&self, stream: SlotId) -> Option<Arc<RemoteProcess>> {
        self.streams.get(stream)?.peer.clone()
    }

    /// Accepts streams and takes frames, a bounded number.
    pub(crate) fn progress_streams(&mut self, around: &ControlContext<'_, H>) {
        let now = around.host.now();
        self.age_attempts(around, now);
        let accepted = self.accept_streams(around, now);
        let mut carried = ControlStreams::default();
        let mut names = std::mem::take(&mut self.names);
        self.list_streams_to_read(&mut names, accepted, now);
        names.iter().for_each(|&id| self.take_frames(around, id, now));
        names.clear();
        names.extend(self.streams.iter().map(|(id, _)| id));
        names.iter().for_each(|&id| self.count_connections(id, &mut carried));
        self.names = names;
        around.status.show_control(carried);
        // Last: a stream's proof may have arrived while this process made no calls.
        self.expire_streams(around, now);
    }

    /// Connect is called for this attempt: its caller has not forgotten it.
    pub(crate) fn reset_attempt_age(&mut self, id: SlotId) {
        if let Some(attempt) = self.attempts.get_mut(id) {
            attempt.unasked = Duration::default();
        }
    }

    /// Gives attempts up that nobody has asked about for long; they hold a link each.
    fn age_attempts(&mut self, around: &ControlContext<'_, H>, now: Instant) {
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
        self.abandoned.push(id);
        // Whose answer is still under way learns it from us then.
        if let Some((reply, _)) = reply {
            self.refuse_reply(stream, &reply, 0);
        }
    }

    /// Nothing comes of an accepted connection: its other end closes, and nothing of this one will land there.
    pub(crate) fn refuse_reply(&mut self, stream: SlotId, reply: &ResultFrame, messages: u64) {
        self.send_frame(stream, &ControlFrame::Close { id: reply.comm, messages }, None);
        if matches!(reply.share.given, ShareOutcome::Created { .. } | ShareOutcome::Joined { .. }) {
            self.send_frame(stream, &ControlFrame::Gone { id: reply.comm }, None);
        }
    }

    /// Ends a stream; its peer counts as dead.
    fn drop_stream(&mut self, id: SlotId) {
        self.unproven.remove(id);
        self.invited.retain(|(invited, _)| *invited != id);
        for (_, listen) in self.listens.iter_mut() {
            listen.seen.forget_stream(id);
        }
        if let Some(stream) = self.streams.remove(id)
            && let Some(peer) = stream.peer
        {
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
        let peer = self.streams.get(id).and_then(|s| s.peer.clone());
        match (frame, peer) {
            (ControlFrame::Hello { min, max, offer, process }, None) => {
                self.on_hello(id, min, max, process, offer)
            }
            (ControlFrame::Hello { .. }, Some(_)) => Ok(()),
            (_, None) => Err("the first frame is not a hello".to_owned()),
            (ControlFrame::Open(open), Some(peer)) => {
                self.on_open(around, id, peer, open, fd);
                Ok(())
            }
            (ControlFrame::Result(reply), Some(_)) => {
                self.on_result(id, reply, fd);
                Ok(())
            }
            (ControlFrame::Ready { comm, conn }, Some(_)) => {
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
        if stream.expected.is_some_and(|expected| expected != process) {
            return Err(format!("process {process} answered for another"));
        }
        if VERSION < min_version || VERSION > max_version {
            stream.versions = Some((min_version, max_version));
            let why = format!(
                "process {process} speaks versions {min_version} to {max_version}, this process {VERSION}"
            );
            return if ours { Ok(()) } else { Err(why) };
        }
        // A peer of its own, even if another stream names the same process: who only says a name must not be able to
        // die in its place.
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
        if self.listens.get(id).is_none_or(|listen| listen.nonce != open.nonce) {
            around.status.add_tally(ProcessTally::OpensRefused, 1);
            let text =
                format!("connection from process {} refused: stale handle or wrong nonce", peer.process);
            self.warn_refusal(around, &text);
            self.send_frame(stream, &refusal_frame(&open, OpenAnswer::Refused), None);
            return;
        }
        self.mark_invited(around, stream);
        let Some(listen) = self.listens.get_mut(id) else { return };
        match listen.seen.classify_open(stream, conn, turn) {
            OpenVerdict::New => {}
            OpenVerdict::Again => {
                if let Some(current) = listen.current.as_mut().filter(|c| c.conn == conn) {
                    current.repeat = true;
                }
                return;
            }
            OpenVerdict::Refused(given) => {
                return self.send_frame(stream, &without_comm(&open, OpenAnswer::Accepted, given), None);
            }
        }
        let carries = self.streams.get(stream).is_some_and(|one| one.standing == StreamStanding::Carries);
        // One too many asks again later.
        if listen.pending.len() >= if carries { OPENS_PENDING_MAX } else { OPENS_INVITED_MAX } {
            return;
        }
        listen.seen.record_open(stream, conn, turn);
        listen.pending.push_back(PendingOpen { open, fd, stream, peer });
    }

    fn on_result(&mut self, stream: SlotId, reply: ResultFrame, fd: Option<PassedFd>) {
        let conn = reply.conn;
        let Some(attempt) = self.attempts.get_mut(SlotId::from_bits(conn)) else {
            // The comm is closed, or was given up; how much it sent was told by a CLOSE that this answer crossed.
            return self.refuse_reply(stream, &reply, u64::MAX);
        };
        if attempt.stream != stream {
            return;
        }
        if reply.share.turn != attempt.open.share.turn {
            return;
        }
        if attempt.comm.is_none() {
            // Without a place it has yet to ask anew.
            if attempt.place.is_some() {
                attempt.reply.get_or_insert((reply, fd));
            }
        } else if attempt.machine.on_result(reply.answer) == ConnectStep::SendReady {
            self.send_frame(stream, &ControlFrame::Ready { comm: reply.comm, conn }, None);
        }
    }

    /// A word about one link of a comm: its lane takes it when it is polled.
    fn on_link_frame(&self, around: &ControlContext<'_, H>, stream: SlotId, end: u64, word: LinkFrame) {
        let asked = || self.attempts.get(SlotId::from_bits(end)).filter(|a| a.stream == stream)?.comm;
        let id = if end >> 32 == 0 { Some(CommId::from_bits(end)) } else { asked() };
        if let Some(comm) = id.and_then(|id| around.comms.get(id))
            && comm.stream.load(Ordering::Relaxed) == stream.to_bits()
        {
            comm.news.push_frame(word);
            around.comms.news.store(true, Ordering::Release);
        }
    }

    /// Ids of attempts have a generation above bit 31, ids of comms are below it: the two never meet.
    fn on_close(&mut self, around: &ControlContext<'_, H>, stream: SlotId, end: u64, messages: u64) {
        self.left.on_close(end, stream);
        let attempt = self.attempts.get_mut(SlotId::from_bits(end)).filter(|a| a.stream == stream);
        let attempt = attempt.and_then(|attempt| {
            attempt.closed |= attempt.comm.is_none();
            attempt.comm
        });
        let id = if end >> 32 == 0 { Some(CommId::from_bits(end)) } else { attempt };
        if let Some(comm) = id.and_then(|id| around.comms.get(id))
            && comm.stream.load(Ordering::Relaxed) == stream.to_bits()
        {
            let known =
                comm.peer_closed.load(Ordering::Relaxed).then(|| comm.peer_messages.load(Ordering::Relaxed));
            comm.peer_messages.store(known.map_or(messages, |known| known.min(messages)), Ordering::Relaxed);
            comm.peer_closed.store(true, Ordering::Release);
        }
    }
}
