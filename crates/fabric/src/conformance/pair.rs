//! Two connected rails, and memory on them. Used by every case; it knows no fabric.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_mem::MemoryRange;
use trunkline_proto::reserve::{try_filled, try_grow};
use trunkline_proto::time::Duration as Span;

use crate::{
    AccessRights, Completion, CompletionKind, DeregisterError, LinkAddress, LinkId, MemoryRegistrar, Op,
    PostError, Rail, RailConfig, RecvOrder, RegionExtent, RegionKeys, RegionPurpose, RemoteLocation,
};

/// Longest a case waits for anything.
pub(super) const LIMIT: Duration = Duration::from_secs(20);

/// Numbers of the receives that [`RailPair::lend_receives`] posts, from this one on.
const LENT: u64 = 0xfeed_0000;

/// Creates the rails that the cases run on.
pub trait ConformanceSetup {
    /// The fabric's rail.
    type Rail: Rail;

    /// Opens two rails that can reach each other; they may belong to two fabrics.
    fn open_rails(&self, config: &RailConfig) -> (Self::Rail, Self::Rail);

    /// Opens two rails of one NIC, and a third that both can reach. Needed where [`Caps::wait`](crate::Caps::wait) is
    /// true.
    fn open_trio(&self, config: &RailConfig) -> Option<[Self::Rail; 3]> {
        let _ = config;
        None
    }

    /// Whether an idle rail can be waited for ([`WaitMethod::Event`](crate::WaitMethod::Event)).
    fn has_events(&self) -> bool {
        false
    }

    /// Opens two rails with one connected link between them.
    fn open_pair(&self, config: &RailConfig) -> RailPair<Self::Rail> {
        let (a, b) = self.open_rails(config);
        let mut ends = RailPair { a, b, at_a: LinkId(0), at_b: LinkId(0) };
        (ends.at_a, ends.at_b) = ends.add_link();
        ends
    }
}

/// Returns the parameters with which most cases open their rails.
#[must_use]
pub fn default_config() -> RailConfig {
    RailConfig {
        depth: 64,
        recv_depth: 64,
        recv_order: RecvOrder::Posted,
        links: 8,
        peer_time: Span::from_secs(2),
        rail_time: Span::from_secs(3),
        receives: false,
        traffic_class: None,
        many: false,
    }
}

/// Two rails and a link between them.
pub struct RailPair<R: Rail> {
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
pub struct TestRegion {
    /// The bytes.
    pub memory: MemoryRange,
    /// The keys by which it is reached.
    pub keys: RegionKeys,
    purpose: RegionPurpose,
    registrar: Arc<dyn MemoryRegistrar>,
}

impl TestRegion {
    /// Registers `len` zeroed bytes on a rail.
    pub fn new<R: Rail>(rail: &R, len: usize, access: AccessRights) -> Self {
        // Bounce, because a case may read peers' writes before their completion, and received bytes without a flush.
        let plain = access == AccessRights::LOCAL && !rail.caps().needs_flush;
        let purpose = if plain { RegionPurpose::Data } else { RegionPurpose::Bounce };
        Self::with_purpose(rail, len, access, purpose)
    }

    /// Registers `len` zeroed bytes for a purpose.
    pub fn with_purpose<R: Rail>(rail: &R, len: usize, access: AccessRights, purpose: RegionPurpose) -> Self {
        let memory = MemoryRange::try_heap(len).unwrap_or_else(|e| panic!("allocate: {e}"));
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
    /// As [`MemoryRegistrar::deregister`].
    pub fn try_deregister(&self) -> Result<(), DeregisterError> {
        self.registrar.deregister(self.keys.local)
    }

    /// Retires the registration although peers may still write.
    pub fn retire(&self) {
        self.registrar.retire(self.keys.local).unwrap_or_else(|e| panic!("retire: {e}"));
    }

    /// Returns bytes of it, for an operation of its own side.
    #[must_use]
    pub fn extent_at(&self, offset: u64, len: u64) -> RegionExtent {
        RegionExtent { key: self.keys.local, offset, len }
    }

    /// Returns a place in it, for an operation of the other side.
    #[must_use]
    pub fn remote_at(&self, offset: u64) -> RemoteLocation {
        RemoteLocation {
            key: self.keys.remote,
            addr: self.keys.remote_base.wrapping_add(offset),
            purpose: self.purpose,
        }
    }

    /// Fills it with bytes that depend on `seed` and the place.
    pub fn fill_pattern(&self, seed: u64) {
        let mut bytes = zeroed_bytes(self.memory.len());
        for (at, byte) in (0..).zip(&mut bytes) {
            *byte = pattern_byte(seed, at);
        }
        self.memory.write(0, &bytes).unwrap_or_else(|e| panic!("fill: {e}"));
    }

    /// Copies bytes out.
    #[must_use]
    pub fn read_bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = zeroed_bytes(len);
        self.memory.read(offset, &mut out).unwrap_or_else(|e| panic!("read: {e}"));
        out
    }

