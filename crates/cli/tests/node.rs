//! `trunkline top` and `trunkline info --pid` over two endpoints of this process that share memory: the buffers that
//! they hold of each other, the counters, and the reasons of messages without sharing.

#![expect(clippy::expect_used, reason = "a failed set-up ends the test")]

use std::os::fd::OwnedFd;
use std::process::{Command, Output};

use rustix::fs::{MemfdFlags, SealFlags};
use serde_json::Value;
use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_fabric::{Host as _, OobListener as _, OobTransport as _};
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::MemfdDevice;
use trunkline_node::NodePage;
use trunkline_node::ipc::{MessageBuffer, NodeConfig as Sharing};
use trunkline_node::tagged::{TaggedConfig, TaggedEndpoint, TaggedPeerId, TaggedSendStart};
use trunkline_proto::id::ProcessId;
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::tagged::MethodChoice;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::status::Number;
use trunkline_proto::wire::status::node::{BYTES, NAME, PageExport, PageOwner, SharedMemoryPage};
use trunkline_proto::wire::tagged::InboxSizes;

const LEN: usize = 1 << 20;

fn trunkline(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.args(args.split_whitespace()).arg("--pid").arg(std::process::id().to_string());
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(args: &str) -> String {
    String::from_utf8_lossy(&trunkline(args).stdout).into_owned()
}

/// The row of the first endpoint.
fn shown() -> Value {
    shown_by(0)
}

fn shown_by(rank: u32) -> Value {
    let report: Value = serde_json::from_str(&text("top --once --json")).expect("one JSON object");
    let nodes = report["nodes"].as_array().expect("a list").iter();
    let nodes: Vec<_> = nodes.filter(|node| !node["rank"].is_null()).cloned().collect();
    assert_eq!(nodes.len(), 2, "each endpoint of a process has a page: {report}");
    nodes.into_iter().find(|node| node["rank"] == rank).expect("the rank")
}

/// Two endpoints, and their clock.
struct Two {
    ends: [(TaggedEndpoint<MemfdDevice, UnixStream>, TaggedPeerId); 2],
    now: Instant,
}

impl Two {
    fn new() -> Self {
        let host = UnixHost::new(|_, _| {});
        let device = MemfdDevice::create(3, 64 << 20).expect("a device");
        let now = host.now();
        let inbox = InboxSizes::new(1024, 512, 1 << 18).expect("an inbox");
        let mut listener = host.oob().listen().expect("a listener");
        let [mut a, mut b] = [0, 1].map(|rank| {
            let memory =
                MemfdDevice::join(3, &device.descriptor().expect("a descriptor")).expect("the device");
            let budget = ExportAmount { entries: 16, bytes: 1 << 30 };
            let process = [rank as u8 + 1; 16];
            let sharing = Sharing::new(process, budget);
            let mut endpoint = TaggedEndpoint::new(
                memory,
                TaggedConfig { sharing, inbox, copy: MethodChoice::Learned },
                now,
            );
            let page = host.node_page().expect("a page");
            endpoint.publish_page(
                NodePage::of_host(&page, ProcessId(process), Some(rank), host.now()).expect("a page"),
            );
            endpoint
        });
        let to_a =
            b.join_peer(host.oob().connect(&listener.listen_address()).expect("a stream")).expect("a peer");
        let to_b = loop {
            if let Some(stream) = listener.accept().expect("a listener") {
                break a.join_peer(stream).expect("a peer");
            }
        };
        a.label_peer(to_b, 1, std::process::id());
        b.label_peer(to_a, 0, std::process::id());
        let mut two = Self { ends: [(a, to_b), (b, to_a)], now };
        two.rest();
        two
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_micros(200);
        self.ends.iter_mut().for_each(|(end, _)| _ = end.progress(self.now));
    }

    /// Makes enough steps for messages to complete and for pages to be written.
    fn rest(&mut self) {
        (0..2_000).for_each(|_| self.step());
    }

    /// The first sends to the second.
    fn pass(&mut self, buffer: &MessageBuffer) {
        self.pass_into(buffer, MessageBuffer::from_memory(MemoryRange::heap(LEN), 0, LEN as u64));
    }

    fn pass_into(&mut self, buffer: &MessageBuffer, into: MessageBuffer) {
        let [(a, to_b), (b, to_a)] = &mut self.ends;
        let received = b.receive(Some(*to_a), 1, u64::MAX, into).expect("a receive");
        let TaggedSendStart::Request(sent) = a.send(*to_b, 1, buffer).expect("a send") else {
            panic!("a long message has completed at once")
        };
        self.rest();
        let [(a, _), (b, _)] = &mut self.ends;
        assert!(a.test(sent).expect("an end").is_ok() && b.test(received).expect("an end").is_ok());
    }
}

#[test]
fn buffers_with_holders_and_fallbacks_are_shown() {
    let mut two = Two::new();
    let addr = two.ends[0].0.node().memory().alloc(LEN).expect("memory");
    let buffer = MessageBuffer::from_own(addr, LEN as u64);
    for _ in 0..3 {
        two.pass(&buffer);
    }
    let node = shown();
    let numbers = &node["numbers"];
    let wanted = [
        ("budget_entries", 16),
        ("budget_bytes", 1 << 30),
        ("live_entries", 1),
        ("idle_entries", 1),
        ("zombie_entries", 0),
        ("misses", 1),
        ("hits", 2),
        ("announced", 1),
        ("exports", 1),
        ("messages_mapped", 0),
        ("neighbours", 1),
    ];
    for (name, value) in wanted {
        // The receiver copies, and counts it.
        assert_eq!(numbers[name], value, "{name} in {node}");
    }
    let export = &node["exports"][0];
    assert_eq!((&export["state"], &export["pins"]), (&"live".into(), &0.into()), "{node}");
    let pid = Value::from(std::process::id());
    assert_eq!(export["held_by"], serde_json::json!([{ "rank": 1, "pid": pid }]));
    let bytes = export["bytes"].as_u64().expect("a number");
    assert!(export["address"].as_u64() <= Some(addr as u64) && bytes >= LEN as u64, "{node}");
    assert_eq!(
        (&node["neighbours"][0]["holds"], &node["neighbours"][0]["held_bytes"]),
        (&1.into(), &bytes.into())
    );
    // No fallback, and no reason.
    assert!(node["fallbacks"].as_object().expect("an object").values().all(|times| *times == 0), "{node}");
    let lines = text("info");
    assert!(lines.contains(&format!("rank 1 ({pid})")), "{lines}");
    // The table has the buffers only with `--buffers`.
    let (table, buffers) = (text("top --once"), text("top --once --buffers"));
    assert!(!table.contains("HELD BY") && buffers.contains("HELD BY"), "{table}{buffers}");
    assert!(buffers.lines().any(|line| line.ends_with(&format!("  rank 1 ({pid})"))), "{buffers}");

    // So far the receiver copied. Now the sender copies, because only the receiver's buffer can be shared.
    let into = two.ends[1].0.node().memory().alloc(LEN).expect("memory");
    two.pass_into(
        &MessageBuffer::from_memory(MemoryRange::heap(LEN), 0, LEN as u64),
        MessageBuffer::from_own(into, LEN as u64),
    );
    for (rank, numbers) in [(0, [1, 0, 1]), (1, [3, 3, 0])] {
        let node = shown_by(rank);
        let shown = ["messages_mapped", "messages_by_receiver", "messages_by_sender"];
        assert_eq!(shown.map(|name| node["numbers"][name].as_u64()), numbers.map(Some), "{node}");
    }
    let (table, lines) = (text("top --once"), text("info"));
    assert!(table.contains(" 0+1 ") && table.contains(" 3+0 "), "{table}");
    for line in
        ["messages copied here once: 0 received, 1 sent", "messages copied here once: 3 received, 0 sent"]
    {
        assert!(lines.contains(line), "{lines}");
    }

    // Two messages use no sharing, and the export has ended. Freed memory that the peer still holds is a zombie.
    two.ends[0].0.node_mut().shrink_budget(ExportAmount { entries: 0, bytes: 0 });
    two.pass(&buffer);
    two.pass(&buffer);
    let node = shown();
    assert_eq!(
        (&node["fallbacks"]["no_budget"], &node["numbers"]["messages_fallbacks"]),
        (&2.into(), &2.into()),
        "{node}"
    );
    assert_eq!(
        (&node["numbers"]["messages_staged"], &node["numbers"]["evicted"]),
        (&2.into(), &1.into()),
        "{node}"
    );
    assert_eq!(node["exports"], serde_json::json!([]));
    let table = text("top --once");
    let line = table
        .lines()
        .find(|line| line.contains("fallbacks of") && line.contains("no budget; "))
        .expect("a line of fallbacks");
    assert!(line.contains(": 2 no budget;") && line.contains("2 messages were staged"), "{table}");
    assert!(text("info").contains("BUFFERS that"), "{table}");
    let prometheus = text("top --prometheus");
    let has = |name: &str, label: &str, value: &str| {
        let mut lines =
            prometheus.lines().filter(|line| line.starts_with(name) && line.contains("rank=\"0\""));
        assert!(
            lines.any(|line| line.contains(label) && line.ends_with(value)),
            "{name} {label}: {prometheus}"
        );
    };
    has("trunkline_node_fallbacks_total{", "reason=\"no_budget\"", " 2");
    has("trunkline_node_fallbacks_total{", "reason=\"no_room\"", " 0");
    has("trunkline_node_hits_total{", "pid=", " 2");
    has("trunkline_node_messages_by_receiver_total{", "pid=", " 0");
    has("trunkline_node_messages_by_sender_total{", "pid=", " 1");
    has("trunkline_node_held_bytes{", "peer_rank=\"1\"", " 0");
}

/// A sealed memory file of the right name and the wrong contents.
fn forged(bytes: &[u8]) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(NAME, flags).expect("a memory file");
    rustix::io::write(&file, bytes).expect("room");
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
    file
}

