//! Control streams, local or to other hosts, and the address of a process for them. Whether two processes share a host is found
//! out by connecting: a local socket succeeds exactly then.

use std::net::SocketAddr;

use trunkline_fabric::{
    OobAddress, OobError, OobFrame, OobListener, OobStream, OobTransport, StreamConnections,
};
use trunkline_proto::wire::cursor::{FieldReader, FieldWriter};
use trunkline_proto::wire::socket_address;
use trunkline_proto::wire::strand::STRANDS_MAX;

use super::local::{LocalListener, LocalStream, SocketName};
use super::reach::ControlReach;
use super::remote::{RemoteListener, RemoteStream};

/// First byte of the local part of an address (docs/wire.md, "Control address").
const LOCAL: u8 = 1;

/// The listening addresses of a process.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct ListenAddresses {
    pub(super) local: Option<SocketName>,
    pub(super) remote: Vec<SocketAddr>,
}

impl ListenAddresses {
    /// Returns the encoded address. Network parts that do not fit are left out, and the first of them carries their number.
    pub(super) fn to_address(&self) -> OobAddress {
        let mut out = FieldWriter::default();
        if let Some(name) = self.local {
            out.u8(LOCAL).bytes(&name);
        }
        for &remote in self.remote.iter().take(STRANDS_MAX) {
            if out.0.len() + socket_address::address_bytes(remote) <= OobAddress::MAX {
                socket_address::write_address(&mut out, remote);
            }
        }
        OobAddress(out.0)
    }

    /// Parses the address of a handle; `None` if it is invalid.
    pub(super) fn parse_address(address: &OobAddress) -> Option<Self> {
        let mut places = Self::default();
        let mut reader = FieldReader(&address.0);
        if let Some(&LOCAL) = reader.0.first() {
            reader.u8().ok()?;
            places.local = Some(reader.array().ok()?);
        }
        while !reader.0.is_empty() {
            places.remote.push(socket_address::read_address(&mut reader).ok()?);
        }
        let usable = places.remote.len() <= STRANDS_MAX;
        (usable && places != Self::default()).then_some(places)
    }
}

/// Control streams of the operating system.
#[derive(Clone, Debug)]
pub struct UnixOob {
    reach: ControlReach,
}

impl UnixOob {
    pub(super) fn new(reach: ControlReach) -> Self {
        Self { reach }
    }
}

impl OobTransport for UnixOob {
    type Listener = UnixListener;
    type Stream = UnixStream;

    fn listen(&self) -> Result<UnixListener, OobError> {
        let local =
            if self.reach.local { Some(LocalListener::new(random_name()?, self.reach.users)?) } else { None };
        let ControlReach { addresses, silence, .. } = &self.reach;
        let reached = !addresses.is_empty();
        let remote = reached.then(|| RemoteListener::new(addresses, *silence)).transpose()?;
        Ok(UnixListener { local, remote })
    }

    fn connect(&self, address: &OobAddress) -> Result<UnixStream, OobError> {
        let places = ListenAddresses::parse_address(address).ok_or(OobError::Malformed)?;
        if let Some(name) = places.local.filter(|_| self.reach.local) {
            match LocalStream::connect(&name, self.reach.users) {
                Ok(stream) => return Ok(UnixStream(StreamTransport::Local(stream))),
                // No process of this host has that name.
                Err(OobError::Closed) => {}
                Err(error) => return Err(error),
            }
        }
        if places.remote.is_empty() {
            return Err(OobError::Closed);
        }
        let ControlReach { addresses, silence, .. } = &self.reach;
        let stream = RemoteStream::connect(random_name()?, places.remote, addresses, *silence)?;
        Ok(UnixStream(StreamTransport::Remote(Box::new(stream))))
    }
}

fn random_name() -> Result<SocketName, OobError> {
    let mut name = [0; 16];
    rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| OobError::System { what: "getrandom", source: errno.into() })?;
    Ok(name)
}

/// Accepts control streams.
#[derive(Debug)]
pub struct UnixListener {
    local: Option<LocalListener>,
    remote: Option<RemoteListener>,
}

impl OobListener for UnixListener {
    type Stream = UnixStream;

    fn listen_address(&self) -> OobAddress {
        let local = self.local.as_ref().map(LocalListener::socket_name);
        let remote =
            self.remote.as_ref().map(|remote| remote.listen_addresses().to_vec()).unwrap_or_default();
        ListenAddresses { local, remote }.to_address()
    }

    fn accept(&mut self) -> Result<Option<UnixStream>, OobError> {
        if let Some(local) = &mut self.local
            && let Some(stream) = local.accept()?
        {
            return Ok(Some(UnixStream(StreamTransport::Local(stream))));
        }
        let Some(remote) = &mut self.remote else { return Ok(None) };
        Ok(remote.accept()?.map(|stream| UnixStream(StreamTransport::Remote(Box::new(stream)))))
    }
}

