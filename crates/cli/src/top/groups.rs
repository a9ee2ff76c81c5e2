//! The groups of shared queue pairs of a sample, for the printing modules.

use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::status::group::CreditUsage;
use trunkline_proto::wire::status::{CommState, QueueGroupRecord};

use super::report::nic_name;
use super::sample::{CommSample, ProcessSample, StatusSample};

/// One group of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownGroup<'a> {
    pub(super) process: &'a ProcessSample,
    /// Its index among the groups that the process shows.
    pub(super) number: usize,
    pub(super) group: &'a QueueGroupRecord,
}

/// The groups of a process that have a record.
pub(super) fn shown_groups(process: &ProcessSample) -> impl Iterator<Item = ShownGroup<'_>> {
    let records = process.groups.iter().enumerate();
    records.filter_map(move |(number, group)| Some(ShownGroup { process, number, group: group.as_ref()? }))
}

impl ShownGroup<'_> {
    /// The NIC of its first link.
    pub(super) fn first_nic(&self) -> String {
        nic_name(self.process, self.group.nic)
    }
}

/// The sums over the open comms of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MemberTotals {
    /// Bytes of their messages.
    pub(super) bytes: u64,
    /// Bytes per second, if there was an earlier sample.
    pub(super) rate: Option<f64>,
    /// Messages that failed.
    pub(super) failed: u64,
}

impl ShownGroup<'_> {
    /// Sums the counters of the group's members.
    pub(super) fn member_totals(&self) -> MemberTotals {
        let on =
            |conn: &&CommSample| number_of(conn).is_some_and(|record| usize::from(record) == self.number);
        let mut all = MemberTotals::default();
        for CommSample { counts, rates, .. } in self.process.comms.iter().filter(on) {
            all.bytes = all.bytes.wrapping_add(counts.sent_bytes.wrapping_add(counts.received_bytes));
            all.failed = all.failed.wrapping_add(counts.failed);
            if let Some(rates) = rates {
                *all.rate.get_or_insert(0.0) += rates.bytes_sent + rates.bytes_received;
            }
        }
        all
    }
}

/// Formats used and total credits.
pub(super) fn format_taken(CreditUsage { used, total }: CreditUsage) -> String {
    match total {
        0 => "-".to_owned(),
        _ => format!("{used}/{total}"),
    }
}

/// The index of the group that a comm is a member of, if the comm is open and its group is shown.
pub(super) fn number_of(conn: &CommSample) -> Option<u8> {
    conn.comm.ride.filter(|_| conn.comm.state != CommState::Closed)?.record
}

/// Which member of its group a comm is.
pub(super) fn member_of(conn: &CommSample) -> Option<u32> {
    let ride = conn.comm.ride.filter(|_| conn.comm.state != CommState::Closed)?;
    Some(ride.member.to_bits())
}

/// The id of the peer's process, if it is in the sample.
pub(super) fn pid_of(sample: &StatusSample, process: ProcessId) -> Option<u32> {
    sample.processes.iter().find(|other| other.id == process).map(|other| other.pid)
}
