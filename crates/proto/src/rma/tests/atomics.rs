//! The effect of atomics on words, and that each is executed once.

use proptest::prelude::*;

use std::collections::BTreeMap;
use std::vec::Vec;

use crate::limits::RMA_CALLS_MAX;
use crate::rma::ProtocolFault;
use crate::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use crate::rma::atomic_requests::{AtomicRequests, ReplyEffect, RequestRefusal};
use crate::rma::served::{ServedReply, ServedSlots};
use crate::wire::rma::RmaStream;
use crate::wire::rma::atomic::{AtomicOutcome, AtomicReply, AtomicRequest, ReplySlot};
use crate::wire::rma::signal::{SignalUpdate, UpdateOp};
use crate::wire::rma::word::{SymmetricWord, WordWidth};

fn stream() -> RmaStream {
    RmaStream::new(2).unwrap()
}

fn word(width: WordWidth) -> SymmetricWord {
    SymmetricWord::new(1, 64, width).unwrap()
}

fn apply(kind: AtomicType, action: AtomicAction, old: u64) -> Option<u64> {
    TypedAtomic::new(kind, action, true).unwrap().apply_to(old)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn integer_atomics_match_the_arithmetic_of_rust(old: u64, value: u64, other: u64) {
        let (o, v, x) = (old as u32, value as u32, other as u32);
        let narrow = |new: u32| Some(u64::from(new));
        for kind in [AtomicType::I32, AtomicType::U32] {
            let with = |action: fn(u64) -> AtomicAction| apply(kind, action(v.into()), old);
            prop_assert_eq!(with(AtomicAction::Set), narrow(v));
            prop_assert_eq!(with(AtomicAction::Add), narrow((o as i32).wrapping_add(v as i32) as u32));
            prop_assert_eq!(with(AtomicAction::And), narrow(o & v));
            prop_assert_eq!(with(AtomicAction::Or), narrow(o | v));
            prop_assert_eq!(with(AtomicAction::Xor), narrow(o ^ v));
            for expect in [x, o] {
                let swap = apply(kind, AtomicAction::CompareSwap { expect: expect.into(), swap: v.into() }, old);
                prop_assert_eq!(swap, if expect == o { narrow(v) } else { None });
            }
        }
        for kind in [AtomicType::I64, AtomicType::U64] {
            let with = |action: fn(u64) -> AtomicAction| apply(kind, action(value), old);
            prop_assert_eq!(with(AtomicAction::Set), Some(value));
            prop_assert_eq!(with(AtomicAction::Add), Some((old as i64).wrapping_add(value as i64) as u64));
            prop_assert_eq!(with(AtomicAction::And), Some(old & value));
            prop_assert_eq!(with(AtomicAction::Or), Some(old | value));
            prop_assert_eq!(with(AtomicAction::Xor), Some(old ^ value));
            for expect in [other, old] {
                let swap = apply(kind, AtomicAction::CompareSwap { expect, swap: value }, old);
                prop_assert_eq!(swap, (expect == old).then_some(value));
            }
        }
        for kind in AtomicType::ALL {
            prop_assert_eq!(apply(kind, AtomicAction::Fetch, old), None);
        }
        let single = f32::from_bits(v).to_bits();
        prop_assert_eq!(apply(AtomicType::F32, AtomicAction::Set(single.into()), old), narrow(single));
        prop_assert_eq!(apply(AtomicType::F64, AtomicAction::Set(value), old), Some(value));
        let same = |a: u64, b: f64| a == b.to_bits() || f64::from_bits(a).is_nan() && b.is_nan();
        let sum = apply(AtomicType::F64, AtomicAction::Add(value), old).unwrap();
        prop_assert!(same(sum, f64::from_bits(old) + f64::from_bits(value)));
        let sum = apply(AtomicType::F32, AtomicAction::Add(single.into()), old).unwrap();
        let expected = f32::from_bits(old as u32) + f32::from_bits(single);
        prop_assert!(sum == u64::from(expected.to_bits()) || f32::from_bits(sum as u32).is_nan() && expected.is_nan());
    }

    #[test]
    fn signals_apply_their_update_to_words(old: u64, value: u64) {
        let signal = |op, width: WordWidth| SignalUpdate::new(op, word(width), value & width.bit_mask()).unwrap().apply_to(old);
        prop_assert_eq!(signal(UpdateOp::Set, WordWidth::Eight), Some(value));
        prop_assert_eq!(signal(UpdateOp::Add, WordWidth::Eight), Some(old.wrapping_add(value)));
        prop_assert_eq!(signal(UpdateOp::Max, WordWidth::Eight), (value > old).then_some(value));
        let (o, v) = (old as u32, value as u32);
        prop_assert_eq!(signal(UpdateOp::Set, WordWidth::Four), Some(v.into()));
        prop_assert_eq!(signal(UpdateOp::Add, WordWidth::Four), Some(o.wrapping_add(v).into()));
        prop_assert_eq!(signal(UpdateOp::Max, WordWidth::Four), (v > o).then_some(v.into()));
    }

    #[test]
    fn repeated_request_is_executed_once(seed: u64) {
        let mut world = Lossy::new(seed);
        for _ in 0..600 {
            world.step();
        }
        world.finish();
    }
}

