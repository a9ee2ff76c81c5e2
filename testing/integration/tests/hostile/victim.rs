//! One process of the honest pair. It exchanges checked messages with the other one, serves all other processes as any
//! such process does, and keeps secrets outside the memory that it has registered. A [`PairTraffic`] carries the
//! messages.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trunkline_engine::EngineParams;
use trunkline_engine::host::UnixHost;
use trunkline_fabric::Host as _;
use trunkline_softnic::SoftFabric;

use crate::canaries::{SecretCanaries, SharedNics};
use crate::channel::TestChannel;
use crate::meeting::TaggedRank;
use crate::one_sided::OneSidedPair;
use crate::pair::{PairKind, PairTraffic};
use crate::store::JobStore;
use crate::two_sided::TwoSidedPair;

/// The longest message of the pair: over shared memory it is copied directly between the processes.
pub(crate) const LONG: usize = 96 << 10;
/// Fewest messages of a measured rate, unless they take too long.
const LEAST: u64 = 18;
const LONGEST: Duration = Duration::from_secs(5);
/// Polls between two checks for commands.
const LOOK_EVERY: u32 = 64;
/// Polls between two sleeps, and their duration.
const SLEEP_EVERY: u32 = 32;
const SLEEP: Duration = Duration::from_micros(20);

/// Facts that the test gives to attackers. An attacker could guess or learn each of them, so the defence must not depend on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VictimFacts {
    pub(crate) pid: u64,
    /// The address of the canary outside all regions.
    pub(crate) canary: u64,
    /// The local key of a region without rights for peers, which also contains a canary.
    pub(crate) private: u64,
    /// A remote key of memory that was retired.
    pub(crate) retired: u64,
    /// The port of its store, if it is rank 0 of a job with a store.
    pub(crate) store: u64,
}

impl VictimFacts {
    pub(crate) fn from_numbers(numbers: &[u64]) -> Self {
        let [pid, canary, private, retired, store] = *numbers else { panic!("{numbers:?}") };
        Self { pid, canary, private, retired, store }
    }

    pub(crate) fn to_numbers(self) -> [u64; 5] {
        [self.pid, self.canary, self.private, self.retired, self.store]
    }
}

/// A command of the test.
enum VictimCommand {
    /// Count messages for this duration.
    Window(Duration),
    /// Send the results and end.
    Finish,
}

/// One of the two victims.
struct HonestMember {
    channel: TestChannel,
    traffic: Box<dyn PairTraffic>,
    canaries: SecretCanaries,
    lines: Arc<AtomicU64>,
    store: Option<JobStore>,
    tagged: Option<TaggedRank>,
    me: u32,
    message: Vec<u8>,
    round: u64,
    window: Option<(Instant, Duration, u64)>,
}

/// Plays a victim until the test ends it.
pub(crate) fn play(me: u32, mut channel: TestChannel) {
    // Without this, sleeps last up to 50 us too long by default.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).unwrap();
    let kind = PairKind::of_this_process();
    let lines = Arc::new(AtomicU64::new(0));
    let (params, counted) = (EngineParams::default(), Arc::clone(&lines));
    let host = UnixHost::new(move |_, line: &str| {
        counted.fetch_add(1, Ordering::Relaxed);
        println!("victim: {line}");
    });
    let secret = host.random_bytes();
    let fabric = SharedNics(Arc::new(SoftFabric::new(kind.nics()).unwrap()));
    let (canaries, private, retired) = SecretCanaries::new(&fabric, secret);
    let mut traffic: Box<dyn PairTraffic> = match kind {
        PairKind::TwoSided => Box::new(TwoSidedPair::meet(me, fabric, host, params, &mut channel)),
        PairKind::OneSided | PairKind::OverTcp => {
            Box::new(OneSidedPair::meet(me, fabric, host, params, &mut channel))
        }
    };
    let [port, calls] = channel.receive_numbers()[..] else { panic!("the world must send two numbers") };
    if calls == 1 && me == 0 {
        traffic.begin_calls();
    }
    let store = u16::try_from(port).ok().filter(|port| *port != 0).map(|port| JobStore::new(me, port));
    let tagged = TaggedRank::new(me);
    let facts = VictimFacts {
        pid: std::process::id().into(),
        canary: canaries.address(),
        private,
        retired,
        store: port,
    };
    channel.send_numbers(&facts.to_numbers());
    let message = (0..2 * LONG).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let (round, window) = (0, None);
    let mut victim =
        HonestMember { channel, traffic, canaries, lines, store, tagged, me, message, round, window };
    let fault = victim.exchange().err();
    victim.finish(fault);
}

