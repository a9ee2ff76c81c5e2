//! Those who wait, those who are late, scopes that end and memory that goes.

use super::*;

#[test]
fn who_asks_while_it_is_made_waits_and_is_told() {
    let mut cache = cache_of(10, IdleLimit::NONE);
    let key = host(cache.open_scope().unwrap());
    let register = miss(&mut cache, &key, span(0, 100));
    let waits = [span(0, 100), span(20, 30)].map(|part| pending(&mut cache, &key, part));
    assert!(waits.iter().all(|wait| wait.entry_id() == register.id));
    let waits = waits.map(|wait| match cache.settle_wait(wait).unwrap() {
        RegistrationOutcome::NotYet(wait) => wait,
        other => unreachable!("{other:?}"),
    });
    let done = cache.on_registered(register.id).unwrap();
    assert_eq!((done.waiting, cache.pin_count(register.id)), (2, Some(3)));
    // It is not closed under those who have not asked yet.
    cache.release_pin(done.pin).unwrap();
    assert_eq!(cache.poll(), None);
    for wait in waits {
        assert_eq!(cache.poll(), None);
        let RegistrationOutcome::Ready(pin) = cache.settle_wait(wait).unwrap() else { unreachable!() };
        cache.release_pin(pin).unwrap();
    }
    assert_eq!(close_all(&mut cache), [register.id]);
}

#[test]
fn who_waits_in_vain_is_told_and_who_comes_later_begins_anew() {
    let mut cache = cache_of(10, KEEP);
    let key = host(cache.open_scope().unwrap());
    let register = miss(&mut cache, &key, span(0, 100));
    let waits = [pending(&mut cache, &key, span(0, 1)), pending(&mut cache, &key, span(1, 1))];
    let left = pending(&mut cache, &key, span(2, 1));
    cache.give_up(left).unwrap();
    assert_eq!(cache.on_failed(register.id), Ok(2));
    let again = miss(&mut cache, &key, span(0, 100));
    assert_ne!(again.id, register.id);
    for wait in waits {
        assert_eq!(cache.get(register.id), Some((span(0, 100), RegistrationPhase::Failed)));
        assert_eq!(cache.settle_wait(wait), Ok(RegistrationOutcome::Failed));
    }
    // Nothing of it was at the NIC, so nothing is closed.
    assert_eq!((cache.get(register.id), cache.poll()), (None, None));
    let _pin = cache.on_registered(again.id).unwrap();
    assert_eq!(cache.current_usage().entries, 1);
}

#[test]
fn who_gives_up_holds_nothing() {
    let mut cache = cache_of(10, IdleLimit::NONE);
    let key = host(cache.open_scope().unwrap());
    for before in [true, false] {
        let register = miss(&mut cache, &key, span(0, 100));
        let wait = pending(&mut cache, &key, span(0, 1));
        if before {
            cache.give_up(wait).unwrap();
            let done = cache.on_registered(register.id).unwrap();
            assert_eq!(done.waiting, 0);
            cache.release_pin(done.pin).unwrap();
        } else {
            let done = cache.on_registered(register.id).unwrap();
            cache.release_pin(done.pin).unwrap();
            assert_eq!(cache.poll(), None);
            cache.give_up(wait).unwrap();
        }
        assert_eq!(close_all(&mut cache), [register.id]);
    }
}

#[test]
fn what_is_being_closed_is_not_found() {
    let mut cache = cache_of(10, IdleLimit::NONE);
    let key = host(cache.open_scope().unwrap());
    let pin = get(&mut cache, &key, span(0, 100));
    let old = pin.entry_id();
    cache.release_pin(pin).unwrap();
    let again = miss(&mut cache, &key, span(0, 100));
    assert_eq!(
        (cache.get(old), cache.current_usage().closing),
        (Some((span(0, 100), RegistrationPhase::Leaving)), 1)
    );
    let _pin = cache.on_registered(again.id).unwrap();
    let close = cache.poll().unwrap();
    assert_eq!((close.id, close.key, close.span), (old, key, span(0, 100)));
    assert_eq!(hit(&mut cache, &key, span(0, 100)).entry_id(), again.id);
    cache.on_closed(old).unwrap();
    assert_eq!(hit(&mut cache, &key, span(0, 100)).entry_id(), again.id);
    assert_eq!((cache.poll(), cache.pin_count(again.id)), (None, Some(3)));
}

