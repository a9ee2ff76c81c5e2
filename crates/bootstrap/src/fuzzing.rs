//! What the fuzz target `store` does with its input, and the inputs it begins with: what comes to a job's store and to
//! its PMI server. Whatever parses must print to what parses to the same.

use crate::pmi::Line;
use crate::secret::Secret;
use crate::store::{Answer, Challenge, Head, Hello, Kind, Status, gathered, split};

/// The input's first bytes, zeros where it is too short.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let used = bytes.len().min(N);
    out[..used].copy_from_slice(&bytes[..used]);
    out
}

/// Takes any bytes.
///
/// # Panics
/// When the code under test is wrong.
pub fn store(bytes: &[u8]) {
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
        && let Some(parts) = split(body, usize::from(size))
    {
        assert_eq!(parts.len(), usize::from(size));
        assert_eq!(gathered(&parts).as_deref(), Some(body));
    }
    if let Some(line) = std::str::from_utf8(bytes).ok().and_then(Line::parse) {
        let _ = (line.command(), line.number("rank"), line.get("value"));
    }
}

/// The inputs that `cargo xtask corpus` writes, the same each time.
#[must_use]
pub fn store_seeds() -> Vec<Vec<u8>> {
    let secret = Secret::of(&["job"]);
    let challenge = Challenge { nonce: [7; 16] };
    let hello = Hello::new(&secret, &challenge, 3, 16, [9; 16]);
    let answer = |status| Answer::new(&secret, &challenge, &hello, status).encode().to_vec();
    let head = |kind, length| Head { kind, length, round: 5 }.encode().to_vec();
    let mut parts = vec![3];
    parts.extend(gathered(&[b"one".to_vec(), Vec::new(), vec![0xff; 40]]).unwrap_or_default());
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
