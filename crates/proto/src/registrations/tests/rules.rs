//! Those who wait, those who are late, scopes that end and memory that goes.

use super::*;

#[test]
fn who_asks_while_it_is_made_waits_and_is_told() {
    let mut cache = cache_of(10, Idle::NONE);
    let key = host(cache.open().unwrap());
    let register = miss(&mut cache, &key, span(0, 100));
    let waits = [span(0, 100), span(20, 30)].map(|part| pending(&mut cache, &key, part));
    assert!(waits.iter().all(|wait| wait.entry() == register.id));
    let waits = waits.map(|wait| match cache.settle(wait).unwrap() {
        Settled::NotYet(wait) => wait,
        other => unreachable!("{other:?}"),
    });
    let done = cache.registered(register.id).unwrap();
    assert_eq!((done.waiting, cache.pins(register.id)), (2, Some(3)));
    // It is not closed under those who have not asked yet.
    cache.unpin(done.pin).unwrap();
    assert_eq!(cache.poll(), None);
    for wait in waits {
        assert_eq!(cache.poll(), None);
        let Settled::Ready(pin) = cache.settle(wait).unwrap() else { unreachable!() };
        cache.unpin(pin).unwrap();
    }
    assert_eq!(close_all(&mut cache), [register.id]);
}

#[test]
fn who_waits_in_vain_is_told_and_who_comes_later_begins_anew() {
    let mut cache = cache_of(10, KEEP);
    let key = host(cache.open().unwrap());
    let register = miss(&mut cache, &key, span(0, 100));
    let waits = [pending(&mut cache, &key, span(0, 1)), pending(&mut cache, &key, span(1, 1))];
    let left = pending(&mut cache, &key, span(2, 1));
    cache.give_up(left).unwrap();
    assert_eq!(cache.failed(register.id), Ok(2));
    let again = miss(&mut cache, &key, span(0, 100));
    assert_ne!(again.id, register.id);
    for wait in waits {
        assert_eq!(cache.get(register.id), Some((span(0, 100), State::Failed)));
        assert_eq!(cache.settle(wait), Ok(Settled::Failed));
    }
    // Nothing of it was at the NIC, so nothing is closed.
    assert_eq!((cache.get(register.id), cache.poll()), (None, None));
    let _pin = cache.registered(again.id).unwrap();
    assert_eq!(cache.usage().entries, 1);
}

#[test]
fn who_gives_up_holds_nothing() {
    let mut cache = cache_of(10, Idle::NONE);
    let key = host(cache.open().unwrap());
    for before in [true, false] {
        let register = miss(&mut cache, &key, span(0, 100));
        let wait = pending(&mut cache, &key, span(0, 1));
        if before {
            cache.give_up(wait).unwrap();
            let done = cache.registered(register.id).unwrap();
            assert_eq!(done.waiting, 0);
            cache.unpin(done.pin).unwrap();
        } else {
            let done = cache.registered(register.id).unwrap();
            cache.unpin(done.pin).unwrap();
            assert_eq!(cache.poll(), None);
            cache.give_up(wait).unwrap();
        }
        assert_eq!(close_all(&mut cache), [register.id]);
    }
}

#[test]
fn what_is_being_closed_is_not_found() {
    let mut cache = cache_of(10, Idle::NONE);
    let key = host(cache.open().unwrap());
    let pin = get(&mut cache, &key, span(0, 100));
    let old = pin.entry();
    cache.unpin(pin).unwrap();
    let again = miss(&mut cache, &key, span(0, 100));
    assert_eq!((cache.get(old), cache.usage().closing), (Some((span(0, 100), State::Leaving)), 1));
    let _pin = cache.registered(again.id).unwrap();
    let close = cache.poll().unwrap();
    assert_eq!((close.id, close.key, close.span), (old, key, span(0, 100)));
    assert_eq!(hit(&mut cache, &key, span(0, 100)).entry(), again.id);
    cache.closed(old).unwrap();
    assert_eq!(hit(&mut cache, &key, span(0, 100)).entry(), again.id);
    assert_eq!((cache.poll(), cache.pins(again.id)), (None, Some(3)));
}

#[test]
fn late_and_misplaced_news_are_refused() {
    let mut cache = cache_of(10, Idle::NONE);
    let key = host(cache.open().unwrap());
    let register = miss(&mut cache, &key, span(0, 100));
    let old = register.id;
    assert_eq!(cache.closed(old), Err(NewsError::State(State::Registering)));
    let pin = cache.registered(old).unwrap().pin;
    let ready = NewsError::State(State::Ready);
    assert_eq!((cache.registered(old), cache.failed(old)), (Err(ready), Err(ready)));
    assert_eq!(cache.closed(old), Err(ready));
    assert_eq!(cache.settle(Wait(old)), Err(NewsError::NoEntry));
    assert_eq!(cache.give_up(Wait(old)), Err(NewsError::NoEntry));
    cache.unpin(pin).unwrap();
    assert_eq!(cache.unpin(Pin(old)), Err(NewsError::State(State::Leaving)));
    assert_eq!(cache.closed(old), Err(NewsError::State(State::Leaving)), "nobody was told to");
    assert_eq!(close_all(&mut cache), [old]);
    let next = miss(&mut cache, &key, span(0, 100));
    assert_eq!((next.id.0.slot, next.id == old), (old.0.slot, false));
    for late in [
        cache.closed(old),
        cache.registered(old).map(drop),
        cache.failed(old).map(drop),
        cache.unpin(Pin(old)),
    ] {
        assert_eq!(late, Err(NewsError::NoEntry));
    }
    assert_eq!(cache.get(next.id), Some((span(0, 100), State::Registering)));
}

