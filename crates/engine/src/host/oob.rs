//! Control streams, local or to other hosts, and the address by which a process is told where it can be reached.
//! Whether two processes share a host is not asked but tried: a local socket reaches whoever does.

use std::net::SocketAddr;

use trunkline_fabric::{Frame, Oob, OobAddress, OobError, OobListener, OobStream, StreamConnections};
use trunkline_proto::wire::cursor::{Reader, Writer};
use trunkline_proto::wire::place;
use trunkline_proto::wire::strand::STRANDS_MAX;

use super::local::{LocalListener, LocalStream, Name};
use super::reach::{LocalUsers, Reach};
use super::remote::{RemoteListener, RemoteStream};

/// First byte of the local part of an address (docs/wire.md, "Control address").
const LOCAL: u8 = 1;

/// Where a process listens.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Places {
    pub(super) local: Option<Name>,
    pub(super) remote: Vec<SocketAddr>,
}

impl Places {
    /// The address; network parts that do not fit are left out, and told by the first of them.
    pub(super) fn address(&self) -> OobAddress {
        let mut out = Writer::default();
        if let Some(name) = self.local {
            out.u8(LOCAL).bytes(&name);
        }
        for &remote in self.remote.iter().take(STRANDS_MAX) {
            if out.0.len() + place::bytes(remote) <= OobAddress::MAX {
                place::write(&mut out, remote);
            }
        }
        OobAddress(out.0)
    }

    /// Parses what a handle says; `None` if it makes no sense.
    pub(super) fn parse(address: &OobAddress) -> Option<Self> {
        let mut places = Self::default();
        let mut reader = Reader(&address.0);
        if let Some(&LOCAL) = reader.0.first() {
            reader.u8().ok()?;
            places.local = Some(reader.array().ok()?);
        }
        while !reader.0.is_empty() {
            places.remote.push(place::read(&mut reader).ok()?);
        }
        let usable = places.remote.len() <= STRANDS_MAX;
        (usable && places != Self::default()).then_some(places)
    }
}

/// Control streams of the operating system.
#[derive(Clone, Debug)]
pub struct UnixOob {
    reach: Reach,
}

impl UnixOob {
    pub(super) fn new(reach: Reach) -> Self {
        Self { reach }
    }

    fn users(&self) -> LocalUsers {
        if self.reach.mutant.is("host-takes-any-user") { LocalUsers::Any } else { self.reach.users }
    }
}

impl Oob for UnixOob {
    type Listener = UnixListener;
    type Stream = UnixStream;

    fn listen(&self) -> Result<UnixListener, OobError> {
        let local = if self.reach.local { Some(LocalListener::new(random()?, self.users())?) } else { None };
        let Reach { addresses, silence, mutant, .. } = &self.reach;
        let reached = !addresses.is_empty();
        let remote = reached.then(|| RemoteListener::new(addresses, *silence, *mutant)).transpose()?;
        Ok(UnixListener { local, remote })
    }

    fn connect(&self, address: &OobAddress) -> Result<UnixStream, OobError> {
        let places = Places::parse(address).ok_or(OobError::Malformed)?;
        if let Some(name) = places.local.filter(|_| self.reach.local) {
            match LocalStream::connect(&name, self.users()) {
                Ok(stream) => return Ok(UnixStream(Way::Local(stream))),
                // Nobody of that name on this host.
                Err(OobError::Closed) => {}
                Err(error) => return Err(error),
            }
        }
        if places.remote.is_empty() {
            return Err(OobError::Closed);
        }
        let Reach { addresses, silence, mutant, .. } = &self.reach;
        let stream = RemoteStream::connect(random()?, places.remote, addresses, *silence, *mutant)?;
        Ok(UnixStream(Way::Remote(Box::new(stream))))
    }
}

fn random() -> Result<Name, OobError> {
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

    fn address(&self) -> OobAddress {
        let local = self.local.as_ref().map(LocalListener::name);
        let remote = self.remote.as_ref().map(|remote| remote.places().to_vec()).unwrap_or_default();
        Places { local, remote }.address()
    }

    fn accept(&mut self) -> Result<Option<UnixStream>, OobError> {
        if let Some(local) = &mut self.local
            && let Some(stream) = local.accept()?
        {
            return Ok(Some(UnixStream(Way::Local(stream))));
        }
        let Some(remote) = &mut self.remote else { return Ok(None) };
        Ok(remote.accept()?.map(|stream| UnixStream(Way::Remote(Box::new(stream)))))
    }
}

