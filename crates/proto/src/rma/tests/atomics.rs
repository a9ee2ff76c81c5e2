//! What atomics make of words, and that each is executed once.

use proptest::prelude::*;

use std::collections::BTreeMap;
use std::vec::Vec;

use crate::limits::RMA_CALLS_MAX;
use crate::mutant::{Mutant, planted};
use crate::rma::Fault;
use crate::rma::atomic::{Action, Atomic, Type};
use crate::rma::calls::{Answer, Calls, Refused};
use crate::rma::served::{Served, Service};
use crate::wire::rma::Stream;
use crate::wire::rma::atomic::{Outcome, Reply, Request, Slot};
use crate::wire::rma::signal::{SignalOp, Update};
use crate::wire::rma::word::{Width, Word};

fn stream() -> Stream {
    Stream::new(2).unwrap()
}

fn word(width: Width) -> Word {
    Word::new(1, 64, width).unwrap()
}

fn apply(kind: Type, action: Action, old: u64) -> Option<u64> {
    Atomic::new(kind, action, true).unwrap().apply(old, planted())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn integers_are_changed_as_the_language_does(old: u64, value: u64, other: u64) {
        let (o, v, x) = (old as u32, value as u32, other as u32);
        let narrow = |new: u32| Some(u64::from(new));
        for kind in [Type::I32, Type::U32] {
            let with = |action: fn(u64) -> Action| apply(kind, action(v.into()), old);
            prop_assert_eq!(with(Action::Set), narrow(v));
            prop_assert_eq!(with(Action::Add), narrow((o as i32).wrapping_add(v as i32) as u32));
            prop_assert_eq!(with(Action::And), narrow(o & v));
            prop_assert_eq!(with(Action::Or), narrow(o | v));
            prop_assert_eq!(with(Action::Xor), narrow(o ^ v));
            for expect in [x, o] {
                let swap = apply(kind, Action::CompareSwap { expect: expect.into(), swap: v.into() }, old);
                prop_assert_eq!(swap, if expect == o { narrow(v) } else { None });
            }
        }
        for kind in [Type::I64, Type::U64] {
            let with = |action: fn(u64) -> Action| apply(kind, action(value), old);
            prop_assert_eq!(with(Action::Set), Some(value));
            prop_assert_eq!(with(Action::Add), Some((old as i64).wrapping_add(value as i64) as u64));
            prop_assert_eq!(with(Action::And), Some(old & value));
            prop_assert_eq!(with(Action::Or), Some(old | value));
            prop_assert_eq!(with(Action::Xor), Some(old ^ value));
            for expect in [other, old] {
                let swap = apply(kind, Action::CompareSwap { expect, swap: value }, old);
                prop_assert_eq!(swap, (expect == old).then_some(value));
            }
        }
        for kind in Type::ALL {
            prop_assert_eq!(apply(kind, Action::Fetch, old), None);
        }
        let single = f32::from_bits(v).to_bits();
        prop_assert_eq!(apply(Type::F32, Action::Set(single.into()), old), narrow(single));
        prop_assert_eq!(apply(Type::F64, Action::Set(value), old), Some(value));
        let same = |a: u64, b: f64| a == b.to_bits() || f64::from_bits(a).is_nan() && b.is_nan();
        let sum = apply(Type::F64, Action::Add(value), old).unwrap();
        prop_assert!(same(sum, f64::from_bits(old) + f64::from_bits(value)));
        let sum = apply(Type::F32, Action::Add(single.into()), old).unwrap();
        let expected = f32::from_bits(old as u32) + f32::from_bits(single);
        prop_assert!(sum == u64::from(expected.to_bits()) || f32::from_bits(sum as u32).is_nan() && expected.is_nan());
    }

    #[test]
    fn signals_change_words_as_they_say(old: u64, value: u64) {
        let signal = |op, width: Width| Update::new(op, word(width), value & width.mask()).unwrap().apply(old);
        prop_assert_eq!(signal(SignalOp::Set, Width::Eight), Some(value));
        prop_assert_eq!(signal(SignalOp::Add, Width::Eight), Some(old.wrapping_add(value)));
        prop_assert_eq!(signal(SignalOp::Max, Width::Eight), (value > old).then_some(value));
        let (o, v) = (old as u32, value as u32);
        prop_assert_eq!(signal(SignalOp::Set, Width::Four), Some(v.into()));
        prop_assert_eq!(signal(SignalOp::Add, Width::Four), Some(o.wrapping_add(v).into()));
        prop_assert_eq!(signal(SignalOp::Max, Width::Four), (v > o).then_some(v.into()));
    }

    #[test]
    fn each_request_is_executed_once_however_often_it_is_sent(seed: u64) {
        let mut world = Lossy::new(seed);
        for _ in 0..600 {
            world.step();
        }
        world.finish();
    }
}

