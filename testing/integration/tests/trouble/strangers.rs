//! Peers that find the control socket and violate the protocol. The frames are made here by hand, from `docs/wire.md`.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use rustix::process::{Resource, getrlimit, setrlimit};

use trunkline_proto::wire::frame::VERSION;

use crate::contract::messages::round;
use crate::net::{Handle, LINES, Net, logged, until};
use crate::run::Scene;

scenarios! {
    invalid_peers_are_refused_with_one_line_each,
    a_flood_of_silent_connections_does_no_harm,
}

/// The name of the local socket: the first part of the control address.
fn name(handle: &Handle) -> Vec<u8> {
    assert_eq!(handle[64], 1, "a local part comes first");
    let hex = handle[65..81].iter().map(|byte| format!("{byte:02x}"));
    format!("trunkline.{}", hex.collect::<String>()).into_bytes()
}

pub(crate) fn dial(handle: &Handle) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(&name(handle))?)?;
    Ok(socket)
}

fn hello(versions: (u16, u16), process: u8) -> Vec<u8> {
    let mut frame = vec![1, 1, 0, 0];
    frame.extend(0x314b_4e55_5254_4c4b_u64.to_le_bytes());
    frame.extend(versions.0.to_le_bytes());
    frame.extend(versions.1.to_le_bytes());
    frame.extend([0; 4]);
    frame.extend([process; 16]);
    frame
}

/// An OPEN for a listener, with a nonce.
fn open(listen: u64, nonce: [u8; 16]) -> Vec<u8> {
    let mut frame = vec![2, 1, 0, 0];
    frame.extend(77_u64.to_le_bytes());
    frame.extend(listen.to_le_bytes());
    frame.extend(nonce);
    // One link.
    frame.extend([0, 1, 0, 0]);
    frame.extend([0; 8 + 8]);
    frame.extend([4, 0, 1, 2, 3, 4]);
    // It requests links of its own.
    frame.extend([0; 24]);
    frame
}

/// The OPEN of a connection that joins a group; `address` is that of a link.
fn join(listen: u64, nonce: [u8; 16], address: &[u8]) -> Vec<u8> {
    let mut frame = open(listen, nonce);
    frame.truncate(frame.len() - 24 - 6);
    frame.extend([address.len() as u8, 0]);
    frame.extend(address);
    frame.extend([2, 0, 0, 0]);
    frame.extend(6_u32.to_le_bytes());
    frame.extend([5; 8 + 8]);
    frame
}

/// GONE (10) or STOP (11).
fn ends(kind: u8, id: u64) -> Vec<u8> {
    [&[kind, 1, 0, 0], &id.to_le_bytes()[..]].concat()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The number of logged refusals.
fn refusals() -> usize {
    logged("refused") + logged("control stream lost") + logged("cannot accept")
}

/// Polls the plugin until it closes the socket.
fn until_hung_up(net: &Net, listen: crate::net::Comm, socket: &OwnedFd) {
    until("the close of the invalid peer's stream", || {
        assert_eq!(net.try_accept(listen), Ok(None));
        let mut bytes = [0; 8192];
        match recv(socket, &mut bytes, rustix::net::RecvFlags::empty()) {
            Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => Some(()),
            Ok(_) | Err(_) => None,
        }
    });
}

/// Polls the plugin until it sends RESULT.
fn until_answered(net: &Net, listen: crate::net::Comm, socket: &OwnedFd) -> Vec<u8> {
    until("a RESULT", || {
        assert_eq!(net.try_accept(listen), Ok(None));
        let mut bytes = [0; 8192];
        match recv(socket, &mut bytes, rustix::net::RecvFlags::empty()) {
            Ok((len, _)) if bytes[0] == 3 => Some(bytes[..len].to_vec()),
            _ => None,
        }
    })
}

fn invalid_peers_are_refused_with_one_line_each(scene: Scene) {
    let net = Net::start(scene.version);
    let (listen, handle) = net.listen();
    net.try_accept(listen).unwrap();
    let baseline = descriptors();
    let said = |frames: &[&[u8]]| {
        let before = refusals();
        let socket = dial(&handle).unwrap();
        for frame in frames {
            send(&socket, frame, SendFlags::empty()).unwrap();
        }
        until_hung_up(&net, listen, &socket);
        assert_eq!(refusals() - before, 1, "lines about {frames:?}: {:?}", LINES.lock().unwrap());
        drop(socket);
        assert_eq!(descriptors(), baseline, "descriptors after {frames:?}");
    };
    let good = hello((VERSION, VERSION), 5);
    let mut magic = good.clone();
    magic[4] ^= 1;
    let mut version = good.clone();
    version[1] = 9;
    let oversize = vec![1; 5000];
    said(&[b"GET / HTTP/1.0\r\n\r\n"]);
    said(&[&[0]]);
    said(&[&[0xff; 4096]]);
    said(&[&oversize]);
    for cut in [1, 3, 4, 11, 20, good.len() - 1] {
        said(&[&good[..cut]]);
    }
    said(&[&[good.clone(), vec![0]].concat()]);
    said(&[&magic]);
    said(&[&version]);
    said(&[&hello((VERSION + 1, 9), 5)]);
    said(&[&hello((0, 0), 5)]);
    said(&[&hello((VERSION - 1, VERSION - 1), 5)]);
    said(&[&open(1, [1; 16])]);
    said(&[&good, &[77, 1, 0, 0]]);
    said(&[&good, &open(1, [1; 16])[..30]]);
    // Without the fields about sharing, with an invalid mode, and with the address of a link that the sender must not have.
    let whole = open(1, [1; 16]);
    said(&[&good, &whole[..whole.len() - 24]]);
    let mut mode = whole.clone();
    mode[whole.len() - 24] = 4;
    said(&[&good, &mode]);
    said(&[&good, &join(1, [1; 16], &[1])]);
    said(&[&ends(10, 1)]);
    said(&[&good, &ends(11, 1)[..11]]);
    passed_descriptor(&net, listen, &handle, baseline);
    wrong_nonce(&net, listen, &handle);
    joins_nothing(&net, listen, &handle);
    // This test closes the last one itself.
    until("the release of descriptors", || {
        assert_eq!(net.try_accept(listen), Ok(None));
        (descriptors() == baseline).then_some(())
    });
    net.close_listen(listen).unwrap();
    let pair = net.to_self();
    round(&net, pair, 100_000);
}

/// A descriptor that arrives with garbage is closed with the stream.
fn passed_descriptor(net: &Net, listen: crate::net::Comm, handle: &Handle, baseline: usize) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    let socket = dial(handle).unwrap();
    let file = tempfile::tempfile().unwrap();
    let fds = [std::os::fd::AsFd::as_fd(&file)];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&socket, &[IoSlice::new(b"garbage")], &mut control, SendFlags::empty()).unwrap();
    until_hung_up(net, listen, &socket);
    drop((socket, file));
    assert_eq!(descriptors(), baseline, "a descriptor that arrived with garbage was not closed");
}

