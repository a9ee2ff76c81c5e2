//! Starts the ranks of a job on this host, so that one command runs an example. `trunkline run` and other launchers
//! start ranks on several hosts, and forward output and signals with more care.

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

/// The environment variable with the process that started this rank by [`launch`]. The rank is killed when that
/// process dies.
const PARENT: &str = "TRUNKLINE_JOB_PARENT";
/// Ranks that end by themselves after another rank has failed print more useful errors than killed ones.
const GRACE: Duration = Duration::from_millis(500);

/// Runs `program` as a rank of a job, and [finishes](World::finish) the world. Under a launcher, this process is one
/// of the launcher's ranks. Without one, this call starts the own executable `ranks` times with the same arguments,
/// and waits for the processes. When one fails, the others are killed after 500 ms.
///
/// Returns exit status 1 if `program` or the start failed, and prints the error to standard error.
///
/// # Examples
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
        // Rank 0 has logged the reason for all ranks.
        Err(Error::Join(MembershipError::Agreed { .. })) => return ExitCode::FAILURE,
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

/// Returns whether a launcher, or [`start_ranks`], started this process as a rank. After [`start_ranks`], this call
/// also binds the life of this process to that of its parent.
///
/// # Errors
/// [`Error::Join`]: the launcher's variables contradict each other. [`Error::Spawn`]: the parent has ended.
///
/// # Examples
/// ```no_run
/// use trunkline::{Error, World};
///
/// fn main() -> Result<(), Error> {
///     if !trunkline::is_rank()? {
///         eprintln!("start this program as a job: trunkline run -n 4 PROGRAM");
///         return Ok(());
///     }
///     World::start()?.finish()
/// }
/// ```
pub fn is_rank() -> Result<bool, Error> {
    if let Some(parent) = std::env::var(PARENT).ok().and_then(|parent| parent.parse().ok()) {
        let bound = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        bound.map_err(|error| Error::Spawn(error.into()))?;
        // The parent may have died before the signal was set.
        if rustix::process::getppid() != Pid::from_raw(parent) {
            return Err(Error::Spawn(io::Error::other("the process that started this rank has ended")));
        }
    }
    Ok(JobEnvironment::read().map_err(MembershipError::from)?.is_some()
        || std::env::var_os(trunkline_run::RANK).is_some())
}

/// Starts the own executable `ranks` times (1 to 4,096) with the same arguments, as the ranks of a job on this host,
/// and waits for them. Returns the exit status of the first rank that failed. Call it from the thread that runs
/// `main`: the ranks are killed when the calling thread ends.
///
/// # Errors
/// [`Error::Spawn`]: a process cannot be started. [`Error::Argument`]: `ranks` is out of range.
///
/// # Examples
/// ```no_run
/// use std::process::ExitCode;
/// use trunkline::{Error, World};
///
/// fn main() -> Result<ExitCode, Error> {
///     if !trunkline::is_rank()? {
///         return trunkline::start_ranks(4); // the parent waits for four copies of itself
///     }
///     let world = World::start()?; // a copy is one of the four ranks
///     println!("rank {} of {}", world.rank(), world.size());
///     world.finish()?;
///     Ok(ExitCode::SUCCESS)
/// }
/// ```
pub fn start_ranks(ranks: usize) -> Result<ExitCode, Error> {
    if ranks == 0 || ranks > RANKS_MAX {
        return Err(Error::Argument("the number of ranks is out of range: a job has 1 to 4096"));
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

/// The processes of the ranks. Dropping it kills those that still run.
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
