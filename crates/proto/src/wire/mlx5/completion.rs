//! Completions: 64 bytes for each entry that has one, written by the NIC into the places of a ring in turn.

/// Bytes of a completion (`struct mlx5_cqe64`).
const BYTES: usize = 64;

/// Offsets in it.
mod at {
    /// Of errors: the vendor's own code, and the standard one.
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
    /// Bytes at this end are too many or too few.
    #[error("the length does not fit at this end")]
    LocalLength,
    /// The entry itself makes no sense to the NIC.
    #[error("the NIC cannot execute the entry")]
    LocalOperation,
    /// Bytes at this end are in no region of that key.
    #[error("no region at this end has these bytes")]
    LocalProtection,
    /// An entry before it failed, or the queue pair was put into error.
    #[error("the queue pair was in error before")]
    Flushed,
    /// A memory window could not be bound.
    #[error("a memory window was not bound")]
    WindowBind,
    /// The other end answered what cannot be.
    #[error("the other end answered nonsense")]
    BadResponse,
    /// A write of the other end is not allowed here.
    #[error("an access from outside is not allowed")]
    LocalAccess,
    /// The other end does not take such a request.
    #[error("the other end does not take such a request")]
    RemoteRequest,
    /// No region at the other end has these bytes and that right.
    #[error("the other end has no such region, or it gave no such right")]
    RemoteAccess,
    /// The other end failed.
    #[error("the other end failed")]
    RemoteOperation,
    /// Nobody answered.
    #[error("the other end does not answer")]
    TransportRetries,
    /// The other end had no receive for too long.
    #[error("the other end has no receive")]
    ReceiverRetries,
    /// The other end gave up.
    #[error("the other end aborted")]
    RemoteAborted,
    /// A number that is not known here.
    #[error("syndrome {0:#04x}")]
    Other(u8),
}

/// The numbers of those that have names.
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
    /// What a number means.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        let known = SYNDROMES.iter().find(|(of, _)| *of == number);
        known.map_or(Self::Other(number), |&(_, syndrome)| syndrome)
    }

    /// Its number.
    #[must_use]
    pub fn to_number(self) -> u8 {
        match self {
            Self::Other(number) => number,
            named => SYNDROMES.iter().find(|(_, one)| *one == named).map_or(0, |&(number, _)| number),
        }
    }
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mlx5Completion {
    /// The queue pair, 24 bits.
    pub qp: u32,
    /// The lowest 16 bits of the entry's index: see [`full_index`](super::full_index).
    pub index: u16,
    /// Bytes that came with it: of a READ or an atomic.
    pub bytes: u32,
    /// The NIC's clock.
    pub time: u64,
    /// Why it failed, if it did, with the vendor's own code.
    pub failed: Option<(CqeSyndrome, u8)>,
}

/// A place of the ring holds what no sending queue completes with.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a completion of kind {0}, which no sending queue has")]
pub struct Mlx5CompletionError(pub u8);

impl Mlx5Completion {
    /// Its bytes in a place of the ring, on a lap with that owner bit.
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

    /// Reads a place of the ring on a lap with that owner bit; `None` as long as the NIC has not written it. Whoever reads memory that the NIC
    /// writes reads the last byte first, and the others after it.
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

    /// An empty place: what a ring is filled with before a NIC has written to it.
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
    fn completions_are_what_the_nic_writes() {
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
        // Of failures the NIC writes the operation in front of the queue pair.
        let mut bytes = bytes;
        bytes[56] = 0x08;
        assert_eq!(Mlx5Completion::from_bytes(&bytes, false), Ok(Some(failed)));
        assert_eq!(Mlx5Completion::from_bytes(&done.to_bytes(false), false), Ok(Some(done)));
    }

    #[test]
    fn a_place_is_read_on_its_own_lap_and_not_before_it_is_written() {
        let done = Mlx5Completion { qp: 1, index: 2, bytes: 0, time: 0, failed: None };
        for lap in [false, true] {
            let read = |bytes: [u8; BYTES]| Mlx5Completion::from_bytes(&bytes, lap);
            assert_eq!(read(done.to_bytes(lap)), Ok(Some(done)));
            assert_eq!(read(done.to_bytes(!lap)), Ok(None), "that of the lap before");
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
    fn every_number_of_a_failure_has_a_meaning_and_back() {
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
        fn completions_read_back(
            qp in 0..1u32 << 24, index: u16, numbers: (u32, u64), failed in prop::option::of(any::<(u8, u8)>()), lap: bool
        ) {
            let failed = failed.map(|(number, vendor)| (CqeSyndrome::from_number(number), vendor));
            let (bytes, time) = if failed.is_some() { (0, 0) } else { numbers };
            let completion = Mlx5Completion { qp, index, bytes, time, failed };
            prop_assert_eq!(Mlx5Completion::from_bytes(&completion.to_bytes(lap), lap), Ok(Some(completion)));
        }
    }
}
