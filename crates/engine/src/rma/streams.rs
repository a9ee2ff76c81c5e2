//! Control streams of a job: accepts them or connects them, each with a HELLO first, and sends and receives messages. Each member
//! opens one stream to each member that it contacts. Driven by the job's calls; decides nothing about links.

use trunkline_fabric::{
    self as fabric, Host, LogLevel, OobAddress, OobError, OobListener, OobStream, OobTransport, PassedFd,
};
use trunkline_proto::control::{UnprovenStreams, WorkBudget};
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::UNPROVEN_TIME;
use trunkline_proto::log_rate::LogRate;
use trunkline_proto::slots::{SlotId, SlotTable};
use trunkline_proto::time::Instant;
use trunkline_proto::wire::dial::DialMessage;
use trunkline_proto::wire::frame::{ControlFrame, VERSION};
use trunkline_proto::wire::share::ShareOffer;

use crate::in_full;

/// The maximum number of streams of a process, bounded because each holds a descriptor.
const STREAMS_MAX: usize = 16384;
/// Streams accepted, and messages read from a stream, per call, so that other streams and links get their turn in
/// between.
const BURST: usize = 64;

/// An event of the streams.
#[derive(Debug)]
pub(super) enum StreamEvent {
    /// A message, with the descriptor that was passed with it.
    Word(SlotId, DialMessage, Option<PassedFd>),
    /// The stream has ended, and with it the process at its other end.
    Lost(SlotId),
}

struct MemberStream<S> {
    io: S,
    /// Known once its HELLO has arrived.
    process: Option<ProcessId>,
    /// The process that this process dialled; `None` if the other end opened the stream.
    expected: Option<ProcessId>,
    /// A message could not be sent. The stream ends, because later messages on it would be misunderstood.
    broken: bool,
    /// Another process has opened it, and it has not shown which member it is of.
    is_unproven: bool,
    /// Units of work that it has cost while unproven.
    cost: u32,
    /// Budget of DIAL messages of its other end.
    dials: WorkBudget,
}

/// All control streams of a process.
pub(super) struct MemberStreams<H: Host> {
    process: ProcessId,
    listener: <H::Oob as OobTransport>::Listener,
    streams: SlotTable<MemberStream<<H::Oob as OobTransport>::Stream>>,
    /// Streams that other processes have opened and that have not shown which member they are of.
    unproven: UnprovenStreams,
    /// Work budget for those streams.
    strangers: WorkBudget,
    /// When streams were read last.
    read_at: Instant,
    names: Vec<SlotId>,
    /// How often refusals are logged, limited because any process can cause them.
    refusals: LogRate,
    told: Option<String>,
}

impl<H: Host> MemberStreams<H> {
    /// Creates a listener, and no stream.
    ///
    /// # Errors
    /// When the system refuses to listen.
    pub(super) fn new(process: ProcessId, host: &H) -> Result<Self, OobError> {
        Ok(Self {
            process,
            listener: host.oob().listen()?,
            streams: SlotTable::new(STREAMS_MAX),
            unproven: UnprovenStreams::new(),
            strangers: WorkBudget::for_strangers(),
            read_at: Instant::default(),
            names: Vec::new(),
            refusals: LogRate::new(Instant::default()),
            told: None,
        })
    }

    /// Returns the address at which other members reach this process.
    pub(super) fn listen_address(&self) -> OobAddress {
        self.listener.listen_address()
    }

    /// Returns the number of streams.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Returns the stream to a process, and connects it if there is none; `None` if the process is too busy to accept it now.
    ///
    /// # Errors
    /// No process listens there, or there are too many streams.
    pub(super) fn stream_to(
        &mut self,
        host: &H,
        process: ProcessId,
        address: &[u8],
    ) -> Result<Option<SlotId>, OobError> {
        let leads = |stream: &MemberStream<_>| stream.expected.or(stream.process) == Some(process);
        // A stream that the other end opened is not used, because its HELLO is only a claim, but an address of
        // a card leads to the member.
        let begun = |stream: &MemberStream<_>| stream.expected.is_some() && leads(stream);
        if let Some((id, _)) = self.streams.iter().find(|(_, stream)| begun(stream)) {
            return Ok(Some(id));
        }
        // The listen queue of the member is full; the caller tries again later.
        let io = match host.oob().connect(&OobAddress(address.to_vec())) {
            Err(OobError::Overflow) => return Ok(None),
            made => made?,
        };
        self.add_stream(io, Some(process)).map(Some)
    }

