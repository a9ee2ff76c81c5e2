//! Plain sockets between two hosts of a testbed.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use trunkline_integration::testbed::TestHost;

/// Longest wait for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A TCP connection: the connecting side's end, and the end at the host that has the address.
pub(crate) fn connect(from: &TestHost, to: &TestHost, address: IpAddr) -> (TcpStream, TcpStream) {
    let listener = to.call_on_host(|| TcpListener::bind((address, 0)).unwrap());
    let at = listener.local_addr().unwrap();
    let near = from.call_on_host(|| TcpStream::connect_timeout(&at, LIMIT).unwrap());
    let far = listener.accept().unwrap().0;
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
    }
    (near, far)
}

/// A datagram socket at each address, connected to each other; a read waits no longer than `wait`.
pub(crate) fn datagrams(
    from: (&TestHost, IpAddr),
    to: (&TestHost, IpAddr),
    wait: Duration,
) -> (UdpSocket, UdpSocket) {
    let open = |(host, address): (&TestHost, IpAddr)| {
        let socket = host.call_on_host(|| UdpSocket::bind((address, 0)).unwrap());
        socket.set_read_timeout(Some(wait)).unwrap();
        socket
    };
    let (near, far) = (open(from), open(to));
    let address = |socket: &UdpSocket| -> SocketAddr { socket.local_addr().unwrap() };
    near.connect(address(&far)).unwrap();
    far.connect(address(&near)).unwrap();
    (near, far)
}

/// Byte `at` of the stream that the functions below send and expect.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 16) as u8
}

/// Writes `bytes` bytes of the stream and ends it.
pub(crate) fn send(mut stream: &TcpStream, bytes: usize) {
    let all: Vec<u8> = (0..bytes).map(byte).collect();
    stream.write_all(&all).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
}

/// Reads the stream to its end, which must be right byte by byte; returns the time of the reading.
pub(crate) fn receive(mut stream: &TcpStream, bytes: usize) -> Duration {
    let begun = Instant::now();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), bytes);
    assert!(all.iter().enumerate().all(|(at, &one)| one == byte(at)), "a byte is wrong");
    begun.elapsed()
}

/// Sends a stream from one end and checks it at the other.
pub(crate) fn transfer(near: &TcpStream, far: &TcpStream, bytes: usize) -> Duration {
    std::thread::scope(|scope| {
        scope.spawn(|| send(near, bytes));
        receive(far, bytes)
    })
}

/// The shortest of some round trips of one byte.
pub(crate) fn round_trip(mut near: &TcpStream, mut far: &TcpStream) -> Duration {
    let one = |_| {
        let begun = Instant::now();
        near.write_all(&[1]).unwrap();
        far.read_exact(&mut [0]).unwrap();
        far.write_all(&[1]).unwrap();
        near.read_exact(&mut [0]).unwrap();
        begun.elapsed()
    };
    (0..5).map(one).min().unwrap()
}
