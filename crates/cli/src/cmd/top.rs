//! `trunkline top`: shows the activity of this host's Trunkline processes, from their status pages.
//!
//! Called by `cmd`. It only reads; the processes do not notice it.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, value_parser};
use console::Term;

use crate::top::find::{PageFindError, PageFinder};
use crate::top::report::TopReport;
use crate::top::sample::{StatusSample, StatusSampler};
use crate::top::{node, prometheus, table};

const EXAMPLES: &str = "\
Examples:
  trunkline top                    a table, refreshed every second; Ctrl-C ends it
  trunkline top --comms            one line per connection instead of one per process
  trunkline top --buffers          also each buffer that is shared inside the host, and its holders
  trunkline top --once --json      one JSON object, for scripts
  trunkline top --pid 4711         one process
  trunkline top --prometheus > /var/lib/node_exporter/trunkline.prom

The table has the processes of the NCCL plugin. Programs that use tagged messages of the Rust API
(trunkline::messages) are in the table MEMORY. OpenSHMEM and NVSHMEM programs, and one-sided operations of
the Rust API, publish no counters and are not shown. A process publishes its counters in shared memory, which
its own user and root may read; start it with TRUNKLINE_STATUS=0 to turn that off. Processes in containers
are visible from the host.

Columns of a process:
  COMMS         open connections, each for one direction
  QPS           queue pairs in use of the fullest NIC, as the NIC counts them, and their limit
  CTRL          TCP connections of the control stream that has the fewest; one per cable to the
                other host if all cables work
  OUT, IN       messages and gigabytes (1e9 bytes) per second, sent and received; and bytes in total,
                closed connections included
  PENDING       messages that have begun and not ended
  AGAIN/s       calls to isend or irecv that accepted nothing: the peer has not posted its receive, or
                no resources are free. Many of them without messages: one side waits for the other.
  FAILED        messages that ended because their connection failed, or was closed too early
  LAST FAULT    the cause of the last failure

GROUPS follow if connections share queue pairs (TRUNKLINE_QP_SHARING), the first 32 of a process:
  LINKS         links of each member
  MEMBERS       connections of the group; --comms shows the GROUP of each connection
  CREDITS       eager messages in flight, of those that the peer has buffers for
  SLICES        pieces of long messages in flight, and their limit
  QUEUE         operations in flight on the first link, and their limit
  ROUTED        completions of a member that another member polled
  DROPPED       completions and messages without a member, for example after an abort

MEMORY follows if messages share memory inside the host, one line per endpoint:
  HITS/s        messages whose memory was already exported, per second
  MISSES        exports that were created for a message
  EVICTED       unused exports that were retired to keep a budget, or on request of the program
  FALLBACKS     messages without shared memory, which cost a copy; the reasons are below the table
  EXPORTS       exports that are kept, of their budget; BYTES: their bytes, of the budget
  ZOMBIES       ended exports that other ranks still map or use, and their bytes
  IN USE        exports that messages use now
  MAPPED        bytes of other ranks' memory that are mapped here
  BY RING, BY MAP, BY STAGE
                messages that were sent whole; copied here once (received + sent); sent in pieces
  LEAKS         mappings that the driver never ended
  AGE           age of the line, because a rank writes it only when it makes calls

--buffers adds each buffer: its bytes and device; its STATE (live; passing: ends with the last message that
uses it; zombie); PINS, messages that use it; the time since its last use; and the ranks that hold it. Then
it adds each process on the same host, with the buffers that it holds and its memory that is mapped here.

--json always includes the buffers. --json and --prometheus have queue pairs, completion queues and regions
of each NIC.";

