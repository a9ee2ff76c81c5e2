//! Many connections between two processes, and the cost of one: descriptors, memory, time.
//!
//! The first process prints the figures in lines that begin with `figure:`, which the test shows. The bounds are
//! generous, because machines that run tests are busy.

use std::fmt::Display;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use trunkline_sys::nccl_net::ResultCode;

use crate::net::{Buf, Comm, Handle, LINES, Mr, Net, Piece, Request, logged, until};
use crate::run::Scene;

scenarios! {
    a_thousand_connections_at_once,
    a_thousand_connections_one_after_another,
    an_idle_connection_is_small,
    a_connection_is_set_up_quickly,
}

/// Descriptors of each process.
const FILES: u64 = 256;
/// Connections.
const MANY: usize = 1000;
/// Connections whose memory is measured.
const IDLE: usize = 400;
/// Most bytes of memory of an idle connection, at each end.
const IDLE_MAX: i64 = 100 << 10;
/// Most bytes of memory of a request in flight, at each end.
const REQUEST_MAX: i64 = 8 << 10;
/// Messages on each of those afterwards: more than the entries of any table.
const ROUNDS: usize = 300;
/// Largest message that waits at the receiver.
const EAGER: usize = 4096;
/// Requests in flight on each connection: no more than are sent eagerly to a receiver that makes no call. A quarter of
/// the eager credits may be unreported there.
const REQUESTS: usize = 24;
/// Connections on which requests are in flight.
const BUSY: usize = 100;
/// Shortest time to wait for the release of memory.
const REST_MIN: Duration = Duration::from_secs(2);
/// Longest time until connections that were busy have released memory that idle ones do not need: a second, plus the
/// delay of a busy machine.
const REST_MAX: Duration = Duration::from_secs(15);
/// Longest set-up time of the fastest connection. The goal is a median of 1 ms; test builds are not optimized, and most
/// of a median is caused by other work of the machine.
const SETUP_MAX: Duration = Duration::from_millis(2);

/// One process of the pair, with memory for all its messages. The second sends.
struct End {
    net: Net,
    listen: Comm,
    /// The handle of the first process.
    handle: Handle,
    memory: Buf,
}

impl End {
    fn new(scene: &mut Scene) -> Self {
        let net = Net::start(scene.version);
        let (listen, handle) = net.listen();
        scene.say(&handle);
        let theirs = scene.hear_handle();
        let handle = if scene.role == 0 { handle } else { theirs };
        Self { net, listen, handle, memory: Buf::filled(REQUESTS * EAGER, 1) }
    }

    /// Sets one connection up; the other process does the same.
    fn connect(&self, scene: &Scene) -> Comm {
        let mut handle = self.handle;
        until("a connection", || {
            if scene.role == 0 {
                self.net.try_accept(self.listen).unwrap()
            } else {
                self.net.try_connect(&mut handle).unwrap()
            }
        })
    }

    /// Starts the message with a number.
    fn begin(&self, scene: &Scene, comm: Comm, mr: Mr, len: usize, at: usize) -> Request {
        let piece = Piece { addr: self.memory.addr() + at * len, len, tag: 1, mr };
        if scene.role == 0 { self.net.recv(comm, &[piece]) } else { self.net.send(comm, piece) }
    }

    /// Sends a message of 8 bytes, registered for it.
    fn message(&self, scene: &Scene, comm: Comm) {
        let mr = self.net.reg_buf(comm, &self.memory);
        self.net.finish(self.begin(scene, comm, mr, 8, 0));
        self.net.dereg(comm, mr).unwrap();
    }

    fn close(&self, scene: &Scene, comm: Comm) {
        if scene.role == 0 { self.net.close_recv(comm) } else { self.net.close_send(comm) }.unwrap();
    }
}

/// Prints a figure of this process, with the setting it was taken in.
fn figure(scene: &Scene, what: &str, value: impl Display) {
    let wire = std::env::var("TRUNKLINE_FABRIC").unwrap_or_else(|_| "default".into());
    let end = if scene.role == 0 { "receiving" } else { "sending" };
    println!("figure: {wire}, {end} end: {what}: {value}");
}

/// The files of this process's descriptors.
fn open_files() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).map(|to| to.display().to_string()).collect()
}

fn sockets() -> usize {
    open_files().iter().filter(|file| file.starts_with("socket:")).count()
}

fn limit_files() {
    let limit = Some(FILES);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    assert_eq!(getrlimit(Resource::Nofile).current, limit);
}

