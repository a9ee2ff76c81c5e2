//! Budgets, idle time, and requests to release memory.

use super::*;
use crate::ipc::exporter::AllocationQuery;
use crate::ipc::exporter::ExportUsage;
use crate::limits::EXPORTS_MAX;

/// Returns an allocation of that many bytes, at an address that depends on the number.
fn numbered(number: u64, len: u64) -> DriverAllocation {
    allocation(number, 0x10_0000 * (number + 1), len)
}

const fn amount(entries: usize, bytes: u64) -> ExportAmount {
    ExportAmount { entries, bytes }
}

#[test]
fn least_recently_used_export_counts_until_unexported() {
    let mut one = Exporting::new(config(3, 300));
    let all: Vec<_> = (0..3).map(|n| one.touch(numbered(n, 100), at(n))).collect();
    assert_eq!(one.touch(numbered(0, 100), at(3)), all[0]);
    let fourth = numbered(3, 100);
    assert_eq!(
        one.send(&one.ask(fourth), at(4)),
        Err(FallbackReason::NoRoom),
        "the evicted export counts until the driver has unexported it"
    );
    assert_eq!(
        one.exporter.usage(),
        ExportUsage { live: amount(2, 200), zombies: amount(1, 100), idle: 2, ..ExportUsage::default() }
    );
    assert_eq!(one.settle(at(4)), [all[1]]);
    let new = one.touch(fourth, at(4));
    assert_eq!(one.exporter.usage(), ExportUsage { live: amount(3, 300), idle: 3, ..ExportUsage::default() });
    // By bytes: two exports are evicted for one with the length of both.
    assert_eq!(one.send(&one.ask(numbered(5, 200)), at(5)), Err(FallbackReason::NoRoom));
    assert_eq!(one.settle(at(5)), [all[2], all[0]]);
    let _long = one.touch(numbered(5, 200), at(5));
    assert_eq!(one.touch(fourth, at(6)), new);
    assert_eq!(one.exporter.counts().evicted, 3);
}

#[test]
fn exports_in_use_are_not_evicted() {
    let mut one = Exporting::new(config(2, 1000));
    let used = [numbered(0, 10), numbered(1, 10)].map(|memory| one.send(&one.ask(memory), at(1)).unwrap());
    let third = one.ask(numbered(2, 10));
    assert_eq!(one.send(&third, at(1)), Err(FallbackReason::NoRoom));
    assert_eq!((one.exporter.take_due_names(one.peer), one.exporter.poll(at(1))), (None, None));
    let counts = one.exporter.counts();
    assert_eq!((counts.evicted, counts.fallback_count(FallbackReason::NoRoom)), (0, 1));
    // A passing export needs no budget, up to a limit of its own.
    let config = one.exporter.config();
    let passing: Vec<_> = (2..2 + config.passing as u64)
        .map(|n| one.send(&ExportRequest { passing: true, ..one.ask(numbered(n, 1 << 30)) }, at(1)).unwrap())
        .collect();
    let more = ExportRequest { passing: true, ..one.ask(numbered(9, 1)) };
    assert_eq!(one.send(&more, at(1)), Err(FallbackReason::NoRoom));
    let names: Vec<_> = passing.iter().map(|sent| sent.pin.export_name()).collect();
    passing.into_iter().for_each(|sent| one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(1)));
    assert_eq!(one.settle(at(1)), names);
    assert_eq!(one.exporter.usage().live, amount(2, 20));
    drop(used);
}

#[test]
fn passing_export_stays_if_a_message_keeps_it() {
    let mut one = Exporting::new(config(2, 1000));
    let passing = ExportRequest { passing: true, ..one.ask(numbered(0, 10)) };
    let first = one.send(&passing, at(1)).unwrap();
    assert_eq!(one.exporter.usage().passing, amount(1, 10));
    let name = one.touch(numbered(0, 10), at(1));
    assert_eq!(
        (one.exporter.usage().passing, one.exporter.usage().live),
        (ExportAmount::NONE, amount(1, 10))
    );
    one.exporter.finish_message(first.pin, CopyOutcome::Copied, at(1));
    assert_eq!((one.settle(at(1)), one.touch(numbered(0, 10), at(2))), (Vec::new(), name));
}

