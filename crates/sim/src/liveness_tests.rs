//! A peer's death is reported in time to callers that get little processor time: the engine may not count only their
//! calls.

use trunkline_engine::{CommFault, EngineError, EngineParams, RecvBuf};
use trunkline_mem::MemoryRange;
use trunkline_proto::time::Duration;

use crate::comm_end::SimEngine;
use crate::{NetworkModel, SimFabric, SimHost, SimWorld};

/// Time between two calls of a process that yields to many others.
const PAUSE: u64 = 20_000_000;

fn params() -> EngineParams {
    EngineParams { peer_time: Duration::from_secs(10), ..EngineParams::default() }
}

#[test]
fn death_is_reported_in_time_to_rare_callers() {
    // The NIC itself detects nothing for long; the control stream closes after a millisecond.
    let weather = NetworkModel { retry_time: 3_600_000_000_000, poll_time: 0, ..NetworkModel::fault_free() };
    let world = SimWorld::new(11, weather, false);
    let pids = [world.add_process(), world.add_process()];
    let engines = pids
        .map(|pid| SimEngine::new(SimFabric::new(&world, pid), SimHost::new(&world, pid), params()).unwrap());
    let [survivor, victim] = &engines;
    let (listen, mut handle) = survivor.listen(0).unwrap();
    let (mut send, mut recv) = (None, None);
    for _ in 0..1000 {
        send = send.or_else(|| victim.connect(0, &mut handle).unwrap());
        recv = recv.or_else(|| survivor.accept(listen).unwrap());
        world.advance_by(100_000);
    }
    let (Some(_), Some(recv)) = (send, recv) else { panic!("never connected") };
    let mr = survivor.register(recv, MemoryRange::heap(64)).unwrap();
    let request = survivor.irecv(recv, &[RecvBuf { mr, offset: 0, len: 64, tag: 0 }]).unwrap().unwrap();
    let mut sizes = [0; 8];
    assert!(!survivor.test(request, &mut sizes).unwrap());
    world.kill_process(pids[1]);
    let killed = world.now();
    let error = loop {
        world.advance_by(PAUSE);
        match survivor.test(request, &mut sizes) {
            Ok(done) => assert!(!done, "nothing was sent"),
            Err(error) => break error,
        }
        assert!(world.now() - killed < params().peer_time.0, "no error within the peer time limit");
    };
    assert!(matches!(error, EngineError::Comm(CommFault::PeerDead(_))), "{error}");
    world.free_run(1_000_000);
}
