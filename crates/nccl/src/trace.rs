//! The trace of this process, if `TRUNKLINE_TRACE` requests one: a recorder that receives events of the fabric, and
//! the file to which they are written. Made and written by `world`; never called for a message.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustix::time::{ClockId, clock_gettime};
use trunkline_engine::EngineParams;
use trunkline_fabric::NicPort;
use trunkline_fabric::trace::{EventRecorder, ProcessOrigin, TraceFile};
use trunkline_proto::time::Instant;

/// A trace that is being recorded.
#[derive(Debug)]
pub(crate) struct ProcessTrace {
    pub(crate) recorder: Arc<EventRecorder>,
    directory: PathBuf,
    origin: ProcessOrigin,
    /// The number of events when the file was last written. The lock serialises writers.
    written: Mutex<Option<u64>>,
}

/// A trace file that was written.
#[derive(Debug)]
pub(crate) struct WrittenTrace {
    pub(crate) path: PathBuf,
    pub(crate) recorded: u64,
    pub(crate) lost: u64,
}

impl ProcessTrace {
    /// Starts to record, if a trace is requested.
    ///
    /// # Errors
    /// If the directory does not exist and cannot be made: a failure at the start does not waste a run.
    pub(crate) fn begin_recording(params: &EngineParams) -> io::Result<Option<Self>> {
        let Some(directory) = params.trace.clone() else { return Ok(None) };
        fs::create_dir_all(&directory)?;
        let recorder = EventRecorder::try_new(params.trace_events as usize, monotonic_now);
        let recorder = Arc::new(recorder.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?);
        let origin = process_origin(&recorder);
        Ok(Some(Self { recorder, directory, origin, written: Mutex::new(None) }))
    }

    /// Replaces the file by one with all events so far; `None` if no event was recorded since the last write.
    ///
    /// # Errors
    /// If the file cannot be written; an earlier file is kept.
    pub(crate) fn write_file(&self, nics: &[NicPort]) -> io::Result<Option<WrittenTrace>> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.recorder.event_count();
        if *written == Some(count) {
            return Ok(None);
        }
        let ProcessOrigin { process, host, .. } = &self.origin;
        let path = self.directory.join(format!("trunkline-{host}-{process}.json"));
        // The rename ensures that no reader sees a partial file.
        let part = path.with_extension("part");
        let file = TraceFile::from_recorder(&self.recorder, nics, self.origin.clone());
        file.write_json(File::create(&part)?)?;
        fs::rename(&part, &path)?;
        *written = Some(count);
        let (recorded, lost) = file.about.processes.first().map_or((0, 0), |one| (one.recorded, one.lost));
        Ok(Some(WrittenTrace { path, recorded, lost }))
    }
}

/// The clock that all processes of a host share.
fn monotonic_now() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    Instant((now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64))
}

fn process_origin(recorder: &EventRecorder) -> ProcessOrigin {
    let said = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    // Only characters that are valid in a file name are kept.
    let plain = |letter: &char| letter.is_ascii_alphanumeric() || ['.', '-', '_'].contains(letter);
    let host: String = said("/proc/sys/kernel/hostname").chars().filter(plain).collect();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let begun = monotonic_now().0.saturating_sub(recorder.start_time().0);
    ProcessOrigin {
        process: std::process::id(),
        host: if host.is_empty() { "host".to_owned() } else { host },
        boot: said("/proc/sys/kernel/random/boot_id"),
        start_ns: recorder.start_time().0,
        unix_ns: (since.as_nanos() as u64).saturating_sub(begun),
    }
}
