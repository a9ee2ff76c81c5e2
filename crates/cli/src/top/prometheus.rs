//! A sample in Prometheus' text format, for a node exporter's textfile directory or any scraper.

use std::fmt::Write as _;

use trunkline_proto::counters::{CounterKind, Counters};
use trunkline_proto::wire::status::{CommState, ControlStreams, NicUsage, QueueGroupRecord};

use super::groups::{self, ShownGroup};
use super::node;
use super::report::{direction_name, hex_id, nic_names};
use super::sample::{CommSample, ProcessSample, StatusSample};

/// Renders the whole text.
pub(crate) fn metrics_text(sample: &StatusSample, with_comms: bool) -> String {
    let mut out = String::new();
    for row in Counters::TABLE {
        let (kind, end) = match row.kind {
            CounterKind::Total => ("counter", "_total"),
            CounterKind::Gauge => ("gauge", ""),
        };
        let values =
            sample.processes.iter().map(|process| (of_process(process), (row.get)(&process.counters)));
        push_family(&mut out, &format!("{}{end}", row.name), kind, row.help, values);
    }
    let open = sample.processes.iter().map(|process| (of_process(process), process.open_comms()));
    push_family(&mut out, "comms_open", "gauge", "Connections that are not closed.", open);
    for (name, help, get) in NICS {
        let values = sample.processes.iter().flat_map(|process| {
            let each = process.nics.iter().zip(&process.usage);
            each.map(move |(nic, usage)| (of_nic(process, nic), get(usage)))
        });
        push_family(&mut out, name, "gauge", help, values);
    }
    for (name, kind, help, get) in GROUPS {
        let seen = sample.processes.iter().flat_map(groups::shown_groups);
        push_family(&mut out, name, kind, help, seen.map(|seen| (of_group(&seen), get(seen.group))));
    }
    let count = sample.processes.iter().map(|process| (of_process(process), process.group_count));
    push_family(&mut out, "groups", "gauge", "Groups of shared queue pairs.", count);
    for (name, help, get) in CONTROL {
        let values = sample.processes.iter().map(|process| (of_process(process), get(&process.control)));
        push_family(&mut out, name, "gauge", help, values);
    }
    let help = "When the process began to use Trunkline, in seconds since 1970.";
    let since = sample.processes.iter().map(|process| (of_process(process), process.since.as_secs_f64()));
    push_family(&mut out, "start_time_seconds", "gauge", help, since);
    node::push_metrics(&mut out, sample);
    let refused = [(String::new(), sample.refused.len())];
    push_family(
        &mut out,
        "pages_refused",
        "gauge",
        "Status pages that could not be read.",
        refused.into_iter(),
    );
    if with_comms {
        push_comms(&mut out, sample);
    }
    out
}

/// One number of the control streams.
type ControlColumn = (&'static str, &'static str, fn(&ControlStreams) -> u32);

const CONTROL: [ControlColumn; 3] = [
    ("control_streams", "Control streams to other hosts.", |control| control.streams.into()),
    ("control_connections", "Connections that carry the control streams to other hosts.", |control| {
        control.connections
    }),
    (
        "control_connections_fewest",
        "Connections of the control stream with the fewest connections.",
        |control| control.fewest.into(),
    ),
];

/// One number of a NIC.
type NicColumn = (&'static str, &'static str, fn(&NicUsage) -> u32);

const NICS: [NicColumn; 5] = [
    ("nic_queue_pairs", "Queue pairs of the NIC that the process uses.", |usage| usage.queue_pairs),
    ("nic_queue_pairs_max", "Limit of the NIC's queue pairs; 0 if unknown.", |usage| usage.queue_pairs_max),
    ("nic_completion_queues", "Completion queues of the NIC that the process uses.", |usage| {
        usage.completion_queues
    }),
    ("nic_regions", "Regions that the process has registered with the NIC.", |usage| usage.regions),
    ("nic_regions_max", "Limit of the NIC's regions; 0 if unknown.", |usage| usage.regions_max),
];

