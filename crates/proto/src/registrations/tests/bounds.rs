//! Limits: of registrations, of scopes and of users.

use super::*;

#[test]
fn a_full_map_waits_for_a_close() {
    let mut map = Map::new(2);
    let key = host(map.open_scope().unwrap());
    let first = get(&mut map, &key, span(0, 10));
    let second = miss(&mut map, &key, span(10, 10));
    assert_eq!(map.request_registration(&key, span(20, 10)), Err(RegistrationError::Full(2)));
    let inner = hit(&mut map, &key, span(5, 1));
    let _second = map.on_made(second, 0).unwrap();
    assert_eq!(map.release_grant(first), None);
    assert_eq!(map.request_registration(&key, span(20, 10)), Err(RegistrationError::Full(2)));
    let (id, _) = map.release_grant(inner).unwrap();
    assert_eq!(
        map.request_registration(&key, span(20, 10)),
        Ok(RegistrationLookup::Later),
        "the NIC has not closed the registration yet"
    );
    map.on_closed(id);
    let third = miss(&mut map, &key, span(20, 10));
    assert_eq!(map.request_registration(&key, span(30, 10)), Err(RegistrationError::Full(2)));
    map.on_failed(third);
    let _third = miss(&mut map, &key, span(30, 10));
}

#[test]
fn map_size_is_bounded_by_the_limit() {
    let mut map = Map::new(usize::MAX);
    let key = host(map.open_scope().unwrap());
    for n in 0..REGISTRATIONS_MAX as u64 {
        let _making = miss(&mut map, &key, span(n, 1));
    }
    let full = RegistrationError::Full(REGISTRATIONS_MAX);
    assert_eq!(map.request_registration(&key, span(1 << 20, 1)), Err(full));
}

#[test]
fn scopes_and_users_have_limits() {
    let mut map = Map::new(1000);
    let scopes: Vec<_> = (0..REGISTRATION_SCOPES_MAX).map(|_| map.open_scope().unwrap()).collect();
    assert_eq!(map.open_scope(), Err(RegistrationError::Scopes));
    map.end_scope(scopes[7]);
    let key = host(map.open_scope().unwrap());
    assert_eq!(map.open_scope(), Err(RegistrationError::Scopes));
    let id = get(&mut map, &key, span(0, 10)).entry_id();
    map.entries.get_mut(id.0).unwrap().users = REGISTRATION_USERS_MAX;
    let refused = RegistrationError::Users(REGISTRATION_USERS_MAX);
    assert_eq!(map.request_registration(&key, span(0, 10)), Err(refused));
    map.last_scope = u64::MAX;
    map.end_scope(scopes[8]);
    assert_eq!(map.open_scope(), Err(RegistrationError::Scopes), "all scope numbers are used up");
}

/// A request reserves the places in the tables, so that no later step of the registration allocates.
#[test]
fn only_requests_allocate() {
    let (mut map, scope) = map_and_scope();
    let key = host(scope);
    let ids: Vec<_> = (0..40).map(|n| miss(&mut map, &key, span(n * 10, 10))).collect();
    let room = (map.spans.room(), map.entries.room());
    let mut held: Vec<_> = ids.into_iter().map(|id| map.on_made(id, 0).unwrap()).collect();
    held.extend((0..40).map(|n| hit(&mut map, &key, span(n * 10 + 1, 3))));
    map.forget_memory(MemorySpace::Host, span(0, 30));
    for grant in held {
        let _ = release_and_close(&mut map, grant);
    }
    assert!(is_empty(&map));
    assert_eq!((map.spans.room(), map.entries.room()), room);
}
