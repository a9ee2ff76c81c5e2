//! A peer's death is told in time to callers that hardly get a processor: the engine may not count their calls alone.

#[cfg(feature = "mutants")]
use trunkline_engine::Mutant as EngineMutant;
use trunkline_engine::{CommFault, Error, Params, RecvBuf};
use trunkline_mem::Memory;
use trunkline_proto::time::Duration;

use crate::side::SimEngine;
use crate::{Mutant, SimFabric, SimHost, Weather, World};

/// What passes between two calls of a process that yields to many others.
const PAUSE: u64 = 20_000_000;

fn params() -> Params {
    #[cfg_attr(not(feature = "mutants"), expect(unused_mut, reason = "changed only to plant a bug"))]
    let mut params = Params { peer_time: Duration::secs(10), ..Params::default() };
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
        params.mutant = EngineMutant::named(name.leak());
    }
    params
}

#[test]
fn a_death_is_told_in_time_to_a_caller_that_seldom_runs() {
    // The NIC itself notices nothing for long; the control stream tells after a millisecond.
    let weather = Weather { retry_time: 3_600_000_000_000, poll_time: 0, ..Weather::calm() };
    let world = World::new(11, weather, Mutant::None, false);
    let pids = [world.add_process(), world.add_process()];
    let engines = pids
        .map(|pid| SimEngine::new(SimFabric::new(&world, pid), SimHost::new(&world, pid), params()).unwrap());
    let [survivor, victim] = &engines;
    let (listen, mut handle) = survivor.listen(0).unwrap();
    let (mut send, mut recv) = (None, None);
    for _ in 0..1000 {
        send = send.or_else(|| victim.connect(0, &mut handle).unwrap());
        recv = recv.or_else(|| survivor.accept(listen).unwrap());
        world.advance(100_000);
    }
    let (Some(_), Some(recv)) = (send, recv) else { panic!("never connected") };
    let mr = survivor.register(recv, Memory::heap(64)).unwrap();
    let request = survivor.irecv(recv, &[RecvBuf { mr, offset: 0, len: 64, tag: 0 }]).unwrap().unwrap();
    let mut sizes = [0; 8];
    assert!(!survivor.test(request, &mut sizes).unwrap());
    world.kill(pids[1]);
    let killed = world.now();
    let error = loop {
        world.advance(PAUSE);
        match survivor.test(request, &mut sizes) {
            Ok(done) => assert!(!done, "nothing was sent"),
            Err(error) => break error,
        }
        assert!(world.now() - killed < params().peer_time.0, "no error within the peer time limit");
    };
    assert!(matches!(error, Error::Comm(CommFault::PeerDead(_))), "{error}");
    world.free_run(1_000_000);
}
