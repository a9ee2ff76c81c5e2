//! A peer that writes anything anywhere in the shared segment, or sends any address: an error on the link, never a
//! panic, never a byte in memory it has no key for.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use std::os::unix::fs::FileExt;

use common::{Random, connect, poll, rail};
use proptest::prelude::*;
use trunkline_fabric::{
    AccessRights, LinkAddress, LinkControl, LinkError, Op, OpSource, OpStatus, PassedFd, PeerProcess,
    PostError, Rail, RegionExtent, RegionPurpose,
};
use trunkline_mem::MemoryRange;
use trunkline_softnic::{CopyMode, SoftConfig};

const SLOTS_AT: u64 = 4096;

fn small() -> SoftConfig {
    SoftConfig { slots: 16, payload: 4096, segment: 1024, ..SoftConfig::default() }
}

/// One victim with posted work, whose segment is then overwritten by `scribble`.
fn attack(scribble: impl Fn(&std::fs::File, &mut Random), seed: u64) -> Vec<OpStatus> {
    let (mut a, mut b) = (rail(small()), rail(small()));
    let (at_a, at_b) = connect(&mut a, &mut b);
    let secret = MemoryRange::heap(4096);
    let registrar = a.registrar();
    let keys = registrar.register(&secret, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
    let into = MemoryRange::heap(4096);
    let into_keys = registrar.register(&into, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap();
    let extent = |len| RegionExtent { key: into_keys.local, offset: 0, len };
    let far =
        b.registrar().register(&MemoryRange::heap(4096), AccessRights::ALL, RegionPurpose::Bounce).unwrap();
    let from = trunkline_fabric::RemoteLocation {
        key: far.remote,
        addr: far.remote_base,
        purpose: RegionPurpose::Data,
    };
    a.post(at_a, 1, Op::Recv { into: extent(64) }, true).unwrap();
    a.post(at_a, 2, Op::Read { into: extent(64), from }, true).unwrap();
    a.post(at_a, 3, Op::MatchedRecv { into: extent(64), key: trunkline_fabric::MatchKey(4) }, true).unwrap();
    a.post(
        at_a,
        4,
        Op::MatchedSend { from: OpSource::Inline(&[1]), key: trunkline_fabric::MatchKey(9) },
        true,
    )
    .unwrap();
    a.post(at_a, 5, Op::Send { head: &[1], body: OpSource::Inline(&[]), imm: None }, true).unwrap();
    let file = std::fs::File::from(a.link_address(at_a).unwrap().fd.unwrap().fd);
    let victim = std::fs::File::from(b.link_address(at_b).unwrap().fd.unwrap().fd);
    let mut random = Random(seed | 1);
    let mut seen = Vec::new();
    for _ in 0..40 {
        scribble(&file, &mut random);
        scribble(&victim, &mut random);
        for _ in 0..4 {
            seen.extend(poll(&mut a).into_iter().map(|one| one.status));
        }
    }
    assert_eq!(secret.load(0), Ok(0), "memory was written without its key");
    let mut past = vec![0; 4096 - 64];
    into.read(64, &mut past).unwrap();
    assert!(past.iter().all(|byte| *byte == 0), "bytes outside the receives were written");
    registrar.deregister(keys.local).unwrap();
    registrar.deregister(into_keys.local).unwrap();
    seen
}

#[test]
fn random_segment_bytes_touch_no_other_memory() {
    for seed in 1..200 {
        attack(
            |file, random| {
                let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
                for chunk in bytes.chunks_mut(8) {
                    chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
                }
                file.write_at(&bytes, 0).unwrap();
            },
            seed,
        );
    }
}

#[test]
fn random_records_touch_no_other_memory() {
    let mut errors = 0;
    for seed in 1..2000 {
        let seen = attack(
            |file, random| {
                for slot in 0..16u64 {
                    let mut bytes = [0; 128];
                    for chunk in bytes.chunks_mut(8) {
                        // Small numbers are frequent, because they are valid offsets and lengths.
                        let shift = random.next() % 64;
                        chunk.copy_from_slice(&(random.next() >> shift).to_le_bytes());
                    }
                    bytes[..8].copy_from_slice(&(slot + 1).to_le_bytes());
                    bytes[8] = (random.next() % 11) as u8;
                    bytes[9] = (random.next() % 4) as u8;
                    bytes[10] = (random.next() % 5) as u8;
                    bytes[11] = (random.next() % 100) as u8;
                    file.write_at(&bytes, SLOTS_AT + slot * 128).unwrap();
                }
            },
            seed,
        );
        errors += usize::from(seen.iter().any(|status| !matches!(status, OpStatus::Ok | OpStatus::Flushed)));
    }
    assert!(errors > 100, "too few errors were reported: {errors}");
}

/// Returns the words of a write to a region at `key` that names its payload elsewhere, `len` bytes of it; `form` as
/// in docs/wire.md.
fn write_record(position: u64, form: u64, key: u64, len: u64) -> Vec<u8> {
    const WRITE: u64 = 1;
    let at = if form == 2 { [0, 0, len, 0] } else { [0x1000, len, 0, 0] };
    let words = [position + 1, WRITE | form << 16, key, 0, at[0], at[1], at[2], at[3]];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn record_lengths_that_overflow_are_refused() {
    for form in [2, 3, 4] {
        let (mut a, mut b) = (rail(small()), rail(small()));
        let (at_a, _) = connect(&mut a, &mut b);
        let registrar = a.registrar();
        let keys =
            registrar.register(&MemoryRange::heap(4096), AccessRights::ALL, RegionPurpose::Bounce).unwrap();
        // Writes to a retired region are dropped, so no region bounds their lengths.
        registrar.retire(keys.local).unwrap();
        let into = registrar
            .register(&MemoryRange::heap(64), AccessRights::LOCAL, RegionPurpose::Bounce)
            .unwrap()
            .local;
        a.post(at_a, 1, Op::Recv { into: RegionExtent { key: into, offset: 0, len: 64 } }, true).unwrap();
        let file = std::fs::File::from(a.link_address(at_a).unwrap().fd.unwrap().fd);
        for position in 0..2 {
            let record = write_record(position, form, keys.remote.0, u64::MAX);
            file.write_at(&record, SLOTS_AT + position * 128).unwrap();
        }
        let status = common::poll_until("the error", || poll(&mut a).first().map(|one| one.status));
        assert_ne!(status, OpStatus::Ok, "payload form {form}");
        let executed = u64::from_le_bytes({
            let mut word = [0; 8];
            file.read_exact_at(&mut word, 128).unwrap();
            word
        });
        assert_eq!(executed, 0, "payload form {form}: the first record was executed");
    }
}

#[test]
fn impossible_progress_is_an_error() {
    let (mut a, mut b) = (rail(small()), rail(small()));
    let (at_a, at_b) = connect(&mut a, &mut b);
    a.post(at_a, 4, Op::Send { head: &[1], body: OpSource::Inline(&[]), imm: None }, true).unwrap();
    // The word in which `b` publishes its executed position.
    let file = std::fs::File::from(b.link_address(at_b).unwrap().fd.unwrap().fd);
    file.write_at(&1000u64.to_le_bytes(), 128).unwrap();
    let status = common::poll_until("the error", || poll(&mut a).first().map(|one| one.status));
    assert!(matches!(status, OpStatus::Other(_)));
    assert_eq!(a.post(at_a, 1, Op::Nop, true), Err(PostError::Refused(OpStatus::Flushed)));
}

#[test]
fn unsealed_and_short_segments_are_refused() {
    let (mut a, b) = (rail(small()), rail(small()));
    let mut b = b;
    let at_b = b.create_link().unwrap();
    let bytes = b.link_address(at_b).unwrap().bytes;
    let unsealed = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 1 << 20).unwrap();
    let other = rail(SoftConfig::default());
    let mut other = other;
    let at_other = other.create_link().unwrap();
    let wrong_size = other.link_address(at_other).unwrap().fd;
    let pipe = rustix::pipe::pipe().unwrap().0;
    for fd in [Some(unsealed.into()), wrong_size, Some(pipe.into())] {
        let link = a.create_link().unwrap();
        let refused = a.connect(link, LinkAddress { bytes: bytes.clone(), fd });
        assert!(matches!(refused, Err(LinkError::Address(_))), "{refused:?}");
        a.destroy_link(link);
    }
    let link = a.create_link().unwrap();
    let refused = a.connect(link, LinkAddress { bytes, fd: None });
    assert!(matches!(refused, Err(LinkError::Unreachable(_))));
}

proptest! {
    #[test]
    fn any_address_is_accepted_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..256),
        at in 0usize..80,
        byte: u8,
        garbled: bool,
    ) {
        let (mut a, mut b) = (rail(small()), rail(small()));
        let (at_a, at_b) = (a.create_link().unwrap(), b.create_link().unwrap());
        let mut address = b.link_address(at_b).unwrap();
        if garbled { address.bytes = bytes } else { address.bytes[at] = byte }
        if a.connect(at_a, address).is_ok() {
            let _ = a.post(at_a, 1, Op::Send { head: &[1], body: OpSource::Inline(&[]), imm: None }, true);
            poll(&mut a);
            poll(&mut b);
        }
    }
}

