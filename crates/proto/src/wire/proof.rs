//! The common knowledge of both ends of a group: its epoch and the digest of its links' addresses. Computed when a group is created; a join carries
//! it. It is not a secret, and does not protect against a peer that lies.

use core::num::NonZeroU64;

/// Identifies one creation of a group among all creations by its connecting process. Never 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GroupEpoch(pub NonZeroU64);

/// Digest of the addresses of the links that a group was created with, at both ends (FNV-1a, 64 bits; docs/wire.md, "Sharing"). Equal digests show
/// that the queue pairs of the two ends were connected to each other.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct GroupProof(pub u64);

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

impl GroupProof {
    /// Returns the proof of a group with these links, in their order: for each the address of the sending end and that of the receiving end, as
    /// frames carry them.
    pub fn of_links<'a>(links: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let sum = links
            .into_iter()
            .fold(BASIS, |sum, (sending, receiving)| mix_address(mix_address(sum, sending), receiving));
        Self(sum)
    }
}

/// Mixes the length as 16 bits, then the bytes.
fn mix_address(sum: u64, address: &[u8]) -> u64 {
    let len = (address.len() as u16).to_le_bytes();
    len.iter().chain(address).fold(sum, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_fnv_1a_with_lengths() {
        // The hash's published test vectors.
        assert_eq!(GroupProof::of_links([]), GroupProof(0xcbf2_9ce4_8422_2325));
        let plain =
            |bytes: &[u8]| bytes.iter().fold(BASIS, |sum, &b| (sum ^ u64::from(b)).wrapping_mul(PRIME));
        assert_eq!(plain(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(GroupProof::of_links([(&b"fo"[..], &b"o"[..])]), GroupProof(plain(b"\x02\0fo\x01\0o")));
    }

    #[test]
    fn proof_depends_on_which_links_are_connected() {
        let a: &[u8] = b"aaaa";
        let b: &[u8] = b"bbbb";
        let c: &[u8] = b"cccc";
        let proofs = [
            GroupProof::of_links([(a, b)]),
            GroupProof::of_links([(b, a)]),
            GroupProof::of_links([(a, c)]),
            GroupProof::of_links([(a, b), (a, b)]),
            GroupProof::of_links([(&b"aaa"[..], &b"abbbb"[..])]),
        ];
        for (at, proof) in proofs.iter().enumerate() {
            assert!(!proofs[..at].contains(proof));
        }
    }
}
