//! Every limit of a NIC, used up: a value or an error that names it, and room again afterwards.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use common::{connect, poll, poll_until, rail, rail_config};
use trunkline_fabric::{
    AccessRights, Fabric, LinkControl, LinkError, Op, OpSource, OpStatus, PostError, Rail, RailConfig,
    RailOpenError, RegionPurpose, RegisterError, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::time::Duration;
use trunkline_softnic::{SoftConfig, SoftFabric};

#[test]
fn nics_report_the_speeds_they_are_given() {
    let config = SoftConfig { nics: 3, speeds_mbps: vec![25_000, 4_000], ..SoftConfig::default() };
    let fabric = SoftFabric::new(config).unwrap();
    let speeds: Vec<u32> = fabric.nics().iter().map(|nic| nic.speed_mbps).collect();
    assert_eq!(speeds, [25_000, 4_000, SoftConfig::SPEED_UNKNOWN_MBPS]);
}

#[test]
fn queue_pairs() {
    let fabric = SoftFabric::new(SoftConfig { max_qp: 3, nics: 2, ..SoftConfig::default() }).unwrap();
    let mut one = fabric.open_rail(0, &rail_config()).unwrap();
    let mut two = fabric.open_rail(0, &rail_config()).unwrap();
    let first = one.create_link().unwrap();
    one.create_link().unwrap();
    two.create_link().unwrap();
    assert!(matches!(two.create_link(), Err(LinkError::Exhausted(3))));
    fabric.open_rail(1, &rail_config()).unwrap().create_link().unwrap();
    one.destroy_link(first);
    two.create_link().unwrap();
    drop(one);
    two.create_link().unwrap();
}

#[test]
fn pipelines() {
    let config = SoftConfig { max_qp: 7, pipelines: 2, nics: 2, ..SoftConfig::default() };
    let fabric = SoftFabric::new(config).unwrap();
    let caps = fabric.nics()[0].caps;
    assert_eq!((caps.pipelines, caps.links_max), (2, 6), "queue pairs beyond those of the pipelines");
    // The rails of a NIC share its pipelines.
    let mut one = fabric.open_rail(0, &rail_config()).unwrap();
    let mut two = fabric.open_rail(0, &rail_config()).unwrap();
    let place = |rail: &mut trunkline_softnic::SoftRail| {
        let link = rail.create_link().unwrap();
        rail.link_pipeline(link)
    };
    let places = [place(&mut one), place(&mut two), place(&mut two)];
    assert_eq!(places, [Some(0), Some(1), Some(0)]);
    one.create_link_on(Some(0)).unwrap();
    let error = two.create_link_on(Some(0)).unwrap_err();
    assert!(matches!(error, LinkError::PipelineExhausted { pipeline: 0, limit: 3 }));
    assert!(error.to_string().contains("all 3 queue pairs of pipeline 0"), "{error}");
    for _ in 0..2 {
        let link = one.create_link().unwrap();
        assert_eq!(one.link_pipeline(link), Some(1));
    }
    assert!(matches!(two.create_link(), Err(LinkError::Exhausted(6))));
    fabric.open_rail(1, &rail_config()).unwrap().create_link_on(Some(0)).unwrap();
    drop(one);
    for _ in 0..2 {
        two.create_link_on(Some(0)).unwrap();
        two.create_link_on(Some(1)).unwrap();
    }
    assert!(matches!(two.create_link(), Err(LinkError::Exhausted(6))));
}

#[test]
fn invalid_numbers_of_pipelines_are_refused() {
    for (pipelines, max_qp) in [(0, 8), (65, 4096), (5, 4), (u32::MAX, u32::MAX)] {
        let made = SoftFabric::new(SoftConfig { pipelines, max_qp, ..SoftConfig::default() });
        let Err(RailOpenError::System { source, .. }) = made else { panic!("{pipelines} pipelines") };
        assert!(source.to_string().contains(&format!("{pipelines} pipelines")), "{source}");
    }
    SoftFabric::new(SoftConfig { pipelines: 64, max_qp: 64, ..SoftConfig::default() }).unwrap();
}

#[test]
fn regions() {
    let fabric = SoftFabric::new(SoftConfig { max_mr: 10, ..SoftConfig::default() }).unwrap();
    let one = fabric.open_rail(0, &rail_config()).unwrap().registrar();
    let two = fabric.open_rail(0, &rail_config()).unwrap().registrar();
    let memory = MemoryRange::heap(64);
    let register = |registrar: &dyn trunkline_fabric::MemoryRegistrar| {
        registrar.register(&memory, AccessRights::ALL, RegionPurpose::Bounce)
    };
    for _ in 0..50 {
        let keys: Vec<_> = (0..10).map(|_| register(&*one).unwrap()).collect();
        assert!(matches!(register(&*two), Err(RegisterError::Exhausted(10))));
        for keys in &keys {
            one.deregister(keys.local).unwrap();
        }
        assert!(one.deregister(keys[0].local).is_err());
    }
    // SAFETY: device memory is never touched.
    let device = unsafe { MemoryRange::from_raw(0, 64, trunkline_mem::MemoryKind::Device(1)) };
    assert!(matches!(
        one.register(&device, AccessRights::ALL, RegionPurpose::Bounce),
        Err(RegisterError::Kind(trunkline_mem::MemoryKind::Device(1)))
    ));
}

#[test]
fn depth() {
    let fabric = SoftFabric::new(SoftConfig { max_depth: 16, ..SoftConfig::default() }).unwrap();
    let deep = RailConfig { depth: 17, ..rail_config() };
    assert!(matches!(fabric.open_rail(0, &deep), Err(RailOpenError::Exhausted { limit: 16, .. })));
    assert!(matches!(fabric.open_rail(1, &rail_config()), Err(RailOpenError::NoSuchNic(1))));
}

#[test]
fn completions() {
    let config = SoftConfig { max_cqe: 4, ..SoftConfig::default() };
    let (mut a, mut b) = (rail(config.clone()), rail(config));
    let (at_a, at_b) = connect(&mut a, &mut b);
    let memory = MemoryRange::heap(64);
    let keys = b.registrar().register(&memory, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
    let to = RemoteLocation { key: keys.remote, addr: keys.remote_base, purpose: RegionPurpose::Data };
    let op = Op::Write { from: OpSource::Inline(&[1]), to, imm: None };
    for _ in 0..20 {
        for wr_id in 0..4 {
            a.post(at_a, wr_id, op, true).unwrap();
        }
        assert_eq!(a.post(at_a, 9, op, true), Err(PostError::Busy));
        assert_eq!(a.post_credits(at_a), 0);
        let mut seen = 0;
        poll_until("completions", || {
            poll(&mut b);
            seen += poll(&mut a).len();
            (seen == 4).then_some(())
        });
    }
    a.destroy_link(at_a);
    b.destroy_link(at_b);
}

#[test]
fn send_without_receive_fails_after_its_limit() {
    let config = SoftConfig { receiver_wait: Some(Duration::from_millis(20)), ..SoftConfig::default() };
    let (mut a, mut b) = (rail(config.clone()), rail(config));
    let (at_a, _) = connect(&mut a, &mut b);
    a.post(at_a, 1, Op::Send { head: b"x", body: OpSource::Inline(&[]), imm: None }, true).unwrap();
    a.post(at_a, 2, Op::Nop, true).unwrap();
    let mut seen = Vec::new();
    poll_until("the error", || {
        poll(&mut b);
        seen.extend(poll(&mut a));
        (seen.len() == 2).then_some(())
    });
    assert_eq!((seen[0].wr_id, seen[0].status), (1, OpStatus::ReceiverNotReady));
    assert_eq!((seen[1].wr_id, seen[1].status), (2, OpStatus::Flushed));
}

#[test]
fn link_can_be_its_own_peer() {
    let mut a = rail(SoftConfig::default());
    let link = a.create_link().unwrap();
    let address = a.link_address(link).unwrap();
    a.connect(link, address).unwrap();
    let memory = MemoryRange::heap(1 << 20);
    memory.write(0, &[7; 4096]).unwrap();
    let keys = a.registrar().register(&memory, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
    let from = OpSource::Region(trunkline_fabric::RegionExtent { key: keys.local, offset: 0, len: 1 << 19 });
    let to =
        RemoteLocation { key: keys.remote, addr: keys.remote_base + (1 << 19), purpose: RegionPurpose::Data };
    a.post(link, 1, Op::Write { from, to, imm: Some(5) }, true).unwrap();
    let mut seen = Vec::new();
    poll_until("both completions", || {
        seen.extend(poll(&mut a));
        (seen.len() == 2).then_some(())
    });
    assert!(seen.iter().all(|one| one.status == OpStatus::Ok));
    assert_eq!(memory.load(1 << 19), Ok(0x0707_0707_0707_0707));
}

#[test]
fn missing_flush_leaves_the_old_bytes() {
    let fabric = SoftFabric::new(SoftConfig { delayed_visibility: true, ..SoftConfig::default() }).unwrap();
    let mut a = fabric.open_rail(0, &rail_config()).unwrap();
    let mut b = fabric.open_rail(0, &rail_config()).unwrap();
    assert!(b.caps().needs_flush);
    let (at_a, at_b) = connect(&mut a, &mut b);
    let (data, mail) = (MemoryRange::heap(4096), MemoryRange::heap(4096));
    let registrar = b.registrar();
    let data_keys = registrar.register(&data, AccessRights::WRITE, RegionPurpose::Data).unwrap();
    let mail_keys = registrar.register(&mail, AccessRights::WRITE, RegionPurpose::Bounce).unwrap();
    for (keys, imm) in [(data_keys, 1), (mail_keys, 2)] {
        let to = RemoteLocation { key: keys.remote, addr: keys.remote_base, purpose: RegionPurpose::Data };
        a.post(at_a, 1, Op::Write { from: OpSource::Inline(&[9; 8]), to, imm: Some(imm) }, false).unwrap();
    }
    let mut seen = Vec::new();
    poll_until("both immediates", || {
        poll(&mut a);
        seen.extend(poll(&mut b));
        (seen.len() == 2).then_some(())
    });
    assert_eq!(mail.load(0), Ok(0x0909_0909_0909_0909), "a write to a strict region is not visible at once");
    assert_eq!(data.load(0), Ok(0), "the bytes are visible without a flush");
    b.post(at_b, 3, Op::Flush, true).unwrap();
    poll_until("the flush", || poll(&mut b).first().copied());
    assert_eq!(data.load(0), Ok(0x0909_0909_0909_0909), "the bytes are not visible after the flush");
}

/// A NIC keeps the keys of the 65,536 regions that were retired last.
#[test]
fn retired_keys() {
    let (mut one, mut two) = (rail(SoftConfig::default()), rail(SoftConfig::default()));
    let registrar = two.registrar();
    let memory = MemoryRange::heap(64);
    let last = 65_536;
    let keys: Vec<_> = (0..=last)
        .map(|_| {
            let keys = registrar.register(&memory, AccessRights::WRITE, RegionPurpose::Data).unwrap();
            registrar.retire(keys.local).unwrap();
            assert!(registrar.retire(keys.local).is_err(), "a region ends once");
            keys.remote
        })
        .collect();
    let (link, _) = connect(&mut one, &mut two);
    for (key, status) in
        [(keys[last], OpStatus::Ok), (keys[1], OpStatus::Ok), (keys[0], OpStatus::RemoteAccess)]
    {
        let to = RemoteLocation { key, addr: 0, purpose: RegionPurpose::Data };
        one.post(link, 1, Op::Write { from: OpSource::Inline(&[7]), to, imm: None }, true).unwrap();
        let ended = poll_until("an end", || {
            poll(&mut two);
            poll(&mut one).first().map(|one| one.status)
        });
        assert_eq!(ended, status);
    }
}