    /// Marks that a stream has shown that a member is at its other end, so that the stream has no time limit any more.
    pub(super) fn mark_proven(&mut self, stream: SlotId) {
        if let Some(one) = self.streams.get_mut(stream)
            && std::mem::take(&mut one.is_unproven)
        {
            self.unproven.remove(stream);
            // Refunded, because the work was for a member of the job.
            self.strangers.refund_units(one.cost);
        }
    }

    /// Returns the process that the HELLO of a stream names.
    pub(super) fn peer_process(&self, stream: SlotId) -> Option<ProcessId> {
        self.streams.get(stream)?.process
    }

    /// Returns whether this process opened a stream, at the address of a member: the replies of that member arrive on it.
    pub(super) fn is_opened(&self, stream: SlotId) -> bool {
        self.streams.get(stream).is_some_and(|stream| stream.expected.is_some())
    }

    /// Ends a stream whose other end violates the protocol.
    pub(super) fn refuse_stream(&mut self, host: &H, id: SlotId, why: &str, events: &mut Vec<StreamEvent>) {
        if self.streams.get(id).is_some() {
            self.warn_refusal(host, &format!("control stream refused: {why}"));
            self.remove_stream(id, events);
        }
    }

    fn remove_stream(&mut self, id: SlotId, events: &mut Vec<StreamEvent>) {
        self.unproven.remove(id);
        if self.streams.remove(id).is_some() {
            // Reported once, because the table contained the stream.
            events.push(StreamEvent::Lost(id));
        }
    }

    /// Logs a line that any process can cause, unless there were too many of late.
    pub(super) fn warn_refusal(&mut self, host: &H, text: &str) {
        match self.refusals.admit_line(host.now()) {
            None => {}
            Some(0) => host.log(LogLevel::Warn, text),
            Some(left_out) => {
                host.log(LogLevel::Warn, &format!("{text} ({left_out} earlier refusals were not logged)"));
            }
        }
    }

    fn add_stream(
        &mut self,
        mut io: <H::Oob as OobTransport>::Stream,
        expected: Option<ProcessId>,
    ) -> Result<SlotId, OobError> {
        // HELLO is the first frame on each stream.
        let hello = ControlFrame::Hello {
            min: VERSION,
            max: VERSION,
            offer: ShareOffer::NONE,
            process: self.process,
        };
        io.send(fabric::OobFrame { bytes: hello.to_bytes(), fd: None })?;
        let is_unproven = expected.is_none();
        let dials = WorkBudget::for_dials();
        let stream = MemberStream { io, process: None, expected, broken: false, is_unproven, cost: 1, dials };
        self.streams.insert(stream).map_err(|_| OobError::Overflow)
    }

    /// Sends a message. A stream that cannot send it ends, which the next poll reports.
    pub(super) fn send_message(&mut self, stream: SlotId, word: &DialMessage, fd: Option<PassedFd>) {
        if let Some(stream) = self.streams.get_mut(stream) {
            // An error is reported by the next poll, where the stream can be removed.
            stream.broken |= stream.io.send(fabric::OobFrame { bytes: word.to_bytes(), fd }).is_err();
        }
    }

    /// Accepts streams and reads messages, a bounded number of each.
    pub(super) fn poll_streams(&mut self, host: &H, events: &mut Vec<StreamEvent>) {
        let now = host.now();
        let accepted = self.accept_streams(host, now, events);
        let mut names = std::mem::take(&mut self.names);
        names.clear();
        // Proven streams are always read; the others share a budget.
        names.extend(self.streams.iter().filter(|(_, stream)| !stream.is_unproven).map(|(id, _)| id));
        names.extend(self.unproven.expired_streams(now));
        // An invited peer has often sent its proof already.
        names.extend(self.unproven.newest_streams(accepted));
        names.extend(self.unproven.next_reads());
        // Stored for `expire_unproven`, which runs after the events of this poll.
        self.read_at = now;
        for &id in &names {
            match self.receive_messages(id, now, events) {
                Ok(()) => {}
                Err(why) if why.is_empty() => self.remove_stream(id, events),
                Err(why) => self.refuse_stream(host, id, &why, events),
            }
        }
        self.names = names;
    }

