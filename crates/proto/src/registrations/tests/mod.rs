//! The rules of the map: single rules, one per test, and random sequences of calls.

mod bounds;
mod model;
mod rules;
mod serving;

use std::vec::Vec;

use super::key::{MemorySpace, RegistrationKey, RegistrationRights, RegistrationScope};
use super::*;

/// The registrations of these tests are numbers, in the order in which they were made.
type Map = RegionMap<u32>;

fn span(start: u64, len: u64) -> ByteSpan {
    ByteSpan::new(start, len).unwrap()
}

fn host(scope: RegistrationScope) -> RegistrationKey {
    RegistrationKey { scope, memory: MemorySpace::Host, rights: RegistrationRights::WRITE }
}

/// Returns a map with room for many registrations, and a scope of it.
fn map_and_scope() -> (Map, RegistrationScope) {
    let mut map = Map::new(1000);
    let scope = map.open_scope().unwrap();
    (map, scope)
}

/// Requests a registration, and makes it if none serves the request.
fn get(map: &mut Map, key: &RegistrationKey, span: ByteSpan) -> RegistrationGrant {
    match map.request_registration(key, span).unwrap() {
        RegistrationLookup::Hit(grant) => grant,
        RegistrationLookup::Make(id) => map.on_made(id, id.0.slot).unwrap(),
        other => unreachable!("{other:?}"),
    }
}

/// Requests bytes that an open registration contains.
fn hit(map: &mut Map, key: &RegistrationKey, span: ByteSpan) -> RegistrationGrant {
    let RegistrationLookup::Hit(grant) = map.request_registration(key, span).unwrap() else {
        unreachable!("{span:?} is not found")
    };
    grant
}

/// Requests bytes that no registration contains.
fn miss(map: &mut Map, key: &RegistrationKey, span: ByteSpan) -> EntryId {
    let RegistrationLookup::Make(id) = map.request_registration(key, span).unwrap() else {
        unreachable!("{span:?} is found")
    };
    id
}

fn users(map: &Map, id: EntryId) -> Option<u32> {
    map.entries.get(id.0).map(|entry| entry.users)
}

/// Releases a grant, and closes the registration if that was its last use.
fn release_and_close(map: &mut Map, grant: RegistrationGrant) -> Option<EntryId> {
    let (id, _) = map.release_grant(grant)?;
    map.on_closed(id);
    Some(id)
}

fn is_empty(map: &Map) -> bool {
    map.registration_count() == 0 && map.spans.is_empty() && map.closing == 0
}
