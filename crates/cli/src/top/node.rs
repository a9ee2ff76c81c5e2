//! Memory that is shared inside this host, in all formats: a line per endpoint, every buffer with its holders, JSON,
//! Prometheus.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comfy_table::CellAlignment::{Left, Right};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use serde_json::{Map, Value};
use trunkline_proto::counters::CounterKind;
use trunkline_proto::wire::status::Number;
use trunkline_proto::wire::status::node::{NeighbourRecord, PageExport, SharedMemoryPage};

use super::find::ShownNode;
use super::prometheus::{escape_label, push_family};
use super::report::hex_id;
use super::sample::StatusSample;
use super::table::{NONE, format_bytes, format_count, format_duration, new_table};

/// One endpoint.
#[derive(Debug)]
pub(crate) struct NodeEndpoint {
    pid: u32,
    command: String,
    page: SharedMemoryPage,
    /// The age of its page.
    up: Duration,
    /// The time since the page was written.
    age: Duration,
    rates: Option<NodeRates>,
}

/// The values that rates are computed from: the time of writing, and the counters at that time.
pub(super) type NodeSnapshot = (u64, [u64; 4]);

/// Events per second between the last two observed writes.
#[derive(Clone, Copy, Debug)]
struct NodeRates {
    hits: f64,
    misses: f64,
    fallbacks: f64,
    messages: f64,
}

impl NodeEndpoint {
    /// Makes an endpoint from a page that was found, and its rates from the snapshot before.
    pub(super) fn from_shown(shown: ShownNode, before: Option<&NodeSnapshot>) -> Self {
        let ShownNode { pid, command, page } = shown;
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let up = today.saturating_sub(Duration::from_nanos(page.owner.made_unix));
        let written = Duration::from_nanos(page.written.saturating_sub(page.owner.made));
        let mut node = Self { pid, command, page, up, age: up.saturating_sub(written), rates: None };
        node.rates = before.and_then(|before| rates_between(*before, node.to_snapshot()));
        node
    }

    pub(super) fn to_snapshot(&self) -> NodeSnapshot {
        let messages = [Number::Eager, Number::Mapped, Number::Staged];
        let messages = messages.into_iter().map(|which| self.number(which)).fold(0, u64::wrapping_add);
        let hits = self.number(Number::Hits);
        let misses = self.number(Number::Misses);
        (self.page.written, [hits, misses, self.fallback_count(), messages])
    }

    fn number(&self, which: Number) -> u64 {
        self.page.number(which)
    }

    /// The fallback reasons that occurred, with their counts.
    fn fallback_reasons(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let each = Number::ALL.iter().map(|which| (which.called(), self.number(*which)));
        let each = each.filter(|(called, times)| called.name == FALLBACKS && *times > 0);
        each.map(|(called, times)| (called.reason, times))
    }

    fn fallback_count(&self) -> u64 {
        self.fallback_reasons().fold(0, |all, (_, times)| all.wrapping_add(times))
    }

    fn rank_text(&self) -> String {
        self.page.owner.rank.map_or_else(|| NONE.to_owned(), |rank| rank.to_string())
    }

    /// Bytes of mapped memory of other endpoints.
    fn mapped_bytes(&self) -> u64 {
        self.page.neighbours.iter().fold(0, |all, one| all.saturating_add(one.mapped_bytes))
    }
}

/// The name of the counters of messages that did not use shared memory.
const FALLBACKS: &str = "fallbacks";

fn rates_between((before, old): NodeSnapshot, (now, new): NodeSnapshot) -> Option<NodeRates> {
    let passed = now.checked_sub(before).filter(|passed| *passed > 0)? as f64 / 1e9;
    let [hits, misses, fallbacks, messages] =
        std::array::from_fn(|at| new[at].saturating_sub(old[at]) as f64 / passed);
    Some(NodeRates { hits, misses, fallbacks, messages })
}

const COLUMNS: [(&str, CellAlignment); 19] = [
    ("PID", Right),
    ("COMMAND", Left),
    ("RANK", Right),
    ("msg/s", Right),
    ("HITS/s", Right),
    ("MISSES", Right),
    ("EVICTED", Right),
    ("FALLBACKS", Right),
    ("EXPORTS", Right),
    ("BYTES", Right),
    ("ZOMBIES", Right),
    ("IN USE", Right),
    ("MAPPED", Right),
    ("BY RING", Right),
    ("BY MAP", Right),
    ("BY STAGE", Right),
    ("LEAKS", Right),
    ("UP", Right),
    ("AGE", Right),
];