#[test]
fn a_scope_takes_its_registrations_along_as_they_fall_idle() {
    let mut cache = keeping();
    let (ends, stays) = (cache.open().unwrap(), cache.open().unwrap());
    let idle = get(&mut cache, &host(ends), span(0, 100));
    let used = get(&mut cache, &host(ends), span(100, 100));
    let coming = miss(&mut cache, &host(ends), span(200, 100));
    let wait = pending(&mut cache, &host(ends), span(210, 10));
    let fails = miss(&mut cache, &host(ends), span(300, 100));
    let other = get(&mut cache, &host(stays), span(0, 100));
    let (idle_id, other_id) = (idle.entry(), other.entry());
    cache.unpin(idle).unwrap();
    cache.unpin(other).unwrap();
    cache.end(ends).unwrap();
    assert_eq!(close_all(&mut cache), [idle_id]);
    for asked in [span(0, 100), span(100, 100), span(200, 1), span(500, 1)] {
        assert_eq!(cache.ask(&host(ends), asked), Err(AskError::Ended(ends)));
    }
    assert_eq!(hit(&mut cache, &host(stays), span(0, 100)).entry(), other_id);
    // What was begun is told, and closed once nobody uses it.
    let done = cache.registered(coming.id).unwrap();
    let Settled::Ready(waited) = cache.settle(wait).unwrap() else { unreachable!() };
    assert_eq!((done.waiting, cache.failed(fails.id), cache.poll()), (1, Ok(0), None));
    for (pin, closes) in [(done.pin, false), (waited, true), (used, true)] {
        let id = pin.entry();
        assert!(!cache.is_gone(ends));
        cache.unpin(pin).unwrap();
        assert_eq!(close_all(&mut cache) == [id], closes);
    }
    assert!(cache.is_gone(ends) && !cache.is_gone(stays));
    assert_eq!((cache.usage().entries, cache.usage().listed), (1, 1));
}

#[test]
fn memory_that_is_gone_is_found_in_no_scope() {
    let mut cache = keeping();
    let scopes = [cache.open().unwrap(), cache.open().unwrap(), cache.open().unwrap()];
    let device = Memory::Device { device: 1, allocation: None };
    let mut gone = Vec::new();
    for scope in scopes {
        for rights in [Rights::LOCAL, Rights::READ] {
            let key = Key { rights, ..host(scope) };
            for part in [span(0, 100), span(99, 2), span(150, 10)] {
                let pin = get(&mut cache, &key, part);
                gone.push(pin.entry());
                cache.unpin(pin).unwrap();
            }
            for stays in [span(50, 50), span(200, 50)] {
                let pin = get(&mut cache, &Key { rights: Rights::ALL, ..key }, stays);
                cache.unpin(pin).unwrap();
            }
        }
        let elsewhere = get(&mut cache, &Key { memory: device, ..host(scope) }, span(100, 100));
        cache.unpin(elsewhere).unwrap();
    }
    let records = get(&mut cache, &Key { purpose: Purpose::Records, ..host(scopes[2]) }, span(100, 1));
    gone.push(records.entry());
    cache.unpin(records).unwrap();
    let pinned = get(&mut cache, &host(scopes[1]), span(120, 20));
    let coming = miss(&mut cache, &host(scopes[1]), span(180, 30));
    gone.retain(|id| cache.get(*id).is_some_and(|(part, _)| part.overlaps(span(100, 100))));
    let all = cache.usage().entries;
    cache.forget(Memory::Host, span(100, 100));
    let mut closed = close_all(&mut cache);
    closed.sort_unstable();
    gone.sort_unstable();
    assert_eq!(closed, gone);
    assert_eq!(gone.len(), 13);
    for scope in scopes {
        for part in [span(99, 2), span(120, 1), span(150, 10), span(190, 1)] {
            assert_eq!(cache.ready.find(&host(scope), part).or(cache.coming.find(&host(scope), part)), None);
        }
        assert!(cache.ready.find(&host(scope), span(60, 10)).is_some());
        assert!(cache.ready.find(&Key { memory: device, ..host(scope) }, span(120, 1)).is_some());
    }
    let id = pinned.entry();
    cache.unpin(pinned).unwrap();
    let done = cache.registered(coming.id).unwrap();
    cache.unpin(done.pin).unwrap();
    assert_eq!(close_all(&mut cache), [id, coming.id]);
    assert_eq!(cache.usage().entries, all - gone.len() - 2);
}

#[test]
fn what_is_hidden_is_not_found_and_stays_with_those_who_use_it() {
    for idle in [Idle::NONE, KEEP] {
        let mut cache = cache_of(10, idle);
        let key = host(cache.open().unwrap());
        let (pin, other) = (get(&mut cache, &key, span(0, 100)), hit(&mut cache, &key, span(10, 10)));
        let old = pin.entry();
        cache.hide(old);
        assert_eq!(cache.poll(), None);
        let new = get(&mut cache, &key, span(0, 100));
        assert_ne!(new.entry(), old);
        cache.hide(old);
        cache.unpin(pin).unwrap();
        assert_eq!(cache.poll(), None, "somebody uses it");
        cache.unpin(other).unwrap();
        assert_eq!(close_all(&mut cache), [old], "not kept, whatever the budget");
        cache.hide(old);
        assert_eq!(cache.get(new.entry()), Some((span(0, 100), State::Ready)));
        // One that is being made.
        let register = miss(&mut cache, &key, span(200, 100));
        cache.hide(register.id);
        let done = cache.registered(register.id).unwrap();
        let again = miss(&mut cache, &key, span(200, 100));
        cache.unpin(done.pin).unwrap();
        assert_eq!(close_all(&mut cache), [register.id]);
        assert_eq!(cache.failed(again.id), Ok(0));
    }
}