#[test]
fn each_standard_type_has_its_atomics() {
    let fits = |kind, action, fetches| TypedAtomic::new(kind, action, fetches).is_some();
    for kind in AtomicType::ALL {
        let integer = !matches!(kind, AtomicType::F32 | AtomicType::F64);
        assert!(fits(kind, AtomicAction::Fetch, true) && !fits(kind, AtomicAction::Fetch, false));
        for fetches in [false, true] {
            assert!(fits(kind, AtomicAction::Set(1), fetches));
            assert!(fits(kind, AtomicAction::Add(1), fetches));
            for action in [AtomicAction::And(1), AtomicAction::Or(1), AtomicAction::Xor(1)] {
                assert_eq!(fits(kind, action, fetches), integer, "{kind:?} {action:?}");
            }
            let swap = AtomicAction::CompareSwap { expect: 1, swap: 2 };
            assert_eq!(fits(kind, swap, fetches), integer && fetches);
        }
        let wide = 1 << 32;
        for action in [
            AtomicAction::Set(wide),
            AtomicAction::Add(wide),
            AtomicAction::CompareSwap { expect: wide, swap: 0 },
        ] {
            let holds = kind.word_width() == WordWidth::Eight
                && (integer || !matches!(action, AtomicAction::CompareSwap { .. }));
            assert_eq!(fits(kind, action, true), holds, "{kind:?} {action:?}");
        }
    }
    let reads = |op| SignalUpdate::new(op, word(WordWidth::Four), 0).unwrap().needs_old_word();
    assert_eq!([UpdateOp::Set, UpdateOp::Add, UpdateOp::Max].map(reads), [false, true, true]);
    assert_eq!(SignalUpdate::new(UpdateOp::Set, word(WordWidth::Four), 1 << 32), None);
}

fn add(value: u64) -> TypedAtomic {
    TypedAtomic::new(AtomicType::U64, AtomicAction::Add(value), true).unwrap()
}

fn reply(request: &AtomicRequest, value: u64) -> AtomicReply {
    AtomicReply { stream: stream(), slot: request.slot, outcome: AtomicOutcome::Done(value) }
}

#[test]
fn request_slots_are_limited_and_reused() {
    let mut calls = AtomicRequests::new(stream());
    assert_eq!(calls.begin_request(word(WordWidth::Four), add(1)), Err(RequestRefusal::Width));
    let all: Vec<_> =
        (0..RMA_CALLS_MAX).map(|_| calls.begin_request(word(WordWidth::Eight), add(1)).unwrap()).collect();
    assert_eq!(calls.begin_request(word(WordWidth::Eight), add(1)), Err(RequestRefusal::Busy));
    assert_eq!((calls.len(), calls.iter().count()), (RMA_CALLS_MAX as u32, RMA_CALLS_MAX));
    assert_eq!(calls.on_reply(&reply(&all[9], 5)), Ok(ReplyEffect::First(all[9], AtomicOutcome::Done(5))));
    assert_eq!(calls.on_reply(&reply(&all[9], 5)), Ok(ReplyEffect::Again));
    assert_eq!(
        calls.begin_request(word(WordWidth::Eight), add(2)),
        Err(RequestRefusal::Busy),
        "the value was not collected yet"
    );
    assert_eq!(calls.len(), RMA_CALLS_MAX as u32 - 1);
    calls.release_value(all[9].slot);
    let again = calls.begin_request(word(WordWidth::Eight), add(2)).unwrap();
    calls.release_value(all[9].slot);
    assert_eq!((again.slot.number(), again.slot.generation()), (9, 2));
    assert_eq!(calls.on_reply(&reply(&all[9], 5)), Ok(ReplyEffect::Again), "the reply is of an earlier use");
    let never = AtomicReply {
        stream: stream(),
        slot: ReplySlot::new(9, 3).unwrap(),
        outcome: AtomicOutcome::Refused,
    };
    assert_eq!(calls.on_reply(&never), Err(ProtocolFault::Slot { slot: 9, generation: 3 }));
    let set = TypedAtomic::new(AtomicType::U32, AtomicAction::Set(1), false).unwrap();
    calls.release_value(all[0].slot);
    assert_eq!(
        calls.begin_request(word(WordWidth::Eight), add(2)),
        Err(RequestRefusal::Busy),
        "an abandoned request without a reply keeps its slot"
    );
    calls.on_reply(&reply(&all[0], 0)).unwrap();
    let quiet = calls.begin_request(word(WordWidth::Four), set).unwrap();
    assert_eq!(
        calls.on_reply(&reply(&quiet, 1)),
        Err(ProtocolFault::Reply(1)),
        "the request returns no value"
    );
    assert!(!calls.is_empty());
}

