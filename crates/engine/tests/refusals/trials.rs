//! Plays cases once for each of their large allocations, which is refused, in processes of their own: so an abort is one more result. The test
//! is the parent; the child plays all cases of a suite until one of them goes wrong.

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

/// Longest that a refused run takes besides ten times the case's usual time: an operation that neither succeeds nor fails takes longer.
const LIMIT: Duration = Duration::from_secs(8);
/// Longest that a step of a case takes.
const STEP_LIMIT: Duration = Duration::from_secs(12);
/// Longest until the resources of a run are given back.
const SETTLES: Duration = Duration::from_secs(5);
/// How long a case takes at most of which one allocation of each size is refused.
const QUICK: Duration = Duration::from_millis(400);
/// Wrong trials after which a suite ends.
const WRONG_MAX: usize = 8;

const SUITE: &str = "TRUNKLINE_REFUSALS_SUITE";
const CASE: &str = "TRUNKLINE_REFUSALS_CASE";
const FROM: &str = "TRUNKLINE_REFUSALS_FROM";

/// Whether small allocations that a run leaves are a leak.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(dead_code, reason = "each of the programs that play trials is of one kind")]
pub(crate) enum Small {
    Counted,
    /// A library that stands in for another one keeps some of each run.
    KeptByOthers,
}

impl Standing {
    /// Whether a process that has this has no more than another one.
    fn fits_in(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.memory_files <= before.memory_files
            && self.threads <= before.threads
            && self.heaps <= before.heaps
            && self.large <= before.large
            && self.bytes <= before.bytes
    }

    /// Waits until the process has no more than this again. Bytes count only where the case's own code is all that allocates them.
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

/// The text of a step's error, as the outcome of its case.
#[allow(dead_code, reason = "the cases of some programs have errors of their own")]
pub(crate) fn told(error: impl Display) -> String {
    error.to_string()
}

/// Repeats a step until it returns a value or fails. A step that does neither within the limit fails too.
#[allow(dead_code, reason = "the cases of some programs wait for nothing")]
pub(crate) fn until<T>(step: &str, mut look: impl FnMut() -> Result<Option<T>, String>) -> Result<T, String> {
    let end = Instant::now() + STEP_LIMIT;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err(format!("{step} does not come within {STEP_LIMIT:?}"));
        }
        std::thread::yield_now();
    }
}

/// Plays all cases of a suite with each of their large allocations refused, as many as the run is to take.
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
            let why = why.map_or_else(|| format!("it ended with {}", out.status), str::to_owned);
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
    assert!(wrong.is_empty(), "{suite}: {} trials went wrong", wrong.len());
    assert!(trials > 0, "{suite}: no trial");
}

fn child(suite: &str, case: &str, from: u64) -> Output {
    let mut command = child_command();
    command.env(SUITE, suite).env(CASE, case).env(FROM, from.to_string());
    command.output().unwrap_or_else(|error| panic!("no child: {error}"))
}

/// The suite and the case that this process is to play, if it is a child.
pub(crate) fn asked() -> Option<(String, String)> {
    Some((std::env::var(SUITE).ok()?, std::env::var(CASE).ok()?))
}

/// Which large allocations of a case are refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refused {
    Each,
    /// Of a case that is quick. Each table has its size, so that the first of each size stands for all.
    OneOfEachSize,
}

/// Plays the trials of a case in this process, which ends when one goes wrong.
pub(crate) fn play(case: &Case, refused: Refused, small: Small) {
    let is_full = std::env::var("TRUNKLINE_FULL").is_ok_and(|full| full == "1");
    let all = is_full || refused == Refused::Each;
    let from = std::env::var(FROM).ok().and_then(|from| from.parse().ok()).unwrap_or(1);
    trunkline_mem::refuse_mappings(allocator::refuses);
    watch_panics();
    // The test runner has left its line open.
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

/// The bytes of each large allocation that a case makes.
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

/// The resources held after a run, once all of the run's own are freed.
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
        return Err(format!("it neither succeeds nor fails within {took:?}: {ended:?}"));
    }
    drop(ended);
    before.returns(small)?;
    run(case).map_err(|why| format!("the next run fails: {why}"))?;
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
