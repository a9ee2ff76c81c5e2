//! The registered memory that a further comm costs if it shares queue pairs, as the NICs count it.

use trunkline_engine::{EngineParams, SharingParams};
use trunkline_proto::limits::MEMBERS_OF_GROUP_MAX;
use trunkline_proto::pool::config::SharingMode;

use crate::rules_tests::{Duo, params};
use crate::{NetworkModel, SimPid};

/// Bytes for each further comm, at either end.
const BYTES: usize = 8 << 10;

/// Regions of either end for all comms of a full group.
const REGIONS: usize = 22;

/// Registered bytes and regions at both ends.
fn registered(duo: &Duo) -> [(usize, usize); 2] {
    [0, 1].map(|pid| {
        let counts = duo.world.held_resources(SimPid(pid));
        (counts.registered, counts.regions)
    })
}

#[test]
fn a_further_member_takes_8_kib_of_registered_memory() {
    for links_per_rail in [1, 2] {
        let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
        let duo =
            Duo::new(1, NetworkModel::fault_free(), EngineParams { sharing, links_per_rail, ..params() });
        duo.connect();
        let first = registered(&duo);
        for further in 1..MEMBERS_OF_GROUP_MAX {
            let (send, recv) = duo.connect();
            assert!(duo.a.group_of(send).is_some() && duo.b.group_of(recv).is_some());
            for (now, first) in registered(&duo).into_iter().zip(first) {
                let (bytes, regions) = (now.0 - first.0, now.1 - first.1);
                let most = (further + further / 4 + 1) * BYTES;
                assert!(
                    bytes <= most && regions <= REGIONS,
                    "{further} further members, {links_per_rail} links: {bytes} bytes in {regions} regions"
                );
            }
        }
        let all = registered(&duo).into_iter().zip(first).map(|(now, first)| now.0 - first.0);
        let ahead = (MEMBERS_OF_GROUP_MAX - 1) * BYTES;
        assert!(all.clone().all(|bytes| bytes <= ahead + BYTES), "{:?}", all.collect::<Vec<_>>());
    }
}
