//! A sample as a table: one line per process, or one per comm.

use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::status::{ControlStreams, FaultCode, NicUsage, group};

use super::groups;
use super::node;
use super::report::{direction_name, nic_names, state_name};
use super::sample::{CommSample, MessageRates, ProcessSample, StatusSample};

/// The placeholder for a missing rate.
pub(super) const NONE: &str = "-";

const PROCESS_COLUMNS: [(&str, CellAlignment); 16] = [
    ("PID", CellAlignment::Right),
    ("COMMAND", CellAlignment::Left),
    ("UP", CellAlignment::Right),
    ("COMMS", CellAlignment::Right),
    ("QPS", CellAlignment::Right),
    ("CTRL", CellAlignment::Right),
    ("OUT msg/s", CellAlignment::Right),
    ("OUT GB/s", CellAlignment::Right),
    ("IN msg/s", CellAlignment::Right),
    ("IN GB/s", CellAlignment::Right),
    ("PENDING", CellAlignment::Right),
    ("AGAIN/s", CellAlignment::Right),
    ("FAILED", CellAlignment::Right),
    ("OUT", CellAlignment::Right),
    ("IN", CellAlignment::Right),
    ("LAST FAULT", CellAlignment::Left),
];

const COMM_COLUMNS: [(&str, CellAlignment); 14] = [
    ("PID", CellAlignment::Right),
    ("COMM", CellAlignment::Right),
    ("DIR", CellAlignment::Left),
    ("NIC", CellAlignment::Left),
    ("GROUP", CellAlignment::Right),
    ("PEER", CellAlignment::Right),
    ("STATE", CellAlignment::Left),
    ("msg/s", CellAlignment::Right),
    ("GB/s", CellAlignment::Right),
    ("PENDING", CellAlignment::Right),
    ("AGAIN/s", CellAlignment::Right),
    ("MESSAGES", CellAlignment::Right),
    ("BYTES", CellAlignment::Right),
    ("FAULT", CellAlignment::Left),
];

const GROUP_COLUMNS: [(&str, CellAlignment); 15] = [
    ("PID", CellAlignment::Right),
    ("GROUP", CellAlignment::Right),
    ("DIR", CellAlignment::Left),
    ("NIC", CellAlignment::Left),
    ("PEER", CellAlignment::Right),
    ("LINKS", CellAlignment::Right),
    ("MEMBERS", CellAlignment::Right),
    ("CREDITS", CellAlignment::Right),
    ("SLICES", CellAlignment::Right),
    ("QUEUE", CellAlignment::Right),
    ("GB/s", CellAlignment::Right),
    ("BYTES", CellAlignment::Right),
    ("ROUTED", CellAlignment::Right),
    ("DROPPED", CellAlignment::Right),
    ("FAILED", CellAlignment::Right),
];

/// The lines of a sample, the titles included.
pub(crate) fn sample_lines(sample: &StatusSample, with_comms: bool) -> Vec<String> {
    let mut lines = vec![summary_line(sample)];
    lines.extend(
        sample.refused.iter().map(|page| format!("cannot use the page of {}: {}", page.pid, page.why)),
    );
    if !sample.processes.is_empty() {
        let table = if with_comms { comm_table(sample) } else { process_table(sample) };
        lines.extend(table.lines().map(|line| line.trim_end().to_owned()));
        lines.extend(group_lines(sample));
    }
    lines.extend(node::memory_lines(sample));
    lines
}

fn summary_line(sample: &StatusSample) -> String {
    let open: u64 = sample.processes.iter().map(ProcessSample::open_comms).sum();
    let mut line = match sample.processes.len() {
        0 if !sample.nodes.is_empty() => {
            "no process has a status page; some share memory inside this host".to_owned()
        }
        0 => "no process has a status page: none uses the NCCL plugin now, or with TRUNKLINE_STATUS=0"
            .to_owned(),
        count => format!("{count} processes, {open} connections"),
    };
    if sample.hidden > 0 {
        line.push_str(&format!("; cannot inspect {} processes (root can)", sample.hidden));
    }
    line
}

