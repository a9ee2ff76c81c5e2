//! Control streams of a job: accepted and begun, with a HELLO first, and their words in and out. One stream from
//! each member to each that it asks. Driven by the job's calls; decides nothing about links.

use trunkline_fabric::{
    self as fabric, Host, Level, Oob, OobAddress, OobError, OobListener, OobStream, PassedFd,
};
use trunkline_proto::control::{UnprovenStreams, WorkBudget};
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::UNPROVEN_TIME;
use trunkline_proto::log_rate::LogRate;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::slots::{SlotId, Slots};
use trunkline_proto::time::Instant;
use trunkline_proto::wire::dial::Word;
use trunkline_proto::wire::frame::{Frame, VERSION};
use trunkline_proto::wire::share::Offer;

use crate::in_full;

/// Streams of one process.
const STREAMS_MAX: usize = 16384;
/// Streams accepted, and words taken from a stream, in one go.
const BURST: usize = 64;

/// What has come.
#[derive(Debug)]
pub(super) enum Event {
    /// A word, with the descriptor that came with it.
    Word(SlotId, Word, Option<PassedFd>),
    /// The stream has ended, and with it the process at its other end.
    Lost(SlotId),
}

struct Stream<S> {
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
pub(super) struct Streams<H: Host> {
    process: ProcessId,
    listener: <H::Oob as Oob>::Listener,
    streams: Slots<Stream<<H::Oob as Oob>::Stream>>,
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
    mutant: Mutant,
}

impl<H: Host> Streams<H> {
    /// None, with a listener.
    ///
    /// # Errors
    /// When the system refuses to listen.
    pub(super) fn new(process: ProcessId, host: &H, mutant: Mutant) -> Result<Self, OobError> {
        Ok(Self {
            process,
            listener: host.oob().listen()?,
            streams: Slots::new(STREAMS_MAX),
            unproven: UnprovenStreams::new(),
            strangers: WorkBudget::for_strangers(),
            read_at: Instant::default(),
            names: Vec::new(),
            refusals: LogRate::new(Instant::default()),
            told: None,
            mutant,
        })
    }

    /// Where others find this process.
    pub(super) fn address(&self) -> OobAddress {
        self.listener.address()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// The stream to that process, begun if there is none; `None` if it is too busy to be called right now.
    ///
    /// # Errors
    /// Nobody listens there, or there are too many streams.
    pub(super) fn to(
        &mut self,
        host: &H,
        process: ProcessId,
        address: &[u8],
    ) -> Result<Option<SlotId>, OobError> {
        let leads = |stream: &Stream<_>| stream.expected.or(stream.process) == Some(process);
        // Whoever called us has only said who it is.
        let begun = |stream: &Stream<_>| stream.expected.is_some() && leads(stream);
        if let Some((id, _)) = self.streams.iter().find(|(_, stream)| begun(stream)) {
            return Ok(Some(id));
        }
        let io = match host.oob().connect(&OobAddress(address.to_vec())) {
            Err(OobError::Overflow) => return Ok(None),
            made => made?,
        };
        self.add(io, Some(process)).map(Some)
    }

    /// A stream has shown that a member is at its other end: it stays as long as that.
    pub(super) fn prove(&mut self, stream: SlotId) {
        if let Some(one) = self.streams.get_mut(stream)
            && std::mem::take(&mut one.is_unproven)
        {
            self.unproven.remove(stream);
            self.strangers.refund(one.cost);
        }
    }

    /// The process that a stream's other end says it is.
    pub(super) fn process(&self, stream: SlotId) -> Option<ProcessId> {
        self.streams.get(stream)?.process
    }

    /// Whether this process opened a stream, at the address of a member: requests to that member are answered there.
    pub(super) fn is_opened(&self, stream: SlotId) -> bool {
        self.streams.get(stream).is_some_and(|stream| stream.expected.is_some())
    }

    /// Ends a stream whose other end does not keep to the protocol.
    pub(super) fn refuse(&mut self, host: &H, id: SlotId, why: &str, events: &mut Vec<Event>) {
        if self.streams.get(id).is_some() {
            self.warn_refusal(host, &format!("control stream refused: {why}"));
            self.end(id, events);
        }
    }

    fn end(&mut self, id: SlotId, events: &mut Vec<Event>) {
        self.unproven.remove(id);
        if self.streams.remove(id).is_some() {
            events.push(Event::Lost(id));
        }
    }

    /// Logs a line that any process can cause, unless there were too many of late.
    pub(super) fn warn_refusal(&mut self, host: &H, text: &str) {
        let admitted = self.refusals.admit(host.now());
        match admitted.or(self.mutant.is("job-logs-every-refusal").then_some(0)) {
            None => {}
            Some(0) => host.log(Level::Warn, text),
            Some(left_out) => {
                host.log(Level::Warn, &format!("{text} ({left_out} earlier refusals were not logged)"));
            }
        }
    }

    fn add(
        &mut self,
        mut io: <H::Oob as Oob>::Stream,
        expected: Option<ProcessId>,
    ) -> Result<SlotId, OobError> {
        let hello = Frame::Hello { min: VERSION, max: VERSION, offer: Offer::NONE, process: self.process };
        io.send(fabric::Frame { bytes: hello.to_bytes(), fd: None })?;
        let is_unproven = expected.is_none();
        let dials = WorkBudget::for_dials();
        let stream = Stream { io, process: None, expected, broken: false, is_unproven, cost: 1, dials };
        self.streams.insert(stream).map_err(|_| OobError::Overflow)
    }

    /// Says a word. A stream that cannot take it ends, which is told when it is read next.
    pub(super) fn say(&mut self, stream: SlotId, word: &Word, fd: Option<PassedFd>) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.broken |= stream.io.send(fabric::Frame { bytes: word.to_bytes(), fd }).is_err();
        }
    }

