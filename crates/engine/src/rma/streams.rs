//! Control streams of a job: accepted and begun, with a HELLO first, and their words in and out. One stream for each pair of
//! processes. Driven by the job's calls; decides nothing about links.


use trunkline_fabric::{self as fabric, Host, Level, Oob, OobAddress, OobError, OobListener, OobStream, PassedFd};
use trunkline_proto::id::ProcessId;
use trunkline_proto::slots::{SlotId, Slots};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::dial::Word;
use trunkline_proto::wire::frame::{Frame, VERSION};
use trunkline_proto::wire::share::Offer;

use crate::in_full;

/// Streams of one process.
const STREAMS_MAX: usize = 16384;
/// Streams accepted, and words taken from a stream, in one go.
const BURST: usize = 64;
/// How long a stranger may stay silent.
const HELLO_TIME: Duration = Duration::secs(10);

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
    since: Instant,
    /// It could not take a word: what comes next on it would be misunderstood.
    broken: bool,
}

/// All of them.
pub(super) struct Streams<H: Host> {
    process: ProcessId,
    listener: <H::Oob as Oob>::Listener,
    streams: Slots<Stream<<H::Oob as Oob>::Stream>>,
    names: Vec<SlotId>,
    told: Option<String>,
}

impl<H: Host> Streams<H> {
    /// None, with a listener.
    ///
    /// # Errors
    /// When the system refuses to listen.
    pub(super) fn new(process: ProcessId, host: &H) -> Result<Self, OobError> {
        let listener = host.oob().listen()?;
        Ok(Self { process, listener, streams: Slots::new(STREAMS_MAX), names: Vec::new(), told: None })
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
        self.add(io, Some(process), host.now()).map(Some)
    }

    fn add(
        &mut self,
        mut io: <H::Oob as Oob>::Stream,
        expected: Option<ProcessId>,
        since: Instant,
    ) -> Result<SlotId, OobError> {
        let hello = Frame::Hello { min: VERSION, max: VERSION, offer: Offer::NONE, process: self.process };
        io.send(fabric::Frame { bytes: hello.to_bytes(), fd: None })?;
        let stream = Stream { io, process: None, expected, since, broken: false };
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
        self.accept(host, now);
        let mut names = std::mem::take(&mut self.names);
        names.clear();
        names.extend(self.streams.iter().map(|(id, _)| id));
        for &id in &names {
            if let Err(why) = self.take(id, now, events) {
                if !why.is_empty() {
                    host.log(Level::Warn, &format!("control stream refused: {why}"));
                }
                self.streams.remove(id);
                events.push(Event::Lost(id));
            }
        }
        self.names = names;
    }

    fn accept(&mut self, host: &H, now: Instant) {
        for _ in 0..BURST {
            let failed = match self.listener.accept() {
                Ok(None) => return,
                Ok(Some(io)) => self.add(io, None, now).err(),
                Err(error) => Some(error),
            };
            let Some(error) = failed else { continue };
            let text = format!("control stream not accepted: {}", in_full(&error));
            if self.told.as_ref() != Some(&text) {
                host.log(Level::Warn, &text);
                self.told = Some(text);
            }
            return;
        }
    }

    /// Takes what came on one stream. An error ends it; an empty one is its end.
    fn take(&mut self, id: SlotId, now: Instant, events: &mut Vec<Event>) -> Result<(), String> {
        for _ in 0..BURST {
            let Some(stream) = self.streams.get_mut(id) else { return Ok(()) };
            let frame = match stream.io.recv() {
                _ if stream.broken => return Err(String::new()),
                Ok(Some(frame)) => frame,
                Ok(None) if stream.process.is_none() && now - stream.since > HELLO_TIME => {
                    return Err("no hello".to_owned());
                }
                Ok(None) => return Ok(()),
                Err(OobError::Closed | OobError::Merged) => return Err(String::new()),
                Err(error) => return Err(in_full(&error)),
            };
            if stream.process.is_some() {
                let word = Word::from_bytes(&frame.bytes).map_err(|error| error.to_string())?;
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
