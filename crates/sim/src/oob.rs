//! Simulated control streams: ordered, delayed, and closed some time after a process dies. If the network model
//! defines it, frames arrive late, twice or never. Frames beyond a stream's limit overflow.

use std::collections::{BTreeMap, VecDeque};

use trunkline_fabric::{OobAddress, OobError, OobFrame, OobListener, OobStream, OobTransport};

use crate::wire::NetworkEvent;
use crate::world::SimCore;
use crate::{SimPid, SimWorld};

/// Every stream and listener of a world.
#[derive(Default)]
pub(crate) struct StreamTable {
    ends: Vec<StreamEnd>,
    listeners: BTreeMap<u64, ListenerEntry>,
}

/// The frames that one side of a stream has not read yet.
struct StreamEnd {
    process: SimPid,
    peer: usize,
    inbox: VecDeque<(u64, OobFrame)>,
    /// When the last frame arrives.
    last: u64,
    /// From when on this side knows that the other one is closed.
    closed_at: Option<u64>,
    open: bool,
    /// Whether it has not sent anything yet.
    silent: bool,
}

struct ListenerEntry {
    process: SimPid,
    /// Streams that wait to be accepted, and their arrival times.
    queue: VecDeque<(u64, usize)>,
}

impl StreamTable {
    pub(crate) fn ends_of(&self, process: SimPid) -> usize {
        self.ends.iter().filter(|end| end.process == process && end.open).count()
    }

    pub(crate) fn listener_addresses(&self) -> Vec<OobAddress> {
        self.listeners.keys().map(|address| OobAddress(address.to_le_bytes().to_vec())).collect()
    }

    pub(crate) fn listeners_of(&self, process: SimPid) -> usize {
        self.listeners.values().filter(|listener| listener.process == process).count()
    }
}

impl SimCore {
    /// Closes every stream and listener of a dead process.
    pub(crate) fn close_streams_of(&mut self, process: SimPid) {
        for end in 0..self.streams.ends.len() {
            if self.streams.ends[end].process == process && self.streams.ends[end].open {
                let notice = self.dice.below(self.weather.death_notice + 1);
                self.close_end(end, notice);
            }
        }
        let gone: Vec<u64> = self
            .streams
            .listeners
            .iter()
            .filter(|(_, listener)| listener.process == process)
            .map(|(address, _)| *address)
            .collect();
        for address in gone {
            self.close_listener(address);
        }
    }

    fn close_end(&mut self, end: usize, after: u64) {
        let entry = &mut self.streams.ends[end];
        if !std::mem::replace(&mut entry.open, false) {
            return;
        }
        entry.inbox.clear();
        let peer = entry.peer;
        let entry = &mut self.streams.ends[peer];
        let at = (self.now + self.weather.stream_time + after).max(entry.last);
        entry.closed_at = Some(at);
        self.schedule_at(at, NetworkEvent::Wake);
    }

    fn close_listener(&mut self, address: u64) {
        let Some(listener) = self.streams.listeners.remove(&address) else { return };
        for (_, end) in listener.queue {
            self.close_end(end, 0);
        }
    }

    fn stream_delay(&mut self) -> u64 {
        let mut delay = self.weather.stream_time + self.dice.below(self.weather.stream_jitter + 1);
        if self.dice.chance(self.weather.stream_late) {
            delay += self.dice.below(1_000_000_000);
        }
        delay
    }

    fn send_frame(&mut self, end: usize, frame: OobFrame) -> Result<(), OobError> {
        if frame.bytes.len() > OobFrame::MAX {
            return Err(OobError::Malformed);
        }
        let now = self.now;
        let entry = &self.streams.ends[end];
        if !entry.open || entry.closed_at.is_some_and(|at| at <= now) {
            return Err(OobError::Closed);
        }
        let peer = entry.peer;
        if self.streams.ends[peer].inbox.len() >= self.weather.stream_depth {
            return Err(OobError::Overflow);
        }
        let twice = self.weather.stream_twice;
        let lost = self.weather.stream_lost;
        // The first frame of a stream identifies the sender; without it the stream would be useless, so it is never
        // lost.
        let first = std::mem::replace(&mut self.streams.ends[end].silent, false);
        if !first && self.dice.chance(lost) {
            self.note_trace(format_args!("a frame of {} bytes is lost", frame.bytes.len()));
            return Ok(());
        }
        if self.dice.chance(twice) {
            let copy = OobFrame { bytes: frame.bytes.clone(), fd: None };
            self.deliver_frame(peer, copy);
        }
        self.deliver_frame(peer, frame);
        Ok(())
    }

