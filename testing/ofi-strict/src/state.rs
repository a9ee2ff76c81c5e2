//! What a domain holds, all of it under one lock, and what an endpoint's work may touch of it.

use std::collections::BTreeMap;

use trunkline_sys::ofi::{ADDR_NOTAVAIL, Addr, caps, errno};

use crate::address_vector::AddressVector;
use crate::config::StrictConfig;
use crate::endpoint::StrictEndpoint;
use crate::matching::{UnmatchedMessage, WaitingReceive};
use crate::memory::{self, ProgramRange};
use crate::outgoing::PendingOperation;
use crate::queue::{StrictCompletion, StrictQueue, receive_flags};
use crate::registry::{BrokenRule, MrRegistry, StrictMrId, rights_text};
use crate::report::ViolationReport;
use crate::wire::{MessageTag, StrictAddress, WireAnswer};

/// Bytes that pass through us on their way to nowhere, or to a message that waits.
const SCRATCH: usize = 64 << 10;

/// A queue that an endpoint completes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueBinding {
    pub(crate) queue: u32,
    /// Whether success is told only where that is asked for.
    pub(crate) is_selective: bool,
}

/// What an endpoint was made with and bound to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndpointTerms {
    pub(crate) number: u32,
    pub(crate) caps: u64,
    pub(crate) order: u64,
    /// Flags of operations that are given none.
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    pub(crate) tx_depth: usize,
    pub(crate) rx_depth: usize,
    pub(crate) tx: Option<QueueBinding>,
    pub(crate) rx: Option<QueueBinding>,
    pub(crate) vector: Option<u32>,
}

/// What was done, for the account.
#[derive(Default)]
pub(crate) struct AccountCounts {
    pub(crate) operations: BTreeMap<&'static str, u64>,
    pub(crate) eagain: u64,
    pub(crate) violations: u64,
    pub(crate) errors: u64,
}

/// All of a domain.
pub(crate) struct DomainContents {
    pub(crate) config: StrictConfig,
    pub(crate) report: ViolationReport,
    pub(crate) rng: fastrand::Rng,
    pub(crate) counts: AccountCounts,
    pub(crate) memory: MrRegistry,
    pub(crate) endpoints: BTreeMap<u32, StrictEndpoint>,
    pub(crate) queues: BTreeMap<u32, StrictQueue>,
    pub(crate) vectors: BTreeMap<u32, AddressVector>,
    next: u32,
    next_endpoint: u32,
    scratch: Vec<u8>,
}

/// What an endpoint's work may touch.
pub(crate) struct EndpointContext<'a> {
    pub(crate) terms: EndpointTerms,
    pub(crate) memory: &'a mut MrRegistry,
    pub(crate) scratch: &'a mut [u8],
    pub(crate) rng: &'a mut fastrand::Rng,
    pub(crate) config: &'a StrictConfig,
    queues: &'a mut BTreeMap<u32, StrictQueue>,
    vectors: &'a BTreeMap<u32, AddressVector>,
    report: &'a ViolationReport,
    counts: &'a mut AccountCounts,
}

/// Something that no other domain has: not chance that a seed repeats, as two processes may have the same.
fn domain_noise() -> u64 {
    let address = crate::socket::random_address().unwrap_or_default();
    u64::from_le_bytes(std::array::from_fn(|at| address[at]))
}

