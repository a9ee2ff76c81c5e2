//! Completions: 64 bytes per completed entry, which the NIC writes into the places of a ring in order.

/// Size of a completion in bytes (`struct mlx5_cqe64`).
const BYTES: usize = 64;

/// Offsets of fields in bytes.
mod at {
    /// Of errors: the vendor's code, and the standard one.
    pub(super) const VENDOR: usize = 54;
    pub(super) const SYNDROME: usize = 55;
    pub(super) const BYTE_COUNT: usize = 44;
    pub(super) const TIMESTAMP: usize = 48;
    /// The operation of the entry, and the queue pair's 24 bits.
    pub(super) const QP: usize = 56;
    pub(super) const COUNTER: usize = 60;
    /// Kind in the upper four bits, owner in the lowest.
    pub(super) const OWNER: usize = 63;
}

/// Kinds (`MLX5_CQE_REQ` and following).
mod kind {
    pub(super) const REQUEST: u8 = 0;
    pub(super) const REQUEST_ERROR: u8 = 13;
    pub(super) const INVALID: u8 = 15;
}

/// Why an entry failed (`MLX5_CQE_SYNDROME_...`).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
pub enum CqeSyndrome {
    /// The local length does not match.
    #[error("the length is invalid at this end")]
    LocalLength,
    /// The NIC cannot execute the entry.
    #[error("the NIC cannot execute the entry")]
    LocalOperation,
    /// The local bytes are not in a region of that key.
    #[error("no region at this end has these bytes")]
    LocalProtection,
    /// An earlier entry failed, or the queue pair was put into error.
    #[error("the queue pair was in error before")]
    Flushed,
    /// A memory window could not be bound.
    #[error("a memory window was not bound")]
    WindowBind,
    /// The response of the peer is invalid.
    #[error("the other end sent an invalid reply")]
    BadResponse,
    /// The region does not allow a remote write.
    #[error("an access by the other end is not allowed here")]
    LocalAccess,
    /// The peer does not accept such a request.
    #[error("the other end rejects this kind of request")]
    RemoteRequest,
    /// No region of the peer has these bytes and this right.
    #[error("the other end has no such region, or the region does not allow the access")]
    RemoteAccess,
    /// The peer failed to execute the operation.
    #[error("the other end failed")]
    RemoteOperation,
    /// The peer did not respond.
    #[error("the other end does not reply")]
    TransportRetries,
    /// The peer posted no receive for too long.
    #[error("the other end has no posted receive")]
    ReceiverRetries,
    /// The peer aborted the operation.
    #[error("the other end aborted")]
    RemoteAborted,
    /// A number without a name in this code.
    #[error("unknown syndrome {0:#04x}")]
    Other(u8),
}

/// The numbers of the named syndromes.
const SYNDROMES: [(u8, CqeSyndrome); 13] = [
    (0x01, CqeSyndrome::LocalLength),
    (0x02, CqeSyndrome::LocalOperation),
    (0x04, CqeSyndrome::LocalProtection),
    (0x05, CqeSyndrome::Flushed),
    (0x06, CqeSyndrome::WindowBind),
    (0x10, CqeSyndrome::BadResponse),
    (0x11, CqeSyndrome::LocalAccess),
    (0x12, CqeSyndrome::RemoteRequest),
    (0x13, CqeSyndrome::RemoteAccess),
    (0x14, CqeSyndrome::RemoteOperation),
    (0x15, CqeSyndrome::TransportRetries),
    (0x16, CqeSyndrome::ReceiverRetries),
    (0x22, CqeSyndrome::RemoteAborted),
];

impl CqeSyndrome {
    /// Returns the syndrome of a number.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        let known = SYNDROMES.iter().find(|(of, _)| *of == number);
        known.map_or(Self::Other(number), |&(_, syndrome)| syndrome)
    }

    /// Returns its number.
    #[must_use]
    pub fn to_number(self) -> u8 {
        match self {
            Self::Other(number) => number,
            named => SYNDROMES.iter().find(|(_, one)| *one == named).map_or(0, |&(number, _)| number),
        }
    }
}

/// The result of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mlx5Completion {
    /// The queue pair, 24 bits.
    pub qp: u32,
    /// The lowest 16 bits of the entry's index: see [`full_index`](super::full_index).
    pub index: u16,
    /// Bytes that a READ or an atomic returned.
    pub bytes: u32,
    /// The NIC's clock.
    pub time: u64,
    /// The cause of a failure and the vendor's own code; `None` on success.
    pub failed: Option<(CqeSyndrome, u8)>,
}

/// The kind of a completion is not one of a send queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a completion of kind {0}, which no sending queue has")]
pub struct Mlx5CompletionError(pub u8);

