//! The rules of the cache: one by one, line by line of what it must hold, and whatever happens in whatever order.

mod bounds;
mod model;
mod rules;
mod serving;

use std::vec::Vec;

use super::key::{MemorySpace, RegistrationKey, RegistrationPurpose, RegistrationRights, RegistrationScope};
use super::*;

const KEEP: IdleLimit = IdleLimit { bytes: 1 << 40, entries: 1000 };

fn cache_of(entries: usize, idle: IdleLimit) -> PinDownCache {
    PinDownCache::new(RegistrationConfig { entries, idle, widen: None })
}

/// One that keeps what nobody uses.
fn keeping() -> PinDownCache {
    cache_of(1000, KEEP)
}

fn span(start: u64, len: u64) -> ByteSpan {
    ByteSpan::new(start, len).unwrap()
}

fn host(scope: RegistrationScope) -> RegistrationKey {
    RegistrationKey {
        scope,
        memory: MemorySpace::Host,
        purpose: RegistrationPurpose::Payload,
        rights: RegistrationRights::WRITE,
    }
}

/// Asks, and registers what there is not.
fn get(cache: &mut PinDownCache, key: &RegistrationKey, span: ByteSpan) -> RegistrationPin {
    match cache.request_registration(key, span).unwrap() {
        RegistrationLookup::Hit(pin) => pin,
        RegistrationLookup::Register(register) => cache.on_registered(register.id).unwrap().pin,
        other => unreachable!("{other:?}"),
    }
}

/// Asks for what there is.
fn hit(cache: &mut PinDownCache, key: &RegistrationKey, span: ByteSpan) -> RegistrationPin {
    let RegistrationLookup::Hit(pin) = cache.request_registration(key, span).unwrap() else {
        unreachable!("{span:?} is not there")
    };
    pin
}

/// Asks for what there is not.
fn miss(cache: &mut PinDownCache, key: &RegistrationKey, span: ByteSpan) -> RegisterCommand {
    let RegistrationLookup::Register(register) = cache.request_registration(key, span).unwrap() else {
        unreachable!("{span:?} is there")
    };
    register
}

fn pending(cache: &mut PinDownCache, key: &RegistrationKey, span: ByteSpan) -> RegistrationWait {
    let RegistrationLookup::Pending(wait) = cache.request_registration(key, span).unwrap() else {
        unreachable!("{span:?} is not coming")
    };
    wait
}

/// Closes what is to be closed.
fn close_all(cache: &mut PinDownCache) -> Vec<EntryId> {
    let mut closed = Vec::new();
    while let Some(close) = cache.poll() {
        cache.on_closed(close.id).unwrap();
        closed.push(close.id);
    }
    closed
}