#[test]
fn there_is_an_atomic_of_each_type_that_the_standard_has() {
    let fits = |kind, action, fetches| Atomic::new(kind, action, fetches).is_some();
    for kind in Type::ALL {
        let integer = !matches!(kind, Type::F32 | Type::F64);
        assert!(fits(kind, Action::Fetch, true) && !fits(kind, Action::Fetch, false));
        for fetches in [false, true] {
            assert!(fits(kind, Action::Set(1), fetches));
            assert!(fits(kind, Action::Add(1), fetches));
            for action in [Action::And(1), Action::Or(1), Action::Xor(1)] {
                assert_eq!(fits(kind, action, fetches), integer, "{kind:?} {action:?}");
            }
            let swap = Action::CompareSwap { expect: 1, swap: 2 };
            assert_eq!(fits(kind, swap, fetches), integer && fetches);
        }
        let wide = 1 << 32;
        for action in [Action::Set(wide), Action::Add(wide), Action::CompareSwap { expect: wide, swap: 0 }] {
            let holds =
                kind.width() == Width::Eight && (integer || !matches!(action, Action::CompareSwap { .. }));
            assert_eq!(fits(kind, action, true), holds, "{kind:?} {action:?}");
        }
    }
    let reads = |op| Update::new(op, word(Width::Four), 0).unwrap().reads();
    assert_eq!([SignalOp::Set, SignalOp::Add, SignalOp::Max].map(reads), [false, true, true]);
    assert_eq!(Update::new(SignalOp::Set, word(Width::Four), 1 << 32), None);
}

fn add(value: u64) -> Atomic {
    Atomic::new(Type::U64, Action::Add(value), true).unwrap()
}

fn reply(request: &Request, value: u64) -> Reply {
    Reply { stream: stream(), slot: request.slot, outcome: Outcome::Done(value) }
}

#[test]
fn slots_are_as_many_as_there_are() {
    let mut calls = Calls::new(stream(), planted());
    assert_eq!(calls.begin(word(Width::Four), add(1)), Err(Refused::Width));
    let all: Vec<_> = (0..RMA_CALLS_MAX).map(|_| calls.begin(word(Width::Eight), add(1)).unwrap()).collect();
    assert_eq!(calls.begin(word(Width::Eight), add(1)), Err(Refused::Busy));
    assert_eq!((calls.len(), calls.iter().count()), (RMA_CALLS_MAX as u32, RMA_CALLS_MAX));
    assert_eq!(calls.on_reply(&reply(&all[9], 5)), Ok(Answer::First(all[9], Outcome::Done(5))));
    assert_eq!(calls.on_reply(&reply(&all[9], 5)), Ok(Answer::Again));
    assert_eq!(calls.begin(word(Width::Eight), add(2)), Err(Refused::Busy), "its value is to be collected");
    assert_eq!(calls.len(), RMA_CALLS_MAX as u32 - 1);
    calls.collected(all[9].slot);
    let again = calls.begin(word(Width::Eight), add(2)).unwrap();
    calls.collected(all[9].slot);
    assert_eq!((again.slot.number(), again.slot.generation()), (9, 2));
    assert_eq!(calls.on_reply(&reply(&all[9], 5)), Ok(Answer::Again), "of an earlier use");
    let never = Reply { stream: stream(), slot: Slot::new(9, 3).unwrap(), outcome: Outcome::Refused };
    assert_eq!(calls.on_reply(&never), Err(Fault::Slot { slot: 9, generation: 3 }));
    let set = Atomic::new(Type::U32, Action::Set(1), false).unwrap();
    calls.collected(all[0].slot);
    assert_eq!(calls.begin(word(Width::Eight), add(2)), Err(Refused::Busy), "given up, and not answered");
    calls.on_reply(&reply(&all[0], 0)).unwrap();
    let quiet = calls.begin(word(Width::Four), set).unwrap();
    assert_eq!(calls.on_reply(&reply(&quiet, 1)), Err(Fault::Reply(1)), "nobody asked for a value");
    assert!(!calls.is_empty());
}

