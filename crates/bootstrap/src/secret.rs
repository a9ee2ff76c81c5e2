//! The secret of a job, and the proofs that a process knows it. Used by the store, which is the TCP server of rank 0 by
//! which the processes of a job exchange addresses. These proofs answer the store's challenges. They are not the proofs
//! that members of a one-sided job send to each other (docs/wire.md). Does no I/O except reading random bytes.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// Bytes of a proof.
pub(crate) const PROOF_BYTES: usize = 32;
/// Bytes of a nonce.
pub(crate) const NONCE_BYTES: usize = 16;

/// The side that made a proof. It is part of the proof, so that no proof of a member is valid as a proof of rank 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ProofSide {
    /// A process that joins the store.
    Member,
    /// Rank 0, which serves the store.
    Center,
}

/// The secret that only the processes of one job know; 32 bytes, never printed.
#[derive(Clone, Eq, PartialEq)]
pub struct JobSecret([u8; 32]);

impl fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl JobSecret {
    /// Creates a secret from the system's random numbers.
    ///
    /// # Errors
    /// If the system has none.
    pub fn random() -> std::io::Result<Self> {
        random_bytes().map(Self)
    }

    /// Derives a secret from texts in this order. It is as hard to guess as they are.
    #[must_use]
    pub fn from_texts(parts: &[&str]) -> Self {
        let mut digest = Sha256::new_with_prefix(b"trunkline job 1");
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        Self(digest.finalize().into())
    }

    /// Parses a secret of 64 hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = text.get(2 * index..2 * index + 2)?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Returns 64 hexadecimal digits, for the environment of the job's own processes.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Derives another secret from this one and a text.
    #[must_use]
    pub fn with_text(&self, other: &str) -> Self {
        Self::from_texts(&[&self.to_hex(), other])
    }

    /// Computes the proof of one side over two nonces and other values that both sides know. `first` is the nonce of
    /// the other side, and `second` the nonce of the side that makes the proof.
    pub(crate) fn compute_proof(
        &self,
        side: ProofSide,
        first: &Nonce,
        second: &Nonce,
        rest: &[u8],
    ) -> [u8; PROOF_BYTES] {
        self.start_mac(side, first, second, rest)
            .map_or([0; PROOF_BYTES], |mac| mac.finalize().into_bytes().into())
    }

    /// Verifies a proof in constant time; the arguments are those of [`Self::compute_proof`] at the side that made it.
    pub(crate) fn verify_proof(
        &self,
        proof: &[u8; PROOF_BYTES],
        side: ProofSide,
        first: &Nonce,
        second: &Nonce,
        rest: &[u8],
    ) -> bool {
        self.start_mac(side, first, second, rest).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }

    fn start_mac(&self, side: ProofSide, first: &Nonce, second: &Nonce, rest: &[u8]) -> Option<Hmac<Sha256>> {
        // HMAC accepts a key of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(match side {
            ProofSide::Member => b"trunkline store 1 member",
            ProofSide::Center => b"trunkline store 1 center",
        });
        mac.update(first);
        mac.update(second);
        mac.update(rest);
        Some(mac)
    }
}

/// A number that is used once.
pub(crate) type Nonce = [u8; NONCE_BYTES];

/// Returns random bytes of the system.
pub(crate) fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_round_trip_and_invalid_digits_are_refused() {
        let secret = JobSecret::random().unwrap();
        assert_eq!(JobSecret::from_hex(&secret.to_hex()), Some(secret.clone()));
        assert_ne!(JobSecret::random().unwrap(), secret);
        for bad in
            ["", "00", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"+1".repeat(32), &"é".repeat(32)]
        {
            assert_eq!(JobSecret::from_hex(bad), None, "{bad}");
        }
        assert!(!format!("{secret:?}").contains(&secret.to_hex()));
    }

    #[test]
    fn secret_parts_are_separated() {
        assert_ne!(JobSecret::from_texts(&["ab", "c"]), JobSecret::from_texts(&["a", "bc"]));
        assert_eq!(JobSecret::from_texts(&["a"]), JobSecret::from_texts(&["a"]));
    }

    #[test]
    fn proof_is_bound_to_side_nonces_and_fields() {
        let secret = JobSecret::from_texts(&["x"]);
        let a = [1; NONCE_BYTES];
        let b = [2; NONCE_BYTES];
        let proof = secret.compute_proof(ProofSide::Member, &a, &b, b"12");
        assert!(secret.verify_proof(&proof, ProofSide::Member, &a, &b, b"12"));
        assert!(!secret.verify_proof(&proof, ProofSide::Center, &a, &b, b"12"));
        assert!(!secret.verify_proof(&proof, ProofSide::Member, &b, &a, b"12"));
        assert!(!secret.verify_proof(&proof, ProofSide::Member, &a, &b, b"13"));
        assert!(!JobSecret::from_texts(&["y"]).verify_proof(&proof, ProofSide::Member, &a, &b, b"12"));
        assert!(!secret.verify_proof(&[0; PROOF_BYTES], ProofSide::Member, &a, &b, b"12"));
    }
}
