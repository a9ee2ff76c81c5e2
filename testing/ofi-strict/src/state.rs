//! The state of a domain, all under one lock, and the part of it that endpoints use.

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

/// Bytes of the buffer for payload that is discarded or copied to an unexpected message.
const SCRATCH: usize = 64 << 10;

/// A completion queue to which an endpoint completes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueBinding {
    pub(crate) queue: u32,
    /// Whether success generates a completion only on request.
    pub(crate) is_selective: bool,
}

/// The attributes and bound objects of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndpointTerms {
    pub(crate) number: u32,
    pub(crate) caps: u64,
    pub(crate) order: u64,
    /// Flags of operations that specify none.
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    pub(crate) tx_depth: usize,
    pub(crate) rx_depth: usize,
    pub(crate) tx: Option<QueueBinding>,
    pub(crate) rx: Option<QueueBinding>,
    pub(crate) vector: Option<u32>,
}

/// Counters for the account.
#[derive(Default)]
pub(crate) struct AccountCounts {
    pub(crate) operations: BTreeMap<&'static str, u64>,
    pub(crate) eagain: u64,
    pub(crate) violations: u64,
    pub(crate) errors: u64,
}

/// The state of a domain.
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

/// The part of the domain's state that an endpoint uses.
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

/// Returns a random number that differs between domains. The seeded generator is not used, because two processes may
/// have the same seed.
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

    /// Returns a number for an object.
    pub(crate) fn next_number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// Returns a number for an endpoint, from 0 in the order of creation.
    pub(crate) fn next_endpoint(&mut self) -> u32 {
        self.next_endpoint += 1;
        self.next_endpoint - 1
    }

    /// Returns an endpoint, and the state that it uses.
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

    /// Makes progress on some endpoints.
    pub(crate) fn progress_endpoints(&mut self, endpoints: &[u32]) {
        for number in endpoints {
            if let Some((endpoint, mut world)) = self.endpoint_parts(*number) {
                endpoint.progress(&mut world);
            }
        }
    }

    /// Makes progress on all endpoints if progress is automatic.
    pub(crate) fn progress_unasked(&mut self) {
        if self.config.auto_progress {
            let all: Vec<_> = self.endpoints.keys().copied().collect();
            self.progress_endpoints(&all);
        }
    }

    /// Counts and reports a violation.
    pub(crate) fn report_violation(&mut self, line: &str) {
        self.counts.violations += 1;
        self.report.report_violation(line);
    }

    /// Reports the violation, if a rule was broken; returns the call's error number.
    pub(crate) fn report_broken(&mut self, broken: &BrokenRule) -> i32 {
        if let Some(line) = &broken.line {
            self.report_violation(line);
        }
        broken.error
    }

    /// Decides whether this call returns `EAGAIN` without effect.
    pub(crate) fn says_again(&mut self) -> bool {
        let again = self.config.eagain > 0.0 && self.rng.f64() < self.config.eagain;
        self.counts.eagain += u64::from(again);
        again
    }

    /// Returns the account of the domain, one line of JSON.
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

    /// Checks the access of a peer.
    ///
    /// # Errors
    /// The error number of [`MrRegistry::check_remote`]; a violation has already been reported.
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

    /// Whether peers must wait until completions are read.
    pub(crate) fn is_rx_full(&self) -> bool {
        let queue = self.terms.rx.and_then(|rx| self.queues.get(&rx.queue));
        queue.is_some_and(StrictQueue::is_full)
    }

    fn address_vector(&self) -> Option<&AddressVector> {
        self.terms.vector.and_then(|vector| self.vectors.get(&vector))
    }

    /// Returns the number of a source, or [`ADDR_NOTAVAIL`] without [`caps::SOURCE`].
    pub(crate) fn source(&self, address: &StrictAddress) -> Addr {
        let vector = self.address_vector().filter(|_| self.terms.caps & caps::SOURCE != 0);
        vector.map_or(ADDR_NOTAVAIL, |vector| vector.find_addr(address))
    }

    /// Returns the address of a peer.
    ///
    /// # Errors
    /// If the address vector does not contain it.
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

    /// Adds a completion to the receive queue.
    pub(crate) fn complete_rx(&mut self, completion: StrictCompletion) {
        self.push_completion(self.terms.rx, completion);
    }

    /// Completes an operation.
    pub(crate) fn complete_operation(&mut self, operation: &PendingOperation, error: i32) {
        self.memory.update_uses(&operation.uses, false);
        if operation.tells || error != 0 {
            let context = operation.context;
            let flags = operation.flags;
            let told = StrictCompletion { context, flags, error, ..StrictCompletion::NOTHING };
            self.push_completion(self.terms.tx, told);
        }
    }

    /// Completes a receive whose message has arrived.
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

    /// Delivers an unexpected message to its receive.
    pub(crate) fn deliver_message(
        &mut self,
        receive: WaitingReceive,
        message: &UnmatchedMessage,
        answers: &mut Vec<(u64, WireAnswer)>,
    ) {
        let envelope = &message.envelope;
        // SAFETY: the program passed these ranges to be written until the receive completes, which happens below.
        unsafe { memory::copy_out(&message.bytes, &receive.ranges) };
        let tag = envelope.is_tagged.then_some(envelope.tag);
        self.complete_receive(receive, envelope.src, tag, envelope.data, envelope.len);
        if let Some((connection, op)) = envelope.answer {
            answers.push((connection, WireAnswer::Done { op, error: 0 }));
        }
    }

    /// Completes a cancelled receive.
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
