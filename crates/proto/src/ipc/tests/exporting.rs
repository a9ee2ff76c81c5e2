//! What is found, exported, announced and pinned, and who says what cannot be.

use super::*;
use crate::ipc::exporter::{Found, NewsError, ShareError, State};
use crate::limits::{IPC_PASSED_OVER_MAX, IPC_PEERS_MAX, IPC_PINS_MAX};
use crate::wire::ipc::Names;

const A: fn() -> Allocation = || allocation(1, 0x1000, 0x100);

fn names(of: &[Name]) -> Names {
    Names::new(of).unwrap()
}

#[test]
fn a_look_up_finds_what_is_the_same_allocation_and_changes_nothing() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let (a, b) = (A(), allocation(2, 0x3000, 0x100));
    let (first, second) = (one.touch(a, at(1)), one.touch(b, at(1)));
    let look = |start, len, memory| one.exporter.lookup(span(start, len), memory);
    for _ in 0..2 {
        assert_eq!(look(0x1000, 0x100, a), Found::Hit(first), "exactly");
        assert_eq!(look(0x1010, 1, a), Found::Hit(first), "a part");
        assert_eq!(look(0x30ff, 1, b), Found::Hit(second), "the last byte");
        for (start, len) in [(0xfff, 2), (0x10ff, 2), (0xfff, 0x102)] {
            assert_eq!(look(start, len, allocation(3, start, len)), Found::Absent, "across an end");
        }
        for other in
            [allocation(3, 0x1000, 0x100), allocation(1, 0x1000, 0x101), Allocation { device: 1, ..a }]
        {
            assert_eq!(look(0x1000, 0x100, other), Found::Stale, "{other:?}");
        }
    }
    assert_eq!((one.exports, one.exporter.counts().hits), (2, 0));
}

#[test]
fn sixty_four_messages_before_the_first_is_seen_cost_one_export_and_one_announcement() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let sent: Vec<_> = (0..64).map(|_| one.send(&one.ask(A()), at(1)).unwrap()).collect();
    assert_eq!((one.exports, one.announced), (1, 1));
    assert!(sent[0].announce && sent.iter().all(|sent| sent.reference == sent_of(&sent.reference.name)));
    assert_eq!(one.exporter.counts().hits, 63);
    assert_eq!(one.exporter.holders(sent[0].reference.name).collect::<Vec<_>>(), [(one.peer, 64)]);
}

fn sent_of(name: &Name) -> crate::wire::ipc::Reference {
    crate::wire::ipc::Reference { name: *name, part: span(0, 0x100) }
}

#[test]
fn each_peer_is_told_once() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let other = one.exporter.join().unwrap();
    for (peer, announced) in [(one.peer, 1), (other, 2), (other, 2), (one.peer, 2)] {
        let part = span(0x1010, 0x20);
        let sent = one.send(&Ask { peer, part, ..one.ask(A()) }, at(1)).unwrap();
        assert_eq!((sent.reference.part, one.announced), (span(0x10, 0x20), announced));
    }
    assert_eq!(one.exports, 1);
}

#[test]
fn memory_at_the_address_of_another_is_known_by_its_id() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let old = one.touch(A(), at(1));
    let again = allocation(9, 0x1000, 0x100);
    let new = one.send(&one.ask(again), at(1)).unwrap();
    assert_ne!(new.pin.name(), old);
    assert!(new.announce);
    assert_eq!(one.exporter.retire(one.peer), Some(names(&[old])));
    assert_eq!(one.exporter.counts().stale, 1);
    assert_eq!(one.exporter.poll(at(1)), None, "the peer has it");
    one.exporter.retired(one.peer, &names(&[old])).unwrap();
    assert_eq!(one.unexport(at(1)), [old]);
}

