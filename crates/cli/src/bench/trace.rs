//! `bench --trace`: makes the plugin of each rank record a trace, and merges the traces into one file for Perfetto.
//!
//! Called by `cmd::bench` and by the runs. The plugin reads an environment variable and writes a file. A plugin that
//! does not know the variable writes none, and a message reports that.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use thiserror::Error;
use trunkline_fabric::trace::{ProcessOrigin, TraceFile, TracedProcess};
use trunkline_nccl_host::{KeptFiles, LeftFiles, PluginReport};

use super::restart;

/// The variable that names the directory for the trace of Trunkline's plugin.
const PLUGIN_VARIABLE: &str = "TRUNKLINE_TRACE";
/// Names the directory of a rank that another launcher started; set by the rank for its restarted self.
const OWN_VARIABLE: &str = "TRUNKLINE_JOB_TRACE";
/// The first bytes of a trace that this command wrote.
const BEGINNING: &[u8] = br#"{"traceEvents":["#;
/// Offset between the thread numbers of two processes: some readers need distinct numbers.
const THREADS_MAX: u64 = 1000;

/// Why the trace cannot be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum TraceError {
    /// The file cannot be written.
    #[error("{path}: {1}", path = .0.display())]
    Write(PathBuf, #[source] io::Error),
    /// The file exists and is not a trace, for example results. It is not replaced.
    #[error("{} exists and is not a trace; remove it, or name another file", .0.display())]
    Other(PathBuf),
    /// The directory for the plugins' files cannot be created.
    #[error("cannot create a directory for the traces of the ranks: {0}")]
    Directory(#[source] io::Error),
    /// This program cannot be restarted.
    #[error("cannot restart this program with {PLUGIN_VARIABLE} set: {0}")]
    Again(#[source] io::Error),
    /// A plugin's file is not a trace.
    #[error("cannot read the trace of rank {rank}: {source}")]
    Rank {
        /// The rank.
        rank: usize,
        /// The parse error.
        source: serde_json::Error,
    },
}

/// The trace directory of a rank that another launcher started; removed on drop.
#[derive(Debug)]
pub(crate) struct OwnDirectory(PathBuf);

impl OwnDirectory {
    /// Opens the trace directory that this process's plugin uses. A plugin reads its variables when it is loaded, and a
    /// process must not change its own environment. The first call therefore restarts the program with the variable
    /// set.
    pub(crate) fn open_or_restart() -> Result<Self, TraceError> {
        if let Some(path) = std::env::var_os(OWN_VARIABLE) {
            return Ok(Self(path.into()));
        }
        let directory = tempfile::tempdir().map_err(TraceError::Directory)?.keep();
        let error = restart::restart_process(
            &[PLUGIN_VARIABLE, OWN_VARIABLE].map(|name| (name, directory.as_os_str())),
        );
        let _ = std::fs::remove_dir_all(directory);
        Err(TraceError::Again(error))
    }

    /// The directory's path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        // A directory that cannot be removed is left to the system's cleaning of temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The trace of a run in progress.
#[derive(Debug)]
pub(crate) struct PendingTrace {
    path: PathBuf,
    directory: TempDir,
}

impl PendingTrace {
    /// Creates an empty trace. The file is opened now, so that a long run does not end with a file that cannot be
    /// written. Existing content stays until the trace is written, and only a trace is replaced.
    pub(crate) fn new(path: &Path) -> Result<Self, TraceError> {
        let failed = |error| TraceError::Write(path.to_owned(), error);
        let file = File::options().read(true).append(true).create(true).open(path).map_err(failed)?;
        let mut head = Vec::new();
        file.take(BEGINNING.len() as u64).read_to_end(&mut head).map_err(failed)?;
        if !head.is_empty() && head != BEGINNING {
            return Err(TraceError::Other(path.to_owned()));
        }
        let directory = tempfile::tempdir().map_err(TraceError::Directory)?;
        Ok(Self { path: path.to_owned(), directory })
    }

    /// The environment variable and the directory for the ranks' plugins.
    pub(crate) fn plugin_setting(&self) -> KeptFiles {
        KeptFiles { variable: PLUGIN_VARIABLE, directory: self.directory.path().to_owned() }
    }

    /// Merges the ranks' files and writes the trace; returns a summary.
    pub(crate) fn write_merged(
        &self,
        left: &[LeftFiles],
        info: &PluginReport,
    ) -> Result<TraceSummary, TraceError> {
        let mut traces = Vec::new();
        for (rank, texts) in left.iter().enumerate() {
            for text in texts {
                let trace = serde_json::from_str(text).map_err(|source| TraceError::Rank { rank, source })?;
                traces.push((rank, trace));
            }
        }
        if traces.is_empty() {
            return Ok(TraceSummary::Nothing(info.name.clone()));
        }
        let trace = merge_traces(traces);
        let failed = |error| TraceError::Write(self.path.clone(), error);
        File::create(&self.path).and_then(|file| trace.write_json(file)).map_err(failed)?;
        Ok(TraceSummary::from_trace(&self.path, &trace, left))
    }
}

impl Drop for PendingTrace {
    fn drop(&mut self) {
        // An empty file must not pass for a trace.
        if self.path.metadata().is_ok_and(|file| file.len() == 0) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The outcome of a trace.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum TraceSummary {
    /// The plugin of that name recorded nothing.
    Nothing(String),
    /// The content of the file, and the missing parts.
    Something { what: String, missing: Vec<String> },
}

impl TraceSummary {
    fn from_trace(path: &Path, trace: &TraceFile, left: &[LeftFiles]) -> Self {
        let about = &trace.about;
        let rails = trace.events.iter().filter(|event| event.name == "thread_name").count();
        let recorded: u64 = about.processes.iter().map(|process| process.recorded).sum();
        let what = format!(
            "trace {}: {} processes, {rails} rails, {recorded} events; open it in https://ui.perfetto.dev",
            path.display(),
            about.processes.len(),
        );
        let mut missing: Vec<String> = about
            .processes
            .iter()
            .filter(|process| process.lost > 0)
            .map(|process| {
                let rank = process.pid - 1;
                let lost = process.lost;
                format!("rank {rank} has no room for {lost} later events; raise TRUNKLINE_TRACE_EVENTS")
            })
            .collect();
        let none = left.iter().enumerate().filter(|(_, texts)| texts.is_empty());
        missing.extend(none.map(|(rank, _)| format!("rank {rank} wrote no trace")));
        Self::Something { what, missing }
    }

    /// Prints the summary: the content as a line of the table, missing parts on standard error.
    pub(crate) fn print_summary(&self, out: &mut impl io::Write, table: bool) -> io::Result<()> {
        match self {
            Self::Nothing(plugin) => {
                eprintln!("trunkline: no trace: the plugin {plugin} recorded nothing; use Trunkline's plugin")
            }
            Self::Something { what, missing } => {
                missing.iter().for_each(|line| eprintln!("trunkline: trace: {line}"));
                if table {
                    writeln!(out, "# {what}")?;
                }
            }
        }
        Ok(())
    }
}

/// Merges the traces of ranks. Process 1 is rank 0, because readers reserve process 0. Each host has its own clock;
/// they are aligned by the time of day of the first process on each host.
fn merge_traces(traces: Vec<(usize, TraceFile)>) -> TraceFile {
    // Time 0 of each host's monotonic clock, in nanoseconds since 1970, by the time of day of its first process.
    let mut hosts: HashMap<String, i128> = HashMap::new();
    let about = |trace: &TraceFile| trace.about.processes.first().cloned().unwrap_or_default();
    let mut begun = Vec::new();
    for (_, trace) in &traces {
        let ProcessOrigin { boot, start_ns, unix_ns, .. } = about(trace).origin;
        let start = i128::from(start_ns);
        begun.push(start + *hosts.entry(boot).or_insert(i128::from(unix_ns) - start));
    }
    let first = begun.iter().min().copied().unwrap_or_default();
    let mut merged = TraceFile::default();
    merged.about.version = env!("CARGO_PKG_VERSION").into();
    merged.about.clock = match hosts.len() {
        1 => "one host: all processes share its monotonic clock".into(),
        count => format!("{count} hosts, aligned by their time of day: times differ by its error").into(),
    };
    for ((rank, trace), begun) in traces.into_iter().zip(begun) {
        let pid = rank as u64 + 1;
        let later = (begun - first) as f64;
        let TracedProcess { origin, recorded, lost, .. } = about(&trace);
        merged.add_sort_index(pid, 0, "process_sort_index", pid);
        for mut event in trace.events {
            event.pid = pid;
            event.tid += pid * THREADS_MAX;
            if event.ph != "M" {
                event.ts = ((event.ts * 1000.0).round() + later) / 1000.0;
            } else if event.name == "process_name" {
                event.args.name =
                    Some(format!("rank {rank} (pid {} on {})", origin.process, origin.host).into());
            }
            merged.events.push(event);
        }
        merged.about.processes.push(TracedProcess { pid, origin, recorded, lost });
    }
    merged
}

#[cfg(test)]
mod tests {
    use trunkline_fabric::trace::TraceEvent;

    use super::*;

    /// A trace of one event, a microsecond after its start.
    fn trace(boot: &str, process: u32, start_ns: u64, unix_ns: u64) -> TraceFile {
        let origin =
            ProcessOrigin { process, host: format!("host-{boot}"), boot: boot.to_owned(), start_ns, unix_ns };
        let pid = u64::from(process);
        let mut file = TraceFile::default();
        file.add_name(pid, 0, "process_name", "any".to_owned());
        file.add_name(pid, 1, "thread_name", "soft0".to_owned());
        file.events.push(TraceEvent {
            name: "write".into(),
            ph: "X".into(),
            pid,
            tid: 1,
            ts: 1.0,
            dur: Some(0.5),
            ..TraceEvent::default()
        });
        file.about.processes.push(TracedProcess { pid, origin, recorded: 1, lost: 0 });
        file
    }

    #[test]
    fn hosts_are_aligned_by_their_time_of_day() {
        // The second process of host a has another time of day by now; host b's clock has another origin.
        let merged = merge_traces(vec![
            (0, trace("a", 70, 5_000, 1_000_000)),
            (1, trace("a", 71, 7_500, 9_000_000)),
            (2, trace("b", 70, 900, 1_000_250)),
        ]);
        let slices: Vec<(u64, u64, f64)> = merged
            .events
            .iter()
            .filter(|event| event.ph == "X")
            .map(|event| (event.pid, event.tid, event.ts))
            .collect();
        assert_eq!(slices, [(1, 1001, 1.0), (2, 2001, 3.5), (3, 3001, 1.25)]);
        let names: Vec<String> = merged
            .events
            .iter()
            .filter(|event| event.name == "process_name")
            .map(|event| event.args.name.clone().unwrap().into_owned())
            .collect();
        let told = ["rank 0 (pid 70 on host-a)", "rank 1 (pid 71 on host-a)", "rank 2 (pid 70 on host-b)"];
        assert_eq!(names, told);
        assert!(merged.about.clock.starts_with("2 hosts"), "{}", merged.about.clock);
    }

    #[test]
    fn trace_is_recognised_by_its_first_bytes() {
        let mut text = Vec::new();
        trace("a", 70, 0, 0).write_json(&mut text).unwrap();
        assert!(text.starts_with(BEGINNING));
    }

    #[test]
    fn summary_names_missing_parts_of_a_trace() {
        let mut lossy = trace("a", 70, 0, 0);
        lossy.about.processes[0].lost = 17;
        let merged = merge_traces(vec![(0, lossy)]);
        let TraceSummary::Something { what, missing } =
            TraceSummary::from_trace(Path::new("t.json"), &merged, &[vec![String::new()], LeftFiles::new()])
        else {
            panic!("something");
        };
        assert!(what.starts_with("trace t.json: 1 processes, 1 rails, 1 events"), "{what}");
        assert_eq!(missing.len(), 2);
        assert!(missing[0].starts_with("rank 0 has no room for 17 later events"), "{}", missing[0]);
        assert_eq!(missing[1], "rank 1 wrote no trace");
    }
}
