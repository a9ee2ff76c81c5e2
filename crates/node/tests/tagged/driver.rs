//! The driver calls of many messages, whose memory is allocated and freed meanwhile.

use trunkline_node::tagged::TaggedFailure;
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::wire::tagged::InboxSizes;

use crate::kind::Call;
use crate::two::{Two, WHERE, Where, pattern};

/// Acceptance case M16. Exports are released, fail, are freed or evicted; the driver must take back each export exactly
/// once before the endpoints are closed.
#[test]
fn each_export_is_returned_to_the_driver_once() {
    let budget = ExportAmount { entries: 3, bytes: 1 << 20 };
    let mut two = Two::with(InboxSizes::new(1024, 512, 1 << 18).unwrap(), budget);
    let mut kept = Vec::new();
    for round in 0..400_u64 {
        let len = 9000 + (round as usize * 7919) % 200_000;
        let (source, target) = (two.a.buffer(Where::Own, len), two.b.buffer(WHERE[round as usize % 2], len));
        two.a.fill(&source, round);
        match round % 11 {
            0 => two.a.fail(Call::Export, 1),
            3 => two.b.fail(Call::Open, 1),
            5 => two.b.fail(Call::Close, 2),
            6 => _ = two.a.endpoint.node_mut().release_export(source.own_address().unwrap()),
            7 => two.a.endpoint.node_mut().trim_exports(0),
            8 => two.a.endpoint.node_mut().shrink_budget(ExportAmount { entries: 0, bytes: 0 }),
            9 => two.a.endpoint.node_mut().grow_budget(budget),
            _ => {}
        }
        let (received, sent) = (two.post(1, &target), two.send(1, &source));
        if round.is_multiple_of(6) {
            two.a.endpoint.node_mut().release_export(source.own_address().unwrap());
        }
        assert!(two.both(sent, received).iter().all(Result::is_ok), "round {round}");
        assert!(two.b.bytes(&target) == pattern(len, round), "round {round}");
        two.b.free(&target);
        if round.is_multiple_of(4) {
            kept.push(source)
        } else {
            two.a.free(&source)
        }
        if kept.len() > 8 {
            let old = kept.remove(0);
            two.a.free(&old);
        }
    }
    let now = two.now;
    two.a.endpoint.close(now);
    two.b.endpoint.close(now);
    two.until("both are closed", |two| two.a.endpoint.is_closed() && two.b.endpoint.is_closed());
    for one in [&two.a, &two.b] {
        let ([given, taken], counts) = (one.kind().handles(), one.endpoint.node().counts());
        assert_eq!((given, taken), (counts.exports, counts.exports), "{counts:?}");
        assert_eq!((counts.unexports, counts.unmaps, counts.leaks), (counts.exports, counts.maps, 0));
    }
    assert!(two.a.kind().handles()[0] > 100);
}

/// Acceptance case M19.
#[test]
fn truncated_message_with_failed_copy_ends_both_requests() {
    for call in [Call::Copy, Call::Open, Call::Export] {
        for (from, to) in WHERE.into_iter().flat_map(|from| WHERE.map(|to| (from, to))) {
            for early in [false, true] {
                let mut two = Two::new();
                let (source, target) = (two.a.buffer(from, 300_000), two.b.buffer(to, 100_000));
                two.a.fill(&source, 3);
                [&two.a, &two.b].iter().for_each(|one| one.fail(call, 1));
                let posted = (!early).then(|| two.post(5, &target));
                let begun = two.send(5, &source);
                if early {
                    two.rest();
                }
                let posted = posted.unwrap_or_else(|| two.post(5, &target));
                let [sent, received] = two.both(begun, posted);
                let all = format!("{call:?}, {from:?} to {to:?}, early: {early}: {sent:?} {received:?}");
                let peer = two.b.other;
                let cut = TaggedFailure::Truncated { peer, tag: 5, len: 300_000, room: 100_000 };
                // A copy to or from the stage that fails has no fallback.
                let copied = matches!(received, Err(TaggedFailure::Copy(_) | TaggedFailure::Unsent));
                assert!(received == Err(cut) || matches!(call, Call::Copy) && copied, "{all}");
                if !copied {
                    assert!(sent.is_ok() && two.b.bytes(&target) == pattern(300_000, 3)[..100_000], "{all}");
                }
                [&two.a, &two.b].iter().for_each(|one| one.fail(call, 0));
                // The next message must succeed.
                let next = two.a.buffer(from, 100_000);
                let (received, sent) = (two.post(5, &target), two.send(5, &next));
                assert!(two.both(sent, received).iter().all(Result::is_ok), "{all}");
            }
        }
    }
}