#[test]
fn a_slot_waits_for_copies_of_its_request() {
    let mut calls = AtomicRequests::new(stream());
    let first = calls.begin_request(word(WordWidth::Eight), add(1)).unwrap();
    assert_eq!(calls.resend_request(first.slot), Some(first));
    calls.on_reply(&reply(&first, 0)).unwrap();
    calls.release_value(first.slot);
    assert_eq!(
        (calls.resend_request(first.slot), calls.len()),
        (None, 1),
        "a slot was freed while a copy of its request is in flight"
    );
    assert_ne!(
        calls.begin_request(word(WordWidth::Eight), add(1)).unwrap().slot.number(),
        first.slot.number()
    );
    calls.on_copy_gone(first.slot);
    let other = calls.iter().next().copied().unwrap();
    let copies = (0..300).filter(|_| calls.resend_request(other.slot).is_some());
    assert_eq!(copies.count(), 255, "the count of copies is limited");
    assert_eq!(
        calls.begin_request(word(WordWidth::Eight), add(1)).unwrap().slot.number(),
        first.slot.number()
    );
}

#[test]
fn requests_out_of_order_are_not_executed() {
    let mut served = ServedSlots::new();
    let request = |generation| {
        AtomicRequest::new(stream(), ReplySlot::new(3, generation).unwrap(), word(WordWidth::Eight), add(1))
            .unwrap()
    };
    let never = |_: &AtomicRequest| -> AtomicOutcome { panic!("a request out of order was executed") };
    for generation in [2, 3, 1 << 14] {
        assert_eq!(
            served.serve_request(&request(generation), never),
            Err(ProtocolFault::Slot { slot: 3, generation })
        );
    }
    assert!(matches!(
        served.serve_request(&request(0), never),
        Ok(ServedReply::Again(AtomicReply { outcome: AtomicOutcome::Refused, .. }))
    ));
    for generation in 1..=5 {
        let now = served.serve_request(&request(generation), |_| AtomicOutcome::Done(generation.into()));
        assert_eq!(now, Ok(ServedReply::Now(reply(&request(generation), generation.into()))));
    }
    assert_eq!(served.serve_request(&request(5), never), Ok(ServedReply::Again(reply(&request(5), 5))));
    assert_eq!(served.serve_request(&request(4), never), Ok(ServedReply::Past));
    let set = TypedAtomic::new(AtomicType::U64, AtomicAction::Set(1), false).unwrap();
    let quiet =
        AtomicRequest::new(stream(), ReplySlot::new(4, 1).unwrap(), word(WordWidth::Eight), set).unwrap();
    assert_eq!(
        served.serve_request(&quiet, |_| AtomicOutcome::Done(9)),
        Ok(ServedReply::Now(reply(&quiet, 0))),
        "the request returns no value"
    );
}

/// A network that loses and reorders messages, as lost paths may. A sender that repeats a request cannot know whether
/// the message before was lost or has arrived, and knows nothing of the reply.
struct Lossy {
    calls: AtomicRequests,
    served: ServedSlots,
    value: u64,
    /// The value that each request found, by the number it added.
    executed: BTreeMap<u64, u64>,
    asked: u64,
    answered: u64,
    /// Requests whose values have arrived and are not collected.
    known: Vec<ReplySlot>,
    /// Requests in flight, and whether each is a copy.
    requests: Vec<(AtomicRequest, bool)>,
    replies: Vec<AtomicReply>,
    random: u64,
}

