//! What a domain holds, all of it under one lock, and what an endpoint's work may touch of it.

use std::collections::BTreeMap;

use trunkline_sys::ofi::{ADDR_NOTAVAIL, Addr, caps, errno};

use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::matching::{Receive, Unexpected};
use crate::memory::{self, Range};
use crate::outgoing::Operation;
use crate::peers::Vector;
use crate::queue::{Completion, Queue, receive_flags};
use crate::registry::{Broken, MrId, Registry, rights_text};
use crate::report::Report;
use crate::wire::{Address, Answer, Tag};

/// Bytes that pass through us on their way to nowhere, or to a message that waits.
const SCRATCH: usize = 64 << 10;

/// A queue that an endpoint completes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    pub(crate) queue: u32,
    /// Whether success is told only where that is asked for.
    pub(crate) is_selective: bool,
}

/// What an endpoint was made with and bound to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) number: u32,
    pub(crate) caps: u64,
    pub(crate) order: u64,
    /// Flags of operations that are given none.
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    pub(crate) tx_depth: usize,
    pub(crate) rx_depth: usize,
    pub(crate) tx: Option<Binding>,
    pub(crate) rx: Option<Binding>,
    pub(crate) vector: Option<u32>,
}

/// What was done, for the account.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) operations: BTreeMap<&'static str, u64>,
    pub(crate) eagain: u64,
    pub(crate) violations: u64,
    pub(crate) errors: u64,
}

/// All of a domain.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) report: Report,
    pub(crate) rng: fastrand::Rng,
    pub(crate) counts: Counts,
    pub(crate) memory: Registry,
    pub(crate) endpoints: BTreeMap<u32, Endpoint>,
    pub(crate) queues: BTreeMap<u32, Queue>,
    pub(crate) vectors: BTreeMap<u32, Vector>,
    next: u32,
    next_endpoint: u32,
    scratch: Vec<u8>,
}

/// What an endpoint's work may touch.
pub(crate) struct World<'a> {
    pub(crate) terms: Terms,
    pub(crate) memory: &'a mut Registry,
    pub(crate) scratch: &'a mut [u8],
    pub(crate) rng: &'a mut fastrand::Rng,
    pub(crate) config: &'a Config,
    queues: &'a mut BTreeMap<u32, Queue>,
    vectors: &'a BTreeMap<u32, Vector>,
    report: &'a Report,
    counts: &'a mut Counts,
}

/// Something that no other domain has: not chance that a seed repeats, as two processes may have the same.
fn noise() -> u64 {
    let address = crate::socket::random_address().unwrap_or_default();
    u64::from_le_bytes(std::array::from_fn(|at| address[at]))
}

impl State {
    pub(crate) fn new(config: Config, nic: u32) -> Self {
        Self {
            report: Report::new(&config),
            rng: fastrand::Rng::with_seed(config.seed.wrapping_add(u64::from(nic) << 32)),
            counts: Counts::default(),
            memory: Registry::new(config.mr_mode, config.entries, noise()),
            endpoints: BTreeMap::new(),
            queues: BTreeMap::new(),
            vectors: BTreeMap::new(),
            next: 0,
            next_endpoint: 0,
            scratch: vec![0; SCRATCH],
            config,
        }
    }

    /// A number for an object.
    pub(crate) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// A number for an endpoint: they count from 0 in the order of their making.
    pub(crate) fn next_endpoint(&mut self) -> u32 {
        self.next_endpoint += 1;
        self.next_endpoint - 1
    }

    /// An endpoint, and what its work may touch.
    pub(crate) fn parts(&mut self, endpoint: u32) -> Option<(&mut Endpoint, World<'_>)> {
        let endpoint = self.endpoints.get_mut(&endpoint)?;
        let world = World {
            terms: endpoint.terms,
            memory: &mut self.memory,
            scratch: &mut self.scratch,
            rng: &mut self.rng,
            config: &self.config,
            queues: &mut self.queues,
            vectors: &self.vectors,
            report: &self.report,
            counts: &mut self.counts,
        };
        Some((endpoint, world))
    }

    /// Lets endpoints go on.
    pub(crate) fn progress(&mut self, endpoints: &[u32]) {
        for number in endpoints {
            if let Some((endpoint, mut world)) = self.parts(*number) {
                endpoint.progress(&mut world);
            }
        }
    }

    /// Lets all go on, where that is done at each call.
    pub(crate) fn progress_unasked(&mut self) {
        if self.config.auto_progress {
            let all: Vec<_> = self.endpoints.keys().copied().collect();
            self.progress(&all);
        }
    }

    /// A rule was broken.
    pub(crate) fn violation(&mut self, line: &str) {
        self.counts.violations += 1;
        self.report.violation(line);
    }

    /// Says what was broken, if it was a rule; what the call returns.
    pub(crate) fn broken(&mut self, broken: &Broken) -> i32 {
        if let Some(line) = &broken.line {
            self.violation(line);
        }
        broken.error
    }

    /// Whether this call has no effect and is to be made again.
    pub(crate) fn says_again(&mut self) -> bool {
        let again = self.config.eagain > 0.0 && self.rng.f64() < self.config.eagain;
        self.counts.eagain += u64::from(again);
        again
    }

