//! Tests of the file that is recorded over a scripted fabric of two NICs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::status::NicUsage;

use super::{EventRecorder, ProcessOrigin, TraceFile, TracedFabric, TracedRail};
use crate::{
    AccessRights, Caps, Completion, CompletionKind, DeregisterError, Fabric, LinkAddress, LinkControl,
    LinkError, LinkId, LocalKey, MemoryRegistrar, NicPort, Op, OpSource, OpStatus, PostError, Rail,
    RailConfig, RailOpenError, RecvOrder, RegionKeys, RegionPurpose, RegisterError, RemoteKey,
    RemoteLocation, WaitMethod,
};

const CAPS: Caps = Caps {
    devices: crate::DeviceReach { dmabuf: false, nvidia: false, amd: false, needs_flush: false },
    link_order: true,
    remote_len: true,
    needs_flush: false,
    matched: false,
    match_order: false,
    match_bits: 64,
    atomics: false,
    coherent_atomics: false,
    offloads_atomics: false,
    wait: false,
    retires: false,
    ends_are_told: true,
    refusals_are_told: true,
    errors_reach_peers: true,
    sends_wait: true,
    arrives: true,
    placed_writes: false,
    immediate_takes_receive: false,
    write_data: true,
    inline_max: 64,
    message_max: 1 << 30,
    depth_max: 64,
    links_max: 8,
    pipelines: 1,
    completions_max: 64,
    unseen: false,
    receives_max: u32::MAX,
    regions_max: 8,
};

const CONFIG: RailConfig = RailConfig {
    depth: 64,
    recv_depth: 64,
    recv_order: RecvOrder::Posted,
    links: 1,
    peer_time: Duration::from_secs(1),
    rail_time: Duration::from_secs(1),
    receives: false,
    traffic_class: None,
    many: false,
};

struct Fake(Vec<NicPort>);

/// A rail whose operations complete in the next poll. Posts of an empty write are refused, and link 1 is never carried.
#[derive(Default)]
struct FakeRail {
    links: u32,
    done: Vec<Completion>,
}

struct NoMemory;

impl MemoryRegistrar for NoMemory {
    fn register(
        &self,
        _: &trunkline_mem::MemoryRange,
        _: AccessRights,
        _: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        Err(RegisterError::Exhausted(0))
    }

    fn deregister(&self, _: LocalKey) -> Result<(), DeregisterError> {
        Err(DeregisterError::Unknown)
    }
}

impl Fabric for Fake {
    type Rail = FakeRail;

    fn fabric_name(&self) -> &'static str {
        "fake"
    }

    fn nics(&self) -> &[NicPort] {
        &self.0
    }

    fn nic_usage(&self, nic: usize) -> NicUsage {
        NicUsage { queue_pairs: nic as u32, ..NicUsage::default() }
    }

    fn open_rail(&self, _: usize, _: &RailConfig) -> Result<FakeRail, RailOpenError> {
        Ok(FakeRail::default())
    }
}

impl LinkControl for FakeRail {
    fn create_link_on(&mut self, _: Option<u32>) -> Result<LinkId, LinkError> {
        self.links += 1;
        Ok(LinkId(self.links - 1))
    }

    fn link_pipeline(&self, _: LinkId) -> Option<u32> {
        None
    }

    fn link_address(&self, _: LinkId) -> Result<LinkAddress, LinkError> {
        Err(LinkError::State)
    }

    fn connect(&mut self, _: LinkId, _: LinkAddress) -> Result<(), LinkError> {
        Ok(())
    }

    fn check_link(&mut self, link: LinkId) -> Result<(), LinkError> {
        if link.0 == 1 { Err(LinkError::Unreachable("cut")) } else { Ok(()) }
    }

    fn fail_link(&mut self, _: LinkId) {}

    fn poll_link_quiet(&mut self, _: LinkId) -> bool {
        true
    }

    fn destroy_link(&mut self, _: LinkId) {}
}

impl Rail for FakeRail {
    fn caps(&self) -> &Caps {
        &CAPS
    }

