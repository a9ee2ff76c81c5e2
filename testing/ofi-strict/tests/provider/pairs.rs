//! Two processes that exchange addresses by files in a folder.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::ptr;
use std::time::{Duration, Instant};

use trunkline_sys::ofi::*;

use super::fi::{Fi, Side, close, of};
use super::{Case, finish, folder, start};

pub(crate) const CASES: &[Case] = &[
    Case { name: "one of two", env: &[("STRICT_ME", "a"), ("STRICT_PEER", "b")], violations: &[], run: talk },
    Case {
        name: "the other of two",
        env: &[("STRICT_ME", "b"), ("STRICT_PEER", "a")],
        violations: &[],
        run: talk,
    },
    Case {
        name: "a process whose peer dies",
        env: &[("STRICT_ME", "a"), ("STRICT_PEER", "b")],
        violations: &[],
        run: survive,
    },
    Case {
        name: "a process that dies",
        env: &[("STRICT_ME", "b"), ("STRICT_PEER", "a")],
        violations: &[],
        run: die,
    },
    Case {
        name: "a peer with malformed requests",
        env: &[],
        violations: &["malformed request"],
        run: nonsense,
    },
    Case {
        name: "a peer with malformed replies",
        env: &[],
        violations: &["malformed reply", "malformed reply", "malformed reply", "malformed reply"],
        run: answers,
    },
];

/// Runs all pairs, without and with disturbances.
pub(crate) fn run() {
    let rough = [("FI_STRICT_EAGAIN", "0.5"), ("FI_STRICT_REORDER", "0.3"), ("FI_STRICT_DELAY", "20")];
    for weather in [&[][..], &rough[..]] {
        for pair in [&CASES[..2], &CASES[2..4]] {
            let (folder, reports) = (folder(), ["report-a", "report-b"]);
            let begin =
                |at: usize| start(&pair[at], folder.path(), &folder.path().join(reports[at]), weather);
            let both = [begin(0), begin(1)];
            for (case, child) in pair.iter().zip(both) {
                let (is_good, said) = finish(case, child);
                assert_eq!(is_good, case.name != "a process that dies", "{}: {said}", case.name);
                assert!(!said.contains("strict: violation"), "{}: {said}", case.name);
            }
            let report = std::fs::read_to_string(folder.path().join(reports[0])).unwrap();
            accounts(&report, pair[0].name);
        }
    }
    super::check(&CASES[4]);
    super::check(&CASES[5]);
}

/// Checks the account of a process.
fn accounts(report: &str, name: &str) {
    let line = report.lines().find(|line| line.starts_with('{')).expect("the report contains an account");
    let account: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(account["strict"], "domain", "{line}");
    assert_eq!(account["live"]["endpoints"], 0, "{line}");
    assert_eq!(account["violations"], 0, "{line}");
    if name == "one of two" {
        let made = &account["registrations"][0];
        assert_eq!((made["endpoint"].as_u64(), made["count"].as_u64()), (Some(0), Some(1)), "{line}");
        assert_eq!(made["rights"], "WRITE|REMOTE_WRITE", "{line}");
        assert_eq!(account["most_entries"], 2, "{line}");
        assert_eq!(account["operations"]["writedata"], ROUNDS, "{line}");
    }
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(std::env::var("STRICT_FOLDER").unwrap()).join(name)
}