pub(super) fn new_table<const N: usize>(columns: [(&str, CellAlignment); N]) -> Table {
    let mut table = Table::new();
    // The caller cuts long lines, because wrapped ones are unreadable.
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.map(|(name, _)| name));
    for (column, (_, alignment)) in table.column_iter_mut().zip(columns) {
        column.set_cell_alignment(alignment);
        column.set_padding((0, 2));
    }
    table
}

fn process_table(sample: &StatusSample) -> Table {
    let mut table = new_table(PROCESS_COLUMNS);
    for process in &sample.processes {
        let counters = &process.counters;
        let rates = process.rates.as_ref();
        table.add_row([
            process.pid.to_string(),
            process.command.clone(),
            format_duration(process.up),
            process.open_comms().to_string(),
            queue_pairs(process.fullest_nic()),
            fewest_connections(process.control),
            format_rate(rates, |rates| format_count(rates.messages_sent)),
            format_rate(rates, |rates| format_gigabytes(rates.bytes_sent)),
            format_rate(rates, |rates| format_count(rates.messages_received)),
            format_rate(rates, |rates| format_gigabytes(rates.bytes_received)),
            counters.messages_pending.to_string(),
            format_rate(rates, |rates| format_count(rates.calls_again)),
            counters.messages_failed.to_string(),
            format_bytes(counters.bytes_sent),
            format_bytes(counters.bytes_received),
            process.fault.map_or("", FaultCode::short_text).to_owned(),
        ]);
    }
    table
}

/// Connections of the control stream that has the fewest.
fn fewest_connections(control: ControlStreams) -> String {
    if control.streams == 0 { NONE.to_owned() } else { control.fewest.to_string() }
}

/// Queue pairs in use, and their limit.
fn queue_pairs(usage: NicUsage) -> String {
    match usage.queue_pairs_max {
        0 => usage.queue_pairs.to_string(),
        most => format!("{}/{most}", usage.queue_pairs),
    }
}

/// The groups of shared queue pairs of all processes, below a title; empty if no process has groups.
fn group_lines(sample: &StatusSample) -> Vec<String> {
    let mut shown = 0;
    let mut table = new_table(GROUP_COLUMNS);
    let all: u64 = sample.processes.iter().map(|process| u64::from(process.group_count)).sum();
    for seen in sample.processes.iter().flat_map(groups::shown_groups) {
        let group::GroupCounters { routed, dropped, eager, slices, queue } = seen.group.numbers;
        let members = seen.member_totals();
        table.add_row([
            seen.process.pid.to_string(),
            seen.number.to_string(),
            direction_name(seen.group.direction).to_owned(),
            seen.first_nic(),
            peer_name(sample, seen.group.peer),
            seen.group.links.to_string(),
            seen.group.members.to_string(),
            groups::format_taken(eager),
            groups::format_taken(slices),
            groups::format_taken(queue),
            members.rate.map_or_else(|| NONE.to_owned(), format_gigabytes),
            format_bytes(members.bytes),
            format_count(routed as f64),
            format_count(dropped as f64),
            format_count(members.failed as f64),
        ]);
        shown += 1;
    }
    if shown == 0 {
        return Vec::new();
    }
    let of = if all > shown { format!(", {shown} of {all}") } else { String::new() };
    let title = format!("GROUPS of shared queue pairs{of}");
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    [String::new(), title].into_iter().chain(lines).collect()
}

