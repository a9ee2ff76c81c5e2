//! Requests, one thread at a time; `tests/model.rs` has several.

use trunkline_proto::limits::SENDS_MAX;

use crate::comm::request::{Outcome, Requests, Ticket};
use crate::planted::planted;
use crate::status::Row;

fn requests() -> Requests {
    Requests::new(Row::unseen(), planted()).unwrap()
}

fn take(requests: &Requests, ticket: Ticket) -> Outcome {
    requests.take(ticket, &mut [0; 8])
}

#[test]
fn a_request_is_taken_once() {
    let (requests, mut cursor) = (requests(), 0);
    let ticket = requests.reserve(&mut cursor).unwrap();
    let mut sizes = [0; 8];
    assert_eq!(requests.take(ticket, &mut sizes), Outcome::Pending);
    requests.complete(ticket.slot(), &[5, 6]);
    assert_eq!(requests.take(ticket, &mut sizes), Outcome::Done(2));
    assert_eq!(sizes[..2], [5, 6]);
    assert_eq!(requests.take(ticket, &mut sizes), Outcome::Unknown);
    let elsewhere = Ticket::from_bits(ticket.to_bits() | 9999);
    assert_eq!(requests.take(elsewhere, &mut sizes), Outcome::Unknown);
}

#[test]
fn a_slot_is_in_use_until_its_request_is_taken() {
    let (requests, mut cursor) = (requests(), 0);
    let tickets: Vec<Ticket> = (0..SENDS_MAX).map(|_| requests.reserve(&mut cursor).unwrap()).collect();
    assert_eq!(requests.reserve(&mut cursor), None);
    requests.complete(3, &[]);
    requests.cancel(5);
    assert_eq!(requests.reserve(&mut cursor).map(Ticket::slot), Some(5), "one that was given up");
    assert_eq!(requests.reserve(&mut cursor), None, "done and not taken");
    assert_eq!(requests.fail_all(), SENDS_MAX - 1);
    assert_eq!(
        (take(&requests, tickets[3]), take(&requests, tickets[4])),
        (Outcome::Done(0), Outcome::Failed)
    );
    assert_eq!(requests.reserve(&mut cursor).map(Ticket::slot), Some(3));
    assert_eq!(take(&requests, tickets[3]), Outcome::Unknown, "it is another one's now");
}

#[test]
fn a_closed_comm_has_no_requests() {
    let (requests, mut cursor) = (requests(), 0);
    let tickets: Vec<Ticket> = (0..3).map(|_| requests.reserve(&mut cursor).unwrap()).collect();
    requests.complete(0, &[1]);
    assert_eq!(take(&requests, tickets[0]), Outcome::Done(1));
    requests.complete(1, &[1]);
    requests.clear();
    assert!(!requests.pending());
    for ticket in tickets {
        assert_eq!(take(&requests, ticket), Outcome::Unknown);
    }
    cursor = 0;
    let all: Vec<Ticket> = (0..SENDS_MAX).map(|_| requests.reserve(&mut cursor).unwrap()).collect();
    assert_eq!((all[0].generation(), all[2].generation(), all[3].generation()), (2, 2, 1));
}

#[test]
fn generations_come_round_and_skip_zero() {
    let (requests, mut cursor) = (requests(), 0);
    let first = requests.reserve(&mut cursor).unwrap();
    for _ in 0..SENDS_MAX - 1 {
        requests.reserve(&mut cursor).unwrap();
    }
    let mut ticket = first;
    for _ in 0..u32::from(u16::MAX) {
        assert_ne!(ticket.generation(), 0);
        requests.complete(ticket.slot(), &[]);
        assert_eq!(take(&requests, ticket), Outcome::Done(0));
        ticket = requests.reserve(&mut cursor).unwrap();
    }
    assert_eq!(ticket, first);
}
