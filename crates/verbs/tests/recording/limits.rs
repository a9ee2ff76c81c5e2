//! Devices that grant less than was requested, and ports whose addresses change.

use std::net::IpAddr;

use trunkline_fabric::{
    CompletionKind, Fabric as _, LinkControl as _, LinkError, Op, OpSource, OpStatus, Rail as _, RailConfig,
    RailOpenError,
};
use trunkline_sys::verbs::wr_opcode;
use trunkline_verbs::{PacketRouting, VerbsConfig};

use crate::device::{Limits, gid, with, within};
use crate::rails::rail_config;
use crate::{Bench, fabric};

/// Inline bytes of a request that devices accept: none; less than a record; a record; Broadcom's and Intel's; enough
/// for all.
const ROOMS: [u32; 5] = [0, 32, 64, 96, 256];

#[test]
fn payload_beyond_the_inline_room_is_staged() {
    for (inline, extended) in ROOMS.into_iter().flat_map(|inline| [(inline, false), (inline, true)]) {
        within(Limits { inline, ..Limits::USUAL }, || {
            let mut bench = Bench::new(extended);
            let most = bench.rail.caps().inline_max as usize;
            assert!(most >= 64, "a record does not fit inline: {most} bytes");
            bench.lend(4);
            with(|device| device.requests = Some(Vec::with_capacity(16)));
            let long = [7; 256];
            let (cost, allocated) = bench.cost(|bench| {
                let write = |from, imm| Op::Write { from: OpSource::Inline(from), to: bench.to, imm };
                let ops =
                    [write(&[7; 64][..], None), write(&long[..most], None), write(&[1; 8][..], Some(3))];
                for (wr_id, op) in ops.into_iter().enumerate() {
                    bench.rail.post(bench.link, wr_id as u64, op, true).unwrap();
                }
                let body = OpSource::Inline(&long[..most]);
                bench.post(3, Op::Send { head: &long[..most], body, imm: None });
                let body = OpSource::Region(bench.part(100));
                bench.post(4, Op::Send { head: &[1; 16], body, imm: None });
                bench.rail.flush();
            });
            assert_eq!((cost.others(), allocated), (0, 0), "{inline} bytes: {cost:?}");
            let (write, with_imm, send) =
                (wr_opcode::RDMA_WRITE, wr_opcode::RDMA_WRITE_WITH_IMM, wr_opcode::SEND);
            let want =
                [(write, 64), (write, most as u32), (with_imm, 8), (send, 2 * most as u32), (send, 116)];
            assert_eq!(with(|device| device.requests.take()).unwrap(), want, "{inline} bytes");
            let told = bench.poll();
            let posted =
                told.iter().filter(|one| one.done == CompletionKind::Posted && one.status == OpStatus::Ok);
            assert_eq!(posted.count(), 5, "{inline} bytes: {told:?}");
        });
    }
}

fn deep(depth: u32, routing: PacketRouting) -> VerbsConfig {
    VerbsConfig { depth, routing, ..VerbsConfig::default() }
}

#[test]
fn inline_bytes_are_reduced_before_the_depth() {
    let limits = Limits { max_qp_wr: 32_768, blocks: 32_768, ..Limits::USUAL };
    // Depth requested and granted, and inline bytes: the usual ones; sixteen times as deep, where 256 inline bytes do
    // not fit; too deep for any. Where immediates are requests of their own, the depth is half of that.
    let cases = [
        (512, PacketRouting::Fixed, 512, 256),
        (8192, PacketRouting::Fixed, 8192, 128),
        (4096, PacketRouting::Adaptive, 4096, 128),
        (16_384, PacketRouting::Fixed, 8192, 128),
        (16_384, PacketRouting::Adaptive, 4096, 128),
    ];
    for refusal in [libc::EINVAL, libc::ENOMEM] {
        for (asked, routing, granted, inline) in cases {
            within(Limits { refusal, ..limits.clone() }, || {
                let fabric = fabric(deep(asked, routing));
                let caps = fabric.nics()[0].caps;
                assert_eq!(caps.depth_max, granted, "of {asked}");
                let line = &fabric.grant_notes()[0];
                assert!(line.starts_with("NIC stub0: requested queue pairs of "), "{line}");
                assert!(line.ends_with(&format!(" and {inline}; {granted} operations per link")), "{line}");
                let deepest = rail_config(granted, 1);
                let mut rail = fabric.open_rail(0, &deepest).unwrap();
                let link = rail.create_link().unwrap();
                let own = rail.link_address(link).unwrap();
                rail.connect(link, own).unwrap();
                assert_eq!(rail.post_credits(link), granted);
                let deeper = RailConfig { depth: granted + 1, ..deepest };
                let refused = fabric.open_rail(0, &deeper).err();
                let most = u64::from(granted);
                assert!(
                    matches!(refused, Some(RailOpenError::Exhausted { limit, .. }) if limit == most),
                    "{refused:?}"
                );
            });
        }
    }
}