/// All at the same time: an established connection over shared memory needs no descriptor.
fn a_thousand_connections_at_once(mut scene: Scene) {
    limit_files();
    let end = End::new(&mut scene);
    let first = end.connect(&scene);
    end.message(&scene, first);
    scene.meet();
    let before = open_files();
    let mut comms: Vec<Comm> = (1..MANY).map(|_| end.connect(&scene)).collect();
    comms.push(first);
    scene.meet();
    let after = open_files();
    figure(
        &scene,
        "descriptors with 1 and with 1000 connections",
        format!("{}, {}", before.len(), after.len()),
    );
    assert_eq!(before.len(), after.len(), "{before:?}\n{after:?}");
    comms.iter().for_each(|&comm| end.message(&scene, comm));
    scene.meet();
    comms.iter().for_each(|&comm| end.close(&scene, comm));
    // Everything works again afterwards.
    scene.meet();
    let again = end.connect(&scene);
    end.message(&scene, again);
    scene.meet();
    assert!(open_files().len() <= after.len(), "{after:?}\n{:?}", open_files());
    end.close(&scene, again);
}

/// One after another, and then the number that the descriptors allow: over TCP each connection is a socket.
fn a_thousand_connections_one_after_another(mut scene: Scene) {
    limit_files();
    let end = End::new(&mut scene);
    // Stays open, so that the two processes always share a control stream.
    let first = end.connect(&scene);
    end.message(&scene, first);
    scene.meet();
    let before = sockets();
    let mut most = 0;
    for _ in 1..MANY {
        let comm = end.connect(&scene);
        most = most.max(sockets());
        end.message(&scene, comm);
        scene.meet();
        end.close(&scene, comm);
    }
    scene.meet();
    // A closed sender may wait for its last message to be read; all connections share one control stream.
    assert!(most <= before + 4, "{before} sockets before, {most} meanwhile");
    beyond_the_limit(&mut scene, &end);
    scene.meet();
    end.message(&scene, first);
    scene.meet();
    end.close(&scene, first);
}

/// Connects until the descriptors are used up in the sending process; only that process has few.
fn beyond_the_limit(scene: &mut Scene, end: &End) {
    let (mut comms, mut ended) = (Vec::new(), false);
    if scene.role == 0 {
        let usual = getrlimit(Resource::Nofile);
        assert_eq!(usual.current, Some(FILES));
        while !ended {
            comms.extend(end.net.try_accept(end.listen).unwrap_or_default());
            ended = scene.is_spoken_to();
            std::thread::yield_now();
        }
        assert_eq!(scene.hear(), b"full");
    } else {
        // The other process must not run out first.
        let open = open_files().len() as u64;
        let usual = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(open + 100), ..usual }).unwrap();
        let mut handle = end.handle;
        let code = until("an error", || match end.net.try_connect(&mut handle) {
            Ok(comm) => {
                comms.extend(comm);
                if comm.is_some() {
                    handle = end.handle;
                }
                None
            }
            Err(code) => Some(code),
        });
        assert_eq!(code, ResultCode::SYSTEM_ERROR);
        assert!(logged("open files") > 0, "{:?}", LINES.lock().unwrap());
        // Descriptors of the connections closed last may still have been open when they were counted.
        assert!((90..=106).contains(&comms.len()), "{} connections with 100 descriptors", comms.len());
        setrlimit(Resource::Nofile, usual).unwrap();
        scene.say(b"full");
    }
    comms.iter().for_each(|&comm| end.close(scene, comm));
}

/// Memory of this process in bytes: resident, and its share of it.
fn memory() -> [i64; 2] {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    ["Rss:", "Pss:"].map(|name| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() << 10
    })
}

/// The memory that each of `count` objects has used since `before`.
fn each(before: [i64; 2], count: usize) -> [i64; 2] {
    let after = memory();
    [0, 1].map(|at| (after[at] - before[at]) / count as i64)
}

fn an_idle_connection_is_small(mut scene: Scene) {
    let end = End::new(&mut scene);
    // Memory of the first connections is kept, and does not count for the others.
    let warm: Vec<Comm> = (0..20).map(|_| end.connect(&scene)).collect();
    warm.iter().for_each(|&comm| end.message(&scene, comm));
    scene.meet();
    let before = memory();
    let comms: Vec<Comm> = (0..IDLE).map(|_| end.connect(&scene)).collect();
    scene.meet();
    let [unused, _] = each(before, IDLE);
    comms.iter().for_each(|&comm| end.message(&scene, comm));
    // So that later growth is not caused by fruitless polls.
    wait_elsewhere(&mut scene, &end, &warm, || true);
    let [resident, share] = each(before, IDLE);
    figure(&scene, "bytes of an idle connection, not used yet", unused);
    figure(&scene, "bytes of an idle connection, used once", resident);
    figure(&scene, "of that, its share of memory mapped by both", share);
    assert!(resident <= IDLE_MAX, "an idle connection takes {resident} bytes, at most {IDLE_MAX}");
    let busy = &comms[..BUSY];
    for len in [8, EAGER] {
        let resident = requests_in_flight(&mut scene, &end, busy, len);
        figure(&scene, &format!("bytes of a request in flight, message of {len} B"), resident);
        assert!(resident <= REQUEST_MAX, "a request in flight takes {resident} bytes, at most {REQUEST_MAX}");
    }
    for _ in 0..ROUNDS {
        busy.iter().for_each(|&comm| end.message(&scene, comm));
    }
    scene.meet();
    // All growth since then belongs to the busy connections.
    let worn = || resident + (each(before, 1)[0] - resident * IDLE as i64) / BUSY as i64;
    figure(&scene, "bytes of a connection, right after 365 messages", worn());
    let took = wait_elsewhere(&mut scene, &end, &warm, || worn() <= IDLE_MAX);
    figure(&scene, "bytes of an idle connection, after 365 messages", worn());
    figure(&scene, "milliseconds of waiting on other connections until then", took.as_millis());
    assert!(worn() <= IDLE_MAX, "a connection that was busy takes {} bytes, at most {IDLE_MAX}", worn());
    // They still work.
    for len in [EAGER, 8] {
        requests_in_flight(&mut scene, &end, busy, len);
    }
    comms.iter().chain(&warm).for_each(|&comm| end.close(&scene, comm));
}

