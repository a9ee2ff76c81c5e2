//! Runs cases once for each of their large allocations, which is refused. The runs are in child processes, so that an
//! abort is one more result. The test is the parent; a child runs all trials of a case until one of them fails.

use std::fmt::Display;
use std::io::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::process::Output;
use std::time::{Duration, Instant};

use crate::allocator;
use crate::child::{Standing, child_command, panics, watch_panics};

/// A case, and its name.
pub(crate) type Case = (&'static str, fn() -> Outcome);

/// How a case ended; a case may also end by a panic of the test's own code.
pub(crate) type Outcome = Result<(), String>;

/// Time of a refused run beyond ten times the case's usual time. An operation that neither succeeds nor fails exceeds
/// it.
const LIMIT: Duration = Duration::from_secs(8);
/// Time limit of one step of a case.
const STEP_LIMIT: Duration = Duration::from_secs(12);
/// Time until the resources of a run must be freed.
const SETTLES: Duration = Duration::from_secs(5);
/// A slower case is skipped where one allocation of each size is refused.
const QUICK: Duration = Duration::from_millis(400);
/// Wrong trials after which a suite ends.
const WRONG_MAX: usize = 8;

const SUITE: &str = "TRUNKLINE_REFUSALS_SUITE";
const CASE: &str = "TRUNKLINE_REFUSALS_CASE";
const FROM: &str = "TRUNKLINE_REFUSALS_FROM";

/// Whether small allocations that a run leaves are a leak.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(dead_code, reason = "each program that runs trials uses one kind")]
pub(crate) enum Small {
    Counted,
    /// A stand-in library keeps some small allocations of each run.
    KeptByOthers,
}

impl Standing {
    /// Returns whether these resources are at most those of `before`.
    fn fits_in(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.memory_files <= before.memory_files
            && self.threads <= before.threads
            && self.heaps <= before.heaps
            && self.large <= before.large
            && self.bytes <= before.bytes
    }

    /// Waits until the process has at most these resources again. Bytes count only where only the case's own code
    /// allocates.
    fn returns(&self, small: Small) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let mut now = Self::now();
            if small == Small::KeptByOthers {
                now.bytes = self.bytes;
            }
            if now.fits_in(self) {
                return Ok(());
            }
            if begin.elapsed() > SETTLES {
                return Err(format!("a leak: {self:?} before, {now:?} after"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Converts the error of a step to the outcome of its case.
#[allow(dead_code, reason = "the cases of some programs have their own errors")]
pub(crate) fn told(error: impl Display) -> String {
    error.to_string()
}

/// Repeats a step until it returns a value or fails. A step that does neither within the limit fails too.
#[allow(dead_code, reason = "the cases of some programs have no step that waits")]
pub(crate) fn until<T>(step: &str, mut look: impl FnMut() -> Result<Option<T>, String>) -> Result<T, String> {
    let end = Instant::now() + STEP_LIMIT;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err(format!("{step}: not complete within {STEP_LIMIT:?}"));
        }
        std::thread::yield_now();
    }
}

/// Runs all cases of a suite with each of their large allocations refused, as far as `Refused` selects them.
pub(crate) fn all_hold(suite: &str, cases: &[Case]) {
    let (mut trials, mut wrong) = (0, Vec::new());
    let only = std::env::var(CASE).ok();
    for (name, _) in cases.iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name)) {
        let mut from = 1;
        while wrong.len() < WRONG_MAX {
            let out = child(suite, name, from);
            let told = String::from_utf8_lossy(&out.stdout).into_owned();
            let begun: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("at ")).collect();
            trials += begun.len();
            if out.status.success() && told.contains("all trials held") {
                break;
            }
            let why = told.lines().filter_map(|line| line.strip_prefix("wrong ")).next_back();
            let why = why.map_or_else(|| format!("the child ended with {}", out.status), str::to_owned);
            let last = begun.last().and_then(|at| at.parse::<u64>().ok());
            let text = format!(
                "{suite}: {name}: allocation {last:?} refused: {why}\n{}",
                String::from_utf8_lossy(&out.stderr)
            );
            eprintln!("{text}");
            wrong.push(text);
            let Some(last) = last else { break };
            from = last + 1;
        }
    }
    eprintln!("{suite}: {trials} trials");
    assert!(wrong.is_empty(), "{suite}: {} trials failed", wrong.len());
    assert!(trials > 0, "{suite}: no trial ran");
}

