//! Control streams are ordered, end with their process, and misbehave only where the weather says so.

use trunkline_fabric::{Frame, Oob, OobAddress, OobError, OobListener, OobStream};

use crate::{Mutant, Pid, SimListener, SimOob, SimStream, Weather, World};

fn frame(bytes: &[u8]) -> Frame {
    Frame { bytes: bytes.to_vec(), fd: None }
}

fn streams(weather: Weather) -> (World, SimListener, SimStream, SimStream) {
    let world = World::new(3, weather, Mutant::None, false);
    let (one, two) = (world.add_process(), world.add_process());
    let mut listener = SimOob::stranger(&world, one).listen().unwrap();
    let client = SimOob::stranger(&world, two).connect(&listener.address()).unwrap();
    assert!(listener.accept().unwrap().is_none(), "it takes time");
    world.advance(10_000_000);
    let server = listener.accept().unwrap().unwrap();
    (world, listener, client, server)
}

#[test]
fn frames_come_in_order_and_late() {
    let weather = Weather { stream_jitter: 1_000_000, ..Weather::calm() };
    let (world, _listener, mut client, mut server) = streams(weather);
    for i in 0..10 {
        client.send(frame(&[i])).unwrap();
    }
    assert!(server.recv().unwrap().is_none());
    world.advance(20_000_000);
    for i in 0..10 {
        assert_eq!(server.recv().unwrap().unwrap().bytes, [i]);
    }
}

#[test]
fn what_was_sent_before_the_end_is_read_first() {
    let (world, _listener, mut client, server) = streams(Weather::calm());
    let mut server = server;
    client.send(frame(b"last")).unwrap();
    drop(client);
    world.advance(10_000_000);
    assert_eq!(server.recv().unwrap().unwrap().bytes, b"last");
    assert!(matches!(server.recv(), Err(OobError::Closed)));
    assert!(matches!(server.send(frame(b"x")), Err(OobError::Closed)));
}

#[test]
fn death_closes_streams_and_listeners() {
    let (world, listener, mut client, server) = streams(Weather::calm());
    world.kill(Pid(0));
    world.advance(10_000_000);
    assert!(matches!(client.recv(), Err(OobError::Closed)));
    let refused = SimOob::stranger(&world, Pid(1)).connect(&listener.address());
    assert!(matches!(refused, Err(OobError::Closed)));
    drop((listener, server, client));
    assert_eq!(world.counts(Pid(0)).streams + world.counts(Pid(1)).streams, 0);
}

#[test]
fn frames_are_lost_and_doubled_where_the_weather_says_so() {
    let (world, _listener, mut client, mut server) =
        streams(Weather { stream_twice: 1000, ..Weather::calm() });
    client.send(frame(b"x")).unwrap();
    world.advance(10_000_000);
    assert!(server.recv().unwrap().is_some() && server.recv().unwrap().is_some());
    let (world, _listener, mut client, mut server) =
        streams(Weather { stream_lost: 1000, ..Weather::calm() });
    client.send(frame(b"the first is never lost")).unwrap();
    client.send(frame(b"x")).unwrap();
    world.advance(10_000_000);
    assert!(server.recv().unwrap().is_some());
    assert!(server.recv().unwrap().is_none());
}

#[test]
fn too_much_is_refused() {
    let (_world, _listener, mut client, _server) = streams(Weather { stream_depth: 2, ..Weather::calm() });
    assert!(matches!(client.send(frame(&[0; Frame::MAX + 1])), Err(OobError::Malformed)));
    client.send(frame(b"1")).unwrap();
    client.send(frame(b"2")).unwrap();
    assert!(matches!(client.send(frame(b"3")), Err(OobError::Overflow)));
    assert!(matches!(SimOob::stranger(&_world, Pid(0)).connect(&OobAddress(vec![1])), Err(OobError::Closed)));
}
