//! Memory that one endpoint lends to another, as the engine does for windows.

use trunkline_node::ipc::{BorrowStatus, LoanRange};
use trunkline_node::tagged::{LendOutcome, MemoryLoan};
use trunkline_proto::ipc::exporter::{ExportAmount, ExportUsage};
use trunkline_proto::tagged::StridedRows;
use trunkline_proto::wire::tagged::InboxSizes;

use crate::kind::Call;
use crate::two::{Two, Where, pattern};

const fn spot(at: u64) -> LoanRange {
    LoanRange { at, rows: StridedRows::WHOLE }
}

fn nothing_kept() -> Two {
    Two::with(InboxSizes::new(1024, 512, 1 << 18).unwrap(), ExportAmount { entries: 0, bytes: 0 })
}

/// Lends a buffer, and maps the loan.
fn lend(two: &mut Two, buffer: &trunkline_node::ipc::MessageBuffer) -> ([MemoryLoan; 2], BorrowStatus) {
    let to = two.a.other;
    let LendOutcome::Lent(given, reference) = two.a.endpoint.lend_buffer(to, buffer).unwrap() else {
        panic!("the buffer must be lent")
    };
    let taken = two.b.endpoint.borrow(two.b.other, &reference).unwrap();
    for _ in 0..1000 {
        match two.b.endpoint.map_loan(taken) {
            BorrowStatus::Wait => two.step(),
            found => return ([given, taken], found),
        }
    }
    panic!("the loan was neither mapped nor refused in 1000 steps");
}

/// Puts all of a buffer into a loan in one copy.
fn put(two: &mut Two, taken: MemoryLoan, to: LoanRange, near: &trunkline_node::ipc::MessageBuffer) {
    two.b.endpoint.begin_put(taken, to, near, 0, near.len()).unwrap();
    assert_eq!(two.b.endpoint.has_copied(taken), Ok(true));
}

#[test]
fn loan_is_accessible_without_budget_until_it_ends() {
    let mut two = nothing_kept();
    let (part, near) = (two.a.buffer(Where::Own, 1 << 20), two.b.buffer(Where::Other, 64));
    two.a.fill(&part, 1);
    let ([given, taken], found) = lend(&mut two, &part);
    assert_eq!(found, BorrowStatus::Mapped);
    // Neither a trim nor a release nor time takes back a lent export.
    two.a.endpoint.node_mut().trim_exports(0);
    two.a.endpoint.node_mut().release_export(part.own_address().unwrap());
    let idle = trunkline_proto::time::Duration::from_secs(100);
    two.now = two.now + idle;
    two.rest();
    assert_eq!(two.b.endpoint.node().counts().unmaps, 0);
    two.b.fill(&near, 9);
    put(&mut two, taken, spot(1000), &near);
    assert!(two.a.bytes(&part)[1000..1064] == pattern(64, 9));
    let rows = LoanRange { at: 8, rows: StridedRows::new(8, 100).unwrap() };
    two.b.endpoint.get(taken, rows, &near, 0, 64).unwrap();
    assert_eq!(two.b.endpoint.has_copied(taken), Ok(true));
    let all = two.a.bytes(&part);
    let expected: Vec<u8> = (0..8).flat_map(|row| all[8 + 100 * row..][..8].to_vec()).collect();
    assert!(two.b.bytes(&near) == expected);
    two.b.endpoint.end_loan(taken, true);
    two.rest();
    assert_eq!(
        two.b.endpoint.node().counts().unmaps,
        0,
        "the borrower must keep its mapping until the lender ends the loan"
    );
    two.a.endpoint.end_loan(given, true);
    two.until("the export has ended", |two| two.a.endpoint.node().counts().unexports == 1);
    assert_eq!(two.a.endpoint.node().exporter().usage(), ExportUsage::default());
    assert_eq!((two.b.endpoint.node().counts().unmaps, two.a.kind().handles()), (1, [1, 1]));
    assert!(two.b.endpoint.begin_put(taken, spot(0), &near, 0, 64).is_err());
}

