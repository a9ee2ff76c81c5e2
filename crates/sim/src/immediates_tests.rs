//! Networks on which a write with immediate consumes a receive: it finds one in the end, whatever other comms occupy.
//! On networks without immediates, messages replace them.

use trunkline_engine::{CommId, CommNics, EngineParams, MatchBy, RecvBuf, RequestId, SharingParams};
use trunkline_proto::limits::EAGER_CREDITS_MAX;
use trunkline_proto::pool::config::SharingMode;

use crate::NetworkModel;
use crate::rules_tests::{Duo, SECOND, buffer, isend, params};

const LONG: u64 = 100_000;

/// A network whose immediates consume receives.
fn taking(link_order: bool, nics: usize) -> NetworkModel {
    let calm = NetworkModel::fault_free();
    let mut weather = NetworkModel { nics, ..calm };
    (weather.caps.immediate_takes_receive, weather.caps.link_order) = (true, link_order);
    weather
}

fn by_mailbox() -> EngineParams {
    EngineParams { match_by: MatchBy::Mailbox, ..params() }
}

/// Waits for the end of a message that everything else depends on.
fn both_end(duo: &Duo, sent: RequestId, received: RequestId) {
    let (mut ended, until) = ([false; 2], duo.world.now() + 20 * SECOND);
    while ended != [true; 2] {
        assert!(
            duo.world.now() < until,
            "{ended:?}: deadlock between a message and the eager ones that wait for it"
        );
        ended[0] = ended[0] || duo.a.test(sent, &mut [0; 8]).unwrap();
        ended[1] = ended[1] || duo.b.test(received, &mut [0; 8]).unwrap();
        duo.world.advance_by(100_000);
    }
}

/// Sends as many messages as are sent without their receives being known.
fn fill(duo: &Duo, send: CommId, tag: u32) -> Vec<RequestId> {
    let from = RecvBuf { tag, ..buffer(&duo.a, send, 64).1 };
    let mut sent = Vec::new();
    for _ in 0..1000 {
        if let Some(request) = duo.a.isend(send, from.mr, from.offset, from.len, tag).unwrap() {
            sent.push(request);
        }
        duo.a.progress_all();
        duo.b.progress_all();
        duo.world.advance_by(10_000);
    }
    sent
}

/// Long messages whose receives are known arrive while the last of `comms` fills the limit of eager messages; then
/// those are received too.
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
        assert!(crowded.len() >= least, "round {round}: {} messages were sent eagerly", crowded.len());
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
fn message_that_blocks_all_eager_ones_arrives() {
    for order in [true, false] {
        let duo = Duo::new(1, taking(order, 1), by_mailbox());
        goes_through(&duo, &[duo.connect()], EAGER_CREDITS_MAX);
    }
}

#[test]
fn message_arrives_while_a_member_holds_all_buffers() {
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    for order in [true, false] {
        let duo = Duo::new(1, taking(order, 1), EngineParams { sharing, ..by_mailbox() });
        let comms = [(); 3].map(|()| duo.connect());
        goes_through(&duo, &comms, EAGER_CREDITS_MAX / 2);
    }
}

#[test]
fn pieces_arrive_over_every_link() {
    let duo = Duo::new(1, taking(true, 2), by_mailbox());
    let nics = CommNics::new(&[0, 1]).unwrap();
    let (listen, mut handle) = duo.b.listen(nics).unwrap();
    let (mut send, mut recv) = (None, None);
    while send.is_none() || recv.is_none() {
        send = send.or_else(|| duo.a.connect(nics, &mut handle).unwrap());
        recv = recv.or_else(|| duo.b.accept(listen).unwrap());
    }
    duo.run(SECOND);
    goes_through(&duo, &[(send.unwrap(), recv.unwrap())], EAGER_CREDITS_MAX);
}