/// A title, a line for each endpoint, and the reasons for messages that did not use sharing; empty if no endpoint
/// shares memory.
pub(super) fn memory_lines(sample: &StatusSample) -> Vec<String> {
    if sample.nodes.is_empty() {
        return Vec::new();
    }
    let mut all = new_table(COLUMNS);
    for node in &sample.nodes {
        let number = |which| format_count(node.number(which) as f64);
        let rate = |of: fn(&NodeRates) -> f64| {
            node.rates.as_ref().map_or_else(|| NONE.to_owned(), |rates| format_count(of(rates)))
        };
        let of = |used: u64, most: u64, text: fn(u64) -> String| format!("{}/{}", text(used), text(most));
        let [entries, entries_max] =
            [Number::LiveEntries, Number::BudgetEntries].map(|which| node.number(which));
        let [kept, kept_max] = [Number::LiveBytes, Number::BudgetBytes].map(|which| node.number(which));
        all.add_row([
            node.pid.to_string(),
            node.command.clone(),
            node.rank_text(),
            rate(|rates| rates.messages),
            rate(|rates| rates.hits),
            number(Number::Misses),
            number(Number::Evicted),
            format_count(node.fallback_count() as f64),
            of(entries, entries_max, |value| value.to_string()),
            of(kept, kept_max, format_bytes),
            format_zombies(node),
            node.number(Number::PinnedEntries).to_string(),
            format_bytes(node.mapped_bytes()),
            number(Number::Eager),
            format!("{}+{}", number(Number::ByReceiver), number(Number::BySender)),
            number(Number::Staged),
            number(Number::Leaks),
            format_duration(node.up),
            format_age(node.age),
        ]);
    }
    let mut lines = vec![String::new(), "MEMORY shared inside this host".to_owned()];
    lines.extend(table_lines(&all));
    lines.extend(sample.nodes.iter().filter_map(fallback_line));
    lines
}

fn format_zombies(node: &NodeEndpoint) -> String {
    match node.number(Number::ZombieEntries) {
        0 => "0".to_owned(),
        entries => format!("{entries}, {}", format_bytes(node.number(Number::ZombieBytes))),
    }
}

/// Ages below one second are shown as now.
fn format_age(age: Duration) -> String {
    if age < Duration::from_secs(1) { "now".to_owned() } else { format_duration(age) }
}

/// The reasons why an endpoint's messages did not use sharing; `None` if all did.
fn fallback_line(node: &NodeEndpoint) -> Option<String> {
    let reasons: Vec<_> = node
        .fallback_reasons()
        .map(|(reason, times)| format!("{times} {}", reason.replace('_', " ")))
        .collect();
    let lost = node.number(Number::Unmapped);
    (!reasons.is_empty() || lost > 0).then(|| {
        let NodeEndpoint { pid, .. } = node;
        let reasons = if reasons.is_empty() { NONE.to_owned() } else { reasons.join(", ") };
        format!(
            "fallbacks of {pid}: {reasons}; {lost} messages were staged that should have been copied once"
        )
    })
}

fn table_lines(table: &Table) -> impl Iterator<Item = String> {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().into_iter()
}

const EXPORTS: [(&str, CellAlignment); 8] = [
    ("ADDRESS", Right),
    ("BYTES", Right),
    ("DEVICE", Right),
    ("ID", Right),
    ("STATE", Left),
    ("PINS", Right),
    ("UNUSED", Right),
    ("HELD BY", Left),
];

const NEIGHBOURS: [(&str, CellAlignment); 7] = [
    ("NEIGHBOUR", Left),
    ("PID", Right),
    ("HOLDS", Right),
    ("BYTES", Right),
    ("MAPPED HERE", Right),
    ("BYTES", Right),
    ("IN USE", Right),
];

/// Every exported buffer with its holders, and the mappings of each endpoint; empty if no endpoint shares memory.
pub(crate) fn buffer_lines(sample: &StatusSample) -> Vec<String> {
    sample.nodes.iter().flat_map(buffer_lines_of).collect()
}

