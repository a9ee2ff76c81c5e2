//! Limits: of registrations, of idle ones and their bytes, of scopes and of users.

use super::*;
use crate::limits::{REGISTRATION_PINS_MAX, REGISTRATION_SCOPES_MAX};

/// Uses bytes once and lets them go.
fn touch(cache: &mut PinDownCache, key: &RegistrationKey, part: ByteSpan) -> EntryId {
    let pin = get(cache, key, part);
    let id = pin.entry_id();
    cache.release_pin(pin).unwrap();
    id
}

#[test]
fn by_default_what_nobody_uses_is_closed_at_once() {
    for idle in
        [IdleLimit::default(), IdleLimit { bytes: 1 << 40, entries: 0 }, IdleLimit { bytes: 0, entries: 10 }]
    {
        let mut cache = cache_of(10, idle);
        let key = host(cache.open_scope().unwrap());
        let id = touch(&mut cache, &key, span(0, 1));
        assert_eq!((close_all(&mut cache), cache.current_usage().entries), (Vec::from([id]), 0));
    }
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut cache = cache_of(10, IdleLimit { bytes: 1000, entries: 3 });
    let key = host(cache.open_scope().unwrap());
    let ids: Vec<_> = (0..3).map(|n| touch(&mut cache, &key, span(n * 100, 100))).collect();
    // The first is used again, and the second is in use.
    assert_eq!(touch(&mut cache, &key, span(0, 10)), ids[0]);
    let used = hit(&mut cache, &key, span(100, 100));
    let more: Vec<_> = (3..5).map(|n| touch(&mut cache, &key, span(n * 100, 100))).collect();
    assert_eq!(close_all(&mut cache), [ids[2]]);
    cache.release_pin(used).unwrap();
    assert_eq!(close_all(&mut cache), [ids[0]]);
    assert_eq!(
        (cache.current_usage().idle, cache.current_usage().idle_bytes, cache.event_counts().evicted),
        (3, 300, 2)
    );
    cache.set_idle(IdleLimit { bytes: 250, entries: 3 });
    assert_eq!(close_all(&mut cache), [more[0]]);
    // What is longer than all that may be kept pushes nothing else out.
    let long = touch(&mut cache, &key, span(0, 251));
    assert_eq!((close_all(&mut cache), cache.current_usage().idle), (Vec::from([long]), 2));
}

#[test]
fn whatever_the_limits_become_they_hold_at_once() {
    let mut cache = cache_of(100, KEEP);
    let key = host(cache.open_scope().unwrap());
    let pins: Vec<_> = (0..20).map(|n| get(&mut cache, &key, span(n * 100, 100))).collect();
    let mut used = Vec::new();
    for (n, pin) in pins.into_iter().enumerate() {
        if n % 4 == 0 { used.push(pin) } else { cache.release_pin(pin).unwrap() }
    }
    for (idle, left) in
        [((1 << 40, 10), 10), ((750, 10), 7), ((750, 3), 3), ((1 << 40, 1000), 3), ((99, 3), 0)]
    {
        cache.set_idle(IdleLimit { bytes: idle.0, entries: idle.1 });
        assert_eq!((cache.current_usage().idle, cache.current_usage().idle_bytes), (left, 100 * left as u64));
    }
    cache.set_idle(KEEP);
    let _ = close_all(&mut cache);
    assert_eq!(cache.current_usage().entries, used.len());
    // Fewer entries than are in use: each goes as it falls idle, until there are no more.
    cache.set_entries(2);
    while let Some(pin) = used.pop() {
        cache.release_pin(pin).unwrap();
        let _ = close_all(&mut cache);
        assert!(cache.current_usage().entries == used.len().max(2), "{:?}", cache.current_usage());
    }
    assert_eq!(cache.config().entries, 2);
}

#[test]
fn a_full_cache_makes_room_of_what_is_idle_and_of_nothing_else() {
    let mut cache = cache_of(2, KEEP);
    let key = host(cache.open_scope().unwrap());
    let idle = touch(&mut cache, &key, span(0, 10));
    let used = get(&mut cache, &key, span(10, 10));
    assert_eq!(cache.request_registration(&key, span(20, 10)), Ok(RegistrationLookup::Later));
    assert_eq!(
        cache.request_registration(&key, span(30, 10)),
        Ok(RegistrationLookup::Later),
        "one at a time"
    );
    assert_eq!(cache.poll().map(|close| close.id), Some(idle));
    assert_eq!(
        cache.request_registration(&key, span(20, 10)),
        Ok(RegistrationLookup::Later),
        "the NIC still has it"
    );
    assert_eq!((cache.on_closed(idle), cache.poll()), (Ok(()), None));
    let register = miss(&mut cache, &key, span(20, 10));
    assert_eq!(cache.request_registration(&key, span(30, 10)), Err(RegistrationError::Full(2)));
    let other = cache.on_registered(register.id).unwrap().pin;
    assert_eq!(cache.request_registration(&key, span(30, 10)), Err(RegistrationError::Full(2)));
    assert_eq!(cache.poll(), None);
    assert_eq!((cache.pin_count(used.entry_id()), cache.pin_count(other.entry_id())), (Some(1), Some(1)));
    let _again = hit(&mut cache, &key, span(25, 1));
}

#[test]
fn no_cache_is_larger_than_the_limit() {
    let mut cache = cache_of(usize::MAX, KEEP);
    let key = host(cache.open_scope().unwrap());
    for n in 0..REGISTRATIONS_MAX as u64 {
        let _coming = miss(&mut cache, &key, span(n, 1));
    }
    assert_eq!(
        cache.request_registration(&key, span(1 << 20, 1)),
        Err(RegistrationError::Full(REGISTRATIONS_MAX))
    );
}

#[test]
fn scopes_and_users_have_limits() {
    let mut cache = keeping();
    let scopes: Vec<_> = (0..REGISTRATION_SCOPES_MAX).map(|_| cache.open_scope().unwrap()).collect();
    assert_eq!(cache.open_scope(), Err(TooManyScopes));
    cache.close_scope(scopes[7]).unwrap();
    let key = host(cache.open_scope().unwrap());
    assert_eq!(cache.open_scope(), Err(TooManyScopes));
    let id = get(&mut cache, &key, span(0, 10)).entry_id();
    cache.entries.get_mut(id.0).unwrap().pins = REGISTRATION_PINS_MAX;
    assert_eq!(
        cache.request_registration(&key, span(0, 10)),
        Err(RegistrationError::Pins(REGISTRATION_PINS_MAX))
    );
    assert_eq!(cache.event_counts().hits, 0);
}

#[test]
fn what_happened_is_counted() {
    let mut cache = keeping();
    let key = host(cache.open_scope().unwrap());
    let register = miss(&mut cache, &key, span(0, 10));
    let _wait = pending(&mut cache, &key, span(0, 10));
    let _pin = cache.on_registered(register.id).unwrap();
    let _hit = hit(&mut cache, &key, span(0, 10));
    assert_eq!(cache.event_counts(), RegistrationCounts { hits: 1, joined: 1, misses: 1, evicted: 0 });
}
