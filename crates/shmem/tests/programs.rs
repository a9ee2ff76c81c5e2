//! C and C++ programs, one per category of OpenSHMEM, as several PEs: with shared memory, over a fabric only, and with
//! both. The system's compiler compiles them here.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use trunkline_bootstrap::{JobSecret, free_port, trunkline_run};

#[path = "programs/deaths.rs"]
mod deaths;
#[path = "programs/wrong_settings.rs"]
mod wrong_settings;

/// The time after which PEs are killed, and the test fails.
const LIMIT: Duration = Duration::from_secs(60);

/// Counts started programs, so that concurrent ones search for free ports in different ranges.
static STARTED: AtomicU16 = AtomicU16::new(0);

/// A transport between PEs: its variables, and the number of PEs.
type Way = (&'static [(&'static str, &'static str)], usize);

const SHARED: Way = (&[("TRUNKLINE_FABRIC", "soft")], 2);
const SHARED_4: Way = (&[("TRUNKLINE_FABRIC", "soft")], 4);
const ALONE: Way = (&[("TRUNKLINE_FABRIC", "soft")], 1);
const SHM: Way = (&[("TRUNKLINE_FABRIC", "soft:shm"), ("TRUNKLINE_SHARED_HEAP", "off")], 2);
const TCP_3: Way = (&[("TRUNKLINE_FABRIC", "soft:tcp"), ("TRUNKLINE_SHARED_HEAP", "off")], 3);
/// Without passive progress.
const SELF: Way = (
    &[("TRUNKLINE_FABRIC", "soft:tcp"), ("TRUNKLINE_SHARED_HEAP", "off"), ("TRUNKLINE_PROGRESS_THREAD", "0")],
    2,
);
/// Every two PEs are treated as one host, so the four are two hosts.
const HOSTS: Way = (&[("TRUNKLINE_FABRIC", "soft:tcp"), ("TRUNKLINE_SHARED_HEAP", "2")], 4);
const STATICS: Way = (&[("TRUNKLINE_FABRIC", "soft"), ("TRUNKLINE_SHARED_STATICS", "0")], 2);
const OFI: Way = (&[("TRUNKLINE_FABRIC", "ofi:tcp"), ("TRUNKLINE_SHARED_HEAP", "off")], 2);

/// Connecting to one PE takes about 0.2 s here, so connecting to all takes longer than PEs wait for the reason of an
/// end.
const RXM_16: Way = (&[("TRUNKLINE_FABRIC", "ofi:tcp;ofi_rxm"), ("TRUNKLINE_SHARED_HEAP", "off")], 16);

/// Reports a skipped test and the reason.
fn skip(what: &str, why: &str) {
    println!("SKIPPED {what}: {why}");
    if let Ok(log) = std::env::var("TRUNKLINE_SKIP_LOG") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        file.write_all(format!("{what}: {why}\n").as_bytes()).unwrap();
    }
}

/// Returns whether libfabric is installed or required.
fn ofi() -> bool {
    let there =
        ["/usr/lib/x86_64-linux-gnu/libfabric.so.1", "/usr/lib64/libfabric.so.1", "/usr/lib/libfabric.so.1"]
            .iter()
            .any(|path| Path::new(path).exists());
    let required =
        std::env::var("TRUNKLINE_REQUIRE").is_ok_and(|list| list.split(',').any(|word| word == "ofi"));
    if !there && !required {
        skip("programs over ofi:tcp", "no libfabric (Debian: libfabric1)");
    }
    there || required
}

/// A compiled program, which is removed when this is dropped.
struct Program {
    folder: tempfile::TempDir,
}

impl Program {
    fn new(source: &str, flags: &[&str]) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let lib = own.parent().unwrap();
        let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
        let mut command = Command::new(compiler);
        command.args(["-O1", "-Wall", "-Werror", "-pthread"]).args(flags);
        command.arg("-I").arg(here.join("include")).arg(here.join("tests/programs").join(source));
        command.arg("-o").arg(folder.path().join("program")).arg("-L").arg(lib);
        command.arg(format!("-Wl,-rpath,{}", lib.display())).args(["-ltrunkline_shmem", "-lm"]);
        let output =
            command.output().unwrap_or_else(|error| panic!("cannot run the compiler {compiler}: {error}"));
        assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// Starts the program as PEs with that much heap.
    fn start(&self, way: Way, arguments: &[&str], heap: impl Fn(usize) -> &'static str) -> Vec<Child> {
        self.start_by(way, arguments, heap, |_| Command::new(self.path()))
    }

