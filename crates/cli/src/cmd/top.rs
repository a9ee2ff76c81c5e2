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
  trunkline top --buffers          also each buffer that is shared inside the host, and ranks that hold it
  trunkline top --once --json      one JSON object, for scripts
  trunkline top --pid 4711         one process
  trunkline top --prometheus > /var/lib/node_exporter/trunkline.prom

The first table shows the processes of the NCCL plugin. Programs that use tagged messages of the Rust API
(trunkline::messages) are in the table MEMORY. OpenSHMEM and NVSHMEM programs, and one-sided operations of
the Rust API, publish no counters and are not shown. A process publishes its counters in shared memory, which
its own user and root may read; start it with TRUNKLINE_STATUS=0 to turn that off. Processes in containers
are visible from the host.

In all tables, 3/32 means that 3 are in use and that 32 is the limit, and - means no value.

Columns of a process:
  UP            Time since the process began to use Trunkline.
  COMMS         Open connections. A connection is a comm of NCCL, and carries messages in one direction.
  QPS           Queue pairs in use / the limit of the NIC, for the NIC that is nearest to its limit.
  CTRL          Each pair of processes on two hosts has a control stream, by which they create connections
                and detect failures. It consists of up to 4 TCP connections, over different network
                interfaces where possible. CTRL is the number of TCP connections of the control stream
                that has the fewest. A falling number means that a network path has failed.
  OUT, IN       Messages and gigabytes (1e9 bytes) per second, sent and received. The columns OUT and IN
                after FAILED are the total bytes, closed connections included.
  PENDING       Messages that have begun and not ended.
  AGAIN/s       Calls to isend or irecv that accepted nothing: the peer has not posted its receive, or
                no resources are free. Many of them without messages: one side waits for the other.
  FAILED        Messages that ended because their connection failed, or was closed too early.
  LAST FAULT    The cause of the last failure.

Columns of a connection (--comms):
  COMM          The number of the connection, as INDEX.GENERATION. When a later connection gets the INDEX of
                a closed one, GENERATION changes.
  DIR           send or recv.
  NIC           The NICs of the connection, joined by +. A ! follows a NIC that carries no data now.
  GROUP         The number of the group of queue pairs that it shares, in the table GROUPS. A ? means that
                the group is not in that table.
  PEER          The other process, by its process id. If that process is not shown here: the word id, and
                the first 8 digits of the random identifier that the process uses in Trunkline.
  STATE, FAULT  open, or failed with its cause.
  MESSAGES      Messages of this connection in total. BYTES is the same in bytes.

GROUPS follow if connections share queue pairs (TRUNKLINE_QP_SHARING). A group is a set of queue pairs
between two processes that several connections of one direction share; these connections are its members.
A link is a pair of these queue pairs, one of each process, that are connected. Up to 32 groups per process
are shown.
  LINKS         Links that every member uses, 1 to 4.
  MEMBERS       Number of members. --comms shows the GROUP of each connection.
  CREDITS       Eager messages in flight / those that the peer has buffers for. An eager message is short,
                and is sent before its receive is posted. Receiving ends have no number here.
  SLICES        Pieces of long messages in flight / their limit.
  QUEUE         Operations in flight on the first link / their limit.
  ROUTED        Completions of one member that were found while another member was polled.
  DROPPED       Completions and messages that belonged to no member, for example after an abort.
  FAILED        Messages of the members that failed; GB/s and BYTES are those of the members, too.

MEMORY follows if messages share memory inside the host, with one line per trunkline::messages::Messages. An
export is memory that other processes of the host may map. It is kept for later messages, up to a number of
exports and a number of bytes; the columns EXPORTS and BYTES show both limits.
  HITS/s        Messages per second whose memory was already exported.
  MISSES        Exports that were begun for a message, because its memory was not exported.
  EVICTED       Unused exports that were ended to stay within the limits, or because the program released
                the memory.
  FALLBACKS     Messages that could not share memory and cost one copy more. The reasons are below the table.
  EXPORTS       Exports that are kept / their limit. BYTES is the same in bytes.
  ZOMBIES       Ended exports that other ranks still map or use, and their bytes.
  IN USE        Exports that messages use now.
  MAPPED        Bytes of other ranks' memory that are mapped here.
  BY RING       Messages that were copied whole through a ring in shared memory.
  BY MAP        Messages that this process copied in one operation, as their receiver + as their sender.
  BY STAGE      Messages that were sent in pieces through shared memory.
  LEAKS         Mappings that the driver never ended.
  AGE           Time since the line was written. A rank writes it only while it makes calls.

--buffers adds each exported buffer of a process:
  DEVICE, ID    The device of the memory, and the driver's number of the allocation.
  STATE         exporting; live; zombie (ended, and still mapped or used); leaving (being returned to the
                driver). With `, passing` after it: the export ends with the last message that uses it.
  PINS          Messages that use it now.
  UNUSED        Time since its last use.
  HELD BY       Ranks that received it and have not released it, with their process ids.
Then it adds each other process of the host (NEIGHBOUR): the buffers that it HOLDS, its memory that is
MAPPED HERE, and the messages that use that memory (IN USE).

--json always includes the buffers. --json and --prometheus also contain the queue pairs, completion queues
and registered regions of each NIC.";

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
    /// Also print each buffer that is shared inside the host, and the ranks that have not released it.
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
