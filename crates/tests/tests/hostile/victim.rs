//! One of the honest pair: a member of a one-sided job that exchanges checked messages with the other one, serves everybody else as any
//! member does, and keeps secrets outside of what it has registered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trunkline_engine::host::{Reach, UnixHost};
use trunkline_engine::rma::{ContextId, Job, Local, RmaError, Source};
use trunkline_engine::{Nics, Params};
use trunkline_fabric::{
    Access, Fabric, Nic, OpenError, Purpose, Rail as _, RailConfig, RecvOrder, Registrar,
};
use trunkline_mem::Memory;
use trunkline_proto::time::Duration as Span;
use trunkline_proto::wire::rma::signal::{SignalOp, Update};
use trunkline_proto::wire::rma::word::{Width, Word};
use trunkline_proto::wire::status::Usage;
use trunkline_softnic::{SoftConfig, SoftFabric, SoftRail};

use crate::channel::TestChannel;
use crate::store::JobStore;

/// Bytes of the heap that each member has.
pub(crate) const HEAP: usize = 1 << 20;
/// Where in a heap attackers may have bytes put; the pair uses none of them.
pub(crate) const SCRATCH: u64 = 512 << 10;
/// A word of a heap that nobody may change.
pub(crate) const UNTOUCHED: u64 = 8;
/// Where the number of the message that has arrived stands.
const FLAG: u64 = 0;
/// Where messages arrive, and where they are sent from.
const ARRIVES: u64 = 64 << 10;
const LEAVES: u64 = 256 << 10;
/// The long message of the pair goes by direct copies between the processes.
const LONG: usize = 96 << 10;
/// Bytes of each canary.
pub(crate) const CANARY: usize = 16 << 10;
/// Messages that a rate is made of at least, unless they take too long.
const LEAST: u64 = 18;
const LONGEST: Duration = Duration::from_secs(5);
/// Steps of waiting between two looks for commands.
const LOOK_EVERY: u32 = 64;

/// The bugs that can be planted, chosen as in all tests.
pub(crate) fn params() -> Params {
    #[cfg_attr(not(feature = "mutants"), expect(unused_mut, reason = "changed only to plant a bug"))]
    let mut params = Params::default();
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
        params.mutant = trunkline_engine::Mutant::named(name.leak());
    }
    params
}

/// The software NICs of a job, of which the victim has a rail of its own, too.
#[derive(Clone)]
struct SharedNics(Arc<SoftFabric>);

impl Fabric for SharedNics {
    type Rail = SoftRail;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn nics(&self) -> &[Nic] {
        self.0.nics()
    }

    fn usage(&self, nic: usize) -> Usage {
        self.0.usage(nic)
    }

    fn open(&self, nic: usize, config: &RailConfig) -> Result<SoftRail, OpenError> {
        self.0.open(nic, config)
    }
}

/// Facts that the test gives to attackers: each could be guessed or learned, so the defence must not depend on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VictimFacts {
    pub(crate) pid: u64,
    /// Where a canary is that is in no region.
    pub(crate) canary: u64,
    /// The local key of a region that no peer has rights to, which holds a canary too.
    pub(crate) private: u64,
    /// A remote key of memory that was retired.
    pub(crate) retired: u64,
    /// The port of its store, if it is rank 0 of a job that meets.
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

/// Memory that no other process may read or change: one in no region, one in a region without rights.
struct SecretCanaries {
    secret: [u8; 16],
    outside: Box<[u8]>,
    private: Memory,
    /// Keeps the private region and the keys.
    registrar: Arc<dyn Registrar>,
    _rail: SoftRail,
}