/// One number of a group.
type GroupColumn = (&'static str, &'static str, &'static str, fn(&QueueGroupRecord) -> u64);

const GROUPS: [GroupColumn; 10] = [
    ("group_members", "gauge", "Connections that share the group's queue pairs.", |group| {
        group.members.into()
    }),
    ("group_links", "gauge", "Links of each member.", |group| group.links.into()),
    ("group_eager_used", "gauge", "Eager messages of members in flight.", |group| {
        group.numbers.eager.used.into()
    }),
    ("group_eager_max", "gauge", "Limit of eager messages in flight; 0 at the receiving end.", |group| {
        group.numbers.eager.total.into()
    }),
    ("group_slices_used", "gauge", "Slices of long messages of members in flight.", |group| {
        group.numbers.slices.used.into()
    }),
    ("group_slices_max", "gauge", "Limit of slices in flight.", |group| group.numbers.slices.total.into()),
    ("group_queue_used", "gauge", "Operations in flight on the first link.", |group| {
        group.numbers.queue.used.into()
    }),
    ("group_queue_max", "gauge", "Limit of operations in flight.", |group| group.numbers.queue.total.into()),
    ("group_routed_total", "counter", "Completions of one member, found by polling another.", |group| {
        group.numbers.routed
    }),
    ("group_dropped_total", "counter", "Completions and messages without a member.", |group| {
        group.numbers.dropped
    }),
];

/// One number of a comm.
type CommColumn = (&'static str, &'static str, &'static str, fn(&CommSample) -> u64);

const COMMS: [CommColumn; 8] = [
    ("comm_messages_total", "counter", "Messages of the connection that completed.", |conn| {
        conn.counts.sent.wrapping_add(conn.counts.received)
    }),
    ("comm_bytes_total", "counter", "Bytes of these messages.", |conn| {
        conn.counts.sent_bytes.wrapping_add(conn.counts.received_bytes)
    }),
    ("comm_messages_pending", "gauge", "Messages that have begun and not ended.", |conn| {
        conn.counts.pending_messages()
    }),
    ("comm_messages_failed_total", "counter", "Messages that failed.", |conn| conn.counts.failed),
    ("comm_calls_again_total", "counter", "Calls that accepted nothing, to be called again.", |conn| {
        conn.counts.again
    }),
    ("comm_links", "gauge", "Links of the connection.", |conn| conn.comm.links.iter().count() as u64),
    ("comm_links_carrying", "gauge", "Links of the connection that carry data.", |conn| {
        conn.comm.links.iter().filter(|&(_, carries)| carries).count() as u64
    }),
    ("comm_failed", "gauge", "1 if the connection has failed.", |conn| {
        u64::from(conn.comm.state == CommState::Failed)
    }),
];

fn push_comms(out: &mut String, sample: &StatusSample) {
    for (name, kind, help, get) in COMMS {
        let values = sample.processes.iter().flat_map(|process| {
            let open = process.comms.iter().filter(|conn| conn.is_open());
            open.map(move |conn| (of_comm(process, conn), get(conn)))
        });
        push_family(out, name, kind, help, values);
    }
}

/// All lines of one name.
pub(super) fn push_family<T: std::fmt::Display>(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    values: impl Iterator<Item = (String, T)>,
) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "# HELP trunkline_{name} {help}\n# TYPE trunkline_{name} {kind}");
    for (labels, value) in values {
        let _ = writeln!(out, "trunkline_{name}{labels} {value}");
    }
}

fn of_process(process: &ProcessSample) -> String {
    format!("{{{}}}", process_labels(process))
}

fn process_labels(process: &ProcessSample) -> String {
    let command = escape_label(&process.command);
    let fabric = escape_label(&process.fabric);
    let ProcessSample { pid, id, .. } = process;
    format!("pid=\"{pid}\",process=\"{}\",command=\"{command}\",fabric=\"{fabric}\"", hex_id(*id))
}

fn of_nic(process: &ProcessSample, nic: &str) -> String {
    format!("{{{},nic=\"{}\"}}", process_labels(process), escape_label(nic))
}

fn of_group(seen: &ShownGroup<'_>) -> String {
    let labels = process_labels(seen.process);
    let nic = escape_label(&seen.first_nic());
    let direction = direction_name(seen.group.direction);
    let peer = hex_id(seen.group.peer);
    format!("{{{labels},group=\"{}\",direction=\"{direction}\",nic=\"{nic}\",peer=\"{peer}\"}}", seen.number)
}

fn of_comm(process: &ProcessSample, conn: &CommSample) -> String {
    let own = format!("comm=\"{}.{}\"", conn.index, conn.comm.generation);
    // The marker of a link's state is removed: each state would be another series.
    let nic = escape_label(&nic_names(process, conn)).replace('!', "");
    let direction = direction_name(conn.comm.direction);
    let peer = hex_id(conn.comm.peer);
    let labels = process_labels(process);
    format!("{{{labels},{own},direction=\"{direction}\",nic=\"{nic}\",peer=\"{peer}\"}}")
}

pub(super) fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape_label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn metric_families_are_listed_without_processes() {
        let sample =
            StatusSample { processes: Vec::new(), nodes: Vec::new(), refused: Vec::new(), hidden: 0 };
        let text = metrics_text(&sample, true);
        for wanted in
            ["# TYPE trunkline_messages_sent_total counter", "# TYPE trunkline_messages_pending gauge"]
        {
            assert!(text.lines().any(|line| line == wanted), "{text}");
        }
        assert!(text.lines().any(|line| line == "trunkline_pages_refused 0"), "{text}");
    }
}