    fn deliver_frame(&mut self, end: usize, frame: OobFrame) {
        let delay = self.stream_delay();
        let entry = &mut self.streams.ends[end];
        if !entry.open {
            return;
        }
        let at = (self.now + delay).max(entry.last);
        entry.last = at;
        entry.inbox.push_back((at, frame));
        self.schedule_at(at, NetworkEvent::Wake);
    }

    fn receive_frame(&mut self, end: usize) -> Result<Option<OobFrame>, OobError> {
        let now = self.now;
        let entry = &mut self.streams.ends[end];
        if !entry.open {
            return Err(OobError::Closed);
        }
        match entry.inbox.front() {
            Some((at, _)) if *at <= now => Ok(entry.inbox.pop_front().map(|(_, frame)| frame)),
            None if entry.closed_at.is_some_and(|at| at <= now) => Err(OobError::Closed),
            _ => Ok(None),
        }
    }

    fn connect_stream(&mut self, process: SimPid, address: u64) -> Result<usize, OobError> {
        let delay = self.stream_delay();
        let at = self.now + delay;
        let ends = self.streams.ends.len();
        let listener = self.streams.listeners.get_mut(&address).ok_or(OobError::Closed)?;
        let target = listener.process;
        listener.queue.push_back((at, ends + 1));
        for (process, peer) in [(process, ends + 1), (target, ends)] {
            let inbox = VecDeque::new();
            let end = StreamEnd { process, peer, inbox, last: 0, closed_at: None, open: true, silent: true };
            self.streams.ends.push(end);
        }
        self.schedule_at(at, NetworkEvent::Wake);
        Ok(ends)
    }
}

/// Connects and listens for control streams of one process.
#[derive(Debug)]
pub struct SimOob {
    world: SimWorld,
    process: SimPid,
}

impl SimOob {
    pub(crate) fn new(world: SimWorld, process: SimPid) -> Self {
        Self { world, process }
    }

    /// Creates a transport without an engine, for rogue peers.
    #[must_use]
    pub fn for_rogue_peer(world: &SimWorld, process: SimPid) -> Self {
        Self::new(world.clone(), process)
    }
}

impl OobTransport for SimOob {
    type Listener = SimListener;
    type Stream = SimStream;

    fn listen(&self) -> Result<SimListener, OobError> {
        let mut state = self.world.lock();
        let address = state.dice.draw_u64();
        let listener = ListenerEntry { process: self.process, queue: VecDeque::new() };
        state.streams.listeners.insert(address, listener);
        drop(state);
        Ok(SimListener { world: self.world.clone(), address })
    }

    fn connect(&self, address: &OobAddress) -> Result<SimStream, OobError> {
        let mut state = self.world.lock();
        let raw = address.0.as_slice().try_into().map_err(|_| OobError::Closed)?;
        let end = state.connect_stream(self.process, u64::from_le_bytes(raw))?;
        drop(state);
        Ok(SimStream { world: self.world.clone(), end })
    }
}

/// Accepts control streams.
#[derive(Debug)]
pub struct SimListener {
    world: SimWorld,
    address: u64,
}

impl OobListener for SimListener {
    type Stream = SimStream;

    fn listen_address(&self) -> OobAddress {
        OobAddress(self.address.to_le_bytes().to_vec())
    }

    fn accept(&mut self) -> Result<Option<SimStream>, OobError> {
        let mut state = self.world.lock();
        let now = state.now;
        let Some(listener) = state.streams.listeners.get_mut(&self.address) else { return Ok(None) };
        let ready = listener.queue.iter().position(|(at, _)| *at <= now);
        let found = ready.and_then(|at| listener.queue.remove(at));
        drop(state);
        Ok(found.map(|(_, end)| SimStream { world: self.world.clone(), end }))
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.world.lock().close_listener(self.address);
    }
}

/// One side of a control stream.
#[derive(Debug)]
pub struct SimStream {
    world: SimWorld,
    end: usize,
}

impl OobStream for SimStream {
    fn send(&mut self, frame: OobFrame) -> Result<(), OobError> {
        self.world.lock().send_frame(self.end, frame)
    }

    fn recv(&mut self) -> Result<Option<OobFrame>, OobError> {
        let mut state = self.world.lock();
        state.poll_tick();
        state.receive_frame(self.end)
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.world.lock().close_end(self.end, 0);
    }
}