    /// Starts PEs by the commands that `command` returns.
    fn start_by(
        &self,
        (variables, size): Way,
        arguments: &[&str],
        heap: impl Fn(usize) -> &'static str,
        command: impl Fn(usize) -> Command,
    ) -> Vec<Child> {
        let port = free_port().unwrap() + STARTED.fetch_add(1, Ordering::Relaxed) % 16 * 16;
        let secret = JobSecret::random().unwrap().to_hex();
        let start = |rank: usize| {
            let mut command = command(rank);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command
                .env(trunkline_run::RANK, rank.to_string())
                .env(trunkline_run::SIZE, size.to_string())
                .env(trunkline_run::SECRET, &secret);
            command
                .env(trunkline_run::STORE, format!("127.0.0.1:{port}"))
                .env("SHMEM_SYMMETRIC_SIZE", heap(rank));
            // Cargo lists folders of other builds there, which precede the program's own.
            command.env_remove("LD_LIBRARY_PATH").envs(variables.iter().copied()).spawn().unwrap()
        };
        (0..size).map(start).collect()
    }

    /// Runs the program as PEs with that much heap. Returns the output and status of each; `None` for PEs that were
    /// killed at the limit.
    fn run_with(
        &self,
        way: Way,
        arguments: &[&str],
        heap: impl Fn(usize) -> &'static str,
    ) -> Vec<Option<Output>> {
        end_all(self.start(way, arguments, heap))
    }

    fn run(&self, way: Way, arguments: &[&str]) -> Vec<Option<Output>> {
        self.run_with(way, arguments, |_| "32M")
    }

    /// Runs the program, and checks that every PE succeeds.
    fn passes(&self, way: Way) {
        let began = Instant::now();
        let ended = self.run(way, &[]);
        for (pe, output) in ended.iter().enumerate() {
            let Some(output) = output else { panic!("{way:?}: PE {pe} does not end") };
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{way:?}: PE {pe}: {}: {said}", output.status);
        }
        println!("{way:?}: {:?}", began.elapsed());
    }
}