fn child(suite: &str, case: &str, from: u64) -> Output {
    let mut command = child_command();
    command.env(SUITE, suite).env(CASE, case).env(FROM, from.to_string());
    command.output().unwrap_or_else(|error| panic!("cannot start the child process: {error}"))
}

/// Returns the suite and the case that this process is to run, if it is a child.
pub(crate) fn asked() -> Option<(String, String)> {
    Some((std::env::var(SUITE).ok()?, std::env::var(CASE).ok()?))
}

/// Which large allocations of a case are refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refused {
    Each,
    /// Only for quick cases. Each table has its own size, so the first allocation of a size represents all of that
    /// size.
    OneOfEachSize,
}

/// Runs the trials of a case in this process, which exits when one fails.
pub(crate) fn play(case: &Case, refused: Refused, small: Small) {
    let is_full = std::env::var("TRUNKLINE_FULL").is_ok_and(|full| full == "1");
    let all = is_full || refused == Refused::Each;
    let from = std::env::var(FROM).ok().and_then(|from| from.parse().ok()).unwrap_or(1);
    trunkline_mem::refuse_mappings(allocator::refuses);
    watch_panics();
    // The test runner has not ended its line.
    println!();
    let begin = Instant::now();
    let sizes = sizes(case);
    let limit = LIMIT + begin.elapsed() * 10;
    if !all && begin.elapsed() > QUICK {
        println!("all trials held");
        return;
    }
    let before = settled(case);
    let is_new = |nth: u64| !sizes[..nth as usize - 1].contains(&sizes[nth as usize - 1]);
    for nth in (1..=sizes.len() as u64).filter(|nth| *nth >= from && (all || is_new(*nth))) {
        println!("at {nth}");
        let _ = std::io::stdout().flush();
        if let Err(why) = trial(case, nth, &before, limit, small) {
            println!("wrong {why}");
            let _ = std::io::stdout().flush();
            std::process::exit(3);
        }
    }
    println!("all trials held");
}

/// Returns the bytes of each large allocation that a case makes.
fn sizes(case: &Case) -> Vec<usize> {
    allocator::arm(0);
    let played = run(case);
    let sizes = allocator::disarm();
    if let Err(why) = played {
        println!("wrong {} fails by itself: {why}", case.0);
        std::process::exit(3);
    }
    sizes
}

/// Returns the resources held after a run, once the run's own are freed.
fn settled(case: &Case) -> Standing {
    let _ = run(case);
    let mut last = Standing::now();
    loop {
        std::thread::sleep(Duration::from_millis(5));
        let now = Standing::now();
        if now == last {
            return now;
        }
        last = now;
    }
}

fn trial(case: &Case, nth: u64, before: &Standing, limit: Duration, small: Small) -> Outcome {
    let begin = Instant::now();
    allocator::arm(nth);
    // An error is as good as success; its text is dropped before memory is counted.
    let ended = run(case);
    drop(allocator::disarm());
    let took = begin.elapsed();
    if let Some(first) = std::mem::take(&mut *panics()).first() {
        return Err(format!("a panic: {first}"));
    }
    if took > limit {
        return Err(format!("the run neither succeeded nor failed within {took:?}: {ended:?}"));
    }
    drop(ended);
    before.returns(small)?;
    run(case).map_err(|why| format!("the run after the refusal failed: {why}"))?;
    before.returns(small)
}

fn run(case: &Case) -> Outcome {
    match panic::catch_unwind(AssertUnwindSafe(case.1)) {
        Ok(outcome) => outcome,
        Err(cause) => {
            let text = cause.downcast_ref::<String>().map(String::as_str);
            Err(text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned())
        }
    }
}