    /// The account of the domain, one line of JSON.
    pub(crate) fn account(&self, domain: &str, at: &str) -> String {
        let mut made = Vec::new();
        for (endpoint, rights, count) in self.memory.made() {
            let rights = rights_text(rights);
            made.push(serde_json::json!({ "endpoint": endpoint, "rights": rights, "count": count }));
        }
        serde_json::json!({
            "strict": at,
            "domain": domain,
            "pid": std::process::id(),
            "registrations": made,
            "most_entries": self.memory.most_entries(),
            "live": {
                "endpoints": self.endpoints.len(),
                "registrations": self.memory.live(),
                "queues": self.queues.len(),
                "vectors": self.vectors.len(),
            },
            "operations": self.counts.operations,
            "errors": self.counts.errors,
            "eagain": self.counts.eagain,
            "violations": self.counts.violations,
        })
        .to_string()
    }
}

impl World<'_> {
    pub(crate) fn violation(&mut self, line: &str) {
        self.counts.violations += 1;
        self.report.violation(line);
    }

    /// What a peer may touch, or an error number for it.
    ///
    /// # Errors
    /// As [`Registry::remote`], already told.
    pub(crate) fn remote(
        &mut self,
        key: u64,
        addr: u64,
        len: u64,
        is_write: bool,
    ) -> Result<(MrId, Range), i32> {
        self.memory.remote(self.terms.number, key, addr, len, is_write).map_err(|broken| {
            if let Some(line) = &broken.line {
                self.violation(line);
            }
            broken.error
        })
    }

    /// Whether peers have to wait until completions are read.
    pub(crate) fn is_rx_full(&self) -> bool {
        let queue = self.terms.rx.and_then(|rx| self.queues.get(&rx.queue));
        queue.is_some_and(Queue::is_full)
    }

    fn vector(&self) -> Option<&Vector> {
        self.terms.vector.and_then(|vector| self.vectors.get(&vector))
    }

    /// Who an address is, where that is told.
    pub(crate) fn source(&self, address: &Address) -> Addr {
        let vector = self.vector().filter(|_| self.terms.caps & caps::SOURCE != 0);
        vector.map_or(ADDR_NOTAVAIL, |vector| vector.find(address))
    }

    /// The address of a peer.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn address(&self, addr: Addr) -> Result<Address, Broken> {
        let found = self.vector().and_then(|vector| vector.lookup(addr));
        found.ok_or_else(|| Broken::rule(errno::EINVAL, format!("peer {addr:#x} is in no address vector")))
    }

    fn complete(&mut self, binding: Option<Binding>, completion: Completion) {
        self.counts.errors += u64::from(completion.error != 0);
        if let Some(queue) = binding.and_then(|binding| self.queues.get_mut(&binding.queue)) {
            queue.push(completion, self.rng, self.config.reorder);
        }
    }

    /// Tells what a peer did.
    pub(crate) fn complete_rx(&mut self, completion: Completion) {
        self.complete(self.terms.rx, completion);
    }

    /// An operation has ended.
    pub(crate) fn ended(&mut self, operation: &Operation, error: i32) {
        self.memory.hold(&operation.uses, false);
        if operation.tells || error != 0 {
            let context = operation.context;
            let flags = operation.flags;
            let told = Completion { context, flags, error, ..Completion::NOTHING };
            self.complete(self.terms.tx, told);
        }
    }

    /// A receive has its message.
    pub(crate) fn received(
        &mut self,
        receive: Receive,
        (src, tag, data, len): (Address, Tag, Option<u64>, usize),
    ) {
        self.memory.hold(&receive.uses, false);
        let excess = len.saturating_sub(memory::total(&receive.ranges).unwrap_or(usize::MAX));
        if !receive.tells && excess == 0 {
            return;
        }
        let told = Completion {
            context: receive.context,
            flags: receive_flags(tag.is_some(), data.is_some()),
            len: len - excess,
            data: data.unwrap_or(0),
            tag: tag.unwrap_or(0),
            src: self.source(&src),
            error: if excess > 0 { errno::ETRUNC } else { 0 },
            excess,
        };
        self.complete_rx(told);
    }

    /// A message that waited gets to its receive.
    pub(crate) fn deliver(
        &mut self,
        receive: Receive,
        message: &Unexpected,
        answers: &mut Vec<(u64, Answer)>,
    ) {
        let envelope = &message.envelope;
        // SAFETY: the program gave these ranges to be written until the receive completes, which is now.
        unsafe { memory::copy_out(&message.bytes, &receive.ranges) };
        let tag = envelope.is_tagged.then_some(envelope.tag);
        self.received(receive, (envelope.src, tag, envelope.data, envelope.len));
        if let Some((connection, op)) = envelope.answer {
            answers.push((connection, Answer::Done { op, error: 0 }));
        }
    }

    /// A receive that will have no message.
    pub(crate) fn cancelled(&mut self, receive: &Receive, is_tagged: bool) {
        self.memory.hold(&receive.uses, false);
        let flags = receive_flags(is_tagged, false);
        let told = Completion {
            context: receive.context,
            flags,
            tag: receive.tag,
            error: errno::ECANCELED,
            ..Completion::NOTHING
        };
        self.complete_rx(told);
    }
}
