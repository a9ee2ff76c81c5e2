//! The life of a PE in a process that this program starts, and checks of its end after a refused allocation.

use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use trunkline_bootstrap::{JobSecret, free_port, trunkline_run};

use crate::child::{self, Standing};
use crate::{allocator, calls};

/// The variable with the number of the large allocation that a PE refuses; 0 refuses none.
const NTH: &str = "TRUNKLINE_REFUSALS_NTH";
/// The limit within which the threads of a finalized PE end.
const SETTLES: Duration = Duration::from_secs(5);
/// The limit of a job, after which it counts as hung.
const LIMIT: Duration = Duration::from_secs(30);

/// A transport between PEs.
pub(crate) struct Way {
    name: &'static str,
    variables: &'static [(&'static str, &'static str)],
    pes: usize,
    /// Whether the PEs only have a network, over which they cannot agree that one of them has no memory.
    is_far: bool,
}

const SOFT: (&str, &str) = ("TRUNKLINE_FABRIC", "soft");

pub(crate) const ALONE: Way = Way { name: "one PE", variables: &[SOFT], pes: 1, is_far: false };
pub(crate) const SHARED: Way = Way {
    name: "two PEs that share memory",
    variables: &[SOFT, (calls::MOST, "130")],
    pes: 2,
    is_far: false,
};
pub(crate) const TCP: Way = Way {
    name: "two PEs over TCP",
    variables: &[("TRUNKLINE_FABRIC", "soft:tcp"), ("TRUNKLINE_SHARED_HEAP", "off"), (calls::MOST, "4")],
    pes: 2,
    is_far: true,
};

/// Returns the allocation that this process refuses, if it is a PE.
pub(crate) fn asked() -> Option<u64> {
    std::env::var(NTH).ok()?.parse().ok()
}

/// Runs as a PE. Prints the bytes of its large allocations, and the resources that it holds in the end.
pub(crate) fn play(nth: u64) {
    trunkline_mem::refuse_mappings(allocator::refuses);
    child::watch_panics();
    let threads = Standing::now().threads;
    allocator::arm(nth);
    calls::start();
    let mut phases = Vec::with_capacity(32);
    let failed = [(); 2].map(|()| calls::all(|| phases.push(allocator::seen())));
    calls::finalize();
    let sizes = allocator::disarm();
    let panics = std::mem::take(&mut *child::panics());
    assert!(panics.is_empty(), "{panics:?}");
    let failed: Vec<_> = failed.into_iter().flatten().collect();
    // One refusal fails at most one call of all PEs.
    assert!(failed.len() <= 1, "{failed:?} failed");
    println!("\nfailed {failed:?}");
    let held = settled(threads);
    let large = usize::try_from(held.large).unwrap_or(0);
    println!("held {} {} {} {} {large}", held.descriptors, held.memory_files, held.threads, held.heaps);
    let numbers = |all: &[usize]| all.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    println!("phases {}\nsizes {}", numbers(&phases), numbers(&sizes));
}

