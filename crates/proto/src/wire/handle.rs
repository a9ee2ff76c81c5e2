//! The connection handle: 128 bytes that `listen` creates and the application carries to the connecting process. Layout: "Connection handle" of
//! docs/wire.md. This module opens no connection.

use alloc::vec::Vec;

use crate::id::ProcessId;
use crate::limits::RAILS_MAX;
use crate::nics::NicList;
use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};
use crate::wire::fabric::{ChosenFabric, FABRIC_BYTES};

/// Size of a handle in bytes (`NCCL_NET_HANDLE_MAXSIZE`).
pub const BYTES: usize = 128;

/// Longest control address, in bytes.
pub const ADDRESS_MAX: usize = 48;

const MAGIC: [u8; 4] = *b"TRKL";
const VERSION: u16 = 3;
const STATE: core::ops::Range<usize> = 56..64;
const NICS: usize = 112;
const FABRIC: usize = 120;

/// A listener, as the connecting process needs it. The handle begins with `TRKL`, its version at offset 4 (2 bytes) and the used bytes of the address
/// at 6 (2 bytes).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConnectionHandle {
    /// Offset 8, 16 bytes: the listening process.
    pub process: ProcessId,
    /// Offset 24, 16 bytes: random number of the listener. It proves that a connecting process received this handle.
    pub nonce: [u8; 16],
    /// Offset 112, 8 bytes: the NICs of the listening process for the comm, one per rail, at least one. Their number is at offset 44, 1 byte.
    pub nics: NicList,
    /// Offset 48, 8 bytes: the id of the listener.
    pub listen: u64,
    /// Offset 64, 48 bytes: the address at which its control streams are accepted, 1 to [`ADDRESS_MAX`] bytes.
    pub address: Vec<u8>,
    /// Offset 56, 8 bytes: the connecting process's id of the current attempt, 0 if none.
    pub attempt: u64,
    /// Offset 40, 4 bytes: whether RCCL has marked the connection as point-to-point.
    pub p2p: bool,
    /// Offset 45, 1 byte: whether processes of the listener's host may request its NIC for processes on the same host.
    pub near: bool,
    /// Offset 120, 7 bytes: the fabric that the listening process chose.
    pub fabric: ChosenFabric,
}

/// Why a handle is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ConnectionHandleError {
    /// The first bytes are not those of a handle of Trunkline.
    #[error("the bytes are not a connection handle of Trunkline")]
    Foreign,
    /// The version is not that of this code.
    #[error("the handle has format version {0}, this process reads version {VERSION}")]
    Version(u16),
    /// A field is out of range, or fields contradict each other.
    #[error("a field of the handle is out of range, or contradicts another one")]
    Malformed,
}

impl From<ShortInput> for ConnectionHandleError {
    fn from(_: ShortInput) -> Self {
        Self::Malformed
    }
}

impl ConnectionHandle {
    /// Returns the handle's bytes. An address that is too long is truncated; every reader rejects such a handle, and one without NICs.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut out = FieldWriter::default();
        out.bytes(&MAGIC).u16(VERSION).u16(u16::try_from(self.address.len()).unwrap_or(u16::MAX));
        out.bytes(&self.process.0).bytes(&self.nonce).u32(self.p2p.into()).u8(self.nics.len());
        out.u8(self.near.into()).bytes(&[0; 2]);
        out.u64(self.listen).u64(self.attempt);
        out.bytes(&self.address[..self.address.len().min(ADDRESS_MAX)]);
        let mut bytes = [0; BYTES];
        bytes[..out.0.len()].copy_from_slice(&out.0);
        for at in 0..RAILS_MAX {
            let nic = self.nics.nic_numbers().get(at).copied().unwrap_or(NicList::NOBODY);
            bytes[NICS + 2 * at..][..2].copy_from_slice(&nic.to_le_bytes());
        }
        bytes[FABRIC..][..FABRIC_BYTES].copy_from_slice(&self.fabric.to_bytes());
        bytes
    }

    /// Parses a handle. Any value other than 0 in bytes 40 to 43 counts as RCCL's flag.
    ///
    /// # Errors
    /// [`ConnectionHandleError`] names the cause.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Result<Self, ConnectionHandleError> {
        let mut reader = FieldReader(bytes);
        if reader.array::<4>()? != MAGIC {
            return Err(ConnectionHandleError::Foreign);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(ConnectionHandleError::Version(version));
        }
        let used = usize::from(reader.u16()?);
        if used == 0 || used > ADDRESS_MAX {
            return Err(ConnectionHandleError::Malformed);
        }
        let process = ProcessId(reader.array()?);
        let nonce = reader.array()?;
        let p2p = reader.array::<4>()? != [0; 4];
        let [rails, near, ..] = reader.array::<4>()?;
        let listen = reader.u64()?;
        let attempt = reader.u64()?;
        let address = reader.bytes(ADDRESS_MAX)?[..used].to_vec();
        let nics = read_nics(&mut reader, rails)?;
        let fabric = ChosenFabric::from_bytes(reader.array()?).ok_or(ConnectionHandleError::Malformed)?;
        Ok(Self { process, nonce, nics, listen, address, attempt, p2p, near: near == 1, fabric })
    }

    /// Writes the id of the current attempt into a handle's bytes.
    pub fn set_attempt(bytes: &mut [u8; BYTES], attempt: u64) {
        bytes[STATE].copy_from_slice(&attempt.to_le_bytes());
    }
}

