//! Sends tagged messages between two endpoints of one process, for `cargo xtask budget`, which counts instructions and
//! system calls. Arguments: a file (not used), the order, the length in bytes, and the number of messages.
//!
//! The order must be `near`: private memory, through the ring or the stage.

use std::process::ExitCode;

use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_fabric::{Host as _, OobListener as _, OobTransport as _};
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::PrivateMemory;
use trunkline_node::NodePage;
use trunkline_node::ipc::{MessageBuffer, NodeConfig as Sharing};
use trunkline_node::tagged::{TaggedConfig, TaggedEndpoint, TaggedPeerId, TaggedRequestId, TaggedSendStart};
use trunkline_proto::id::ProcessId;
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::tagged::{CopyMethod, MethodChoice};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::tagged::InboxSizes;

type End = TaggedEndpoint<PrivateMemory, UnixStream>;

/// Progress calls until both endpoints must have met.
const MEETING: u64 = 100_000;

fn end(number: u8) -> Option<End> {
    let memory = PrivateMemory::new().ok()?;
    let sharing = Sharing::new([number; 16], ExportAmount { entries: 16, bytes: 1 << 40 });
    let inbox = InboxSizes::new(1024, 512, 1 << 18).ok()?;
    Some(TaggedEndpoint::new(
        memory,
        TaggedConfig { sharing, inbox, copy: MethodChoice::Fixed(CopyMethod::Stage) },
        Instant(0),
    ))
}

/// Two endpoints that have met, each with its id of the other.
fn meet() -> Option<[(End, TaggedPeerId); 2]> {
    let host = UnixHost::new(|_, _| {});
    let (mut one, mut other) = (end(1)?, end(2)?);
    // With status pages, as in the Rust API: their publication must not add to the cost of a message.
    one.publish_page(NodePage::of_host(&host.node_page()?, ProcessId([1; 16]), None, host.now())?);
    other.publish_page(NodePage::of_host(&host.node_page()?, ProcessId([2; 16]), None, host.now())?);
    let mut listener = host.oob().listen().ok()?;
    let to_one = other.join_peer(host.oob().connect(&listener.listen_address()).ok()?).ok()?;
    let stream = (0..MEETING).find_map(|_| listener.accept().ok()?)?;
    let to_other = one.join_peer(stream).ok()?;
    let mut met = 0;
    for call in 0..MEETING {
        let now = Instant(0) + Duration::from_micros(call);
        for end in [&mut one, &mut other] {
            end.progress(now);
            met += u32::from(end.next_event().is_some());
        }
        if met == 2 {
            return Some([(one, to_other), (other, to_one)]);
        }
    }
    None
}

fn ended(ends: &mut [(End, TaggedPeerId); 2], at: usize, request: TaggedRequestId) -> Option<()> {
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
    let [from, into] =
        [MessageBuffer::from(MemoryRange::heap(bytes)), MessageBuffer::from(MemoryRange::heap(bytes))];
    for _ in 0..count {
        let source = ends[1].1;
        let received = ends[1].0.receive(Some(source), 7, u64::MAX, into.clone()).ok()?;
        let to = ends[0].1;
        let sent = ends[0].0.send(to, 7, &from).ok()?;
        ended(&mut ends, 1, received)?;
        if let TaggedSendStart::Request(request) = sent {
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
