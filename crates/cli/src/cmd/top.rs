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
  trunkline top --comms            one line a connection instead of one a process
  trunkline top --buffers          with each buffer that is shared inside the host, and who holds it
  trunkline top --once --json      one JSON object, for scripts
  trunkline top --pid 4711         one process
  trunkline top --prometheus > /var/lib/node_exporter/trunkline.prom

Every process that uses Trunkline keeps a page of counters that others of the same user, and root, may
read; TRUNKLINE_STATUS=0 turns that off for a process that is started with it. Processes in containers
are seen from outside.

OUT and IN are what the process sent and received: messages and gigabytes (1e9 bytes) a second, and bytes
in all, connections that are closed included. COMMS are connections, each for one direction. QPS are
the queue pairs in use of the fullest NIC, as it counts itself, of those it has; --json and --prometheus
tell of each NIC, and of its completion queues and regions. CTRL are the network connections that carry
the control stream to another host which has the fewest: as many as cables that lead there, if all are
whole. PENDING messages have begun and not ended.
AGAIN/s are calls to send or receive that were told to call again: the peer has not asked for the message,
or there is no room; many of them with no messages mean that one side waits for the other. FAILED messages
ended because their connection failed, or was closed too early.

Where connections share queue pairs (TRUNKLINE_QP_SHARING), GROUPS follow, a line each: MEMBERS are the
connections on it, each with so many LINKS. CREDITS are eager messages for which the peer has room, SLICES
pieces of long messages under way, of how many; all members together have no more. ROUTED completions came
while another member was asked, DROPPED ones were nobody's, as when a member was aborted. --comms tells
which GROUP a connection is on. A process shows its first 32 groups.

Where memory is shared inside the host (messages between its ranks), MEMORY follows, a line for each end: EXPORTS
and BYTES that are kept, of its budget; ZOMBIES are over and still mapped or used by another rank, and their
bytes count; IN USE are exports that messages use now; MAPPED is what is mapped here of others. HITS/s, MISSES
and EVICTED are of messages that looked for their memory among the exports. FALLBACKS are messages that went
without sharing, which costs them a copy; the reasons are on the lines below. BY RING, BY MAP and BY STAGE are messages
sent whole, copied here once (those received and those sent, as 3+1), and sent in pieces. AGE is how old these numbers are:
they are written when the rank makes calls. With --buffers each buffer follows: how much of whose memory it is, whether it is
live, kept for nobody but messages under way (passing) or a zombie, for how long it was not used, and which ranks hold it;
then, by neighbour, what it holds of this end and what is mapped here of it. --json always tells that.";

/// Arguments of `top`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Print one snapshot and exit (default if stdout is not a terminal).
    #[arg(long)]
    once: bool,
    /// Print one JSON object and exit.
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print counters in Prometheus' text format and exit.
    #[arg(long)]
    prometheus: bool,
    /// Show only the process with this id.
    #[arg(long, value_name = "PID", value_parser = value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Show each connection.
    #[arg(long)]
    comms: bool,
    /// Show each buffer that is shared inside the host, and the ranks that hold it.
    #[arg(long)]
    buffers: bool,
    /// Seconds between two updates.
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
    fn an_interval_is_some_time() {
        assert_eq!(interval("0.5"), Ok(0.5));
        for bad in ["0", "-1", "x", "inf", "NaN", "4000"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}
