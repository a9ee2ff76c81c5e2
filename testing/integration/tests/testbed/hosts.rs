//! The hosts of a testbed, and the end of their processes and devices.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trunkline_integration::testbed::{self, LineShape, RunningProcess, TestHost};

use crate::traffic::{LIMIT, connect, transfer};

/// The output of a shell on a host.
fn shell(host: &TestHost, script: &str) -> String {
    let output = host.run_captured(Command::new("sh").args(["-c", script])).unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Waits until a condition is true.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn programs_on_two_hosts_see_two_machines() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let _cable = testbed.add_veth(&left, &right);
        for script in ["uname -n", "cat /proc/sys/kernel/random/boot_id", "readlink /proc/self/ns/net"] {
            assert_ne!(shell(&left, script), shell(&right, script), "{script}");
            assert_eq!(shell(&left, script), shell(&left, script), "{script}");
        }
        assert_eq!(shell(&left, "uname -n"), "left");
        shell(&left, "echo here > /dev/shm/mine");
        assert_eq!(shell(&left, "ls /dev/shm"), "mine");
        assert_eq!(shell(&right, "ls /dev/shm"), "");
        let third = testbed.add_host("third");
        assert_eq!(shell(&third, "ls /sys/class/net"), "lo");
        assert_eq!(shell(&left, "ls /sys/class/net"), "lo\nrail0");
        // The test's own thread is still in its namespace.
        assert_ne!(shell(&left, "uname -n"), own_name());
    });
}

/// The host name of the test's own thread.
fn own_name() -> String {
    let output = Command::new("uname").arg("-n").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_loopback_of_a_host_is_up_and_its_own() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        for address in ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()] {
            let (near, far) = connect(&left, &left, address);
            let at = far.local_addr().unwrap();
            transfer(&near, &far, 10_000);
            assert!(right.call_on_host(|| std::net::TcpStream::connect(at)).is_err());
        }
    });
}

#[test]
fn three_hosts_can_be_joined_in_a_row() {
    testbed::run(|testbed| {
        let hosts = ["a", "b", "c"].map(|name| testbed.add_host(name));
        let [a, b, c] = &hosts;
        let cables = [testbed.add_veth(a, b), testbed.add_veth(b, c)];
        let (near, far) = connect(a, b, cables[0].end_at(b).v4.into());
        transfer(&near, &far, 10_000);
        let (near, far) = connect(b, c, cables[1].end_at(c).v6.into());
        transfer(&near, &far, 10_000);
        // Hosts do not forward packets.
        let beyond = std::net::SocketAddr::from((cables[1].end_at(c).v4, 9));
        assert!(
            a.call_on_host(|| std::net::TcpStream::connect_timeout(&beyond, Duration::from_secs(1))).is_err()
        );
    });
}

#[test]
fn a_process_and_its_children_end_with_the_handle() {
    // The shell's child keeps the pipe open; the pipe ends only when both are dead.
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 40 & echo $!; wait"]).stdout(Stdio::piped());
    let mut running = RunningProcess::start_process(&mut command).unwrap();
    let mut output = running.child_mut().stdout.take().unwrap();
    let mut first = [0];
    output.read_exact(&mut first).unwrap();
    assert_eq!(running.wait(Duration::from_millis(20)).unwrap(), None);
    drop(running);
    let reader = std::thread::spawn(move || output.read_to_end(&mut Vec::new()).unwrap());
    let begun = Instant::now();
    while !reader.is_finished() {
        assert!(begun.elapsed() < Duration::from_secs(10), "a process outlives its handle");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_process_can_be_stopped_and_waited_for() {
    testbed::run(|testbed| {
        let host = testbed.add_host("host");
        let mut running = host.start_process(Command::new("sleep").arg("1000")).unwrap();
        running.send_signal(rustix::process::Signal::TERM).unwrap();
        let status = running.wait(LIMIT).unwrap().unwrap();
        assert!(!status.success());
        let status = host.start_process(&mut Command::new("true")).unwrap().wait(LIMIT).unwrap().unwrap();
        assert!(status.success());
    });
}

/// All network namespaces that contain a thread of some process.
fn namespaces_in_use() -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        for task in std::fs::read_dir(process.path().join("task")).into_iter().flatten().flatten() {
            all.extend(std::fs::metadata(task.path().join("ns/net")).map(|data| data.ino()));
        }
    }
    all
}

fn files_open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn a_testbed_leaves_nothing_behind() {
    testbed::run(|testbed| {
        let before = (namespaces_in_use(), files_open(), threads());
        let keeps = testbed.add_host("keeps");
        for panics in [false, true] {
            let using = |testbed: &mut testbed::Testbed| {
                let goes = testbed.add_host("goes");
                let plain = testbed.add_veth(&keeps, &goes);
                let relay = testbed.add_relay(&goes, &keeps, LineShape::PLAIN);
                let running = goes.start_process(Command::new("sleep").arg("1000")).unwrap();
                let inode =
                    std::fs::metadata(format!("/proc/{}/ns/net", running.process_id())).unwrap().ino();
                assert!(namespaces_in_use().contains(&inode));
                let (near, far) = connect(&keeps, &goes, relay.end_at(&goes).v4.into());
                transfer(&near, &far, 10_000);
                assert_ne!(shell(&keeps, "ls /sys/class/net"), "lo");
                assert!(!panics, "a panic on purpose; {:?}", plain.both_ends()[0].device);
            };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| using(testbed)));
            match done {
                // A panic that makes the test a skip is passed on, too.
                Err(panic) if !panics => std::panic::resume_unwind(panic),
                done => assert_eq!(done.is_err(), panics),
            }
            // The kernel removes namespaces and devices asynchronously.
            until("devices are left", || shell(&keeps, "ls /sys/class/net") == "lo");
            until("a namespace is left", || namespaces_in_use() == before.0);
        }
        drop(keeps);
        until("files or threads are left", || (files_open(), threads()) == (before.1, before.2));
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains("boot_id"), "{mounts}");
    });
}

#[test]
fn a_host_exists_while_its_cables_do() {
    testbed::run(|testbed| {
        let keeps = testbed.add_host("keeps");
        let goes = testbed.add_host("goes");
        let cable = testbed.add_veth(&keeps, &goes);
        let address = cable.end_at(&goes).v4;
        drop(goes);
        let goes = &cable.both_ends()[1].host;
        let (near, far) = connect(&keeps, goes, address.into());
        transfer(&near, &far, 10_000);
        drop(cable);
        until("devices are left", || shell(&keeps, "ls /sys/class/net") == "lo");
    });
}