/// Waits for PEs. Returns the output and the status of each; `None` for those that were killed at the limit.
fn end_all(children: Vec<Child>) -> Vec<Option<Output>> {
    let began = Instant::now();
    let end = |mut child: Child| {
        while child.try_wait().unwrap().is_none() {
            if began.elapsed() > LIMIT {
                child.kill().unwrap();
                child.wait().unwrap();
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Some(child.wait_with_output().unwrap())
    };
    children.into_iter().map(end).collect()
}

/// Compiles a program and runs it over each transport.
fn passes(source: &str, ways: &[Way]) {
    let program = Program::new(source, &[]);
    let ofi = ofi();
    ways.iter().filter(|way| ofi || **way != OFI).for_each(|way| program.passes(*way));
}

const MOST: [Way; 5] = [SHARED, SHARED_4, SHM, HOSTS, OFI];

#[test]
fn programs_start_query_and_finish() {
    passes("setup.c", &[ALONE, SHARED, SHARED_4, SHM, TCP_3, HOSTS, OFI, STATICS]);
}

#[test]
fn heap_is_fully_used_and_reused() {
    passes("heap.c", &[ALONE, SHARED, HOSTS]);
}

#[test]
fn puts_and_gets_move_the_right_bytes() {
    passes("rma.c", &[ALONE, SHARED, SHARED_4, SHM, TCP_3, HOSTS, OFI, STATICS]);
}

#[test]
fn every_form_of_put_and_get_moves_the_same_bytes() {
    passes("forms.c", &MOST);
}

#[test]
fn every_form_of_atomic_fetches_the_same_value() {
    passes("fetches.c", &MOST);
}

#[test]
fn atomics_of_every_type_are_atomic() {
    passes("atomics.c", &[ALONE, SHARED, SHARED_4, SHM, TCP_3, HOSTS, OFI, STATICS]);
}

#[test]
fn signals_arrive_after_earlier_puts() {
    passes("signals.c", &[ALONE, SHARED, SHARED_4, SHM, TCP_3, HOSTS, OFI, STATICS]);
}

#[test]
fn waits_end_with_writes_of_other_pes() {
    passes("waits.c", &MOST);
}

#[test]
fn collectives_have_the_right_result() {
    passes("collectives.c", &[ALONE, SHARED, (SHARED.0, 3), SHARED_4, (SHARED.0, 5), SHM, HOSTS, OFI]);
}

#[test]
fn collectives_work_for_active_sets_and_types() {
    passes("sets.c", &MOST);
}

#[test]
fn teams_are_created_used_and_destroyed() {
    passes("teams.c", &[ALONE, SHARED, (SHARED.0, 3), SHARED_4, SHM, HOSTS]);
}

#[test]
fn collectives_work_for_partial_teams() {
    passes("parts.c", &[ALONE, SHARED_4, (SHARED.0, 5), (TCP_3.0, 4), HOSTS]);
}

#[test]
fn contexts_are_created_used_and_destroyed() {
    passes("contexts.c", &[ALONE, SHARED, SHM, HOSTS, OFI]);
}

#[test]
fn one_pe_holds_a_lock_at_a_time() {
    passes("locks.c", &[ALONE, SHARED, (SHARED.0, 3), SHM, TCP_3, HOSTS, SELF]);
}

#[test]
fn threads_of_a_pe_wait_for_each_others_locks() {
    passes("guards.c", &[ALONE, SHARED, SHM]);
}

#[test]
fn threads_use_one_context_and_their_own() {
    passes("threads.c", &[ALONE, SHARED, SHM, HOSTS, OFI]);
}

#[test]
fn deprecated_names_still_work() {
    passes("legacy.c", &[ALONE, SHARED, SHM, OFI]);
}

#[test]
fn tools_intercept_calls() {
    passes("profiled.c", &[SHARED, SHM]);
}

#[test]
fn cxx_calls_are_selected_by_argument_types() {
    if Command::new("c++").arg("--version").output().is_err() {
        return skip("programs of C++", "no C++ compiler (Debian: g++)");
    }
    passes("overloads.cpp", &[SHARED, SHM]);
}

#[test]
fn statics_are_symmetric_and_private_to_a_child() {
    for flags in
        [&["-fPIE", "-pie"][..], &["-fno-pie", "-no-pie"], &["-pie", "-Wl,-z,norelro"], &["-Wl,-z,now"]]
    {
        let program = Program::new("statics.c", flags);
        [SHARED, STATICS, SHM].into_iter().for_each(|way| program.passes(way));
    }
}

#[test]
fn concurrent_forks_give_children_private_statics() {
    let program = Program::new("forks.c", &[]);
    program.passes((SHARED.0, 1));
    program.passes(SHARED);
    let ended = program.run((SHARED.0, 1), &["without room"]).remove(0).unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}: {said}", ended.status);
    assert!(said.contains("a child of a fork ends: no memory for static variables of its own"), "{said}");
}

#[test]
fn static_variables_that_are_not_shared_are_copied() {
    let crowd: Way = (STATICS.0, 4);
    passes("private.c", &[SHARED, STATICS, crowd, SHM, TCP_3]);
}

#[test]
fn computing_pe_serves_requests() {
    passes("busy.c", &[SHARED, SHM, (TCP_3.0, 2), OFI]);
}

#[test]
fn long_wait_serves_requests_without_sleeping() {
    passes("awake.c", &[SHARED, SHM, (TCP_3.0, 2)]);
}

#[test]
fn misuse_ends_the_program_with_a_message() {
    let program = Program::new("misuse.c", &[]);
    let cases = [
        ("before", "shmem_barrier_all: it is called before shmem_init"),
        ("pe", "shmem_long_p: PE 2 is out of range: the job has 2"),
        ("negative", "PE -1 is out of range"),
        ("local", "are not symmetric"),
        ("null", "8 bytes at 0x0 are not symmetric"),
        ("beyond", "1099511627776 bytes"),
        ("unaligned", "shmem_long_atomic_inc: the word at"),
        ("team", "no such team"),
        ("context", "no such context"),
        ("context of a team before", "shmem_ctx_long_p: no such team of the context"),
        ("twice", "freed before"),
        ("sizes", "bytes of this allocation"),
        ("malloc and align", "bytes of alignment, this PE "),
        ("malloc and calloc", ", this PE in shmem_"),
        ("realloc of another", "bytes of the heap before the allocation that it frees or reallocates"),
        ("free of another", "bytes of the heap before the allocation that it frees or reallocates"),
        ("free against malloc", ", this PE in shmem_"),
        ("compare", "cmp must be SHMEM_CMP_EQ"),
        ("signal", "SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD"),
        ("root", "PE 2 is out of range"),
        ("too many", "shmem_long_put: 18446744073709551615 bytes at"),
        ("too many got", "shmem_get128: 18446744073709551615 bytes at"),
        ("too many signalled", "shmem_long_put_signal: 18446744073709551615 bytes at"),
        ("too far apart", "shmem_long_iput: the elements exceed the address space"),
        ("apart below", "shmem_long_iget: 16 bytes at"),
        ("too many collected", "shmem_long_collect: the elements exceed the address space"),
        ("too much collected", "shmem_long_collect: the elements exceed the address space"),
        ("too many fcollected", "shmem_char_fcollect: 18446744073709551615 bytes at"),
        ("too many exchanged", "shmem_long_alltoalls: the elements exceed the address space"),
        ("too many broadcast", "shmem_long_broadcast: the elements exceed the address space"),
        ("too many reduced", "shmem_long_sum_reduce: the elements exceed the address space"),
        ("set", "the active set is invalid"),
        ("alltoalls by 0", "shmem_long_alltoalls: dst and sst must be at least 1"),
        ("alltoalls by -1", "shmem_alltoalls64: dst and sst must be at least 1"),
        ("clear", "shmem_clear_lock: this PE does not hold the lock"),
        ("cleared", "shmem_clear_lock: this PE does not hold the lock"),
        ("another's", "shmem_clear_lock: this PE does not hold the lock"),
        ("again", "shmem_set_lock: this PE holds the lock already"),
        ("tested", "shmem_set_lock: this PE holds the lock already"),
        ("set before", "shmem_set_lock: the lock was not 0 before it was first set"),
        ("set to this PE", "shmem_set_lock: the lock was not 0 before it was first set"),
        ("tested before", "shmem_test_lock: the lock was not 0 before it was first set"),
        ("half set", "shmem_clear_lock: the lock was not 0 before it was first set"),
        ("from null", "shmem_putmem: a buffer of this PE is NULL"),
        ("strided from null", "shmem_long_iput: a buffer of this PE is NULL"),
        ("into null", "shmem_getmem: a buffer of this PE is NULL"),
        ("signalled from null", "shmem_putmem_signal: a buffer of this PE is NULL"),
        ("collected from null", "shmem_fcollectmem: a buffer of this PE is NULL"),
        ("exchanged from null", "shmem_alltoallmem: a buffer of this PE is NULL"),
        ("wait for null", "shmem_long_wait_until: a buffer of this PE is NULL"),
        ("test null", "shmem_long_test: a buffer of this PE is NULL"),
        ("fetched into null", "shmem_long_atomic_fetch_add_nbi: the place for the result is NULL"),
        ("context into null", "shmem_ctx_create: the place for the result is NULL"),
        ("team's context into null", "shmem_team_create_ctx: the place for the result is NULL"),
        ("context's team into null", "shmem_ctx_get_team: the place for the result is NULL"),
        ("split into null", "shmem_team_split_strided: the place for the result is NULL"),
        ("column into null", "shmem_team_split_2d: the place for the result is NULL"),
        ("config into null", "shmem_team_get_config: the place for the result is NULL"),
        ("level into null", "shmem_query_thread: the place for the result is NULL"),
        ("granted into null", "shmem_init_thread: the place for the result is NULL"),
        ("no level", "shmem_init_thread: requested must be SHMEM_THREAD_SINGLE"),
        ("below all levels", "shmem_init_thread: requested must be SHMEM_THREAD_SINGLE"),
        ("name into null", "shmem_info_get_name: the place for the result is NULL"),
        ("version into null", "shmem_info_get_version: the place for the result is NULL"),
        ("indices into null", "shmem_long_test_some: a buffer of this PE is NULL"),
        ("after", "after shmem_finalize"),
    ];
    // Most of the time is spent waiting for the other PEs.
    let misused = |(how, line): (&str, &str)| {
        for way in [SHARED, SHM] {
            let ended = program.run(way, &[how]);
            assert!(ended.iter().all(Option::is_some), "{way:?}, {how}: a PE has not ended: {ended:?}");
            let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
            let ends = ended.iter().flatten().filter(|output| output.status.code() == Some(1)).map(said);
            let ends: Vec<String> = ends.collect();
            assert!(ends.iter().any(|said| said.contains(line)), "{way:?}, {how}: {ended:?}");
        }
    };
    std::thread::scope(|scope| {
        for some in cases.chunks(cases.len().div_ceil(4)) {
            scope.spawn(move || some.iter().copied().for_each(misused));
        }
    });
}

#[test]
fn full_heap_and_bad_alignment_are_reported_apart() {
    let program = Program::new("full.c", &["-Wno-deprecated-declarations"]);
    for how in ["malloc", "calloc", "realloc", "align", "shmalloc", "shmemalign", "shrealloc"] {
        let ended = program.run(SHARED, &[how]);
        for (pe, output) in ended.into_iter().enumerate() {
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{how}: {}: {said}", output.status);
            let call = if how.starts_with("sh") { how.to_owned() } else { format!("shmem_{how}") };
            let full = format!(
                "trunkline: PE {pe}: {call}: no room for 1073741824 bytes in a symmetric heap of 33554432"
            );
            assert_eq!(said.matches("no room for").count(), 1, "{how}: {said}");
            assert!(said.contains(&full), "{how}: {said}");
            for (call, align) in [("shmem_align", 48), ("shmemalign", 3)] {
                let wrong = format!("PE {pe}: {call}: invalid alignment {align}; use a power of 2");
                assert!(said.contains(&wrong), "{how}: {said}");
            }
        }
    }
}

#[test]
fn fence_orders_writes_to_all_symmetric_memory() {
    passes("fence.c", &[ALONE, SHARED, STATICS, (STATICS.0, 4), SHM, TCP_3, HOSTS, OFI]);
}

#[test]
fn unshareable_statics_use_the_network() {
    let program = Program::new("refused.c", &[]);
    for (who, way) in [("nobody", SHARED), ("all", SHARED), ("odd", SHARED), ("odd", SHARED_4), ("all", SHM)]
    {
        for (pe, output) in program.run(way, &[who]).into_iter().enumerate() {
            let output = output.unwrap_or_else(|| panic!("{way:?}, {who}: PE {pe} does not end"));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{way:?}, {who}: PE {pe}: {}: {said}", output.status);
            let refused = who == "all" || who == "odd" && pe % 2 == 1;
            let line = said.contains("static variables are not shared with PEs of this host");
            assert_eq!(line, refused, "{way:?}, {who}: PE {pe}: {said}");
        }
    }
}

/// A host with an unused NIC, by a folder in place of `/`.
#[test]
fn a_host_with_unused_nics_warns_or_fails() {
    let program = Program::new("leave.c", &[]);
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("sys/class/infiniband/mlx5_0/device")).unwrap();
    let root: &'static str = root.path().to_str().unwrap().to_owned().leak();
    let errors = |required: &'static str| {
        let variables: &'static [_] = Box::leak(Box::new([
            ("TRUNKLINE_FABRIC", "auto"),
            ("TRUNKLINE_HOST_ROOT", root),
            ("SHMEM_DEBUG", "1"),
            ("TRUNKLINE_REQUIRE_NIC", required),
        ]));
        let ended = program.run((variables, 2), &["0"]).into_iter().map(Option::unwrap);
        ended.map(|output| (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    for (_, said) in errors("0") {
        assert_eq!(said.matches("TRUNKLINE_FABRIC=auto uses no NIC of this host").count(), 1, "{said}");
        assert_eq!(said.matches("as OpenSHMEM library: fabric soft").count(), 1, "{said}");
    }
    for (well, said) in errors("1") {
        assert!(!well && said.contains("TRUNKLINE_REQUIRE_NIC=1, and"), "{said}");
    }
}

#[test]
fn requested_version_and_info_are_printed() {
    let program = Program::new("leave.c", &[]);
    let told = |name: &'static str, value: &'static str| {
        let variables: &'static [_] = Box::leak(Box::new([
            ("TRUNKLINE_FABRIC", "soft"),
            ("SHMEM_BOUNCE_SIZE", "2K"),
            ("SHMEM_COLL_RADIX", "8"),
            (name, value),
        ]));
        let ended = program.run((variables, 2), &["0"]).into_iter().map(Option::unwrap);
        let both = |output: Output| {
            (
                String::from_utf8_lossy(&output.stdout).into_owned(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        };
        ended.map(both).collect::<Vec<_>>()
    };
    let info = told("SHMEM_INFO", "1");
    assert!(info[0].0.contains("SHMEM_SYMMETRIC_SIZE=33554432\n"), "{info:?}");
    assert!(info[0].0.contains("SHMEM_INFO=on\n") && info[0].0.contains("SHMEM_DEBUG=off\n"), "{info:?}");
    assert!(!info[1].0.contains("SHMEM_"), "only one PE prints the information: {info:?}");
    let version = told("SHMEM_VERSION", "yes");
    let debug = told("SHMEM_DEBUG", "1");
    for (pe, (_, said)) in debug.iter().enumerate() {
        let line = format!("trunkline: PE {pe} of 2: 33554432 bytes of symmetric heap, ");
        assert!(
            said.contains(&line) && said.contains("; memory of 1 other PEs mapped completely, "),
            "{debug:?}"
        );
    }
    for ignored in
        ["trunkline: SHMEM_BOUNCE_SIZE=2K has no effect: ", "trunkline: SHMEM_COLL_RADIX=8 has no effect: "]
    {
        assert!(
            debug[0].1.contains(ignored) && !debug[1].1.contains(ignored),
            "only one PE prints the line: {debug:?}"
        );
    }
    assert!(info.iter().chain(&version).all(|(_, said)| said.is_empty()), "{info:?} {version:?}");
    assert!(version[0].0.contains("OpenSHMEM 1.5, 2 PEs"), "{version:?}");
    for off in [told("SHMEM_INFO", "no"), told("SHMEM_VERSION", "0")] {
        assert_eq!(off[0].0, "here\n", "{off:?}");
    }
}

