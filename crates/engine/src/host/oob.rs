//! Control streams, local or to other hosts, and the address by which a process is told where it can be reached.
//! Whether two processes share a host is not asked but tried: a local socket reaches whoever does.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use trunkline_fabric::{Frame, Oob, OobAddress, OobError, OobListener, OobStream};

use super::local::{LocalListener, LocalStream, Name};
use super::machine::Reach;
use super::remote::{RemoteListener, RemoteStream};

/// First bytes of the parts of an address (docs/wire.md, "Control address").
mod part {
    pub(super) const LOCAL: u8 = 1;
    pub(super) const V4: u8 = 4;
    pub(super) const V6: u8 = 6;
}

/// Where a process listens.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Places {
    local: Option<Name>,
    remote: Option<SocketAddr>,
}

impl Places {
    fn address(&self) -> OobAddress {
        let mut out = Vec::with_capacity(OobAddress::MAX);
        if let Some(name) = self.local {
            out.push(part::LOCAL);
            out.extend_from_slice(&name);
        }
        if let Some(remote) = self.remote {
            match remote.ip() {
                IpAddr::V4(ip) => {
                    out.push(part::V4);
                    out.extend_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    out.push(part::V6);
                    out.extend_from_slice(&ip.octets());
                }
            }
            out.extend_from_slice(&remote.port().to_le_bytes());
        }
        OobAddress(out)
    }

    /// Parses what a handle says; `None` if it makes no sense.
    fn parse(address: &OobAddress) -> Option<Self> {
        let mut places = Self::default();
        let mut rest = address.0.as_slice();
        while let Some((&kind, after)) = rest.split_first() {
            rest = match kind {
                part::LOCAL => {
                    let (name, rest) = after.split_first_chunk::<16>()?;
                    places.local = Some(*name);
                    rest
                }
                part::V4 => {
                    let (ip, after) = after.split_first_chunk::<4>()?;
                    let (port, rest) = after.split_first_chunk::<2>()?;
                    places.remote = Some(SocketAddr::new(IpAddr::from(*ip), u16::from_le_bytes(*port)));
                    rest
                }
                part::V6 => {
                    let (ip, after) = after.split_first_chunk::<16>()?;
                    let (port, rest) = after.split_first_chunk::<2>()?;
                    let ip = Ipv6Addr::from(*ip);
                    places.remote = Some(SocketAddr::new(ip.into(), u16::from_le_bytes(*port)));
                    rest
                }
                _ => return None,
            };
        }
        let usable = places.remote.is_none_or(|remote| remote.port() != 0);
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
}

impl Oob for UnixOob {
    type Listener = UnixListener;
    type Stream = UnixStream;

    fn listen(&self) -> Result<UnixListener, OobError> {
        let local = if self.reach.local { Some(LocalListener::new(random()?)?) } else { None };
        let silence = self.reach.silence;
        let remote = self.reach.address.map(|at| RemoteListener::new(at, silence)).transpose()?;
        Ok(UnixListener { local, remote })
    }

    fn connect(&self, address: &OobAddress) -> Result<UnixStream, OobError> {
        let places = Places::parse(address).ok_or(OobError::Malformed)?;
        if let Some(name) = places.local.filter(|_| self.reach.local) {
            match LocalStream::connect(&name) {
                Ok(stream) => return Ok(UnixStream(Way::Local(stream))),
                // Nobody of that name on this host.
                Err(OobError::Closed) => {}
                Err(error) => return Err(error),
            }
        }
        let remote = places.remote.ok_or(OobError::Closed)?;
        Ok(UnixStream(Way::Remote(RemoteStream::connect(remote, self.reach.silence)?)))
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
        let remote = self.remote.as_ref().map(RemoteListener::address);
        Places { local, remote }.address()
    }

    fn accept(&mut self) -> Result<Option<UnixStream>, OobError> {
        if let Some(local) = &mut self.local
            && let Some(stream) = local.accept()?
        {
            return Ok(Some(UnixStream(Way::Local(stream))));
        }
        let Some(remote) = &mut self.remote else { return Ok(None) };
        Ok(remote.accept()?.map(|stream| UnixStream(Way::Remote(stream))))
    }
}

/// One control stream.
#[derive(Debug)]
pub struct UnixStream(Way);

#[derive(Debug)]
enum Way {
    Local(LocalStream),
    Remote(RemoteStream),
}

impl OobStream for UnixStream {
    fn send(&mut self, frame: Frame) -> Result<(), OobError> {
        match &mut self.0 {
            Way::Local(stream) => stream.send(frame),
            Way::Remote(stream) => stream.send(&frame.bytes),
        }
    }

    fn recv(&mut self) -> Result<Option<Frame>, OobError> {
        match &mut self.0 {
            Way::Local(stream) => stream.recv(),
            Way::Remote(stream) => Ok(stream.recv()?.map(|bytes| Frame { bytes, fd: None })),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn oob(local: bool, address: Option<&str>) -> UnixOob {
        UnixOob::new(Reach { local, address: address.map(|a| a.parse().unwrap()), ..Reach::default() })
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
        for remote in [None, Some("192.0.2.1:7"), Some("[2001:db8::1]:65535")] {
            let places = Places { local: Some([3; 16]), remote: remote.map(|r| r.parse().unwrap()) };
            let address = places.address();
            assert!(address.0.len() <= OobAddress::MAX);
            assert_eq!(Places::parse(&address), Some(places));
        }
    }
}
