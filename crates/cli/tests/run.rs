//! `trunkline run` and `trunkline bench` as jobs: under our launcher, under the environments of torchrun and Slurm, and
//! under the real `mpiexec` of MPICH and Open MPI where they are installed.

#![expect(clippy::expect_used, reason = "a failed set-up ends the test")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_trunkline");

/// Variables of jobs in which the tests themselves may run.
const FOREIGN: [&str; 10] = [
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PMI_FD",
    "PMI_PORT",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "TRUNKLINE_JOB_RANK",
    "TRUNKLINE_PLUGIN",
];

/// Compiles a plugin in C once; `cargo test` has no other of its own.
fn plugin(name: &'static str) -> PathBuf {
    static MINI: OnceLock<PathBuf> = OnceLock::new();
    static CORRUPT: OnceLock<PathBuf> = OnceLock::new();
    let cell = if name == "mini_plugin" { &MINI } else { &CORRUPT };
    let built = cell.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nccl-host/tests/fixtures").join(name);
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let library = directory.join(format!("run-{name}.so"));
        // Another test process may use the finished file, so the new file replaces it by one rename.
        let fresh = directory.join(format!("run-{name}-{}.so", std::process::id()));
        let status = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .arg(&fresh)
            .arg(source.with_extension("c"))
            .arg("-ldl")
            .status()
            .expect("cc runs");
        assert!(status.success());
        std::fs::rename(&fresh, &library).expect("a file can be renamed");
        library
    });
    built.clone()
}

fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for name in FOREIGN {
        command.env_remove(name);
    }
    // The corrupting plugin wraps this plugin, and changes messages of at least this size.
    command.env("CORRUPT_TARGET", plugin("mini_plugin")).env("CORRUPT_MIN", "16");
    command.stdin(Stdio::null());
    command
}

fn trunkline(args: &str) -> Command {
    let mut command = clean(PROGRAM);
    command.args(args.split_whitespace());
    command
}

/// `trunkline run ... -- sh -c SCRIPT`.
fn shell(args: &str, script: &str) -> Command {
    let mut command = trunkline(&format!("run {args} -- sh -c"));
    command.arg(script);
    command
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the output of a command, which must end in time.
fn finish(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command runs");
    wait(child)
}

fn wait(child: Child) -> Output {
    let pid = Pid::from_child(&child);
    let (done, over) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if over.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let output = child.wait_with_output().expect("it can be waited for");
    drop(done);
    watch.join().expect("no panic");
    output
}

/// The bench that all jobs run: small, quick, verified.
fn bench_args(plugin_name: &'static str) -> Vec<String> {
    let mut args: Vec<String> =
        "bench sendrecv -b 8 -e 64K -w 1 -i 2 --json --plugin".split(' ').map(str::to_owned).collect();
    args.push(plugin(plugin_name).display().to_string());
    args
}

/// One table, of rank 0, with nothing wrong.
fn assert_bench(output: &Output, ranks: usize) {
    assert!(output.status.success(), "{}\n{}\n{}", output.status, out(output), err(output));
    let text = out(output);
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect();
    // Out of place and in place, 8 B to 64 KiB by factors of 4, and the last size.
    assert_eq!(rows.len(), 16, "{text}");
    for row in rows {
        assert_eq!((&row["wrong"], &row["ranks"]), (&0.into(), &ranks.into()), "{row}");
    }
}

fn skip(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let mut file =
            std::fs::OpenOptions::new().append(true).create(true).open(path).expect("the skip log");
        writeln!(file, "{name}: {reason}").expect("the skip log");
    }
}

fn installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|output| output.status.success())
}

#[test]
fn bench_runs_under_the_launcher() {
    for ranks in [2, 3] {
        let output =
            finish(trunkline(&format!("run -n {ranks} -- {PROGRAM}")).args(bench_args("mini_plugin")));
        assert_bench(&output, ranks);
    }
}

#[test]
fn bench_runs_over_the_product() {
    // The plugin that cargo built beside the command, found without being named.
    let output =
        finish(&mut trunkline(&format!("run -n 2 -- {PROGRAM} bench sendrecv -b 8 -e 64K -w 1 -i 2 --json")));
    assert_bench(&output, 2);
    let output = finish(&mut trunkline(&format!("run -n 2 -- {PROGRAM} bench p2p -e 4K -i 20")));
    assert!(output.status.success(), "{}", err(&output));
}

