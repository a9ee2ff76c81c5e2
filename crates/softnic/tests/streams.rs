//! Two threads, one each side, and every byte looked at: what is published is complete.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on stops")]

mod common;

use common::{poll, rail};
use trunkline_fabric::{Access, Done, Extent, Op, Rail, Remote, Source, Status, Visibility};
use trunkline_mem::Memory;
use trunkline_softnic::{CopyMode, SoftConfig, SoftRail};

const SLOTS: u64 = 16;
const SLOT: u64 = 200_000;

fn byte(message: u64, at: u64) -> u8 {
    (message.wrapping_mul(31) ^ at ^ (at >> 8)) as u8
}

fn stream(mode: CopyMode, count: u64) {
    let config = SoftConfig { copy: mode, ..SoftConfig::default() };
    let (mut a, mut b) = (rail(config.clone()), rail(config));
    let (at_a, at_b) = common::connect(&mut a, &mut b);
    let lens: Vec<u64> =
        (0..count).map(|n| [8, 24, 64, 96, 300, 5000, 70_000, SLOT][(n % 8) as usize]).collect();
    let memory = Memory::heap((SLOTS * SLOT) as usize);
    let keys = b.registrar().register(&memory, Access::WRITE, Visibility::Strict).unwrap();
    let to = Remote { key: keys.remote, addr: keys.remote_base };
    let sizes = lens.clone();
    let reader = std::thread::spawn(move || {
        let mut next = 0;
        while next < sizes.len() {
            for one in poll(&mut b) {
                assert_eq!(one.status, Status::Ok);
                if one.done != Done::Written {
                    continue;
                }
                let (message, len) = (next as u64, sizes[next]);
                assert_eq!((one.imm, one.len), (Some(next as u32), len));
                let mut bytes = vec![0; len as usize];
                memory.read(message % SLOTS * SLOT, &mut bytes).unwrap();
                for (at, got) in bytes.into_iter().enumerate() {
                    assert_eq!(got, byte(message, at as u64), "byte {at} of message {message}");
                }
                next += 1;
                // Tells the writer that the place is free.
                let done = (next as u64).to_le_bytes();
                let _ =
                    b.post(at_b, 1, Op::Send { head: &done, body: Source::Inline(&[]), imm: None }, false);
            }
        }
        (b, memory)
    });
    write(&mut a, at_a, &lens, to);
    let _keep = reader.join().unwrap();
}

fn write(a: &mut SoftRail, link: trunkline_fabric::LinkId, lens: &[u64], to: Remote) {
    let source = Memory::heap((SLOTS * SLOT) as usize);
    let keys = a.registrar().register(&source, Access::ALL, Visibility::Strict).unwrap();
    let note = Memory::heap(4096);
    let note_keys = a.registrar().register(&note, Access::LOCAL, Visibility::Strict).unwrap();
    let into = Extent { key: note_keys.local, offset: 0, len: 8 };
    for _ in 0..32 {
        a.post(link, 0, Op::Recv { into }, true).unwrap();
    }
    let (mut sent, mut freed) = (0u64, 0u64);
    while freed < lens.len() as u64 {
        if sent < lens.len() as u64 && sent - freed < SLOTS {
            let (offset, len) = (sent % SLOTS * SLOT, lens[sent as usize]);
            let bytes: Vec<u8> = (0..len).map(|at| byte(sent, at)).collect();
            source.write(offset, &bytes).unwrap();
            let extent = Extent { key: keys.local, offset, len };
            let to = Remote { key: to.key, addr: to.addr + offset };
            let from = if len <= 96 { Source::Inline(&bytes) } else { Source::Region(extent) };
            if a.post(link, 1, Op::Write { from, to, imm: Some(sent as u32) }, false).is_ok() {
                sent += 1;
            }
        }
        for one in poll(a) {
            assert_eq!(one.status, Status::Ok);
            if one.done == Done::Received {
                freed += 1;
                a.post(link, 0, Op::Recv { into }, true).unwrap();
            }
        }
    }
}

#[test]
fn staged() {
    stream(CopyMode::Staging, 4000);
}

#[test]
fn pulled() {
    stream(CopyMode::Pull, 4000);
}

#[test]
fn shared() {
    stream(CopyMode::Share, 4000);
}

#[test]
fn learned() {
    stream(CopyMode::Auto, 4000);
}
