//! `trunkline run`: parses the arguments. Called by `cmd`; the `run` module launches the job.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use crate::run::{self, LaunchPlan, RunError, hosts};

const DEFAULT_SHELL: &str = "ssh -o BatchMode=yes";
/// Prefixes of the variables that are sent to other hosts by default: Trunkline's own, and those of libraries over it.
/// OpenSHMEM's variables began with `SMA_` before version 1.3; both prefixes are valid.
const PASSED_ON: [&str; 6] = ["TRUNKLINE_", "NCCL_", "RCCL_", "SHMEM_", "SMA_", "NVSHMEM_"];
/// Other variables that are sent to other hosts by default.
const PASSED_ON_WHOLE: [&str; 2] = ["LD_LIBRARY_PATH", "PATH"];

const EXAMPLES: &str = "\
Examples:
  trunkline run -n 4 trunkline bench all_reduce          4 ranks on this host
  trunkline run --hosts a,b trunkline bench p2p          1 rank on each of 2 hosts
  trunkline run --hosts a:8,b:8 -- ./program -x          8 ranks on each host; -x is for the program
  trunkline run -n 2 --label -- hostname                 the rank in front of each line
  trunkline run -n 2 python train.py                     sets RANK, WORLD_SIZE, MASTER_ADDR, ...
  trunkline run -n 2 ./mpich-program                     provides PMI-1, which MPICH programs use
  trunkline run --hosts red,blue --rsh 'ip netns exec' trunkline bench p2p
                                                         network namespaces instead of hosts

The launcher reaches other hosts by ssh without a password. They need trunkline at the same path, and the
same working directory. The values of these variables are sent to them; --env adds others:
  TRUNKLINE_*, NCCL_*, RCCL_*, SHMEM_*, SMA_*, NVSHMEM_*, PATH, LD_LIBRARY_PATH
TRUNKLINE_JOB_* are not sent: the launcher sets them itself, with a new secret for each job.

The first rank that fails ends the job, and its exit status is the job's. The launcher forwards SIGINT,
SIGTERM and SIGHUP; a second signal kills the ranks. If the launcher dies, the ranks are killed.";

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Start this many ranks [default: 1; with --hosts, the sum of the N in NAME:N, where a NAME alone counts as 1].
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    ranks: Option<usize>,
    /// Place ranks on these hosts in order. NAME:N allows N ranks on that host; in a list with any N, a NAME alone
    /// allows one. Without any N, the hosts get equal shares [default: this host].
    #[arg(long, value_name = "A,B")]
    hosts: Option<String>,
    /// Reach hosts by this command; the host's name and the remote command are appended [default: ssh -o
    /// BatchMode=yes].
    #[arg(long, value_name = "CMD")]
    rsh: Option<String>,
    /// Run this path as trunkline on other hosts [default: the same path as here].
    #[arg(long, value_name = "PATH")]
    remote_trunkline: Option<String>,
    /// Let ranks on other hosts reach the first host, which runs rank 0, at this address [default: its NAME in --hosts
    /// if that resolves, but not to a loopback address; else one of its addresses].
    #[arg(long, value_name = "ADDR")]
    address: Option<String>,
    /// Set a variable for all ranks, to this value or to its value here; may be repeated.
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    variables: Vec<String>,
    /// Print [RANK] in front of each line of output.
    #[arg(long)]
    label: bool,
    /// Run this program with these arguments in each rank.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Arguments of `run-child`.
#[derive(Args, Debug)]
pub(crate) struct ChildArgs {
    /// Process id of the launcher's agent on this host, which has started this process.
    #[arg(long)]
    agent: i32,
    /// Program and arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<String>,
}

/// Runs a job; its exit status is that of the first rank that failed.
pub(crate) fn run_job(args: &RunArgs) -> Result<ExitCode, RunError> {
    Ok(ExitCode::from(run::launch_job(&build_plan(args)?)?))
}

/// Replaces this process by a rank's program; returns only if that fails.
pub(crate) fn become_child(args: &ChildArgs) -> ExitCode {
    run::child::run_program(args.agent, &args.program)
}