#[test]
fn different_settings_of_pes_are_reported() {
    let program = Program::new("setup.c", &[]);
    let ended = program.run_with(SHARED, &[], |pe| if pe == 0 { "32M" } else { "16M" });
    for (pe, output) in ended.into_iter().enumerate() {
        let output = output.unwrap_or_else(|| panic!("PE {pe} does not end"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("bytes of symmetric heap"), "{said}");
    }
    let ended = program.run_with(ALONE, &[], |_| "many");
    let said = String::from_utf8_lossy(&ended[0].as_ref().unwrap().stderr).into_owned();
    assert!(said.contains("SHMEM_SYMMETRIC_SIZE=many"), "{said}");
}

#[test]
fn one_pe_ends_all() {
    let program = Program::new("leave.c", &[]);
    for way in [(SHARED.0, 3), TCP_3] {
        for status in [0, 5] {
            let ended = program.run(way, &[&status.to_string()]);
            for (pe, output) in ended.iter().enumerate() {
                let output = output.as_ref().unwrap_or_else(|| panic!("{way:?}: PE {pe} has not ended"));
                assert_eq!(output.status.code(), Some(status), "{way:?}: PE {pe}: {output:?}");
                assert_eq!(
                    String::from_utf8_lossy(&output.stdout),
                    "here\n",
                    "{way:?}: PE {pe}: the output before the end is complete"
                );
            }
        }
    }
}

/// Exit handlers and destructors wait for no other PE, and the status is that of `shmem_global_exit`.
#[test]
fn one_pe_ends_all_with_exit_handlers() {
    let program = Program::new("leave.c", &[]);
    for way in [(SHARED.0, 3), TCP_3] {
        for status in ["0", "5"] {
            for (pe, output) in program.run(way, &[status, "atexit"]).iter().enumerate() {
                let output = output.as_ref().unwrap_or_else(|| panic!("{way:?}: PE {pe} has not ended"));
                let code = output.status.code().map(|code| code.to_string());
                assert_eq!(code.as_deref(), Some(status), "{way:?}: PE {pe}: {output:?}");
            }
        }
    }
}

/// A thread that reads from a stream holds the stream's lock. The end does not wait for it, and earlier output is
/// complete.
#[test]
fn one_pe_ends_all_while_another_reads() {
    let program = Program::new("leave.c", &[]);
    for way in [SHARED, TCP_3] {
        for (pe, output) in program.run(way, &["5", "reads"]).iter().enumerate() {
            let output = output.as_ref().unwrap_or_else(|| panic!("{way:?}: PE {pe} has not ended"));
            assert_eq!(output.status.code(), Some(5), "{way:?}: PE {pe}: {output:?}");
            assert_eq!(String::from_utf8_lossy(&output.stdout), "here\n", "{way:?}: PE {pe}");
        }
    }
}

#[test]
fn an_error_ends_programs_with_exit_handlers() {
    let program = Program::new("legacy.c", &[]);
    for way in [SHARED, SHM] {
        for (pe, output) in program.run(way, &["pe"]).iter().enumerate() {
            let output = output.as_ref().unwrap_or_else(|| panic!("{way:?}: PE {pe} has not ended"));
            assert_eq!(output.status.code(), Some(1), "{way:?}: PE {pe}: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(said.lines().count(), 1, "{way:?}: PE {pe}: {said}");
            // PE 0 may end before PE 1 has left the earlier barrier, which waits for PE 0, too.
            let lines: &[&[&str]] = match pe {
                0 => &[&["shmem_int_inc: PE 2 is out of range"]],
                _ => &[&["shmem_barrier_all: PE 0"], &["shmem_malloc: ", " PE 0 "]],
            };
            let is_one = lines.iter().any(|parts| parts.iter().all(|part| said.contains(part)));
            assert!(is_one, "{way:?}: PE {pe}: {said}");
        }
    }
}

/// The PEs that end the program end, although PE 0 does not respond: it computes without passive progress, or is
/// stopped.
#[test]
fn one_pe_ends_while_another_does_not_respond() {
    let program = Program::new("leave.c", &[]);
    for (way, how) in [(SELF, "computes"), (TCP_3, "stopped")] {
        let children = program.start(way, &["5", how], |_| "32M");
        let began = Instant::now();
        for (pe, mut child) in children.into_iter().enumerate().rev() {
            let mut ended = None;
            while pe > 0 && ended.is_none() && began.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(2));
                ended = child.try_wait().unwrap();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let code = ended.and_then(|status| status.code());
            assert_eq!(code, (pe > 0).then_some(5), "{way:?}, {how}: PE {pe}");
        }
    }
}

/// The PEs that receive the message first have exited before the last one is connected.
#[test]
fn one_pe_ends_all_before_links_exist() {
    let program = Program::new("leave.c", &[]);
    for way in [TCP_3].into_iter().chain(ofi().then_some(RXM_16)) {
        let ended = program.run(way, &["0", "at once"]);
        for (pe, output) in ended.iter().enumerate() {
            let output = output.as_ref().unwrap_or_else(|| panic!("{way:?}: PE {pe} has not ended"));
            assert_eq!(output.status.code(), Some(0), "{way:?}: PE {pe}: {output:?}");
        }
    }
}

/// Programs that run under each launcher: heap, collectives, and the end of all PEs by one.
mod launchers {
    use super::*;

    fn installed(program: &str) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).exists())
    }

    /// Waits for a process, at most for the limit.
    fn finish(mut child: Child) -> Output {
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if began.elapsed() > LIMIT {
                child.kill().unwrap();
                panic!("the process does not end: {:?}", child.wait_with_output().unwrap());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        child.wait_with_output().unwrap()
    }

    fn start(command: &mut Command) -> Child {
        command
            .env_remove("LD_LIBRARY_PATH")
            .env("SHMEM_SYMMETRIC_SIZE", "32M")
            .env("TRUNKLINE_FABRIC", "soft");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs programs by a launcher that gets the number of PEs: as PEs of one host, and with each PE treated as a host.
    fn by_launcher(launcher: impl Fn() -> Command) {
        for source in ["setup.c", "collectives.c", "signals.c"] {
            let program = Program::new(source, &[]);
            for shared in ["on", "off"] {
                let mut command = launcher();
                command.args(["-n", "3"]).arg(program.path()).env("TRUNKLINE_SHARED_HEAP", shared);
                let output = finish(start(&mut command));
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{source}, {shared}: {}: {said}", output.status);
            }
        }
        let program = Program::new("leave.c", &[]);
        let mut command = launcher();
        command.args(["-n", "3"]).arg(program.path()).arg("5");
        let output = finish(start(&mut command));
        assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn mpich_starts_pes_by_pmi_1() {
        if !installed("mpiexec.hydra") {
            return skip("OpenSHMEM under MPICH's hydra", "no mpiexec.hydra; Debian's package mpich has it");
        }
        by_launcher(|| Command::new("mpiexec.hydra"));
        let port = || {
            let mut command = Command::new("mpiexec.hydra");
            command.arg("-pmi-port");
            command
        };
        by_launcher(port);
    }

    #[test]
    fn open_mpi_starts_pes_by_pmix() {
        if !installed("mpiexec.openmpi") {
            return skip(
                "OpenSHMEM under Open MPI",
                "no mpiexec.openmpi; Debian's package openmpi-bin has it",
            );
        }
        by_launcher(|| {
            let mut command = Command::new("mpiexec.openmpi");
            command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
            command.arg("--oversubscribe");
            command
        });
    }

    /// Runs three PEs with these variables, in which `{rank}` is replaced by the PE's number.
    fn by_variables(variables: &[(&str, &str)]) {
        for source in ["setup.c", "collectives.c"] {
            let program = Program::new(source, &[]);
            let start = |rank: usize| {
                let mut command = Command::new(program.path());
                for (name, value) in variables {
                    command.env(name, value.replace("{rank}", &rank.to_string()));
                }
                start(&mut command)
            };
            let children: Vec<Child> = (0..3).map(start).collect();
            for output in children.into_iter().map(finish) {
                assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }

    #[test]
    fn torchrun_variables_start_pes() {
        let port = free_port().unwrap().to_string();
        by_variables(&[
            ("RANK", "{rank}"),
            ("LOCAL_RANK", "{rank}"),
            ("WORLD_SIZE", "3"),
            ("LOCAL_WORLD_SIZE", "3"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", &port),
            ("TORCHELASTIC_RUN_ID", "none"),
        ]);
    }

    #[test]
    fn slurm_variables_start_pes() {
        // The PEs derive their port from the job's number.
        let job = (std::process::id() + 7).to_string();
        by_variables(&[
            ("SLURM_PROCID", "{rank}"),
            ("SLURM_LOCALID", "{rank}"),
            ("SLURM_NODEID", "0"),
            ("SLURM_NTASKS", "3"),
            ("SLURM_STEP_NUM_TASKS", "3"),
            ("SLURM_STEP_TASKS_PER_NODE", "3"),
            ("SLURM_JOB_ID", &job),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "localhost"),
        ]);
    }
}