/// Passes bytes to the peer, and returns the peer's bytes.
fn exchange(what: &str, bytes: &[u8]) -> Vec<u8> {
    let (me, peer) = (std::env::var("STRICT_ME").unwrap(), std::env::var("STRICT_PEER").unwrap());
    let (whole, part) = (file(&format!("{what}-{me}")), file(&format!("{what}-{me}.part")));
    std::fs::write(&part, bytes).unwrap();
    std::fs::rename(&part, &whole).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Ok(bytes) = std::fs::read(file(&format!("{what}-{peer}"))) {
            return bytes;
        }
        assert!(Instant::now() < end, "the peer did not publish its {what} within 30 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Exchanges addresses, and inserts the peer's.
fn meet(side: &Side) -> Addr {
    let name: [u8; 16] = exchange("name", &side.name).try_into().unwrap();
    side.knows(&name)
}

const ROUNDS: u64 = 1000;

/// Both processes write with data into each other's memory, round by round.
fn talk() {
    let net = Fi::open().net(|_| ());
    let side = net.side();
    let peer = meet(&side);
    let memory = vec![1_u8; 2 << 20];
    let (mine, theirs) = memory.split_at(1 << 20);
    let mr = net.ready(&side, &memory, caps::WRITE | caps::REMOTE_WRITE, 0);
    let key = exchange("key", &of(mr).1.to_le_bytes());
    let key = u64::from_le_bytes(key.try_into().unwrap());
    let (mut acknowledged, mut told) = (0, Vec::new());
    let length = |round: u64| if round.is_multiple_of(100) { 1 << 20 } else { (round as usize * 37) % 5000 };
    for round in 0..ROUNDS {
        let len = length(round);
        let (place, desc) = ((1 << 20, key), of(mr).0);
        let rc = side.post(&[], || side.writedata(&mine[..len], desc, round, peer, place, 7));
        assert_eq!(rc, 0);
        // The peer may be a round ahead before the completion of our own write arrives.
        while acknowledged <= round || told.len() as u64 <= round {
            let entry = side.next(&[]).unwrap().0;
            if entry.flags & caps::REMOTE_CQ_DATA == 0 {
                assert_eq!(entry.op_context as usize, 7);
                acknowledged += 1;
            } else {
                told.push((entry.data, entry.len));
            }
        }
    }
    assert_eq!(told, (0..ROUNDS).map(|round| (round, length(round))).collect::<Vec<_>>());
    assert!(theirs.iter().all(|byte| *byte == 1));
    exchange("done", &[]);
    // The peer may still wait for a reply, which needs our progress.
    (0..100).for_each(|_| side.poll());
    assert_eq!(close(mr), 0);
    side.close();
    net.close();
}

/// Checks that operations to a dead peer end with errors, and that other operations succeed.
fn survive() {
    let net = Fi::open().net(|_| ());
    let side = net.side();
    let (peer, myself) = (meet(&side), side.knows(&side.name));
    let mut into = [0_u8; 8];
    // The peer dies once it has received this message, and reads no further one.
    assert_eq!(side.post(&[], || side.send(&[1; 8], ptr::null_mut(), peer, 1)), 0);
    // Its reply may or may not have arrived.
    let _ = side.next(&[]);
    for context in 2..10 {
        assert_eq!(side.post(&[], || side.send(&[1; 8], ptr::null_mut(), peer, context)), 0);
    }
    let mut contexts = Vec::new();
    for _ in 2..10 {
        let error = side.error(&[]);
        assert!([errno::ECONNRESET, errno::ECONNREFUSED].contains(&error.err), "{}", error.err);
        contexts.push(error.op_context as usize);
    }
    contexts.sort_unstable();
    assert_eq!(contexts, (2..10).collect::<Vec<_>>());
    assert_eq!(side.post(&[], || side.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 10)), 0);
    assert_eq!(side.post(&[], || side.send(&[3; 8], ptr::null_mut(), myself, 11)), 0);
    side.next(&[]).unwrap();
    side.next(&[]).unwrap();
    assert_eq!(into, [3; 8]);
    side.close();
    net.close();
}

fn die() {
    let net = Fi::open().net(|_| ());
    let side = net.side();
    meet(&side);
    let mut into = [0_u8; 8];
    assert_eq!(side.post(&[], || side.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1)), 0);
    side.next(&[]).unwrap();
    std::process::abort();
}

/// Connects to an endpoint without being an endpoint.
pub(crate) fn stranger(name: &[u8; 16]) -> UnixStream {
    UnixStream::connect_addr(&place(name)).unwrap()
}

fn place(name: &[u8; 16]) -> SocketAddr {
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("strict-fi/{name}")).unwrap()
}

/// Checks that a malformed reply ends the operation with an error and causes a violation.
fn answers() {
    use std::io::{Read as _, Write as _};
    let net = Fi::open().net(|_| ());
    let side = net.side();
    // No frame; the end of an unknown operation; data for an operation that is not a read; the end of an operation
    // that is not completely sent.
    let nonsense = [
        [b'x'; 56].to_vec(),
        [b"STR1".as_slice(), &[5, 0, 0, 0], &[99, 0, 0, 0], &[0; 44]].concat(),
        [b"STR1".as_slice(), &[6, 0, 0, 0], &[1, 0, 0, 0], &[0; 36], &[1, 0, 0, 0, 0, 0, 0, 0]].concat(),
        [b"STR1".as_slice(), &[5, 0, 0, 0], &[1, 0, 0, 0], &[0; 44]].concat(),
    ];
    let payload = vec![1_u8; 4 << 20];
    for (at, bytes) in nonsense.into_iter().enumerate() {
        let len = if at < 3 { 8 } else { payload.len() };
        let name = [at as u8 + 1; 16];
        let listener = UnixListener::bind_addr(&place(&name)).unwrap();
        let peer = side.knows(&name);
        assert_eq!(side.send(&payload[..len], ptr::null_mut(), peer, at + 1), 0);
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 56 + 56 + 8]).unwrap();
        stream.write_all(&bytes).unwrap();
        let error = side.error(&[]);
        assert_eq!((error.op_context as usize, error.err), (at + 1, errno::ECONNRESET));
    }
    side.close();
    net.close();
}

/// Checks that a malformed request causes a violation and does not disturb other operations.
fn nonsense() {
    use std::io::Write as _;
    let net = Fi::open().net(|_| ());
    let side = net.side();
    let mut stranger = stranger(&side.name);
    stranger.write_all(&[b'x'; 100]).unwrap();
    assert!(side.is_quiet(&[]));
    let myself = side.knows(&side.name);
    let mut into = [0_u8; 1];
    assert_eq!(side.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1), 0);
    assert_eq!(side.send(&[3], ptr::null_mut(), myself, 2), 0);
    side.ok(&[]);
    side.ok(&[]);
    side.close();
    net.close();
}
