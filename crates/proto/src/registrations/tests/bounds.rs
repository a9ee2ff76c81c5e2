//! Limits: of registrations, of idle ones and their bytes, of scopes and of users.

use super::*;
use crate::limits::{REGISTRATION_PINS_MAX, REGISTRATION_SCOPES_MAX};

/// Uses bytes once and lets them go.
fn touch(cache: &mut Registrations, key: &Key, part: Span) -> EntryId {
    let pin = get(cache, key, part);
    let id = pin.entry();
    cache.unpin(pin).unwrap();
    id
}

#[test]
fn by_default_what_nobody_uses_is_closed_at_once() {
    for idle in [Idle::default(), Idle { bytes: 1 << 40, entries: 0 }, Idle { bytes: 0, entries: 10 }] {
        let mut cache = cache_of(10, idle);
        let key = host(cache.open().unwrap());
        let id = touch(&mut cache, &key, span(0, 1));
        assert_eq!((close_all(&mut cache), cache.usage().entries), (Vec::from([id]), 0));
    }
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut cache = cache_of(10, Idle { bytes: 1000, entries: 3 });
    let key = host(cache.open().unwrap());
    let ids: Vec<_> = (0..3).map(|n| touch(&mut cache, &key, span(n * 100, 100))).collect();
    // The first is used again, and the second is in use.
    assert_eq!(touch(&mut cache, &key, span(0, 10)), ids[0]);
    let used = hit(&mut cache, &key, span(100, 100));
    let more: Vec<_> = (3..5).map(|n| touch(&mut cache, &key, span(n * 100, 100))).collect();
    assert_eq!(close_all(&mut cache), [ids[2]]);
    cache.unpin(used).unwrap();
    assert_eq!(close_all(&mut cache), [ids[0]]);
    assert_eq!((cache.usage().idle, cache.usage().idle_bytes, cache.counts().evicted), (3, 300, 2));
    cache.set_idle(Idle { bytes: 250, entries: 3 });
    assert_eq!(close_all(&mut cache), [more[0]]);
    // What is longer than all that may be kept pushes nothing else out.
    let long = touch(&mut cache, &key, span(0, 251));
    assert_eq!((close_all(&mut cache), cache.usage().idle), (Vec::from([long]), 2));
}

#[test]
fn whatever_the_limits_become_they_hold_at_once() {
    let mut cache = cache_of(100, KEEP);
    let key = host(cache.open().unwrap());
    let pins: Vec<_> = (0..20).map(|n| get(&mut cache, &key, span(n * 100, 100))).collect();
    let mut used = Vec::new();
    for (n, pin) in pins.into_iter().enumerate() {
        if n % 4 == 0 { used.push(pin) } else { cache.unpin(pin).unwrap() }
    }
    for (idle, left) in
        [((1 << 40, 10), 10), ((750, 10), 7), ((750, 3), 3), ((1 << 40, 1000), 3), ((99, 3), 0)]
    {
        cache.set_idle(Idle { bytes: idle.0, entries: idle.1 });
        assert_eq!((cache.usage().idle, cache.usage().idle_bytes), (left, 100 * left as u64));
    }
    cache.set_idle(KEEP);
    let _ = close_all(&mut cache);
    assert_eq!(cache.usage().entries, used.len());
    // Fewer entries than are in use: each goes as it falls idle, until there are no more.
    cache.set_entries(2);
    while let Some(pin) = used.pop() {
        cache.unpin(pin).unwrap();
        let _ = close_all(&mut cache);
        assert!(cache.usage().entries == used.len().max(2), "{:?}", cache.usage());
    }
    assert_eq!(cache.config().entries, 2);
}

#[test]
fn a_full_cache_makes_room_of_what_is_idle_and_of_nothing_else() {
    let mut cache = cache_of(2, KEEP);
    let key = host(cache.open().unwrap());
    let idle = touch(&mut cache, &key, span(0, 10));
    let used = get(&mut cache, &key, span(10, 10));
    assert_eq!(cache.ask(&key, span(20, 10)), Ok(Asked::Later));
    assert_eq!(cache.ask(&key, span(30, 10)), Ok(Asked::Later), "one at a time");
    assert_eq!(cache.poll().map(|close| close.id), Some(idle));
    assert_eq!(cache.ask(&key, span(20, 10)), Ok(Asked::Later), "the NIC still has it");
    assert_eq!((cache.closed(idle), cache.poll()), (Ok(()), None));
    let register = miss(&mut cache, &key, span(20, 10));
    assert_eq!(cache.ask(&key, span(30, 10)), Err(AskError::Full(2)));
    let other = cache.registered(register.id).unwrap().pin;
    assert_eq!(cache.ask(&key, span(30, 10)), Err(AskError::Full(2)));
    assert_eq!(cache.poll(), None);
    assert_eq!((cache.pins(used.entry()), cache.pins(other.entry())), (Some(1), Some(1)));
    let _again = hit(&mut cache, &key, span(25, 1));
}

#[test]
fn no_cache_is_larger_than_the_limit() {
    let mut cache = cache_of(usize::MAX, KEEP);
    let key = host(cache.open().unwrap());
    for n in 0..REGISTRATIONS_MAX as u64 {
        let _coming = miss(&mut cache, &key, span(n, 1));
    }
    assert_eq!(cache.ask(&key, span(1 << 20, 1)), Err(AskError::Full(REGISTRATIONS_MAX)));
}

#[test]
fn scopes_and_users_have_limits() {
    let mut cache = keeping();
    let scopes: Vec<_> = (0..REGISTRATION_SCOPES_MAX).map(|_| cache.open().unwrap()).collect();
    assert_eq!(cache.open(), Err(TooManyScopes));
    cache.end(scopes[7]).unwrap();
    let key = host(cache.open().unwrap());
    assert_eq!(cache.open(), Err(TooManyScopes));
    let id = get(&mut cache, &key, span(0, 10)).entry();
    cache.entries.get_mut(id.0).unwrap().pins = REGISTRATION_PINS_MAX;
    assert_eq!(cache.ask(&key, span(0, 10)), Err(AskError::Pins(REGISTRATION_PINS_MAX)));
    assert_eq!(cache.counts().hits, 0);
}

#[test]
fn what_happened_is_counted() {
    let mut cache = keeping();
    let key = host(cache.open().unwrap());
    let register = miss(&mut cache, &key, span(0, 10));
    let _wait = pending(&mut cache, &key, span(0, 10));
    let _pin = cache.registered(register.id).unwrap();
    let _hit = hit(&mut cache, &key, span(0, 10));
    assert_eq!(cache.counts(), Counts { hits: 1, joined: 1, misses: 1, evicted: 0 });
}
