//! Measures the bare software NIC: two fabrics over shared memory, one thread each. Prints the best of several rounds.
//!
//! `cargo run --release -p trunkline-softnic --example pingpong [-- segment payload slots]`

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that cannot continue stops")]

use std::sync::mpsc;
use std::time::Instant;

use trunkline_fabric::{
    AccessRights, Completion, CompletionKind, Fabric, LinkAddress, LinkControl, LinkId, Op, OpSource,
    OpStatus, Rail, RailConfig, RecvOrder, RegionKeys, RegionPurpose, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::time::Duration;
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, SoftRail};

struct Side {
    rail: SoftRail,
    link: LinkId,
    from: MemoryRange,
    from_keys: RegionKeys,
    into: MemoryRange,
    peer: RemoteLocation,
    written: usize,
    flying: usize,
}

const SIZE: usize = 64 << 20;
/// Short trials, of which the best counts: on a busy machine a long one never runs undisturbed.
const TRIALS: u32 = 300;

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn open(
    config: SoftConfig,
    to: mpsc::Sender<(LinkAddress, RegionKeys)>,
    from: mpsc::Receiver<(LinkAddress, RegionKeys)>,
) -> Side {
    let fabric = SoftFabric::new(config).unwrap();
    let (peer_time, rail_time) = (Duration::from_secs(10), Duration::from_secs(3));
    let rail_config = RailConfig {
        depth: 256,
        recv_depth: 256,
        recv_order: RecvOrder::Posted,
        links: 1,
        peer_time,
        rail_time,
        receives: false,
        traffic_class: None,
        many: false,
    };
    let mut rail = fabric.open_rail(0, &rail_config).unwrap();
    let link = rail.create_link().unwrap();
    let registrar = rail.registrar();
    let (source, into) = (MemoryRange::heap(SIZE), MemoryRange::heap(SIZE));
    for at in (0..SIZE as u64).step_by(4096) {
        source.write(at, &at.to_le_bytes()).unwrap();
        into.write(at, &[1]).unwrap();
    }
    let from_keys = registrar.register(&source, AccessRights::LOCAL, RegionPurpose::Data).unwrap();
    let keys = registrar.register(&into, AccessRights::WRITE, RegionPurpose::Data).unwrap();
    to.send((rail.link_address(link).unwrap(), keys)).unwrap();
    let (address, peer) = from.recv().unwrap();
    rail.connect(link, address).unwrap();
    let peer = RemoteLocation { key: peer.remote, addr: peer.remote_base, purpose: RegionPurpose::Data };
    Side { rail, link, from: source, from_keys, into, peer, written: 0, flying: 0 }
}

impl Side {
    fn write(&mut self, len: u64, imm: u32, signalled: bool) {
        let extent = trunkline_fabric::RegionExtent { key: self.from_keys.local, offset: 0, len };
        let imm = Some(imm);
        loop {
            let op = if len <= 32 {
                let bytes = [7u8; 32];
                let op = Op::Write { from: OpSource::Inline(&bytes[..len as usize]), to: self.peer, imm };
                self.rail.post(self.link, 1, op, signalled)
            } else {
                let op = Op::Write { from: OpSource::Region(extent), to: self.peer, imm };
                self.rail.post(self.link, 1, op, signalled)
            };
            if op.is_ok() {
                self.flying += usize::from(signalled);
                return;
            }
            self.poll();
        }
    }

    /// Polls once and counts the completions of peers' writes.
    fn poll(&mut self) {
        let mut out = [Completion::BLANK; 16];
        let count = self.rail.poll(&mut out);
        for one in &out[..count] {
            assert_eq!(one.status, OpStatus::Ok);
            if one.done == CompletionKind::Written { self.written += 1 } else { self.flying -= 1 }
        }
        if count == 0 {
            std::hint::spin_loop();
        }
    }

    /// Polls until `count` writes of the peer have arrived.
    fn wait(&mut self, count: usize) {
        while self.written < count {
            self.poll();
        }
        self.written -= count;
    }
}

fn run(mut side: Side, first: bool, quiet: bool) {
    for (len, rounds) in [(8u64, 2000u32), (64, 2000), (4096, 500), (65536, 100)] {
        let mut best = f64::MAX;
        for _ in 0..TRIALS {
            let start = Instant::now();
            for round in 0..rounds {
                if first {
                    side.write(len, round, false);
                    side.wait(1);
                } else {
                    side.wait(1);
                    side.write(len, round, false);
                }
            }
            best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0);
        }
        if first && !quiet {
            println!("{len:>9} B  half round trip {best:>8.3} us");
        }
    }
    for len in [8u64, 65536, 262_144, 1 << 20, 4 << 20, 16 << 20] {
        let count = if len == 8 { 4000 } else { ((32u64 << 20) / len).clamp(8, 512) as usize };
        let mut best = 0f64;
        for _ in 0..TRIALS {
            let start = Instant::now();
            if first {
                for _ in 0..count {
                    side.write(len, 0, true);
                    while side.flying >= 8 {
                        side.poll();
                    }
                }
                while side.flying > 0 {
                    side.poll();
                }
                side.wait(1);
            } else {
                side.wait(count);
                side.write(8, 0, false);
            }
            best = best.max(count as f64 / start.elapsed().as_secs_f64());
        }
        if first && !quiet {
            println!("{len:>9} B  stream {:>8.2} GB/s  {:>8.2} M/s", best * len as f64 / 1e9, best / 1e6);
        }
    }
    if !first {
        assert_eq!(side.into.load(4096).unwrap(), 4096);
    }
    drop(side.from);
}

/// Both ends on one thread: the cost of the code itself, without the transfer of cache lines between processors.
fn alone(config: &SoftConfig) {
    let (to_b, at_b) = mpsc::channel();
    let (to_a, at_a) = mpsc::channel();
    let other = config.clone();
    let thread = std::thread::spawn(move || open(other, to_a, at_b));
    let mut a = open(config.clone(), to_b, at_a);
    let mut b = thread.join().unwrap();
    let mut best = [f64::MAX; 2];
    for _ in 0..TRIALS {
        for (signalled, best) in best.iter_mut().enumerate() {
            let start = Instant::now();
            for round in 0..2000 {
                a.write(8, round, signalled == 1);
                b.wait(1);
                if signalled == 1 {
                    a.poll();
                }
            }
            *best = best.min(start.elapsed().as_secs_f64() * 1e9 / 2000.0);
            while a.flying > 0 {
                a.poll();
                b.poll();
            }
        }
    }
    println!("        8 B  post and poll {:>8.1} ns, signalled {:.1} ns", best[0], best[1]);
}

fn main() {
    let args: Vec<u32> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let mut config = SoftConfig { copy: CopyMode::Staging, ..SoftConfig::default() };
    if let [segment, payload, slots] = args[..] {
        config = SoftConfig { segment, payload, slots, ..config };
    }
    alone(&config);
    let (to_b, at_b) = mpsc::channel();
    let (to_a, at_a) = mpsc::channel();
    let other = config.clone();
    let thread = std::thread::spawn(move || {
        pin(1);
        run(open(other, to_a, at_b), false, true);
    });
    pin(0);
    run(open(config, to_b, at_a), true, false);
    thread.join().unwrap();
}