#[test]
fn late_and_misplaced_news_are_refused() {
    let mut cache = cache_of(10, IdleLimit::NONE);
    let key = host(cache.open_scope().unwrap());
    let register = miss(&mut cache, &key, span(0, 100));
    let old = register.id;
    assert_eq!(cache.on_closed(old), Err(RegistrationEventError::State(RegistrationPhase::Registering)));
    let pin = cache.on_registered(old).unwrap().pin;
    let ready = RegistrationEventError::State(RegistrationPhase::Ready);
    assert_eq!((cache.on_registered(old), cache.on_failed(old)), (Err(ready), Err(ready)));
    assert_eq!(cache.on_closed(old), Err(ready));
    assert_eq!(cache.settle_wait(RegistrationWait(old)), Err(RegistrationEventError::NoEntry));
    assert_eq!(cache.give_up(RegistrationWait(old)), Err(RegistrationEventError::NoEntry));
    cache.release_pin(pin).unwrap();
    assert_eq!(
        cache.release_pin(RegistrationPin(old)),
        Err(RegistrationEventError::State(RegistrationPhase::Leaving))
    );
    assert_eq!(
        cache.on_closed(old),
        Err(RegistrationEventError::State(RegistrationPhase::Leaving)),
        "nobody was told to"
    );
    assert_eq!(close_all(&mut cache), [old]);
    let next = miss(&mut cache, &key, span(0, 100));
    assert_eq!((next.id.0.slot, next.id == old), (old.0.slot, false));
    for late in [
        cache.on_closed(old),
        cache.on_registered(old).map(drop),
        cache.on_failed(old).map(drop),
        cache.release_pin(RegistrationPin(old)),
    ] {
        assert_eq!(late, Err(RegistrationEventError::NoEntry));
    }
    assert_eq!(cache.get(next.id), Some((span(0, 100), RegistrationPhase::Registering)));
}

#[test]
fn a_scope_takes_its_registrations_along_as_they_fall_idle() {
    let mut cache = keeping();
    let (ends, stays) = (cache.open_scope().unwrap(), cache.open_scope().unwrap());
    let idle = get(&mut cache, &host(ends), span(0, 100));
    let used = get(&mut cache, &host(ends), span(100, 100));
    let coming = miss(&mut cache, &host(ends), span(200, 100));
    let wait = pending(&mut cache, &host(ends), span(210, 10));
    let fails = miss(&mut cache, &host(ends), span(300, 100));
    let other = get(&mut cache, &host(stays), span(0, 100));
    let (idle_id, other_id) = (idle.entry_id(), other.entry_id());
    cache.release_pin(idle).unwrap();
    cache.release_pin(other).unwrap();
    cache.close_scope(ends).unwrap();
    assert_eq!(close_all(&mut cache), [idle_id]);
    for asked in [span(0, 100), span(100, 100), span(200, 1), span(500, 1)] {
        assert_eq!(cache.request_registration(&host(ends), asked), Err(RegistrationError::Ended(ends)));
    }
    assert_eq!(hit(&mut cache, &host(stays), span(0, 100)).entry_id(), other_id);
    // What was begun is told, and closed once nobody uses it.
    let done = cache.on_registered(coming.id).unwrap();
    let RegistrationOutcome::Ready(waited) = cache.settle_wait(wait).unwrap() else { unreachable!() };
    assert_eq!((done.waiting, cache.on_failed(fails.id), cache.poll()), (1, Ok(0), None));
    for (pin, closes) in [(done.pin, false), (waited, true), (used, true)] {
        let id = pin.entry_id();
        assert!(!cache.is_gone(ends));
        cache.release_pin(pin).unwrap();
        assert_eq!(close_all(&mut cache) == [id], closes);
    }
    assert!(cache.is_gone(ends) && !cache.is_gone(stays));
    assert_eq!((cache.current_usage().entries, cache.current_usage().listed), (1, 1));
}

