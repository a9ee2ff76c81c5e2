//! Lookup, export, announcement and pins, and invalid events.

use super::*;
use crate::ipc::exporter::{ExportLookup, ExportRequestError, ExportState, ExporterEventError};
use crate::limits::{IPC_PASSED_OVER_MAX, IPC_PEERS_MAX, IPC_PINS_MAX};
use crate::wire::ipc::ExportNames;

const A: fn() -> DriverAllocation = || allocation(1, 0x1000, 0x100);

fn names(of: &[ExportName]) -> ExportNames {
    ExportNames::new(of).unwrap()
}

#[test]
fn lookup_finds_the_same_allocation_without_side_effects() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let (a, b) = (A(), allocation(2, 0x3000, 0x100));
    let (first, second) = (one.touch(a, at(1)), one.touch(b, at(1)));
    let look = |start, len, memory| one.exporter.lookup_export(span(start, len), memory);
    for _ in 0..2 {
        assert_eq!(look(0x1000, 0x100, a), ExportLookup::Hit(first), "exactly the allocation");
        assert_eq!(look(0x1010, 1, a), ExportLookup::Hit(first), "a part of the allocation");
        assert_eq!(look(0x30ff, 1, b), ExportLookup::Hit(second), "the last byte");
        for (start, len) in [(0xfff, 2), (0x10ff, 2), (0xfff, 0x102)] {
            assert_eq!(look(start, len, allocation(3, start, len)), ExportLookup::Absent, "across an end");
        }
        for other in
            [allocation(3, 0x1000, 0x100), allocation(1, 0x1000, 0x101), DriverAllocation { device: 1, ..a }]
        {
            assert_eq!(look(0x1000, 0x100, other), ExportLookup::Stale, "{other:?}");
        }
    }
    assert_eq!((one.exports, one.exporter.counts().hits), (2, 0));
}

#[test]
fn concurrent_messages_share_one_export_and_announcement() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let sent: Vec<_> = (0..64).map(|_| one.send(&one.ask(A()), at(1)).unwrap()).collect();
    assert_eq!((one.exports, one.announced), (1, 1));
    assert!(sent[0].announce && sent.iter().all(|sent| sent.reference == sent_of(&sent.reference.name)));
    assert_eq!(one.exporter.counts().hits, 63);
    assert_eq!(one.exporter.export_holders(sent[0].reference.name).collect::<Vec<_>>(), [(one.peer, 64)]);
}

fn sent_of(name: &ExportName) -> crate::wire::ipc::ExportReference {
    crate::wire::ipc::ExportReference { name: *name, part: span(0, 0x100) }
}

#[test]
fn each_peer_gets_one_announcement() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let other = one.exporter.add_peer().unwrap();
    for (peer, announced) in [(one.peer, 1), (other, 2), (other, 2), (one.peer, 2)] {
        let part = span(0x1010, 0x20);
        let sent = one.send(&ExportRequest { peer, part, ..one.ask(A()) }, at(1)).unwrap();
        assert_eq!((sent.reference.part, one.announced), (span(0x10, 0x20), announced));
    }
    assert_eq!(one.exports, 1);
}

#[test]
fn reused_address_is_distinguished_by_allocation_id() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let old = one.touch(A(), at(1));
    let again = allocation(9, 0x1000, 0x100);
    let new = one.send(&one.ask(again), at(1)).unwrap();
    assert_ne!(new.pin.export_name(), old);
    assert!(new.announce);
    assert_eq!(one.exporter.take_due_names(one.peer), Some(names(&[old])));
    assert_eq!(one.exporter.counts().stale, 1);
    assert_eq!(one.exporter.poll(at(1)), None, "the export was unexported while the peer has it mapped");
    one.exporter.on_retired(one.peer, &names(&[old])).unwrap();
    assert_eq!(one.unexport(at(1)), [old]);
}