    fn registrar(&self) -> Arc<dyn MemoryRegistrar> {
        Arc::new(NoMemory)
    }

    fn post_credits(&self, _: LinkId) -> u32 {
        1
    }

    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        if matches!(op, Op::Write { from, .. } if from.is_empty()) {
            return Err(PostError::Busy);
        }
        if signalled && !matches!(op, Op::Recv { .. }) {
            let (done, status) = (CompletionKind::Posted, OpStatus::Ok);
            self.done.push(Completion { wr_id, link, done, status, imm: None, len: 0 });
        }
        Ok(())
    }

    fn flush(&mut self) {}

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let count = self.done.len().min(out.len());
        out.iter_mut().zip(self.done.drain(..count)).for_each(|(place, done)| *place = done);
        count
    }

    fn arm_wait(&mut self) -> WaitMethod {
        WaitMethod::After(Duration(0))
    }
}

fn nic(name: &str) -> NicPort {
    NicPort {
        name: name.to_owned(),
        pci_path: None,
        guid: 0,
        port: 1,
        speed_mbps: 1,
        latency_us: 0.0,
        caps: CAPS,
    }
}

fn fake() -> Fake {
    Fake(vec![nic("a0"), nic("b1")])
}

/// A recorder whose clock advances by a microsecond per read, from 5 ms on.
fn recorder(limit: usize) -> Arc<EventRecorder> {
    let time = AtomicU64::new(5_000_000);
    Arc::new(EventRecorder::new(limit, move || Instant(time.fetch_add(1000, Ordering::Relaxed))))
}

const TO: RemoteLocation = RemoteLocation { key: RemoteKey(1), addr: 0, purpose: RegionPurpose::Data };

fn write(bytes: &[u8]) -> Op<'_> {
    Op::Write { from: OpSource::Inline(bytes), to: TO, imm: None }
}

fn poll(rail: &mut TracedRail<FakeRail>) -> usize {
    rail.poll(&mut [Completion::BLANK; 8])
}