#[test]
fn every_rank_fails_when_bytes_are_wrong() {
    let script = format!("{PROGRAM} {}; echo status $?", bench_args("corrupt_plugin").join(" "));
    let output = finish(&mut shell("-n 3", &script));
    assert_eq!(out(&output).matches("status 1").count(), 3, "{}\n{}", out(&output), err(&output));
    let output = finish(trunkline(&format!("run -n 2 -- {PROGRAM}")).args(bench_args("corrupt_plugin")));
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
}

#[test]
fn a_failing_rank_is_named_once_and_ends_all() {
    let mut command = trunkline(&format!("run -n 3 -- {PROGRAM}"));
    let output = finish(command.args(bench_args("mini_plugin")).env("MINI_FAIL", "2"));
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert_eq!(err(&output).matches("isend returned ncclSystemError").count(), 1, "{}", err(&output));
    // A rank that hangs inside the plugin: all ranks fail, and rank 0 prints the reason.
    let script = format!("{PROGRAM} {} --row-timeout 1; echo status $?", bench_args("mini_plugin").join(" "));
    let output = finish(shell("-n 2", &script).env("MINI_HANG", "1"));
    assert_eq!(out(&output).matches("status 2").count(), 2, "{}", err(&output));
    assert_eq!(err(&output).matches("no answer within 1 s").count(), 1, "{}", err(&output));
    // A plugin file that does not exist, for all ranks.
    let output =
        finish(&mut trunkline(&format!("run -n 3 -- {PROGRAM} bench sendrecv --plugin /nowhere.so")));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(err(&output).matches("/nowhere.so").count(), 1, "{}", err(&output));
    let output = finish(&mut trunkline(&format!("run -n 3 -- {PROGRAM} bench sendrecv -n 2")));
    assert!(err(&output).contains("trunkline run started 3 processes"), "{}", err(&output));
}

#[test]
fn ranks_get_their_variables_and_labels() {
    let script =
        "echo $RANK $WORLD_SIZE $LOCAL_RANK $TRUNKLINE_JOB_RANK $TRUNKLINE_JOB_SIZE $PMI_RANK $PMI_SIZE";
    let output = finish(&mut shell("-n 3", script));
    let mut lines: Vec<String> = out(&output).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["0 3 0 0 3 0 3", "1 3 1 1 3 1 3", "2 3 2 2 3 2 3"]);
    let output = finish(&mut shell("-n 2 --label --env A=b", "echo a$A; printf 'no end' >&2"));
    let mut lines: Vec<String> = out(&output).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[0] ab", "[1] ab"]);
    assert!(
        err(&output).contains("[0] no end\n") && err(&output).contains("[1] no end\n"),
        "{}",
        err(&output)
    );
}