#[test]
fn lowered_budget_is_met_as_messages_end() {
    let mut one = Exporting::new(config(10, 1000));
    let idle: Vec<_> = (0..5).map(|n| one.touch(numbered(n, 100), at(n))).collect();
    let used: Vec<_> = (5..10).map(|n| one.send(&one.ask(numbered(n, 100)), at(n)).unwrap()).collect();
    one.exporter.shrink_budget(amount(8, 1000));
    assert_eq!(one.settle(at(10)), idle[..2]);
    one.exporter.shrink_budget(amount(8, 400));
    assert_eq!(one.settle(at(10)), idle[2..]);
    let usage = one.exporter.usage();
    assert_eq!((usage.live, usage.passing), (amount(4, 400), amount(1, 100)), "exports in use stay");
    for (at_most, sent) in (0..5).rev().zip(used) {
        one.exporter.shrink_budget(amount(at_most, 1000));
        one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(11));
        let _over = one.settle(at(11));
        assert!(one.exporter.usage().live.entries <= at_most);
    }
    // With a budget of 0, no memory is shared.
    assert_eq!(one.exporter.usage(), ExportUsage::default());
    assert_eq!(one.send(&one.ask(numbered(0, 1)), at(12)), Err(FallbackReason::Off));
    one.exporter.grow_budget(amount(0, 1000));
    assert_eq!(one.send(&one.ask(numbered(0, 1)), at(12)), Err(FallbackReason::Off));
    one.exporter.grow_budget(amount(1, 0));
    one.touch(numbered(0, 1), at(12));
    assert_eq!(one.send(&one.ask(numbered(1, 1001)), at(12)), Err(FallbackReason::TooLong));
    assert_eq!(one.exporter.config().budget, amount(1, 1000));
}

#[test]
fn budget_zero_ends_exports_with_their_messages() {
    let mut one = Exporting::new(config(4, 1000));
    let sent = one.send(&one.ask(numbered(0, 100)), at(1)).unwrap();
    let name = sent.pin.export_name();
    one.exporter.shrink_budget(ExportAmount::NONE);
    assert_eq!(one.settle(at(1)), []);
    one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(1));
    assert_eq!(one.settle(at(1)), [name]);
    assert_eq!(one.exporter.usage(), ExportUsage::default());
}

/// Messages follow each other without a pause, but exports beyond a lowered budget get no further messages.
#[test]
fn exports_beyond_the_budget_end_under_continuous_messages() {
    for (budget, why) in [
        (ExportAmount::NONE, FallbackReason::Off),
        (amount(1, 1000), FallbackReason::NoRoom),
        (amount(4, 150), FallbackReason::NoRoom),
    ] {
        let mut one = Exporting::new(config(4, 1000));
        let memory = [numbered(0, 100), numbered(1, 100)];
        let used = memory.map(|memory| one.send(&one.ask(memory), at(1)).unwrap());
        let names = [0, 1].map(|n: usize| used[n].pin.export_name());
        one.exporter.shrink_budget(budget);
        let kept = usize::from(!budget.is_none());
        assert_eq!(
            one.exporter.usage().live.entries,
            kept,
            "{budget:?}: the other exports end with their messages"
        );
        assert_eq!((one.exporter.take_due_names(one.peer), one.exporter.poll(at(1))), (None, None));
        // Further messages begin before those are done. A passing request may still use such an export.
        let further: Vec<_> = memory.iter().map(|memory| one.send(&one.ask(*memory), at(2))).collect();
        let shared: Vec<_> = further
            .iter()
            .map(|sent| sent.as_ref().map(|sent| sent.pin.export_name()).map_err(|why| *why))
            .collect();
        assert_eq!(shared.iter().filter(|sent| **sent == Err(why)).count(), 2 - kept, "{shared:?}");
        let passing = one.send(&ExportRequest { passing: true, ..one.ask(memory[0]) }, at(2)).unwrap();
        for sent in used.into_iter().chain(further.into_iter().flatten()).chain([passing]) {
            one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(3));
        }
        let over = one.settle(at(3));
        assert_eq!((over.len(), one.exporter.usage().live.entries), (2 - kept, kept), "{names:?}");
        assert_eq!(one.exporter.usage().zombies, ExportAmount::NONE);
    }
}