    /// Ends the streams that have not shown in time which member they are of. Called after [`MemberStreams::poll_streams`] and its events:
    /// a stream's proof may have arrived while this process made no calls.
    pub(super) fn expire_unproven(&mut self, host: &H, events: &mut Vec<StreamEvent>) {
        while let Some(id) = self.unproven.take_expired(self.read_at) {
            let seconds = UNPROVEN_TIME.0 / 1_000_000_000;
            let why = format!("no member of this job proved to be at its other end within {seconds} s");
            self.refuse_stream(host, id, &why, events);
        }
    }

    /// Accepts pending streams, a bounded number per call and per second: further ones wait in the kernel's queue, which refuses
    /// the excess. Returns how many were accepted.
    fn accept_streams(&mut self, host: &H, now: Instant, events: &mut Vec<StreamEvent>) -> usize {
        let mut accepted = 0;
        for _ in 0..BURST {
            // The budget bounds the work that unknown processes can cause.
            if !self.strangers.check_room(now) {
                break;
            }
            let error = match self.listener.accept() {
                Ok(None) => break,
                Ok(Some(io)) => match self.add_stream(io, None) {
                    Ok(id) => {
                        self.strangers.spend_units(1);
                        accepted += 1;
                        if let Some(oldest) = self.unproven.add_stream(id, now) {
                            let why = "too many streams without a proof are open, and this is the oldest";
                            self.refuse_stream(host, oldest, why, events);
                        }
                        continue;
                    }
                    Err(error) => error,
                },
                Err(error @ OobError::OtherUser { .. }) => {
                    // A refused connection costs work too.
                    self.strangers.spend_units(1);
                    self.warn_refusal(host, &format!("control stream refused: {}", in_full(&error)));
                    continue;
                }
                Err(error) => error,
            };
            let text = format!("cannot accept a control stream: {}", in_full(&error));
            // The same failure recurs at each call, and is logged once.
            if self.told.as_ref() != Some(&text) {
                host.log(LogLevel::Warn, &text);
                self.told = Some(text);
            }
            break;
        }
        accepted
    }

    /// Returns whether a frame may be read from a stream now: unproven streams, and streams with very many DIAL messages, have to
    /// wait for their budget.
    fn may_read(&mut self, id: SlotId, now: Instant) -> bool {
        let Some(stream) = self.streams.get_mut(id) else { return false };
        let is_due =
            if stream.is_unproven { self.strangers.check_room(now) } else { stream.dials.check_room(now) };
        // A broken stream is read in any case, because only a read ends it.
        is_due || stream.broken
    }

    /// Reads the messages of one stream. An error ends it; an empty error is the regular end.
    fn receive_messages(
        &mut self,
        id: SlotId,
        now: Instant,
        events: &mut Vec<StreamEvent>,
    ) -> Result<(), String> {
        for _ in 0..BURST {
            if !self.may_read(id, now) {
                return Ok(());
            }
            let Some(stream) = self.streams.get_mut(id) else { return Ok(()) };
            let frame = match stream.io.recv() {
                // A stream that lost a message must not deliver later ones.
                _ if stream.broken => return Err(String::new()),
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(OobError::Merged) => {
                    // The connection has joined a stream whose name only its peer knows, so it is not charged as an unproven one.
                    self.strangers.refund_units(1);
                    return Err(String::new());
                }
                Err(OobError::Closed) => return Err(String::new()),
                Err(error) => return Err(in_full(&error)),
            };
            if stream.is_unproven {
                stream.cost = stream.cost.saturating_add(1);
                self.strangers.spend_units(1);
            }
            if stream.process.is_some() {
                let word = DialMessage::from_bytes(&frame.bytes).map_err(|error| error.to_string())?;
                // Each DIAL makes a link, so members have a budget for them too.
                if matches!(word, DialMessage::Dial { .. }) {
                    stream.dials.spend_units(1);
                }
                events.push(StreamEvent::Word(id, word, frame.fd));
                continue;
            }
            match ControlFrame::from_bytes(&frame.bytes).map_err(|error| error.to_string())? {
                ControlFrame::Hello { min, max, .. } if VERSION < min || VERSION > max => {
                    return Err(format!(
                        "it supports protocol versions {min} to {max}, this process {VERSION}"
                    ));
                }
                ControlFrame::Hello { process, .. }
                    if stream.expected.is_some_and(|wanted| wanted != process) =>
                {
                    return Err(format!(
                        "process {process} replied, but the stream was opened to another process"
                    ));
                }
                ControlFrame::Hello { process, .. } => stream.process = Some(process),
                _ => return Err("the first frame is not HELLO".to_owned()),
            }
        }
        Ok(())
    }
}