/// A descriptor as a control stream returns it for a process with that number; `None` if the kernel does not name the
/// process.
fn sent_by(pid: Option<u32>, passed: PassedFd) -> PassedFd {
    PassedFd { fd: passed.fd, sender: pid.and_then(|pid| PeerProcess::new(pid, None)) }
}

#[test]
fn a_repeated_own_address_is_refused() {
    let (mut a, mut other) = (rail(small()), rail(small()));
    let (told, at_other) = (a.create_link().unwrap(), other.create_link().unwrap());
    let bytes = a.link_address(told).unwrap().bytes;
    // An attacker can repeat an address of this process, with a ring that the attacker writes itself.
    let parent = std::os::unix::process::parent_id();
    for sender in [Some(parent), None] {
        let ring = other.link_address(at_other).unwrap().fd.unwrap();
        let link = a.create_link().unwrap();
        let fd = Some(sent_by(sender, ring));
        let refused = a.connect(link, LinkAddress { bytes: bytes.clone(), fd });
        assert!(matches!(refused, Err(LinkError::Address(_))), "sent by {sender:?}: {refused:?}");
        a.destroy_link(link);
    }
    // A link that does not exist (any more) is not a link of this process either.
    let (gone, link) = (a.create_link().unwrap(), a.create_link().unwrap());
    let of_gone = a.link_address(gone).unwrap();
    a.destroy_link(gone);
    let refused = a.connect(link, of_gone);
    assert!(matches!(refused, Err(LinkError::Address(_))), "{refused:?}");
}

