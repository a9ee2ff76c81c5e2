//! Two processes that chose different fabrics.

use crate::net::{LINES, Net, logged, until};
use crate::ofi::strict::Strict;
use crate::run::{Scene, scenario};
use trunkline_sys::nccl_net::ResultCode;

scenarios! {
    connecting_to_another_fabric_names_both,
}

/// The choices of the two processes, separated by a blank.
const CHOICES: &str = "TEST_CHOICES";

fn connecting_to_another_fabric_names_both(mut scene: Scene) {
    let choices = std::env::var(CHOICES).unwrap();
    let choices: Vec<&str> = choices.split(' ').collect();
    let (ours, theirs) = (choices[scene.role], choices[1 - scene.role]);
    let net = Net::start(scene.version);
    let (listen, handle) = net.listen();
    scene.say(&handle);
    let mut handle = scene.hear_handle();
    let refused = until("connect ends", || net.try_connect(&mut handle).err());
    assert_eq!(refused, ResultCode::INVALID_USAGE);
    let named =
        format!("uses fabric {theirs}, this process uses {ours}: set TRUNKLINE_FABRIC to the same value");
    assert_eq!(logged(&named), 1, "{named}: {:?}", LINES.lock().unwrap());
    assert_eq!(net.try_accept(listen).unwrap(), None, "a refused process requests no connection");
    scene.meet();
    net.close_listen(listen).unwrap();
    if let Some(finalized) = net.finalize() {
        finalized.unwrap();
    }
}

#[test]
fn processes_over_different_wires_name_both() {
    scenario("connecting_to_another_fabric_names_both")
        .env(CHOICES, "soft:shm soft:tcp")
        .env("NCCL_SOCKET_IFNAME", "=lo")
        .env("TRUNKLINE_FABRIC", "soft:shm")
        .second_env("TRUNKLINE_FABRIC", "soft:tcp")
        .two();
}

#[test]
fn a_process_over_libfabric_and_a_soft_one_name_both() {
    let Some(strict) = Strict::here("processes over different fabrics") else { return };
    strict
        .over("connecting_to_another_fabric_names_both", &[])
        .env(CHOICES, "ofi:strict soft")
        .second_env("TRUNKLINE_FABRIC", "soft")
        .two();
}

/// A process that accepts any wire connects to one that accepts only TCP, and to one that accepts only shared memory.
#[test]
fn any_wire_connects_to_a_fixed_wire() {
    for wire in ["soft:shm", "soft:tcp"] {
        scenario("two_processes_exchange_messages")
            .env("NCCL_SOCKET_IFNAME", "=lo")
            .env("TRUNKLINE_FABRIC", "soft")
            .second_env("TRUNKLINE_FABRIC", wire)
            .two();
    }
}