fn buffer_lines_of(node: &NodeEndpoint) -> Vec<String> {
    let NodeEndpoint { pid, page, .. } = node;
    let there =
        [Number::LiveEntries, Number::PassingEntries, Number::ZombieEntries].map(|at| node.number(at));
    let all: u64 = there.iter().fold(0, |all, some| all.saturating_add(*some));
    let of = if all > page.exports.len() as u64 {
        format!(", {} of {all}", page.exports.len())
    } else {
        String::new()
    };
    let mut lines = vec![String::new(), format!("BUFFERS that {pid} (rank {}) shares{of}", node.rank_text())];
    if page.exports.is_empty() {
        lines.push("none".to_owned());
    } else {
        let mut exports = new_table(EXPORTS);
        for export in &page.exports {
            exports.add_row([
                format!("{:#x}", export.base),
                format_bytes(export.len),
                export.device.to_string(),
                export.allocation.to_string(),
                format!("{}{}", export.stands.short_text(), if export.passing { ", passing" } else { "" }),
                export.pins.to_string(),
                format_duration(unused_time(page, export)),
                held_by(page, export),
            ]);
        }
        lines.extend(table_lines(&exports));
    }
    if !page.neighbours.is_empty() {
        let mut neighbours = new_table(NEIGHBOURS);
        for one in &page.neighbours {
            neighbours.add_row([
                format!("{}{}", neighbour_name(one), if one.gone { ", gone" } else { "" }),
                if one.pid == 0 { NONE.to_owned() } else { one.pid.to_string() },
                one.holds.to_string(),
                format_bytes(one.held_bytes),
                one.mappings.to_string(),
                format_bytes(one.mapped_bytes),
                one.pins.to_string(),
            ]);
        }
        lines.push(String::new());
        lines.extend(table_lines(&neighbours));
    }
    let peak = format_bytes(node.number(Number::PeakBytes));
    let idle = node.number(Number::IdleNs);
    let idle =
        if idle == u64::MAX { "forever".to_owned() } else { format_duration(Duration::from_nanos(idle)) };
    lines.push(format!("at most {peak} at once so far; kept {idle} without use"));
    let [received, sent] = [Number::ByReceiver, Number::BySender].map(|which| node.number(which));
    lines.push(format!("messages copied here once: {received} received, {sent} sent"));
    lines
}

/// How long an export had been unused when the page was written.
fn unused_time(page: &SharedMemoryPage, export: &PageExport) -> Duration {
    Duration::from_nanos(page.written.saturating_sub(export.used))
}

/// The neighbour's rank, or `unknown`.
fn neighbour_name(one: &NeighbourRecord) -> String {
    one.rank.map_or_else(|| "unknown".to_owned(), |rank| format!("rank {rank}"))
}

/// The holders of an export, each with its process id.
fn held_by(page: &SharedMemoryPage, export: &PageExport) -> String {
    let known: Vec<_> = export.holder_records().filter_map(|at| page.neighbours.get(at)).collect();
    let mut names: Vec<_> =
        known.iter().map(|one| format!("{} ({})", neighbour_name(one), one.pid)).collect();
    let more = (export.holders as usize).saturating_sub(known.len());
    if more > 0 {
        names.push(format!("{more} more"));
    }
    if names.is_empty() { NONE.to_owned() } else { names.join(", ") }
}

/// One endpoint, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct NodeRow {
    pid: u32,
    command: String,
    process: String,
    rank: Option<u32>,
    uptime_s: f64,
    /// The age of these values, in seconds.
    age_s: f64,
    /// All numbers by name.
    numbers: Map<String, Value>,
    /// Messages that did not use sharing, by reason; all reasons.
    fallbacks: Map<String, Value>,
    rates: Option<NodeRatesRow>,
    neighbours: Vec<NeighbourRow>,
    /// The first 256 at most.
    exports: Vec<ExportRow>,
}

#[derive(Debug, Serialize)]
struct NodeRatesRow {
    messages_per_s: f64,
    hits_per_s: f64,
    misses_per_s: f64,
    fallbacks_per_s: f64,
}

#[derive(Debug, Serialize)]
struct NeighbourRow {
    rank: Option<u32>,
    pid: Option<u32>,
    gone: bool,
    holds: u32,
    held_bytes: u64,
    mappings: u32,
    mapped_bytes: u64,
    pins: u32,
}

#[derive(Debug, Serialize)]
struct HolderRow {
    rank: Option<u32>,
    pid: Option<u32>,
}

#[derive(Debug, Serialize)]
struct ExportRow {
    address: u64,
    bytes: u64,
    device: u32,
    allocation: u64,
    state: &'static str,
    passing: bool,
    pins: u32,
    unused_s: f64,
    /// Number of holders, including those that are not in `held_by`.
    holders: u32,
    held_by: Vec<HolderRow>,
}

const fn known_pid(pid: u32) -> Option<u32> {
    if pid == 0 { None } else { Some(pid) }
}