fn comm_table(sample: &StatusSample) -> Table {
    let mut table = new_table(COMM_COLUMNS);
    for process in &sample.processes {
        for conn in process.comms.iter().filter(|conn| conn.is_open()) {
            let counts = &conn.counts;
            let rates = conn.rates.as_ref();
            // One of the two directions is always 0.
            table.add_row([
                process.pid.to_string(),
                format!("{}.{}", conn.index, conn.comm.generation),
                direction_name(conn.comm.direction).to_owned(),
                nic_names(process, conn),
                group_number(conn),
                peer_name(sample, conn.comm.peer),
                state_name(conn.comm.state).to_owned(),
                format_rate(rates, |rates| format_count(rates.messages_sent + rates.messages_received)),
                format_rate(rates, |rates| format_gigabytes(rates.bytes_sent + rates.bytes_received)),
                counts.pending_messages().to_string(),
                format_rate(rates, |rates| format_count(rates.calls_again)),
                format_count(counts.sent.wrapping_add(counts.received) as f64),
                format_bytes(counts.sent_bytes.wrapping_add(counts.received_bytes)),
                conn.comm.fault.map_or("", FaultCode::short_text).to_owned(),
            ]);
        }
    }
    table
}

/// The peer's process id if it is in the sample, else the first digits of its identifier.
fn peer_name(sample: &StatusSample, peer: ProcessId) -> String {
    groups::pid_of(sample, peer).map_or_else(|| format!("id {peer}"), |pid| pid.to_string())
}

/// The group that a comm shares.
fn group_number(conn: &CommSample) -> String {
    match (groups::number_of(conn), groups::member_of(conn)) {
        (Some(group), _) => group.to_string(),
        // A group that the page does not show.
        (None, Some(_)) => "?".to_owned(),
        (None, None) => NONE.to_owned(),
    }
}

fn format_rate(rates: Option<&MessageRates>, text: impl Fn(&MessageRates) -> String) -> String {
    rates.map_or_else(|| NONE.to_owned(), text)
}

/// Formats a value with about three digits and a unit prefix.
fn format_scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut at = 0;
    while value >= 999.5 && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    match value {
        _ if at == 0 => format!("{value:.0}{}", units[at]),
        value if value < 9.995 => format!("{value:.2}{}", units[at]),
        value if value < 99.95 => format!("{value:.1}{}", units[at]),
        value => format!("{value:.0}{}", units[at]),
    }
}

pub(super) fn format_count(value: f64) -> String {
    format_scaled(value, 1000.0, &["", "k", "M", "G", "T"])
}

pub(super) fn format_bytes(value: u64) -> String {
    format_scaled(value as f64, 1000.0, &[" B", " kB", " MB", " GB", " TB", " PB", " EB"])
}

fn format_gigabytes(value: f64) -> String {
    format!("{:.2}", value / 1e9)
}