/// U1: a stale export stays for the messages that use it, and for no others.
#[test]
fn stale_export_stays_until_its_messages_end() {
    // Other memory at its address, other memory across its end, and a driver that knows no allocation there.
    let again = [Some(allocation(9, 0x1000, 0x100)), Some(allocation(9, 0x10ff, 0x100)), None];
    for again in again {
        let mut one = Exporting::new(config(8, 1 << 20));
        let other = one.exporter.add_peer().unwrap();
        let sent =
            [one.peer, other].map(|peer| one.send(&ExportRequest { peer, ..one.ask(A()) }, at(1)).unwrap());
        let old = sent[0].pin.export_name();
        let new = again.map(|memory| one.send(&one.ask(memory), at(1)).unwrap());
        if new.is_none() {
            one.exporter.on_memory_freed();
            let Some(ExporterCommand::Query(query)) = one.exporter.poll(at(1)) else { unreachable!() };
            one.exporter.on_queried(query, None);
        }
        assert_eq!(
            one.exporter.lookup_export(span(0x1000, 1), A()),
            match again {
                Some(memory) if memory.span.start() == 0x1000 => ExportLookup::Stale,
                _ => ExportLookup::Absent,
            }
        );
        assert_eq!(one.exporter.counts().stale, 1);
        for (peer, sent) in [one.peer, other].into_iter().zip(sent) {
            assert_eq!(
                (one.exporter.take_due_names(peer), one.exporter.poll(at(1))),
                (None, None),
                "{again:?}"
            );
            assert_eq!(one.exporter.export_holders(old).find(|(holder, _)| *holder == peer), Some((peer, 1)));
            one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(1));
            assert_eq!(one.exporter.take_due_names(peer), Some(names(&[old])));
            assert_eq!(
                one.exporter.poll(at(1)),
                None,
                "the export was unexported while a peer has it mapped"
            );
            one.exporter.on_retired(peer, &names(&[old])).unwrap();
        }
        assert_eq!(one.unexport(at(1)), [old], "{again:?}");
    }
}

/// M22: the caller extends the 32-bit ids of a driver, and the exporter compares all 64 bits.
#[test]
fn ids_are_compared_in_all_64_bits() {
    let mut one = Exporting::new(config(4, 1 << 20));
    let mut seen = Vec::new();
    for high in [0, 1, 2, u64::from(u32::MAX)] {
        let memory = allocation(high << 32 | 7, 0x1000, 64);
        assert!(!matches!(one.exporter.lookup_export(memory.span, memory), ExportLookup::Hit(_)));
        let name = one.touch(memory, at(1));
        assert_eq!(one.touch(memory, at(1)), name);
        assert!(!seen.contains(&name), "one name was used for two allocations");
        seen.push(name);
        one.settle(at(1));
    }
    assert_eq!(one.exports, 4);
}

#[test]
fn exports_that_a_new_allocation_overlaps_are_stale() {
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
fn export_in_use_is_not_retired() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let sent = one.send(&one.ask(A()), at(1)).unwrap();
    let (name, other) = (sent.pin.export_name(), one.send(&one.ask(A()), at(1)).unwrap());
    assert!(one.exporter.release_allocation(0x10ff) && !one.exporter.release_allocation(0x1100));
    assert_eq!((one.exporter.take_due_names(one.peer), one.exporter.poll(at(1))), (None, None));
    assert!(!one.exporter.release_allocation(0x1000), "a released allocation was found");
    one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(1));
    assert_eq!((one.exporter.take_due_names(one.peer), one.exporter.poll(at(1))), (None, None));
    one.exporter.finish_message(other.pin, CopyOutcome::Ended, at(1));
    assert!(one.exporter.has_export_of(span(0x10ff, 1)));
    assert_eq!(one.settle(at(1)), [name]);
    assert!(!one.exporter.has_export_of(span(0x10ff, 1)));
}

#[test]
fn request_during_a_pending_export_is_repeated() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let ask = one.ask(A());
    let ShareDecision::Export(export) = one.exporter.share_memory(&ask, at(1)).unwrap() else {
        unreachable!()
    };
    assert_eq!((export.allocation(), export.export_name()), (A(), name(0, 1)));
    assert_eq!(one.exporter.share_memory(&ask, at(1)), Ok(ShareDecision::Coming));
    assert_eq!(one.exporter.lookup_export(ask.part, ask.memory), ExportLookup::Coming);
    assert_eq!(one.exporter.on_export_failed(export), Ok(FallbackReason::NotExported));
    let counts = one.exporter.counts();
    assert_eq!((counts.fallback_count(FallbackReason::NotExported), counts.all_fallbacks()), (1, 1));
    assert_eq!(one.exporter.usage(), Default::default());
    let ShareDecision::Export(export) = one.exporter.share_memory(&ask, at(1)).unwrap() else {
        unreachable!()
    };
    assert_eq!(export.export_name(), name(0, 2), "a name is never reused");
    assert!(matches!(one.exporter.on_exported(export, at(1)), Ok(ShareDecision::Sent(_))));
}