/// A retiring export is kept again if the budget is raised in time.
#[test]
fn export_stays_if_its_budget_returns() {
    let mut one = Exporting::new(config(4, 1000));
    let sent = one.send(&one.ask(numbered(0, 100)), at(1)).unwrap();
    one.exporter.shrink_budget(ExportAmount::NONE);
    assert_eq!(one.send(&one.ask(numbered(0, 100)), at(1)), Err(FallbackReason::Off));
    one.exporter.grow_budget(amount(4, 1000));
    let name = one.touch(numbered(0, 100), at(2));
    assert_eq!(name, sent.pin.export_name());
    one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(2));
    assert_eq!((one.settle(at(2)), one.exporter.usage().live), (Vec::new(), amount(1, 100)));
}

/// Lent memory does not count towards the budget. Messages may use it, too, unless the budget is 0.
#[test]
fn messages_share_lent_memory_outside_the_budget() {
    let mut one = Exporting::new(config(1, 1000));
    let lent = one.send(&ExportRequest { passing: true, ..one.ask(numbered(0, 100)) }, at(1)).unwrap();
    let kept = one.touch(numbered(1, 100), at(1));
    let sent = one.send(&one.ask(numbered(0, 100)), at(2)).unwrap();
    assert_eq!(sent.pin.export_name(), lent.pin.export_name());
    one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(2));
    one.exporter.shrink_budget(ExportAmount::NONE);
    assert_eq!(one.send(&one.ask(numbered(0, 100)), at(3)), Err(FallbackReason::Off));
    assert_eq!(one.settle(at(3)), [kept]);
    // Once its return is requested, further messages need room for it in the budget.
    one.exporter.grow_budget(amount(1, 1000));
    one.touch(numbered(1, 100), at(3));
    let last = one.send(&one.ask(numbered(0, 100)), at(3)).unwrap();
    let name = lent.pin.export_name();
    one.exporter.let_go(&lent.pin);
    one.exporter.finish_message(lent.pin, CopyOutcome::Copied, at(3));
    assert_eq!(one.send(&one.ask(numbered(0, 100)), at(3)), Err(FallbackReason::NoRoom));
    one.exporter.finish_message(last.pin, CopyOutcome::Copied, at(3));
    assert_eq!(one.settle(at(3)), [name]);
}

#[test]
fn idle_limit_can_be_changed() {
    let mut one = Exporting::new(config(4, 1000));
    let first = one.touch(numbered(0, 100), at(1));
    one.exporter.set_idle_limit(Some(Duration::from_secs(5)));
    assert_eq!((one.exporter.next_deadline(), one.settle(at(5))), (Some(at(6)), Vec::new()));
    assert_eq!(one.settle(at(6)), [first]);
    one.touch(numbered(0, 100), at(7));
    one.exporter.set_idle_limit(None);
    assert_eq!((one.exporter.next_deadline(), one.settle(at(1000))), (None, Vec::new()));
    one.exporter.set_idle_limit(Some(IDLE));
    assert_eq!(one.settle(at(1000)).len(), 1);
}

#[test]
fn tables_grow_only_with_the_budget() {
    let mut one = Exporting::new(config(4, 1 << 40));
    let room = one.exporter.room();
    for n in 0..200 {
        let _any = one.send(&one.ask(numbered(n, 1)), at(1)).map(|sent| {
            one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(1));
        });
        let _over = one.settle(at(1));
    }
    one.exporter.shrink_budget(amount(2, 1));
    assert_eq!(one.exporter.room(), room);
    one.exporter.grow_budget(amount(64, 1));
    assert!(one.exporter.room() > room);
    one.exporter.grow_budget(amount(usize::MAX, u64::MAX));
    assert_eq!(one.exporter.config().budget.entries, EXPORTS_MAX - one.exporter.config().passing);
    let most =
        Exporting::new(ExporterConfig { passing: usize::MAX, ..config(usize::MAX, 1) }).exporter.config();
    assert_eq!((most.passing, most.budget.entries), (EXPORTS_MAX / 2, EXPORTS_MAX / 2));
}

