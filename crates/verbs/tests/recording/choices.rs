//! NCCL's variables as they reach the device: routing, traffic classes, extensions to the standard.

use trunkline_fabric::{
    Completion, CompletionKind, Fabric as _, LinkAddress, LinkControl as _, LinkError, Op, OpSource,
    OpStatus, PostError, Rail as _, RailConfig,
};
use trunkline_sys::verbs::{wc_status, wr_opcode};
use trunkline_verbs::{PacketRouting, VerbsConfig, VerbsFabric, VerbsUnavailable};

use crate::device::{library, library_with_pipelines, refuse_next, with};
use crate::{Bench, DEPTH, config, fabric};

const ABOVE: u64 = 4096;

fn routed(extended: bool) -> Bench {
    let config = VerbsConfig {
        routing: PacketRouting::Adaptive,
        adaptive_above: ABOVE,
        extended,
        ..VerbsConfig::default()
    };
    let mut bench = Bench::with(config);
    bench.lend(DEPTH.into());
    bench
}

/// Polls until all operations have ended.
fn all(bench: &mut Bench) -> Vec<Completion> {
    std::iter::from_fn(|| Some(bench.poll()).filter(|told| !told.is_empty())).flatten().collect()
}

fn write(bench: &mut Bench, wr_id: u64, len: u64) {
    let from = OpSource::Region(bench.part(len));
    bench.post(wr_id, Op::Write { from, to: bench.to, imm: Some(5) });
}

#[test]
fn adaptive_routing_splits_immediates_off_long_writes() {
    for extended in [false, true] {
        let mut bench = routed(extended);
        with(|device| device.requests = Some(Vec::new()));
        let (cost, _) = bench.cost(|bench| {
            write(bench, 1, ABOVE);
            write(bench, 2, ABOVE + 1);
            bench.rail.flush();
        });
        assert_eq!(cost.sends + cost.built, 1, "one call");
        let requests = with(|device| device.requests.take()).unwrap();
        let (data, with_imm) = (wr_opcode::RDMA_WRITE, wr_opcode::RDMA_WRITE_WITH_IMM);
        assert_eq!(requests, [(with_imm, 4096), (data, 4097), (with_imm, 0)]);
        let told = bench.poll();
        let posted: Vec<_> = told
            .iter()
            .filter(|one| one.done == CompletionKind::Posted)
            .map(|one| (one.wr_id, one.status))
            .collect();
        assert_eq!(posted, [(1, OpStatus::Ok), (2, OpStatus::Ok)]);
        let written =
            told.iter().filter(|one| one.done == CompletionKind::Written && one.imm == Some(5)).count();
        assert_eq!(written, 2);
    }
}

#[test]
fn ethernet_keeps_immediates_unless_adaptive_is_requested() {
    for routing in [PacketRouting::Usual, PacketRouting::Fixed] {
        let mut bench = Bench::with(VerbsConfig { routing, adaptive_above: 0, ..VerbsConfig::default() });
        bench.lend(1);
        with(|device| device.requests = Some(Vec::new()));
        write(&mut bench, 1, 5000);
        bench.rail.flush();
        let requests = with(|device| device.requests.take()).unwrap();
        assert_eq!(requests, [(wr_opcode::RDMA_WRITE_WITH_IMM, 5000)]);
    }
}

/// Such a write counts as one operation, also when the queue is full of them.
#[test]
fn a_write_of_two_requests_is_one_operation() {
    let mut bench = routed(true);
    for wr_id in 0..u64::from(DEPTH) {
        let (credits, link) = (u64::from(DEPTH) - wr_id, bench.link);
        assert_eq!(u64::from(bench.rail.post_credits(link)), credits);
        let from = OpSource::Region(bench.part(ABOVE + 1));
        let imm = Some(5);
        bench.rail.post(link, wr_id, Op::Write { from, to: bench.to, imm }, wr_id % 2 == 0).unwrap();
    }
    let op = Op::Write { from: OpSource::Inline(&[1]), to: bench.to, imm: None };
    assert_eq!(bench.rail.post(bench.link, 99, op, true), Err(PostError::Busy));
    let polled = all(&mut bench);
    let told: Vec<u64> =
        polled.iter().filter(|one| one.done == CompletionKind::Posted).map(|one| one.wr_id).collect();
    assert_eq!(told, (0..u64::from(DEPTH)).filter(|wr_id| wr_id % 2 == 0).collect::<Vec<_>>());
    assert_eq!(bench.rail.post_credits(bench.link), DEPTH);
}

#[test]
fn a_write_of_two_requests_fails_once() {
    let fails = |bench: &mut Bench| {
        let told = all(bench);
        let posted = told.iter().filter(|one| one.done == CompletionKind::Posted);
        posted.map(|one| (one.wr_id, one.status)).collect::<Vec<_>>()
    };
    // The bytes fail, signalled or not, with other operations behind the write.
    for told in [true, false] {
        let mut bench = routed(true);
        with(|device| device.next_status = wc_status::REM_ACCESS_ERR);
        let from = OpSource::Region(bench.part(ABOVE + 1));
        bench.rail.post(bench.link, 7, Op::Write { from, to: bench.to, imm: Some(5) }, told).unwrap();
        write(&mut bench, 8, ABOVE + 1);
        assert_eq!(fails(&mut bench), [(7, OpStatus::RemoteAccess), (8, OpStatus::Flushed)]);
        assert!(bench.rail.poll_link_quiet(bench.link));
    }
    // The device refuses the bytes or the immediate.
    for taken in [0, 1] {
        let mut bench = routed(true);
        refuse_next(taken);
        write(&mut bench, 7, ABOVE + 1);
        let told = fails(&mut bench);
        assert_eq!(told.iter().map(|one| one.0).collect::<Vec<_>>(), [7], "{taken}: {told:?}");
        assert!(told[0].1 != OpStatus::Ok);
    }
}

