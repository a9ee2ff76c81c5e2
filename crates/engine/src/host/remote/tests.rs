use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant as Stopwatch;

use rustix::net::sockopt;
use trunkline_proto::control::StrandEnd;
use trunkline_proto::wire::strand::{HEAD, StrandHead, StrandRecordKind};

use super::super::control_connection::QUESTIONS;
use super::*;

const SILENCE: Duration = Duration::from_secs(10);
const NAME: StreamName = [7; 16];

fn until<T>(mut step: impl FnMut() -> Option<T>) -> T {
    let started = Stopwatch::now();
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(started.elapsed().as_secs() < 10, "the awaited event did not happen within 10 s");
    }
}

/// Loopback addresses, as if each were an interface.
fn addresses(count: u8) -> Vec<IpAddr> {
    (1..=count).map(|last| Ipv4Addr::new(127, 0, 0, last).into()).collect()
}

fn listener(count: u8) -> RemoteListener {
    RemoteListener::new(&addresses(count), SILENCE).unwrap()
}

fn connect(listener: &RemoteListener, known: usize) -> RemoteStream {
    let places = listener.listen_addresses()[..known].to_vec();
    RemoteStream::connect(NAME, places, &addresses(1), SILENCE).unwrap()
}

/// Accepts further connections, which all join the existing stream.
fn merge(listener: &mut RemoteListener) {
    while let Some(mut other) = listener.accept().unwrap() {
        until(|| match other.recv() {
            Ok(None) => None,
            // `Closed` is an attempt that was dropped, because another one was faster.
            Err(OobError::Merged | OobError::Closed) => Some(()),
            other => panic!("{other:?}"),
        });
    }
}

/// Returns both ends of a stream with this many strands, all of them joined.
fn woven(strands: usize) -> (RemoteListener, RemoteStream, RemoteStream) {
    let mut listener = listener(strands as u8);
    // The client knows one address, and receives the others.
    let mut client = connect(&listener, 1);
    let mut server = until(|| listener.accept().unwrap());
    weave(&mut listener, &mut client, &mut server, strands);
    (listener, client, server)
}

fn weave(
    listener: &mut RemoteListener,
    client: &mut RemoteStream,
    server: &mut RemoteStream,
    strands: usize,
) {
    until(|| {
        assert!(client.recv().unwrap().is_none() && server.recv().unwrap().is_none());
        merge(listener);
        let joined =
            |stream: &RemoteStream| stream.strands.iter().filter(|strand| strand.is_joined()).count();
        assert_eq!(
            [client.connection_counts().now, server.connection_counts().now],
            [joined(client), joined(server)]
        );
        (joined(client) == strands && joined(server) == strands).then_some(())
    });
}

/// Cuts a strand as the kernel would without its cable: nothing of it arrives any more, at either end.
fn cut(one: &mut RemoteStream, other: &mut RemoteStream, slot: usize) {
    let at = one.strands.iter().position(|strand| strand.slot == slot && strand.is_joined()).unwrap();
    let port = rustix::net::getsockname(one.strands[at].fd()).unwrap();
    let matches =
        |strand: &ControlConnection| rustix::net::getpeername(strand.fd()).unwrap().unwrap() == port;
    let there = other.strands.iter().position(matches).unwrap();
    // Closed without a record that the other end could read.
    for (stream, at) in [(one, at), (other, there)] {
        let fault = ConnectionFault { end: StrandEnd::Silence, error: OobError::Closed };
        stream.drop_connection(at, fault, monotonic_now());
    }
}

fn pass(from: &mut RemoteStream, to: &mut RemoteStream, frames: std::ops::Range<u32>) {
    for number in frames.clone() {
        from.send(number.to_le_bytes().to_vec()).unwrap();
    }
    for number in frames {
        let came = until(|| {
            from.recv().unwrap();
            to.recv().unwrap()
        });
        assert_eq!(came, number.to_le_bytes());
    }
}

#[test]
fn frames_keep_their_bounds_and_precede_the_end() {
    let (_listener, mut a, mut b) = woven(1);
    let sizes = [1, 3, 4096, 4095, 2, 4096];
    for (number, size) in sizes.into_iter().enumerate() {
        a.send(vec![number as u8; size]).unwrap();
    }
    drop(a);
    for (number, size) in sizes.into_iter().enumerate() {
        assert_eq!(until(|| b.recv().unwrap()), vec![number as u8; size]);
    }
    assert!(matches!(until(|| b.recv().map(|_| ()).err()), OobError::Closed));
    assert!(matches!(b.recv(), Err(OobError::Closed)) && matches!(b.send(vec![1]), Err(OobError::Closed)));
}

