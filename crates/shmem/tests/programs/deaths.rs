//! PEs that die while others wait for them, in each waiting call of OpenSHMEM. Many programs run at a time, as they
//! mostly wait.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::*;

/// The limit within which a PE ends after one that it needs. One program alone needs less than a second.
const NO_LONGER: Duration = Duration::from_secs(10);
/// Programs that run at a time.
const AT_ONCE: usize = 10;
const TCP: Way = (TCP_3.0, 2);
const STATICS_4: Way = (STATICS.0, 4);

/// The states of death.c, and the calls in which the other PEs end. Mapped memory of an ended PE can still be read and
/// written, so those programs end in the barrier after that.
const STATES: [(&str, &[&str]); 23] = [
    ("barrier", &["shmem_barrier_all"]),
    ("wait", &["shmem_long_wait_until"]),
    ("wait all", &["shmem_long_wait_until_all"]),
    ("wait any", &["shmem_long_wait_until_any"]),
    ("wait some", &["shmem_long_wait_until_some"]),
    ("signal", &["shmem_signal_wait_until"]),
    ("test", &["shmem_long_test"]),
    ("test any", &["shmem_long_test_any"]),
    ("lock", &["shmem_set_lock"]),
    ("test lock", &["shmem_test_lock"]),
    ("finalize", &["shmem_finalize"]),
    ("malloc", &["shmem_malloc"]),
    ("put", &["shmem_putmem", "shmem_quiet", "shmem_barrier_all"]),
    ("quiet", &["shmem_putmem_nbi", "shmem_quiet", "shmem_barrier_all"]),
    ("get", &["shmem_getmem", "shmem_barrier_all"]),
    ("fetch", &["shmem_long_atomic_fetch_inc", "shmem_barrier_all"]),
    ("reduce", &["shmem_long_sum_reduce"]),
    ("broadcast", &["shmem_broadcastmem"]),
    ("collect", &["shmem_collectmem"]),
    ("fcollect", &["shmem_fcollectmem"]),
    ("alltoall", &["shmem_alltoallmem"]),
    ("split", &["shmem_team_split_strided"]),
    ("split 2d", &["shmem_team_split_2d"]),
];

/// The numbers of the sends by which a PE of a job of ours agrees with the others and meets them. Three precede them: two list
/// the host's interfaces, and one is the HELLO of the store. Two of these, after the start notice, list the interfaces
/// again for their speeds.
const SENDS: std::ops::RangeInclusive<u32> = 4..=14;