/// Connects a link of a rail to an address, or to itself; returns the class and level, and the link's own address.
fn class(verbs: VerbsConfig, rail: RailConfig, to: Option<&LinkAddress>) -> ((u8, u8), LinkAddress) {
    let fabric = fabric(verbs);
    let mut rail = fabric.open_rail(0, &rail).unwrap();
    let link = rail.create_link().unwrap();
    let own = rail.link_address(link).unwrap();
    let peer = LinkAddress { bytes: to.map_or(own.bytes.clone(), |to| to.bytes.clone()), fd: None };
    rail.connect(link, peer).unwrap();
    (with(|device| *device.classes.last().unwrap()), rail.link_address(link).unwrap())
}

#[test]
fn sender_decides_traffic_class_and_service_level() {
    let usual = VerbsConfig::default();
    let set = VerbsConfig { traffic_class: Some(106), service_level: Some(3), ..usual.clone() };
    let asked = RailConfig { traffic_class: Some(9), ..config() };
    assert_eq!(class(usual.clone(), config(), None).0, (0, 0));
    assert_eq!(class(usual.clone(), asked, None).0, (9, 0), "the communicator's");
    assert_eq!(
        class(VerbsConfig { traffic_class: Some(0), ..usual.clone() }, asked, None).0,
        (0, 0),
        "0 is a class"
    );
    let (sender, address) = class(set, asked, None);
    assert_eq!(sender, (106, 3), "the configured class");
    let receives = RailConfig { receives: true, ..config() };
    let own = VerbsConfig { traffic_class: Some(1), service_level: Some(1), ..usual.clone() };
    assert_eq!(class(own, receives, Some(&address)).0, (106, 3));
    let records = VerbsConfig { record_class: Some(0), ..usual };
    assert_eq!(class(records.clone(), receives, Some(&address)).0, (0, 3));
    assert_eq!(
        class(records, config(), Some(&address)).0,
        (0, 0),
        "a sender's configuration has no class for records"
    );
}

#[test]
fn devices_negotiate_their_extensions() {
    let agreed = || with(|device| std::mem::take(&mut device.agreed));
    let one = |options, verbs: VerbsConfig, to: Option<&LinkAddress>| {
        with(|device| device.options = options);
        class(verbs, RailConfig { receives: to.is_some(), ..config() }, to).1
    };
    let usual = VerbsConfig::default();
    let first = |options, verbs| {
        with(|device| device.options = options);
        let fabric = fabric(verbs);
        let mut rail = fabric.open_rail(0, &config()).unwrap();
        let link = rail.create_link().unwrap();
        let address = rail.link_address(link).unwrap();
        (fabric, rail, link, address)
    };
    let (_fabric, mut rail, link, asks) = first(0b1110, usual.clone());
    let answer = one(0b0111, usual.clone(), Some(&asks));
    assert_eq!(agreed(), [0b1110], "the responder uses the requested extensions");
    with(|device| device.options = 0b1110);
    rail.connect(link, answer).unwrap();
    assert_eq!(agreed(), [0b0110], "the requester uses the negotiated extensions");
    // If a device supports no extensions, or users disable them, neither end offers any.
    let off = VerbsConfig { ece: false, ..usual.clone() };
    for (options, theirs, ours) in [(0, 0b111, &usual), (0b111, 0, &usual), (0b111, 0b111, &off)] {
        let (_fabric, mut rail, link, asks) = first(theirs, usual.clone());
        let answer = one(options, ours.clone(), Some(&asks));
        rail.connect(link, answer).unwrap();
        assert_eq!(agreed(), [0; 0], "{options} {theirs}");
    }
}

#[test]
fn devices_can_be_switched_off() {
    let off = VerbsConfig { disabled: true, ..VerbsConfig::default() };
    let missing = VerbsFabric::with_library(std::sync::Arc::new(library()), off).map(drop).unwrap_err();
    assert!(
        matches!(missing, VerbsUnavailable::Disabled) && missing.to_string().contains("NCCL_IB_DISABLE"),
        "{missing}"
    );
    assert!(!fabric(VerbsConfig { merge_nics: false, ..VerbsConfig::default() }).can_fuse_nics());
}

#[test]
fn queue_pairs_are_created_on_the_requested_pipeline() {
    let fabric =
        VerbsFabric::with_library(std::sync::Arc::new(library_with_pipelines()), VerbsConfig::default())
            .unwrap();
    assert_eq!(fabric.nics()[0].caps.pipelines, 2);
    let mut rail = fabric.open_rail(0, &config()).unwrap();
    let masks = || with(|device| std::mem::take(&mut device.masks));
    masks();
    let any = rail.create_link_on(None).unwrap();
    assert_eq!(
        (rail.link_pipeline(any), masks()),
        (Some(1), Vec::new()),
        "no mask is set without a requested pipeline"
    );
    for (asked, mask) in [(0, 0b10), (1, 0b1000), (0, 0b10)] {
        let link = rail.create_link_on(Some(asked)).unwrap();
        assert_eq!(rail.link_pipeline(link), Some(asked));
        assert_eq!(masks(), [mask, 0b1010], "one pipeline, and then all again");
    }
    assert!(matches!(
        rail.create_link_on(Some(2)),
        Err(LinkError::NoSuchPipeline { asked: 2, pipelines: 2 })
    ));
    // A device of another vendor has none.
    let plain = crate::fabric(VerbsConfig::default());
    assert_eq!(plain.nics()[0].caps.pipelines, 1);
}