/// A peer with valid frames and without the handle receives a refusal, and nothing else happens.
fn wrong_nonce(net: &Net, listen: crate::net::Comm, handle: &Handle) {
    let listen_id = u64::from_le_bytes(handle[48..56].try_into().unwrap());
    let before = logged("refused");
    let socket = dial(handle).unwrap();
    send(&socket, &hello((VERSION, VERSION), 9), SendFlags::empty()).unwrap();
    send(&socket, &open(listen_id, [0; 16]), SendFlags::empty()).unwrap();
    let answer = until_answered(net, listen, &socket);
    assert_eq!(answer[4..12], 77_u64.to_le_bytes(), "whose answer");
    assert_eq!(answer[12], 1, "refused");
    assert!(answer[20..].iter().all(|byte| *byte == 0), "a refusal contains data");
    assert_eq!(logged("refused") - before, 1);
}

/// A peer with the handle that requests to join an unknown group receives the reply *retry*. Earlier frames about the end
/// of sharing do not harm its stream.
fn joins_nothing(net: &Net, listen: crate::net::Comm, handle: &Handle) {
    let listen_id = u64::from_le_bytes(handle[48..56].try_into().unwrap());
    let before = refusals();
    let socket = dial(handle).unwrap();
    let nonce = handle[24..40].try_into().unwrap();
    let hello = hello((VERSION, VERSION), 9);
    for frame in [hello, ends(10, 1 << 16), ends(11, u64::MAX), join(listen_id, nonce, &[])] {
        send(&socket, &frame, SendFlags::empty()).unwrap();
    }
    let answer = until_answered(net, listen, &socket);
    assert_eq!((&answer[4..12], answer[12]), (&77_u64.to_le_bytes()[..], 0));
    let (rest, said) = answer[13..].split_at(answer.len() - 13 - 32);
    assert!(rest.iter().all(|byte| *byte == 0), "a reply without a comm contains data: {rest:?}");
    assert_eq!((said[0], &said[4..8]), (3, &6_u32.to_le_bytes()[..]), "retry, of that turn");
    assert!(said[8..].iter().all(|byte| *byte == 0));
    assert_eq!(refusals(), before);
}

fn a_flood_of_silent_connections_does_no_harm(scene: Scene) {
    let net = Net::start(scene.version);
    let (listen, handle) = net.listen();
    net.try_accept(listen).unwrap();
    let baseline = descriptors();
    // Both ends of each are in this process, whose limit is often 1024 unless it is raised.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let room = limit.current.map_or(usize::MAX, |most| most as usize).saturating_sub(baseline + 100);
    let flood = (room / 2).min(1000);
    assert!(flood >= 100, "{limit:?}");
    let mut silent = Vec::new();
    until("very many connections", || {
        match dial(&handle) {
            Ok(socket) => silent.push(socket),
            // The queue of the socket is full until the plugin accepts.
            Err(rustix::io::Errno::AGAIN) => assert_eq!(net.try_accept(listen), Ok(None)),
            Err(error) => panic!("{error}"),
        }
        (silent.len() == flood).then_some(())
    });
    // Valid peers connect meanwhile.
    let pair = net.to_self();
    round(&net, pair, 100_000);
    // The plugin closes its ends by itself; those of this test stay open.
    until("the end of silent connections", || {
        assert_eq!(net.try_accept(listen), Ok(None));
        (descriptors() <= baseline + silent.len() + 8).then_some(())
    });
    drop(silent);
    let pair = net.to_self();
    round(&net, pair, 100_000);
}
