//! Starting the ranks of a job on this host, so that one command shows a program at work. What `trunkline run` and other launchers do for
//! several hosts, and with more care for output and signals.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use trunkline_bootstrap::{JobEnvironment, JobSecret, RANKS_MAX, trunkline_run};
use trunkline_runtime::MembershipError;

use crate::error::Error;
use crate::world::World;

/// Which process started this rank by [`launch`], and takes it along when it dies.
const PARENT: &str = "TRUNKLINE_JOB_PARENT";
/// Ranks that end by themselves after another has failed tell more than killed ones.
const GRACE: Duration = Duration::from_millis(500);

/// Runs `program` as a rank of a job, and [finishes](World::finish) the world. Under a launcher the ranks are the launcher's. Else this starts
/// its own program `ranks` times with the same arguments, and waits for them; the first one that fails ends the others.
///
/// The exit status is 1 if `program` or the start failed, which is told on standard error.
///
/// ```no_run
/// use std::process::ExitCode;
/// use trunkline::{Error, World};
///
/// fn main() -> ExitCode {
///     trunkline::launch(4, |world: &World| {
///         println!("rank {} of {}", world.rank(), world.size());
///         Ok::<_, Error>(())
///     })
/// }
/// ```
pub fn launch<E: Display>(ranks: usize, program: impl FnOnce(&World) -> Result<(), E>) -> ExitCode {
    let failed = |what: &dyn Display| {
        let rank = std::env::var(trunkline_run::RANK)
            .map_or_else(|_| String::new(), |rank| format!("rank {rank}: "));
        eprintln!("{rank}{what}");
        ExitCode::FAILURE
    };
    match is_rank() {
        Err(error) => return failed(&error),
        Ok(false) if ranks > 1 => {
            return start_ranks(ranks).unwrap_or_else(|error| failed(&error));
        }
        Ok(_) => {}
    }
    let world = match World::start() {
        Ok(world) => world,
        Err(error) => return failed(&error),
    };
    if let Err(error) = program(&world) {
        return failed(&error);
    }
    match world.finish() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Whether a launcher, or [`start_ranks`], started this process as a rank. Then it is taken along when that dies.
///
/// # Errors
/// [`Error::Join`]: the launcher's variables contradict each other.
pub fn is_rank() -> Result<bool, Error> {
    if let Some(parent) = std::env::var(PARENT).ok().and_then(|parent| parent.parse().ok()) {
        let bound = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        bound.map_err(|error| Error::Spawn(error.into()))?;
        // It may have died before that.
        if rustix::process::getppid() != Pid::from_raw(parent) {
            return Err(Error::Spawn(io::Error::other("who started this rank is gone")));
        }
    }
    Ok(JobEnvironment::read().map_err(MembershipError::from)?.is_some()
        || std::env::var_os(trunkline_run::RANK).is_some())
}

/// Starts this program so many times, with the same arguments, as the ranks of a job on this host, and waits for their ends. The exit
/// status is that of the first one that failed. To be called by the thread that `main` runs in: when that ends, they do.
///
/// # Errors
/// [`Error::Spawn`], [`Error::Argument`].
pub fn start_ranks(ranks: usize) -> Result<ExitCode, Error> {
    if ranks == 0 || ranks > RANKS_MAX {
        return Err(Error::Argument("a job has 1 to 4096 ranks"));
    }
    let port = trunkline_bootstrap::free_port().map_err(Error::Spawn)?;
    let secret = JobSecret::random().map_err(Error::Spawn)?.to_hex();
    let own = std::env::current_exe().map_err(Error::Spawn)?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut children = RankProcesses(Vec::with_capacity(ranks));
    for rank in 0..ranks {
        let mut command = Command::new(&own);
        command.args(&arguments);
        command.env(trunkline_run::RANK, rank.to_string()).env(trunkline_run::SIZE, ranks.to_string());
        command
            .env(trunkline_run::LOCAL_RANK, rank.to_string())
            .env(trunkline_run::LOCAL_SIZE, ranks.to_string());
        command.env(trunkline_run::STORE, format!("127.0.0.1:{port}")).env(trunkline_run::SECRET, &secret);
        command.env(PARENT, std::process::id().to_string());
        children.0.push(Some(command.spawn().map_err(Error::Spawn)?));
    }
    children.wait_for_ranks().map_err(Error::Spawn)
}

/// Ranks that were started; what is left of them is killed.
struct RankProcesses(Vec<Option<Child>>);

impl RankProcesses {
    fn wait_for_ranks(mut self) -> io::Result<ExitCode> {
        let mut failed = None;
        let mut until = None;
        while self.0.iter().any(Option::is_some) {
            for place in &mut self.0 {
                let Some(child) = place else { continue };
                let Some(status) = child.try_wait()? else { continue };
                *place = None;
                if !status.success() && failed.is_none() {
                    failed = Some(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
                    until = Some(Instant::now() + GRACE);
                }
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(failed.map_or(ExitCode::SUCCESS, ExitCode::from))
    }
}

impl Drop for RankProcesses {
    fn drop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
