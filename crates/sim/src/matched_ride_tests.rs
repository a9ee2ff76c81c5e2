//! Rules of comms that share a link whose NIC matches sends with receives: the pending receives of one member neither
//! block the other members nor outlive it.

use trunkline_engine::{CommFault, CommId, EngineError, EngineParams, MatchBy, SharingParams};
use trunkline_fabric::OpStatus;
use trunkline_proto::pool::config::SharingMode;

use crate::ride_tests::{close, exchange};
use crate::rules_tests::{Duo, SECOND, buffer, end, isend, params};
use crate::{NetworkModel, SimPid};

/// Two processes whose comms share one group on a matching NIC, where a member may have eight pending receives.
fn duo() -> Duo {
    duo_in(NetworkModel::fault_free())
}

/// The same, where a mebibyte takes a second, and posted operations cannot be cancelled.
fn slow_duo() -> Duo {
    duo_in(NetworkModel { kib_time: 1_000_000, keeps_matched: true, ..NetworkModel::fault_free() })
}

fn duo_in(mut weather: NetworkModel) -> Duo {
    weather.caps.matched = true;
    weather.caps.depth_max = 9 * 128;
    weather.caps.completions_max = weather.caps.completions_max.max(4 * weather.caps.depth_max);
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    Duo::new(1, weather, EngineParams { sharing, match_by: MatchBy::Nic, ..params() })
}

fn links(duo: &Duo) -> [usize; 2] {
    [0, 1].map(|pid| duo.world.held_resources(SimPid(pid)).links)
}

/// Posts that many receives that never match a send.
fn receives_that_wait(duo: &Duo, recv: CommId, count: usize) {
    let (_, into) = buffer(&duo.b, recv, 64);
    for _ in 0..count {
        duo.b.irecv(recv, &[into; 8]).unwrap();
    }
}

#[test]
fn unmatched_receives_are_cancelled() {
    let duo = duo();
    let (stays, leaves) = (duo.connect(), duo.connect());
    receives_that_wait(&duo, leaves.1, 3);
    close(&duo, leaves);
    exchange(&duo, stays, 1000);
    assert_eq!(links(&duo), [1, 1], "the group survives");
    close(&duo, stays);
    duo.run(SECOND);
    assert_eq!(links(&duo), [0, 0]);
}

#[test]
fn unmatched_sends_are_cancelled_without_a_wait() {
    let duo = duo();
    let (stays, leaves) = (duo.connect(), duo.connect());
    let (_, from) = buffer(&duo.a, leaves.0, 64);
    for _ in 0..3 {
        isend(&duo.a, leaves.0, from);
    }
    let until = duo.world.now() + SECOND;
    while !duo.a.prepare_close(leaves.0).unwrap() {
        assert!(duo.world.now() < until, "the sender cannot close");
    }
    duo.a.close(leaves.0).unwrap();
    let (_, into) = buffer(&duo.b, leaves.1, 64);
    while duo.b.irecv(leaves.1, &[into]).is_ok() {
        duo.a.progress_all();
        duo.b.drive_unpolled();
        assert!(duo.world.now() < until, "the receiver waits for a cancelled send");
    }
    duo.b.close(leaves.1).unwrap();
    exchange(&duo, stays, 1000);
    assert_eq!(links(&duo), [1, 1], "the group survives");
    close(&duo, stays);
}

#[test]
fn unmatched_operations_block_no_other_member() {
    let duo = duo();
    let comms: Vec<_> = (0..8).map(|_| duo.connect()).collect();
    assert_eq!(links(&duo), [1, 1]);
    let (stays, greedy) = comms.split_first().unwrap();
    for &(_, recv) in greedy {
        receives_that_wait(&duo, recv, 32);
    }
    exchange(&duo, *stays, 1000);
    for &(send, _) in greedy {
        // More messages than the NIC has pending receives for find their receives, too.
        let (_, from) = buffer(&duo.a, send, 64);
        for _ in 0..20 {
            let sent = isend(&duo.a, send, from);
            let until = duo.world.now() + SECOND;
            while !duo.a.test(sent, &mut [0; 8]).unwrap() {
                duo.b.drive_unpolled();
                assert!(duo.world.now() < until, "a send with a posted receive does not end");
            }
        }
    }
    for &comm in &comms {
        close(&duo, comm);
    }
    duo.run(SECOND);
    assert_eq!(links(&duo), [0, 0]);
}

