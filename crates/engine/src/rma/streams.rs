//! Control streams of a job: accepted and begun, with a HELLO first, and their words in and out. One stream from
//! each member to each that it asks. Driven by the job's calls; decides nothing about links.

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

/// Streams of one process.
const STREAMS_MAX: usize = 16384;
/// Streams accepted, and words taken from a stream, in one go.
const BURST: usize = 64;

/// What has come.
#[derive(Debug)]
pub(super) enum StreamEvent {
    /// A word, with the descriptor that came with it.
    Word(SlotId, DialMessage, Option<PassedFd>),
    /// The stream has ended, and with it the process at its other end.
    Lost(SlotId),
}

struct MemberStream<S> {
    io: S,
    /// Known once its HELLO came.
    process: Option<ProcessId>,
    /// Whom we dialled.
    expected: Option<ProcessId>,
    /// It could not take a word: what comes next on it would be misunderstood.
    broken: bool,
    /// Another process has opened it, and it has not shown which member it is of.
    is_unproven: bool,
    /// Units of work that it has cost until then.
    cost: u32,
    /// Links that its other end may ask for.
    dials: WorkBudget,
}

/// All of them.
pub(super) struct MemberStreams<H: Host> {
    process: ProcessId,
    listener: <H::Oob as OobTransport>::Listener,
    streams: SlotTable<MemberStream<<H::Oob as OobTransport>::Stream>>,
    /// Those that others have opened and that have not shown which member they are of.
    unproven: UnprovenStreams,
    /// Work for those.
    strangers: WorkBudget,
    /// When streams were read last.
    read_at: Instant,
    names: Vec<SlotId>,
    /// How often refusals are logged: any process can cause them.
    refusals: LogRate,
    told: Option<String>,
}

impl<H: Host> MemberStreams<H> {
    /// None, with a listener.
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

    /// Where others find this process.
    pub(super) fn listen_address(&self) -> OobAddress {
        self.listener.listen_address()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// The stream to that process, begun if there is none; `None` if it is too busy to be called right now.
    ///
    /// # Errors
    /// Nobody listens there, or there are too many streams.
    pub(super) fn stream_to(
        &mut self,
        host: &H,
        process: ProcessId,
        address: &[u8],
    ) -> Result<Option<SlotId>, OobError> {
        let leads = |stream: &MemberStream<_>| stream.expected.or(stream.process) == Some(process);
        // Whoever called us has only said who it is.
        let begun = |stream: &MemberStream<_>| stream.expected.is_some() && leads(stream);
        if let Some((id, _)) = self.streams.iter().find(|(_, stream)| begun(stream)) {
            return Ok(Some(id));
        }
        let io = match host.oob().connect(&OobAddress(address.to_vec())) {
            Err(OobError::Overflow) => return Ok(None),
            made => made?,
        };
        self.add_stream(io, Some(process)).map(Some)
    }

    /// A stream has shown that a member is at its other end: it stays as long as that.
    pub(super) fn mark_proven(&mut self, stream: SlotId) {
        if let Some(one) = self.streams.get_mut(stream)
            && std::mem::take(&mut one.is_unproven)
        {
            self.unproven.remove(stream);
            self.strangers.refund_units(one.cost);
        }
    }

    /// The process that a stream's other end says it is.
    pub(super) fn peer_process(&self, stream: SlotId) -> Option<ProcessId> {
        self.streams.get(stream)?.process
    }

    /// Whether this process opened a stream, at the address of a member: requests to that member are answered there.
    pub(super) fn is_opened(&self, stream: SlotId) -> bool {
        self.streams.get(stream).is_some_and(|stream| stream.expected.is_some())
    }

    /// Ends a stream whose other end does not keep to the protocol.
    pub(super) fn refuse_stream(&mut self, host: &H, id: SlotId, why: &str, events: &mut Vec<StreamEvent>) {
        if self.streams.get(id).is_some() {
            self.warn_refusal(host, &format!("control stream refused: {why}"));
            self.remove_stream(id, events);
        }
    }

    fn remove_stream(&mut self, id: SlotId, events: &mut Vec<StreamEvent>) {
        self.unproven.remove(id);
        if self.streams.remove(id).is_some() {
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

    /// Says a word. A stream that cannot take it ends, which is told when it is read next.
    pub(super) fn send_message(&mut self, stream: SlotId, word: &DialMessage, fd: Option<PassedFd>) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.broken |= stream.io.send(fabric::OobFrame { bytes: word.to_bytes(), fd }).is_err();
        }
    }

    /// Accepts streams and takes what came, a bounded number.
    pub(super) fn poll_streams(&mut self, host: &H, events: &mut Vec<StreamEvent>) {
        let now = host.now();
        let accepted = self.accept_streams(host, now, events);
        let mut names = std::mem::take(&mut self.names);
        names.clear();
        names.extend(self.streams.iter().filter(|(_, stream)| !stream.is_unproven).map(|(id, _)| id));
        names.extend(self.unproven.expired_streams(now));
        // An invited peer has often sent its proof already.
        names.extend(self.unproven.newest_streams(accepted));
        names.extend(self.unproven.next_reads());
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

    /// Accepts the streams that wait, a bounded number at once and per second: the others wait in the kernel's queue, which refuses more. Returns
    /// how many were accepted.
    fn accept_streams(&mut self, host: &H, now: Instant, events: &mut Vec<StreamEvent>) -> usize {
        let mut accepted = 0;
        for _ in 0..BURST {
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
                            let why = "more strangers have connected since than may wait";
                            self.refuse_stream(host, oldest, why, events);
                        }
                        continue;
                    }
                    Err(error) => error,
                },
                Err(error @ OobError::OtherUser { .. }) => {
                    self.strangers.spend_units(1);
                    self.warn_refusal(host, &format!("control stream refused: {}", in_full(&error)));
                    continue;
                }
                Err(error) => error,
            };
            let text = format!("control stream not accepted: {}", in_full(&error));
            if self.told.as_ref() != Some(&text) {
                host.log(LogLevel::Warn, &text);
                self.told = Some(text);
            }
            break;
        }
        accepted
    }

    /// Whether a frame may be read from a stream now: streams that have shown nothing, and those that ask for very many links, wait.
    fn may_read(&mut self, id: SlotId, now: Instant) -> bool {
        let Some(stream) = self.streams.get_mut(id) else { return false };
        let is_due =
            if stream.is_unproven { self.strangers.check_room(now) } else { stream.dials.check_room(now) };
        is_due || stream.broken
    }

    /// Takes what came on one stream. An error ends it; an empty one is its end.
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
                _ if stream.broken => return Err(String::new()),
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(OobError::Merged) => {
                    // It carries on a stream of a peer that knows its name.
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
                if matches!(word, DialMessage::Dial { .. }) {
                    stream.dials.spend_units(1);
                }
                events.push(StreamEvent::Word(id, word, frame.fd));
                continue;
            }
            match ControlFrame::from_bytes(&frame.bytes).map_err(|error| error.to_string())? {
                ControlFrame::Hello { min, max, .. } if VERSION < min || VERSION > max => {
                    return Err(format!("it speaks versions {min} to {max}, this process {VERSION}"));
                }
                ControlFrame::Hello { process, .. }
                    if stream.expected.is_some_and(|wanted| wanted != process) =>
                {
                    return Err(format!("process {process} answered for another"));
                }
                ControlFrame::Hello { process, .. } => stream.process = Some(process),
                _ => return Err("the first frame is not a hello".to_owned()),
            }
        }
        Ok(())
    }
}
