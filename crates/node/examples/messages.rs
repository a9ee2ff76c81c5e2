//! Sends tagged messages between two endpoints of one process, over and over, for `cargo xtask budget` to count instructions and system calls.
//! Words: a file (not used), how they go, how long they are, and how many.
//!
//! - `near`: of private memory, through the ring or the stage.

use std::process::ExitCode;

use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_fabric::{Host as _, Oob as _, OobListener as _};
use trunkline_mem::Memory;
use trunkline_mem::ipc::Private;
use trunkline_node::NodePage;
use trunkline_node::ipc::{Buffer, Config as Sharing};
use trunkline_node::tagged::{Begun, Config, Endpoint, PeerId, RequestId};
use trunkline_proto::id::ProcessId;
use trunkline_proto::ipc::exporter::Amount;
use trunkline_proto::tagged::{Choice, Method};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::tagged::Inbox;

type End = Endpoint<Private, UnixStream>;

/// Calls in which the two meet, at most.
const MEETING: u64 = 100_000;

fn end(number: u8) -> Option<End> {
    let memory = Private::new().ok()?;
    let sharing = Sharing::new([number; 16], Amount { entries: 16, bytes: 1 << 40 });
    let inbox = Inbox::new(1024, 512, 1 << 18).ok()?;
    Some(Endpoint::new(memory, Config { sharing, inbox, copy: Choice::Fixed(Method::Stage) }, Instant(0)))
}

/// Two that know each other, and what each calls the other.
fn meet() -> Option<[(End, PeerId); 2]> {
    let host = UnixHost::new(|_, _| {});
    let (mut one, mut other) = (end(1)?, end(2)?);
    // As the Rust API has it: what others see of an endpoint costs a message nothing.
    one.show(NodePage::of_host(&host.node_page()?, ProcessId([1; 16]), None, host.now())?);
    other.show(NodePage::of_host(&host.node_page()?, ProcessId([2; 16]), None, host.now())?);
    let mut listener = host.oob().listen().ok()?;
    let to_one = other.join(host.oob().connect(&listener.address()).ok()?).ok()?;
    let stream = (0..MEETING).find_map(|_| listener.accept().ok()?)?;
    let to_other = one.join(stream).ok()?;
    let mut met = 0;
    for call in 0..MEETING {
        let now = Instant(0) + Duration::micros(call);
        for end in [&mut one, &mut other] {
            end.progress(now);
            met += u32::from(end.event().is_some());
        }
        if met == 2 {
            return Some([(one, to_other), (other, to_one)]);
        }
    }
    None
}

fn ended(ends: &mut [(End, PeerId); 2], at: usize, request: RequestId) -> Option<()> {
    let now = Instant(1 << 40);
    loop {
        if let Some(end) = ends[at].0.test(request) {
            return end.ok().map(drop);
        }
        ends.iter_mut().for_each(|(end, _)| _ = end.progress(now));
    }
}

fn run(order: &str, bytes: usize, count: u64) -> Option<()> {
    if order != "near" {
        return None;
    }
    let mut ends = meet()?;
    let [from, into] = [Buffer::from(Memory::heap(bytes)), Buffer::from(Memory::heap(bytes))];
    for _ in 0..count {
        let source = ends[1].1;
        let received = ends[1].0.receive(Some(source), (7, u64::MAX), into.clone()).ok()?;
        let to = ends[0].1;
        let sent = ends[0].0.send(to, 7, &from).ok()?;
        ended(&mut ends, 1, received)?;
        if let Begun::Request(request) = sent {
            ended(&mut ends, 0, request)?;
        }
    }
    Some(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(2).collect();
    let [order, bytes, count] = words.as_slice() else { return ExitCode::from(2) };
    let (Ok(bytes), Ok(count)) = (bytes.parse(), count.parse()) else { return ExitCode::from(2) };
    if run(order, bytes, count).is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