/// Arguments of `top`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Print one snapshot and exit [default if standard output is not a terminal].
    #[arg(long)]
    once: bool,
    /// Print one JSON object and exit.
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print all counters in the text format of Prometheus and exit.
    #[arg(long)]
    prometheus: bool,
    /// Show only the process with this id [default: all].
    #[arg(long, value_name = "PID", value_parser = value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Print one line per connection.
    #[arg(long)]
    comms: bool,
    /// Also print each buffer that is shared inside the host, and the ranks that hold it.
    #[arg(long)]
    buffers: bool,
    /// Refresh the table after this many seconds, 0.1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, 0.1 to 3600".to_owned()),
    }
}

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TopError {
    /// The status pages cannot be found or read.
    #[error(transparent)]
    Find(#[from] PageFindError),
    /// Standard output cannot be written.
    #[error("cannot write: {0}")]
    Print(#[from] io::Error),
    /// The JSON cannot be serialised.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Runs the subcommand.
pub(crate) fn run_top(args: &TopArgs) -> Result<ExitCode, TopError> {
    let once = args.once || args.json || args.prometheus || !io::stdout().is_terminal();
    let shown = if once { show_once(args) } else { show_on(args) };
    match shown {
        // The reader of the pipe has closed it; no error.
        Err(TopError::Print(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        other => other?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show_once(args: &TopArgs) -> Result<(), TopError> {
    // Prometheus computes rates from the counters itself.
    let sample = StatusSample::take_once(args.pid, !args.prometheus)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &TopReport::new(&sample, args.comms))?;
        writeln!(out)?;
    } else if args.prometheus {
        out.write_all(prometheus::metrics_text(&sample, args.comms).as_bytes())?;
    } else {
        args.sample_lines(&sample).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    Ok(out.flush()?)
}

fn show_on(args: &TopArgs) -> Result<(), TopError> {
    let term = Term::stdout();
    let mut finder = PageFinder::new(args.pid);
    let mut sampler = StatusSampler::default();
    term.clear_screen()?;
    loop {
        let sample = sampler.take_sample(finder.find_pages()?);
        // One write, so that nothing flickers.
        let (height, width) = term.size();
        term.write_str(&fit_screen(args.sample_lines(&sample), height, width))?;
        term.flush()?;
        std::thread::sleep(Duration::from_secs_f64(args.interval));
    }
}

impl TopArgs {
    fn sample_lines(&self, sample: &StatusSample) -> Vec<String> {
        let mut lines = table::sample_lines(sample, self.comms);
        if self.buffers {
            lines.extend(node::buffer_lines(sample));
        }
        lines
    }
}

/// Cuts lines to the size of a terminal, and adds the sequences that overwrite the previous ones.
fn fit_screen(mut lines: Vec<String>, height: u16, width: u16) -> String {
    const HOME: &str = "\x1b[H";
    const END_OF_LINE: &str = "\x1b[K\n";
    const REST: &str = "\x1b[J";
    let room = usize::from(height).saturating_sub(1).max(2);
    if lines.len() > room {
        let more = lines.len() - room + 1;
        lines.truncate(room - 1);
        lines.push(format!("... {more} more"));
    }
    let lines = lines.iter().map(|line| console::truncate_str(line, usize::from(width), ">"));
    let text: String = lines.map(|line| format!("{line}{END_OF_LINE}")).collect();
    format!("{HOME}{text}{REST}")
}

#[cfg(test)]
mod tests {
    use super::{fit_screen, interval};
    use crate::top::sample::StatusSample;
    use crate::top::table;

    #[test]
    fn a_screen_is_no_larger_than_the_terminal() {
        let why =
            std::rc::Rc::new(crate::top::find::PageReadError::View(trunkline_mem::ViewError::NotSealed));
        let refused = |pid| crate::top::find::RefusedPage { pid, why: why.clone() };
        let sample = StatusSample {
            processes: Vec::new(),
            nodes: Vec::new(),
            refused: (0..30).map(refused).collect(),
            hidden: 0,
        };
        let text = fit_screen(table::sample_lines(&sample, false), 10, 20);
        let lines: Vec<&str> = text.trim_start_matches("\x1b[H").lines().collect();
        assert_eq!(lines.len(), 10, "nine, and the end: {text:?}");
        assert_eq!(lines[8], "... 23 more\x1b[K");
        assert!(lines.iter().all(|line| line.trim_end_matches("\x1b[K").chars().count() <= 20), "{text:?}");
    }

    #[test]
    fn interval_refuses_values_out_of_range() {
        assert_eq!(interval("0.5"), Ok(0.5));
        for bad in ["0", "-1", "x", "inf", "NaN", "4000"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}
