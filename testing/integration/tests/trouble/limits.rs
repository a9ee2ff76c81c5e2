//! Exhausted limits: an error names the limit, and everything works again afterwards.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use trunkline_sys::nccl_net::ResultCode;

use crate::contract::messages::round;
use crate::net::{Buf, Called, Comm, LINES, Net, logged, until};
use crate::raw;
use crate::run::Scene;
use crate::trouble::strangers::dial;

scenarios! {
    a_limit_of_comms_is_named,
    a_limit_of_queue_pairs_is_named,
    a_limit_of_list_entries_is_named,
    a_limit_of_regions_is_named,
    a_limit_of_descriptors_is_named,
    a_failing_listener_is_logged_once,
    a_bad_value_fails_init_and_is_named,
}

/// Makes connections to itself until that fails, and returns them with the failure.
fn connect_until_error(net: &Net) -> (Vec<(Comm, Comm)>, ResultCode) {
    let mut pairs = Vec::new();
    loop {
        assert!(pairs.len() < 2000, "no limit");
        let (listen, mut handle) = net.listen();
        let (mut send, mut recv) = (None, None);
        let outcome: Called<(Comm, Comm)> = until("a connection or an error", || {
            if send.is_none() {
                match net.try_connect(&mut handle) {
                    Ok(comm) => send = comm,
                    Err(code) => return Some(Err(code)),
                }
            }
            if recv.is_none() {
                match net.try_accept(listen) {
                    Ok(comm) => recv = comm,
                    Err(code) => return Some(Err(code)),
                }
            }
            send.zip(recv).map(Ok)
        });
        net.close_listen(listen).unwrap();
        match outcome {
            Ok(pair) => pairs.push(pair),
            Err(code) => {
                if let Some(comm) = send {
                    net.close_send(comm).unwrap();
                }
                if let Some(comm) = recv {
                    net.close_recv(comm).unwrap();
                }
                return (pairs, code);
            }
        }
    }
}

/// Reaches a limit of connections several times. Existing connections continue, and after closing all resources are back.
fn limit_of_connections(net: &Net, names: &str) {
    let mut before = None;
    for _ in 0..3 {
        let lines = logged(names);
        let (pairs, code) = connect_until_error(net);
        assert_eq!(code, ResultCode::SYSTEM_ERROR);
        assert!(logged(names) > lines, "no line names `{names}`: {:?}", LINES.lock().unwrap());
        assert!(!pairs.is_empty(), "not one connection");
        for &pair in &pairs {
            round(net, pair, 50_000);
        }
        assert_eq!(*before.get_or_insert(pairs.len()), pairs.len(), "something leaked");
        for (send, recv) in pairs {
            net.close_send(send).unwrap();
            net.close_recv(recv).unwrap();
        }
    }
    let pair = net.to_self();
    round(net, pair, 50_000);
}

fn a_limit_of_comms_is_named(scene: Scene) {
    limit_of_connections(&Net::start(scene.version), "all 2 connections are in use");
}

fn a_limit_of_queue_pairs_is_named(scene: Scene) {
    limit_of_connections(&Net::start(scene.version), "all 4 queue pairs of the NIC are in use");
    assert!(logged("TRUNKLINE_QP_SHARING=on") > 0, "no line names the remedy: {:?}", LINES.lock().unwrap());
}

/// Registrations that peers may use need list entries of the NIC: the number of connections equals the entries, each time.
fn a_limit_of_list_entries_is_named(scene: Scene) {
    let net = Net::start(scene.version);
    let mut before = None;
    for turn in 1..=3 {
        let (mut pairs, code) = connect_until_error(&net);
        assert_eq!(code, ResultCode::SYSTEM_ERROR);
        let named = logged("mailbox for control: Enable: no space left on device (FI_ENOSPC)");
        assert!(named >= turn, "{:?}", LINES.lock().unwrap());
        assert_eq!(*before.get_or_insert(pairs.len()), pairs.len(), "something leaked");
        // Messages need some entries, too.
        let last = pairs.pop().expect("not one connection");
        let close = |(send, recv)| {
            net.close_send(send).unwrap();
            net.close_recv(recv).unwrap();
        };
        close(last);
        pairs.iter().for_each(|&pair| round(&net, pair, 50_000));
        pairs.into_iter().for_each(close);
    }
    println!("figure: {} connections", before.unwrap_or(0));
}

