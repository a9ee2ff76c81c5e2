//! Where a write with immediate takes a receive: it finds one in the end, whatever the others hold.

use trunkline_engine::{CommId, MatchBy, Nics, Params, RecvBuf, RequestId, SharingParams};
use trunkline_proto::limits::EAGER_CREDITS_MAX;
use trunkline_proto::pool::config::Sharing;

use crate::Weather;
use crate::rules_tests::{Duo, SECOND, buffer, isend, params};

const LONG: u64 = 100_000;

/// A network whose immediates take receives.
fn taking(link_order: bool, nics: usize) -> Weather {
    let calm = Weather::calm();
    let mut weather = Weather { nics, ..calm };
    (weather.caps.immediate_takes_receive, weather.caps.link_order) = (true, link_order);
    weather
}

fn by_mailbox() -> Params {
    Params { match_by: MatchBy::Mailbox, ..params() }
}

/// Waits for the end of a message that everything else waits for.
fn both_end(duo: &Duo, sent: RequestId, received: RequestId) {
    let (mut ended, until) = ([false; 2], duo.world.now() + 20 * SECOND);
    while ended != [true; 2] {
        assert!(duo.world.now() < until, "{ended:?}: it waits for a receive, and all of them for it");
        ended[0] = ended[0] || duo.a.test(sent, &mut [0; 8]).unwrap();
        ended[1] = ended[1] || duo.b.test(received, &mut [0; 8]).unwrap();
        duo.world.advance(100_000);
    }
}

/// Sends as many messages as go without their receives being known.
fn fill(duo: &Duo, send: CommId, tag: u32) -> Vec<RequestId> {
    let from = RecvBuf { tag, ..buffer(&duo.a, send, 64).1 };
    let mut sent = Vec::new();
    for _ in 0..1000 {
        if let Some(request) = duo.a.isend(send, from.mr, from.offset, from.len, tag).unwrap() {
            sent.push(request);
        }
        duo.a.progress_all();
        duo.b.progress_all();
        duo.world.advance(10_000);
    }
    sent
}

/// Long messages whose receives are known come while the last of `comms` fills all that eager messages may take; then those
/// are received too.
fn goes_through(duo: &Duo, comms: &[(CommId, CommId)], least: usize) {
    let &(crowd, into_crowd) = comms.last().unwrap();
    for round in 0..3 {
        let mut long = Vec::new();
        for &(send, recv) in comms {
            let into = RecvBuf { tag: 1, ..buffer(&duo.b, recv, LONG).1 };
            long.push((send, duo.b.irecv(recv, &[into]).unwrap().unwrap()));
        }
        duo.run(SECOND / 100);
        let crowded = fill(duo, crowd, 2);
        assert!(crowded.len() >= least, "round {round}: {} went eagerly", crowded.len());
        for (send, received) in long {
            let from = RecvBuf { tag: 1, ..buffer(&duo.a, send, LONG).1 };
            both_end(duo, isend(&duo.a, send, from), received);
        }
        for sent in crowded {
            let into = RecvBuf { tag: 2, ..buffer(&duo.b, into_crowd, 64).1 };
            let received = duo.b.irecv(into_crowd, &[into]).unwrap().unwrap();
            both_end(duo, sent, received);
        }
    }
}

#[test]
fn a_message_that_all_eager_ones_wait_for_arrives() {
    for order in [true, false] {
        let duo = Duo::new(1, taking(order, 1), by_mailbox());
        goes_through(&duo, &[duo.connect()], EAGER_CREDITS_MAX);
    }
}

#[test]
fn a_message_arrives_although_a_neighbour_holds_what_a_group_has() {
    let sharing = SharingParams { sharing: Sharing::On, groups: 1, ..SharingParams::default() };
    for order in [true, false] {
        let duo = Duo::new(1, taking(order, 1), Params { sharing, ..by_mailbox() });
        let comms = [(); 3].map(|()| duo.connect());
        goes_through(&duo, &comms, EAGER_CREDITS_MAX / 2);
    }
}

#[test]
fn pieces_arrive_over_every_link() {
    let duo = Duo::new(1, taking(true, 2), by_mailbox());
    let nics = Nics::new(&[0, 1]).unwrap();
    let (listen, mut handle) = duo.b.listen(nics).unwrap();
    let (mut send, mut recv) = (None, None);
    while send.is_none() || recv.is_none() {
        send = send.or_else(|| duo.a.connect(nics, &mut handle).unwrap());
        recv = recv.or_else(|| duo.b.accept(listen).unwrap());
    }
    duo.run(SECOND);
    goes_through(&duo, &[(send.unwrap(), recv.unwrap())], EAGER_CREDITS_MAX);
}

#[test]
fn immediates_find_receives_where_nothing_goes_eagerly() {
    for params in [Params { eager_credits: 0, ..by_mailbox() }, Params { eager_max: 0, ..by_mailbox() }] {
        let duo = Duo::new(1, taking(true, 1), params);
        goes_through(&duo, &[duo.connect()], 0);
    }
}