/// One control stream.
#[derive(Debug)]
pub struct UnixStream(StreamTransport);

#[derive(Debug)]
enum StreamTransport {
    Local(LocalStream),
    Remote(Box<RemoteStream>),
}

impl OobStream for UnixStream {
    fn send(&mut self, frame: OobFrame) -> Result<(), OobError> {
        match &mut self.0 {
            StreamTransport::Local(stream) => stream.send(frame),
            StreamTransport::Remote(stream) => stream.send(frame.bytes),
        }
    }

    fn recv(&mut self) -> Result<Option<OobFrame>, OobError> {
        match &mut self.0 {
            StreamTransport::Local(stream) => stream.recv(),
            StreamTransport::Remote(stream) => Ok(stream.recv()?.map(|bytes| OobFrame { bytes, fd: None })),
        }
    }

    fn connection_counts(&self) -> Option<StreamConnections> {
        match &self.0 {
            StreamTransport::Local(_) => None,
            StreamTransport::Remote(stream) => Some(stream.connection_counts()),
        }
    }

    fn is_local(&self) -> bool {
        matches!(self.0, StreamTransport::Local(_))
    }

    fn peer_pid(&self) -> Option<u32> {
        match &self.0 {
            StreamTransport::Local(stream) => stream.peer_pid(),
            StreamTransport::Remote(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn oob(local: bool, address: Option<&str>) -> UnixOob {
        let addresses = address.iter().map(|a| a.parse().unwrap()).collect();
        UnixOob::new(ControlReach { local, addresses, ..ControlReach::default() })
    }

    fn accept(listener: &mut UnixListener) -> UnixStream {
        let started = Instant::now();
        loop {
            if let Some(stream) = listener.accept().unwrap() {
                return stream;
            }
            assert!(started.elapsed().as_secs() < 10, "no connection arrived within 10 s");
        }
    }

    #[test]
    fn connect_is_local_if_both_ends_allow_it() {
        for (connects, local) in [(oob(true, None), true), (oob(false, None), false)] {
            let mut listener = oob(true, Some("127.0.0.1")).listen().unwrap();
            let client = connects.connect(&listener.listen_address()).unwrap();
            assert_eq!(matches!(client.0, StreamTransport::Local(_)), local);
            let server = accept(&mut listener);
            assert_eq!(matches!(server.0, StreamTransport::Local(_)), local);
        }
    }

    #[test]
    fn foreign_socket_name_falls_back_to_tcp() {
        let listener = oob(false, Some("::1")).listen().unwrap();
        let mut places = ListenAddresses::parse_address(&listener.listen_address()).unwrap();
        places.local = Some([9; 16]);
        let client = oob(true, None).connect(&places.to_address()).unwrap();
        assert!(matches!(client.0, StreamTransport::Remote(_)));
    }

    #[test]
    fn connect_reports_unreachable_and_malformed_addresses() {
        let listener = oob(true, None).listen().unwrap();
        assert!(matches!(oob(false, None).connect(&listener.listen_address()), Err(OobError::Closed)));
        for bytes in [&[][..], &[1], &[1; 16], &[4, 127, 0, 0, 1, 0, 0], &[6; 18], &[2; 17]] {
            let connected = oob(true, None).connect(&OobAddress(bytes.to_vec()));
            assert!(matches!(connected, Err(OobError::Malformed)), "{bytes:?}");
        }
    }

    #[test]
    fn addresses_fit_and_round_trip() {
        let four = ["192.0.2.1:7", "192.0.2.2:8", "192.0.2.3:9", "192.0.2.4:65535"];
        let v6 = ["[2001:db8::1]:65535", "[2001:db8::2]:1", "192.0.2.1:2"];
        let five = [four[0]; 5];
        // Addresses that do not fit are left out.
        for (told, kept) in [(&[][..], 0), (&four[..1], 1), (&four, 4), (&five, 4), (&v6[..1], 1), (&v6, 2)] {
            let remote = told.iter().map(|at| at.parse().unwrap()).collect();
            let address = ListenAddresses { local: Some([3; 16]), remote }.to_address();
            assert!(address.0.len() <= OobAddress::MAX);
            let back = ListenAddresses::parse_address(&address).unwrap();
            assert_eq!((back.local, back.remote.len()), (Some([3; 16]), kept), "{told:?}");
        }
        let mut many =
            ListenAddresses { local: None, remote: vec![four[0].parse().unwrap(); 4] }.to_address();
        assert!(ListenAddresses::parse_address(&many).is_some());
        many.0.extend([4, 192, 0, 2, 1, 7, 0]);
        assert!(ListenAddresses::parse_address(&many).is_none(), "five addresses exceed the limit of four");
    }
}