pub(super) fn format_duration(up: Duration) -> String {
    let seconds = up.as_secs();
    let minutes = seconds / 60;
    let hours = seconds / 3600;
    let days = seconds / 86400;
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::counters::{Counters, MessageCounts};
    use trunkline_proto::wire::member::MemberId;
    use trunkline_proto::wire::status::group::{CreditUsage, GroupCounters};
    use trunkline_proto::wire::status::{
        CommDirection, CommRecord, CommState, GroupMembership, QueueGroupRecord, RowLinks,
    };

    use super::*;

    fn process(groups: [Option<QueueGroupRecord>; group::RECORDS], group_count: u32) -> ProcessSample {
        ProcessSample {
            pid: 7,
            command: "train".to_owned(),
            id: ProcessId([1; 16]),
            fabric: "soft".to_owned(),
            nics: vec!["soft0".to_owned()],
            usage: Vec::new(),
            group_count,
            groups,
            control: ControlStreams::default(),
            since: Duration::ZERO,
            up: Duration::ZERO,
            fault: None,
            counters: Counters::default(),
            rates: None,
            comms: vec![rider(0, 1.0), rider(0, 1.5), rider(3, 9.0)],
        }
    }

    /// A comm that is a member of a group, and the gigabytes that it sends per second.
    fn rider(group: u8, rate: f64) -> CommSample {
        let zero = MessageCounts::default();
        let member = MemberId::from_bits(0x0c05);
        CommSample {
            index: 0,
            comm: CommRecord {
                state: CommState::Open,
                direction: CommDirection::Send,
                links: RowLinks::new(&[0], 1),
                generation: 1,
                fault: None,
                peer: ProcessId([1; 16]),
                opened: 0,
                ride: member.map(|member| GroupMembership { record: Some(group), member }),
                before: zero,
            },
            counts: MessageCounts {
                sent_bytes: 3_000,
                received_bytes: 500,
                failed: u64::from(group == 0) + u64::from(rate > 1.0),
                ..zero
            },
            rates: Some(MessageRates {
                messages_sent: 0.0,
                bytes_sent: rate * 1e9,
                messages_received: 0.0,
                bytes_received: 0.0,
                calls_again: 0.0,
            }),
        }
    }

    #[test]
    fn groups_are_listed_if_a_process_has_any() {
        let of = |process| StatusSample {
            processes: vec![process],
            nodes: Vec::new(),
            refused: Vec::new(),
            hidden: 0,
        };
        let mut groups = [None; group::RECORDS];
        assert_eq!(group_lines(&of(process(groups, 0))), [""; 0]);
        let eager = CreditUsage { used: 3, total: 32 };
        let slices = CreditUsage { used: 1, total: 8 };
        let queue = CreditUsage { used: 5, total: 512 };
        let numbers = GroupCounters { routed: 1500, dropped: 2, eager, slices, queue };
        let peer = ProcessId([1; 16]);
        let sends =
            QueueGroupRecord { direction: CommDirection::Send, links: 2, nic: 0, members: 9, peer, numbers };
        let numbers = GroupCounters { eager: CreditUsage::default(), ..numbers };
        let receives = QueueGroupRecord {
            direction: CommDirection::Recv,
            nic: 5,
            peer: ProcessId([2; 16]),
            numbers,
            ..sends
        };
        (groups[0], groups[31]) = (Some(sends), Some(receives));
        let texts = |count| {
            let lines = group_lines(&of(process(groups, count)));
            lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        let wanted = [
            "",
            "GROUPS of shared queue pairs",
            "PID GROUP DIR NIC PEER LINKS MEMBERS CREDITS SLICES QUEUE GB/s BYTES ROUTED DROPPED FAILED",
            "7 0 send soft0 7 2 9 3/32 1/8 5/512 2.50 7.00 kB 1.50k 2 3",
            "7 31 recv 5 id 02020202 2 9 - 1/8 5/512 - 0 B 1.50k 2 0",
        ];
        assert_eq!(texts(2), wanted);
        assert_eq!(texts(40)[1], "GROUPS of shared queue pairs, 2 of 40");
    }

    #[test]
    fn table_shows_fewest_connections_of_control_streams() {
        let control = |streams, fewest| ControlStreams { streams, fewest, connections: 9 };
        let texts = [control(0, 0), control(3, 2), control(1, 0)].map(fewest_connections);
        assert_eq!(texts, ["-", "2", "0"]);
    }

    #[test]
    fn numbers_are_short() {
        let counts = [0.0, 7.0, 999.0, 999.7, 1000.0, 12_345.0, 999_600.0, 5_140_000.0];
        let texts = counts.map(format_count);
        assert_eq!(texts, ["0", "7", "999", "1.00k", "1.00k", "12.3k", "1.00M", "5.14M"]);
        assert_eq!([0, 4096, u64::MAX].map(format_bytes), ["0 B", "4.10 kB", "18.4 EB"]);
        assert_eq!(format_gigabytes(12_345_678_901.0), "12.35");
    }

    #[test]
    fn times_are_short() {
        let times =
            [0, 59, 60, 3599, 3600, 86_399, 86_400, 200_000].map(|s| format_duration(Duration::from_secs(s)));
        assert_eq!(times, ["0s", "59s", "1m00s", "59m59s", "1h00m", "23h59m", "1d00h", "2d07h"]);
    }
}