#[test]
fn memory_that_is_gone_is_found_in_no_scope() {
    let mut cache = keeping();
    let scopes = [cache.open_scope().unwrap(), cache.open_scope().unwrap(), cache.open_scope().unwrap()];
    let device = MemorySpace::Device { device: 1, allocation: None };
    let mut gone = Vec::new();
    for scope in scopes {
        for rights in [RegistrationRights::LOCAL, RegistrationRights::READ] {
            let key = RegistrationKey { rights, ..host(scope) };
            for part in [span(0, 100), span(99, 2), span(150, 10)] {
                let pin = get(&mut cache, &key, part);
                gone.push(pin.entry_id());
                cache.release_pin(pin).unwrap();
            }
            for stays in [span(50, 50), span(200, 50)] {
                let pin = get(&mut cache, &RegistrationKey { rights: RegistrationRights::ALL, ..key }, stays);
                cache.release_pin(pin).unwrap();
            }
        }
        let elsewhere = get(&mut cache, &RegistrationKey { memory: device, ..host(scope) }, span(100, 100));
        cache.release_pin(elsewhere).unwrap();
    }
    let records = get(
        &mut cache,
        &RegistrationKey { purpose: RegistrationPurpose::Records, ..host(scopes[2]) },
        span(100, 1),
    );
    gone.push(records.entry_id());
    cache.release_pin(records).unwrap();
    let pinned = get(&mut cache, &host(scopes[1]), span(120, 20));
    let coming = miss(&mut cache, &host(scopes[1]), span(180, 30));
    gone.retain(|id| cache.get(*id).is_some_and(|(part, _)| part.overlaps(span(100, 100))));
    let all = cache.current_usage().entries;
    cache.forget_memory(MemorySpace::Host, span(100, 100));
    let mut closed = close_all(&mut cache);
    closed.sort_unstable();
    gone.sort_unstable();
    assert_eq!(closed, gone);
    assert_eq!(gone.len(), 13);
    for scope in scopes {
        for part in [span(99, 2), span(120, 1), span(150, 10), span(190, 1)] {
            assert_eq!(
                cache
                    .ready
                    .find_serving(&host(scope), part)
                    .or(cache.coming.find_serving(&host(scope), part)),
                None
            );
        }
        assert!(cache.ready.find_serving(&host(scope), span(60, 10)).is_some());
        assert!(
            cache
                .ready
                .find_serving(&RegistrationKey { memory: device, ..host(scope) }, span(120, 1))
                .is_some()
        );
    }
    let id = pinned.entry_id();
    cache.release_pin(pinned).unwrap();
    let done = cache.on_registered(coming.id).unwrap();
    cache.release_pin(done.pin).unwrap();
    assert_eq!(close_all(&mut cache), [id, coming.id]);
    assert_eq!(cache.current_usage().entries, all - gone.len() - 2);
}

#[test]
fn what_is_hidden_is_not_found_and_stays_with_those_who_use_it() {
    for idle in [IdleLimit::NONE, KEEP] {
        let mut cache = cache_of(10, idle);
        let key = host(cache.open_scope().unwrap());
        let (pin, other) = (get(&mut cache, &key, span(0, 100)), hit(&mut cache, &key, span(10, 10)));
        let old = pin.entry_id();
        cache.hide_entry(old);
        assert_eq!(cache.poll(), None);
        let new = get(&mut cache, &key, span(0, 100));
        assert_ne!(new.entry_id(), old);
        cache.hide_entry(old);
        cache.release_pin(pin).unwrap();
        assert_eq!(cache.poll(), None, "somebody uses it");
        cache.release_pin(other).unwrap();
        assert_eq!(close_all(&mut cache), [old], "not kept, whatever the budget");
        cache.hide_entry(old);
        assert_eq!(cache.get(new.entry_id()), Some((span(0, 100), RegistrationPhase::Ready)));
        // One that is being made.
        let register = miss(&mut cache, &key, span(200, 100));
        cache.hide_entry(register.id);
        let done = cache.on_registered(register.id).unwrap();
        let again = miss(&mut cache, &key, span(200, 100));
        cache.release_pin(done.pin).unwrap();
        assert_eq!(close_all(&mut cache), [register.id]);
        assert_eq!(cache.on_failed(again.id), Ok(0));
    }
}
