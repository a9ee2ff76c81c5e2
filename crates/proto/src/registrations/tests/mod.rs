//! The rules of the map: one by one, line by line of what it must hold, and whatever happens in whatever order.

mod bounds;
mod model;
mod rules;
mod serving;

use std::vec::Vec;

use super::key::{MemorySpace, RegistrationKey, RegistrationRights, RegistrationScope};
use super::*;

/// The registrations of these tests are numbers, in the order of what was made.
type Map = RegionMap<u32>;

fn span(start: u64, len: u64) -> ByteSpan {
    ByteSpan::new(start, len).unwrap()
}

fn host(scope: RegistrationScope) -> RegistrationKey {
    RegistrationKey { scope, memory: MemorySpace::Host, rights: RegistrationRights::WRITE }
}

/// A map with room for many, and a scope of it.
fn map_and_scope() -> (Map, RegistrationScope) {
    let mut map = Map::new(1000);
    let scope = map.open_scope().unwrap();
    (map, scope)
}

/// Asks, and makes what is missing.
fn get(map: &mut Map, key: &RegistrationKey, span: ByteSpan) -> RegistrationGrant {
    match map.request_registration(key, span).unwrap() {
        RegistrationLookup::Hit(grant) => grant,
        RegistrationLookup::Make(id) => map.on_made(id, id.0.slot).unwrap(),
        other => unreachable!("{other:?}"),
    }
}

/// Asks for what an open registration contains.
fn hit(map: &mut Map, key: &RegistrationKey, span: ByteSpan) -> RegistrationGrant {
    let RegistrationLookup::Hit(grant) = map.request_registration(key, span).unwrap() else {
        unreachable!("{span:?} is not found")
    };
    grant
}

/// Asks for what no registration contains.
fn miss(map: &mut Map, key: &RegistrationKey, span: ByteSpan) -> EntryId {
    let RegistrationLookup::Make(id) = map.request_registration(key, span).unwrap() else {
        unreachable!("{span:?} is found")
    };
    id
}

fn users(map: &Map, id: EntryId) -> Option<u32> {
    map.entries.get(id.0).map(|entry| entry.users)
}

/// Releases, and closes if that was the last use.
fn release_and_close(map: &mut Map, grant: RegistrationGrant) -> Option<EntryId> {
    let (id, _) = map.release_grant(grant)?;
    map.on_closed(id);
    Some(id)
}

fn is_empty(map: &Map) -> bool {
    map.registration_count() == 0 && map.spans.is_empty() && map.closing == 0
}
