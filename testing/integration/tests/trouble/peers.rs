//! Peers that die, stop, or have ended before they are contacted.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use trunkline_sys::nccl_net::ResultCode;

use crate::contract::messages::{between, round};
use crate::net::{Buf, Comm, Net, Piece, Request, Stopwatch, until};
use crate::run::Scene;

scenarios! {
    a_killed_peer_fails_every_request_soon,
    a_stopped_peer_is_no_error,
    a_handle_of_a_dead_process_is_an_error,
}

/// The default limit is 10 s; a death on the same machine is detected immediately. The survivor's own time counts:
/// among many busy processes, a thread that yields may get two milliseconds of a processor in ten seconds.
const SOON: Duration = Duration::from_secs(3);
const LEN: usize = 16 << 20;

fn case() -> String {
    std::env::var("TEST_CASE").unwrap_or_default()
}

fn a_killed_peer_fails_every_request_soon(mut scene: Scene) {
    let net = Net::start(scene.version);
    let pid = scene.swap_pids();
    if case() == "connecting" {
        return dies_while_connecting(&net, scene, pid);
    }
    let (send, recv) = between(&net, &mut scene);
    let (from, to) = (Buf::filled(LEN, 1), Buf::new(LEN));
    let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
    let sending = Piece { addr: from.addr(), len: LEN, tag: 0, mr: from_mr };
    let receiving = Piece { addr: to.addr(), len: LEN, tag: 0, mr: to_mr };
    scene.meet();
    if scene.role == 1 {
        return play_until_killed(&net, (send, recv), sending, receiving, &mut scene);
    }
    let (sends, receives) = match case().as_str() {
        "idle" => (false, false),
        "sending" => (false, true),
        "receiving" => (true, false),
        _ => (true, true),
    };
    let mut requests: Vec<Request> = Vec::new();
    if receives {
        requests.extend((0..4).map(|_| net.recv(recv, &[receiving])));
    }
    if sends {
        requests.extend((0..3).map(|_| net.send(send, sending)));
    }
    // The peer is in the middle of its work.
    assert_eq!(scene.hear(), b"busy");
    kill_process(pid, Signal::KILL).unwrap();
    let killed = Stopwatch::start();
    let ends: Vec<Result<[i32; 8], ResultCode>> =
        requests.iter().map(|&request| until("an end", || net.try_test(request).transpose())).collect();
    for end in &ends {
        assert!(matches!(end, Ok(_) | Err(ResultCode::REMOTE_ERROR)), "{end:?}");
    }
    // New requests fail too, on both comms, repeatedly.
    for _ in 0..2 {
        let code = until("a failed isend", || net.try_send(send, sending, 0).err());
        assert_eq!(code, ResultCode::REMOTE_ERROR);
        let code = until("a failed irecv", || match net.try_recv(recv, &[receiving], 0) {
            Ok(Some(request)) => until("an end", || net.try_test(request).transpose()).err(),
            Ok(None) => None,
            Err(code) => Some(code),
        });
        assert_eq!(code, ResultCode::REMOTE_ERROR);
    }
    in_time(&killed);
    if receives && ends[0].is_ok() {
        to.check(0..LEN, 1);
    }
    net.dereg(send, from_mr).unwrap();
    net.dereg(recv, to_mr).unwrap();
    net.close_send(send).unwrap();
    net.close_recv(recv).unwrap();
    // Other connections are not affected.
    let pair = net.to_self();
    round(&net, pair, LEN);
}

#[track_caller]
fn in_time(killed: &Stopwatch) {
    let (own, whole) = (killed.own(), killed.whole());
    assert!(own < SOON, "it took {own:?} of {whole:?}");
}

