//! All pages at one moment, and the rates since the previous sample.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use trunkline_proto::counters::{Counters, MessageCounts};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::status::group::RECORDS;
use trunkline_proto::wire::status::{
    CommRecord, CommState, ControlStreams, FaultCode, NicUsage, QueueGroupRecord,
};

use super::find::{FoundPages, PageFindError, PageFinder, RefusedPage, ShownProcess};
use super::node::{self, NodeEndpoint};

/// The time between the two polls of a single sample with rates.
const ONCE: Duration = Duration::from_millis(200);

/// All pages at one moment.
#[derive(Debug)]
pub(crate) struct StatusSample {
    /// Processes with a status page, by id.
    pub(crate) processes: Vec<ProcessSample>,
    /// Endpoints that share memory inside their node, by process.
    pub(crate) nodes: Vec<NodeEndpoint>,
    /// Pages that cannot be used.
    pub(crate) refused: Vec<RefusedPage>,
    /// Processes that may not be inspected.
    pub(crate) hidden: usize,
}

/// One process.
#[derive(Debug)]
pub(crate) struct ProcessSample {
    pub(crate) pid: u32,
    pub(crate) command: String,
    pub(crate) id: ProcessId,
    pub(crate) fabric: String,
    pub(crate) nics: Vec<String>,
    /// The queues of each NIC that are in use.
    pub(crate) usage: Vec<NicUsage>,
    /// Number of its groups of shared queue pairs; may be more than `groups` contains.
    pub(crate) group_count: u32,
    /// The groups that it shows, by index.
    pub(crate) groups: [Option<QueueGroupRecord>; RECORDS],
    /// Its control streams to other hosts.
    pub(crate) control: ControlStreams,
    /// When its page was created, since 1970.
    pub(crate) since: Duration,
    /// How long ago that was.
    pub(crate) up: Duration,
    pub(crate) fault: Option<FaultCode>,
    pub(crate) counters: Counters,
    pub(crate) rates: Option<MessageRates>,
    pub(crate) comms: Vec<CommSample>,
}

/// One comm of it.
#[derive(Debug)]
pub(crate) struct CommSample {
    /// Its index among the process's comms.
    pub(crate) index: usize,
    pub(crate) comm: CommRecord,
    pub(crate) counts: MessageCounts,
    pub(crate) rates: Option<MessageRates>,
}

/// Events per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageRates {
    pub(crate) messages_sent: f64,
    pub(crate) bytes_sent: f64,
    pub(crate) messages_received: f64,
    pub(crate) bytes_received: f64,
    pub(crate) calls_again: f64,
}

impl ProcessSample {
    /// Comms that are open, or failed and not closed.
    pub(crate) fn open_comms(&self) -> u64 {
        self.counters.comms_opened.saturating_sub(self.counters.comms_closed)
    }
}

impl ProcessSample {
    /// The usage of the NIC with the largest share of its queue pairs in use.
    pub(crate) fn fullest_nic(&self) -> NicUsage {
        let share = |usage: &&NicUsage| {
            u64::from(usage.queue_pairs) * u64::from(u32::MAX) / u64::from(usage.queue_pairs_max.max(1))
        };
        self.usage.iter().max_by_key(share).copied().unwrap_or_default()
    }
}

impl CommSample {
    pub(crate) fn is_open(&self) -> bool {
        self.comm.state != CommState::Closed
    }
}

impl StatusSample {
    /// Takes a single sample of all processes or of one. With rates, it polls twice.
    ///
    /// # Errors
    /// [`PageFindError`], as from [`find_pages`](PageFinder::find_pages).
    pub(crate) fn take_once(only: Option<u32>, with_rates: bool) -> Result<Self, PageFindError> {
        let mut finder = PageFinder::new(only);
        let mut sampler = StatusSampler::default();
        let sample = sampler.take_sample(finder.find_pages()?);
        if !with_rates || (sample.processes.is_empty() && sample.nodes.is_empty()) {
            return Ok(sample);
        }
        std::thread::sleep(ONCE);
        Ok(sampler.take_sample(finder.find_pages()?))
    }
}

/// The counters that rates are computed from.
type CounterSnapshot = [u64; 5];