/// Connects `a` to `b` over the first `nics` NICs.
fn over(duo: &Duo, nics: usize) -> (CommId, CommId) {
    let nics = CommNics::new(&[0, 1][..nics]).unwrap();
    let (listen, mut handle) = duo.b.listen(nics).unwrap();
    let (mut send, mut recv) = (None, None);
    while send.is_none() || recv.is_none() {
        send = send.or_else(|| duo.a.connect(nics, &mut handle).unwrap());
        recv = recv.or_else(|| duo.b.accept(listen).unwrap());
    }
    duo.b.close_listen(listen).unwrap();
    (send.unwrap(), recv.unwrap())
}

/// Sends messages of each of these lengths for one receive of as many buffers, and then one alone of each.
fn all_come(duo: &Duo, (send, recv): (CommId, CommId), lens: &[u64], what: &str) {
    let group: Vec<(u64, u32)> = lens.iter().zip(0..).map(|(&len, tag)| (len, tag)).collect();
    for receives in std::iter::once(&group[..]).chain(group.chunks(1)) {
        let buffers: Vec<_> = receives.iter().map(|&(len, _)| buffer(&duo.b, recv, len + 3)).collect();
        let into: Vec<RecvBuf> =
            buffers.iter().zip(receives).map(|((_, buffer), &(_, tag))| RecvBuf { tag, ..*buffer }).collect();
        let received = duo.b.irecv(recv, &into).unwrap().unwrap();
        duo.run(SECOND / 1000);
        let (mut sent, mut ended, mut sizes) = (Vec::new(), false, [0; 8]);
        for &(len, tag) in receives {
            let (source, from) = buffer(&duo.a, send, len);
            source.write(0, &vec![tag as u8 + 1; len as usize]).unwrap();
            sent.push(isend(&duo.a, send, RecvBuf { tag, ..from }));
        }
        let until = duo.world.now() + 20 * SECOND;
        while !(ended && sent.is_empty()) {
            sent.retain(|&request| !duo.a.test(request, &mut [0; 8]).unwrap());
            ended = ended || duo.b.test(received, &mut sizes).unwrap();
            assert!(duo.world.now() < until, "{what}: {receives:?} do not end");
            duo.world.advance_by(10_000);
        }
        for (((memory, _), &(len, tag)), size) in buffers.iter().zip(receives).zip(sizes) {
            let mut bytes = vec![0; len as usize];
            memory.read(0, &mut bytes).unwrap();
            let right = bytes.iter().all(|&byte| byte == tag as u8 + 1);
            assert!(right && size == len, "{what}: {size} bytes for {len}, right: {right}");
        }
    }
}

#[test]
fn messages_replace_immediates_where_writes_carry_none() {
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    for (sharing, nics) in [(None, 1), (Some(sharing), 1), (None, 2), (Some(sharing), 2)] {
        for (order, arrives) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut weather =
                NetworkModel { nics, jitter: 5_000, ..NetworkModel::fault_free() }.without_immediates();
            weather.caps.link_order = order;
            let weather = if arrives { weather } else { weather.without_arrival() };
            for eager_max in [0, 4096] {
                let params = EngineParams { eager_max, stripe_min: 1000, ..by_mailbox() };
                let duo = Duo::new(
                    1,
                    weather.clone(),
                    EngineParams { sharing: sharing.unwrap_or_default(), ..params },
                );
                let comms = [(); 2].map(|()| over(&duo, nics));
                // More messages than there are buffers for unwritten records.
                for round in 0..40 {
                    let lens: &[u64] = if round == 0 { &[0, 1, 64, 5_000, 300_000] } else { &[0, 8, 0] };
                    let what = format!("{nics} links, order {order}, arrives {arrives}, eager {eager_max}");
                    comms.iter().for_each(|&comm| all_come(&duo, comm, lens, &what));
                }
            }
        }
    }
}

#[test]
fn immediates_find_receives_without_eager_messages() {
    for params in
        [EngineParams { eager_credits: 0, ..by_mailbox() }, EngineParams { eager_max: 0, ..by_mailbox() }]
    {
        let duo = Duo::new(1, taking(true, 1), params);
        goes_through(&duo, &[duo.connect()], 0);
    }
}