/// Only a part of the allocation is lent: the borrower can access no other bytes.
#[test]
fn bytes_beyond_a_loan_are_not_accessible() {
    let mut two = nothing_kept();
    let all = two.a.buffer(Where::Own, 1 << 16);
    two.a.fill(&all, 1);
    let ([_given, taken], _) = lend(&mut two, &all.sub_buffer(4096, 4096).unwrap());
    let near = two.b.buffer(Where::Other, 4096);
    put(&mut two, taken, spot(0), &near);
    let rows = |block, stride| StridedRows::new(block, stride).unwrap();
    for (at, rows, len) in [
        (1, StridedRows::WHOLE, 4096),
        (4096, StridedRows::WHOLE, 1),
        (u64::MAX, StridedRows::WHOLE, 1),
        (0, rows(8, 4096), 16),
        (0, rows(1, 1 << 63), 3),
    ] {
        let put = two.b.endpoint.begin_put(taken, LoanRange { at, rows }, &near, 0, len);
        let got = two.b.endpoint.get(taken, LoanRange { at, rows }, &near, 0, len);
        assert!(put.is_err() && got.is_err(), "{len} bytes from {at}, {rows:?}");
    }
    let bytes = two.a.bytes(&all);
    assert!(bytes[..4096] == pattern(1 << 16, 1)[..4096] && bytes[8192..] == pattern(1 << 16, 1)[8192..]);
}

#[test]
fn failed_loans_leave_nothing_behind() {
    let mut two = nothing_kept();
    let part = two.a.buffer(Where::Own, 1 << 16);
    let to = two.a.other;
    two.a.fail(Call::Export, 1);
    assert_eq!(two.a.endpoint.lend_buffer(to, &part), Ok(LendOutcome::Not));
    let private = two.a.buffer(Where::Other, 100);
    assert_eq!(two.a.endpoint.lend_buffer(to, &private), Ok(LendOutcome::Not));
    two.b.fail(Call::Open, 1);
    let ([given, taken], found) = lend(&mut two, &part);
    assert_eq!(found, BorrowStatus::Not);
    two.b.endpoint.end_loan(taken, false);
    two.a.endpoint.end_loan(given, false);
    two.until("the export has ended", |two| two.a.endpoint.node().counts().unexports == 1);
    assert_eq!(two.a.endpoint.node().exporter().usage(), ExportUsage::default());
    two.a.free(&part);
    assert_eq!(two.a.kind().device.usage().unwrap().used, 0);
}

/// Each loan counts as one of the operations that a neighbour accepts at once; messages are still sent.
#[test]
fn loans_count_as_operations() {
    let mut two = nothing_kept();
    let part = two.a.buffer(Where::Own, 1 << 16);
    let mut loans: Vec<_> = (0..128).map(|_| lend(&mut two, &part).0).collect();
    let to = two.a.other;
    assert_eq!(two.a.endpoint.lend_buffer(to, &part), Ok(LendOutcome::Busy));
    let [given, taken] = loans.swap_remove(5);
    two.b.endpoint.end_loan(taken, true);
    two.a.endpoint.end_loan(given, true);
    loans.push(lend(&mut two, &part).0);
    let [a, b] = [&two.a, &two.b].map(|one| one.endpoint.node().counts());
    assert_eq!((a.exports, b.maps), (1, 1));
    let short = two.a.buffer(Where::Other, 100);
    let target = two.b.buffer(Where::Other, 100);
    let (received, sent) = (two.post(1, &target), two.send(1, &short));
    assert!(two.both(sent, received).iter().all(Result::is_ok));
    // Closing the borrower ends its loans.
    let now = two.now;
    two.b.endpoint.close(now);
    two.until("the export has ended", |two| two.a.endpoint.node().counts().unexports == 1);
}

/// A copy in progress keeps the loan mapped even after the lender has died, and no call waits for it.
#[test]
fn put_outlives_the_lender() {
    let mut two = nothing_kept();
    two.b.kind().hold(1);
    let (part, near) = (two.a.buffer(Where::Own, 4096), two.b.buffer(Where::Own, 4096));
    let ([_given, taken], _) = lend(&mut two, &part);
    two.a.fill(&part, 3);
    two.b.kind().run_kernel(true);
    two.b.endpoint.get(taken, spot(0), &near, 0, 4096).unwrap();
    assert_eq!(two.b.endpoint.has_copied(taken), Ok(false));
    let to = two.a.other;
    two.a.endpoint.refuse_peer(to);
    two.rest();
    assert_eq!(two.b.endpoint.node().counts().unmaps, 0, "the memory is still being copied");
    assert!(!two.b.endpoint.is_gone(two.b.other));
    two.b.kind().run_kernel(false);
    two.b.kind().let_go();
    assert_eq!(two.b.endpoint.has_copied(taken), Ok(true));
    assert!(two.b.bytes(&near) == pattern(4096, 3));
    two.until("the loan is unmapped", |two| two.b.endpoint.node().counts().unmaps == 1);
}
