//! The rules of the cache: one by one, line by line of what it must hold, and whatever happens in whatever order.

mod bounds;
mod model;
mod rules;
mod serving;

use std::vec::Vec;

use super::key::{Key, Memory, Purpose, Rights, Scope};
use super::*;
use crate::mutant::planted;

const KEEP: Idle = Idle { bytes: 1 << 40, entries: 1000 };

fn cache_of(entries: usize, idle: Idle) -> Registrations {
    Registrations::new(Config { entries, idle, widen: None }, planted())
}

/// One that keeps what nobody uses.
fn keeping() -> Registrations {
    cache_of(1000, KEEP)
}

fn span(start: u64, len: u64) -> Span {
    Span::new(start, len).unwrap()
}

fn host(scope: Scope) -> Key {
    Key { scope, memory: Memory::Host, purpose: Purpose::Payload, rights: Rights::WRITE }
}

/// Asks, and registers what there is not.
fn get(cache: &mut Registrations, key: &Key, span: Span) -> Pin {
    match cache.ask(key, span).unwrap() {
        Asked::Hit(pin) => pin,
        Asked::Register(register) => cache.registered(register.id).unwrap().pin,
        other => unreachable!("{other:?}"),
    }
}

/// Asks for what there is.
fn hit(cache: &mut Registrations, key: &Key, span: Span) -> Pin {
    let Asked::Hit(pin) = cache.ask(key, span).unwrap() else { unreachable!("{span:?} is not there") };
    pin
}

/// Asks for what there is not.
fn miss(cache: &mut Registrations, key: &Key, span: Span) -> Register {
    let Asked::Register(register) = cache.ask(key, span).unwrap() else { unreachable!("{span:?} is there") };
    register
}

fn pending(cache: &mut Registrations, key: &Key, span: Span) -> Wait {
    let Asked::Pending(wait) = cache.ask(key, span).unwrap() else { unreachable!("{span:?} is not coming") };
    wait
}

/// Closes what is to be closed.
fn close_all(cache: &mut Registrations) -> Vec<EntryId> {
    let mut closed = Vec::new();
    while let Some(close) = cache.poll() {
        cache.closed(close.id).unwrap();
        closed.push(close.id);
    }
    closed
}