#[test]
fn unused_export_expires_after_thirty_seconds() {
    assert_eq!(ExporterConfig::IDLE, IDLE);
    let mut one = Exporting::new(config(4, 1000));
    let first = one.touch(numbered(0, 100), at(1));
    let second = one.touch(numbered(1, 100), at(11));
    let sent = one.send(&one.ask(numbered(2, 100)), at(1)).unwrap();
    assert_eq!(one.exporter.next_deadline(), Some(at(31)));
    assert_eq!(one.settle(Instant(at(31).0 - 1)), []);
    assert_eq!(one.settle(at(31)), [first]);
    assert_eq!(one.touch(numbered(1, 100), at(40)), second);
    assert_eq!((one.settle(at(69)), one.exporter.next_deadline()), (Vec::new(), Some(at(70))));
    assert_eq!(one.settle(at(70)), [second]);
    assert_eq!(one.exporter.next_deadline(), None, "an export in use has no deadline");
    let last = sent.pin.export_name();
    one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(100));
    assert_eq!((one.settle(at(129)), one.settle(at(130))), (Vec::new(), Vec::from([last])));
    assert_eq!((one.exporter.usage(), one.exporter.counts().expired), (ExportUsage::default(), 3));
}

#[test]
fn without_an_idle_limit_no_export_expires() {
    let mut one = Exporting::new(ExporterConfig { idle: None, ..config(4, 1000) });
    one.touch(numbered(0, 100), at(1));
    assert_eq!((one.exporter.next_deadline(), one.settle(Instant(u64::MAX))), (None, Vec::new()));
}

#[test]
fn trim_ends_idle_exports_before_used_ones() {
    let mut one = Exporting::new(config(10, 1000));
    let idle: Vec<_> = (0..3).map(|n| one.touch(numbered(n, 100), at(n))).collect();
    let used: Vec<_> = (3..6).map(|n| one.send(&one.ask(numbered(n, 100)), at(n)).unwrap()).collect();
    one.exporter.trim_exports(400);
    assert_eq!(one.settle(at(6)), idle[..2]);
    one.exporter.trim_exports(100);
    assert_eq!(one.settle(at(6)), idle[2..]);
    assert_eq!((one.exporter.usage().live, one.exporter.usage().passing), (amount(1, 100), amount(2, 200)));
    used.into_iter().for_each(|sent| one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(7)));
    assert_eq!(one.settle(at(7)).len(), 2);
    assert_eq!(one.exporter.usage(), ExportUsage { live: amount(1, 100), idle: 1, ..ExportUsage::default() });
    assert_eq!(one.exporter.config().budget, amount(10, 1000));
}

#[test]
fn drained_peer_can_receive_announcements_again() {
    let mut one = Exporting::new(config(10, 1000));
    let other = one.exporter.add_peer().unwrap();
    let names: Vec<_> = (0..2).map(|n| one.touch(numbered(n, 100), at(1))).collect();
    let kept = one.send(&ExportRequest { peer: other, ..one.ask(numbered(0, 100)) }, at(1)).unwrap();
    let sent = one.send(&one.ask(numbered(1, 100)), at(1)).unwrap();
    one.exporter.drain_peer(one.peer);
    assert_eq!(
        one.exporter.take_due_names(one.peer).unwrap().get(),
        &names[..1],
        "a message uses the other export"
    );
    assert_eq!(one.exporter.take_due_names(other), None);
    for memory in [numbered(0, 100), numbered(1, 100)] {
        assert_eq!(one.send(&one.ask(memory), at(1)), Err(FallbackReason::Draining));
    }
    one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(1));
    let first = crate::wire::ipc::ExportNames::new(&names[..1]).unwrap();
    one.exporter.on_retired(one.peer, &first).unwrap();
    assert_eq!(one.exporter.export_holders(names[0]).collect::<Vec<_>>(), [(other, 1)]);
    assert_eq!(one.settle(at(1)), [], "draining a peer ended an export");
    let again = one.send(&one.ask(numbered(0, 100)), at(1)).unwrap();
    assert!(again.announce && again.pin.export_name() == names[0]);
    one.exporter.finish_message(kept.pin, CopyOutcome::Copied, at(1));
}