fn a_limit_of_regions_is_named(scene: Scene) {
    let net = Net::start(scene.version);
    let pair = net.to_self();
    let memory = Buf::new(4096);
    let mut before = None;
    for _ in 0..3 {
        let mut mrs = Vec::new();
        let code = loop {
            assert!(mrs.len() < 1000, "no limit");
            match net.reg(pair.0, memory.addr(), 4096) {
                Ok(mr) => mrs.push(mr),
                Err(code) => break code,
            }
        };
        assert_eq!(code, ResultCode::SYSTEM_ERROR);
        assert!(
            logged("all 40 regions of the NIC are in use") > 0,
            "no line names the limit: {:?}",
            LINES.lock().unwrap()
        );
        assert_eq!(*before.get_or_insert(mrs.len()), mrs.len(), "something leaked");
        mrs.into_iter().for_each(|mr| net.dereg(pair.0, mr).unwrap());
        round(&net, pair, 50_000);
    }
}

/// Links need descriptors, if only during set-up. None is left, or not enough for the next link.
fn a_limit_of_descriptors_is_named(scene: Scene) {
    let net = Net::start(scene.version);
    let first = net.to_self();
    let usual = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let spare = std::env::var("TEST_SPARE").map_or(0, |spare| spare.parse::<u64>().unwrap());
    setrlimit(Resource::Nofile, Rlimit { current: Some(open - 1 + spare), ..usual }).unwrap();
    let (pairs, code) = connect_until_error(&net);
    assert_eq!(code, ResultCode::SYSTEM_ERROR);
    assert!(logged("open files") > 0, "{:?}", LINES.lock().unwrap());
    round(&net, first, 50_000);
    for (send, recv) in pairs {
        net.close_send(send).unwrap();
        net.close_recv(recv).unwrap();
    }
    setrlimit(Resource::Nofile, usual).unwrap();
    for _ in 0..10 {
        let pair = net.to_self();
        round(&net, pair, 50_000);
    }
}

/// Streams wait to be accepted, and no descriptor is left: the plugin tries at each call, and logs it once.
fn a_failing_listener_is_logged_once(scene: Scene) {
    let net = Net::start(scene.version);
    let (listen, handle) = net.listen();
    let told = || logged("control listener: accept failed: Too many open files");
    for turn in 0..3 {
        let stranger = dial(&handle).unwrap();
        let usual = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..usual }).unwrap();
        for _ in 0..100 {
            assert_eq!(net.try_accept(listen), Ok(None));
        }
        setrlimit(Resource::Nofile, usual).unwrap();
        assert_eq!(told(), turn + 1, "{:?}", LINES.lock().unwrap());
        // The unknown stream waited; now it is accepted, and so is a peer.
        let pair = net.to_self();
        round(&net, pair, 50_000);
        drop(stranger);
    }
    assert_eq!(logged("control listener"), 3);
}

fn a_bad_value_fails_init_and_is_named(scene: Scene) {
    let path = std::env::var_os("TRUNKLINE_TEST_PLUGIN").unwrap();
    let library = crate::net::load(path.as_ref());
    let name = std::env::var("TEST_NAME").unwrap();
    for _ in 0..2 {
        let started = Net::init(raw::find(&library, scene.version).unwrap());
        assert_eq!(started.err(), Some(ResultCode::INVALID_USAGE));
    }
    // Before init has succeeded, lines are passed to its logger argument, or written to standard error.
    println!("named: {name} in {:?}", LINES.lock().unwrap());
    assert!(logged(&name) >= 1, "no line of the log names {name}");
}
