//! The result of checking a link while the cable between two hosts is cut, bad or unplugged, or the peer is stopped.
//! Both processes drive the software NIC itself, so that no other layer detects it first.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use trunkline_fabric::{
    AccessRights, Completion, Fabric as _, LinkAddress, LinkControl as _, LinkError, LinkId, Op, OpSource,
    OpStatus, Rail as _, RailConfig, RecvOrder, RegionExtent, RegionPurpose, RemoteKey, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::time::Duration as Span;
use trunkline_softnic::{SoftConfig, SoftFabric, SoftRail, WireMode};

use super::cable::UNTIL_CUT;
use crate::net::until;
use crate::run::Scene;

scenarios! {
    check_link_reports_a_cut_cable,
    check_link_accepts_a_lossy_cable,
    check_link_accepts_a_stopped_peer,
}

/// More than the buffers of both kernels take.
const LARGE: usize = 32 << 20;
/// Time after which a silent link is reported.
const RAIL_TIME: Duration = Duration::from_secs(3);
/// Time that the report may take in addition.
const MORE: Duration = Duration::from_secs(6);

/// One end of a link between the two processes.
struct End {
    rail: SoftRail,
    link: LinkId,
    /// The peer's memory.
    to: RemoteLocation,
    /// Operations under way.
    posted: usize,
    done: u64,
}

impl End {
    fn new(scene: &mut Scene, rail_time: Duration) -> Self {
        let address = IpAddr::from(Ipv4Addr::new(10, 77, 0, scene.role as u8 + 1));
        let config = SoftConfig { wire: WireMode::Tcp, addresses: vec![address], ..SoftConfig::default() };
        let (peer_time, rail_time) = (Span::from_secs(10), Span::from_millis(rail_time.as_millis() as u64));
        let rail_config = RailConfig {
            depth: 64,
            recv_depth: 64,
            recv_order: RecvOrder::Posted,
            links: 1,
            peer_time,
            rail_time,
            receives: false,
            traffic_class: None,
            many: false,
        };
        let mut rail = SoftFabric::new(config).unwrap().open_rail(0, &rail_config).unwrap();
        let link = rail.create_link().unwrap();
        let memory = MemoryRange::heap(LARGE);
        let keys = rail.registrar().register(&memory, AccessRights::ALL, RegionPurpose::Bounce).unwrap();
        scene.say(&rail.link_address(link).unwrap().bytes);
        let bytes = scene.hear();
        rail.connect(link, LinkAddress { bytes, fd: None }).unwrap();
        until("the link", || rail.poll_link_up(link).unwrap().then_some(()));
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        scene.say(&[keys.remote.0.to_le_bytes(), keys.remote_base.to_le_bytes()].concat());
        let heard = scene.hear();
        let to = RemoteLocation {
            key: RemoteKey(number(&heard[..8])),
            addr: number(&heard[8..]),
            purpose: RegionPurpose::Data,
        };
        scene.meet();
        Self { rail, link, to, posted: 0, done: 0 }
    }

    /// Polls completions.
    fn poll(&mut self) {
        let mut out = [Completion::BLANK; 8];
        let count = self.rail.poll(&mut out);
        assert!(out[..count].iter().all(|one| one.status == OpStatus::Ok), "{:?}", &out[..count]);
        self.posted -= count;
        self.done += count as u64;
    }

    /// Polls for some time, with a write outstanding all the time if `busy`; returns the last result of checking the link.
    fn play(&mut self, busy: bool, time: Duration) -> Result<(), LinkError> {
        let started = Instant::now();
        while started.elapsed() < time {
            if busy && self.posted == 0 {
                let write = Op::Write { from: OpSource::Inline(&[7; 64]), to: self.to, imm: None };
                self.rail.post(self.link, 1, write, true).unwrap();
                self.posted += 1;
            }
            self.poll();
            self.rail.check_link(self.link)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn check_link_reports_a_cut_cable(mut scene: Scene) {
    let started = Instant::now();
    let mut end = End::new(&mut scene, RAIL_TIME);
    let busy = std::env::var("TEST_CASE").is_ok_and(|case| case == "busy");
    let told = end.play(busy, UNTIL_CUT + RAIL_TIME + MORE - started.elapsed());
    let passed = started.elapsed();
    assert!(matches!(told, Err(LinkError::Unreachable(_))), "after {passed:?}: {told:?}");
    // The last reply may be as old as the interval between two probes.
    assert!(passed > UNTIL_CUT + RAIL_TIME - Duration::from_millis(1500), "{passed:?} is before the cut");
    assert_eq!(end.done > 0, busy, "{} writes", end.done);
    println!("figure: reported {:?} after the cut", passed.saturating_sub(UNTIL_CUT));
    end.rail.fail_link(end.link);
    end.rail.destroy_link(end.link);
}

fn check_link_accepts_a_lossy_cable(mut scene: Scene) {
    let mut end = End::new(&mut scene, RAIL_TIME);
    for busy in [true, false, true] {
        end.play(busy, Duration::from_secs(4)).unwrap();
    }
    assert!(end.done > 5, "{} writes", end.done);
    scene.meet();
}

/// Stopped with full buffers for several times the rail time limit.
fn check_link_accepts_a_stopped_peer(mut scene: Scene) {
    let rail_time = Duration::from_secs(1);
    let mut end = End::new(&mut scene, rail_time);
    let peer = scene.swap_pids();
    if scene.role == 0 {
        kill_process(peer, Signal::STOP).unwrap();
        let memory = MemoryRange::heap(LARGE);
        let keys =
            end.rail.registrar().register(&memory, AccessRights::LOCAL, RegionPurpose::Bounce).unwrap();
        let from = OpSource::Region(RegionExtent { key: keys.local, offset: 0, len: LARGE as u64 });
        end.rail.post(end.link, 2, Op::Write { from, to: end.to, imm: None }, true).unwrap();
        end.posted = 1;
        end.play(false, 6 * rail_time).unwrap();
        assert_eq!(end.done, 0, "a stopped peer completed a write");
        kill_process(peer, Signal::CONT).unwrap();
        until("the write", || {
            end.poll();
            end.rail.check_link(end.link).unwrap();
            (end.done == 1).then_some(())
        });
    } else {
        until("the end", || {
            end.poll();
            end.rail.check_link(end.link).unwrap();
            scene.is_spoken_to().then_some(())
        });
    }
    // The link of the process that leaves ends with it.
    scene.meet();
}