impl Lossy {
    fn new(seed: u64) -> Self {
        let (calls, served) = (AtomicRequests::new(stream()), ServedSlots::new());
        let (requests, replies) = (Vec::new(), Vec::new());
        let (executed, known) = (BTreeMap::new(), Vec::new());
        Self {
            calls,
            served,
            value: 0,
            executed,
            asked: 0,
            answered: 0,
            known,
            requests,
            replies,
            random: seed | 1,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 8) as usize % end
    }

    fn step(&mut self) {
        match self.below(16) {
            0..6 => {
                if let Ok(request) = self.calls.begin_request(word(WordWidth::Eight), add(self.asked + 1)) {
                    self.asked += 1;
                    self.requests.push((request, false));
                    let kept = self.known.iter().any(|slot| slot.number() == request.slot.number());
                    assert!(!kept, "a slot with an uncollected value was reused");
                    // Abandons this value.
                    if self.asked.is_multiple_of(8) {
                        self.calls.release_value(request.slot);
                    }
                }
            }
            6..10 => self.arrive(),
            10..13 => self.answer(),
            13..15 => self.collect(),
            _ => self.lose(),
        }
    }

    fn arrive(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let at = self.below(self.requests.len());
        let (request, is_copy) = self.requests.swap_remove(at);
        let (value, executed) = (&mut self.value, &mut self.executed);
        let service = self.served.serve_request(&request, |request| {
            let AtomicAction::Add(which) = request.atomic().action() else { panic!() };
            assert_eq!(executed.insert(which, *value), None, "a request was executed twice");
            let old = *value;
            *value = request.atomic().apply_to(old).unwrap();
            AtomicOutcome::Done(old)
        });
        match service.unwrap() {
            ServedReply::Now(reply) | ServedReply::Again(reply) => self.replies.push(reply),
            ServedReply::Past => {}
        }
        if is_copy {
            self.calls.on_copy_gone(request.slot);
        }
    }

    fn answer(&mut self) {
        if self.replies.is_empty() {
            return;
        }
        let at = self.below(self.replies.len());
        let reply = self.replies.swap_remove(at);
        if let ReplyEffect::First(request, outcome) = self.calls.on_reply(&reply).unwrap() {
            let AtomicAction::Add(which) = request.atomic().action() else { panic!() };
            assert_eq!(
                outcome,
                AtomicOutcome::Done(self.executed[&which]),
                "the reply contains the value of another request"
            );
            self.answered += 1;
            if !which.is_multiple_of(8) {
                self.known.push(request.slot);
            }
        }
    }

    fn collect(&mut self) {
        if !self.known.is_empty() {
            let at = self.below(self.known.len());
            let slot = self.known.swap_remove(at);
            self.calls.release_value(slot);
        }
    }

    /// Loses half of all messages in flight. Sends unanswered requests again, unless their messages are still in flight.
    fn lose(&mut self) {
        for at in (0..self.requests.len()).rev() {
            if self.below(2) == 0 {
                let (request, is_copy) = self.requests.swap_remove(at);
                if is_copy {
                    self.calls.on_copy_gone(request.slot);
                }
            }
        }
        for at in (0..self.replies.len()).rev() {
            if self.below(2) == 0 {
                self.replies.swap_remove(at);
            }
        }
        let slots: Vec<_> = self.calls.iter().map(|request| request.slot).collect();
        for slot in slots {
            if !self.requests.iter().any(|(request, _)| request.slot == slot) {
                let request = self.calls.resend_request(slot).unwrap();
                self.requests.push((request, true));
            }
        }
    }

    fn finish(&mut self) {
        for turn in 0_u32.. {
            if self.answered == self.asked {
                break;
            }
            assert!(turn < 100_000, "a request got no reply");
            if self.requests.is_empty() && self.replies.is_empty() {
                self.lose();
            }
            self.arrive();
            self.answer();
        }
        while !self.requests.is_empty() {
            self.arrive();
        }
        assert!(self.calls.is_empty());
        while !self.known.is_empty() {
            self.collect();
        }
        let all =
            (0..RMA_CALLS_MAX).all(|_| self.calls.begin_request(word(WordWidth::Eight), add(1)).is_ok());
        assert!(all, "a slot was not freed");
        assert_eq!((self.executed.len() as u64, self.value), (self.asked, self.asked * (self.asked + 1) / 2));
    }
}
