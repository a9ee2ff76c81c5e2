//! The bytes of the store, as docs/wire.md has them. Pure.

use trunkline_proto::reserve::{OutOfMemory, try_collect, try_vec};

use crate::secret::{NONCE_BYTES, Nonce, PROOF_BYTES, Secret, Side};

const MAGIC: [u8; 4] = *b"TRKS";
const VERSION: u16 = 1;

/// Most bytes that one process gives in an exchange.
pub const GIVEN_BYTES_MAX: usize = 1 << 20;
/// Most bytes of all together, their lengths included.
pub(crate) const GATHERED_BYTES_MAX: usize = 64 << 20;

/// Rank 0's first words.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Challenge {
    pub(crate) nonce: Nonce,
}

impl Challenge {
    pub(crate) const BYTES: usize = 8 + NONCE_BYTES;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        begin(&mut bytes, 0);
        bytes[8..].copy_from_slice(&self.nonce);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        begins(bytes).then(|| Self { nonce: array(bytes, 8) })
    }
}

/// A member's answer to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) nonce: Nonce,
    proof: [u8; PROOF_BYTES],
}

impl Hello {
    pub(crate) const BYTES: usize = 32 + PROOF_BYTES;

    pub(crate) fn new(secret: &Secret, challenge: &Challenge, rank: u32, size: u32, nonce: Nonce) -> Self {
        let mut hello = Self { rank, size, nonce, proof: [0; PROOF_BYTES] };
        hello.proof = secret.proof(Side::Member, &challenge.nonce, &nonce, &hello.place());
        hello
    }

    pub(crate) fn proves(&self, secret: &Secret, challenge: &Challenge) -> bool {
        #[cfg(feature = "mutants")]
        if std::env::var("TRUNKLINE_MUTANT").is_ok_and(|name| name == "bootstrap-no-secret") {
            return true;
        }
        secret.proves(&self.proof, Side::Member, &challenge.nonce, &self.nonce, &self.place())
    }

    fn place(&self) -> [u8; 8] {
        let mut place = [0; 8];
        place[..4].copy_from_slice(&self.rank.to_le_bytes());
        place[4..].copy_from_slice(&self.size.to_le_bytes());
        place
    }

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        begin(&mut bytes, 0);
        bytes[8..16].copy_from_slice(&self.place());
        bytes[16..32].copy_from_slice(&self.nonce);
        bytes[32..].copy_from_slice(&self.proof);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let number = |at| u32::from_le_bytes(array(bytes, at));
        let found =
            Self { rank: number(8), size: number(12), nonce: array(bytes, 16), proof: array(bytes, 32) };
        begins(bytes).then_some(found)
    }
}

/// What rank 0 thinks of a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Status {
    Welcome,
    WrongProof,
    RankTaken,
    OtherSize,
}

/// Rank 0's answer to a hello.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    proof: [u8; PROOF_BYTES],
}

impl Answer {
    pub(crate) const BYTES: usize = 8 + PROOF_BYTES;

    pub(crate) fn new(secret: &Secret, challenge: &Challenge, hello: &Hello, status: Status) -> Self {
        let proof = match status {
            Status::WrongProof => [0; PROOF_BYTES],
            _ => secret.proof(Side::Center, &hello.nonce, &challenge.nonce, &code(status).to_le_bytes()),
        };
        Self { status, proof }
    }

    pub(crate) fn proves(&self, secret: &Secret, challenge: &Challenge, hello: &Hello) -> bool {
        let rest = code(self.status).to_le_bytes();
        secret.proves(&self.proof, Side::Center, &hello.nonce, &challenge.nonce, &rest)
    }

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        begin(&mut bytes, code(self.status));
        bytes[8..].copy_from_slice(&self.proof);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let status = match u16::from_le_bytes(array(bytes, 6)) {
            0 => Status::Welcome,
            1 => Status::WrongProof,
            2 => Status::RankTaken,
            3 => Status::OtherSize,
            _ => return None,
        };
        begins(bytes).then(|| Self { status, proof: array(bytes, 8) })
    }
}

fn code(status: Status) -> u16 {
    match status {
        Status::Welcome => 0,
        Status::WrongProof => 1,
        Status::RankTaken => 2,
        Status::OtherSize => 3,
    }
}

/// Kind of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Gather,
    Gathered,
    Abort,
}

/// Head of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) length: u32,
    pub(crate) round: u32,
}

impl Head {
    pub(crate) const BYTES: usize = 12;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = match self.kind {
            Kind::Gather => 1,
            Kind::Gathered => 2,
            Kind::Abort => 3,
        };
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.round.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let kind = match bytes[0] {
            1 => Kind::Gather,
            2 => Kind::Gathered,
            3 => Kind::Abort,
            _ => return None,
        };
        let number = |at| u32::from_le_bytes(array(bytes, at));
        Some(Self { kind, length: number(4), round: number(8) })
    }
}

/// The body of GATHERED; nothing when it would be too long.
///
/// # Errors
/// [`OutOfMemory`].
pub(crate) fn gathered(parts: &[Vec<u8>]) -> Result<Option<Vec<u8>>, OutOfMemory> {
    let bytes: usize = parts.iter().map(|part| 4 + part.len()).sum();
    if bytes > GATHERED_BYTES_MAX {
        return Ok(None);
    }
    let mut body = try_vec(bytes)?;
    for part in parts {
        // Shorter than the whole body, whose limit has 32 bits.
        body.extend_from_slice(&(part.len() as u32).to_le_bytes());
        body.extend_from_slice(part);
    }
    Ok(Some(body))
}