#[test]
fn invalid_pages_of_shared_memory_are_refused() {
    let owner = PageOwner {
        process: ProcessId([7; 16]),
        pid: std::process::id(),
        rank: None,
        made_unix: 0,
        made: u64::MAX,
    };
    let exports = vec![PageExport { len: u64::MAX, used: u64::MAX, ..PageExport::default() }; 256];
    let page = SharedMemoryPage {
        owner,
        written: 1,
        numbers: [u64::MAX; Number::LEN],
        neighbours: Vec::new(),
        exports,
    };
    let (whole, mut torn, mut other) = (page.to_bytes(), page.to_bytes(), page.to_bytes());
    (torn[16], other[8]) = (3, 9);
    let _files = [forged(&whole[..4096]), forged(&torn), forged(&other), forged(&[0; BYTES])];
    // Pages that can be parsed are shown, even with unusual values.
    let _strange = forged(&whole);
    let report: Value = serde_json::from_str(&text("top --once --json")).expect("one JSON object");
    let why: Vec<_> = report["refused"].as_array().expect("a list").iter().map(|row| &row["why"]).collect();
    for wanted in ["has 4096 bytes", "changed during every attempt", "has version 9", "does not begin"] {
        assert!(
            why.iter().any(|why| why.as_str().is_some_and(|why| why.contains(wanted))),
            "{wanted}: {why:?}"
        );
    }
    let strange = "07".repeat(16);
    let nodes = report["nodes"].as_array().expect("a list");
    assert!(nodes.iter().any(|node| node["process"] == *strange), "{report}");
    assert!(text("info").contains("18.4 EB") && text("top --prometheus").contains(&strange));
}

#[test]
fn info_pid_refuses_a_process_without_pages() {
    let mut child = Command::new("sleep").arg("60").spawn().expect("it runs");
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    let output = command.args(["info", "--pid", &child.id().to_string()]).output().expect("it runs");
    child.kill().and_then(|()| child.wait()).expect("the child runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("shares no memory"), "{said}");
}