impl NodeRow {
    pub(super) fn new(node: &NodeEndpoint) -> Self {
        let mut numbers = Map::new();
        let mut fallbacks = Map::new();
        for which in Number::ALL {
            let called = which.called();
            let value = node.number(*which).into();
            match called.reason {
                "" => numbers.insert(called.name.to_owned(), value),
                reason => fallbacks.insert(reason.to_owned(), value),
            };
        }
        let neighbour = |one: &NeighbourRecord| NeighbourRow {
            rank: one.rank,
            pid: known_pid(one.pid),
            gone: one.gone,
            holds: one.holds,
            held_bytes: one.held_bytes,
            mappings: one.mappings,
            mapped_bytes: one.mapped_bytes,
            pins: one.pins,
        };
        let page = &node.page;
        let holders = |export: &PageExport| {
            let found = export.holder_records().filter_map(|at| page.neighbours.get(at));
            found.map(|one| HolderRow { rank: one.rank, pid: known_pid(one.pid) }).collect()
        };
        let export = |export: &PageExport| ExportRow {
            address: export.base,
            bytes: export.len,
            device: export.device,
            allocation: export.allocation,
            state: export.stands.short_text(),
            passing: export.passing,
            pins: export.pins,
            unused_s: unused_time(page, export).as_secs_f64(),
            holders: export.holders,
            held_by: holders(export),
        };
        let rates = node.rates.map(|rates| NodeRatesRow {
            messages_per_s: rates.messages,
            hits_per_s: rates.hits,
            misses_per_s: rates.misses,
            fallbacks_per_s: rates.fallbacks,
        });
        Self {
            pid: node.pid,
            command: node.command.clone(),
            process: hex_id(page.owner.process),
            rank: page.owner.rank,
            uptime_s: node.up.as_secs_f64(),
            age_s: node.age.as_secs_f64(),
            numbers,
            fallbacks,
            rates,
            neighbours: page.neighbours.iter().map(neighbour).collect(),
            exports: page.exports.iter().map(export).collect(),
        }
    }
}

/// One number of a neighbour.
type NeighbourColumn = (&'static str, &'static str, fn(&NeighbourRecord) -> u64);

const OF_NEIGHBOURS: [NeighbourColumn; 4] = [
    ("node_held_exports", "Exports of the process that the peer of this host holds.", |one| one.holds.into()),
    ("node_held_bytes", "Bytes of these exports.", |one| one.held_bytes),
    ("node_mappings", "Mappings of the peer's memory in the process.", |one| one.mappings.into()),
    ("node_mapped_bytes", "Bytes of these mappings.", |one| one.mapped_bytes),
];

/// All numbers of all endpoints and of their neighbours. Single buffers are left out, because their series would be
/// short-lived.
pub(super) fn push_metrics(out: &mut String, sample: &StatusSample) {
    for (at, which) in Number::ALL.iter().enumerate() {
        let called = which.called();
        if at > 0 && Number::ALL[at - 1].called().name == called.name {
            continue;
        }
        let (kind, end) = match called.kind {
            CounterKind::Total => ("counter", "_total"),
            CounterKind::Gauge => ("gauge", ""),
        };
        let same = Number::ALL.iter().filter(|other| other.called().name == called.name);
        let values = same.flat_map(|which| {
            let reason = which.called().reason;
            let more = if reason.is_empty() { String::new() } else { format!(",reason=\"{reason}\"") };
            sample
                .nodes
                .iter()
                .map(move |node| (format!("{{{}{more}}}", endpoint_labels(node)), node.number(*which)))
        });
        push_family(out, &format!("node_{}{end}", called.name), kind, called.help, values);
    }
    for (name, help, get) in OF_NEIGHBOURS {
        let values = sample.nodes.iter().flat_map(|node| {
            let each = node.page.neighbours.iter().filter(|one| !one.gone);
            each.map(move |one| {
                let rank = one.rank.map(|rank| rank.to_string()).unwrap_or_default();
                (
                    format!("{{{},peer_rank=\"{rank}\",peer_pid=\"{}\"}}", endpoint_labels(node), one.pid),
                    get(one),
                )
            })
        });
        push_family(out, name, "gauge", help, values);
    }
}

fn endpoint_labels(node: &NodeEndpoint) -> String {
    let command = escape_label(&node.command);
    let rank = node.page.owner.rank;
    let rank = rank.map(|rank| rank.to_string()).unwrap_or_default();
    let process = hex_id(node.page.owner.process);
    format!("pid=\"{}\",process=\"{process}\",command=\"{command}\",rank=\"{rank}\"", node.pid)
}
