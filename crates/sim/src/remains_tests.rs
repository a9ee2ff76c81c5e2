//! Memory that the network still uses when its owner deregisters it: the wait, and its limit.

use trunkline_engine::{CommId, EngineError, MrId};
use trunkline_fabric::DeregisterError;
use trunkline_mem::MemoryRange;

use crate::NetworkModel;
use crate::rules_tests::{Duo, SECOND, buffer, isend, params};

const LEN: usize = 1 << 20;

/// The peer time limit of the engines in these tests.
fn peer_time() -> u64 {
    params().peer_time.0
}

/// A receiver whose buffer is the target of a write in flight, which may take up to `stuck` to end when the memory is
/// deregistered.
fn receiver(stuck_time: u64) -> (Duo, CommId, MrId, MemoryRange) {
    let weather =
        NetworkModel { stuck: 1000, stuck_time, drains: true, kib_time: 2_000, ..NetworkModel::fault_free() };
    let duo = Duo::new(1, weather, params());
    let (send, recv) = duo.connect();
    let ((from_memory, from), (memory, into)) =
        (buffer(&duo.a, send, LEN as u64), buffer(&duo.b, recv, LEN as u64));
    from_memory.write(0, &[7; LEN]).unwrap();
    let received = duo.b.irecv(recv, &[into]).unwrap().unwrap();
    isend(&duo.a, send, from);
    for _ in 0..100 {
        assert!(!duo.b.test(received, &mut [0; 8]).unwrap());
        duo.a.progress_all();
    }
    (duo, recv, into.mr, memory)
}

#[test]
fn deregistration_waits_for_memory_in_use() {
    let (duo, recv, mr, memory) = receiver(2 * SECOND);
    let began = duo.world.now();
    let mut waits = 0;
    while let Err(error) = duo.b.deregister(recv, mr) {
        assert!(matches!(error, EngineError::Draining), "{error}");
        waits += 1;
        duo.world.advance_by(1_000_000);
        assert!(duo.world.now() < began + 3 * SECOND);
    }
    assert!(waits > 0, "no write was in flight");
    // No further bytes arrive.
    memory.write(0, &[9; LEN]).unwrap();
    duo.run(5 * SECOND);
    let mut found = vec![0; LEN];
    memory.read(0, &mut found).unwrap();
    assert!(found.iter().all(|&byte| byte == 9));
}

#[test]
fn stuck_deregistration_fails_after_the_peer_time() {
    let (duo, recv, mr, _memory) = receiver(100_000 * SECOND);
    let began = duo.world.now();
    let error = loop {
        match duo.b.deregister(recv, mr) {
            Err(EngineError::Draining) => duo.world.advance_by(10_000_000),
            other => break other.unwrap_err(),
        }
        assert!(duo.world.now() < began + 3 * peer_time(), "the deregistration never fails");
    };
    assert!(matches!(error, EngineError::Deregister(DeregisterError::Draining)), "{error}");
    assert!(duo.world.now() >= began + peer_time());
    // The call may be repeated, and returns at once.
    let again = duo.b.deregister(recv, mr).unwrap_err();
    assert!(matches!(again, EngineError::Deregister(DeregisterError::Draining)), "{again}");
    duo.world.advance_by(100_000 * SECOND);
    duo.b.deregister(recv, mr).unwrap();
}
