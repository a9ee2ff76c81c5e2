//! Carries the TCP connection of a link, and alters bytes in transit when requested: the network between two ends. Driven by the polls of the
//! list of actions; owns no thread.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

/// Offset of the port at which a link is dialled, in its link address.
const PORT: std::ops::Range<usize> = 100..102;
/// Bytes that are carried at a time.
const CARRIED: usize = 4096;

/// A change of one of the next bytes in a direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteAlteration {
    /// Bytes that pass before it.
    pub(super) after: usize,
    /// The bits that are inverted.
    pub(super) bits: u8,
}

/// The network in front of one end's port.
pub(super) struct WireRelay {
    listener: TcpListener,
    port: SocketAddr,
    /// The connection of the end that dials, and that of the other end.
    sides: Option<[TcpStream; 2]>,
    /// Bytes in transit from each.
    under_way: [Vec<u8>; 2],
    alterations: [Option<ByteAlteration>; 2],
}

impl WireRelay {
    /// Creates a relay in front of the end that an address names, and replaces the port in that address.
    pub(super) fn new(address: &mut [u8]) -> Option<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        listener.set_nonblocking(true).ok()?;
        let port = address.get_mut(PORT)?;
        let end = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::from_le_bytes([port[0], port[1]])));
        port.copy_from_slice(&listener.local_addr().ok()?.port().to_le_bytes());
        Some(Self { listener, port: end, sides: None, under_way: Default::default(), alterations: [None; 2] })
    }

    /// Alters a byte that is sent from a side, on the current connection or the next one.
    pub(super) fn alter_byte(&mut self, from: usize, alteration: ByteAlteration) {
        self.alterations[from] = Some(alteration);
    }

    /// Carries the bytes that have arrived.
    pub(super) fn carry_bytes(&mut self) {
        if self.sides.is_none()
            && let Ok((dials, _)) = self.listener.accept()
            && let Ok(dialled) = TcpStream::connect(self.port)
        {
            let is_ready =
                |side: &TcpStream| side.set_nonblocking(true).is_ok_and(|()| side.set_nodelay(true).is_ok());
            self.sides = Some([dials, dialled]).filter(|sides| sides.iter().all(is_ready));
        }
        let Some(sides) = &mut self.sides else { return };
        for from in [0, 1] {
            let bytes = &mut self.under_way[from];
            if bytes.is_empty() {
                bytes.resize(CARRIED, 0);
                let read = sides[from].read(bytes);
                bytes.truncate(*read.as_ref().unwrap_or(&0));
                let waits = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
                if read.as_ref().map_or_else(|error| !waits(error), |count| *count == 0) {
                    let _ = sides[1 - from].shutdown(Shutdown::Write);
                    continue;
                }
                if let Some(next) = self.alterations[from].as_mut() {
                    match bytes.get_mut(next.after) {
                        Some(byte) => {
                            *byte ^= next.bits;
                            self.alterations[from] = None;
                        }
                        None => next.after -= bytes.len(),
                    }
                }
            }
            match sides[1 - from].write(bytes) {
                Ok(count) => drop(bytes.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => bytes.clear(),
            }
        }
    }
}