/// What each of `size` processes gave; nothing when the body is not made so.
///
/// # Errors
/// [`OutOfMemory`].
pub(crate) fn split(mut body: &[u8], size: usize) -> Result<Option<Vec<Vec<u8>>>, OutOfMemory> {
    let mut parts = try_vec(size)?;
    for _ in 0..size {
        let Some((part, rest)) = split_part(body) else { return Ok(None) };
        parts.push(try_collect(part.iter().copied())?);
        body = rest;
    }
    Ok(body.is_empty().then_some(parts))
}

/// The first part of a body, which has its length before it, and the rest.
fn split_part(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = body.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

fn begin(bytes: &mut [u8], word: u16) {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&word.to_le_bytes());
}

fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC) && bytes[4..6] == VERSION.to_le_bytes()
}

/// So many bytes from an offset that lies inside.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_handshake_is_as_the_document_has_it() {
        let secret = Secret::of(&["job"]);
        let challenge = Challenge { nonce: [7; 16] };
        let bytes = challenge.encode();
        assert_eq!(bytes[..8], [0x54, 0x52, 0x4b, 0x53, 1, 0, 0, 0]);
        assert_eq!(bytes[8..], [7; 16]);
        let hello = Hello::new(&secret, &challenge, 3, 4, [9; 16]);
        let bytes = hello.encode();
        assert_eq!(bytes[..16], [0x54, 0x52, 0x4b, 0x53, 1, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!((&bytes[16..32], bytes.len()), (&[9; 16][..], 64));
        let answer = Answer::new(&secret, &challenge, &hello, Status::OtherSize);
        assert_eq!(
            (answer.encode()[..8].to_vec(), answer.encode().len()),
            (vec![0x54, 0x52, 0x4b, 0x53, 1, 0, 3, 0], 40)
        );
        let head = Head { kind: Kind::Gathered, length: 0x0102, round: 9 };
        assert_eq!(head.encode(), [2, 0, 0, 0, 2, 1, 0, 0, 9, 0, 0, 0]);
    }

    #[test]
    fn proofs_hold_for_this_handshake_only() {
        let secret = Secret::of(&["job"]);
        let challenge = Challenge { nonce: [7; 16] };
        let hello = Hello::new(&secret, &challenge, 3, 4, [9; 16]);
        assert!(hello.proves(&secret, &challenge));
        assert!(!Hello { rank: 2, ..hello }.proves(&secret, &challenge));
        assert!(!hello.proves(&secret, &Challenge { nonce: [8; 16] }));
        assert!(!hello.proves(&Secret::of(&["other"]), &challenge));
        for status in [Status::Welcome, Status::RankTaken, Status::OtherSize] {
            let answer = Answer::new(&secret, &challenge, &hello, status);
            assert!(answer.proves(&secret, &challenge, &hello));
            assert!(!answer.proves(&Secret::of(&["other"]), &challenge, &hello));
            let turned = Answer { status: Status::WrongProof, ..answer };
            assert!(!turned.proves(&secret, &challenge, &hello));
        }
    }

    #[test]
    fn other_magic_versions_and_kinds_are_refused() {
        let mut bytes = Challenge { nonce: [7; 16] }.encode();
        assert!(Challenge::decode(&bytes).is_some());
        bytes[4] = 2;
        assert!(Challenge::decode(&bytes).is_none());
        bytes[4] = 1;
        bytes[0] = b'X';
        assert!(Challenge::decode(&bytes).is_none());
        assert!(Head::decode(&[4; 12]).is_none() && Head::decode(&[0; 12]).is_none());
        let mut bytes = [0; Answer::BYTES];
        begin(&mut bytes, 4);
        assert!(Answer::decode(&bytes).is_none());
    }

    #[test]
    fn parts_must_fill_the_body() {
        assert_eq!(split(&[], 0).unwrap(), Some(vec![]));
        for bad in [&[0, 0, 0][..], &[1, 0, 0, 0], &[0, 0, 0, 0, 9], &[255, 255, 255, 255, 1]] {
            assert_eq!(split(bad, 1).unwrap(), None, "{bad:?}");
        }
        assert_eq!(gathered(&vec![vec![0; GIVEN_BYTES_MAX]; 64]).unwrap(), None);
    }

    proptest! {
        #[test]
        fn what_was_gathered_is_split_again(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20)) {
            let body = gathered(&parts).unwrap().unwrap();
            prop_assert_eq!(split(&body, parts.len()).unwrap(), Some(parts));
        }

        #[test]
        fn frames_come_back(rank: u32, size: u32, nonce: [u8; 16], bytes: [u8; 64]) {
            let hello = Hello::new(&Secret::of(&[]), &Challenge { nonce }, rank, size, nonce);
            prop_assert_eq!(Hello::decode(&hello.encode()), Some(hello));
            let mut begun = bytes;
            begin(&mut begun, u16::from(bytes[6]));
            for bytes in [bytes, begun] {
                if let Some(hello) = Hello::decode(&bytes) {
                    prop_assert_eq!(&hello.encode()[8..], &bytes[8..]);
                }
                if let Some(challenge) = Challenge::decode(&array(&bytes, 0)) {
                    prop_assert_eq!(&challenge.encode()[8..], &bytes[8..24]);
                }
                if let Some(answer) = Answer::decode(&array(&bytes, 0)) {
                    prop_assert_eq!(&answer.encode()[..], &bytes[..40]);
                }
                if let Some(head) = Head::decode(&array(&bytes, 0)) {
                    prop_assert_eq!(&head.encode()[4..], &bytes[4..12]);
                }
            }
        }

        #[test]
        fn no_body_makes_it_panic(body in prop::collection::vec(any::<u8>(), 0..200), size in 0usize..50) {
            if let Some(parts) = split(&body, size).unwrap() {
                prop_assert_eq!(gathered(&parts).unwrap().unwrap(), body);
            }
        }
    }
}
