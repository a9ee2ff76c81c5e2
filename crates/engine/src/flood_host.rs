//! A host for unit tests of floods: a test moves its clock, and it counts the accepts of its listener and the reads of each stream.
//! It has no network: a test writes the frames that the other end of a stream sends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use trunkline_fabric::{
    Host, LogLevel, OobAddress, OobError, OobFrame, OobListener, OobStream, OobTransport,
};
use trunkline_proto::time::{Duration, Instant};

/// The host. Log lines are dropped.
#[derive(Default)]
pub(crate) struct FloodHost {
    now: AtomicU64,
    oob: FloodOob,
}

impl FloodHost {
    /// Moves the clock.
    pub(crate) fn advance_clock(&self, by: Duration) {
        self.now.fetch_add(by.0, Ordering::Relaxed);
    }

    /// Has a stream wait at the listener, behind all others. Returns its other end.
    pub(crate) fn queue_stream(&self, stream: FloodStream) -> FloodStream {
        self.oob.listener.waiting.lock().unwrap().push_back(stream.clone());
        stream
    }

    /// How many streams the listener has returned.
    pub(crate) fn accept_count(&self) -> usize {
        self.oob.listener.accepts.load(Ordering::Relaxed)
    }

    /// The other end of the stream that was opened last.
    pub(crate) fn last_opened(&self) -> FloodStream {
        self.oob.opened.lock().unwrap().last().unwrap().clone()
    }
}

impl Host for FloodHost {
    type Oob = FloodOob;

    fn now(&self) -> Instant {
        Instant(self.now.load(Ordering::Relaxed))
    }

    fn random_bytes(&self) -> [u8; 16] {
        [5; 16]
    }

    fn oob(&self) -> &FloodOob {
        &self.oob
    }

    fn log(&self, _: LogLevel, _: &str) {}
}

/// Its control streams.
#[derive(Default)]
pub(crate) struct FloodOob {
    listener: FloodListener,
    opened: Mutex<Vec<FloodStream>>,
}

impl OobTransport for FloodOob {
    type Listener = FloodListener;
    type Stream = FloodStream;

    fn listen(&self) -> Result<FloodListener, OobError> {
        Ok(self.listener.clone())
    }

    fn connect(&self, _: &OobAddress) -> Result<FloodStream, OobError> {
        let stream = FloodStream::default();
        self.opened.lock().unwrap().push(stream.clone());
        Ok(stream)
    }
}

/// Its one listener.
#[derive(Clone, Default)]
pub(crate) struct FloodListener {
    waiting: Arc<Mutex<VecDeque<FloodStream>>>,
    accepts: Arc<AtomicUsize>,
}

impl OobListener for FloodListener {
    type Stream = FloodStream;

    fn listen_address(&self) -> OobAddress {
        OobAddress(vec![1])
    }

    fn accept(&mut self) -> Result<Option<FloodStream>, OobError> {
        let stream = self.waiting.lock().unwrap().pop_front();
        self.accepts.fetch_add(usize::from(stream.is_some()), Ordering::Relaxed);
        Ok(stream)
    }
}

/// Frames that the other end of a stream has sent, and the reads of them.
#[derive(Default)]
struct FrameQueue {
    frames: VecDeque<Vec<u8>>,
    /// Sent again and again after those.
    repeated: Option<Vec<u8>>,
    reads: usize,
}

/// A stream. Its clones are one stream: a test holds the other end.
#[derive(Clone, Default)]
pub(crate) struct FloodStream(Arc<Mutex<FrameQueue>>);

impl FloodStream {
    /// One whose other end has sent these frames.
    pub(crate) fn with_frames(frames: &[Vec<u8>]) -> Self {
        let frames = frames.iter().cloned().collect();
        Self(Arc::new(Mutex::new(FrameQueue { frames, ..FrameQueue::default() })))
    }

    /// Has the other end send this frame without end, after all others.
    pub(crate) fn repeat_frame(self, frame: Vec<u8>) -> Self {
        self.0.lock().unwrap().repeated = Some(frame);
        self
    }

    /// Has the other end send one more frame.
    pub(crate) fn push_frame(&self, frame: Vec<u8>) {
        self.0.lock().unwrap().frames.push_back(frame);
    }

    /// How often it was read, with a frame or without.
    pub(crate) fn read_count(&self) -> usize {
        self.0.lock().unwrap().reads
    }
}

impl OobStream for FloodStream {
    fn send(&mut self, _: OobFrame) -> Result<(), OobError> {
        Ok(())
    }

    fn recv(&mut self) -> Result<Option<OobFrame>, OobError> {
        let mut queue = self.0.lock().unwrap();
        queue.reads += 1;
        let frame = queue.frames.pop_front().or_else(|| queue.repeated.clone());
        Ok(frame.map(|bytes| OobFrame { bytes, fd: None }))
    }
}
