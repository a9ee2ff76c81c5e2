//! A sample as JSON.

use serde::Serialize;
use serde_json::{Map, Value};
use trunkline_proto::counters::{Counters, MessageCounts};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::status::{CommDirection, CommState, FaultCode, NicUsage, QueueGroupRecord};

use super::groups::{self, ShownGroup};
use super::node;
use super::sample::{CommSample, MessageRates, ProcessSample, StatusSample};

/// The whole sample.
#[derive(Debug, Serialize)]
pub(crate) struct TopReport {
    version: &'static str,
    processes: Vec<ProcessRow>,
    /// Endpoints that share memory inside this host.
    nodes: Vec<node::NodeRow>,
    refused: Vec<RefusedRow>,
    /// Processes that may not be inspected.
    hidden: usize,
}

#[derive(Debug, Serialize)]
struct ProcessRow {
    pid: u32,
    command: String,
    process: String,
    fabric: String,
    nics: Vec<String>,
    /// The queues of each NIC that are in use for this process, as the NIC reports.
    nic_usage: Vec<UsageRow>,
    /// Number of groups of shared queue pairs; `groups` contains the first 32.
    group_count: u32,
    groups: Vec<GroupRow>,
    /// Control streams to other hosts, the connections of all of them, and those of the stream with the fewest.
    control_streams: u16,
    control_connections: u32,
    control_connections_fewest: u16,
    started_unix_s: f64,
    uptime_s: f64,
    comms_open: u64,
    counters: Map<String, Value>,
    rates: Option<MessageRatesRow>,
    last_fault: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comms: Option<Vec<CommRow>>,
}

#[derive(Debug, Serialize)]
struct UsageRow {
    nic: String,
    queue_pairs: u32,
    queue_pairs_max: u32,
    completion_queues: u32,
    regions: u32,
    regions_max: u32,
}

#[derive(Debug, Serialize)]
struct GroupRow {
    /// The index that rows of comms refer to.
    group: usize,
    direction: &'static str,
    peer: String,
    /// The process id of the peer, if it is in the sample.
    peer_pid: Option<u32>,
    /// The NIC of its first link.
    nic: String,
    links: u8,
    members: u16,
    eager_used: u32,
    eager_total: u32,
    slices_used: u32,
    slices_total: u32,
    queue_used: u32,
    queue_total: u32,
    bytes: u64,
    routed: u64,
    dropped: u64,
    failed: u64,
}

#[derive(Debug, Serialize)]
struct LinkRow {
    nic: String,
    carries: bool,
}

#[derive(Debug, Serialize)]
struct CommRow {
    index: usize,
    generation: u16,
    state: &'static str,
    direction: &'static str,
    /// The NICs of its links, joined by `+`; a `!` follows a NIC whose link is not in use.
    nic: String,
    links: Vec<LinkRow>,
    /// The group of queue pairs that it shares, if that is among `groups`.
    group: Option<u8>,
    /// Its member number in the group; none if it shares nothing.
    member: Option<u32>,
    peer: String,
    /// The process id of the peer, if it is in the sample.
    peer_pid: Option<u32>,
    messages: u64,
    bytes: u64,
    pending: u64,
    failed: u64,
    calls_again: u64,
    rates: Option<MessageRatesRow>,
    fault: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct MessageRatesRow {
    messages_sent_per_s: f64,
    bytes_sent_per_s: f64,
    messages_received_per_s: f64,
    bytes_received_per_s: f64,
    calls_again_per_s: f64,
}

#[derive(Debug, Serialize)]
struct RefusedRow {
    pid: u32,
    why: String,
}

impl TopReport {
    /// The report of a sample, with or without a list of comms for each process.
    pub(crate) fn new(sample: &StatusSample, with_comms: bool) -> Self {
        let row = |process: &ProcessSample| ProcessRow {
            pid: process.pid,
            command: process.command.clone(),
            process: hex_id(process.id),
            fabric: process.fabric.clone(),
            nics: process.nics.clone(),
            nic_usage: process
                .nics
                .iter()
                .zip(&process.usage)
                .map(|(nic, usage)| usage_row(nic, usage))
                .collect(),
            group_count: process.group_count,
            groups: groups::shown_groups(process).map(|seen| group_row(sample, seen)).collect(),
            control_streams: process.control.streams,
            control_connections: process.control.connections,
            control_connections_fewest: process.control.fewest,
            started_unix_s: process.since.as_secs_f64(),
            uptime_s: process.up.as_secs_f64(),
            comms_open: process.open_comms(),
            counters: counter_map(&process.counters),
            rates: process.rates.map(Into::into),
            last_fault: process.fault.map(FaultCode::short_text),
            comms: with_comms
                .then(|| process.comms.iter().map(|conn| comm_row(sample, process, conn)).collect()),
        };
        let refused =
            |page: &super::find::RefusedPage| RefusedRow { pid: page.pid, why: page.why.to_string() };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            processes: sample.processes.iter().map(row).collect(),
            nodes: sample.nodes.iter().map(node::NodeRow::new).collect(),
            refused: sample.refused.iter().map(refused).collect(),
            hidden: sample.hidden,
        }
    }
}