/// U1: what is stale stays with whoever uses it, and only with them.
#[test]
fn what_is_stale_and_in_use_stays_until_its_messages_are_done() {
    // Other memory at its address, other memory across its end, and a driver that knows of nothing there.
    let again = [Some(allocation(9, 0x1000, 0x100)), Some(allocation(9, 0x10ff, 0x100)), None];
    for again in again {
        let mut one = Exporting::new(config(8, 1 << 20));
        let other = one.exporter.join().unwrap();
        let sent = [one.peer, other].map(|peer| one.send(&Ask { peer, ..one.ask(A()) }, at(1)).unwrap());
        let old = sent[0].pin.name();
        let new = again.map(|memory| one.send(&one.ask(memory), at(1)).unwrap());
        if new.is_none() {
            one.exporter.freed();
            let Some(Command::Query(query)) = one.exporter.poll(at(1)) else { unreachable!() };
            one.exporter.queried(query, None);
        }
        assert_eq!(
            one.exporter.lookup(span(0x1000, 1), A()),
            match again {
                Some(memory) if memory.span.start() == 0x1000 => Found::Stale,
                _ => Found::Absent,
            }
        );
        assert_eq!(one.exporter.counts().stale, 1);
        for (peer, sent) in [one.peer, other].into_iter().zip(sent) {
            assert_eq!((one.exporter.retire(peer), one.exporter.poll(at(1))), (None, None), "{again:?}");
            assert_eq!(one.exporter.holders(old).find(|(holder, _)| *holder == peer), Some((peer, 1)));
            one.exporter.finish(sent.pin, Outcome::Copied, at(1));
            assert_eq!(one.exporter.retire(peer), Some(names(&[old])));
            assert_eq!(one.exporter.poll(at(1)), None, "a peer has it");
            one.exporter.retired(peer, &names(&[old])).unwrap();
        }
        assert_eq!(one.unexport(at(1)), [old], "{again:?}");
    }
}

/// M22: a driver that counts in 32 bits has its numbers extended by whoever asks it, and all 64 of them count here.
#[test]
fn ids_that_differ_in_their_high_half_are_others() {
    let mut one = Exporting::new(config(4, 1 << 20));
    let mut seen = Vec::new();
    for high in [0, 1, 2, u64::from(u32::MAX)] {
        let memory = allocation(high << 32 | 7, 0x1000, 64);
        assert!(!matches!(one.exporter.lookup(memory.span, memory), Found::Hit(_)));
        let name = one.touch(memory, at(1));
        assert_eq!(one.touch(memory, at(1)), name);
        assert!(!seen.contains(&name), "a name for two allocations");
        seen.push(name);
        one.settle(at(1));
    }
    assert_eq!(one.exports, 4);
}

#[test]
fn whatever_a_new_allocation_overlaps_is_stale() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let olds: Vec<_> = (0..3).map(|n| one.touch(allocation(n, 0x1000 + n * 0x100, 0x100), at(1))).collect();
    let stays = one.touch(allocation(7, 0x1300, 0x100), at(1));
    let _new = one.touch(allocation(8, 0x10ff, 0x102), at(1));
    let mut over = one.settle(at(1));
    over.sort_unstable();
    assert_eq!(over, olds);
    assert_eq!(one.touch(allocation(7, 0x1300, 0x100), at(1)), stays);
}

#[test]
fn what_a_message_uses_is_not_asked_back_and_not_unexported() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let sent = one.send(&one.ask(A()), at(1)).unwrap();
    let (name, other) = (sent.pin.name(), one.send(&one.ask(A()), at(1)).unwrap());
    assert!(one.exporter.release(0x10ff) && !one.exporter.release(0x1100));
    assert_eq!((one.exporter.retire(one.peer), one.exporter.poll(at(1))), (None, None));
    assert!(!one.exporter.release(0x1000), "it is not found any more");
    one.exporter.finish(sent.pin, Outcome::Copied, at(1));
    assert_eq!((one.exporter.retire(one.peer), one.exporter.poll(at(1))), (None, None));
    one.exporter.finish(other.pin, Outcome::Ended, at(1));
    assert!(one.exporter.has(span(0x10ff, 1)));
    assert_eq!(one.settle(at(1)), [name]);
    assert!(!one.exporter.has(span(0x10ff, 1)));
}

#[test]
fn who_asks_while_it_is_exported_asks_again() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let ask = one.ask(A());
    let Shared::Export(export) = one.exporter.share(&ask, at(1)).unwrap() else { unreachable!() };
    assert_eq!((export.allocation(), export.name()), (A(), name(0, 1)));
    assert_eq!(one.exporter.share(&ask, at(1)), Ok(Shared::Coming));
    assert_eq!(one.exporter.lookup(ask.part, ask.memory), Found::Coming);
    assert_eq!(one.exporter.export_failed(export), Ok(Why::NotExported));
    let counts = one.exporter.counts();
    assert_eq!((counts.fallbacks(Why::NotExported), counts.all_fallbacks()), (1, 1));
    assert_eq!(one.exporter.usage(), Default::default());
    let Shared::Export(export) = one.exporter.share(&ask, at(1)).unwrap() else { unreachable!() };
    assert_eq!(export.name(), name(0, 2), "a name is not given twice");
    assert!(matches!(one.exporter.exported(export, at(1)), Ok(Shared::Sent(_))));
}