    /// Accepts streams and takes what came, a bounded number.
    pub(super) fn progress(&mut self, host: &H, events: &mut Vec<Event>) {
        let now = host.now();
        let accepted = self.accept(host, now, events);
        let mut names = std::mem::take(&mut self.names);
        names.clear();
        names.extend(self.streams.iter().filter(|(_, stream)| !stream.is_unproven).map(|(id, _)| id));
        names.extend(self.unproven.expired(now));
        // An invited peer has often sent its proof already.
        names.extend(self.unproven.newest(accepted));
        names.extend(self.unproven.take_turn());
        self.read_at = now;
        for &id in &names {
            match self.take(id, now, events) {
                Ok(()) => {}
                Err(why) if why.is_empty() => self.end(id, events),
                Err(why) => self.refuse(host, id, &why, events),
            }
        }
        self.names = names;
    }

    /// Ends the streams that have not shown in time which member they are of. Called after [`Streams::progress`] and its events:
    /// a stream's proof may have arrived while this process made no calls.
    pub(super) fn expire(&mut self, host: &H, events: &mut Vec<Event>) {
        while let Some(id) = self.unproven.take_expired(self.read_at) {
            if !self.mutant.is("job-keeps-strangers") {
                let seconds = UNPROVEN_TIME.0 / 1_000_000_000;
                let why = format!("no member of this job proved to be at its other end within {seconds} s");
                self.refuse(host, id, &why, events);
            }
        }
    }

    /// Accepts the streams that wait, a bounded number at once and per second: the others wait in the kernel's queue, which refuses more. Returns
    /// how many were accepted.
    fn accept(&mut self, host: &H, now: Instant, events: &mut Vec<Event>) -> usize {
        let mut accepted = 0;
        for _ in 0..BURST {
            if !self.strangers.has_room(now) && !self.mutant.is("job-works-for-strangers") {
                break;
            }
            let error = match self.listener.accept() {
                Ok(None) => break,
                Ok(Some(io)) => match self.add(io, None) {
                    Ok(id) => {
                        self.strangers.spend(1);
                        accepted += 1;
                        let oldest = self.unproven.add(id, now);
                        if let Some(oldest) = oldest.filter(|_| !self.mutant.is("job-accepts-any-number")) {
                            let why = "more strangers have connected since than may wait";
                            self.refuse(host, oldest, why, events);
                        }
                        continue;
                    }
                    Err(error) => error,
                },
                Err(error @ OobError::OtherUser { .. }) => {
                    self.strangers.spend(1);
                    self.warn_refusal(host, &format!("control stream refused: {}", in_full(&error)));
                    continue;
                }
                Err(error) => error,
            };
            let text = format!("control stream not accepted: {}", in_full(&error));
            if self.told.as_ref() != Some(&text) {
                host.log(Level::Warn, &text);
                self.told = Some(text);
            }
            break;
        }
        accepted
    }

    /// Whether a frame may be read from a stream now: streams that have shown nothing, and those that ask for very many links, wait.
    fn may_read(&mut self, id: SlotId, now: Instant) -> bool {
        let Some(stream) = self.streams.get_mut(id) else { return false };
        let is_due = if stream.is_unproven {
            self.strangers.has_room(now) || self.mutant.is("job-works-for-strangers")
        } else {
            stream.dials.has_room(now)
        };
        is_due || stream.broken
    }

    /// Takes what came on one stream. An error ends it; an empty one is its end.
    fn take(&mut self, id: SlotId, now: Instant, events: &mut Vec<Event>) -> Result<(), String> {
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
                    self.strangers.refund(1);
                    return Err(String::new());
                }
                Err(OobError::Closed) => return Err(String::new()),
                Err(error) => return Err(in_full(&error)),
            };
            if stream.is_unproven {
                stream.cost = stream.cost.saturating_add(1);
                self.strangers.spend(1);
            }
            if stream.process.is_some() {
                let word = Word::from_bytes(&frame.bytes).map_err(|error| error.to_string())?;
                if matches!(word, Word::Dial { .. }) {
                    stream.dials.spend(1);
                }
                events.push(Event::Word(id, word, frame.fd));
                continue;
            }
            match Frame::from_bytes(&frame.bytes).map_err(|error| error.to_string())? {
                Frame::Hello { min, max, .. } if VERSION < min || VERSION > max => {
                    return Err(format!("it speaks versions {min} to {max}, this process {VERSION}"));
                }
                Frame::Hello { process, .. } if stream.expected.is_some_and(|wanted| wanted != process) => {
                    return Err(format!("process {process} answered for another"));
                }
                Frame::Hello { process, .. } => stream.process = Some(process),
                _ => return Err("the first frame is not a hello".to_owned()),
            }
        }
        Ok(())
    }
}