    /// Panics unless all its bytes are 0.
    pub fn assert_untouched(&self) {
        assert!(self.read_bytes(0, self.memory.len()).iter().all(|byte| *byte == 0), "bytes were touched");
    }
}

/// Returns `len` zeros. The suite is also run with failing allocations, which it reports by a panic like any other error.
pub(super) fn zeroed_bytes(len: usize) -> Vec<u8> {
    let zeros = try_filled(0, len);
    zeros.unwrap_or_else(|e| panic!("allocate: {e}")).into_vec()
}

/// Returns the byte of a pattern at a place.
#[must_use]
pub fn pattern_byte(seed: u64, at: u64) -> u8 {
    let mixed = (seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed.to_le_bytes()[7]
}

/// The completions that [`RailPair::poll_until`] polled, one list per side.
#[derive(Default)]
pub struct PolledCompletions {
    /// On `a`.
    pub a: Vec<Completion>,
    /// On `b`.
    pub b: Vec<Completion>,
}

/// Adds to a list. A failing allocation is a panic like any other error.
pub(super) fn extend_completions(
    list: &mut Vec<Completion>,
    more: impl ExactSizeIterator<Item = Completion>,
) {
    try_grow(list, more.len()).unwrap_or_else(|e| panic!("allocate: {e}"));
    list.extend(more);
}

/// Adds the completions of one poll to a list, without the receives that were lent.
fn poll_into(list: &mut Vec<Completion>, rail: &mut impl Rail) {
    let mut out = [Completion::BLANK; 7];
    let count = rail.poll(&mut out);
    let own = |one: &Completion| one.done != CompletionKind::Received || one.wr_id & !0xffff != LENT;
    try_grow(list, count).unwrap_or_else(|e| panic!("allocate: {e}"));
    list.extend(out.into_iter().take(count).filter(own));
}

impl<R: Rail> RailPair<R> {
    /// Adds one more connected link between the two.
    pub fn add_link(&mut self) -> (LinkId, LinkId) {
        let at_a = self.a.create_link().unwrap_or_else(|e| panic!("create: {e}"));
        let at_b = self.b.create_link().unwrap_or_else(|e| panic!("create: {e}"));
        self.connect_links(at_a, at_b);
        (at_a, at_b)
    }

    /// Posts receives on both ends for immediates to take, if they do; their completions are filtered out of the lists.
    pub fn lend_receives(&mut self, here: &TestRegion, there: &TestRegion) {
        if self.b.caps().immediate_takes_receive {
            for wr_id in LENT..LENT + 4 {
                self.on_a(wr_id, Op::Recv { into: here.extent_at(0, 0) });
                self.on_b(wr_id, Op::Recv { into: there.extent_at(0, 0) });
            }
            // Flushed before an operation that may end the link.
            self.a.flush();
            self.b.flush();
        }
    }

    /// Connects the two ends.
    pub fn connect_ends(&mut self) {
        self.connect_links(self.at_a, self.at_b);
    }

    fn connect_links(&mut self, at_a: LinkId, at_b: LinkId) {
        let address = |rail: &R, link| -> LinkAddress {
            rail.link_address(link).unwrap_or_else(|e| panic!("address: {e}"))
        };
        let of_a = address(&self.a, at_a);
        let of_b = address(&self.b, at_b);
        assert!(of_a.bytes.len() <= LinkAddress::BYTES_MAX);
        self.a.connect(at_a, of_b).unwrap_or_else(|e| panic!("connect: {e}"));
        self.b.connect(at_b, of_a).unwrap_or_else(|e| panic!("connect: {e}"));
    }

    /// Polls both sides once.
    pub fn poll(&mut self, seen: &mut PolledCompletions) {
        self.a.flush();
        self.b.flush();
        poll_into(&mut seen.a, &mut self.a);
        poll_into(&mut seen.b, &mut self.b);
    }

    /// Polls `a` once.
    pub fn poll_a(&mut self, seen: &mut PolledCompletions) {
        self.a.flush();
        poll_into(&mut seen.a, &mut self.a);
    }

    /// Polls `a` alone until an operation completes there, which the target's NIC has received then. Returns after `limit` at the latest: a
    /// NIC in software executes nothing while its owner does not poll.
    pub fn poll_a_for(&mut self, limit: Duration) {
        let mut seen = PolledCompletions::default();
        let started = Instant::now();
        while seen.a.is_empty() && started.elapsed() < limit {
            self.poll_a(&mut seen);
        }
    }

    /// Polls both sides until `enough` returns true.
    pub fn poll_until(&mut self, enough: impl Fn(&PolledCompletions) -> bool) -> PolledCompletions {
        let mut seen = PolledCompletions::default();
        let started = Instant::now();
        while !enough(&seen) {
            self.poll(&mut seen);
            assert!(started.elapsed() < LIMIT, "completions are missing; a: {:?}, b: {:?}", seen.a, seen.b);
        }
        seen
    }

    /// Polls `a` until a completion appears there, and `b` only occasionally meanwhile.
    pub fn poll_until_a(&mut self) -> PolledCompletions {
        let mut seen = PolledCompletions::default();
        let started = Instant::now();
        self.a.flush();
        while seen.a.is_empty() {
            for _ in 0..100 {
                poll_into(&mut seen.a, &mut self.a);
            }
            if seen.a.is_empty() {
                poll_into(&mut seen.b, &mut self.b);
            }
            assert!(started.elapsed() < LIMIT, "no completion arrived");
        }
        seen
    }

    /// Polls both sides until `a` has `on_a` completions and `b` has `on_b`, and checks that no more appear.
    pub fn expect_completions(&mut self, on_a: usize, on_b: usize) -> PolledCompletions {
        let mut seen = self.poll_until(|seen| seen.a.len() >= on_a && seen.b.len() >= on_b);
        self.settle(&mut seen);
        assert_eq!((seen.a.len(), seen.b.len()), (on_a, on_b), "a: {:?}, b: {:?}", seen.a, seen.b);
        seen
    }

    /// Fails both ends of the link, and polls until both are quiet.
    pub fn fail_ends(&mut self) {
        self.a.fail_link(self.at_a);
        self.b.fail_link(self.at_b);
        let started = Instant::now();
        let mut seen = PolledCompletions::default();
        while !(self.a.poll_link_quiet(self.at_a) && self.b.poll_link_quiet(self.at_b)) {
            self.poll(&mut seen);
            assert!(started.elapsed() < LIMIT, "the link does not become quiet");
        }
    }

    /// Polls both sides for a while.
    pub fn settle(&mut self, seen: &mut PolledCompletions) {
        for _ in 0..500 {
            self.poll(seen);
        }
    }

    /// Posts on `a`, polling while it is busy.
    pub fn post_a(&mut self, wr_id: u64, op: Op<'_>, signalled: bool, seen: &mut PolledCompletions) {
        let started = Instant::now();
        loop {
            match self.a.post(self.at_a, wr_id, op, signalled) {
                Ok(()) => return,
                Err(PostError::Busy) => self.poll(seen),
                Err(error) => panic!("post: {error}"),
            }
            assert!(started.elapsed() < LIMIT, "the post stays busy");
        }
    }

    /// Posts on `a`, which must have a credit.
    pub fn on_a(&mut self, wr_id: u64, op: Op<'_>) {
        self.a.post(self.at_a, wr_id, op, true).unwrap_or_else(|e| panic!("post: {e}"));
    }

    /// Posts on `b`, which must have a credit.
    pub fn on_b(&mut self, wr_id: u64, op: Op<'_>) {
        self.b.post(self.at_b, wr_id, op, true).unwrap_or_else(|e| panic!("post: {e}"));
    }
}
