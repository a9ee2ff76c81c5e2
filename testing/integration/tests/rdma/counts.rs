//! Queue pairs and completion queues of a process, as the kernel reports them.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::contract::messages::between;
use crate::net::{Net, until};
use crate::run::Scene;
use crate::sharing::flow::Stream;

scenarios! {
    the_kernel_counts_queue_pairs,
}

/// Connections per direction.
const COMMS: u32 = 5;
/// Messages over each connection.
const MESSAGES: usize = 5;
/// Time limit until the kernel reports created or destroyed objects.
const SOON: Duration = Duration::from_secs(10);

fn number(name: &str) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).expect("a number")
}

/// Number of objects of a kind that this process has.
fn counted(kind: &str) -> u32 {
    let output =
        Command::new("rdma").args(["-j", "resource", "show", kind]).output().expect("iproute2's rdma");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).expect("a list");
    // Objects are attributed to the thread that made them.
    let threads = std::path::Path::new("/proc/self/task");
    let own =
        |object: &&Value| object["pid"].as_u64().is_some_and(|tid| threads.join(tid.to_string()).exists());
    all.as_array().map_or(0, |all| all.iter().filter(own).count() as u32)
}

/// Waits until the numbers of queue pairs and completion queues match, and checks that they stay unchanged.
#[track_caller]
fn expect(want: (u32, u32), when: &str) {
    let now = || (counted("qp"), counted("cq"));
    let began = Instant::now();
    while now() != want && began.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(now(), want, "queue pairs and completion queues {when}");
    println!("figure: {} queue pairs and {} completion queues {when}", want.0, want.1);
}

/// One direction has one group per connection, or the requested number of groups. Each has its links, and a completion
/// queue on each NIC. Nothing is flushed here, so no queue pair is made for flushes.
fn formula(groups: u32, links: u32, nics: u32) -> (u32, u32) {
    let each = if groups == 0 { COMMS } else { COMMS.min(groups) };
    (2 * each * links, 2 * each * nics)
}

fn the_kernel_counts_queue_pairs(mut scene: Scene) {
    let net = Net::start(scene.version);
    expect((0, 0), "before");
    let pairs: Vec<_> = (0..COMMS).map(|_| between(&net, &mut scene)).collect();
    let mut streams: Vec<Stream<'_>> = Vec::new();
    for (name, &(send, recv)) in pairs.iter().enumerate() {
        streams.push(Stream::new(&net, send, true, name));
        streams.push(Stream::new(&net, recv, false, name));
    }
    // Some links are made on first use.
    until("messages", || {
        streams.iter_mut().for_each(|stream| stream.step(MESSAGES).expect("a message"));
        streams.iter().all(|stream| stream.done == MESSAGES).then_some(())
    });
    scene.meet();
    expect(
        formula(number("TEST_GROUPS"), number("TEST_LINKS"), number("TEST_RAILS")),
        "with all connections",
    );
    scene.meet();
    streams.into_iter().for_each(Stream::close);
    scene.meet();
    let (listen, _) = net.listen();
    until("the end of all", || {
        assert_eq!(net.try_accept(listen), Ok(None));
        (counted("qp") == 0).then_some(())
    });
    net.close_listen(listen).expect("closeListen");
    expect((0, 0), "without any");
    scene.meet();
}
