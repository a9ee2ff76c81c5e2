//! Starting this test program again as ranks, for one test.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use trunkline::{Builder, World};
use trunkline_bootstrap::{Secret, free_port, own};

/// Ranks that take longer are killed, and the test fails.
const LIMIT: Duration = Duration::from_secs(120);

/// The exit status of a rank that dies on purpose.
pub(crate) const DIES: i32 = 77;

/// Whether this process is a rank that a test started.
fn is_rank() -> bool {
    std::env::var_os(own::RANK).is_some()
}

/// The fabrics that there are.
fn fabrics() -> Vec<&'static str> {
    let mut all = vec!["soft:shm", "soft:tcp"];
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    if folders.iter().any(|folder| std::path::Path::new(folder).join("libfabric.so.1").exists()) {
        all.push("ofi:tcp");
    } else {
        println!("SKIPPED ofi:tcp: libfabric is not installed (Debian: libfabric1)");
    }
    all
}

/// Runs `rank` in each of `size` processes, over each fabric. To be called first in the test of that name.
pub(crate) fn run(name: &str, size: usize, rank: impl FnOnce(World)) {
    run_as(name, size, &|status| status == Some(0), World::builder, rank);
}

/// The same with a world of one's own, where ranks may end as `ends` says.
pub(crate) fn run_as(
    name: &str,
    size: usize,
    ends: &dyn Fn(Option<i32>) -> bool,
    builder: impl FnOnce() -> Builder,
    rank: impl FnOnce(World),
) {
    if is_rank() {
        return rank(builder().start().unwrap());
    }
    for fabric in fabrics() {
        let statuses = start(name, size, fabric);
        assert!(statuses.iter().all(|&status| ends(status)), "{fabric}: the ranks ended with {statuses:?}");
    }
}

/// Exit statuses; none for one that was killed.
fn start(name: &str, size: usize, fabric: &str) -> Vec<Option<i32>> {
    let port = free_port().unwrap();
    let secret = Secret::random().unwrap().to_hex();
    let spawn = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture", "--test-threads", "1"]).stdout(Stdio::null());
        command.env(own::RANK, rank.to_string()).env(own::SIZE, size.to_string());
        command.env(own::LOCAL_RANK, rank.to_string()).env(own::LOCAL_SIZE, size.to_string());
        command.env(own::STORE, format!("127.0.0.1:{port}")).env(own::SECRET, &secret);
        command.env("TRUNKLINE_FABRIC", fabric).env("NCCL_SOCKET_IFNAME", "=lo");
        command.env("TRUNKLINE_OFI_DOMAIN", "lo");
        command.spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..size).map(spawn).collect();
    let until = Instant::now() + LIMIT;
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        if Instant::now() > until {
            eprintln!("{fabric}: ranks hang");
            children.iter_mut().for_each(|child| drop(child.kill()));
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    children.iter_mut().map(|child| child.wait().unwrap().code()).collect()
}