#[test]
fn memory_freed_during_its_export_is_not_shared() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let ShareDecision::Export(export) = one.exporter.share_memory(&one.ask(A()), at(1)).unwrap() else {
        unreachable!()
    };
    let (again, old) = (allocation(2, 0x1080, 0x100), export.export_name());
    let new = one.touch(again, at(1));
    assert_eq!(one.exporter.poll(at(1)), None, "a pending export was unexported");
    assert_eq!(one.exporter.on_exported(export, at(1)), Ok(ShareDecision::Fallback(FallbackReason::Gone)));
    assert_eq!(one.settle(at(1)), [old]);
    assert_eq!(one.touch(again, at(1)), new);
}

#[test]
fn invalid_share_requests_change_nothing() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let ask = one.ask(A());
    for (start, len) in [(0xfff, 2), (0x10ff, 2), (0x2000, 1)] {
        let outside = ExportRequest { part: span(start, len), ..ask };
        assert_eq!(one.exporter.share_memory(&outside, at(1)), Err(ExportRequestError::Outside));
    }
    let dead = one.exporter.add_peer().unwrap();
    one.exporter.remove_peer(dead, at(1));
    assert_eq!(
        one.exporter.share_memory(&ExportRequest { peer: dead, ..ask }, at(1)),
        Err(ExportRequestError::Gone)
    );
    let next = one.exporter.add_peer().unwrap();
    assert_eq!((next.slot(), next == dead), (dead.slot(), false), "a reused slot has another generation");
    assert_eq!((one.exporter.usage(), one.exporter.counts().all_fallbacks()), (Default::default(), 0));
}

#[test]
fn map_failures_pass_a_peer_over_longer() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let other = one.exporter.add_peer().unwrap();
    let mut expected = 1;
    for _ in 0..12 {
        let sent = one.send(&one.ask(A()), at(1)).unwrap();
        one.exporter.finish_message(sent.pin, CopyOutcome::NotMapped, at(1));
        expected = (2 * expected).min(IPC_PASSED_OVER_MAX);
        for _ in 0..expected {
            assert_eq!(one.send(&one.ask(A()), at(1)), Err(FallbackReason::PassedOver));
        }
    }
    assert_eq!((one.announced, one.exporter.counts().fallback_count(FallbackReason::NotMapped)), (1, 12));
    let _elsewhere = one.send(&ExportRequest { peer: other, ..one.ask(A()) }, at(1)).unwrap();
    // Once the peer has released it, all is as before.
    one.touch(A(), at(1));
    let sent = one.send(&one.ask(A()), at(1)).unwrap();
    one.exporter.finish_message(sent.pin, CopyOutcome::NotMapped, at(1));
    let ways: Vec<_> = (0..3).map(|_| one.send(&one.ask(A()), at(1)).is_ok()).collect();
    assert_eq!(ways, [false, false, true]);
}

#[test]
fn removed_peer_holds_no_exports() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let other = one.exporter.add_peer().unwrap();
    let sent = one.send(&one.ask(A()), at(1)).unwrap();
    let held = one.send(&ExportRequest { peer: other, ..one.ask(A()) }, at(1)).unwrap();
    let name = sent.pin.export_name();
    assert!(one.exporter.release_allocation(0x1000));
    one.exporter.remove_peer(one.peer, at(1));
    assert_eq!(one.exporter.poll(at(1)), None, "an export was ended while a message uses it");
    assert_eq!(one.exporter.export_holders(name).collect::<Vec<_>>(), [(other, 1)]);
    one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(1));
    one.exporter.finish_message(held.pin, CopyOutcome::Copied, at(1));
    assert_eq!(one.exporter.poll(at(1)), None, "an export was ended while another peer has it mapped");
    assert_eq!(one.exporter.take_due_names(other), Some(names(&[name])));
    one.exporter.remove_peer(other, at(1));
    assert_eq!(one.exporter.on_retired(other, &names(&[name])), Err(ExporterEventError::NoPeer));
    assert_eq!(one.unexport(at(1)), [name]);
    assert_eq!(one.exporter.usage(), Default::default());
}

