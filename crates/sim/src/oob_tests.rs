//! Control streams are ordered, end with their process, and misbehave only if the network model defines it.

use trunkline_fabric::{OobAddress, OobError, OobFrame, OobListener, OobStream, OobTransport};

use crate::{NetworkModel, SimListener, SimOob, SimPid, SimStream, SimWorld};

fn frame(bytes: &[u8]) -> OobFrame {
    OobFrame { bytes: bytes.to_vec(), fd: None }
}

fn streams(weather: NetworkModel) -> (SimWorld, SimListener, SimStream, SimStream) {
    let world = SimWorld::new(3, weather, false);
    let (one, two) = (world.add_process(), world.add_process());
    let mut listener = SimOob::for_rogue_peer(&world, one).listen().unwrap();
    let client = SimOob::for_rogue_peer(&world, two).connect(&listener.listen_address()).unwrap();
    assert!(listener.accept().unwrap().is_none(), "a stream takes time to arrive");
    world.advance_by(10_000_000);
    let server = listener.accept().unwrap().unwrap();
    (world, listener, client, server)
}

#[test]
fn frames_arrive_in_order_and_late() {
    let weather = NetworkModel { stream_jitter: 1_000_000, ..NetworkModel::fault_free() };
    let (world, _listener, mut client, mut server) = streams(weather);
    for i in 0..10 {
        client.send(frame(&[i])).unwrap();
    }
    assert!(server.recv().unwrap().is_none());
    world.advance_by(20_000_000);
    for i in 0..10 {
        assert_eq!(server.recv().unwrap().unwrap().bytes, [i]);
    }
}

#[test]
fn frames_before_the_end_are_read_first() {
    let (world, _listener, mut client, server) = streams(NetworkModel::fault_free());
    let mut server = server;
    client.send(frame(b"last")).unwrap();
    drop(client);
    world.advance_by(10_000_000);
    assert_eq!(server.recv().unwrap().unwrap().bytes, b"last");
    assert!(matches!(server.recv(), Err(OobError::Closed)));
    assert!(matches!(server.send(frame(b"x")), Err(OobError::Closed)));
}

#[test]
fn death_closes_streams_and_listeners() {
    let (world, listener, mut client, server) = streams(NetworkModel::fault_free());
    world.kill_process(SimPid(0));
    world.advance_by(10_000_000);
    assert!(matches!(client.recv(), Err(OobError::Closed)));
    let refused = SimOob::for_rogue_peer(&world, SimPid(1)).connect(&listener.listen_address());
    assert!(matches!(refused, Err(OobError::Closed)));
    drop((listener, server, client));
    assert_eq!(world.held_resources(SimPid(0)).streams + world.held_resources(SimPid(1)).streams, 0);
}

#[test]
fn frames_are_lost_and_doubled_by_the_model() {
    let (world, _listener, mut client, mut server) =
        streams(NetworkModel { stream_twice: 1000, ..NetworkModel::fault_free() });
    client.send(frame(b"x")).unwrap();
    world.advance_by(10_000_000);
    assert!(server.recv().unwrap().is_some() && server.recv().unwrap().is_some());
    let (world, _listener, mut client, mut server) =
        streams(NetworkModel { stream_lost: 1000, ..NetworkModel::fault_free() });
    client.send(frame(b"the first is never lost")).unwrap();
    client.send(frame(b"x")).unwrap();
    world.advance_by(10_000_000);
    assert!(server.recv().unwrap().is_some());
    assert!(server.recv().unwrap().is_none());
}

#[test]
fn exceeded_stream_limits_are_refused() {
    let (_world, _listener, mut client, _server) =
        streams(NetworkModel { stream_depth: 2, ..NetworkModel::fault_free() });
    assert!(matches!(client.send(frame(&[0; OobFrame::MAX + 1])), Err(OobError::Malformed)));
    client.send(frame(b"1")).unwrap();
    client.send(frame(b"2")).unwrap();
    assert!(matches!(client.send(frame(b"3")), Err(OobError::Overflow)));
    assert!(matches!(
        SimOob::for_rogue_peer(&_world, SimPid(0)).connect(&OobAddress(vec![1])),
        Err(OobError::Closed)
    ));
}
