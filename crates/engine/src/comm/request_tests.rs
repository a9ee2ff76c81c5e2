//! Requests in one thread; `tests/model.rs` uses several threads.

use trunkline_proto::limits::SENDS_MAX;

use crate::comm::request::{RequestOutcome, RequestTable, RequestTicket};
use crate::status::CommStatusRow;

fn requests() -> RequestTable {
    RequestTable::new(CommStatusRow::without_page()).unwrap()
}

fn take(requests: &RequestTable, ticket: RequestTicket) -> RequestOutcome {
    requests.take_outcome(ticket, &mut [0; 8])
}

#[test]
fn a_request_is_taken_once() {
    let (requests, mut cursor) = (requests(), 0);
    let ticket = requests.reserve_slot(&mut cursor).unwrap();
    let mut sizes = [0; 8];
    assert_eq!(requests.take_outcome(ticket, &mut sizes), RequestOutcome::Pending);
    requests.complete_request(ticket.slot_index(), &[5, 6]);
    assert_eq!(requests.take_outcome(ticket, &mut sizes), RequestOutcome::Done(2));
    assert_eq!(sizes[..2], [5, 6]);
    assert_eq!(requests.take_outcome(ticket, &mut sizes), RequestOutcome::Unknown);
    let elsewhere = RequestTicket::from_bits(ticket.to_bits() | 9999);
    assert_eq!(requests.take_outcome(elsewhere, &mut sizes), RequestOutcome::Unknown);
}

#[test]
fn a_slot_is_in_use_until_its_request_is_taken() {
    let (requests, mut cursor) = (requests(), 0);
    let tickets: Vec<RequestTicket> =
        (0..SENDS_MAX).map(|_| requests.reserve_slot(&mut cursor).unwrap()).collect();
    assert_eq!(requests.reserve_slot(&mut cursor), None);
    requests.complete_request(3, &[]);
    requests.cancel_request(5);
    assert_eq!(
        requests.reserve_slot(&mut cursor).map(RequestTicket::slot_index),
        Some(5),
        "the cancelled slot is free"
    );
    assert_eq!(requests.reserve_slot(&mut cursor), None, "a slot that is done and not taken was reused");
    assert_eq!(requests.fail_all(), SENDS_MAX - 1);
    assert_eq!(
        (take(&requests, tickets[3]), take(&requests, tickets[4])),
        (RequestOutcome::Done(0), RequestOutcome::Failed)
    );
    assert_eq!(requests.reserve_slot(&mut cursor).map(RequestTicket::slot_index), Some(3));
    assert_eq!(
        take(&requests, tickets[3]),
        RequestOutcome::Unknown,
        "the slot belongs to another request now"
    );
}

#[test]
fn a_closed_comm_has_no_requests() {
    let (requests, mut cursor) = (requests(), 0);
    let tickets: Vec<RequestTicket> = (0..3).map(|_| requests.reserve_slot(&mut cursor).unwrap()).collect();
    requests.complete_request(0, &[1]);
    assert_eq!(take(&requests, tickets[0]), RequestOutcome::Done(1));
    requests.complete_request(1, &[1]);
    requests.clear();
    assert!(!requests.has_pending());
    for ticket in tickets {
        assert_eq!(take(&requests, ticket), RequestOutcome::Unknown);
    }
    cursor = 0;
    let all: Vec<RequestTicket> =
        (0..SENDS_MAX).map(|_| requests.reserve_slot(&mut cursor).unwrap()).collect();
    assert_eq!((all[0].generation(), all[2].generation(), all[3].generation()), (2, 2, 1));
}

#[test]
fn generations_wrap_and_skip_zero() {
    let (requests, mut cursor) = (requests(), 0);
    let first = requests.reserve_slot(&mut cursor).unwrap();
    for _ in 0..SENDS_MAX - 1 {
        requests.reserve_slot(&mut cursor).unwrap();
    }
    let mut ticket = first;
    for _ in 0..u32::from(u16::MAX) {
        assert_ne!(ticket.generation(), 0);
        requests.complete_request(ticket.slot_index(), &[]);
        assert_eq!(take(&requests, ticket), RequestOutcome::Done(0));
        ticket = requests.reserve_slot(&mut cursor).unwrap();
    }
    assert_eq!(ticket, first);
}
