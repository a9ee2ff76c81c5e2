//! One direction of a relayed cable: decides which packets pass, and when. Pure: time is an argument.
//!
//! Called by the relay, and by tests with a clock of their own. It never reorders packets, and bytes never pass faster
//! than its rate. If each stream has its own rate, packets keep their order within a stream only.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::cable::TrafficCount;

/// Most bytes in flight in one direction.
const UNDER_WAY_MAX: usize = 64 << 20;

/// How a direction of a cable treats packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineShape {
    /// Time from one end to the other, after the packet has left.
    pub delay: Duration,
    /// Largest additional delay of a packet, drawn evenly. Packets keep their order nevertheless.
    pub jitter: Duration,
    /// Share of packets that are lost, 0.0 to 1.0.
    pub loss: f64,
    /// Bytes per second that leave, including packet headers; `None`: no limit.
    pub rate: Option<u64>,
    /// Whether the rate is that of each TCP stream, as in some clouds, and not of all streams together.
    pub each: bool,
    /// Bytes that may wait to leave, if there is a rate; further packets are dropped.
    pub queue: usize,
}

impl LineShape {
    /// All packets pass at once.
    pub const PLAIN: Self = Self {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        loss: 0.0,
        rate: None,
        each: false,
        queue: 256 << 10,
    };
}

/// The outcomes of the packets of one direction so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineTally {
    /// Packets that arrived at the other end.
    pub passed: TrafficCount,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
    /// Packets that were sent into a cut cable, or were in flight when it was cut.
    pub cut: u64,
    /// Packets that the other end's device did not accept.
    pub refused: u64,
}

#[derive(Debug)]
struct DelayedPacket {
    arrives: Instant,
    bytes: Vec<u8>,
}

/// Packets that keep their order and share a rate: all of them, or those of one stream.
#[derive(Clone, Copy, Debug, Default)]
struct PacketFlow {
    /// When all packets accepted so far have left.
    free_at: Option<Instant>,
    /// When the last packet in flight arrives.
    last: Option<Instant>,
}

/// Returns the ports of a TCP packet over IPv4.
fn tcp_ports(packet: &[u8]) -> u32 {
    let begin = packet.first().map_or(0, |first| usize::from(first & 15) * 4);
    packet.get(begin..begin + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// The state of one direction.
#[derive(Debug)]
pub struct CableLine {
    shape: LineShape,
    is_cut: bool,
    random: fastrand::Rng,
    under_way: VecDeque<DelayedPacket>,
    bytes_under_way: usize,
    flows: HashMap<u32, PacketFlow>,
    pub(super) tally: LineTally,
}

impl CableLine {
    /// Creates a connected cable; losses and jitter are drawn from the seed.
    ///
    /// # Panics
    /// If the loss is outside of 0.0 to 1.0, or the rate is zero.
    #[must_use]
    pub fn new(shape: LineShape, seed: u64) -> Self {
        check_shape(&shape);
        Self {
            shape,
            is_cut: false,
            random: fastrand::Rng::with_seed(seed),
            under_way: VecDeque::new(),
            bytes_under_way: 0,
            flows: HashMap::new(),
            tally: LineTally::default(),
        }
    }

    /// Sets the shape for packets that are sent from now on. Packets in flight keep their arrival times.
    ///
    /// # Panics
    /// If the loss is outside of 0.0 to 1.0, or the rate is zero.
    pub fn set_shape(&mut self, shape: LineShape) {
        check_shape(&shape);
        self.shape = shape;
        self.flows.values_mut().for_each(|flow| flow.free_at = None);
    }

    /// Cuts the cable: packets in flight are lost, and no packet passes until [`CableLine::mend`].
    pub fn cut(&mut self) {
        self.is_cut = true;
        self.tally.cut += self.under_way.len() as u64;
        self.under_way.clear();
        self.bytes_under_way = 0;
        self.flows.clear();
    }

    /// Reconnects the cable.
    pub fn mend(&mut self) {
        self.is_cut = false;
    }

    /// Accepts a packet at the near end.
    pub fn push(&mut self, now: Instant, bytes: Vec<u8>) {
        if self.is_cut {
            self.tally.cut += 1;
            return;
        }
        if self.shape.loss > 0.0 && self.random.f64() < self.shape.loss {
            self.tally.lost += 1;
            return;
        }
        let key = if self.shape.each { tcp_ports(&bytes) } else { 0 };
        let Some(left) = self.departure_time(now, key, bytes.len()) else {
            self.tally.dropped += 1;
            return;
        };
        let jitter = self.shape.jitter.mul_f64(self.random.f64());
        let mut arrives = left + self.shape.delay + jitter;
        let flow = self.flows.entry(key).or_default();
        if let Some(before) = flow.last {
            arrives = arrives.max(before);
        }
        flow.last = Some(arrives);
        self.bytes_under_way += bytes.len();
        let at = self.under_way.partition_point(|other| other.arrives <= arrives);
        self.under_way.insert(at, DelayedPacket { arrives, bytes });
    }

    /// Returns the next packet that has reached the far end by now.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.next()? > now {
            return None;
        }
        let packet = self.under_way.pop_front()?;
        self.bytes_under_way -= packet.bytes.len();
        self.tally.passed.packets += 1;
        self.tally.passed.bytes += packet.bytes.len() as u64;
        Some(packet.bytes)
    }

    /// Returns when [`CableLine::pop`] returns the next packet.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.under_way.front().map(|packet| packet.arrives)
    }

    /// Returns the outcomes of the packets so far.
    #[must_use]
    pub fn line_tally(&self) -> LineTally {
        self.tally
    }

    /// Returns when the last byte of a packet leaves that is sent now; `None` if there is no room for the packet.
    fn departure_time(&mut self, now: Instant, key: u32, bytes: usize) -> Option<Instant> {
        if self.bytes_under_way + bytes > UNDER_WAY_MAX {
            return None;
        }
        let Some(rate) = self.shape.rate else { return Some(now) };
        let flow = self.flows.entry(key).or_default();
        let begins = flow.free_at.map_or(now, |free| free.max(now));
        let waiting = (begins - now).as_secs_f64() * rate as f64;
        if waiting > 0.0 && waiting + bytes as f64 > self.shape.queue as f64 {
            return None;
        }
        let takes = bytes as f64 / rate as f64;
        let left = begins + Duration::from_secs_f64(takes);
        flow.free_at = Some(left);
        Some(left)
    }
}

fn check_shape(shape: &LineShape) {
    assert!(
        (0.0..=1.0).contains(&shape.loss),
        "a loss of {}, which is not a share of 0.0 to 1.0",
        shape.loss
    );
    assert!(shape.rate != Some(0), "a rate of zero; cut the cable instead");
}