#[test]
fn a_slot_waits_for_copies_of_its_request() {
    let mut calls = Calls::new(stream(), planted());
    let first = calls.begin(word(Width::Eight), add(1)).unwrap();
    assert_eq!(calls.again(first.slot), Some(first));
    calls.on_reply(&reply(&first, 0)).unwrap();
    calls.collected(first.slot);
    assert_eq!((calls.again(first.slot), calls.len()), (None, 1), "answered, and a copy is under way");
    assert_ne!(calls.begin(word(Width::Eight), add(1)).unwrap().slot.number(), first.slot.number());
    calls.on_copy_gone(first.slot);
    let other = calls.iter().next().copied().unwrap();
    let copies = (0..300).filter(|_| calls.again(other.slot).is_some());
    assert_eq!(copies.count(), 255, "no more are remembered");
    assert_eq!(calls.begin(word(Width::Eight), add(1)).unwrap().slot.number(), first.slot.number());
}

#[test]
fn uses_out_of_place_are_not_executed() {
    let mut served = Served::new(planted());
    let request = |generation| {
        Request::new(stream(), Slot::new(3, generation).unwrap(), word(Width::Eight), add(1)).unwrap()
    };
    let never = |_: &Request| -> Outcome { panic!("it is executed") };
    for generation in [2, 3, 1 << 14] {
        assert_eq!(served.serve(&request(generation), never), Err(Fault::Slot { slot: 3, generation }));
    }
    assert!(matches!(
        served.serve(&request(0), never),
        Ok(Service::Again(Reply { outcome: Outcome::Refused, .. }))
    ));
    for generation in 1..=5 {
        let now = served.serve(&request(generation), |_| Outcome::Done(generation.into()));
        assert_eq!(now, Ok(Service::Now(reply(&request(generation), generation.into()))));
    }
    assert_eq!(served.serve(&request(5), never), Ok(Service::Again(reply(&request(5), 5))));
    assert_eq!(served.serve(&request(4), never), Ok(Service::Past));
    let set = Atomic::new(Type::U64, Action::Set(1), false).unwrap();
    let quiet = Request::new(stream(), Slot::new(4, 1).unwrap(), word(Width::Eight), set).unwrap();
    assert_eq!(
        served.serve(&quiet, |_| Outcome::Done(9)),
        Ok(Service::Now(reply(&quiet, 0))),
        "not asked for"
    );
}

/// A network that loses and reorders, as far as paths that end may: whoever sends again knows that the message before is gone
/// or has come, but not which, and nothing of the reply.
struct Lossy {
    calls: Calls,
    served: Served,
    value: u64,
    /// What each found, by the number it added.
    executed: BTreeMap<u64, u64>,
    asked: u64,
    answered: u64,
    /// Whose values are known and not collected.
    known: Vec<Slot>,
    /// Requests under way, and whether each is a copy.
    requests: Vec<(Request, bool)>,
    replies: Vec<Reply>,
    random: u64,
}

impl Lossy {
    fn new(seed: u64) -> Self {
        let (calls, served) = (Calls::new(stream(), planted()), Served::new(planted()));
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
                if let Ok(request) = self.calls.begin(word(Width::Eight), add(self.asked + 1)) {
                    self.asked += 1;
                    self.requests.push((request, false));
                    let kept = self.known.iter().any(|slot| slot.number() == request.slot.number());
                    assert!(!kept, "the value there is not collected");
                    // Nobody wants this one.
                    if self.asked.is_multiple_of(8) {
                        self.calls.collected(request.slot);
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
        let service = self.served.serve(&request, |request| {
            let Action::Add(which) = request.atomic().action() else { panic!() };
            assert_eq!(executed.insert(which, *value), None, "executed once");
            let old = *value;
            *value = request.atomic().apply(old, Mutant::NONE).unwrap();
            Outcome::Done(old)
        });
        match service.unwrap() {
            Service::Now(reply) | Service::Again(reply) => self.replies.push(reply),
            Service::Past => {}
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
        if let Answer::First(request, outcome) = self.calls.on_reply(&reply).unwrap() {
            let Action::Add(which) = request.atomic().action() else { panic!() };
            assert_eq!(outcome, Outcome::Done(self.executed[&which]), "by its own reply");
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
            self.calls.collected(slot);
        }
    }

    /// Half of all that is under way is lost, and what is not answered is sent again unless its message is still under way.
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
                let request = self.calls.again(slot).unwrap();
                self.requests.push((request, true));
            }
        }
    }

    fn finish(&mut self) {
        for turn in 0_u32.. {
            if self.answered == self.asked {
                break;
            }
            assert!(turn < 100_000, "nobody answers");
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
        let all = (0..RMA_CALLS_MAX).all(|_| self.calls.begin(word(Width::Eight), add(1)).is_ok());
        assert!(all, "each place is there again");
        assert_eq!((self.executed.len() as u64, self.value), (self.asked, self.asked * (self.asked + 1) / 2));
    }
}
