//! Encodes and decodes the bytes of the store, by docs/wire.md. Pure.

use trunkline_proto::reserve::{OutOfMemory, try_collect, try_vec};

use crate::secret::{JobSecret, NONCE_BYTES, Nonce, PROOF_BYTES, ProofSide};

const MAGIC: [u8; 4] = *b"TRKS";
const VERSION: u16 = 1;

/// Bytes that one process sends in an exchange, at most.
pub const GIVEN_BYTES_MAX: usize = 1 << 20;
/// Bytes of all processes in an exchange, with their lengths, at most.
pub(crate) const GATHERED_BYTES_MAX: usize = 64 << 20;

/// The first message, from rank 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct StoreChallenge {
    pub(crate) nonce: Nonce,
}

impl StoreChallenge {
    pub(crate) const BYTES: usize = 8 + NONCE_BYTES;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        write_prefix(&mut bytes, 0);
        bytes[8..].copy_from_slice(&self.nonce);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        has_prefix(bytes).then(|| Self { nonce: read_array(bytes, 8) })
    }
}

/// A member's reply to the challenge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct StoreHello {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) nonce: Nonce,
    proof: [u8; PROOF_BYTES],
}

impl StoreHello {
    pub(crate) const BYTES: usize = 32 + PROOF_BYTES;

    pub(crate) fn new(
        secret: &JobSecret,
        challenge: &StoreChallenge,
        rank: u32,
        size: u32,
        nonce: Nonce,
    ) -> Self {
        let mut hello = Self { rank, size, nonce, proof: [0; PROOF_BYTES] };
        hello.proof = secret.compute_proof(ProofSide::Member, &challenge.nonce, &nonce, &hello.rank_bytes());
        hello
    }

    pub(crate) fn verify_proof(&self, secret: &JobSecret, challenge: &StoreChallenge) -> bool {
        secret.verify_proof(&self.proof, ProofSide::Member, &challenge.nonce, &self.nonce, &self.rank_bytes())
    }

    fn rank_bytes(&self) -> [u8; 8] {
        let mut place = [0; 8];
        place[..4].copy_from_slice(&self.rank.to_le_bytes());
        place[4..].copy_from_slice(&self.size.to_le_bytes());
        place
    }

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        write_prefix(&mut bytes, 0);
        bytes[8..16].copy_from_slice(&self.rank_bytes());
        bytes[16..32].copy_from_slice(&self.nonce);
        bytes[32..].copy_from_slice(&self.proof);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let number = |at| u32::from_le_bytes(read_array(bytes, at));
        let found = Self {
            rank: number(8),
            size: number(12),
            nonce: read_array(bytes, 16),
            proof: read_array(bytes, 32),
        };
        has_prefix(bytes).then_some(found)
    }
}

/// The result of rank 0's checks of a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum JoinStatus {
    Welcome,
    WrongProof,
    RankTaken,
    OtherSize,
}

/// Rank 0's reply to a hello.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct StoreAnswer {
    pub(crate) status: JoinStatus,
    proof: [u8; PROOF_BYTES],
}

impl StoreAnswer {
    pub(crate) const BYTES: usize = 8 + PROOF_BYTES;

    pub(crate) fn new(
        secret: &JobSecret,
        challenge: &StoreChallenge,
        hello: &StoreHello,
        status: JoinStatus,
    ) -> Self {
        let proof = match status {
            JoinStatus::WrongProof => [0; PROOF_BYTES],
            _ => secret.compute_proof(
                ProofSide::Center,
                &hello.nonce,
                &challenge.nonce,
                &status_code(status).to_le_bytes(),
            ),
        };
        Self { status, proof }
    }

    pub(crate) fn verify_proof(
        &self,
        secret: &JobSecret,
        challenge: &StoreChallenge,
        hello: &StoreHello,
    ) -> bool {
        let rest = status_code(self.status).to_le_bytes();
        secret.verify_proof(&self.proof, ProofSide::Center, &hello.nonce, &challenge.nonce, &rest)
    }

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        write_prefix(&mut bytes, status_code(self.status));
        bytes[8..].copy_from_slice(&self.proof);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let status = match u16::from_le_bytes(read_array(bytes, 6)) {
            0 => JoinStatus::Welcome,
            1 => JoinStatus::WrongProof,
            2 => JoinStatus::RankTaken,
            3 => JoinStatus::OtherSize,
            _ => return None,
        };
        has_prefix(bytes).then(|| Self { status, proof: read_array(bytes, 8) })
    }
}

