//! Jobs whose processes are threads, over real TCP.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use rustix::process::{Resource, Rlimit};

use super::*;
use crate::placement::SecretSource;
use crate::store::{ACCEPTS, StoreChallenge};

thread_local! {
    /// The most bytes of other ranks that this thread held at once as rank 0 of an exchange.
    pub(super) static HELD_MOST: Cell<usize> = const { Cell::new(0) };
}

const LIMIT: Duration = Duration::from_secs(20);

/// Returns a port whose window no other test uses.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = (std::process::id() % 500) as u16;
    // Below the system's ephemeral range.
    10_000 + (process * 40 + NEXT.fetch_add(10, Ordering::Relaxed)) % 20_000
}

fn environment(rank: usize, size: usize, port: u16, secret: &str) -> JobEnvironment {
    let place = JobPlacement { rank, size, local_rank: None, local_size: None };
    let (secret, source) = (JobSecret::from_texts(&[secret]), SecretSource::Random);
    let meeting = RendezvousMethod::At { host: "127.0.0.1".into(), port, secret, source };
    JobEnvironment { launcher: Launcher::Torchrun, place: Some(place), meeting }
}

/// Runs a job of threads; returns their results by rank.
fn job<T: Send + 'static>(
    size: usize,
    port: u16,
    body: impl Fn(Result<JobBootstrap, JoinError>) -> T + Send + Clone + 'static,
) -> Vec<T> {
    let threads: Vec<_> = (0..size)
        .map(|rank| {
            let body = body.clone();
            thread::spawn(move || body(JobBootstrap::join(&environment(rank, size, port, "job"), LIMIT)))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn all_gather_returns_the_bytes_of_each_rank() {
    let seen = job(5, port(), |joined| {
        let mut job = joined.unwrap();
        let rank = job.job_placement().rank;
        job.barrier(LIMIT).unwrap();
        let first = job.all_gather(format!("rank {rank}").as_bytes(), LIMIT).unwrap();
        let second = job.all_gather(&vec![rank as u8; rank * 100_000], LIMIT).unwrap();
        (first, second)
    });
    for (first, second) in seen {
        for rank in 0..5 {
            assert_eq!(first[rank], format!("rank {rank}").as_bytes());
            assert_eq!(second[rank], vec![rank as u8; rank * 100_000]);
        }
    }
}

#[test]
fn taken_streams_are_blocking() {
    let heard = job(3, port(), |joined| {
        let mut job = joined.unwrap();
        job.barrier(LIMIT).unwrap();
        match job.into_streams().unwrap() {
            JobStreams::Member(mut stream) => {
                thread::sleep(Duration::from_millis(50));
                stream.write_all(b"hello").unwrap();
                0
            }
            JobStreams::Center(members) => {
                assert!(members[0].is_none());
                members
                    .iter()
                    .flatten()
                    .map(|mut stream| {
                        let mut bytes = Vec::new();
                        stream.read_to_end(&mut bytes).unwrap();
                        bytes.len()
                    })
                    .sum()
            }
        }
    });
    assert_eq!(heard, [10, 0, 0]);
}

#[test]
fn unauthenticated_peers_are_refused_without_delaying_the_job() {
    let port = port();
    let center = thread::spawn(move || JobBootstrap::join(&environment(0, 2, port, "job"), LIMIT));
    let stranger = environment(1, 2, port, "guess");
    let refused = JobBootstrap::join(&stranger, Duration::from_secs(1)).unwrap_err().to_string();
    assert!(refused.contains("another secret"), "{refused}");
    // Silent peers, random bytes, and a peer that guesses and closes at once must not delay the job either.
    let places = || address::resolve_host("127.0.0.1", port_window(port)).unwrap();
    let connect = || places().into_iter().find_map(|place| TcpStream::connect(place).ok()).unwrap();
    let silent: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
    connect().write_all(&[0x55; 200]).unwrap();
    drop(connect());
    let member = JobBootstrap::join(&environment(1, 2, port, "job"), LIMIT).unwrap();
    let center = center.join().unwrap().unwrap();
    drop((silent, member, center));
}

#[test]
fn member_skips_the_store_of_another_job() {
    let port = port();
    let other = thread::spawn(move || JobBootstrap::join(&environment(0, 2, port, "other"), LIMIT));
    let connected = |port| TcpStream::connect(("127.0.0.1", port)).is_ok();
    while !connected(port + 1) {
        thread::sleep(Duration::from_millis(1));
    }
    // A port of the window may also belong to a listener that is not a store.
    let plain = TcpListener::bind(("127.0.0.1", port + 2)).unwrap();
    plain.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        let closing = Instant::now();
        while closing.elapsed() < LIMIT {
            drop(plain.accept());
            thread::sleep(Duration::from_millis(1));
        }
    });
    let joined = job(2, port, |joined| joined.unwrap().barrier(LIMIT));
    assert!(joined.iter().all(Result::is_ok), "{joined:?}");
    JobBootstrap::join(&environment(1, 2, port, "other"), LIMIT).unwrap();
    other.join().unwrap().unwrap();
}

#[test]
fn duplicate_ranks_and_other_sizes_are_reported() {
    let port = port();
    let center = thread::spawn(move || JobBootstrap::join(&environment(0, 3, port, "job"), LIMIT));
    let first = JobBootstrap::join(&environment(1, 3, port, "job"), LIMIT).unwrap();
    let twin = JobBootstrap::join(&environment(1, 3, port, "job"), LIMIT).unwrap_err();
    assert!(matches!(twin, JoinError::Taken { rank: 1, .. }), "{twin}");
    let other = JobBootstrap::join(&environment(2, 4, port, "job"), LIMIT).unwrap_err();
    assert!(matches!(other, JoinError::OtherSize { size: 4, .. }), "{other}");
    // A rank whose process has ended may connect again.
    drop(first);
    thread::sleep(Duration::from_millis(50));
    let again = JobBootstrap::join(&environment(1, 3, port, "job"), LIMIT).unwrap();
    let last = JobBootstrap::join(&environment(2, 3, port, "job"), LIMIT).unwrap();
    center.join().unwrap().unwrap();
    drop((again, last));
}

#[test]
fn missing_ranks_are_named_to_connected_ranks() {
    let port = port();
    let second = Duration::from_secs(1);
    let center = thread::spawn(move || JobBootstrap::join(&environment(0, 3, port, "job"), second));
    let mut here = JobBootstrap::join(&environment(2, 3, port, "job"), LIMIT).unwrap();
    let error = here.barrier(LIMIT).unwrap_err().to_string();
    assert!(error.contains("rank 1 did not connect"), "{error}");
    let error = center.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("rank 1 did not connect within 1 s"), "{error}");
    let error = JobBootstrap::join(&environment(1, 3, port, "job"), second).unwrap_err().to_string();
    assert!(error.contains("did not find rank 0 within 1 s") && error.contains("refused"), "{error}");
}

