//! Many connections made at the same time between two processes over the enforcing provider, in manual progress. Each
//! is established, carries a message, and closes.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::strict::{Env, Strict};
use crate::net::{Buf, Comm, Net, Piece, Request, until};
use crate::run::Scene;
use crate::sharing::{is_full, usage};

scenarios! {
    all_connect_at_once,
}

fn count() -> usize {
    std::env::var("TEST_COUNT").expect("a count").parse().expect("a number")
}

/// Raises the limit of descriptors, because endpoints of this provider are sockets.
fn take_all_descriptors() {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).expect("setrlimit");
}

/// A value in KiB, from a line of a file in `/proc/self`.
fn kib(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Connects this end's connections, all of them begun before the first is established; returns them with the time of
/// the longest call. A call that blocks fails the test.
fn connect_all(net: &Net, scene: &mut Scene) -> (Vec<Comm>, Duration) {
    let (listen, handle) = net.listen();
    scene.say(&handle);
    let theirs = scene.hear_handle();
    let mut longest = Duration::ZERO;
    let mut timed = |call: &mut dyn FnMut() -> Option<Comm>| {
        let begun = Instant::now();
        let made = call();
        longest = longest.max(begun.elapsed());
        made
    };
    let mut comms = Vec::new();
    if scene.role == 0 {
        while comms.len() < count() {
            let accepted = timed(&mut || net.try_accept(listen).expect("accept"));
            comms.extend(accepted);
        }
    } else {
        let mut attempts = vec![theirs; count()];
        while !attempts.is_empty() {
            attempts.retain_mut(|handle| {
                let made = timed(&mut || net.try_connect(handle).expect("connect"));
                comms.extend(made);
                made.is_none()
            });
        }
    }
    net.close_listen(listen).expect("closeListen");
    (comms, longest)
}

fn all_connect_at_once(mut scene: Scene) {
    take_all_descriptors();
    let net = Net::start(scene.version);
    scene.meet();
    let begun = Instant::now();
    let (comms, longest) = connect_all(&net, &mut scene);
    let took = begun.elapsed();
    scene.meet();
    let memory = Buf::filled(70_000, 1);
    let begun = Instant::now();
    // Messages on all of them at the same time; which comm belongs to which peer comm does not matter.
    let requests: Vec<Request> = comms
        .iter()
        .map(|&comm| {
            let mr = net.reg_buf(comm, &memory);
            let piece = Piece { addr: memory.addr(), len: 70_000, tag: 0, mr };
            if scene.role == 0 { net.recv(comm, &[piece]) } else { net.send(comm, piece) }
        })
        .collect();
    net.finish_all(&requests);
    let carried = begun.elapsed();
    memory.check(0..70_000, 1);
    let end = if scene.role == 0 { "accepting" } else { "connecting" };
    let (used, files) = (usage(), std::fs::read_dir("/proc/self/fd").expect("descriptors").count());
    println!(
        "figure: {end}: {} connections in {took:?}, longest call {longest:?}, one message each in {carried:?}; {files} descriptors, \
         {} regions, {} endpoints, {} KiB resident, {} KiB of that shared memory",
        comms.len(),
        used.regions,
        used.queue_pairs,
        kib("status", "VmRSS:"),
        kib("status", "RssShmem:"),
    );
    scene.meet();
    let begun = Instant::now();
    for &comm in &comms {
        if scene.role == 0 { net.close_recv(comm) } else { net.close_send(comm) }.expect("close");
    }
    println!("figure: {end}: closed in {:?}", begun.elapsed());
    scene.meet();
    let (listen, _) = net.listen();
    until("the release of all resources", || {
        assert_eq!(net.try_accept(listen), Ok(None));
        (usage().regions == 0 && usage().queue_pairs == 0).then_some(())
    });
    net.close_listen(listen).expect("closeListen");
    scene.meet();
}

#[test]
fn p10_simultaneous_connections_all_succeed() {
    let Some(strict) = Strict::here("a crowd over ofi:strict") else { return };
    let count = if is_full() { 2000 } else { 200 };
    let roomy: Env<'_> = &[("FI_STRICT_ENTRIES", "1048576"), ("TRUNKLINE_COMMS_MAX", "65535")];
    strict.over("all_connect_at_once", roomy).env("TEST_COUNT", count).two();
    let most = strict.clean(2).accounts.iter().filter_map(|one| one["most_entries"].as_u64()).max();
    println!("figure: at most {} list entries for {count} connections", most.unwrap_or(0));
}
