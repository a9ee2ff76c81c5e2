//! Two connected rails, and memory on them. Used by every case.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_mem::Memory;
use trunkline_proto::reserve::{try_filled, try_grow};
use trunkline_proto::time::Duration as Span;

use crate::{
    Access, Completion, DeregisterError, Done, Extent, Keys, LinkAddress, LinkId, Op, PostError, Purpose,
    Rail, RailConfig, RecvOrder, Registrar, Remote,
};

/// Longest a case waits for anything.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// Numbers of the receives that [`Ends::lend`] posts, from this one on.
const LENT: u64 = 0xfeed_0000;

/// Makes what the cases run on.
pub trait Setup {
    /// The fabric's rail.
    type Rail: Rail;

    /// Two open rails that can reach each other; they may belong to two fabrics.
    fn rails(&self, config: &RailConfig) -> (Self::Rail, Self::Rail);

    /// Two rails of one NIC, and a third that both can reach. Needed where [`Caps::wait`](crate::Caps::wait).
    fn trio(&self, config: &RailConfig) -> Option<[Self::Rail; 3]> {
        let _ = config;
        None
    }

    /// Whether a rail that has nothing to do can be waited for ([`Wake::Event`](crate::Wake::Event)).
    fn has_events(&self) -> bool {
        false
    }

    /// Two rails with one connected link between them.
    fn pair(&self, config: &RailConfig) -> Ends<Self::Rail> {
        let (a, b) = self.rails(config);
        let mut ends = Ends { a, b, at_a: LinkId(0), at_b: LinkId(0) };
        (ends.at_a, ends.at_b) = ends.link();
        ends
    }
}

/// What most cases open their rails with.
#[must_use]
pub fn default_config() -> RailConfig {
    RailConfig {
        depth: 64,
        recv_depth: 64,
        recv_order: RecvOrder::Posted,
        links: 8,
        peer_time: Span::secs(2),
        rail_time: Span::secs(3),
        receives: false,
        traffic_class: None,
        many: false,
    }
}

/// Two rails and a link between them.
pub struct Ends<R: Rail> {
    /// One rail.
    pub a: R,
    /// The other.
    pub b: R,
    /// The link's number on `a`.
    pub at_a: LinkId,
    /// The link's number on `b`.
    pub at_b: LinkId,
}

/// Memory registered on one rail.
pub struct Region {
    /// The bytes.
    pub memory: Memory,
    /// How it is reached.
    pub keys: Keys,
    purpose: Purpose,
    registrar: Arc<dyn Registrar>,
}

impl Region {
    /// Registers `len` zeroed bytes on a rail.
    pub fn new<R: Rail>(rail: &R, len: usize, access: Access) -> Self {
        // What is written by peers is looked at before its completion, too, and what is received without a flush.
        let plain = access == Access::LOCAL && !rail.caps().needs_flush;
        let purpose = if plain { Purpose::Data } else { Purpose::Bounce };
        Self::with(rail, len, access, purpose)
    }

    /// The same, for a purpose.
    pub fn with<R: Rail>(rail: &R, len: usize, access: Access, purpose: Purpose) -> Self {
        let memory = Memory::try_heap(len).unwrap_or_else(|e| panic!("allocate: {e}"));
        let registrar = rail.registrar();
        let keys = registrar.register(&memory, access, purpose).unwrap_or_else(|e| panic!("register: {e}"));
        Self { memory, keys, purpose, registrar }
    }

    /// Ends the registration.
    pub fn deregister(&self) {
        self.registrar.deregister(self.keys.local).unwrap_or_else(|e| panic!("deregister: {e}"));
    }

    /// Ends the registration, unless something still uses it.
    ///
    /// # Errors
    /// As [`Registrar::deregister`].
    pub fn try_deregister(&self) -> Result<(), DeregisterError> {
        self.registrar.deregister(self.keys.local)
    }

    /// Ends it although peers may still write.
    pub fn retire(&self) {
        self.registrar.retire(self.keys.local).unwrap_or_else(|e| panic!("retire: {e}"));
    }