/// Sends and receives so slowly that the process is killed before the end.
fn play_until_killed(
    net: &Net,
    (send, recv): (Comm, Comm),
    sending: Piece,
    receiving: Piece,
    scene: &mut Scene,
) {
    let mut requests = Vec::new();
    match case().as_str() {
        "idle" => {}
        "sending" => requests.push(net.send(send, sending)),
        "receiving" => requests.extend((0..3).map(|_| net.recv(recv, &[receiving]))),
        _ => {
            requests.extend((0..3).map(|_| net.recv(recv, &[receiving])));
            requests.push(net.send(send, sending));
        }
    }
    scene.say(b"busy");
    loop {
        // At most one step of the transfer.
        requests.retain(|&request| net.try_test(request) == Ok(None));
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn dies_while_connecting(net: &Net, mut scene: Scene, pid: rustix::process::Pid) {
    let (listen, handle) = net.listen();
    scene.say(&handle);
    let mut theirs = scene.hear_handle();
    if scene.role == 1 {
        // Half of each direction: it has sent a connect request, and has received one.
        until("half a connection", || {
            assert_eq!(net.try_connect(&mut theirs), Ok(None));
            Some(())
        });
        scene.say(b"busy");
        loop {
            std::thread::park();
        }
    }
    for _ in 0..100 {
        assert_eq!(net.try_connect(&mut theirs), Ok(None));
    }
    assert_eq!(scene.hear(), b"busy");
    // The half that this side accepts.
    for _ in 0..100 {
        assert_eq!(net.try_accept(listen), Ok(None));
    }
    kill_process(pid, Signal::KILL).unwrap();
    let killed = Stopwatch::start();
    let code = until("an end of connect", || net.try_connect(&mut theirs).transpose()).unwrap_err();
    assert_eq!(code, ResultCode::REMOTE_ERROR);
    let code = until("an end of accept", || net.try_accept(listen).transpose()).unwrap_err();
    assert_eq!(code, ResultCode::REMOTE_ERROR);
    in_time(&killed);
    assert_eq!(net.try_accept(listen), Ok(None), "the listener does not continue");
    net.close_listen(listen).unwrap();
    let pair = net.to_self();
    round(net, pair, 1000);
}

fn a_stopped_peer_is_no_error(mut scene: Scene) {
    let net = Net::start(scene.version);
    let pid = scene.swap_pids();
    let pair = between(&net, &mut scene);
    let (from, to) = (Buf::filled(LEN, 3), Buf::new(LEN));
    let (from_mr, to_mr) = (net.reg_buf(pair.0, &from), net.reg_buf(pair.1, &to));
    let receiving = Piece { addr: to.addr(), len: LEN, tag: 0, mr: to_mr };
    let sending = Piece { addr: from.addr(), len: LEN, tag: 0, mr: from_mr };
    for turn in 0..2 {
        let mut requests = vec![net.recv(pair.1, &[receiving])];
        scene.meet();
        if scene.role == 0 {
            kill_process(pid, Signal::STOP).unwrap();
        }
        requests.push(net.send(pair.0, sending));
        if scene.role == 0 {
            let long = std::env::var_os("TRUNKLINE_FULL").is_some();
            let long = Duration::from_secs(if long { 12 } else { 3 });
            let since = Instant::now();
            let mut done = [false; 2];
            while since.elapsed() < long {
                for (done, &request) in done.iter_mut().zip(&requests) {
                    *done = *done || net.try_test(request).expect("no error").is_some();
                }
            }
            kill_process(pid, Signal::CONT).unwrap();
            requests = requests
                .into_iter()
                .zip(done)
                .filter(|(_, done)| !done)
                .map(|(request, _)| request)
                .collect();
        }
        net.finish_all(&requests);
        to.check(0..LEN, 3);
        scene.meet();
        assert!(turn < 2);
    }
}

fn a_handle_of_a_dead_process_is_an_error(mut scene: Scene) {
    let net = Net::start(scene.version);
    let pid = scene.swap_pids();
    if scene.role == 1 {
        let (_, handle) = net.listen();
        scene.say(&handle);
        loop {
            std::thread::park();
        }
    }
    let handle = scene.hear_handle();
    kill_process(pid, Signal::KILL).unwrap();
    assert_eq!(scene.try_hear(), None, "a dead process sent bytes");
    for _ in 0..3 {
        let mut handle = handle;
        let code = until("an error", || net.try_connect(&mut handle).err());
        assert!(code == ResultCode::REMOTE_ERROR || code == ResultCode::SYSTEM_ERROR, "{code:?}");
    }
}