/// Returns the resources of a PE once its own threads have ended, which takes up to 20 ms.
fn settled(threads: usize) -> Standing {
    let end = Instant::now() + SETTLES;
    loop {
        let now = Standing::now();
        if now.threads <= threads || Instant::now() > end {
            return now;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The report of a PE that finalized.
struct Report {
    sizes: Vec<usize>,
    /// The number of allocations before each phase except the first.
    phases: Vec<usize>,
    held: Vec<usize>,
}

impl Report {
    /// Returns the report that a PE printed, if it succeeded.
    fn read(out: &Output) -> Option<Self> {
        let text = String::from_utf8_lossy(&out.stdout);
        let numbers = |name: &str| -> Option<Vec<usize>> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().map(|word| word.parse().ok()).collect()
        };
        let report = Self { sizes: numbers("sizes")?, phases: numbers("phases")?, held: numbers("held")? };
        out.status.success().then_some(report)
    }

    /// Returns whether an allocation is the first of its size in its phase.
    fn is_first(&self, at: usize) -> bool {
        let begin = self.phases.iter().copied().take_while(|&begin| begin <= at).last().unwrap_or(0);
        !self.sizes[begin..at].contains(&self.sizes[at])
    }
}

/// A job whose first or last PE refuses an allocation.
struct Job(Vec<Child>);

impl Job {
    fn start(way: &Way, refuser: usize, nth: u64) -> Self {
        let port = free_port().unwrap();
        let secret = JobSecret::random().unwrap().to_hex();
        let start = |rank: usize| {
            let mut command: Command = child::child_command();
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.env(trunkline_run::RANK, rank.to_string()).env(trunkline_run::SIZE, way.pes.to_string());
            command
                .env(trunkline_run::SECRET, &secret)
                .env(trunkline_run::STORE, format!("127.0.0.1:{port}"));
            command.env("SHMEM_SYMMETRIC_SIZE", "8M").envs(way.variables.iter().copied());
            command.env(NTH, if rank == refuser { nth } else { 0 }.to_string());
            command.spawn().unwrap()
        };
        Self((0..way.pes).map(start).collect())
    }

    /// Waits until a PE has ended; `None` after the limit.
    fn ended(&mut self, pe: usize) -> Option<ExitStatus> {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            if let Some(status) = self.0[pe].try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Waits for the PE that refuses, and returns the output of all PEs. If that PE fails the others are killed, as a
    /// launcher does.
    fn end(mut self, refuser: usize) -> Result<Vec<Output>, String> {
        let first = self.ended(refuser);
        let finalized = first.is_some_and(|status| status.success());
        let mut late = Vec::new();
        for pe in (0..self.0.len()).filter(|&pe| pe != refuser) {
            if !finalized || self.ended(pe).is_none() {
                late.push(pe);
            }
        }
        for child in &mut self.0 {
            let _ = child.kill();
        }
        let all: Vec<Output> = self.0.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        match first {
            None => Err(format!("the job hangs:\n{}", said(&all[refuser]))),
            Some(_) if finalized && !late.is_empty() => {
                Err(format!("PE {refuser} has finalized, and PEs {late:?} have not"))
            }
            Some(_) => Ok(all),
        }
    }
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Calls that report a lack of memory by their result; the last one does so also where PEs cannot agree.
const RETURN_ERRORS: [&str; 5] =
    ["shmem_malloc:", "shmem_calloc:", "shmem_align:", "shmem_realloc:", "shmem_ctx_create:"];

/// Checks that a PE ended as OpenSHMEM's programs do: with status 1, and a line with the cause and the remedy.
fn ends_with_message(way: &Way, out: &Output) -> Result<(), String> {
    let text = String::from_utf8_lossy(&out.stderr);
    let mut lines = text.lines();
    // A rail without memory for its end of a link may report that only to its peer.
    let is_cause =
        |line: &str| line.contains("no memory for") || way.is_far && line.contains("the last rail to it");
    let line = lines.find(|line| line.starts_with("trunkline: ") && is_cause(line));
    let line = line.filter(|_| out.status.code() == Some(1));
    let line = line.ok_or_else(|| format!("the PE ended with {}\n{}", out.status, said(out)))?;
    let return_errors = &RETURN_ERRORS[if way.is_far { RETURN_ERRORS.len() - 1 } else { 0 }..];
    if return_errors.iter().any(|call| line.contains(call)) {
        return Err(format!("a call that can return an error ends the program: {line}"));
    }
    let remedies = ["ulimit -v", "SHMEM_SYMMETRIC_SIZE", "read its output"];
    let has_remedy = remedies.iter().any(|remedy| line.contains(remedy));
    if has_remedy { Ok(()) } else { Err(format!("a message without a remedy: {line}")) }
}

/// Checks the end of a job whose PE refused an allocation. `usual` are the resources that a PE holds in the end.
fn judge(way: &Way, ends: &[Output], refuser: usize, usual: &[usize]) -> Result<(), String> {
    if !ends[refuser].status.success() {
        return ends_with_message(way, &ends[refuser]);
    }
    for (pe, out) in ends.iter().enumerate() {
        let report = Report::read(out).ok_or_else(|| format!("PE {pe}: {}\n{}", out.status, said(out)))?;
        // Over a network, replaced links and ended streams leave descriptors, which PEs close later.
        let spare = [if way.is_far { 4 } else { 0 }, 0, 0, 0, 0];
        let allowed = usual.iter().zip(spare).map(|(usual, spare)| usual + spare);
        if report.held.iter().zip(allowed).any(|(held, allowed)| *held > allowed) {
            return Err(format!("PE {pe} leaks: {:?} are held, not {usual:?}", report.held));
        }
    }
    Ok(())
}

/// Refuses each large allocation of a PE, or the first of each size in each phase.
pub(crate) fn all_hold(way: &Way) {
    let all = std::env::var("TRUNKLINE_FULL").is_ok_and(|full| full == "1");
    let (mut trials, mut ended, mut wrong) = (0, 0, Vec::new());
    let refusers = if all { 0..way.pes } else { way.pes - 1..way.pes };
    for refuser in refusers {
        let usual = Job::start(way, refuser, 0).end(refuser).unwrap();
        let report = Report::read(&usual[refuser]);
        let report = report.unwrap_or_else(|| {
            panic!("{}: the job fails without a refusal:\n{}", way.name, said(&usual[refuser]))
        });
        assert!(
            usual.iter().all(|out| said(out).contains("failed []")),
            "{}: a call fails without a refusal",
            way.name
        );
        for at in (0..report.sizes.len()).filter(|&at| all || report.is_first(at)) {
            trials += 1;
            let ends = Job::start(way, refuser, at as u64 + 1).end(refuser);
            if ends.as_ref().is_ok_and(|ends| !ends[refuser].status.success()) {
                ended += 1;
            }
            if let Err(why) = ends.and_then(|ends| judge(way, &ends, refuser, &report.held)) {
                let (nth, bytes) = (at + 1, report.sizes[at]);
                eprintln!("{}: PE {refuser}, allocation {nth} of {bytes} bytes refused: {why}", way.name);
                wrong.push(nth);
            }
        }
    }
    eprintln!("{}: {trials} trials, of which {ended} ended the program with a message", way.name);
    assert!(wrong.is_empty() && trials > 0, "{} of {trials} trials failed", wrong.len());
}