#[test]
fn unexpected_exporter_events_are_rejected() {
    let mut one = Exporting::new(config(8, 1 << 20));
    let (first, second) = (one.touch(A(), at(1)), one.touch(allocation(2, 0x3000, 1), at(1)));
    let no = Err(ExporterEventError::NotTold);
    assert_eq!(
        one.exporter.on_retired(one.peer, &names(&[first])),
        no,
        "the peer was not requested to release it"
    );
    assert_eq!(one.exporter.on_unexported(first), Err(ExporterEventError::NoExport));
    assert!(one.exporter.release_allocation(0x1000));
    assert_eq!(one.exporter.on_retired(one.peer, &names(&[first])), no, "the request was not sent yet");
    assert_eq!(one.exporter.take_due_names(one.peer), Some(names(&[first])));
    for wrong in [&[first, second][..], &[first, first], &[name(0, 2)], &[name(9, 1)], &[name(0xffff, 1)]] {
        assert_eq!(one.exporter.on_retired(one.peer, &names(wrong)), no);
    }
    assert_eq!(one.exporter.poll(at(1)), None, "an invalid event had an effect");
    one.exporter.on_retired(one.peer, &names(&[first])).unwrap();
    assert_eq!(one.exporter.on_retired(one.peer, &names(&[first])), no);
    assert_eq!(
        one.exporter.on_unexported(first),
        Err(ExporterEventError::NoExport),
        "the driver was not requested to unexport"
    );
    assert_eq!(one.unexport(at(1)), [first]);
    assert_eq!(one.exporter.on_unexported(first), Err(ExporterEventError::NoExport));
}

#[test]
fn tokens_of_another_exporter_are_refused() {
    let (mut one, mut other) = (Exporting::new(config(8, 1 << 20)), Exporting::new(config(8, 1 << 20)));
    let foreign = |other: &mut Exporting, id| {
        let ask = other.ask(allocation(id, 0x1000 * id, 8));
        let ShareDecision::Export(export) = other.exporter.share_memory(&ask, at(1)).unwrap() else {
            unreachable!()
        };
        export
    };
    let (first, second) = (foreign(&mut other, 1), foreign(&mut other, 2));
    assert_eq!(one.exporter.on_export_failed(first), Err(ExporterEventError::NoExport));
    assert_eq!(one.exporter.on_exported(second, at(1)), Err(ExporterEventError::NoExport));
    assert_eq!((one.exporter.usage(), one.exporter.counts().all_fallbacks()), (Default::default(), 0));
}

#[test]
fn retire_messages_have_up_to_32_names() {
    let mut one = Exporting::new(config(100, 1 << 20));
    let all: Vec<_> = (0..70).map(|n| one.touch(allocation(n, 0x1000 * (n + 1), 8), at(1))).collect();
    one.exporter.trim_exports(0);
    let batches: Vec<_> = core::iter::from_fn(|| one.exporter.take_due_names(one.peer)).collect();
    assert_eq!(batches.iter().map(|names| names.get().len()).collect::<Vec<_>>(), [32, 32, 6]);
    assert_eq!(batches.iter().flat_map(|names| names.get().to_vec()).collect::<Vec<_>>(), all);
    batches.iter().for_each(|names| one.exporter.on_retired(one.peer, names).unwrap());
    assert_eq!(one.unexport(at(1)), all);
}

#[test]
fn slot_with_exhausted_generations_stays_empty() {
    let mut one = Exporting::new(ExporterConfig { passing: 1, ..config(1, 1 << 20) });
    let first = one.touch(A(), at(1));
    assert!(one.exporter.release_allocation(0x1000) && one.settle(at(1)) == [first]);
    one.exporter.wear_out(0);
    let last = one.touch(A(), at(1));
    assert_eq!(last, name(0, u32::MAX));
    assert!(one.exporter.release_allocation(0x1000) && one.settle(at(1)) == [last]);
    assert_eq!((one.exporter.usage(), one.exporter.list_exports().count()), (Default::default(), 0));
    assert_eq!(one.touch(A(), at(1)), name(1, 1));
    assert!(one.exporter.release_allocation(0x1000));
    one.exporter.close();
    assert!(!one.exporter.is_gone() && one.settle(at(1)) == [name(1, 1)] && one.exporter.is_gone());
}

#[test]
fn peers_and_users_have_limits() {
    let mut one = Exporting::new(config(1, 1 << 20));
    let all: Vec<_> = (1..IPC_PEERS_MAX).map(|_| one.exporter.add_peer().unwrap()).collect();
    assert!(one.exporter.add_peer().is_err());
    one.exporter.remove_peer(all[3], at(1));
    assert!(one.exporter.add_peer().is_ok());
    let name = one.touch(A(), at(1));
    one.exporter.overuse(name, IPC_PINS_MAX);
    assert_eq!(one.send(&one.ask(A()), at(1)), Err(FallbackReason::Pins));
    let listed = one.exporter.list_exports().next().unwrap();
    assert_eq!(
        (listed.name, listed.state, listed.pins, listed.holders),
        (name, ExportState::Live, IPC_PINS_MAX, 1)
    );
}
