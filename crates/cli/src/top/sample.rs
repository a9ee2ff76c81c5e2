//! What is shown at one moment, and how fast it changed since the moment before.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use trunkline_proto::counters::{Counters, Counts};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::status::group::RECORDS;
use trunkline_proto::wire::status::{Comm, ControlStreams, Fault, Group, State, Usage};

use super::find::{FindError, Finder, Found, Refused, Shown};
use super::node::{self, Node};

/// The time over which a single look measures rates.
const ONCE: Duration = Duration::from_millis(200);

/// Everything at one moment.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Processes with a page, by number.
    pub(crate) processes: Vec<Process>,
    /// Endpoints that share memory inside their node, by process.
    pub(crate) nodes: Vec<Node>,
    /// Pages that cannot be used.
    pub(crate) refused: Vec<Refused>,
    /// Processes that may not be looked into.
    pub(crate) hidden: usize,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) command: String,
    pub(crate) id: ProcessId,
    pub(crate) fabric: String,
    pub(crate) nics: Vec<String>,
    /// What each of them has in use.
    pub(crate) usage: Vec<Usage>,
    /// Groups of shared queue pairs that it has; more than it shows if it has many.
    pub(crate) group_count: u32,
    /// Those that it shows, each in its place.
    pub(crate) groups: [Option<Group>; RECORDS],
    /// Its control streams to other hosts.
    pub(crate) control: ControlStreams,
    /// When its page was made, since 1970.
    pub(crate) since: Duration,
    /// How long that is ago.
    pub(crate) up: Duration,
    pub(crate) fault: Option<Fault>,
    pub(crate) counters: Counters,
    pub(crate) rates: Option<Rates>,
    pub(crate) comms: Vec<Conn>,
}

/// One comm of it.
#[derive(Debug)]
pub(crate) struct Conn {
    /// Which of the process's comms.
    pub(crate) index: usize,
    pub(crate) comm: Comm,
    pub(crate) counts: Counts,
    pub(crate) rates: Option<Rates>,
}

/// So much a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) messages_sent: f64,
    pub(crate) bytes_sent: f64,
    pub(crate) messages_received: f64,
    pub(crate) bytes_received: f64,
    pub(crate) calls_again: f64,
}

impl Process {
    /// Comms that are open or failed and not closed.
    pub(crate) fn open(&self) -> u64 {
        self.counters.comms_opened.saturating_sub(self.counters.comms_closed)
    }
}

impl Process {
    /// What the NIC has in use that has the most of its queue pairs in use.
    pub(crate) fn fullest(&self) -> Usage {
        let share = |usage: &&Usage| {
            u64::from(usage.queue_pairs) * u64::from(u32::MAX) / u64::from(usage.queue_pairs_max.max(1))
        };
        self.usage.iter().max_by_key(share).copied().unwrap_or_default()
    }
}

impl Conn {
    pub(crate) fn is_open(&self) -> bool {
        self.comm.state != State::Closed
    }
}

impl Sample {
    /// A single look at all processes or at one; with rates, for which it looks twice.
    ///
    /// # Errors
    /// [`FindError`], as when [looking](Finder::look).
    pub(crate) fn once(only: Option<u32>, with_rates: bool) -> Result<Self, FindError> {
        let mut finder = Finder::new(only);
        let mut sampler = Sampler::default();
        let sample = sampler.take(finder.look()?);
        if !with_rates || (sample.processes.is_empty() && sample.nodes.is_empty()) {
            return Ok(sample);
        }
        std::thread::sleep(ONCE);
        Ok(sampler.take(finder.look()?))
    }
}

/// The counted values that rates are made of.
type Past = [u64; 5];

/// What tells one comm of one process from all others.
type CommKey = (ProcessId, usize, u16);

/// Remembers the moment before.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    before: Option<Instant>,
    processes: HashMap<ProcessId, Past>,
    comms: HashMap<CommKey, Past>,
    nodes: HashMap<ProcessId, node::Past>,
}

impl Sampler {
    /// What was found just now.
    pub(crate) fn take(&mut self, found: Found) -> Sample {
        let now = Instant::now();
        let passed = self.before.replace(now).map(|before| (now - before).as_secs_f64());
        let processes = std::mem::take(&mut self.processes);
        let comms = std::mem::take(&mut self.comms);
        let Found { shown, nodes, refused, hidden } = found;
        let processes = shown.into_iter().map(|shown| {
            let mut process = Process::of(shown);
            let past = process.past();
            process.rates = rates(past, processes.get(&process.id), passed);
            self.processes.insert(process.id, past);
            for conn in &mut process.comms {
                let key = (process.id, conn.index, conn.comm.generation);
                let past = conn.past();
                conn.rates = rates(past, comms.get(&key), passed);
                self.comms.insert(key, past);
            }
            process
        });
        let processes = processes.collect();
        let before = std::mem::take(&mut self.nodes);
        let nodes = nodes.into_iter().map(|shown| {
            let key = shown.page.owner.process;
            let node = Node::of(shown, before.get(&key));
            self.nodes.insert(key, node.past());
            node
        });
        Sample { processes, nodes: nodes.collect(), refused, hidden }
    }
}

fn rates(now: Past, before: Option<&Past>, passed: Option<f64>) -> Option<Rates> {
    let before = before?;
    let passed = passed.filter(|passed| *passed > 0.0)?;
    // A copy may be older in one word than the one before it, which is no rate.
    let rate = |at: usize| now[at].saturating_sub(before[at]) as f64 / passed;
    Some(Rates {
        messages_sent: rate(0),
        bytes_sent: rate(1),
        messages_received: rate(2),
        bytes_received: rate(3),
        calls_again: rate(4),
    })
}

impl Process {
    fn of(shown: Shown) -> Self {
        let counters = shown.status.counters();
        let Shown { pid, command, status } = shown;
        let since = Duration::from_nanos(status.head.made_unix);
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let comms =
            status.rows.iter().enumerate().filter_map(|(index, row)| {
                Some(Conn { index, comm: row.comm?, counts: row.own(), rates: None })
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

    fn past(&self) -> Past {
        let c = &self.counters;
        [c.messages_sent, c.bytes_sent, c.messages_received, c.bytes_received, c.calls_again]
    }
}

impl Conn {
    fn past(&self) -> Past {
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
        assert!(rates(now, None, Some(1.0)).is_none());
        assert!(rates(now, Some(&[0; 5]), None).is_none());
        let rates = rates(now, Some(&[4, 100, 0, 6, 7]), Some(0.5)).unwrap();
        assert_eq!((rates.messages_sent, rates.bytes_sent), (12.0, 200.0));
        assert_eq!((rates.bytes_received, rates.calls_again), (0.0, 0.0));
    }
}