#[test]
fn what_is_freed_while_it_is_exported_is_shared_with_nobody() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let Shared::Export(export) = one.exporter.share(&one.ask(A()), at(1)).unwrap() else { unreachable!() };
    let (again, old) = (allocation(2, 0x1080, 0x100), export.name());
    let new = one.touch(again, at(1));
    assert_eq!(one.exporter.poll(at(1)), None, "somebody is exporting it");
    assert_eq!(one.exporter.exported(export, at(1)), Ok(Shared::Fallback(Why::Gone)));
    assert_eq!(one.settle(at(1)), [old]);
    assert_eq!(one.touch(again, at(1)), new);
}

#[test]
fn asks_that_cannot_be_change_nothing() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let ask = one.ask(A());
    for (start, len) in [(0xfff, 2), (0x10ff, 2), (0x2000, 1)] {
        let outside = Ask { part: span(start, len), ..ask };
        assert_eq!(one.exporter.share(&outside, at(1)), Err(ShareError::Outside));
    }
    let dead = one.exporter.join().unwrap();
    one.exporter.gone(dead, at(1));
    assert_eq!(one.exporter.share(&Ask { peer: dead, ..ask }, at(1)), Err(ShareError::Gone));
    let next = one.exporter.join().unwrap();
    assert_eq!((next.slot(), next == dead), (dead.slot(), false), "who comes again is another one");
    assert_eq!((one.exporter.usage(), one.exporter.counts().all_fallbacks()), (Default::default(), 0));
}

#[test]
fn who_could_not_map_it_is_passed_over_for_longer_each_time() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let other = one.exporter.join().unwrap();
    let mut expected = 1;
    for _ in 0..12 {
        let sent = one.send(&one.ask(A()), at(1)).unwrap();
        one.exporter.finish(sent.pin, Outcome::NotMapped, at(1));
        expected = (2 * expected).min(IPC_PASSED_OVER_MAX);
        for _ in 0..expected {
            assert_eq!(one.send(&one.ask(A()), at(1)), Err(Why::PassedOver));
        }
    }
    assert_eq!((one.announced, one.exporter.counts().fallbacks(Why::NotMapped)), (1, 12));
    let _elsewhere = one.send(&Ask { peer: other, ..one.ask(A()) }, at(1)).unwrap();
    // Once it has, all is as before.
    one.touch(A(), at(1));
    let sent = one.send(&one.ask(A()), at(1)).unwrap();
    one.exporter.finish(sent.pin, Outcome::NotMapped, at(1));
    let ways: Vec<_> = (0..3).map(|_| one.send(&one.ask(A()), at(1)).is_ok()).collect();
    assert_eq!(ways, [false, false, true]);
}

#[test]
fn a_dead_peer_uses_and_has_nothing() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let other = one.exporter.join().unwrap();
    let sent = one.send(&one.ask(A()), at(1)).unwrap();
    let held = one.send(&Ask { peer: other, ..one.ask(A()) }, at(1)).unwrap();
    let name = sent.pin.name();
    assert!(one.exporter.release(0x1000));
    one.exporter.gone(one.peer, at(1));
    assert_eq!(one.exporter.poll(at(1)), None, "another one uses it");
    assert_eq!(one.exporter.holders(name).collect::<Vec<_>>(), [(other, 1)]);
    one.exporter.finish(sent.pin, Outcome::Copied, at(1));
    one.exporter.finish(held.pin, Outcome::Copied, at(1));
    assert_eq!(one.exporter.poll(at(1)), None, "and has it");
    assert_eq!(one.exporter.retire(other), Some(names(&[name])));
    one.exporter.gone(other, at(1));
    assert_eq!(one.exporter.retired(other, &names(&[name])), Err(NewsError::NoPeer));
    assert_eq!(one.unexport(at(1)), [name]);
    assert_eq!(one.exporter.usage(), Default::default());
}

