//! How a member of a job shows another one that it is that member. Used by the control streams of one-sided work and of tagged messages; it
//! knows no stream.
//!
//! Each card has a public key. Two members derive the same secret from one's private and the other's public key (X25519, RFC
//! 7748). A proof is a MAC under that secret: only the two can make it, although all members have the cards. Cards are as
//! trustworthy as the channel by which the job's launcher distributes them.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use trunkline_proto::wire::dial::{MemberProof, PublicKey};
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

/// The purpose of a proof: one for another purpose is not valid.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProofPurpose {
    /// Messages of one-sided work.
    OneSided,
    /// A control stream for tagged messages.
    Tagged,
}

impl ProofPurpose {
    /// First bytes of the authenticated text, chosen so that no other MAC of Trunkline begins with them.
    const fn mac_label(self) -> &'static [u8] {
        match self {
            Self::OneSided => b"trunkline rma 1 member",
            Self::Tagged => b"trunkline tagged 1 rank",
        }
    }
}

/// The private key of this process in one job.
pub struct MemberKey([u8; 32]);

impl fmt::Debug for MemberKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemberKey")
    }
}

impl MemberKey {
    /// Creates a key from unpredictable bytes.
    #[must_use]
    pub fn new(random: [[u8; 16]; 2]) -> Self {
        let mut key = [0; 32];
        key.copy_from_slice(random.as_flattened());
        Self(key)
    }

    /// Returns the public key for the card.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        x25519(self.0, X25519_BASEPOINT_BYTES)
    }

    /// Returns the proof that member `from` shows member `to`. One of the two is this process, and the other has the
    /// key `theirs`. `None` for an invalid key, because a low-order point would make the secret known to all.
    #[must_use]
    pub fn make_proof(
        &self,
        purpose: ProofPurpose,
        theirs: &PublicKey,
        from: u32,
        to: u32,
    ) -> Option<MemberProof> {
        let secret = x25519(self.0, *theirs);
        if secret == [0; 32] {
            return None;
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(&secret).ok()?;
        mac.update(purpose.mac_label());
        mac.update(&from.to_le_bytes());
        mac.update(&to.to_le_bytes());
        mac.finalize().into_bytes().first_chunk().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::ProofPurpose::{OneSided, Tagged};
    use super::*;

    fn key(byte: u8) -> MemberKey {
        MemberKey::new([[byte; 16], [byte ^ 0xff; 16]])
    }

    #[test]
    fn proof_depends_on_both_members() {
        let a = key(1);
        let b = key(2);
        let c = key(3);
        let proof = a.make_proof(OneSided, &b.public_key(), 0, 1).unwrap();
        assert_eq!(b.make_proof(OneSided, &a.public_key(), 0, 1), Some(proof));
        assert_ne!(
            b.make_proof(OneSided, &a.public_key(), 1, 0),
            Some(proof),
            "a proof is valid in one direction only"
        );
        assert_ne!(
            c.make_proof(OneSided, &b.public_key(), 0, 1),
            Some(proof),
            "a member with both public keys made the proof"
        );
        assert_ne!(c.make_proof(OneSided, &a.public_key(), 0, 1), Some(proof));
        assert_ne!(
            a.make_proof(OneSided, &b.public_key(), 0, 2),
            Some(proof),
            "a proof is valid for one member only"
        );
        assert_ne!(
            a.make_proof(Tagged, &b.public_key(), 0, 1),
            Some(proof),
            "a proof is valid for one purpose only"
        );
    }

    #[test]
    fn low_order_public_key_is_rejected() {
        let mut low = [0; 32];
        assert_eq!(key(1).make_proof(OneSided, &low, 0, 1), None);
        low[0] = 1;
        assert_eq!(key(1).make_proof(OneSided, &low, 0, 1), None);
    }

    /// RFC 7748, section 6.1.
    #[test]
    fn public_key_matches_rfc_7748() {
        let private = [
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45,
            0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
        ];
        let public = [
            0x85, 0x20, 0xf0, 0x09, 0x89, 0x30, 0xa7, 0x54, 0x74, 0x8b, 0x7d, 0xdc, 0xb4, 0x3e, 0xf7, 0x5a,
            0x0d, 0xbf, 0x3a, 0x0d, 0x26, 0x38, 0x1a, 0xf4, 0xeb, 0xa4, 0xa9, 0x8e, 0xaa, 0x9b, 0x4e, 0x6a,
        ];
        assert_eq!(MemberKey(private).public_key(), public);
    }
}
