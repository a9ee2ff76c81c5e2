//! Waiting requests, late events, scopes that end, and memory that is freed.

use super::*;

#[test]
fn request_waits_for_a_pending_registration() {
    let (mut map, scope) = map_and_scope();
    let key = host(scope);
    let id = miss(&mut map, &key, span(0, 100));
    for part in [span(0, 100), span(20, 30), span(0, 100)] {
        assert_eq!(map.request_registration(&key, part), Ok(RegistrationLookup::Making));
    }
    assert_eq!((map.get(id), map.registration_count()), (None, 1));
    let maker = map.on_made(id, 5).unwrap();
    assert_eq!((map.get(id), users(&map, id)), (Some(&5), Some(1)));
    let waited = hit(&mut map, &key, span(0, 100));
    assert_eq!(release_and_close(&mut map, maker), None);
    assert_eq!(map.release_grant(waited), Some((id, Some(5))));
    // A request after the maker has released its use makes its own registration.
    let again = miss(&mut map, &key, span(0, 100));
    map.on_closed(id);
    map.on_failed(again);
    assert!(is_empty(&map));
}

#[test]
fn request_after_a_failed_one_makes_its_own() {
    let (mut map, scope) = map_and_scope();
    let key = host(scope);
    let failed = miss(&mut map, &key, span(0, 100));
    assert_eq!(map.request_registration(&key, span(0, 1)), Ok(RegistrationLookup::Making));
    map.on_failed(failed);
    assert!(is_empty(&map), "the failed registration left an entry");
    let again = miss(&mut map, &key, span(0, 100));
    assert_ne!(again, failed);
    let grant = map.on_made(again, 0).unwrap();
    assert_eq!(release_and_close(&mut map, grant), Some(again));
}

#[test]
fn closing_registration_is_not_found() {
    let (mut map, scope) = map_and_scope();
    let key = host(scope);
    let grant = get(&mut map, &key, span(0, 100));
    let old = grant.entry_id();
    assert_eq!(map.release_grant(grant).map(|close| close.0), Some(old));
    assert_eq!((map.get(old), map.closing, map.registration_count()), (None, 1, 1));
    let again = get(&mut map, &key, span(0, 100));
    assert_ne!(again.entry_id(), old);
    map.on_closed(old);
    assert_eq!(hit(&mut map, &key, span(0, 100)).entry_id(), again.entry_id());
    assert_eq!((users(&map, again.entry_id()), map.registration_count()), (Some(2), 1));
}

#[test]
fn registration_held_in_parts_is_not_found() {
    let (mut map, scope) = map_and_scope();
    let key = host(scope);
    let whole = get(&mut map, &key, span(0, 100));
    let (same, part) = (hit(&mut map, &key, span(0, 100)), hit(&mut map, &key, span(0, 10)));
    let id = whole.entry_id();
    assert_eq!(map.release_grant(whole), None);
    let inner = hit(&mut map, &key, span(5, 5));
    assert_eq!(inner.entry_id(), id, "the first user holds all of its bytes");
    assert_eq!(map.release_grant(inner), None);
    assert_eq!(map.release_grant(same), None);
    for asked in [span(0, 10), span(50, 10), span(0, 100)] {
        let other = miss(&mut map, &key, asked);
        map.on_failed(other);
    }
    assert_eq!(map.get(id), Some(&0));
    assert_eq!(release_and_close(&mut map, part), Some(id));
}

#[test]
fn late_and_misplaced_events_change_nothing() {
    let (mut map, scope) = map_and_scope();
    let key = host(scope);
    let old = miss(&mut map, &key, span(0, 100));
    let forged = |id| RegistrationGrant { id, span: span(0, 100), start_offset: 0 };
    map.on_closed(old);
    assert_eq!((map.revoke_registration(old), map.release_grant(forged(old))), (None, None));
    assert_eq!(map.request_registration(&key, span(0, 100)), Ok(RegistrationLookup::Making));
    let grant = map.on_made(old, 1).unwrap();
    map.on_failed(old);
    map.on_closed(old);
    assert_eq!((map.on_made(old, 2), map.get(old)), (Err(2), Some(&1)));
    assert_eq!(map.release_grant(grant), Some((old, Some(1))));
    map.on_failed(old);
    assert_eq!(
        (map.on_made(old, 3), map.release_grant(forged(old)), map.revoke_registration(old)),
        (Err(3), None, None)
    );
    assert_eq!((map.registration_count(), map.closing), (1, 1));
    map.on_closed(old);
    let next = miss(&mut map, &key, span(0, 100));
    assert_eq!((next.0.slot, next == old), (old.0.slot, false));
    map.on_closed(old);
    map.on_failed(old);
    assert_eq!(
        (map.on_made(old, 4), map.release_grant(forged(old)), map.revoke_registration(old)),
        (Err(4), None, None)
    );
    assert_eq!(map.request_registration(&key, span(0, 100)), Ok(RegistrationLookup::Making));
}