/// Parses one NIC per rail, all different, and unused places after them.
fn read_nics(reader: &mut FieldReader<'_>, rails: u8) -> Result<NicList, ConnectionHandleError> {
    let mut numbers = [0; RAILS_MAX];
    for number in &mut numbers {
        *number = reader.u16()?;
    }
    let (named, behind) =
        numbers.split_at_checked(usize::from(rails)).ok_or(ConnectionHandleError::Malformed)?;
    let ends = behind.iter().all(|&nic| nic == NicList::NOBODY);
    NicList::new(named).filter(|nics| !nics.is_empty() && ends).ok_or(ConnectionHandleError::Malformed)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn handle(nics: &[u16], address: Vec<u8>) -> ConnectionHandle {
        let process = ProcessId([1; 16]);
        let nonce = [2; 16];
        let nics = NicList::new(nics).unwrap();
        let fabric = ChosenFabric::new("ofi", "efa");
        ConnectionHandle {
            process,
            nonce,
            nics,
            listen: 3,
            address,
            attempt: 4,
            p2p: false,
            near: true,
            fabric,
        }
    }

    #[test]
    fn layout_is_the_documented_one() {
        let bytes = handle(&[5, 0x0607], vec![9; ADDRESS_MAX]).to_bytes();
        assert_eq!(bytes[..8], [b'T', b'R', b'K', b'L', 3, 0, 48, 0]);
        assert_eq!(bytes[40..48], [0, 0, 0, 0, 2, 1, 0, 0]);
        assert_eq!(bytes[111], 9, "the address ends where the NICs begin");
        assert_eq!(bytes[112..120], [5, 0, 7, 6, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(bytes[120..], *b"\x03efa\0\0\0\0");
    }

    #[test]
    fn fabric_name_that_is_not_text_is_rejected() {
        let mut bytes = handle(&[0], vec![9]).to_bytes();
        bytes[121] = 0x1b;
        assert_eq!(ConnectionHandle::from_bytes(&bytes), Err(ConnectionHandleError::Malformed));
        // The fabric of a newer version is parsed, so that the error can name it.
        bytes[120..127].copy_from_slice(&[9, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ConnectionHandle::from_bytes(&bytes).unwrap().fabric.to_bytes()[0], 9);
    }

    #[test]
    fn version_error_contains_the_version() {
        let mut bytes = handle(&[0], vec![9]).to_bytes();
        for version in [1, 2, 4] {
            bytes[4] = version;
            assert_eq!(
                ConnectionHandle::from_bytes(&bytes),
                Err(ConnectionHandleError::Version(version.into()))
            );
        }
    }

    #[test]
    fn handle_has_one_distinct_nic_per_rail() {
        let good = handle(&[3, 1], vec![9]).to_bytes();
        let read = |rails: u8, numbers: [u16; RAILS_MAX]| {
            let mut bytes = good;
            bytes[44] = rails;
            for (at, number) in numbers.iter().enumerate() {
                bytes[NICS + 2 * at..][..2].copy_from_slice(&number.to_le_bytes());
            }
            ConnectionHandle::from_bytes(&bytes).map(|handle| handle.nics.nic_numbers().to_vec())
        };
        let none = NicList::NOBODY;
        for (rails, numbers) in [
            (0, [none; 4]),
            (0, [1, none, none, none]),
            (5, [1, 2, 3, 4]),
            (0xff, [1, 2, 3, 4]),
            (1, [none; 4]),
            (3, [3, 1, none, none]),
            (1, [3, 1, none, none]),
            (2, [3, none, 1, none]),
            (2, [none, 3, 1, none]),
            (2, [3, 1, none, 2]),
            (2, [3, 3, none, none]),
            (4, [3, 1, 2, 1]),
            (1, [none - 1, none, none, none]),
        ] {
            assert_eq!(
                read(rails, numbers),
                Err(ConnectionHandleError::Malformed),
                "{rails} rails: {numbers:?}"
            );
        }
        assert_eq!(read(1, [0, none, none, none]), Ok(vec![0]));
        assert_eq!(read(2, [3, 1, none, none]), Ok(vec![3, 1]));
        assert_eq!(read(4, [3, 1, 2, 0]), Ok(vec![3, 1, 2, 0]));
    }

    #[test]
    fn handle_without_nics_or_address_is_rejected() {
        assert_eq!(
            ConnectionHandle::from_bytes(&handle(&[], vec![9]).to_bytes()),
            Err(ConnectionHandleError::Malformed)
        );
        for len in [0, ADDRESS_MAX + 1] {
            let bytes = handle(&[0], vec![9; len]).to_bytes();
            assert_eq!(ConnectionHandle::from_bytes(&bytes), Err(ConnectionHandleError::Malformed), "{len}");
        }
    }

    proptest! {
        #[test]
        fn values_round_trip(
            names: ([u8; 16], [u8; 16]),
            numbers in prop::collection::btree_set(0..NicList::NOBODY - 1, 1..=RAILS_MAX),
            turned: bool,
            address in prop::collection::vec(any::<u8>(), 1..=ADDRESS_MAX),
            ids: (u64, u64),
            near: bool,
            qualifier in "[a-z0-9]{0,6}",
        ) {
            let mut numbers: Vec<u16> = numbers.into_iter().collect();
            if turned {
                numbers.reverse();
            }
            let (process, nonce, nics) = (ProcessId(names.0), names.1, NicList::new(&numbers).unwrap());
            let fabric = ChosenFabric::new("soft", &qualifier);
            let handle =
                ConnectionHandle { process, nonce, nics, listen: ids.0, address, attempt: ids.1, p2p: false, near, fabric };
            let mut bytes = handle.to_bytes();
            prop_assert_eq!(ConnectionHandle::from_bytes(&bytes), Ok(handle.clone()));
            ConnectionHandle::set_attempt(&mut bytes, !ids.1);
            bytes[40..44].fill(0xa5);
            prop_assert_eq!(ConnectionHandle::from_bytes(&bytes), Ok(ConnectionHandle { attempt: !ids.1, p2p: true, ..handle }));
        }
    }
}