/// One control stream.
#[derive(Debug)]
pub struct UnixStream(Way);

#[derive(Debug)]
enum Way {
    Local(LocalStream),
    Remote(Box<RemoteStream>),
}

impl OobStream for UnixStream {
    fn send(&mut self, frame: Frame) -> Result<(), OobError> {
        match &mut self.0 {
            Way::Local(stream) => stream.send(frame),
            Way::Remote(stream) => stream.send(frame.bytes),
        }
    }

    fn recv(&mut self) -> Result<Option<Frame>, OobError> {
        match &mut self.0 {
            Way::Local(stream) => stream.recv(),
            Way::Remote(stream) => Ok(stream.recv()?.map(|bytes| Frame { bytes, fd: None })),
        }
    }

    fn connections(&self) -> Option<StreamConnections> {
        match &self.0 {
            Way::Local(_) => None,
            Way::Remote(stream) => Some(stream.connections()),
        }
    }

    fn is_local(&self) -> bool {
        matches!(self.0, Way::Local(_))
    }

    fn process(&self) -> Option<u32> {
        match &self.0 {
            Way::Local(stream) => stream.process(),
            Way::Remote(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn oob(local: bool, address: Option<&str>) -> UnixOob {
        let addresses = address.iter().map(|a| a.parse().unwrap()).collect();
        UnixOob::new(Reach { local, addresses, ..Reach::default() })
    }

    fn accept(listener: &mut UnixListener) -> UnixStream {
        let started = Instant::now();
        loop {
            if let Some(stream) = listener.accept().unwrap() {
                return stream;
            }
            assert!(started.elapsed().as_secs() < 10, "nobody came");
        }
    }

    #[test]
    fn whoever_shares_the_host_meets_locally_and_others_by_the_network() {
        for (connects, local) in [(oob(true, None), true), (oob(false, None), false)] {
            let mut listener = oob(true, Some("127.0.0.1")).listen().unwrap();
            let client = connects.connect(&listener.address()).unwrap();
            assert_eq!(matches!(client.0, Way::Local(_)), local);
            let server = accept(&mut listener);
            assert_eq!(matches!(server.0, Way::Local(_)), local);
        }
    }

    #[test]
    fn a_name_of_another_host_leads_to_the_network() {
        let listener = oob(false, Some("::1")).listen().unwrap();
        let mut places = Places::parse(&listener.address()).unwrap();
        places.local = Some([9; 16]);
        let client = oob(true, None).connect(&places.address()).unwrap();
        assert!(matches!(client.0, Way::Remote(_)));
    }

    #[test]
    fn who_cannot_be_reached_says_so() {
        let listener = oob(true, None).listen().unwrap();
        assert!(matches!(oob(false, None).connect(&listener.address()), Err(OobError::Closed)));
        for bytes in [&[][..], &[1], &[1; 16], &[4, 127, 0, 0, 1, 0, 0], &[6; 18], &[2; 17]] {
            let connected = oob(true, None).connect(&OobAddress(bytes.to_vec()));
            assert!(matches!(connected, Err(OobError::Malformed)), "{bytes:?}");
        }
    }

    #[test]
    fn addresses_are_short_and_come_back() {
        let four = ["192.0.2.1:7", "192.0.2.2:8", "192.0.2.3:9", "192.0.2.4:65535"];
        let v6 = ["[2001:db8::1]:65535", "[2001:db8::2]:1", "192.0.2.1:2"];
        let five = [four[0]; 5];
        // What does not fit is left out.
        for (told, kept) in [(&[][..], 0), (&four[..1], 1), (&four, 4), (&five, 4), (&v6[..1], 1), (&v6, 2)] {
            let remote = told.iter().map(|at| at.parse().unwrap()).collect();
            let address = Places { local: Some([3; 16]), remote }.address();
            assert!(address.0.len() <= OobAddress::MAX);
            let back = Places::parse(&address).unwrap();
            assert_eq!((back.local, back.remote.len()), (Some([3; 16]), kept), "{told:?}");
        }
        let mut many = Places { local: None, remote: vec![four[0].parse().unwrap(); 4] }.address();
        assert!(Places::parse(&many).is_some());
        many.0.extend([4, 192, 0, 2, 1, 7, 0]);
        assert!(Places::parse(&many).is_none(), "five addresses");
    }
}