impl DomainContents {
    pub(crate) fn new(config: StrictConfig, nic: u32) -> Self {
        Self {
            report: ViolationReport::new(&config),
            rng: fastrand::Rng::with_seed(config.seed.wrapping_add(u64::from(nic) << 32)),
            counts: AccountCounts::default(),
            memory: MrRegistry::new(config.mr_mode, config.entries, domain_noise()),
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
    pub(crate) fn next_number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// A number for an endpoint: they count from 0 in the order of their making.
    pub(crate) fn next_endpoint(&mut self) -> u32 {
        self.next_endpoint += 1;
        self.next_endpoint - 1
    }

    /// An endpoint, and what its work may touch.
    pub(crate) fn endpoint_parts(
        &mut self,
        endpoint: u32,
    ) -> Option<(&mut StrictEndpoint, EndpointContext<'_>)> {
        let endpoint = self.endpoints.get_mut(&endpoint)?;
        let world = EndpointContext {
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
    pub(crate) fn progress_endpoints(&mut self, endpoints: &[u32]) {
        for number in endpoints {
            if let Some((endpoint, mut world)) = self.endpoint_parts(*number) {
                endpoint.progress(&mut world);
            }
        }
    }

    /// Lets all go on, where that is done at each call.
    pub(crate) fn progress_unasked(&mut self) {
        if self.config.auto_progress {
            let all: Vec<_> = self.endpoints.keys().copied().collect();
            self.progress_endpoints(&all);
        }
    }

    /// A rule was broken.
    pub(crate) fn report_violation(&mut self, line: &str) {
        self.counts.violations += 1;
        self.report.report_violation(line);
    }

    /// Says what was broken, if it was a rule; what the call returns.
    pub(crate) fn report_broken(&mut self, broken: &BrokenRule) -> i32 {
        if let Some(line) = &broken.line {
            self.report_violation(line);
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
    pub(crate) fn account_line(&self, domain: &str, at: &str) -> String {
        let mut made = Vec::new();
        for (endpoint, rights, count) in self.memory.enabled_counts() {
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
                "registrations": self.memory.live_count(),
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

impl EndpointContext<'_> {
    pub(crate) fn report_violation(&mut self, line: &str) {
        self.counts.violations += 1;
        self.report.report_violation(line);
    }

    /// What a peer may touch, or an error number for it.
    ///
    /// # Errors
    /// As [`MrRegistry::check_remote`], already told.
    pub(crate) fn check_remote(
        &mut self,
        key: u64,
        addr: u64,
        len: u64,
        is_write: bool,
    ) -> Result<(StrictMrId, ProgramRange), i32> {
        self.memory.check_remote(self.terms.number, key, addr, len, is_write).map_err(|broken| {
            if let Some(line) = &broken.line {
                self.report_violation(line);
            }
            broken.error
        })
    }

    /// Whether peers have to wait until completions are read.
    pub(crate) fn is_rx_full(&self) -> bool {
        let queue = self.terms.rx.and_then(|rx| self.queues.get(&rx.queue));
        queue.is_some_and(StrictQueue::is_full)
    }

    fn address_vector(&self) -> Option<&AddressVector> {
        self.terms.vector.and_then(|vector| self.vectors.get(&vector))
    }

    /// Who an address is, where that is told.
    pub(crate) fn source(&self, address: &StrictAddress) -> Addr {
        let vector = self.address_vector().filter(|_| self.terms.caps & caps::SOURCE != 0);
        vector.map_or(ADDR_NOTAVAIL, |vector| vector.find_addr(address))
    }

    /// The address of a peer.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn peer_address(&self, addr: Addr) -> Result<StrictAddress, BrokenRule> {
        let found = self.address_vector().and_then(|vector| vector.lookup_address(addr));
        found.ok_or_else(|| {
            BrokenRule::with_rule(errno::EINVAL, format!("peer {addr:#x} is in no address vector"))
        })
    }

    fn push_completion(&mut self, binding: Option<QueueBinding>, completion: StrictCompletion) {
        self.counts.errors += u64::from(completion.error != 0);
        if let Some(queue) = binding.and_then(|binding| self.queues.get_mut(&binding.queue)) {
            queue.push(completion, self.rng, self.config.reorder);
        }
    }

    /// Tells what a peer did.
    pub(crate) fn complete_rx(&mut self, completion: StrictCompletion) {
        self.push_completion(self.terms.rx, completion);
    }

    /// An operation has ended.
    pub(crate) fn complete_operation(&mut self, operation: &PendingOperation, error: i32) {
        self.memory.update_uses(&operation.uses, false);
        if operation.tells || error != 0 {
            let context = operation.context;
            let flags = operation.flags;
            let told = StrictCompletion { context, flags, error, ..StrictCompletion::NOTHING };
            self.push_completion(self.terms.tx, told);
        }
    }

    /// A receive has its message.
    pub(crate) fn complete_receive(
        &mut self,
        receive: WaitingReceive,
        src: StrictAddress,
        tag: MessageTag,
        data: Option<u64>,
        len: usize,
    ) {
        self.memory.update_uses(&receive.uses, false);
        let excess = len.saturating_sub(memory::total_len(&receive.ranges).unwrap_or(usize::MAX));
        if !receive.tells && excess == 0 {
            return;
        }
        let told = StrictCompletion {
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
    pub(crate) fn deliver_message(
        &mut self,
        receive: WaitingReceive,
        message: &UnmatchedMessage,
        answers: &mut Vec<(u64, WireAnswer)>,
    ) {
        let envelope = &message.envelope;
        // SAFETY: the program gave these ranges to be written until the receive completes, which is now.
        unsafe { memory::copy_out(&message.bytes, &receive.ranges) };
        let tag = envelope.is_tagged.then_some(envelope.tag);
        self.complete_receive(receive, envelope.src, tag, envelope.data, envelope.len);
        if let Some((connection, op)) = envelope.answer {
            answers.push((connection, WireAnswer::Done { op, error: 0 }));
        }
    }

    /// A receive that will have no message.
    pub(crate) fn complete_cancelled(&mut self, receive: &WaitingReceive, is_tagged: bool) {
        self.memory.update_uses(&receive.uses, false);
        let flags = receive_flags(is_tagged, false);
        let told = StrictCompletion {
            context: receive.context,
            flags,
            tag: receive.tag,
            error: errno::ECANCELED,
            ..StrictCompletion::NOTHING
        };
        self.complete_rx(told);
    }
}