/// Identifies a comm of a process among all others.
type CommKey = (ProcessId, usize, u16);

/// Computes samples, and stores the counters of the previous one.
#[derive(Debug, Default)]
pub(crate) struct StatusSampler {
    before: Option<Instant>,
    processes: HashMap<ProcessId, CounterSnapshot>,
    comms: HashMap<CommKey, CounterSnapshot>,
    nodes: HashMap<ProcessId, node::NodeSnapshot>,
}

impl StatusSampler {
    /// Makes a sample from the pages that were just read.
    pub(crate) fn take_sample(&mut self, found: FoundPages) -> StatusSample {
        let now = Instant::now();
        let passed = self.before.replace(now).map(|before| (now - before).as_secs_f64());
        let processes = std::mem::take(&mut self.processes);
        let comms = std::mem::take(&mut self.comms);
        let FoundPages { shown, nodes, refused, hidden } = found;
        let processes = shown.into_iter().map(|shown| {
            let mut process = ProcessSample::from_shown(shown);
            let past = process.to_snapshot();
            process.rates = rates_since(past, processes.get(&process.id), passed);
            self.processes.insert(process.id, past);
            for conn in &mut process.comms {
                let key = (process.id, conn.index, conn.comm.generation);
                let past = conn.to_snapshot();
                conn.rates = rates_since(past, comms.get(&key), passed);
                self.comms.insert(key, past);
            }
            process
        });
        let processes = processes.collect();
        let before = std::mem::take(&mut self.nodes);
        let nodes = nodes.into_iter().map(|shown| {
            let key = shown.page.owner.process;
            let node = NodeEndpoint::from_shown(shown, before.get(&key));
            self.nodes.insert(key, node.to_snapshot());
            node
        });
        StatusSample { processes, nodes: nodes.collect(), refused, hidden }
    }
}

fn rates_since(
    now: CounterSnapshot,
    before: Option<&CounterSnapshot>,
    passed: Option<f64>,
) -> Option<MessageRates> {
    let before = before?;
    let passed = passed.filter(|passed| *passed > 0.0)?;
    // A counter may be smaller than in the previous copy, because copies are not atomic; its rate is then 0.
    let rate = |at: usize| now[at].saturating_sub(before[at]) as f64 / passed;
    Some(MessageRates {
        messages_sent: rate(0),
        bytes_sent: rate(1),
        messages_received: rate(2),
        bytes_received: rate(3),
        calls_again: rate(4),
    })
}

impl ProcessSample {
    fn from_shown(shown: ShownProcess) -> Self {
        let counters = shown.status.process_counters();
        let ShownProcess { pid, command, status } = shown;
        let since = Duration::from_nanos(status.head.made_unix);
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let comms = status.rows.iter().enumerate().filter_map(|(index, row)| {
            Some(CommSample { index, comm: row.comm?, counts: row.comm_counts(), rates: None })
        });
        Self {
            pid,
            command,
            id: status.head.process,
            since,
            up: today.saturating_sub(since),
            fault: status.head.fault,
            counters,
            rates: None,
            comms: comms.collect(),
            fabric: status.head.fabric,
            nics: status.head.nics,
            usage: status.head.usage,
            group_count: status.head.groups,
            groups: status.head.records,
            control: status.head.control,
        }
    }

    fn to_snapshot(&self) -> CounterSnapshot {
        let c = &self.counters;
        [c.messages_sent, c.bytes_sent, c.messages_received, c.bytes_received, c.calls_again]
    }
}

impl CommSample {
    fn to_snapshot(&self) -> CounterSnapshot {
        let c = &self.counts;
        [c.sent, c.sent_bytes, c.received, c.received_bytes, c.again]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_a_moment_before_and_are_never_below_zero() {
        let now = [10, 200, 0, 5, 7];
        assert!(rates_since(now, None, Some(1.0)).is_none());
        assert!(rates_since(now, Some(&[0; 5]), None).is_none());
        let rates = rates_since(now, Some(&[4, 100, 0, 6, 7]), Some(0.5)).unwrap();
        assert_eq!((rates.messages_sent, rates.bytes_sent), (12.0, 200.0));
        assert_eq!((rates.bytes_received, rates.calls_again), (0.0, 0.0));
    }
}