#[test]
fn end_of_a_scope_hides_open_and_pending_registrations() {
    let (mut map, ends) = map_and_scope();
    let stays = map.open_scope().unwrap();
    let used = get(&mut map, &host(ends), span(100, 100));
    let making = miss(&mut map, &host(ends), span(200, 100));
    let fails = miss(&mut map, &host(ends), span(300, 100));
    let other = get(&mut map, &host(stays), span(0, 100));
    let other_making = miss(&mut map, &host(stays), span(200, 100));
    map.end_scope(ends);
    for asked in [span(100, 100), span(200, 1), span(500, 1)] {
        assert_eq!(map.request_registration(&host(ends), asked), Err(RegistrationError::Ended(ends)));
    }
    assert_eq!(map.spans.len(), 2);
    assert_eq!(hit(&mut map, &host(stays), span(0, 100)).entry_id(), other.entry_id());
    assert_eq!(map.request_registration(&host(stays), span(200, 100)), Ok(RegistrationLookup::Making));
    // Pending registrations are completed, and closed with their last user.
    let made = map.on_made(making, 7).unwrap();
    map.on_failed(fails);
    for grant in [made, used] {
        let id = grant.entry_id();
        assert_eq!(release_and_close(&mut map, grant), Some(id));
    }
    assert_eq!(map.registration_count(), 2);
    map.on_failed(other_making);
}

#[test]
fn freed_memory_is_found_in_no_scope() {
    let (mut map, first) = map_and_scope();
    let scopes = [first, map.open_scope().unwrap(), map.open_scope().unwrap(), map.open_scope().unwrap()];
    let device = MemorySpace::Device { device: 1 };
    let mut held = Vec::new();
    let mut making = Vec::new();
    // The third scope has none.
    let scopes = [scopes[0], scopes[1], scopes[3]];
    for scope in scopes {
        for rights in [RegistrationRights::LOCAL, RegistrationRights::READ, RegistrationRights::ALL] {
            let key = RegistrationKey { rights, ..host(scope) };
            for part in
                [span(0, 100), span(0, 101), span(150, 10), span(199, 2), span(200, 50), span(90, 200)]
            {
                let id = miss(&mut map, &key, part);
                held.push(map.on_made(id, 0).unwrap());
            }
            making.push(miss(&mut map, &key, span(180, 400)));
            making.push(miss(&mut map, &key, span(300, 400)));
        }
        held.push(get(&mut map, &RegistrationKey { memory: device, ..host(scope) }, span(100, 100)));
    }
    let all = map.registration_count();
    map.forget_memory(MemorySpace::Host, span(100, 100));
    assert_eq!(map.registration_count(), all, "registrations in use stay open");
    for entry in map.entries.iter().map(|(_, entry)| entry) {
        let is_forgotten = entry.key.memory == MemorySpace::Host && entry.span.overlaps(span(100, 100));
        assert_eq!(entry.listed, !is_forgotten, "{entry:?}");
    }
    assert_eq!(map.spans.len(), 3 * (3 * 3 + 1));
    for scope in scopes {
        for part in [span(99, 2), span(150, 10), span(199, 1), span(180, 30)] {
            let id =
                miss(&mut map, &RegistrationKey { rights: RegistrationRights::LOCAL, ..host(scope) }, part);
            map.on_failed(id);
        }
        let device = RegistrationKey { memory: device, ..host(scope) };
        held.extend([hit(&mut map, &host(scope), span(60, 10)), hit(&mut map, &device, span(120, 1))]);
    }
    for (n, id) in making.into_iter().enumerate() {
        if n % 2 == 0 { held.push(map.on_made(id, 0).unwrap()) } else { map.on_failed(id) }
    }
    // A registration that was being made is not listed when it opens, either.
    let again = miss(&mut map, &host(first), span(180, 400));
    for grant in held {
        let _ = release_and_close(&mut map, grant);
    }
    map.on_failed(again);
    assert!(is_empty(&map));
}

#[test]
fn revoked_registration_stays_with_its_users() {
    let (mut map, scope) = map_and_scope();
    let key = host(scope);
    let (grant, other) = (get(&mut map, &key, span(0, 100)), hit(&mut map, &key, span(10, 10)));
    let old = grant.entry_id();
    assert_eq!(
        (map.revoke_registration(old), map.revoke_registration(old), map.get(old)),
        (Some(old.0.slot), None, None)
    );
    let new = get(&mut map, &key, span(0, 100));
    assert_ne!(new.entry_id(), old);
    assert_eq!(map.release_grant(grant), None, "another user holds it");
    assert_eq!(map.release_grant(other), Some((old, None)), "the revoked registration was closed before");
    map.on_closed(old);
    assert_eq!((map.revoke_registration(old), map.registration_count()), (None, 1));
    assert_eq!(hit(&mut map, &key, span(0, 100)).entry_id(), new.entry_id());
}