impl SecretCanaries {
    fn new(fabric: &SharedNics, secret: [u8; 16]) -> (Self, u64, u64) {
        let config = RailConfig {
            depth: 16,
            recv_depth: 16,
            recv_order: RecvOrder::Posted,
            links: 1,
            peer_time: Span::secs(5),
            rail_time: Span::secs(3),
            receives: false,
            traffic_class: None,
            many: false,
        };
        let rail = fabric.open(0, &config).unwrap();
        let registrar = rail.registrar();
        let bytes = secret.repeat(CANARY / secret.len());
        let private = Memory::heap(CANARY);
        private.write(0, &bytes).unwrap();
        let local = registrar.register(&private, Access::LOCAL, Purpose::Bounce).unwrap().local;
        let retired = registrar.register(&Memory::heap(4096), Access::ALL, Purpose::Bounce).unwrap();
        registrar.retire(retired.local).unwrap();
        let canaries = Self { secret, outside: bytes.into(), private, registrar, _rail: rail };
        (canaries, local.0, retired.remote.0)
    }

    fn are_whole(&self) -> bool {
        let mut private = vec![0; CANARY];
        self.private.read(0, &mut private).unwrap();
        let is_whole = |bytes: &[u8]| bytes.chunks(16).all(|part| part == self.secret);
        is_whole(&private)
            && is_whole(std::hint::black_box(&self.outside))
            && Arc::strong_count(&self.registrar) > 0
    }
}

/// A command of the test.
enum VictimCommand {
    /// Count messages for so long.
    Window(Duration),
    /// Send the results and end.
    Finish,
}

/// One of the two.
struct HonestMember {
    channel: TestChannel,
    job: Job<SharedNics, UnixHost>,
    context: ContextId,
    heap: Memory,
    canaries: SecretCanaries,
    lines: Arc<AtomicU64>,
    store: Option<JobStore>,
    me: u32,
    /// It has begun links to the attacker, as a member that has something to put there.
    calls_attacker: bool,
    message: Vec<u8>,
    round: u64,
    window: Option<(Instant, Duration, u64)>,
}

/// Plays a victim until the test ends it.
pub(crate) fn play(me: u32, mut channel: TestChannel) {
    let lines = Arc::new(AtomicU64::new(0));
    let (params, counted) = (params(), Arc::clone(&lines));
    let reach = Reach { mutant: params.mutant, ..Reach::default() };
    let host = UnixHost::reached(reach, move |_, line: &str| {
        counted.fetch_add(1, Ordering::Relaxed);
        println!("victim: {line}");
    });
    let secret = {
        use trunkline_fabric::Host as _;
        host.random()
    };
    let fabric = SharedNics(Arc::new(SoftFabric::new(SoftConfig::default()).unwrap()));
    let job = Job::new(fabric.clone(), host, params, Nics::from(0)).unwrap();
    let (canaries, private, retired) = SecretCanaries::new(&fabric, secret);
    channel.send(&job.card());
    let cards = channel.receive_cards();
    job.meet(me, &cards).unwrap();
    let heap = Memory::heap(HEAP);
    job.add_heap(heap.clone()).unwrap();
    let context = job.context().unwrap();
    // An idle context: events for it are queued and not read.
    job.context().unwrap();
    let [port, calls] = channel.receive_numbers()[..] else { panic!("the world says two numbers") };
    let calls_attacker = calls == 1 && me == 0;
    let store = u16::try_from(port).ok().filter(|port| *port != 0).map(|port| JobStore::new(me, port));
    let facts = VictimFacts {
        pid: std::process::id().into(),
        canary: canaries.outside.as_ptr().expose_provenance() as u64,
        private,
        retired,
        store: port,
    };
    channel.send_numbers(&facts.to_numbers());
    let message = (0..2 * LONG).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let (round, window) = (0, None);
    let mut victim = HonestMember {
        channel,
        job,
        context,
        heap,
        canaries,
        lines,
        store,
        me,
        calls_attacker,
        message,
        round,
        window,
    };
    let fault = victim.exchange().err();
    victim.finish(fault);
}

/// Why the messages of the pair ended.
#[derive(Debug)]
enum TrafficEnd {
    Asked,
    Fault(String),
}

impl From<RmaError> for TrafficEnd {
    fn from(error: RmaError) -> Self {
        Self::Fault(error.to_string())
    }
}