fn status_code(status: JoinStatus) -> u16 {
    match status {
        JoinStatus::Welcome => 0,
        JoinStatus::WrongProof => 1,
        JoinStatus::RankTaken => 2,
        JoinStatus::OtherSize => 3,
    }
}

/// Kind of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StoreFrameKind {
    Gather,
    Gathered,
    Abort,
}

/// Head of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct StoreFrameHeader {
    pub(crate) kind: StoreFrameKind,
    pub(crate) length: u32,
    pub(crate) round: u32,
}

impl StoreFrameHeader {
    pub(crate) const BYTES: usize = 12;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = match self.kind {
            StoreFrameKind::Gather => 1,
            StoreFrameKind::Gathered => 2,
            StoreFrameKind::Abort => 3,
        };
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.round.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let kind = match bytes[0] {
            1 => StoreFrameKind::Gather,
            2 => StoreFrameKind::Gathered,
            3 => StoreFrameKind::Abort,
            _ => return None,
        };
        let number = |at| u32::from_le_bytes(read_array(bytes, at));
        Some(Self { kind, length: number(4), round: number(8) })
    }
}

/// Encodes the body of GATHERED; `None` if it would be too long.
///
/// # Errors
/// [`OutOfMemory`].
pub(crate) fn encode_gathered(parts: &[Vec<u8>]) -> Result<Option<Vec<u8>>, OutOfMemory> {
    let bytes: usize = parts.iter().map(|part| 4 + part.len()).sum();
    if bytes > GATHERED_BYTES_MAX {
        return Ok(None);
    }
    let mut body = try_vec(bytes)?;
    for part in parts {
        // Every part is shorter than the whole body, whose limit fits in 32 bits.
        body.extend_from_slice(&(part.len() as u32).to_le_bytes());
        body.extend_from_slice(part);
    }
    Ok(Some(body))
}

/// Decodes the bytes of each of `size` processes; `None` if the body is malformed.
///
/// # Errors
/// [`OutOfMemory`].
pub(crate) fn decode_gathered(mut body: &[u8], size: usize) -> Result<Option<Vec<Vec<u8>>>, OutOfMemory> {
    let mut parts = try_vec(size)?;
    for _ in 0..size {
        let Some((part, rest)) = split_part(body) else { return Ok(None) };
        parts.push(try_collect(part.iter().copied())?);
        body = rest;
    }
    Ok(body.is_empty().then_some(parts))
}

/// Splits a body into its first part, which has its length before it, and the rest.
fn split_part(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = body.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

fn write_prefix(bytes: &mut [u8], word: u16) {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&word.to_le_bytes());
}

fn has_prefix(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC) && bytes[4..6] == VERSION.to_le_bytes()
}

