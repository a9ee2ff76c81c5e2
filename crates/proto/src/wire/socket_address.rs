//! A network address and port, in control addresses and in the JOIN of a strand: the family (1 byte), the address (4 or 16 bytes) and the port (2
//! bytes). Parsed from handles and from peers; it does not prove which process listens there.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};

/// First byte of an IPv4 address (4 bytes and the port follow).
pub const V4: u8 = 4;
/// First byte of an IPv6 address (16 bytes and the port follow).
pub const V6: u8 = 6;

/// Why an address is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PlaceError {
    /// It is too short.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// The family is unknown.
    #[error("an address has the unknown family {0}")]
    Kind(u8),
    /// The port is 0, on which no process can listen.
    #[error("an address has port 0")]
    Port,
}

/// Returns the size of an address in bytes.
#[must_use]
pub const fn address_bytes(place: SocketAddr) -> usize {
    match place {
        SocketAddr::V4(_) => 1 + 4 + 2,
        SocketAddr::V6(_) => 1 + 16 + 2,
    }
}

/// Appends an address.
pub fn write_address(out: &mut FieldWriter, place: SocketAddr) {
    match place.ip() {
        IpAddr::V4(ip) => out.u8(V4).bytes(&ip.octets()),
        IpAddr::V6(ip) => out.u8(V6).bytes(&ip.octets()),
    };
    out.u16(place.port());
}

/// Parses an address.
///
/// # Errors
/// [`PlaceError`] names the invalid field.
pub fn read_address(reader: &mut FieldReader<'_>) -> Result<SocketAddr, PlaceError> {
    let ip = match reader.u8()? {
        V4 => IpAddr::V4(Ipv4Addr::from(reader.array::<4>()?)),
        V6 => IpAddr::V6(Ipv6Addr::from(reader.array::<16>()?)),
        other => return Err(PlaceError::Kind(other)),
    };
    let port = reader.u16()?;
    if port == 0 {
        return Err(PlaceError::Port);
    }
    Ok(SocketAddr::new(ip, port))
}