fn build_plan(args: &RunArgs) -> Result<LaunchPlan, RunError> {
    let usage = |text: String| RunError::Usage(text);
    let shell = args.rsh.as_deref().unwrap_or(DEFAULT_SHELL);
    let remote_shell = shlex::split(shell).filter(|words| !words.is_empty()).ok_or_else(|| {
        usage(format!("--rsh {shell:?} is not a command; close its quotes, or leave --rsh out"))
    })?;
    let own = std::env::current_exe()?;
    let own = own
        .to_str()
        .ok_or_else(|| usage(format!("this program's path {} is not UTF-8; rename it", own.display())))?;
    let path = args.remote_trunkline.as_deref().unwrap_or(own);
    // The remote shell splits the command again.
    let remote_program = shlex::try_quote(path)
        .map_err(|error| usage(format!("cannot quote the path {path:?} for a remote shell: {error}")))?
        .into_owned();
    let directory = std::env::current_dir()?;
    let directory =
        directory.to_str().ok_or_else(|| usage(format!("{} is not UTF-8", directory.display())))?;
    Ok(LaunchPlan {
        hosts: hosts::place_ranks(args.ranks, args.hosts.as_deref())?,
        remote_shell,
        local_names: args.rsh.is_none(),
        remote_program,
        address: args.address.clone(),
        program: args.program.clone(),
        variables: variables_to_pass(std::env::vars_os())?,
        extra: args.variables.iter().filter_map(|text| parse_variable(text)).collect(),
        directory: directory.to_owned(),
        label: args.label,
    })
}

fn passed_on(name: &str) -> bool {
    let ours = PASSED_ON.iter().any(|prefix| name.starts_with(prefix)) && !name.starts_with("TRUNKLINE_JOB_");
    ours || PASSED_ON_WHOLE.contains(&name)
}

/// Returns the variables that are sent to other hosts. A value that is not UTF-8 is an error, as in any setting; a
/// variable whose name is not UTF-8 is skipped.
fn variables_to_pass(
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, RunError> {
    let named = environment.filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let text = |(name, value): (String, OsString)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(value) => {
            let value = value.to_string_lossy();
            Err(RunError::Usage(format!(
                "{name}={value}: expected a text in UTF-8, to send it to other hosts"
            )))
        }
    };
    named.filter(|(name, _)| passed_on(name)).map(text).collect()
}

/// Parses `NAME=VALUE`, or `NAME` with its value in this environment, if it is set.
fn parse_variable(text: &str) -> Option<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) => Some((name.to_owned(), value.to_owned())),
        None => std::env::var(text).ok().map(|value| (text.to_owned(), value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_on_selects_variables_for_other_hosts() {
        for name in [
            "TRUNKLINE_FABRIC",
            "NCCL_DEBUG",
            "SHMEM_SYMMETRIC_SIZE",
            "SMA_SYMMETRIC_SIZE",
            "NVSHMEM_DEBUG",
            "RCCL_IB_QP_SHARING_ENABLE",
            "PATH",
            "LD_LIBRARY_PATH",
        ] {
            assert!(passed_on(name), "{name}");
        }
        for name in ["TRUNKLINE_JOB_SECRET", "HOME", "MY_NCCL_X", "MY_SHMEM_X", "SMALL", "SSH_AUTH_SOCK"] {
            assert!(!passed_on(name), "{name}");
        }
        let rows = trunkline_settings::rows::all_rows().filter(|row| row.is_allowed_in_file());
        for name in rows.flat_map(|row| row.aliases.iter().map(|alias| alias.name).chain([row.name])) {
            assert!(passed_on(name), "{name}");
        }
        assert_eq!(parse_variable("A=b=c"), Some(("A".into(), "b=c".into())));
        assert_eq!(parse_variable("TRUNKLINE_NOT_SET_ANYWHERE"), None);
    }

    #[test]
    fn variable_that_is_not_utf8_is_an_error_only_if_it_is_passed_on() {
        use std::os::unix::ffi::OsStringExt as _;
        let broken = || OsString::from_vec(b"a\xff".to_vec());
        let passed = |name: &str| variables_to_pass([(name.into(), broken())].into_iter());
        assert_eq!(passed("HOME").unwrap(), []);
        let error = passed("TRUNKLINE_FABRIC").unwrap_err().to_string();
        assert!(error.contains("TRUNKLINE_FABRIC=a\u{fffd}: expected a text in UTF-8"), "{error}");
        let both = [("NCCL_DEBUG".into(), "INFO".into()), (broken(), broken())];
        let passed = variables_to_pass(both.into_iter()).unwrap();
        assert_eq!(passed, [("NCCL_DEBUG".to_owned(), "INFO".to_owned())]);
    }
}