/// The file, as a reader sees it.
fn file(recorder: &EventRecorder) -> Value {
    let origin = ProcessOrigin { process: 42, host: "here".to_owned(), ..ProcessOrigin::default() };
    let mut text = Vec::new();
    TraceFile::from_recorder(recorder, fake().nics(), origin).write_json(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Its events of a kind.
fn events(file: &Value, ph: &str) -> Vec<Value> {
    let all = file["traceEvents"].as_array().unwrap();
    all.iter().filter(|event| event["ph"] == ph).cloned().collect()
}

#[test]
fn each_nic_has_a_track_with_its_operations() {
    let recorder = recorder(1000);
    let fabric = TracedFabric::new(fake(), Some(Arc::clone(&recorder)));
    // Two rails of the second NIC are one track.
    let mut rails = [0, 1, 1].map(|nic| fabric.open_rail(nic, &CONFIG).unwrap());
    for (at, rail) in rails.iter_mut().enumerate() {
        let link = rail.create_link().unwrap();
        assert!(rail.poll_link_up(link).unwrap() && rail.poll_link_up(link).unwrap());
        rail.post(link, 7, write(&vec![1; at + 1]), true).unwrap();
        rail.post(link, 7, write(&[1; 10]), true).unwrap();
        assert_eq!(rail.post(link, 7, write(&[]), true), Err(PostError::Busy));
        rail.post(link, 0, write(&[1; 20]), false).unwrap();
        assert_eq!((poll(rail), poll(rail)), (2, 0));
    }
    let file = file(&recorder);
    let names = |what: &str| -> Vec<(u64, String)> {
        let named = events(&file, "M").into_iter().filter(|event| event["name"] == what);
        let name = |event: Value| event["args"]["name"].as_str().unwrap().to_owned();
        named.map(|event| (event["tid"].as_u64().unwrap(), name(event))).collect()
    };
    assert_eq!(names("thread_name"), [(1, "a0".to_owned()), (2, "b1".to_owned())]);
    assert_eq!(names("process_name"), [(0, "process 42 on here".to_owned())]);
    let bytes = |ph: &str, tid: u64| -> Vec<u64> {
        let on_it = events(&file, ph).into_iter().filter(|event| event["tid"] == tid);
        on_it.filter_map(|event| event["args"]["bytes"].as_u64()).collect()
    };
    assert_eq!((bytes("X", 1), bytes("X", 2)), (vec![1, 10], vec![2, 10, 3, 10]));
    assert_eq!((bytes("i", 1), bytes("i", 2)), (vec![20], vec![20, 20]));
    let first = &events(&file, "X")[0];
    assert_eq!(
        (&first["name"], &first["args"]["status"], &first["pid"]),
        (&"write".into(), &"ok".into(), &42.into())
    );
    // The clock was read for the start, the link, its connection, and then for each of the five events that follow.
    assert_eq!((first["ts"].as_f64(), first["dur"].as_f64()), (Some(3.0), Some(4.0)));
    let ups = events(&file, "i").iter().filter(|event| event["name"] == "link up").count();
    assert_eq!(ups, 3, "one event per link");
    assert_eq!(file["otherData"]["processes"][0]["lost"], 0);
}

#[test]
fn events_without_room_are_counted_and_reported() {
    let recorder = recorder(6);
    let fabric = TracedFabric::new(fake(), Some(Arc::clone(&recorder)));
    let mut rail = fabric.open_rail(1, &CONFIG).unwrap();
    let link = rail.create_link().unwrap();
    for wr_id in 0..10 {
        rail.post(link, wr_id, write(&[1; 8]), true).unwrap();
        assert_eq!(poll(&mut rail), 1);
    }
    let file = file(&recorder);
    // One event for the link, two per operation: the end of the third operation is the first that is missing.
    let process = &file["otherData"]["processes"][0];
    assert_eq!((&process["recorded"], &process["lost"]), (&6.into(), &15.into()));
    let slices = events(&file, "X");
    let ends: Vec<&Value> = slices.iter().map(|slice| &slice["args"]["status"]).collect();
    assert_eq!(ends, ["ok", "ok", "end not recorded"]);
    let marks = events(&file, "i");
    let told = marks.iter().find(|mark| mark["s"] == "p").unwrap();
    assert_eq!(
        (told["name"].as_str(), &told["args"]["lost"]),
        (Some("recording stopped: 15 events lost"), &15.into())
    );
}

#[test]
fn dead_links_are_marked() {
    let recorder = recorder(100);
    let fabric = TracedFabric::new(fake(), Some(Arc::clone(&recorder)));
    let mut rail = fabric.open_rail(0, &CONFIG).unwrap();
    let [first, second] = [(); 2].map(|()| rail.create_link().unwrap());
    rail.check_link(first).unwrap();
    assert!(rail.check_link(second).is_err());
    rail.fail_link(second);
    rail.fail_link(first);
    rail.post(first, 3, write(&[1; 4]), true).unwrap();
    rail.destroy_link(first);
    let file = file(&recorder);
    let told: Vec<(String, u64)> = events(&file, "i")
        .iter()
        .map(|mark| (mark["name"].as_str().unwrap().to_owned(), mark["args"]["link"].as_u64().unwrap()))
        .collect();
    let told: Vec<(&str, u64)> = told.iter().map(|(name, link)| (name.as_str(), *link)).collect();
    assert_eq!(told, [("link lost", 2), ("link fenced", 1), ("link closed", 1)]);
    assert_eq!(events(&file, "X")[0]["args"]["status"], "never completed");
}

#[test]
fn fabric_behaves_unchanged_without_a_recorder() {
    let fabric = TracedFabric::new(fake(), None);
    assert_eq!((fabric.fabric_name(), fabric.nics().len()), ("fake", 2));
    let mut rail = fabric.open_rail(0, &CONFIG).unwrap();
    let link = rail.create_link().unwrap();
    rail.post(link, 3, write(&[1; 4]), true).unwrap();
    assert_eq!(poll(&mut rail), 1);
    assert_eq!(size_of::<TracedRail<FakeRail>>(), size_of::<FakeRail>() + size_of::<usize>());
}