#[test]
fn each_link_has_its_own_proof() {
    let mut a = rail(small());
    let links = [a.create_link().unwrap(), a.create_link().unwrap()];
    let proofs = links.map(|link| a.link_address(link).unwrap().bytes[64..80].to_vec());
    assert_ne!(proofs[0][..8], proofs[1][..8], "at another address");
    assert_ne!(proofs[0][8..], proofs[1][8..], "another word");
}

#[test]
fn process_without_the_proof_is_not_read() {
    let config = SoftConfig { copy: CopyMode::Pull, ..SoftConfig::default() };
    let (mut a, mut b) = (rail(config.clone()), rail(config));
    let (at_a, at_b) = (a.create_link().unwrap(), b.create_link().unwrap());
    // The kernel names a process that contains neither link: both are in this one.
    let parent = Some(std::os::unix::process::parent_id());
    let sent = |LinkAddress { bytes, fd }| LinkAddress { bytes, fd: fd.map(|fd| sent_by(parent, fd)) };
    a.connect(at_a, sent(b.link_address(at_b).unwrap())).unwrap();
    b.connect(at_b, sent(a.link_address(at_a).unwrap())).unwrap();
    let (from, to) = (MemoryRange::heap(1 << 20), MemoryRange::heap(1 << 20));
    from.write(0, &[7; 1 << 20]).unwrap();
    let local = b.registrar().register(&from, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap().local;
    let remote = a.registrar().register(&to, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
    let from = OpSource::Region(RegionExtent { key: local, offset: 0, len: 1 << 20 });
    let to_far = trunkline_fabric::RemoteLocation {
        key: remote.remote,
        addr: remote.remote_base,
        purpose: RegionPurpose::Data,
    };
    b.post(at_b, 1, Op::Write { from, to: to_far, imm: None }, true).unwrap();
    let status = common::poll_until("the write", || {
        poll(&mut a);
        poll(&mut b).first().map(|one| one.status)
    });
    assert_eq!(status, OpStatus::Ok, "the write was not staged");
    let mut got = vec![0; 1 << 20];
    to.read(0, &mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 7));
}
