//! The address that a link sends to its peer. docs/wire.md specifies the layout; a peer's bytes are parsed into values that are always valid.

const MAGIC: [u8; 8] = *b"TLOFIRDM";
const VERSION: u16 = 1;
/// Length before the names, in bytes.
const HEAD: usize = 58;
/// The maximum length of an endpoint's name, in bytes.
pub(crate) const NAME_MAX: usize = 96;

/// The remote memory to which a peer writes to prove that its earlier operations have arrived.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ProofTarget {
    pub(crate) key: u64,
    pub(crate) addr: u64,
}

/// The address of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct OfiLinkAddress {
    /// Upper half of the CQ data of every write to this link.
    pub(crate) mark: u32,
    /// The tag of messages to this link.
    pub(crate) cookie: u64,
    /// Proof targets, for payload and for records.
    pub(crate) landings: [ProofTarget; 2],
    /// Names of the endpoints, for payload and for records.
    pub(crate) names: [Vec<u8>; 2],
}

impl OfiLinkAddress {
    /// Encodes the address for the peer.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let [data, records] = &self.names;
        let mut out = Vec::with_capacity(HEAD + data.len() + records.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&self.mark.to_le_bytes());
        out.extend_from_slice(&self.cookie.to_le_bytes());
        for ProofTarget { key, addr } in self.landings {
            out.extend_from_slice(&key.to_le_bytes());
            out.extend_from_slice(&addr.to_le_bytes());
        }
        // The casts cannot truncate, because names have at most `NAME_MAX` bytes.
        out.extend_from_slice(&[data.len() as u8, records.len() as u8]);
        out.extend_from_slice(data);
        out.extend_from_slice(records);
        out
    }

    /// Parses a peer's address.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let (head, names) = bytes.split_at_checked(HEAD).ok_or("the address is too short")?;
        if head[..8] != MAGIC {
            return Err("the address is not of libfabric");
        }
        if head[8..10] != VERSION.to_le_bytes() {
            return Err("the address has another version");
        }
        // Untrusted input: every length is checked before it is used as an offset.
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(word)
        };
        // The word at offset 8 contains the version and reserved bytes in its low half, so the mark is its high half.
        let mark = word(8) >> 32;
        let cookie = word(16);
        let landing = |at: usize| ProofTarget { key: word(at), addr: word(at + 8) };
        let [data, records] = [head[56], head[57]].map(usize::from);
        if data == 0 || records == 0 || data > NAME_MAX || records > NAME_MAX {
            return Err("the name of an endpoint is empty or too long");
        }
        // Exact, so that every address has only one encoding.
        if names.len() != data + records {
            return Err("the address has the wrong length");
        }
        let (data, records) = names.split_at(data);
        Ok(Self {
            mark: mark as u32,
            cookie,
            landings: [landing(24), landing(40)],
            names: [data.to_vec(), records.to_vec()],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> OfiLinkAddress {
        OfiLinkAddress {
            mark: 0x8123_4567,
            cookie: 0x0123_4567_89ab_cdef,
            landings: [ProofTarget { key: 1, addr: 2 }, ProofTarget { key: u64::MAX, addr: 1 << 63 }],
            names: [vec![1, 2, 3], vec![4; NAME_MAX]],
        }
    }

    #[test]
    fn addresses_round_trip() {
        let bytes = address().to_bytes();
        assert_eq!(bytes.len(), HEAD + 3 + NAME_MAX);
        assert_eq!(OfiLinkAddress::parse(&bytes), Ok(address()));
        let most = OfiLinkAddress { names: [vec![1; NAME_MAX], vec![2; NAME_MAX]], ..address() };
        assert!(most.to_bytes().len() <= trunkline_fabric::LinkAddress::BYTES_MAX);
    }

    #[test]
    fn malformed_addresses_are_refused() {
        let good = address().to_bytes();
        for len in 0..good.len() {
            assert!(OfiLinkAddress::parse(&good[..len]).is_err(), "{len} bytes");
        }
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            OfiLinkAddress::parse(&bytes)
        };
        assert_eq!(changed(0, 0), Err("the address is not of libfabric"));
        assert_eq!(changed(8, 2), Err("the address has another version"));
        assert!(changed(56, 0).is_err() && changed(57, 255).is_err() && changed(56, 4).is_err());
    }
}