/// Copies an array from an offset inside `bytes`.
fn read_array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn handshake_matches_the_documented_bytes() {
        let secret = JobSecret::from_texts(&["job"]);
        let challenge = StoreChallenge { nonce: [7; 16] };
        let bytes = challenge.encode();
        assert_eq!(bytes[..8], [0x54, 0x52, 0x4b, 0x53, 1, 0, 0, 0]);
        assert_eq!(bytes[8..], [7; 16]);
        let hello = StoreHello::new(&secret, &challenge, 3, 4, [9; 16]);
        let bytes = hello.encode();
        assert_eq!(bytes[..16], [0x54, 0x52, 0x4b, 0x53, 1, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!((&bytes[16..32], bytes.len()), (&[9; 16][..], 64));
        let answer = StoreAnswer::new(&secret, &challenge, &hello, JoinStatus::OtherSize);
        assert_eq!(
            (answer.encode()[..8].to_vec(), answer.encode().len()),
            (vec![0x54, 0x52, 0x4b, 0x53, 1, 0, 3, 0], 40)
        );
        let head = StoreFrameHeader { kind: StoreFrameKind::Gathered, length: 0x0102, round: 9 };
        assert_eq!(head.encode(), [2, 0, 0, 0, 2, 1, 0, 0, 9, 0, 0, 0]);
    }

    #[test]
    fn proofs_hold_for_this_handshake_only() {
        let secret = JobSecret::from_texts(&["job"]);
        let challenge = StoreChallenge { nonce: [7; 16] };
        let hello = StoreHello::new(&secret, &challenge, 3, 4, [9; 16]);
        assert!(hello.verify_proof(&secret, &challenge));
        assert!(!StoreHello { rank: 2, ..hello }.verify_proof(&secret, &challenge));
        assert!(!hello.verify_proof(&secret, &StoreChallenge { nonce: [8; 16] }));
        assert!(!hello.verify_proof(&JobSecret::from_texts(&["other"]), &challenge));
        for status in [JoinStatus::Welcome, JoinStatus::RankTaken, JoinStatus::OtherSize] {
            let answer = StoreAnswer::new(&secret, &challenge, &hello, status);
            assert!(answer.verify_proof(&secret, &challenge, &hello));
            assert!(!answer.verify_proof(&JobSecret::from_texts(&["other"]), &challenge, &hello));
            let turned = StoreAnswer { status: JoinStatus::WrongProof, ..answer };
            assert!(!turned.verify_proof(&secret, &challenge, &hello));
        }
    }

    #[test]
    fn other_magic_versions_and_kinds_are_refused() {
        let mut bytes = StoreChallenge { nonce: [7; 16] }.encode();
        assert!(StoreChallenge::decode(&bytes).is_some());
        bytes[4] = 2;
        assert!(StoreChallenge::decode(&bytes).is_none());
        bytes[4] = 1;
        bytes[0] = b'X';
        assert!(StoreChallenge::decode(&bytes).is_none());
        assert!(StoreFrameHeader::decode(&[4; 12]).is_none() && StoreFrameHeader::decode(&[0; 12]).is_none());
        let mut bytes = [0; StoreAnswer::BYTES];
        write_prefix(&mut bytes, 4);
        assert!(StoreAnswer::decode(&bytes).is_none());
    }

    #[test]
    fn parts_must_fill_the_body() {
        assert_eq!(decode_gathered(&[], 0).unwrap(), Some(vec![]));
        for bad in [&[0, 0, 0][..], &[1, 0, 0, 0], &[0, 0, 0, 0, 9], &[255, 255, 255, 255, 1]] {
            assert_eq!(decode_gathered(bad, 1).unwrap(), None, "{bad:?}");
        }
        assert_eq!(encode_gathered(&vec![vec![0; GIVEN_BYTES_MAX]; 64]).unwrap(), None);
    }

    proptest! {
        #[test]
        fn gathered_parts_round_trip(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20)) {
            let body = encode_gathered(&parts).unwrap().unwrap();
            prop_assert_eq!(decode_gathered(&body, parts.len()).unwrap(), Some(parts));
        }

        #[test]
        fn frames_round_trip(rank: u32, size: u32, nonce: [u8; 16], bytes: [u8; 64]) {
            let hello = StoreHello::new(&JobSecret::from_texts(&[]), &StoreChallenge { nonce }, rank, size, nonce);
            prop_assert_eq!(StoreHello::decode(&hello.encode()), Some(hello));
            let mut begun = bytes;
            write_prefix(&mut begun, u16::from(bytes[6]));
            for bytes in [bytes, begun] {
                if let Some(hello) = StoreHello::decode(&bytes) {
                    prop_assert_eq!(&hello.encode()[8..], &bytes[8..]);
                }
                if let Some(challenge) = StoreChallenge::decode(&read_array(&bytes, 0)) {
                    prop_assert_eq!(&challenge.encode()[8..], &bytes[8..24]);
                }
                if let Some(answer) = StoreAnswer::decode(&read_array(&bytes, 0)) {
                    prop_assert_eq!(&answer.encode()[..], &bytes[..40]);
                }
                if let Some(head) = StoreFrameHeader::decode(&read_array(&bytes, 0)) {
                    prop_assert_eq!(&head.encode()[4..], &bytes[4..12]);
                }
            }
        }

        #[test]
        fn body_decoder_never_panics(body in prop::collection::vec(any::<u8>(), 0..200), size in 0usize..50) {
            if let Some(parts) = decode_gathered(&body, size).unwrap() {
                prop_assert_eq!(encode_gathered(&parts).unwrap().unwrap(), body);
            }
        }
    }
}