/// Waits for all processes, and kills them at the limit. Returns their outputs and the times of their ends.
fn watch(mut children: Vec<Child>) -> (Vec<Output>, Vec<Option<Instant>>) {
    let began = Instant::now();
    let mut ended = vec![None; children.len()];
    while ended.contains(&None) && began.elapsed() < LIMIT {
        for (child, ended) in children.iter_mut().zip(&mut ended) {
            if ended.is_none() && child.try_wait().unwrap().is_some() {
                *ended = Some(Instant::now());
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    children.iter_mut().for_each(|child| drop(child.kill()));
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    (outputs, ended)
}

/// Runs the program in one of the states. Checks that all PEs except PE 1 end in time, each with a line that names its
/// call and the ended PE. That PE is PE 1. Over the fabric, on a loaded machine, it may be another PE that ended
/// because of PE 1. Returns how long after PE 1 the last PE ended.
fn ends(program: &Program, way: Way, (how, calls): (&str, &[&str])) -> Duration {
    let (outputs, ended) = watch(program.start(way, &[how], |_| "32M"));
    let dead = ended[1].unwrap_or_else(|| panic!("{way:?}, {how}: PE 1 has not ended: {outputs:?}"));
    let (mut longest, mut named) = (Duration::ZERO, false);
    for (pe, output) in outputs.iter().enumerate().filter(|(pe, _)| *pe != 1) {
        let said = String::from_utf8_lossy(&output.stderr);
        let at = ended[pe].unwrap_or_else(|| panic!("{way:?}, {how}: PE {pe} hangs: {said}"));
        assert_eq!(output.status.code(), Some(1), "{way:?}, {how}: PE {pe}: {said}");
        let line = |call: &&str| format!("trunkline: PE {pe} of {}: {call}: ", way.1);
        let reason = calls.iter().find_map(|call| Some(said.split_once(&line(call))?.1));
        let reason = reason.unwrap_or_else(|| panic!("{way:?}, {how}: PE {pe} was in none of these: {said}"));
        let names = ["PE 1 has ended", "PE 1: ", "operations towards PE 1 failed"];
        let names_it = names.iter().any(|name| reason.starts_with(name));
        let may_not = [HOSTS, STATICS_4].contains(&way) && reason.contains("PE ");
        assert!(names_it || may_not, "{way:?}, {how}: PE {pe}: {said}");
        named |= names_it;
        longest = longest.max(at.saturating_duration_since(dead));
    }
    assert!(named, "{way:?}, {how}: no PE names PE 1: {outputs:?}");
    assert!(longest < NO_LONGER, "{way:?}, {how}: {longest:?}");
    longest
}

#[test]
fn no_wait_outlives_a_dead_peer() {
    let program = Program::new("death.c", &[]);
    let some = |names: &'static [&str]| STATES.into_iter().filter(|(name, _)| names.contains(name));
    let mut all: Vec<(Way, (&str, &[&str]))> = Vec::new();
    let ofi = ofi().then_some(OFI);
    for way in [SHARED, TCP, SHM].into_iter().chain(ofi) {
        all.extend(STATES.map(|state| (way, state)));
    }
    // A PE may wait for another PE that itself waits for the dead one, on this host or another.
    for way in [SHARED_4, HOSTS] {
        all.extend(
            some(&["barrier", "wait", "fetch", "broadcast", "alltoall", "split 2d"])
                .map(|state| (way, state)),
        );
    }
    for way in [STATICS, STATICS_4] {
        all.extend(some(&["get", "fetch", "quiet", "test lock"]).map(|state| (way, state)));
    }
    let (next, longest) = (Mutex::new(all.into_iter()), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some((way, state)) = { next.lock().unwrap().next() } {
            let took = ends(&program, way, state);
            let mut longest = longest.lock().unwrap();
            let of_way: &mut (Duration, &str) = longest.entry(format!("{way:?}")).or_default();
            *of_way = (*of_way).max((took, state.0));
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    for (way, (took, how)) in longest.into_inner().unwrap() {
        println!("{way}: at most {took:?}, in {how}");
    }
}

/// Kills PE 1 at each of the sends by which it meets the others in `shmem_init`.
#[test]
fn death_in_init_is_reported_by_all_others() {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        return skip("PEs that die in shmem_init", "no strace (Debian: strace)");
    }
    let program = Program::new("death.c", &[]);
    for (way, at) in [SHARED_4, TCP_3].into_iter().flat_map(|way| SENDS.map(move |at| (way, at))) {
        let command = |rank| match rank {
            1 => {
                let mut strace = Command::new("strace");
                strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=sendto", "-e"]);
                strace.arg(format!("inject=sendto:signal=KILL:when={at}")).arg(program.path());
                strace
            }
            _ => Command::new(program.path()),
        };
        let (outputs, ended) = watch(program.start_by(way, &["barrier"], |_| "32M", command));
        let dead = ended[1].unwrap_or_else(|| panic!("{way:?}, {at}: PE 1 has not ended"));
        for (pe, output) in outputs.iter().enumerate().filter(|(pe, _)| *pe != 1) {
            let said = String::from_utf8_lossy(&output.stderr);
            let end = ended[pe].unwrap_or_else(|| panic!("{way:?}, {at}: PE {pe} hangs: {said}"));
            assert_eq!(output.status.code(), Some(1), "{way:?}, {at}: PE {pe}: {said}");
            let names = said.contains("shmem_init: ") && said.contains("rank 1: its connection has ended");
            assert!(names, "{way:?}, {at}: PE {pe}: {said}");
            let took = end.saturating_duration_since(dead);
            assert!(took < NO_LONGER, "{way:?}, {at}: PE {pe}: {took:?}");
        }
    }
}