#[test]
fn frames_sent_before_the_accept_arrive() {
    let mut listener = listener(2);
    let mut client = connect(&listener, 2);
    client.send(vec![1; 32]).unwrap();
    let mut server = until(|| listener.accept().unwrap());
    server.send(vec![2; 40]).unwrap();
    assert_eq!(until(|| server.recv().unwrap()), [1; 32]);
    assert_eq!(until(|| client.recv().unwrap()), [2; 40]);
    weave(&mut listener, &mut client, &mut server, 2);
}

/// Drops a stream as if its process were killed: no strand sends END.
fn kill(stream: &mut RemoteStream) {
    stream.strands.clear();
}

#[test]
fn stream_survives_lost_strands_but_not_its_process() {
    let (listener, mut a, mut b) = woven(3);
    pass(&mut a, &mut b, 0..100);
    for slot in [0, 2] {
        cut(&mut a, &mut b, slot);
        pass(&mut a, &mut b, 0..100);
        pass(&mut b, &mut a, 0..100);
    }
    // Attempts that the listener has accepted end with it.
    drop(listener);
    kill(&mut b);
    assert!(matches!(until(|| a.recv().map(|_| ()).err()), OobError::Closed));
    assert!(matches!(a.send(vec![1]), Err(OobError::Closed)));
    let (_listener, mut a, mut b) = woven(2);
    kill(&mut a);
    assert!(matches!(until(|| b.recv().map(|_| ()).err()), OobError::Closed));
}

/// Both ends keep sent frames until a path works again.
#[test]
fn stream_recovers_after_all_its_strands_are_lost() {
    let (mut listener, mut a, mut b) = woven(2);
    for _ in 0..3 {
        cut(&mut a, &mut b, 0);
        cut(&mut a, &mut b, 1);
        assert_eq!([a.connection_counts().now, b.connection_counts().now], [0, 0]);
        for stream in [&mut a, &mut b] {
            assert!(stream.recv().unwrap().is_none());
            stream.send(vec![7; 9]).unwrap();
        }
        let mut came = [false; 2];
        until(|| {
            merge(&mut listener);
            for (came, stream) in came.iter_mut().zip([&mut a, &mut b]) {
                *came |= stream.recv().unwrap().is_some_and(|frame| frame == [7; 9]);
            }
            (came == [true; 2]).then_some(())
        });
        weave(&mut listener, &mut a, &mut b, 2);
    }
}

/// Frames that were sent only over the lost strand are delivered by the next one.
#[test]
fn replaced_strand_delivers_missing_frames() {
    let (mut listener, mut a, mut b) = woven(2);
    for slot in [0, 1, 0] {
        cut(&mut a, &mut b, slot);
        weave(&mut listener, &mut a, &mut b, 2);
        // Only the other strand has the frames.
        let other = a.strands.iter().position(|strand| strand.slot != slot).unwrap();
        let stopped = a.strands.remove(other);
        pass(&mut a, &mut b, 0..3);
        a.strands.push(stopped);
        pass(&mut b, &mut a, 0..3);
    }
}

#[test]
fn oversized_and_empty_frames_are_rejected() {
    let (_listener, mut a, mut b) = woven(1);
    for bytes in [vec![0; OobFrame::MAX + 1], Vec::new()] {
        assert!(matches!(a.send(bytes), Err(OobError::Malformed)));
    }
    pass(&mut a, &mut b, 0..1);
}

#[test]
fn unread_frames_overflow_without_losing_earlier_ones() {
    let (_listener, mut a, mut b) = woven(2);
    let mut sent = 0_u32;
    let error = loop {
        let mut bytes = sent.to_le_bytes().to_vec();
        bytes.resize(4096, 0);
        match a.send(bytes) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, OobError::Overflow));
    for expected in 0..sent {
        let frame = until(|| {
            a.recv().unwrap();
            b.recv().unwrap()
        });
        assert_eq!(frame[..4], expected.to_le_bytes());
    }
    pass(&mut a, &mut b, sent..sent + 1);
}

#[test]
fn one_way_traffic_is_acknowledged() {
    let (_listener, mut a, mut b) = woven(2);
    for round in 0..100 {
        pass(&mut a, &mut b, round * 8..(round + 1) * 8);
    }
    until(|| {
        assert!(a.recv().unwrap().is_none() && b.recv().unwrap().is_none());
        (a.resume.frames_sent() - a.resume.first_kept() < 16).then_some(())
    });
}

#[test]
fn connect_fails_without_a_listener() {
    let gone = listener(2).listen_addresses().to_vec();
    let refused = match RemoteStream::connect(NAME, gone, &[], SILENCE) {
        Ok(mut stream) => until(|| stream.recv().map(|_| ()).err()),
        Err(error) => error,
    };
    assert!(matches!(refused, OobError::Closed));
}