#[test]
fn news_that_do_not_fit_are_refused() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let (first, second) = (one.touch(A(), at(1)), one.touch(allocation(2, 0x3000, 1), at(1)));
    let no = Err(NewsError::NotTold);
    assert_eq!(one.exporter.retired(one.peer, &names(&[first])), no, "it was not told to");
    assert_eq!(one.exporter.unexported(first), Err(NewsError::NoExport));
    assert!(one.exporter.release(0x1000));
    assert_eq!(one.exporter.retired(one.peer, &names(&[first])), no, "nor has the message gone");
    assert_eq!(one.exporter.retire(one.peer), Some(names(&[first])));
    for wrong in [&[first, second][..], &[first, first], &[name(0, 2)], &[name(9, 1)], &[name(0xffff, 1)]] {
        assert_eq!(one.exporter.retired(one.peer, &names(wrong)), no);
    }
    assert_eq!(one.exporter.poll(at(1)), None, "nothing of that counts");
    one.exporter.retired(one.peer, &names(&[first])).unwrap();
    assert_eq!(one.exporter.retired(one.peer, &names(&[first])), no);
    assert_eq!(one.exporter.unexported(first), Err(NewsError::NoExport), "nobody was told to");
    assert_eq!(one.unexport(at(1)), [first]);
    assert_eq!(one.exporter.unexported(first), Err(NewsError::NoExport));
}

#[test]
fn tokens_of_another_exporter_are_refused() {
    let (mut one, mut other) = (Exporting::new(config(8, 1 << 20)), Exporting::new(config(8, 1 << 20)));
    let foreign = |other: &mut Exporting, id| {
        let ask = other.ask(allocation(id, 0x1000 * id, 8));
        let Shared::Export(export) = other.exporter.share(&ask, at(1)).unwrap() else { unreachable!() };
        export
    };
    let (first, second) = (foreign(&mut other, 1), foreign(&mut other, 2));
    assert_eq!(one.exporter.export_failed(first), Err(NewsError::NoExport));
    assert_eq!(one.exporter.exported(second, at(1)), Err(NewsError::NoExport));
    assert_eq!((one.exporter.usage(), one.exporter.counts().all_fallbacks()), (Default::default(), 0));
}

#[test]
fn what_is_to_be_let_go_comes_in_messages_of_thirty_two() {
    let mut one = Exporting::new(config(100, 1 << 20));
    let all: Vec<_> = (0..70).map(|n| one.touch(allocation(n, 0x1000 * (n + 1), 8), at(1))).collect();
    one.exporter.trim(0);
    let batches: Vec<_> = core::iter::from_fn(|| one.exporter.retire(one.peer)).collect();
    assert_eq!(batches.iter().map(|names| names.get().len()).collect::<Vec<_>>(), [32, 32, 6]);
    assert_eq!(batches.iter().flat_map(|names| names.get().to_vec()).collect::<Vec<_>>(), all);
    batches.iter().for_each(|names| one.exporter.retired(one.peer, names).unwrap());
    assert_eq!(one.unexport(at(1)), all);
}

#[test]
fn a_place_whose_generations_are_used_up_stays_empty() {
    let mut one = Exporting::new(Config { passing: 1, ..config(1, 1 << 20) });
    let first = one.touch(A(), at(1));
    assert!(one.exporter.release(0x1000) && one.settle(at(1)) == [first]);
    one.exporter.wear_out(0);
    let last = one.touch(A(), at(1));
    assert_eq!(last, name(0, u32::MAX));
    assert!(one.exporter.release(0x1000) && one.settle(at(1)) == [last]);
    assert_eq!((one.exporter.usage(), one.exporter.list().count()), (Default::default(), 0));
    assert_eq!(one.touch(A(), at(1)), name(1, 1));
    assert!(one.exporter.release(0x1000));
    one.exporter.close();
    assert!(!one.exporter.is_gone() && one.settle(at(1)) == [name(1, 1)] && one.exporter.is_gone());
}

#[test]
fn peers_and_users_have_limits() {
    let mut one = Exporting::new(config(1, 1 << 20));
    let all: Vec<_> = (1..IPC_PEERS_MAX).map(|_| one.exporter.join().unwrap()).collect();
    assert!(one.exporter.join().is_err());
    one.exporter.gone(all[3], at(1));
    assert!(one.exporter.join().is_ok());
    let name = one.touch(A(), at(1));
    one.exporter.overuse(name, IPC_PINS_MAX);
    assert_eq!(one.send(&one.ask(A()), at(1)), Err(Why::Pins));
    let listed = one.exporter.list().next().unwrap();
    assert_eq!(
        (listed.name, listed.state, listed.pins, listed.holders),
        (name, State::Live, IPC_PINS_MAX, 1)
    );
}
