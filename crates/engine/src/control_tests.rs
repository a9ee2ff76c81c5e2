//! What one control plane says of itself and another one remembers, over the system's own streams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_proto::id::ProcessId;
use trunkline_proto::pool::Pool;
use trunkline_proto::pool::config::Config;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::share::Offer;
use trunkline_softnic::{SoftConfig, SoftFabric, SoftRail};

use crate::comm::{Comms, Peer};
use crate::control::{Around, Control};
use crate::host::UnixHost;
use crate::status::Status;
use crate::{Mutant, Params};

/// The parameters, with the planted bug that the environment asks for.
fn params() -> Params {
    #[cfg_attr(not(feature = "mutants"), expect(unused_mut, reason = "changed only to plant a bug"))]
    let mut mutant = Mutant::NONE;
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
        mutant = Mutant::named(name.leak());
    }
    Params { mutant, status: false, ..Params::default() }
}

/// The control plane of a process, and what it needs.
struct Process {
    id: ProcessId,
    host: UnixHost,
    comms: Comms,
    params: Params,
    status: Status,
    control: Control<UnixHost, SoftRail>,
}

impl Process {
    fn new(name: u8, groups: u8) -> Self {
        let (id, host, params) = (ProcessId([name; 16]), UnixHost::new(|_, _| {}), params());
        let fabric = SoftFabric::new(SoftConfig::default()).unwrap();
        let status = Status::new(&fabric, &host, &params, id);
        let pool = Pool::new(Config::OFF, 1, params.mutant);
        let control = Control::new(id, Offer { groups }, pool);
        Self { id, host, comms: Comms::new(1), params, status, control }
    }

    /// Goes on; who is at the other end of the first stream, once that is known.
    fn peer(&mut self) -> Option<Arc<Peer>> {
        let Self { host, comms, params, status, control, .. } = self;
        control.progress(&Around { host, comms, params, status });
        control.peer(SlotId { slot: 0, generation: 1 })
    }
}

#[test]
fn each_end_knows_what_the_other_one_offers() {
    for offered in [(0, 5), (64, 0), (1, 8)] {
        let (mut one, mut other) = (Process::new(1, offered.0), Process::new(2, offered.1));
        let address = other.control.address(&other.host).unwrap();
        one.control.stream_to(&one.host, other.id, &address.0).unwrap().unwrap();
        let limit = Instant::now() + Duration::from_secs(30);
        let (by_one, by_other) = loop {
            if let (Some(by_one), Some(by_other)) = (one.peer(), other.peer()) {
                break (by_one, by_other);
            }
            assert!(Instant::now() < limit, "they never meet");
            std::thread::yield_now();
        };
        assert_eq!((by_one.process, by_one.offer.groups), (other.id, offered.1));
        assert_eq!((by_other.process, by_other.offer.groups), (one.id, offered.0));
    }
}
