//! The fuzz targets of this crate, and the inputs they begin with: bytes that arrive at a job's store and at
//! its PMI server, and where rank 0 says it is. A value that parses must print to bytes that parse to the same value.

use crate::address::Notice;
use crate::pmi::Line;
use crate::secret::Secret;
use crate::store::{Answer, Challenge, Head, Hello, Kind, Status, gathered, split};

/// A target: its name, its check and its seeds. As `trunkline_proto::fuzzing::Target`, which this crate does not know.
pub type Named = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[Named] = &[("store", store, store_seeds), ("pmi_notice", notice, notice_seeds)];

/// Runs the target of that name.
///
/// # Panics
/// When there is none, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.0 == name);
    assert!(target.is_some(), "no fuzz target {name}");
    target.into_iter().for_each(|target| target.1(bytes));
}

fn notice(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some(notice) = Notice::decode(text) else { return };
    assert!(notice.port > 0 && !notice.addresses.is_empty());
    assert_eq!(Notice::decode(&notice.encode()), Some(notice));
}

fn notice_seeds() -> Vec<Vec<u8>> {
    let notice = |port, addresses: &[&str]| {
        let addresses = addresses.iter().filter_map(|one| one.parse().ok()).collect();
        Notice { secret: Secret::of(&["job"]), port, addresses }.encode()
    };
    let one = notice(4711, &["192.0.2.7"]);
    let many = notice(65535, &["2001:db8::7", "10.0.0.1", "fe80::1", "::1", "10.0.0.2"]);
    let texts = [
        one.clone(),
        many.clone(),
        one.replacen('1', "2", 1),
        one.replace(",4711", ",0"),
        one.replace(",4711", ",65536"),
        one.replace(",192.0.2.7", ""),
        format!("{many},"),
        format!("{many},10.0.0.3,10.0.0.4,10.0.0.5,10.0.0.6"),
        one.to_uppercase(),
        String::new(),
    ];
    texts.map(String::into_bytes).to_vec()
}

/// The input's first bytes, zeros where it is too short.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let used = bytes.len().min(N);
    out[..used].copy_from_slice(&bytes[..used]);
    out
}

fn store(bytes: &[u8]) {
    let secret = Secret::of(&["job"]);
    let challenge = Challenge::decode(&padded(bytes));
    if let Some(challenge) = challenge {
        assert_eq!(Challenge::decode(&challenge.encode()), Some(challenge));
    }
    let challenge = challenge.unwrap_or(Challenge { nonce: [7; 16] });
    if let Some(hello) = Hello::decode(&padded(bytes)) {
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        // Nobody finds a proof by chance.
        let ours = Hello::new(&secret, &challenge, hello.rank, hello.size, hello.nonce);
        assert_eq!(hello.proves(&secret, &challenge), hello == ours);
    }
    if let Some(answer) = Answer::decode(&padded(bytes)) {
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
    }
    if let Some(head) = Head::decode(&padded(bytes)) {
        assert_eq!(Head::decode(&head.encode()), Some(head));
    }
    if let Some((&size, body)) = bytes.split_first()
        && let Ok(Some(parts)) = split(body, usize::from(size))
    {
        assert_eq!(parts.len(), usize::from(size));
        assert_eq!(gathered(&parts).ok().flatten().as_deref(), Some(body));
    }
    if let Some(line) = std::str::from_utf8(bytes).ok().and_then(Line::parse) {
        let _ = (line.command(), line.number("rank"), line.get("value"));
    }
}

fn store_seeds() -> Vec<Vec<u8>> {
    let secret = Secret::of(&["job"]);
    let challenge = Challenge { nonce: [7; 16] };
    let hello = Hello::new(&secret, &challenge, 3, 16, [9; 16]);
    let answer = |status| Answer::new(&secret, &challenge, &hello, status).encode().to_vec();
    let head = |kind, length| Head { kind, length, round: 5 }.encode().to_vec();
    let mut parts = vec![3];
    let gathered = gathered(&[b"one".to_vec(), Vec::new(), vec![0xff; 40]]);
    parts.extend(gathered.ok().flatten().unwrap_or_default());
    let mut garbled = challenge.encode().to_vec();
    garbled[4] = 2;
    vec![
        challenge.encode().to_vec(),
        garbled,
        hello.encode().to_vec(),
        hello.encode()[..31].to_vec(),
        answer(Status::Welcome),
        answer(Status::WrongProof),
        answer(Status::OtherSize),
        head(Kind::Gather, 1 << 20),
        head(Kind::Gathered, u32::MAX),
        head(Kind::Abort, 0),
        parts.clone(),
        parts[..parts.len() - 1].to_vec(),
        b"cmd=put kvsname=job key=a value=(vector,(0,1,2))".to_vec(),
        b"cmd=init pmi_version=1 pmi_subversion=1".to_vec(),
        b"cmd".to_vec(),
        Vec::new(),
    ]
}
