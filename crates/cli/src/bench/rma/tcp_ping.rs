//! The round trip of TCP inside a host: eight bytes in each direction over one connection, with both ends polling
//! without a pause. It is the baseline of one-sided operations over TCP.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use trunkline::World;

use super::super::times::{OperationTimes, warm_up};
use crate::bench::BenchError;

/// How long the other end may take to connect.
const CALL: Duration = Duration::from_secs(5);

/// Times round trips between rank 0 and rank 1 on rank 0. Other ranks return zeros; rank 0 returns `None` if the two do
/// not connect inside this host.
pub(super) fn round_trips(world: &World, count: usize) -> Result<Option<OperationTimes>, BenchError> {
    let port = world.alloc_one::<u64>()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    if world.rank() == 0 {
        world.set(1, &port, listener.local_addr()?.port().into())?;
    }
    world.barrier()?;
    let times = match world.rank() {
        0 => time_pings(&listener, count)?,
        1 => {
            answer_pings(port.load() as u16, count)?;
            None
        }
        _ => None,
    };
    world.free_one(port)?;
    Ok(if world.rank() == 0 { times } else { Some(OperationTimes { p50_us: 0.0, p99_us: 0.0, max_us: 0.0 }) })
}

fn time_pings(listener: &TcpListener, count: usize) -> Result<Option<OperationTimes>, BenchError> {
    listener.set_nonblocking(true)?;
    let until = std::time::Instant::now() + CALL;
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock && std::time::Instant::now() < until => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    set_spinning(&stream)?;
    let times = OperationTimes::time_runs(count, 1, |_| {
        stream.write_all(&[7; 8])?;
        read_ping(&mut stream)
    })?;
    Ok(Some(times))
}

fn answer_pings(port: u16, count: usize) -> Result<(), BenchError> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let Ok(mut stream) = TcpStream::connect_timeout(&address, CALL) else { return Ok(()) };
    set_spinning(&stream)?;
    for _ in 0..count + warm_up(count) {
        read_ping(&mut stream)?;
        stream.write_all(&[7; 8])?;
    }
    Ok(())
}

fn set_spinning(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

/// Reads eight bytes, polling without a pause.
fn read_ping(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut bytes = [0; 8];
    loop {
        match stream.read(&mut bytes) {
            Ok(8) => return Ok(()),
            Ok(_) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