fn usage_row(nic: &str, usage: &NicUsage) -> UsageRow {
    let &NicUsage { queue_pairs, queue_pairs_max, completion_queues, regions, regions_max } = usage;
    UsageRow { nic: nic.to_owned(), queue_pairs, queue_pairs_max, completion_queues, regions, regions_max }
}

fn group_row(sample: &StatusSample, seen: ShownGroup<'_>) -> GroupRow {
    let &QueueGroupRecord { direction: way, links, members, peer, numbers, .. } = seen.group;
    GroupRow {
        group: seen.number,
        direction: direction_name(way),
        peer: hex_id(peer),
        peer_pid: groups::pid_of(sample, peer),
        nic: seen.first_nic(),
        links,
        members,
        eager_used: numbers.eager.used,
        eager_total: numbers.eager.total,
        slices_used: numbers.slices.used,
        slices_total: numbers.slices.total,
        queue_used: numbers.queue.used,
        queue_total: numbers.queue.total,
        bytes: seen.member_totals().bytes,
        routed: numbers.routed,
        dropped: numbers.dropped,
        failed: seen.member_totals().failed,
    }
}

fn counter_map(counters: &Counters) -> Map<String, Value> {
    Counters::TABLE.iter().map(|row| (row.name.to_owned(), (row.get)(counters).into())).collect()
}

fn comm_row(sample: &StatusSample, process: &ProcessSample, conn: &CommSample) -> CommRow {
    let MessageCounts { sent, sent_bytes, received, received_bytes, again, failed, .. } = conn.counts;
    CommRow {
        index: conn.index,
        generation: conn.comm.generation,
        state: state_name(conn.comm.state),
        direction: direction_name(conn.comm.direction),
        nic: nic_names(process, conn),
        links: comm_links(process, conn).map(|(nic, carries)| LinkRow { nic, carries }).collect(),
        group: groups::number_of(conn),
        member: groups::member_of(conn),
        peer: hex_id(conn.comm.peer),
        peer_pid: peer_pid(sample, conn),
        messages: sent.wrapping_add(received),
        bytes: sent_bytes.wrapping_add(received_bytes),
        pending: conn.counts.pending_messages(),
        failed,
        calls_again: again,
        rates: conn.rates.map(Into::into),
        fault: conn.comm.fault.map(FaultCode::short_text),
    }
}

/// All 128 bits of a process's id in hexadecimal.
pub(super) fn hex_id(id: ProcessId) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn state_name(state: CommState) -> &'static str {
    match state {
        CommState::Open => "open",
        CommState::Failed => "failed",
        CommState::Closed => "closed",
    }
}

pub(super) fn direction_name(direction: CommDirection) -> &'static str {
    match direction {
        CommDirection::Send => "send",
        CommDirection::Recv => "recv",
    }
}

/// The name of a NIC, or its number if the page has no room for names.
pub(super) fn nic_name(process: &ProcessSample, at: u16) -> String {
    process.nics.get(usize::from(at)).cloned().unwrap_or_else(|| at.to_string())
}

/// The NIC of each link of a comm, and whether the link is in use.
fn comm_links(process: &ProcessSample, conn: &CommSample) -> impl Iterator<Item = (String, bool)> {
    conn.comm.links.iter().map(move |(nic, carries)| (nic_name(process, nic), carries))
}

/// The NICs of a comm's links as one word, joined by `+`; a `!` follows a NIC whose link is not in use.
pub(super) fn nic_names(process: &ProcessSample, conn: &CommSample) -> String {
    let names = comm_links(process, conn).map(|(nic, carries)| if carries { nic } else { nic + "!" });
    names.collect::<Vec<_>>().join("+")
}

/// The id of the peer's process, if it is in the sample.
pub(super) fn peer_pid(sample: &StatusSample, conn: &CommSample) -> Option<u32> {
    groups::pid_of(sample, conn.comm.peer)
}

impl From<MessageRates> for MessageRatesRow {
    fn from(rates: MessageRates) -> Self {
        Self {
            messages_sent_per_s: rates.messages_sent,
            bytes_sent_per_s: rates.bytes_sent,
            messages_received_per_s: rates.messages_received,
            bytes_received_per_s: rates.bytes_received,
            calls_again_per_s: rates.calls_again,
        }
    }
}
