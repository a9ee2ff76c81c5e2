//! A trace as a file: JSON in the Chrome trace event format, which Perfetto and chrome://tracing open. A process writes
//! one of its own; the tool that collects them merges them.
//!
//! The trace format's process is a process, and its thread is a NIC that the process used. A signalled operation is a complete event (`X`) on the
//! thread of its NIC, with bytes, link and outcome as arguments; an event without a duration is an instant event (`i`).

use std::borrow::Cow;
use std::io;

use serde::{Deserialize, Serialize};

use super::EventRecorder;
use super::layout::lay_out;
use super::timeline::{TraceMark, TraceSlice, TraceTimeline};
use crate::NicPort;

/// Bytes that are written to the file at once.
const WRITE_BYTES: usize = 2048;

type TraceText = Cow<'static, str>;

/// The thread of NIC number 0; Perfetto uses number 0 itself.
const FIRST_THREAD: u64 = 1;

/// A whole trace.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct TraceFile {
    /// The events, in no order that matters.
    #[serde(rename = "traceEvents")]
    pub events: Vec<TraceEvent>,
    /// Facts about the trace.
    #[serde(rename = "otherData")]
    pub about: TraceMetadata,
}

/// Facts about a trace, apart from its events.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct TraceMetadata {
    /// Version of Trunkline.
    pub version: TraceText,
    /// How the times of its processes compare.
    pub clock: TraceText,
    /// Its processes.
    pub processes: Vec<TracedProcess>,
}

/// One process of a trace.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct TracedProcess {
    /// Its number in the events.
    pub pid: u64,
    /// Where and when it ran.
    #[serde(flatten)]
    pub origin: ProcessOrigin,
    /// Events that were recorded.
    pub recorded: u64,
    /// Events that found no room and are missing.
    pub lost: u64,
}

/// Where and when a process ran.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ProcessOrigin {
    /// Number of the process, as it saw itself.
    pub process: u32,
    /// Name of its host.
    pub host: String,
    /// Differs between hosts, and between two starts of one.
    pub boot: String,
    /// Time 0 of the events by the host's monotonic clock, in nanoseconds.
    pub start_ns: u64,
    /// The same moment, in nanoseconds since 1970, as far as the host knew.
    pub unix_ns: u64,
}

/// One event. Times are microseconds.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TraceEvent {
    /// Its name.
    pub name: TraceText,
    /// Its kind: `X` complete, `i` instant, `M` a name.
    pub ph: TraceText,
    /// The process.
    pub pid: u64,
    /// The NIC.
    pub tid: u64,
    /// When it began.
    #[serde(default)]
    pub ts: f64,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// How far an instant event reaches: `t` its thread, `p` its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s: Option<TraceText>,
    /// Its arguments.
    #[serde(default)]
    pub args: EventArgs,
}

/// Arguments of an event; each has some of them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct EventArgs {
    /// Of a process or thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<TraceText>,
    /// Its position among others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort_index: Option<u64>,
    /// Bytes of the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The link, by number in its process; a link that is created again has another number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<u32>,
    /// Its outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<TraceText>,
    /// Microseconds from post to completion. Longer than the event if the operation had to wait for others on its link or track.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_us: Option<f64>,
    /// Events that are missing from here on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}

/// Converts nanoseconds to the microseconds of a trace.
fn to_micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

impl TraceFile {
    /// Collects the events that this process has recorded so far over these NICs.
    #[must_use]
    pub fn from_recorder(recorder: &EventRecorder, nics: &[NicPort], origin: ProcessOrigin) -> Self {
        let lost = recorder.lost_count();
        let recorded = recorder.event_count() - lost;
        let story = TraceTimeline::from_events(&recorder.recorded_events(), lost > 0);
        let pid = u64::from(origin.process);
        let start = recorder.start_time().0;
        let mut file = Self::default();
        file.about.version = env!("CARGO_PKG_VERSION").into();
        file.about.clock = "CLOCK_MONOTONIC of the host".into();
        file.add_name(pid, 0, "process_name", format!("process {} on {}", origin.process, origin.host));
        file.about.processes.push(TracedProcess { pid, origin, recorded, lost });
        for &number in &story.nics {
            let nic = nics.get(usize::from(number)).map(|nic| nic.name.clone());
            let tid = u64::from(number) + FIRST_THREAD;
            file.add_name(pid, tid, "thread_name", nic.unwrap_or_else(|| format!("NIC {number}")));
            file.add_sort_index(pid, tid, "thread_sort_index", tid);
            let mut slices: Vec<TraceSlice> =
                story.slices.iter().filter(|slice| slice.nic == number).cloned().collect();
            lay_out(&mut slices);
            file.events.extend(slices.iter().map(|slice| slice.to_event(pid, start)));
        }
        file.events.extend(story.marks.iter().map(|mark| mark.to_event(pid, start)));
        if lost > 0 {
            file.events.push(TraceEvent {
                name: format!("recording stopped: {lost} events lost").into(),
                ph: "i".into(),
                pid,
                tid: story.nics.first().map_or(0, |&nic| u64::from(nic) + FIRST_THREAD),
                ts: to_micros(story.last.saturating_sub(start)),
                s: Some("p".into()),
                args: EventArgs { lost: Some(lost), ..EventArgs::default() },
                ..TraceEvent::default()
            });
        }
        file
    }

    /// Names a process or a thread.
    pub fn add_name(&mut self, pid: u64, tid: u64, what: &'static str, name: String) {
        let args = EventArgs { name: Some(name.into()), ..EventArgs::default() };
        let name = what.into();
        let ph = "M".into();
        self.events.push(TraceEvent { name, ph, pid, tid, args, ..TraceEvent::default() });
    }

    /// Sets the position of a process or a thread.
    pub fn add_sort_index(&mut self, pid: u64, tid: u64, what: &'static str, place: u64) {
        let args = EventArgs { sort_index: Some(place), ..EventArgs::default() };
        let name = what.into();
        let ph = "M".into();
        self.events.push(TraceEvent { name, ph, pid, tid, args, ..TraceEvent::default() });
    }

    /// Writes the trace as JSON.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json(&self, out: impl io::Write) -> io::Result<()> {
        // A small buffer: the file is written even when memory is short.
        let mut out = io::BufWriter::with_capacity(WRITE_BYTES, out);
        serde_json::to_writer(&mut out, self)?;
        io::Write::flush(&mut out)
    }
}

impl TraceSlice {
    fn to_event(&self, pid: u64, start: u64) -> TraceEvent {
        let args = EventArgs {
            bytes: Some(self.bytes),
            link: Some(self.link),
            status: Some(self.fate.into()),
            in_flight_us: Some(to_micros(self.end.saturating_sub(self.posted))),
            ..EventArgs::default()
        };
        TraceEvent {
            name: self.kind.trace_name().into(),
            ph: "X".into(),
            pid,
            tid: u64::from(self.nic) + FIRST_THREAD,
            ts: to_micros(self.begin.saturating_sub(start)),
            dur: Some(to_micros(self.end - self.begin)),
            s: None,
            args,
        }
    }
}

impl TraceMark {
    fn to_event(&self, pid: u64, start: u64) -> TraceEvent {
        let bytes = self.bytes;
        let link = Some(self.link);
        let status = self.fate.map(Into::into);
        TraceEvent {
            name: self.name.into(),
            ph: "i".into(),
            pid,
            tid: u64::from(self.nic) + FIRST_THREAD,
            ts: to_micros(self.at.saturating_sub(start)),
            dur: None,
            s: Some("t".into()),
            args: EventArgs { bytes, link, status, ..EventArgs::default() },
        }
    }
}