/// Waits on two connections for messages that are not sent yet, one at each end, until `done`. Meanwhile other
/// connections release memory that only work needs. Then the messages are sent.
fn wait_elsewhere(scene: &mut Scene, end: &End, comms: &[Comm], done: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    let [first, second] = [comms[0], comms[1]];
    let mrs = [first, second].map(|comm| end.net.reg_buf(comm, &end.memory));
    // A longer message is not sent before its receive is known.
    let large = Piece { addr: end.memory.addr(), len: EAGER + 1, tag: 1, mr: mrs[1] };
    let received = (scene.role == 0).then(|| end.begin(scene, first, mrs[0], 8, 0));
    for round in 1_u64.. {
        match received {
            Some(request) => assert_eq!(end.net.try_test(request).unwrap(), None),
            None => assert!(end.net.try_send(second, large, 0).unwrap().is_none()),
        }
        let took = start.elapsed();
        // Memory released by the other end is mapped in this process, too.
        if round.is_multiple_of(1 << 12) && took > REST_MIN && (done() || took > REST_MAX) {
            break;
        }
        // Not after each poll: if many programs need the cores, a thousand yields would take seconds.
        if round.is_multiple_of(1 << 6) {
            std::thread::yield_now();
        }
    }
    let took = start.elapsed();
    scene.meet();
    let other = match received {
        Some(_) => end.net.recv(second, &[large]),
        None => end.begin(scene, first, mrs[0], 8, 0),
    };
    let last = received.unwrap_or_else(|| end.net.send(second, large));
    end.net.finish_all(&[other, last]);
    [first, second].into_iter().zip(mrs).for_each(|(comm, mr)| end.net.dereg(comm, mr).unwrap());
    took
}

/// Bytes of a message that is sent but not received yet: its receive is posted later.
fn requests_in_flight(scene: &mut Scene, end: &End, comms: &[Comm], len: usize) -> i64 {
    let mrs: Vec<_> = comms.iter().map(|&comm| end.net.reg_buf(comm, &end.memory)).collect();
    let begin = |scene: &Scene| -> Vec<Request> {
        let pairs = comms.iter().zip(&mrs);
        let many = pairs.flat_map(|(&comm, &mr)| (0..REQUESTS).map(move |at| (comm, mr, at)));
        many.map(|(comm, mr, at)| end.begin(scene, comm, mr, len, at)).collect()
    };
    scene.meet();
    let before = memory();
    // Sends first: they are eager, and wait at the receiver.
    let mut begun = if scene.role == 1 { begin(scene) } else { Vec::new() };
    scene.meet();
    if scene.role == 0 {
        begun = begin(scene);
    }
    let [resident, _] = each(before, comms.len() * REQUESTS);
    scene.meet();
    end.net.finish_all(&begun);
    comms.iter().zip(mrs).for_each(|(&comm, mr)| end.net.dereg(comm, mr).unwrap());
    resident
}

fn a_connection_is_set_up_quickly(mut scene: Scene) {
    let end = End::new(&mut scene);
    let (mut took, mut comms) = (Vec::new(), Vec::new());
    for _ in 0..220 {
        scene.meet();
        let start = Instant::now();
        comms.push(end.connect(&scene));
        took.push(start.elapsed());
    }
    // The first connections also make the control stream.
    let mut took = took.split_off(20);
    took.sort_unstable();
    let [soonest, median, most] = [0, took.len() / 2, took.len() - 1].map(|at| took[at]);
    figure(&scene, "setting a connection up, median of 200", format!("{median:?} ({soonest:?} to {most:?})"));
    scene.meet();
    comms.iter().for_each(|&comm| end.close(&scene, comm));
    assert!(soonest <= SETUP_MAX, "{soonest:?} to set a connection up, at most {SETUP_MAX:?}");
}
