//! Scenarios of two processes on two hosts, while the cable between them is slow or cut.

use std::time::{Duration, Instant};

use trunkline_sys::nccl_net::ResultCode;

use crate::contract::messages::between;
use crate::net::{Buf, Called, Comm, Net, Piece, Request, until};
use crate::run::Scene;

scenarios! {
    a_large_message_completes_over_a_slow_cable,
    a_cut_cable_fails_every_request_in_time,
}

/// Time from the start of the scenario to the cut.
pub(crate) const UNTIL_CUT: Duration = Duration::from_secs(2);
/// The scenario's limit, plus the second for which its control stream lingers, plus the kernel's rounding to whole
/// seconds and delays of a busy machine.
const IN_TIME: Duration = Duration::from_secs(2 + 1 + 4);
const LEN: usize = 96 << 20;

fn a_large_message_completes_over_a_slow_cable(mut scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = between(&net, &mut scene);
    let (from, to) = (Buf::filled(LEN, 5), Buf::new(LEN));
    let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
    scene.meet();
    let since = Instant::now();
    if scene.role == 0 {
        let request = net.send(send, Piece { addr: from.addr(), len: LEN, tag: 0, mr: from_mr });
        net.finish(request);
    } else {
        let request = net.recv(recv, &[Piece { addr: to.addr(), len: LEN, tag: 0, mr: to_mr }]);
        net.finish(request);
        to.check(0..LEN, 5);
    }
    assert!(
        since.elapsed() > Duration::from_millis(1500),
        "{:?} is too fast for that cable",
        since.elapsed()
    );
    scene.meet();
}

fn a_cut_cable_fails_every_request_in_time(mut scene: Scene) {
    let started = Instant::now();
    let busy = std::env::var("TEST_CASE").is_ok_and(|case| case == "busy");
    let net = Net::start(scene.version);
    let (send, recv) = between(&net, &mut scene);
    let len = 64 << 10;
    let (from, to) = (Buf::filled(len, 6), Buf::new(len));
    let (from_mr, to_mr) = (net.reg_buf(send, &from), net.reg_buf(recv, &to));
    let sending = Piece { addr: from.addr(), len, tag: 0, mr: from_mr };
    let receiving = Piece { addr: to.addr(), len, tag: 0, mr: to_mr };
    scene.meet();
    // A receive is outstanding from before the cut; as nothing is sent, only the kernels detect the cut.
    let (mut send_request, mut recv_request, mut rounds) = (None, None, 0);
    let end = loop {
        match step(&net, busy, (send, sending, &mut send_request), (recv, receiving, &mut recv_request)) {
            Ok(arrived) if arrived > 0 => {
                to.check(0..len, 6);
                rounds += arrived;
            }
            Ok(_) => std::thread::sleep(Duration::from_micros(50)),
            Err(code) => break code,
        }
        let passed = started.elapsed();
        assert!(passed < UNTIL_CUT + IN_TIME, "no error {passed:?} after the start");
    };
    assert_eq!(end, ResultCode::REMOTE_ERROR);
    assert!(started.elapsed() >= UNTIL_CUT - Duration::from_millis(500), "an error before the cut");
    assert!(!busy || rounds > 0, "nothing was exchanged before");
    for request in [send_request, recv_request].into_iter().flatten() {
        let code = until("an end", || net.try_test(request).transpose());
        assert!(code.is_ok() || code == Err(ResultCode::REMOTE_ERROR), "{code:?}");
    }
    // New requests fail too.
    assert_eq!(until("a failed isend", || net.try_send(send, sending, 0).err()), ResultCode::REMOTE_ERROR);
}

/// Polls one receive and, if `busy`, one send; returns the number of arrived messages. Failed requests are dropped.
fn step(
    net: &Net,
    busy: bool,
    (send, sending, send_request): (Comm, Piece, &mut Option<Request>),
    (recv, receiving, recv_request): (Comm, Piece, &mut Option<Request>),
) -> Called<u32> {
    if busy && send_request.is_none() {
        *send_request = net.try_send(send, sending, 0)?;
    }
    if recv_request.is_none() {
        *recv_request = net.try_recv(recv, &[receiving], 0)?;
    }
    let mut done = [false; 2];
    for (done, place) in done.iter_mut().zip([send_request, recv_request]) {
        if let Some(request) = *place {
            let tested = net.try_test(request);
            if tested != Ok(None) {
                *place = None;
            }
            *done = tested?.is_some();
        }
    }
    Ok(u32::from(done[1]))
}