#[test]
fn a_device_with_short_queues_is_used() {
    within(Limits { max_qp_wr: 21, ..Limits::USUAL }, || {
        assert_eq!(
            fabric(VerbsConfig::default()).nics()[0].caps.depth_max,
            20,
            "one request is for the mark that ends a link"
        );
    });
}

#[test]
fn device_without_queue_pairs_reports_the_reason() {
    within(Limits { blocks: 1, ..Limits::USUAL }, || {
        let library = std::sync::Arc::new(crate::device::library());
        let missing =
            trunkline_verbs::VerbsFabric::with_library(library, VerbsConfig::default()).err().unwrap();
        let why = missing.to_string();
        assert!(why.contains("not even for 32 operations without inline bytes (Invalid argument"), "{why}");
    });
}

/// Moves the port to another table of addresses.
fn move_to(gids: [Option<IpAddr>; 2]) {
    with(|device| device.limits.gids = gids);
}

/// Creates a link and connects it to itself; returns the GID index, and the address.
fn dial(bench: &mut Bench) -> Result<(u8, IpAddr), LinkError> {
    let link = bench.rail.create_link()?;
    let own = bench.rail.link_address(link)?;
    bench.rail.connect(link, own)?;
    let (place, raw) = with(|device| *device.routes.last().unwrap());
    bench.rail.destroy_link(link);
    Ok((place, IpAddr::V6(raw.into()).to_canonical()))
}

#[test]
fn link_uses_the_current_address_of_its_port() {
    within(Limits::USUAL, || {
        let mut bench = Bench::new(true);
        assert_eq!(dial(&mut bench).unwrap(), (0, gid(1)));
        move_to([None, Some(gid(1))]);
        assert_eq!(dial(&mut bench).unwrap(), (1, gid(1)), "another index");
        move_to([None, Some(gid(9))]);
        assert_eq!(dial(&mut bench).unwrap(), (1, gid(9)), "another address");
        move_to([Some(gid(7)), Some(gid(9))]);
        assert_eq!(dial(&mut bench).unwrap(), (1, gid(9)), "it stays while its address exists");
    });
}

#[test]
fn links_wait_until_an_address_is_added() {
    within(Limits::USUAL, || {
        let mut bench = Bench::new(true);
        let local = "fe80::5".parse().unwrap();
        for gone in [[None, None], [Some(local), None]] {
            move_to(gone);
            let error = dial(&mut bench).unwrap_err();
            assert!(
                matches!(error, LinkError::Unreachable(why) if why.contains("no other address of its kind yet")),
                "{error}"
            );
        }
        move_to([Some(local), Some(gid(3))]);
        assert_eq!(dial(&mut bench).unwrap(), (1, gid(3)));
    });
}

#[test]
fn flush_works_over_any_address() {
    within(Limits::USUAL, || {
        let mut bench = Bench::new(true);
        let local: IpAddr = "fe80::5".parse().unwrap();
        move_to([None, Some(local)]);
        bench.post(1, Op::Flush);
        assert_eq!(bench.poll().first().map(|one| (one.wr_id, one.status)), Some((1, OpStatus::Ok)));
        let (place, raw) = with(|device| *device.routes.last().unwrap());
        assert_eq!((place, IpAddr::V6(raw.into())), (1, local));
    });
}