    /// Bytes of it, for an operation on its own side.
    #[must_use]
    pub fn extent(&self, offset: u64, len: u64) -> Extent {
        Extent { key: self.keys.local, offset, len }
    }

    /// A place in it, for an operation of the other side.
    #[must_use]
    pub fn remote(&self, offset: u64) -> Remote {
        Remote {
            key: self.keys.remote,
            addr: self.keys.remote_base.wrapping_add(offset),
            purpose: self.purpose,
        }
    }

    /// Fills it with bytes that depend on `seed` and the place.
    pub fn fill(&self, seed: u64) {
        let mut bytes = zeros(self.memory.len());
        for (at, byte) in (0..).zip(&mut bytes) {
            *byte = pattern(seed, at);
        }
        self.memory.write(0, &bytes).unwrap_or_else(|e| panic!("fill: {e}"));
    }

    /// Copies bytes out.
    #[must_use]
    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = zeros(len);
        self.memory.read(offset, &mut out).unwrap_or_else(|e| panic!("read: {e}"));
        out
    }

    /// Panics unless all its bytes are 0.
    pub fn assert_untouched(&self) {
        assert!(self.bytes(0, self.memory.len()).iter().all(|byte| *byte == 0), "bytes were touched");
    }
}

/// So many zeros. The suite is also run where memory is refused, which it tells by a panic like any other error.
pub(super) fn zeros(len: usize) -> Vec<u8> {
    let zeros = try_filled(0, len);
    zeros.unwrap_or_else(|e| panic!("allocate: {e}")).into_vec()
}