#[test]
fn listener_skips_unbindable_addresses_unless_none_remains() {
    let not_ours: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
    let ours: IpAddr = Ipv4Addr::LOCALHOST.into();
    let both = RemoteListener::new(&[not_ours, ours], SILENCE).unwrap();
    assert_eq!(both.listen_addresses().iter().map(SocketAddr::ip).collect::<Vec<_>>(), [ours]);
    assert!(matches!(RemoteListener::new(&[not_ours], SILENCE), Err(OobError::System { what: "bind", .. })));
}

#[test]
fn strands_use_keepalive_and_user_timeout() {
    let (_listener, a, b) = woven(2);
    for strand in a.strands.iter().chain(&b.strands) {
        assert!(sockopt::socket_keepalive(strand.fd()).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(strand.fd()).unwrap(), 10_000);
        let idle = sockopt::tcp_keepidle(strand.fd()).unwrap();
        let step = sockopt::tcp_keepintvl(strand.fd()).unwrap();
        assert!(idle + step * QUESTIONS <= std::time::Duration::from_secs(10), "{idle:?} {step:?}");
    }
}

fn record(kind: StrandRecordKind, number: u64, received: u64, body: &[u8]) -> Vec<u8> {
    let head = StrandHead { kind, len: body.len() as u16, number, received };
    [&head.to_bytes()[..], body].concat()
}

fn join(name: StreamName, received: u64) -> Vec<u8> {
    record(StrandRecordKind::Join, 0, received, &StrandJoin { name, places: Vec::new() }.to_bytes())
}

/// Returns the final error of a stream that was begun by these bytes of an unrelated process.
fn heard(listener: &mut RemoteListener, bytes: &[u8]) -> (OobError, TcpStream) {
    let mut stranger = TcpStream::connect(listener.listen_addresses()[0]).unwrap();
    stranger.write_all(bytes).unwrap();
    let mut stream = until(|| listener.accept().unwrap());
    (until(|| stream.recv().map(|_| ()).err()), stranger)
}

#[test]
fn invalid_records_close_only_their_strand() {
    let (mut listener, mut a, mut b) = woven(1);
    let frame = |number, received| record(StrandRecordKind::Frame, number, received, &[1]);
    let good = join([8; 16], 0);
    let malformed = [
        vec![0; HEAD],
        b"GET / HTTP/1.0\r\n\r\n    ".to_vec(),
        // In order: the first record is no JOIN; a second JOIN; a gap; an acknowledgement of frames that were not sent.
        frame(0, 0),
        [good.clone(), good.clone()].concat(),
        [good.clone(), frame(1, 0)].concat(),
        [good.clone(), frame(0, 1)].concat(),
        [good.clone(), record(StrandRecordKind::Taken, 0, 1, &[])].concat(),
        record(StrandRecordKind::Join, 0, 0, &[0; 24]),
    ];
    for bytes in &malformed {
        let (error, _) = heard(&mut listener, bytes);
        assert!(matches!(error, OobError::Malformed), "{bytes:?}: {error:?}");
    }
    // A stream that does not exist cannot be continued; END ends one.
    for bytes in [join([8; 16], 1), [good, record(StrandRecordKind::End, 0, 0, &[])].concat()] {
        let (error, mut stranger) = heard(&mut listener, &bytes);
        assert!(matches!(error, OobError::Closed), "{bytes:?}: {error:?}");
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    pass(&mut a, &mut b, 0..10);
}

/// A process that knows the name of a stream may add strands, but only valid ones. The stream loses nothing by invalid ones, and
/// holds a bounded number of strands.
#[test]
fn invalid_join_affects_no_other_strand() {
    let (mut listener, mut a, mut b) = woven(1);
    pass(&mut b, &mut a, 0..40);
    until(|| {
        assert!(a.recv().unwrap().is_none() && b.recv().unwrap().is_none());
        (b.resume.first_kept() > 0).then_some(())
    });
    for received in [0, 1000] {
        let (error, mut stranger) = heard(&mut listener, &join(NAME, received));
        assert!(matches!(error, OobError::Merged));
        assert!(b.recv().unwrap().is_none());
        assert_eq!((b.strands.len(), stranger.read(&mut [0; 100]).unwrap_or(0)), (1, 0));
    }
    let received = b.resume.frames_sent();
    let more: Vec<TcpStream> = (0..20)
        .map(|_| {
            let (error, stranger) = heard(&mut listener, &join(NAME, received));
            assert!(matches!(error, OobError::Merged));
            assert!(b.recv().unwrap().is_none());
            stranger
        })
        .collect();
    assert_eq!(b.strands.len(), 2 * STRANDS_MAX);
    drop(more);
    assert!(matches!(until(|| b.recv().map(|_| ()).err()), OobError::Closed));
}