/// Both ends of the comm are notified, whichever closes first; another member of each is in the middle of a message.
#[test]
fn overlong_message_ends_only_its_comm() {
    for receives_first in [true, false] {
        let duo = slow_duo();
        let (stays, leaves) = (duo.connect(), duo.connect());
        let ((_, long), (_, into)) = (buffer(&duo.a, stays.0, 64 << 10), buffer(&duo.b, stays.1, 64 << 10));
        let received = duo.b.irecv(stays.1, &[into]).unwrap().unwrap();
        let sent = isend(&duo.a, stays.0, long);
        let ((_, from), (_, short)) = (buffer(&duo.a, leaves.0, 101), buffer(&duo.b, leaves.1, 100));
        let receive = || duo.b.irecv(leaves.1, &[short]).unwrap().unwrap();
        let early = receives_first.then(receive);
        duo.run(1_000_000);
        let send = isend(&duo.a, leaves.0, from);
        let receive = early.unwrap_or_else(receive);
        let too_long = |ended: Result<u64, EngineError>| {
            let told = matches!(ended, Err(EngineError::Comm(CommFault::Link(OpStatus::TooLong))));
            assert!(told, "{ended:?}");
        };
        too_long(end(&duo.b, receive));
        too_long(end(&duo.a, send));
        assert_eq!(end(&duo.b, received).unwrap(), 64 << 10);
        end(&duo.a, sent).unwrap();
        exchange(&duo, stays, 1000);
        assert_eq!(links(&duo), [1, 1], "the group survives");
        close(&duo, leaves);
        close(&duo, stays);
        duo.run(SECOND);
        assert_eq!(links(&duo), [0, 0]);
    }
}

#[test]
fn waiting_sends_block_no_other_member() {
    let duo = duo();
    let comms: Vec<_> = (0..60).map(|_| duo.connect()).collect();
    let (stays, greedy) = comms.split_first().unwrap();
    for &(send, _) in greedy {
        let (_, from) = buffer(&duo.a, send, 64);
        let sent = (0..32).map_while(|_| duo.a.isend(send, from.mr, 0, 64, 0).unwrap()).count();
        assert!(sent >= 8, "{sent}");
    }
    exchange(&duo, *stays, 1000);
}

#[test]
fn receive_memory_is_kept_until_its_message_arrives() {
    let duo = slow_duo();
    let (stays, leaves) = (duo.connect(), duo.connect());
    let ((_, from), (_, into)) = (buffer(&duo.a, leaves.0, 1 << 20), buffer(&duo.b, leaves.1, 1 << 20));
    let received = duo.b.irecv(leaves.1, &[into]).unwrap().unwrap();
    isend(&duo.a, leaves.0, from);
    // The receive has matched its send.
    for _ in 0..100 {
        assert!(!duo.b.test(received, &mut [0; 8]).unwrap());
        duo.a.progress_all();
    }
    let until = duo.world.now() + 10 * SECOND;
    let mut waited = 0;
    while let Err(error) = duo.b.deregister(leaves.1, into.mr) {
        assert!(matches!(error, EngineError::Draining), "{error}");
        duo.a.progress_all();
        assert!(duo.world.now() < until);
        waited += 1;
    }
    assert!(waited > 0);
    exchange(&duo, stays, 1000);
    assert_eq!(links(&duo), [1, 1], "the group survives");
}