/// The byte of a pattern at a place.
#[must_use]
pub fn pattern(seed: u64, at: u64) -> u8 {
    let mixed = (seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed.to_le_bytes()[7]
}

/// What [`Ends::until`] saw, one list a side.
#[derive(Default)]
pub struct Seen {
    /// On `a`.
    pub a: Vec<Completion>,
    /// On `b`.
    pub b: Vec<Completion>,
}

/// Adds to a list. Where memory is refused the suite says so by a panic like any other error.
pub(super) fn add(list: &mut Vec<Completion>, more: impl ExactSizeIterator<Item = Completion>) {
    try_grow(list, more.len()).unwrap_or_else(|e| panic!("allocate: {e}"));
    list.extend(more);
}

/// Adds the completions of one poll to a list, without the receives that were lent.
fn take(list: &mut Vec<Completion>, rail: &mut impl Rail) {
    let mut out = [Completion::BLANK; 7];
    let count = rail.poll(&mut out);
    let own = |one: &Completion| one.done != Done::Received || one.wr_id & !0xffff != LENT;
    try_grow(list, count).unwrap_or_else(|e| panic!("allocate: {e}"));
    list.extend(out.into_iter().take(count).filter(own));
}

impl<R: Rail> Ends<R> {
    /// One more connected link between the two.
    pub fn link(&mut self) -> (LinkId, LinkId) {
        let at_a = self.a.create().unwrap_or_else(|e| panic!("create: {e}"));
        let at_b = self.b.create().unwrap_or_else(|e| panic!("create: {e}"));
        self.join_ends(at_a, at_b);
        (at_a, at_b)
    }

    /// Posts receives on both ends for immediates to take, where they do; what ends with them is in nobody's way.
    pub fn lend(&mut self, here: &Region, there: &Region) {
        if self.b.caps().immediate_takes_receive {
            for wr_id in LENT..LENT + 4 {
                self.on_a(wr_id, Op::Recv { into: here.extent(0, 0) });
                self.on_b(wr_id, Op::Recv { into: there.extent(0, 0) });
            }
            // Given to the device before anything that may end the link.
            self.a.flush();
            self.b.flush();
        }
    }

    /// Connects the two ends.
    pub fn join(&mut self) {
        self.join_ends(self.at_a, self.at_b);
    }

    fn join_ends(&mut self, at_a: LinkId, at_b: LinkId) {
        let address =
            |rail: &R, link| -> LinkAddress { rail.address(link).unwrap_or_else(|e| panic!("address: {e}")) };
        let of_a = address(&self.a, at_a);
        let of_b = address(&self.b, at_b);
        assert!(of_a.bytes.len() <= LinkAddress::BYTES_MAX);
        self.a.connect(at_a, of_b).unwrap_or_else(|e| panic!("connect: {e}"));
        self.b.connect(at_b, of_a).unwrap_or_else(|e| panic!("connect: {e}"));
    }

    /// Polls both sides once.
    pub fn poll(&mut self, seen: &mut Seen) {
        self.a.flush();
        self.b.flush();
        take(&mut seen.a, &mut self.a);
        take(&mut seen.b, &mut self.b);
    }

    /// Polls `a` once.
    pub fn poll_a(&mut self, seen: &mut Seen) {
        self.a.flush();
        take(&mut seen.a, &mut self.a);
    }

    /// Polls both sides until `enough`.
    pub fn until(&mut self, enough: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = Seen::default();
        let started = Instant::now();
        while !enough(&seen) {
            self.poll(&mut seen);
            assert!(started.elapsed() < LIMIT, "nothing more came; a: {:?}, b: {:?}", seen.a, seen.b);
        }
        seen
    }

    /// Polls `a` until something comes there, and `b` only now and then while nothing does.
    pub fn until_a(&mut self) -> Seen {
        let mut seen = Seen::default();
        let started = Instant::now();
        self.a.flush();
        while seen.a.is_empty() {
            for _ in 0..100 {
                take(&mut seen.a, &mut self.a);
            }
            if seen.a.is_empty() {
                take(&mut seen.b, &mut self.b);
            }
            assert!(started.elapsed() < LIMIT, "nothing came");
        }
        seen
    }

    /// Polls both sides until `a` has `on_a` completions and `b` has `on_b`, and checks that no more come.
    pub fn expect(&mut self, on_a: usize, on_b: usize) -> Seen {
        let mut seen = self.until(|seen| seen.a.len() >= on_a && seen.b.len() >= on_b);
        self.settle(&mut seen);
        assert_eq!((seen.a.len(), seen.b.len()), (on_a, on_b), "a: {:?}, b: {:?}", seen.a, seen.b);
        seen
    }

    /// Fails both ends of the link, and polls until nothing of it is under way.
    pub fn end(&mut self) {
        self.a.fail(self.at_a);
        self.b.fail(self.at_b);
        let started = Instant::now();
        let mut seen = Seen::default();
        while !(self.a.is_quiet(self.at_a) && self.b.is_quiet(self.at_b)) {
            self.poll(&mut seen);
            assert!(started.elapsed() < LIMIT, "it is never quiet");
        }
    }

    /// Polls both sides for a while.
    pub fn settle(&mut self, seen: &mut Seen) {
        for _ in 0..500 {
            self.poll(seen);
        }
    }

    /// Posts on `a`, polling while it is busy.
    pub fn post_a(&mut self, wr_id: u64, op: Op<'_>, signalled: bool, seen: &mut Seen) {
        let started = Instant::now();
        loop {
            match self.a.post(self.at_a, wr_id, op, signalled) {
                Ok(()) => return,
                Err(PostError::Busy) => self.poll(seen),
                Err(error) => panic!("post: {error}"),
            }
            assert!(started.elapsed() < LIMIT, "busy for ever");
        }
    }

    /// Posts on `a`, which must have room.
    pub fn on_a(&mut self, wr_id: u64, op: Op<'_>) {
        self.a.post(self.at_a, wr_id, op, true).unwrap_or_else(|e| panic!("post: {e}"));
    }

    /// Posts on `b`, which must have room.
    pub fn on_b(&mut self, wr_id: u64, op: Op<'_>) {
        self.b.post(self.at_b, wr_id, op, true).unwrap_or_else(|e| panic!("post: {e}"));
    }
}