#[test]
fn free_flag_queries_every_export() {
    let mut one = Exporting::new(config(10, 1000));
    let all: Vec<_> = (0..3).map(|n| numbered(n, 100)).collect();
    let names: Vec<_> = all.iter().map(|memory| one.touch(*memory, at(1))).collect();
    assert_eq!(one.exporter.poll(at(1)), None, "nothing was freed, so no export needs a query");
    one.exporter.on_memory_freed();
    let queries: Vec<AllocationQuery> = core::iter::from_fn(|| match one.exporter.poll(at(1)) {
        Some(ExporterCommand::Query(query)) => Some(query),
        other => {
            assert_eq!(other, None);
            None
        }
    })
    .collect();
    let asked: Vec<_> = queries.iter().map(AllocationQuery::address).collect();
    assert_eq!(asked, all.iter().map(|memory| memory.span.start()).collect::<Vec<_>>());
    // The second allocation was freed; the third address has another allocation.
    one.exporter.on_queried(queries[0], Some(all[0]));
    one.exporter.on_queried(queries[1], None);
    one.exporter.on_queried(queries[2], Some(DriverAllocation { id: DriverAllocationId(7), ..all[2] }));
    assert_eq!(one.settle(at(1)), names[1..]);
    assert_eq!(one.touch(all[0], at(1)), names[0]);
    assert_eq!(one.exporter.counts().stale, 2);
    // The answer to an older query does not cover later frees.
    one.exporter.on_memory_freed();
    let Some(ExporterCommand::Query(query)) = one.exporter.poll(at(1)) else { unreachable!() };
    one.exporter.on_memory_freed();
    one.exporter.on_queried(query, Some(all[0]));
    assert!(matches!(one.exporter.poll(at(1)), Some(ExporterCommand::Query(again)) if again != query));
}

#[test]
fn closed_exporter_ends_after_its_last_unexport() {
    let mut one = Exporting::new(config(10, 1000));
    let idle = one.touch(numbered(0, 100), at(1));
    let sent = one.send(&one.ask(numbered(1, 100)), at(1)).unwrap();
    let used = sent.pin.export_name();
    assert!(!one.exporter.is_gone());
    one.exporter.close();
    for passing in [true, false] {
        let ask = ExportRequest { passing, ..one.ask(numbered(0, 100)) };
        assert_eq!(one.send(&ask, at(1)), Err(FallbackReason::Closing));
    }
    assert_eq!((one.settle(at(1)), one.exporter.is_gone()), (Vec::from([idle]), false));
    one.exporter.finish_message(sent.pin, CopyOutcome::Copied, at(1));
    assert_eq!((one.settle(at(1)), one.exporter.is_gone()), (Vec::from([used]), true));
}

/// P5: the export of a window is like any other, and ends with its last user.
#[test]
fn lent_export_ends_with_its_last_user() {
    let mut one = Exporting::new(config(4, 1 << 20));
    let memory = allocation(1, 0x1000, 64);
    // An export that messages used before, and one that was created for the window.
    for before in [true, false] {
        if before {
            one.touch(memory, at(1));
        }
        let lend = ExportRequest { passing: true, ..one.ask(memory) };
        let lent = [one.send(&lend, at(1)).unwrap(), one.send(&lend, at(1)).unwrap()];
        one.exporter.trim_exports(0);
        assert!(one.settle(at(100)).is_empty(), "lent memory was trimmed or expired");
        // Messages that want to keep it: one ends before, and one after.
        let [first, second] = [(); 2].map(|()| one.send(&one.ask(memory), at(2)).unwrap());
        one.exporter.finish_message(first.pin, CopyOutcome::Copied, at(2));
        for lent in lent {
            one.exporter.let_go(&lent.pin);
            one.exporter.finish_message(lent.pin, CopyOutcome::Copied, at(3));
        }
        assert!(one.settle(at(3)).is_empty(), "an export was ended while a message uses it");
        one.exporter.finish_message(second.pin, CopyOutcome::Copied, at(4));
        assert_eq!(one.settle(at(4)).len(), 1, "had before: {before}");
        assert_eq!(one.exporter.usage(), ExportUsage::default());
    }
}