/// Why the exchange of messages ended.
#[derive(Debug)]
enum TrafficEnd {
    Asked,
    Fault(String),
}

impl HonestMember {
    /// Exchanges messages until an error, or until the test ends it.
    fn exchange(&mut self) -> Result<(), TrafficEnd> {
        loop {
            let number = self.round + 1;
            if self.me == 0 {
                self.put_message(number)?;
            }
            self.take_message(number)?;
            if self.me == 1 {
                self.put_message(number)?;
            }
            self.round = number;
            self.look()?;
        }
    }

    /// The bytes of a message: short and long messages alternate.
    fn place(number: u64) -> std::ops::Range<usize> {
        let (from, len) = ((number as usize * 8) % LONG, [64, 4096, LONG][number as usize % 3]);
        from..from + len
    }

    fn put_message(&mut self, number: u64) -> Result<(), TrafficEnd> {
        let bytes = self.message[Self::place(number)].to_vec();
        self.until(|traffic| Ok(traffic.send_step(number, &bytes)?.then_some(())))
    }

    fn take_message(&mut self, number: u64) -> Result<(), TrafficEnd> {
        let len = Self::place(number).len();
        let got = self.until(|traffic| traffic.receive_step(number, len))?;
        if got == self.message[Self::place(number)] {
            Ok(())
        } else {
            Err(TrafficEnd::Fault(format!("message {number} has wrong bytes")))
        }
    }

    /// Repeats a step until it succeeds, and makes progress meanwhile.
    fn until<T>(
        &mut self,
        mut f: impl FnMut(&mut dyn PairTraffic) -> Result<Option<T>, String>,
    ) -> Result<T, TrafficEnd> {
        for step in 1_u32.. {
            if let Some(done) = f(self.traffic.as_mut()).map_err(TrafficEnd::Fault)? {
                return Ok(done);
            }
            self.traffic.progress().map_err(TrafficEnd::Fault)?;
            if step.is_multiple_of(LOOK_EVERY) {
                self.look()?;
            }
            // Waiting must use no processor time, because the test measures that.
            if step.is_multiple_of(SLEEP_EVERY) {
                std::thread::sleep(SLEEP);
            }
        }
        unreachable!("it is tried until it works")
    }

    /// Executes the commands of the test.
    fn look(&mut self) -> Result<(), TrafficEnd> {
        if let Some((since, length, before)) = self.window
            && since.elapsed() >= length
            && (self.round - before >= LEAST || since.elapsed() >= LONGEST)
        {
            self.window = None;
            self.channel.send_numbers(&[self.round - before, since.elapsed().as_nanos() as u64]);
        }
        self.traffic.serve_others().map_err(TrafficEnd::Fault)?;
        match self.channel.try_receive().map(|bytes| VictimCommand::from_bytes(&bytes)) {
            None => Ok(()),
            Some(VictimCommand::Window(length)) => {
                self.window = Some((Instant::now(), length, self.round));
                Ok(())
            }
            Some(VictimCommand::Finish) => Err(TrafficEnd::Asked),
        }
    }

    /// Sends the results: whether the canaries are unchanged, the number of log lines, the secret, and the error as text.
    fn finish(mut self, end: Option<TrafficEnd>) {
        let mut fault = match end {
            None | Some(TrafficEnd::Asked) => String::new(),
            Some(TrafficEnd::Fault(fault)) => {
                println!("victim: {fault}");
                // The test requests windows; after an error all of them are empty.
                self.channel.wait_for_ever();
                loop {
                    match VictimCommand::from_bytes(&self.channel.receive()) {
                        VictimCommand::Window(_) => self.channel.send_numbers(&[0, 1]),
                        VictimCommand::Finish => break fault,
                    }
                }
            }
        };
        let met = [self.store.take().map(JobStore::join), self.tagged.take().map(TaggedRank::join)];
        for error in met.into_iter().flatten().filter_map(Result::err) {
            fault.push_str(&error);
        }
        let whole = u64::from(self.canaries.are_whole() && self.traffic.is_untouched());
        self.channel.send_numbers(&[whole, self.lines.load(Ordering::Relaxed), self.round]);
        self.channel.send(&self.canaries.secret);
        self.channel.send(fault.as_bytes());
        // Wait for the test's command to end.
        while self.channel.receive() != b"end" {}
    }
}

impl VictimCommand {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        match <[u8; 8]>::try_from(bytes) {
            Ok(length) => Self::Window(Duration::from_nanos(u64::from_le_bytes(length))),
            Err(_) => Self::Finish,
        }
    }
}