impl Mlx5Completion {
    /// Returns its bytes in a place of the ring, on a lap with that owner bit.
    #[must_use]
    pub fn to_bytes(&self, lap: bool) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let kind = if self.failed.is_some() { kind::REQUEST_ERROR } else { kind::REQUEST };
        bytes[at::BYTE_COUNT..][..4].copy_from_slice(&self.bytes.to_be_bytes());
        match self.failed {
            Some((syndrome, vendor)) => {
                bytes[at::BYTE_COUNT..][..4].fill(0);
                (bytes[at::SYNDROME], bytes[at::VENDOR]) = (syndrome.to_number(), vendor);
            }
            None => bytes[at::TIMESTAMP..][..8].copy_from_slice(&self.time.to_be_bytes()),
        }
        bytes[at::QP..][..4].copy_from_slice(&(self.qp & 0xff_ffff).to_be_bytes());
        bytes[at::COUNTER..][..2].copy_from_slice(&self.index.to_be_bytes());
        bytes[at::OWNER] = kind << 4 | u8::from(lap);
        bytes
    }

    /// Parses a place of the ring on a lap with that owner bit; `None` until the NIC has written it. A caller that copies from memory which the NIC
    /// writes must read the last byte first, and the others after it.
    ///
    /// # Errors
    /// [`Mlx5CompletionError`].
    pub fn from_bytes(bytes: &[u8; BYTES], lap: bool) -> Result<Option<Self>, Mlx5CompletionError> {
        let owner = bytes[at::OWNER];
        let kind = owner >> 4;
        if kind == kind::INVALID || (owner & 1 == 1) != lap {
            return Ok(None);
        }
        if !matches!(kind, kind::REQUEST | kind::REQUEST_ERROR) {
            return Err(Mlx5CompletionError(kind));
        }
        let word = |at: usize| core::array::from_fn(|n| bytes[at + n]);
        let fails = kind == kind::REQUEST_ERROR;
        let failed = fails.then(|| (CqeSyndrome::from_number(bytes[at::SYNDROME]), bytes[at::VENDOR]));
        let done = failed.is_none();
        Ok(Some(Self {
            qp: u32::from_be_bytes(word(at::QP)) & 0xff_ffff,
            index: u16::from_be_bytes([bytes[at::COUNTER], bytes[at::COUNTER + 1]]),
            bytes: if done { u32::from_be_bytes(word(at::BYTE_COUNT)) } else { 0 },
            time: if done {
                u64::from_be_bytes(core::array::from_fn(|n| bytes[at::TIMESTAMP + n]))
            } else {
                0
            },
            failed,
        }))
    }

    /// Returns an empty place: the content of a ring before a NIC has written to it.
    #[must_use]
    pub const fn empty_bytes() -> [u8; BYTES] {
        [0xff; BYTES]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn completions_match_the_layout_of_the_nic() {
        let done = Mlx5Completion {
            qp: 0x12_3456,
            index: 0xfffe,
            bytes: 8,
            time: 0x0102_0304_0506_0708,
            failed: None,
        };
        let bytes = done.to_bytes(true);
        assert_eq!(bytes[..44], [0; 44]);
        let end = [0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x12, 0x34, 0x56, 0xff, 0xfe, 0, 0x01];
        assert_eq!(bytes[44..], end);
        let failed =
            Mlx5Completion { bytes: 0, time: 0, failed: Some((CqeSyndrome::RemoteAccess, 0x89)), ..done };
        let bytes = failed.to_bytes(false);
        assert_eq!(bytes[52..], [0, 0, 0x89, 0x13, 0, 0x12, 0x34, 0x56, 0xff, 0xfe, 0, 0xd0]);
        // In failures, the NIC writes the operation before the queue pair.
        let mut bytes = bytes;
        bytes[56] = 0x08;
        assert_eq!(Mlx5Completion::from_bytes(&bytes, false), Ok(Some(failed)));
        assert_eq!(Mlx5Completion::from_bytes(&done.to_bytes(false), false), Ok(Some(done)));
    }

    #[test]
    fn slot_is_read_only_on_its_own_lap() {
        let done = Mlx5Completion { qp: 1, index: 2, bytes: 0, time: 0, failed: None };
        for lap in [false, true] {
            let read = |bytes: [u8; BYTES]| Mlx5Completion::from_bytes(&bytes, lap);
            assert_eq!(read(done.to_bytes(lap)), Ok(Some(done)));
            assert_eq!(
                read(done.to_bytes(!lap)),
                Ok(None),
                "a completion of the previous lap was read as new"
            );
            assert_eq!(read(Mlx5Completion::empty_bytes()), Ok(None));
        }
    }

    #[test]
    fn kinds_of_other_queues_are_refused() {
        let mut bytes = [0; BYTES];
        for kind in 1..15 {
            bytes[63] = kind << 4;
            let read = Mlx5Completion::from_bytes(&bytes, false);
            assert_eq!(read.err(), (kind != 13).then_some(Mlx5CompletionError(kind)), "{kind}");
        }
    }

    #[test]
    fn failure_codes_round_trip() {
        for number in 0..=u8::MAX {
            let named = !matches!(CqeSyndrome::from_number(number), CqeSyndrome::Other(_));
            assert_eq!(
                (CqeSyndrome::from_number(number).to_number(), named),
                (number, SYNDROMES.iter().any(|(of, _)| *of == number))
            );
        }
    }

    proptest! {
        #[test]
        fn completions_round_trip(
            qp in 0..1u32 << 24, index: u16, numbers: (u32, u64), failed in prop::option::of(any::<(u8, u8)>()), lap: bool
        ) {
            let failed = failed.map(|(number, vendor)| (CqeSyndrome::from_number(number), vendor));
            let (bytes, time) = if failed.is_some() { (0, 0) } else { numbers };
            let completion = Mlx5Completion { qp, index, bytes, time, failed };
            prop_assert_eq!(Mlx5Completion::from_bytes(&completion.to_bytes(lap), lap), Ok(Some(completion)));
        }
    }
}
