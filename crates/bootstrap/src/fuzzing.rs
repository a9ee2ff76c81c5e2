//! The fuzz targets of this crate, and their seed inputs: bytes that arrive at a job's store and at its PMI server,
//! and rank 0's address. A value that parses must print to bytes that parse to the same value.

use crate::address::RendezvousAddress;
use crate::pmi::PmiLine;
use crate::secret::JobSecret;
use crate::store::{
    JoinStatus, StoreAnswer, StoreChallenge, StoreFrameHeader, StoreFrameKind, StoreHello, decode_gathered,
    encode_gathered,
};

/// A target: its name, its check and its seeds. Mirrors `trunkline_proto::fuzzing::FuzzTarget`, which this crate does
/// not use.
pub type BootstrapFuzzTarget = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[BootstrapFuzzTarget] =
    &[("store", fuzz_store_frames, store_seeds), ("pmi_notice", fuzz_rendezvous_address, notice_seeds)];

/// Runs the target of that name on an input.
///
/// # Panics
/// If the target is unknown, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.0 == name);
    assert!(target.is_some(), "no fuzz target {name}");
    target.into_iter().for_each(|target| target.1(bytes));
}

fn fuzz_rendezvous_address(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some(notice) = RendezvousAddress::decode(text) else { return };
    assert!(notice.port > 0 && !notice.addresses.is_empty());
    assert_eq!(RendezvousAddress::decode(&notice.encode()), Some(notice));
}

fn notice_seeds() -> Vec<Vec<u8>> {
    let notice = |port, addresses: &[&str]| {
        let addresses = addresses.iter().filter_map(|one| one.parse().ok()).collect();
        RendezvousAddress { secret: JobSecret::from_texts(&["job"]), port, addresses }.encode()
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

/// Returns the input's first bytes, padded with zeros.
fn pad_array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let used = bytes.len().min(N);
    out[..used].copy_from_slice(&bytes[..used]);
    out
}

fn fuzz_store_frames(bytes: &[u8]) {
    let secret = JobSecret::from_texts(&["job"]);
    let challenge = StoreChallenge::decode(&pad_array(bytes));
    if let Some(challenge) = challenge {
        assert_eq!(StoreChallenge::decode(&challenge.encode()), Some(challenge));
    }
    let challenge = challenge.unwrap_or(StoreChallenge { nonce: [7; 16] });
    if let Some(hello) = StoreHello::decode(&pad_array(bytes)) {
        assert_eq!(StoreHello::decode(&hello.encode()), Some(hello));
        // A random input cannot contain a valid proof, so a proof is valid only if it equals ours.
        let ours = StoreHello::new(&secret, &challenge, hello.rank, hello.size, hello.nonce);
        assert_eq!(hello.verify_proof(&secret, &challenge), hello == ours);
    }
    if let Some(answer) = StoreAnswer::decode(&pad_array(bytes)) {
        assert_eq!(StoreAnswer::decode(&answer.encode()), Some(answer));
    }
    if let Some(head) = StoreFrameHeader::decode(&pad_array(bytes)) {
        assert_eq!(StoreFrameHeader::decode(&head.encode()), Some(head));
    }
    if let Some((&size, body)) = bytes.split_first()
        && let Ok(Some(parts)) = decode_gathered(body, usize::from(size))
    {
        assert_eq!(parts.len(), usize::from(size));
        assert_eq!(encode_gathered(&parts).ok().flatten().as_deref(), Some(body));
    }
    if let Some(line) = std::str::from_utf8(bytes).ok().and_then(PmiLine::parse) {
        let _ = (line.command(), line.parse_number("rank"), line.get("value"));
    }
}

fn store_seeds() -> Vec<Vec<u8>> {
    let secret = JobSecret::from_texts(&["job"]);
    let challenge = StoreChallenge { nonce: [7; 16] };
    let hello = StoreHello::new(&secret, &challenge, 3, 16, [9; 16]);
    let answer = |status| StoreAnswer::new(&secret, &challenge, &hello, status).encode().to_vec();
    let head = |kind, length| StoreFrameHeader { kind, length, round: 5 }.encode().to_vec();
    let mut parts = vec![3];
    let gathered = encode_gathered(&[b"one".to_vec(), Vec::new(), vec![0xff; 40]]);
    parts.extend(gathered.ok().flatten().unwrap_or_default());
    let mut garbled = challenge.encode().to_vec();
    garbled[4] = 2;
    vec![
        challenge.encode().to_vec(),
        garbled,
        hello.encode().to_vec(),
        hello.encode()[..31].to_vec(),
        answer(JoinStatus::Welcome),
        answer(JoinStatus::WrongProof),
        answer(JoinStatus::OtherSize),
        head(StoreFrameKind::Gather, 1 << 20),
        head(StoreFrameKind::Gathered, u32::MAX),
        head(StoreFrameKind::Abort, 0),
        parts.clone(),
        parts[..parts.len() - 1].to_vec(),
        b"cmd=put kvsname=job key=a value=(vector,(0,1,2))".to_vec(),
        b"cmd=init pmi_version=1 pmi_subversion=1".to_vec(),
        b"cmd".to_vec(),
        Vec::new(),
    ]
}
