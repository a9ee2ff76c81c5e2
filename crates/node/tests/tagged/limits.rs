//! Behaviour at the limits of rings and requests, and over many laps of the rings.

use trunkline_node::ipc::MessageBuffer;
use trunkline_node::tagged::{KEPT_MAX, RECEIVES_MAX, REQUESTS_MAX, ReceiveRefused, TaggedSendStart};
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::wire::tagged::InboxSizes;

use crate::two::{ALL, Two, Where, pattern};

#[test]
fn missing_receives_block_the_sender_but_no_reply() {
    let mut two = Two::new();
    let to = two.a.other;
    let flood = |two: &mut Two, count: &mut u64| {
        for _ in 0..100_000 {
            match two.a.endpoint.send_bytes(to, *count, &count.to_le_bytes()).unwrap() {
                TaggedSendStart::Done => *count += 1,
                TaggedSendStart::Busy => two.step(),
                TaggedSendStart::Request(_) => unreachable!(),
            }
        }
    };
    let mut count = 0;
    flood(&mut two, &mut count);
    assert_eq!((count, two.b.endpoint.counts().early), (1023, 0), "unmatched messages must stay in the ring");
    // A receive that matches none of these messages makes the receiver read on.
    let never = two.post(u64::MAX, &two.b.buffer(Where::Other, 8));
    flood(&mut two, &mut count);
    assert_eq!(two.b.endpoint.counts().early, KEPT_MAX as u64);
    assert!((900..1100).contains(&(count - KEPT_MAX as u64)), "{count} messages were sent");
    assert!(two.b.endpoint.cancel_receive(never));
    // Replies in the other direction must not wait for the messages.
    let (source, target) = (two.b.buffer(Where::Own, 1 << 20), two.a.buffer(Where::Other, 1 << 20));
    let TaggedSendStart::Request(back) = two.b.endpoint.send(two.b.other, 1, &source).unwrap() else {
        panic!()
    };
    let received = two.a.endpoint.receive(Some(to), 1, ALL, target).unwrap();
    two.until("the message is copied", |two| {
        two.b.endpoint.counts().mapped + two.a.endpoint.counts().mapped == 1
    });
    two.rest();
    assert!(two.b.endpoint.test(back).unwrap().is_ok() && two.a.endpoint.test(received).unwrap().is_ok());
    for tag in 0..count {
        let mut bytes = [0; 8];
        let taken = loop {
            if let Some(taken) = two.b.endpoint.take_bytes(None, 0, 0, &mut bytes) {
                break taken.unwrap();
            }
            two.step();
        };
        assert_eq!((taken.tag, u64::from_le_bytes(bytes)), (tag, tag));
    }
}

#[test]
fn receives_are_bounded() {
    let mut two = Two::new();
    let target = two.b.buffer(Where::Other, 8);
    let posted: Vec<_> = (0..RECEIVES_MAX as u64).map(|tag| two.post(tag, &target)).collect();
    let from = two.b.other;
    let refused = two.b.endpoint.receive(Some(from), 9, ALL, target.clone());
    assert_eq!(refused, Err(ReceiveRefused::TooMany));
    assert!(two.b.endpoint.cancel_receive(posted[5]));
    assert!(two.b.endpoint.receive(Some(from), 9, ALL, target.clone()).is_ok());
    let ended = (0..REQUESTS_MAX - RECEIVES_MAX - 1).map(|_| {
        let request = two.b.endpoint.receive(None, 9, ALL, target.clone());
        request.is_ok_and(|request| two.b.endpoint.cancel_receive(request))
    });
    assert_eq!(ended.filter(|done| *done).count(), 0, "no request may be accepted beyond the limit");
    two.b.endpoint.cancel_receive(posted[6]);
    for _ in 0..REQUESTS_MAX - RECEIVES_MAX - 1 {
        let request = two.b.endpoint.receive(Some(from), 9, ALL, target.clone()).unwrap();
        assert!(two.b.endpoint.cancel_receive(request));
    }
    let refused = two.b.endpoint.receive(Some(from), 9, ALL, target.clone());
    assert_eq!(refused, Err(ReceiveRefused::TooMany), "requests whose results were not taken still count");
    assert!(two.b.endpoint.test(posted[5]).is_some());
    assert!(two.b.endpoint.receive(Some(from), 9, ALL, target).is_ok());
}

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Exchanges messages of many lengths and both kinds of memory, several at a time, through inboxes of that size.
fn stream(inbox: InboxSizes, entries: usize, rounds: u64) {
    let mut two = Two::with(inbox, ExportAmount { entries, bytes: 1 << 40 });
    let mut numbers = Numbers(entries as u64);
    let place = |number: u64| if number == 0 { Where::Own } else { Where::Other };
    for round in 0..rounds {
        let count = 1 + numbers.below(12);
        let mut all = Vec::new();
        for n in 0..count {
            let len = match numbers.below(4) {
                0 => numbers.below(100),
                1 => numbers.below(9000),
                _ => numbers.below(200_000),
            } as usize;
            let source = two.a.buffer(place(numbers.below(2)), len);
            let target = two.b.buffer(place(numbers.below(2)), len);
            two.a.fill(&source, round << 8 | n);
            all.push((source, target));
        }
        let early = numbers.below(2) == 0;
        let mut received: Vec<_> = if early { Vec::new() } else { posts(&mut two, &all) };
        let sent: Vec<_> = (0..).zip(&all).map(|(tag, (source, _))| two.send(tag, source)).collect();
        if early {
            (0..numbers.below(30)).for_each(|_| two.step());
            received = posts(&mut two, &all);
        }
        for ((n, (source, target)), (sent, received)) in (0..).zip(&all).zip(sent.into_iter().zip(received)) {
            let ends = two.both(sent, received);
            assert!(ends.iter().all(Result::is_ok), "round {round}, message {n}: {ends:?}");
            let expected = pattern(source.len() as usize, round << 8 | n);
            assert!(two.b.bytes(target) == expected, "round {round}, message {n} of {}", source.len());
            two.a.free(source);
            two.b.free(target);
        }
        if round == rounds / 2 {
            let none = ExportAmount { entries: 0, bytes: 0 };
            two.a.endpoint.node_mut().shrink_budget(none);
            two.b.endpoint.node_mut().shrink_budget(none);
        }
    }
    assert_eq!(two.a.endpoint.node().counts().leaks + two.b.endpoint.node().counts().leaks, 0);
    two.rest();
    two.until("no export is kept", |two| {
        [&two.a, &two.b].iter().all(|one| one.endpoint.node().exporter().usage().live.entries == 0)
    });
}

fn posts(
    two: &mut Two,
    all: &[(MessageBuffer, MessageBuffer)],
) -> Vec<trunkline_node::tagged::TaggedRequestId> {
    (0..).zip(all).map(|(tag, (_, target))| two.post(tag, target)).collect()
}

#[test]
fn mixed_messages_arrive_intact() {
    stream(InboxSizes::new(1024, 512, 1 << 18).unwrap(), 16, 150);
}

#[test]
fn smallest_inbox_is_sufficient() {
    stream(InboxSizes::new(64, 64, 1 << 16).unwrap(), 1, 100);
}