impl HonestMember {
    /// Sends messages to and fro until something is wrong or the test says that it is enough.
    fn exchange(&mut self) -> Result<(), TrafficEnd> {
        loop {
            let number = self.round + 1;
            if self.me == 0 {
                self.put_message(number)?;
            }
            self.until(|one| Ok((one.heap.load(FLAG).unwrap() == number).then_some(())))?;
            self.check_message(number)?;
            if self.me == 1 {
                self.put_message(number)?;
            }
            self.round = number;
            self.look()?;
        }
    }

    /// The bytes of a message: short and long ones by turns.
    fn bytes(&self, number: u64) -> &[u8] {
        let len = [64, 4096, LONG][number as usize % 3];
        &self.message[(number as usize * 8) % LONG..][..len]
    }

    fn put_message(&mut self, number: u64) -> Result<(), TrafficEnd> {
        let to = 1 - self.me;
        let len = self.bytes(number).len() as u64;
        self.heap.write(LEAVES, self.bytes(number)).unwrap();
        let mut done = 0;
        while done < len {
            let from = Source::Heap(Local { heap: 0, offset: LEAVES + done, len: len - done });
            done += self.until(|one| Ok(one.job.put(one.context, to, 0, ARRIVES + done, from)?))?;
        }
        let update = Update::new(SignalOp::Set, Word::new(0, FLAG, Width::Eight).unwrap(), number).unwrap();
        self.until(|one| Ok(one.job.signal(one.context, to, update)?.then_some(())))?;
        self.until(|one| Ok(one.job.quiet(one.context)?.then_some(())))
    }

    fn check_message(&mut self, number: u64) -> Result<(), TrafficEnd> {
        let expected = self.bytes(number);
        let mut got = vec![0; expected.len()];
        self.heap.read(ARRIVES, &mut got).unwrap();
        if got == expected {
            Ok(())
        } else {
            Err(TrafficEnd::Fault(format!("message {number} has wrong bytes")))
        }
    }

    /// Tries until it works, and goes on with everything meanwhile.
    fn until<T>(
        &mut self,
        mut f: impl FnMut(&Self) -> Result<Option<T>, TrafficEnd>,
    ) -> Result<T, TrafficEnd> {
        for step in 1_u32.. {
            if let Some(done) = f(self)? {
                return Ok(done);
            }
            self.job.progress(self.context)?;
            if step.is_multiple_of(LOOK_EVERY) {
                self.look()?;
            }
            // There are more processes than cores.
            if step.is_multiple_of(8) {
                std::thread::yield_now();
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
        if self.calls_attacker {
            // Whether it answers is its own affair.
            let _ = self.job.reaches(self.context, 2);
        }
        match self.channel.try_receive().map(|bytes| VictimCommand::from_bytes(&bytes)) {
            None => Ok(()),
            Some(VictimCommand::Window(length)) => {
                self.window = Some((Instant::now(), length, self.round));
                Ok(())
            }
            Some(VictimCommand::Finish) => Err(TrafficEnd::Asked),
        }
    }

    /// Sends the results: whether the canaries are whole, the number of log lines, the secret, and the fault as text.
    fn finish(mut self, end: Option<TrafficEnd>) {
        let mut fault = match end {
            None | Some(TrafficEnd::Asked) => String::new(),
            Some(TrafficEnd::Fault(fault)) => {
                println!("victim: {fault}");
                // The test asks for windows; with a fault none of them has messages.
                self.channel.wait_for_ever();
                loop {
                    match VictimCommand::from_bytes(&self.channel.receive()) {
                        VictimCommand::Window(_) => self.channel.send_numbers(&[0, 1]),
                        VictimCommand::Finish => break fault,
                    }
                }
            }
        };
        if let Some(met) = self.store.take().map(JobStore::join)
            && fault.is_empty()
        {
            fault = met.err().unwrap_or_default();
        }
        let whole = u64::from(self.canaries.are_whole() && self.heap.load(UNTOUCHED).unwrap() == 0);
        self.channel.send_numbers(&[whole, self.lines.load(Ordering::Relaxed), self.round]);
        self.channel.send(&self.canaries.secret);
        self.channel.send(fault.as_bytes());
        // The test ends it.
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