#[test]
fn exchange_fails_at_once_when_a_process_leaves() {
    let begun = Instant::now();
    let errors = job(3, port(), |joined| {
        let mut job = joined.unwrap();
        if job.job_placement().rank == 2 {
            return String::new();
        }
        job.barrier(LIMIT).unwrap_err().to_string()
    });
    assert!(errors[0].starts_with("rank 2: its connection has ended"), "{errors:?}");
    assert!(errors[1].starts_with("rank 0 aborted the exchange: rank 2: "), "{errors:?}");
    assert!(begun.elapsed() < LIMIT);
}

#[test]
fn other_rounds_and_too_many_bytes_are_refused() {
    let errors = job(2, port(), |joined| {
        let mut job = joined.unwrap();
        if job.job_placement().rank == 1 {
            job.round = 5;
        }
        let too_much = vec![0; GIVEN_BYTES_MAX + 1];
        assert!(matches!(job.all_gather(&too_much, LIMIT), Err(ExchangeError::TooLarge { .. })));
        job.barrier(LIMIT).unwrap_err().to_string()
    });
    assert!(errors[0].contains("another exchange round"), "{errors:?}");
}

#[test]
fn exchange_fails_at_its_time_limit() {
    let begun = Instant::now();
    let errors = job(2, port(), |joined| {
        let mut job = joined.unwrap();
        if job.job_placement().rank == 1 {
            thread::sleep(Duration::from_secs(2));
            return String::new();
        }
        job.barrier(Duration::from_millis(200)).unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 1: no answer before the deadline"), "{errors:?}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn rank_0_buffers_at_most_the_exchange_limit() {
    let ranks = GATHERED_BYTES_MAX / GIVEN_BYTES_MAX + 8;
    let seen = job(ranks, port(), |joined| {
        let error = joined.unwrap().all_gather(&vec![1; GIVEN_BYTES_MAX], 3 * LIMIT).unwrap_err();
        (error.to_string(), HELD_MOST.get())
    });
    let total = format!("{} bytes in one exchange", ranks * (GIVEN_BYTES_MAX + 4));
    for (rank, (error, held)) in seen.into_iter().enumerate() {
        assert!(error.contains(&total), "rank {rank}: {error}");
        assert!(held <= GATHERED_BYTES_MAX, "rank {rank} held {held} bytes");
    }
}

/// Checks rank 0 without free descriptors, in a child process whose limits affect no other test.
#[test]
fn rank_0_without_descriptors_names_the_cause() {
    const CHILD: &str = "TRUNKLINE_TEST_DESCRIPTORS";
    if std::env::var_os(CHILD).is_some() {
        return meet_without_descriptors();
    }
    let name = "bootstrap::tests::rank_0_without_descriptors_names_the_cause";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{:?}", output.stderr);
}

fn meet_without_descriptors() {
    let port = port();
    let limit = Duration::from_secs(3);
    let rank_0 = |limit| {
        thread::spawn(move || {
            let joined = JobBootstrap::join(&environment(0, 2, port, "job"), limit);
            (joined, ACCEPTS.get())
        })
    };
    // A connection waits in the listener's queue when the last descriptor is used up.
    let knock = || port_window(port).find_map(|port| TcpStream::connect(("127.0.0.1", port)).ok());
    let center = rank_0(limit);
    let mut first = loop {
        if let Some(stream) = knock() {
            break stream;
        }
        assert!(!center.is_finished(), "rank 0 did not listen");
    };
    first.read_exact(&mut [0; StoreChallenge::BYTES]).unwrap();
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(40), maximum: Some(40) }).unwrap();
    let mut held: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    held.pop();
    let waiting = knock().unwrap();
    let (joined, accepts) = center.join().unwrap();
    let error = joined.unwrap_err();
    assert!(matches!(error, JoinError::Unaccepted { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("rank 1") && text.contains("Too many open files") && text.contains("ulimit -n"),
        "{text}"
    );
    assert!(accepts < 100, "rank 0 tried to accept {accepts} times");
    // The join continues once descriptors are free again.
    drop((first, waiting));
    held.truncate(held.len() / 2);
    let center = rank_0(LIMIT);
    let member = JobBootstrap::join(&environment(1, 2, port, "job"), LIMIT).unwrap();
    center.join().unwrap().0.unwrap();
    drop((member, held));
}