#[test]
fn launcher_serves_a_pmi_program() {
    // Rank and size, a value from rank 0 to rank 1, and an orderly end.
    let script = r#"eval "exec 9<&$PMI_FD 8>&$PMI_FD"
        ask() { echo "$1" >&8; read -r answer <&9; echo "$PMI_RANK: $answer"; }
        ask 'cmd=init pmi_version=1 pmi_subversion=1'
        ask 'cmd=get_my_kvsname'; space=${answer#*kvsname=}
        [ $PMI_RANK = 0 ] && ask "cmd=put kvsname=$space key=k value=from-zero"
        ask 'cmd=barrier_in'
        ask "cmd=get kvsname=$space key=k"
        ask "cmd=get kvsname=$space key=PMI_process_mapping"
        ask 'cmd=finalize'"#;
    let output = finish(&mut shell("-n 2", script));
    let text = out(&output);
    assert!(output.status.success(), "{text}\n{}", err(&output));
    assert!(text.contains("1: cmd=get_result rc=0 msg=success value=from-zero"), "{text}");
    assert!(text.contains("0: cmd=barrier_out") && text.contains("value=(vector,(0,1,2))"), "{text}");
    let abort = r#"eval "exec 8>&$PMI_FD"; [ $PMI_RANK = 1 ] && echo 'cmd=abort exitcode=9' >&8; sleep 60"#;
    let begun = Instant::now();
    let output = finish(&mut shell("-n 2", abort));
    assert_eq!(output.status.code(), Some(9), "{}", err(&output));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_failed_rank_fails_the_job_and_ends_the_others() {
    let output = finish(&mut trunkline("run -n 2 -- /nowhere/program"));
    assert_eq!(output.status.code(), Some(127));
    assert!(err(&output).contains("cannot start /nowhere/program"), "{}", err(&output));
    let begun = Instant::now();
    let output = finish(&mut shell("-n 3", "[ $RANK = 1 ] && exit 7; sleep 300"));
    assert_eq!(output.status.code(), Some(7), "{}", err(&output));
    assert!(err(&output).contains("rank 1 ended with status 7; ending the other 2"), "{}", err(&output));
    assert!(begun.elapsed() < Duration::from_secs(20));
    // The failure of the last rank counts, too, and so does a signal.
    let output = finish(&mut shell("-n 2", "[ $RANK = 1 ] && sleep 1 && kill -SEGV $$; true"));
    assert_eq!(output.status.code(), Some(128 + 11), "{}", err(&output));
    // A rank that ignores SIGTERM.
    let output = finish(&mut shell("-n 2", "[ $RANK = 1 ] && exit 3; trap '' TERM; sleep 300"));
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
    assert!(begun.elapsed() < Duration::from_secs(40));
}

/// Whether a process of this number runs.
fn alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn all_gone(pids: &[String]) -> bool {
    let begun = Instant::now();
    while pids.iter().any(|pid| alive(pid)) {
        if begun.elapsed() > Duration::from_secs(15) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Starts a job whose ranks print their process ids and those of a child, and then wait. Returns the ids.
fn long_job(script: &str) -> (Child, Vec<String>) {
    let mut command = shell("-n 2", &format!("{script} sleep 301 & echo $$ $!; wait; wait"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let lines = BufReader::new(child.stdout.take().expect("its output"));
    let pids: Vec<String> = lines
        .lines()
        .take(2)
        .flat_map(|line| line.expect("a line").split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    assert_eq!(pids.len(), 4, "{pids:?}");
    assert!(pids.iter().all(|pid| alive(pid)));
    (child, pids)
}

#[test]
fn killed_launcher_leaves_no_process() {
    let (mut child, pids) = long_job("");
    child.kill().expect("it can be killed");
    let _ = child.wait();
    assert!(all_gone(&pids), "{pids:?}");
}

#[test]
fn a_killed_agent_ends_its_ranks_and_the_job() {
    let (child, pids) = long_job("");
    let list =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).expect("its children");
    let agent = list.split_whitespace().next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    kill_process(agent.expect("an agent"), Signal::KILL).expect("it can be killed");
    let output = wait(child);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("the agent ended (signal: 9"), "{}", err(&output));
    // The children of the ranks survive, because the agent that would end them is dead.
    assert!(all_gone(&[pids[0].clone(), pids[2].clone()]), "{pids:?}");
    for pid in [&pids[1], &pids[3]] {
        let _ = kill_process(Pid::from_raw(pid.parse().expect("a number")).expect("a process"), Signal::KILL);
    }
}

#[test]
fn signals_are_forwarded_and_no_process_is_left() {
    for (signal, script) in [(Signal::TERM, ""), (Signal::INT, ""), (Signal::TERM, "trap '' TERM INT;")] {
        let (child, pids) = long_job(script);
        kill_process(Pid::from_child(&child), signal).expect("a signal can be sent");
        let output = wait(child);
        assert_eq!(output.status.code(), Some(128 + signal.as_raw()), "{}", err(&output));
        assert!(all_gone(&pids), "{signal:?} {script}: {pids:?}");
    }
}

#[test]
fn other_hosts_are_reached_by_the_remote_shell() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("rsh");
    std::fs::write(
        &script,
        "#!/bin/sh\necho \"$1\" >>\"${0%/*}/hosts\"\nexport HERE=$1\nshift\nexec \"$@\"\n",
    )
    .expect("a file");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let rsh = script.display().to_string();
    let run = |args: &str| {
        let mut command = trunkline(&format!("run --rsh {rsh} {args} --"));
        command.arg("sh").arg("-c").arg("echo $HERE $RANK $LOCAL_RANK $TRUNKLINE_JOB_LOCAL_SIZE");
        command
    };
    let output = finish(&mut run("-n 3 --hosts red,blue"));
    let mut lines: Vec<String> = out(&output).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["blue 2 0 1", "red 0 0 2", "red 1 1 2"], "{}", err(&output));
    let hosts = std::fs::read_to_string(directory.path().join("hosts")).expect("the hosts");
    assert_eq!(hosts.lines().count(), 2, "{hosts}");

    let mut bench = trunkline(&format!("run --rsh {rsh} --hosts red,blue -- {PROGRAM}"));
    assert_bench(&finish(bench.args(bench_args("mini_plugin"))), 2);

    let output =
        finish(&mut trunkline(&format!("run --rsh {rsh} --hosts red --remote-trunkline /nowhere/t -- true")));
    assert_eq!(output.status.code(), Some(2));
    let message = err(&output);
    assert!(
        message.contains("host red: the agent ended") && message.contains("--remote-trunkline"),
        "{message}"
    );
    let output = finish(&mut trunkline("run --rsh /nowhere/rsh --hosts red -- true"));
    assert!(err(&output).contains("host red: cannot run /nowhere/rsh"), "{}", err(&output));
    let output = finish(&mut trunkline("run --rsh 'echo --hosts red -- true"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn variables_of_libraries_are_set_on_other_hosts() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("rsh");
    // A remote host does not inherit the environment of the launcher.
    std::fs::write(&script, "#!/bin/sh\nshift\nexec env -i \"$@\"\n").expect("a file");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let mut command = trunkline(&format!("run --rsh {} --hosts red,blue --", script.display()));
    command.args(["sh", "-c", "echo $SHMEM_SYMMETRIC_SIZE $SMA_DEBUG $NVSHMEM_DEBUG $NCCL_DEBUG [$OTHER]"]);
    command.envs([("SHMEM_SYMMETRIC_SIZE", "1G"), ("SMA_DEBUG", "2"), ("NVSHMEM_DEBUG", "INFO")]);
    let output = finish(command.envs([("NCCL_DEBUG", "WARN"), ("OTHER", "stays")]));
    assert_eq!(out(&output), "1G 2 INFO WARN []\n1G 2 INFO WARN []\n", "{}", err(&output));
}

/// A port whose window no other test uses.
fn port(offset: u16) -> u16 {
    10_000 + (std::process::id() % 300) as u16 * 60 + offset
}

/// Two processes with these variables; `{rank}` in a value becomes the rank.
fn pair(variables: &[(&str, &str)]) -> [Output; 2] {
    let start = |rank: usize| {
        let mut command = clean(PROGRAM);
        command.args(bench_args("mini_plugin")).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
            .envs(variables.iter().map(|(name, value)| (*name, value.replace("{rank}", &rank.to_string()))));
        command.spawn().expect("it runs")
    };
    // The last rank first, because the order must not matter.
    let second = start(1);
    std::thread::sleep(Duration::from_millis(100));
    [start(0), second].map(wait)
}

#[test]
fn bench_runs_in_torchruns_environment() {
    let port = port(50).to_string();
    let variables = [
        ("RANK", "{rank}"),
        ("LOCAL_RANK", "{rank}"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", port.as_str()),
        ("TORCHELASTIC_RUN_ID", "none"),
    ];
    let [first, second] = pair(&variables);
    assert_bench(&first, 2);
    assert!(second.status.success() && second.stdout.is_empty(), "{}", err(&second));
}

#[test]
fn bench_runs_in_slurms_environment() {
    let job = std::process::id().to_string();
    let variables = [
        ("SLURM_PROCID", "{rank}"),
        ("SLURM_LOCALID", "{rank}"),
        ("SLURM_NODEID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2"),
        ("SLURM_JOB_ID", job.as_str()),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "localhost"),
    ];
    let [first, second] = pair(&variables);
    assert_bench(&first, 2);
    assert!(second.status.success() && second.stdout.is_empty(), "{}", err(&second));
}

#[test]
fn killed_rank_ends_the_other_without_a_launcher() {
    for (victim, message) in [(1, "rank 1 died: it closed its channel"), (0, "rank 1: rank 0 has ended")] {
        let port = port(10 * victim as u16).to_string();
        let start = |rank: usize| {
            let mut command = clean(PROGRAM);
            command.args(["bench", "sendrecv", "-b", "1M", "-e", "1M", "-i", "1000000", "--plugin"]);
            command.arg(plugin("mini_plugin")).env("RANK", rank.to_string());
            command.envs([("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
        };
        let mut ranks = [start(0), start(1)];
        // Rank 0's table begins when all are connected.
        let mut lines = BufReader::new(ranks[0].stdout.take().expect("its output")).lines();
        lines.next().expect("a line").expect("a line");
        std::thread::sleep(Duration::from_millis(300));
        ranks[victim].kill().expect("it can be killed");
        let begun = Instant::now();
        let [first, second] = ranks.map(wait);
        let left = if victim == 0 { second } else { first };
        assert_eq!(left.status.code(), Some(2), "{}", err(&left));
        assert!(err(&left).contains(message), "{}", err(&left));
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn invalid_launcher_variables_are_reported() {
    for (variables, message) in [
        (
            &[("PMI_FD", "77"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")][..],
            "PMI_FD=77 is not an open descriptor",
        ),
        (&[("PMI_FD", "0"), ("PMI_RANK", "0")], "PMI-1 sets PMI_SIZE, which is not set"),
        (
            &[("PMI_PORT", "127.0.0.1:1"), ("PMI_ID", "0")],
            "cannot reach the launcher at PMI_PORT=127.0.0.1:1",
        ),
        (
            &[("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")],
            "rank 2 is out of range for a job of 2 (torchrun)",
        ),
    ] {
        let mut command = clean(PROGRAM);
        let output = finish(command.args(bench_args("mini_plugin")).envs(variables.iter().copied()));
        assert_eq!(output.status.code(), Some(2));
        assert!(err(&output).contains(message), "{}", err(&output));
    }
}

#[test]
fn users_secret_excludes_ranks_with_another_one() {
    let port = port(20).to_string();
    let start = |rank: &str, secret: &str| {
        let mut command = clean(PROGRAM);
        command.args(bench_args("mini_plugin")).args(["--timeout", "2"]);
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
        command.envs([("MASTER_PORT", port.as_str()), ("TRUNKLINE_JOB_SECRET", secret)]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
    };
    let [first, second] = [start("0", "right"), start("1", "wrong")].map(wait);
    assert_eq!((first.status.code(), second.status.code()), (Some(2), Some(2)));
    assert!(err(&first).contains("rank 1 did not connect within 2 s"), "{}", err(&first));
    assert!(err(&second).contains("a store with another secret"), "{}", err(&second));
}

#[test]
fn bench_runs_under_mpich() {
    if !installed("mpiexec.hydra") {
        return skip("bench_runs_under_mpich", "no mpiexec.hydra; Debian's package mpich has it");
    }
    for port in [&[][..], &["-pmi-port"]] {
        let output = finish(
            clean("mpiexec.hydra").args(port).args(["-n", "2", PROGRAM]).args(bench_args("mini_plugin")),
        );
        assert_bench(&output, 2);
    }
    let output = finish(clean("mpiexec.hydra").args(["-n", "2", PROGRAM]).args(bench_args("corrupt_plugin")));
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
}

#[test]
fn bench_runs_under_open_mpi() {
    if !installed("mpiexec.openmpi") {
        return skip("bench_runs_under_open_mpi", "no mpiexec.openmpi; Debian's package openmpi-bin has it");
    }
    let mpiexec = || {
        let mut command = clean("mpiexec.openmpi");
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        command.args(["--oversubscribe", "-n", "2"]);
        command
    };
    assert_bench(&finish(mpiexec().arg(PROGRAM).args(bench_args("mini_plugin"))), 2);
    // Without libpmix, the user names the host of rank 0.
    let port = format!("MASTER_PORT={}", port(40));
    let given = ["-x", "MASTER_ADDR=127.0.0.1", "-x", &port, PROGRAM];
    assert_bench(&finish(mpiexec().args(given).args(bench_args("mini_plugin"))), 2);
    let output = finish(mpiexec().arg(PROGRAM).args(bench_args("corrupt_plugin")));
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
}

#[test]
fn mpichs_programs_run_under_the_launcher() {
    // Debian's package mpich contains the compiler, but not the headers.
    let header = ["-E", "-include", "mpi.h", "-x", "c", "/dev/null"];
    let compiles = || Command::new("mpicc.mpich").args(header).output().is_ok_and(|run| run.status.success());
    if !installed("mpicc.mpich") || !compiles() {
        return skip(
            "mpichs_programs_run_under_the_launcher",
            "no mpicc.mpich or no mpi.h; Debian's packages mpich and libmpich-dev have them",
        );
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (source, program) = (directory.path().join("sum.c"), directory.path().join("sum"));
    let text = r#"
        #include <mpi.h>
        #include <stdio.h>
        int main(int argc, char **argv) {
            int rank, sum = 0;
            MPI_Init(&argc, &argv);
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            int mine = rank + 1;
            MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            printf("sum %d\n", sum);
            MPI_Finalize();
            return 0;
        }"#;
    std::fs::write(&source, text).expect("a file");
    let built = Command::new("mpicc.mpich").arg("-o").arg(&program).arg(&source).status().expect("it runs");
    assert!(built.success());
    let output = finish(trunkline("run -n 2 --").arg(&program));
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(out(&output).matches("sum 3").count(), 2, "{}", out(&output));
}

#[test]
fn unauthenticated_connections_to_the_store_change_nothing() {
    // Send noise to every port of the window while the processes connect.
    let base = port(30);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let noise = scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for port in base + 1..=base + 8 {
                    if let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) {
                        let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
                        let _ = stream.write_all(&[0xaa; 64]);
                        let _ = stream.read(&mut [0; 64]);
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let port = base.to_string();
        let variables =
            [("RANK", "{rank}"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
        let [first, second] = pair(&variables);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        noise.join().expect("no panic");
        assert_bench(&first, 2);
        assert!(second.status.success(), "{}", err(&second));
    });
}
