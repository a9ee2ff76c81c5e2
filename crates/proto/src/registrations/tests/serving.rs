//! Which registration serves a request: what a cache of registrations must hold where they are bound to endpoints, line by
//! line, and what the pages of a host must not do to it.

use super::*;

const KIB: u64 = 1 << 10;

#[test]
fn one_address_at_two_endpoints_is_two_registrations() {
    let mut cache = keeping();
    let (a, b) = (cache.open_scope().unwrap(), cache.open_scope().unwrap());
    let (first, second) =
        (get(&mut cache, &host(a), span(4096, 4096)), get(&mut cache, &host(b), span(4096, 4096)));
    assert_ne!(first.entry_id(), second.entry_id());
}

#[test]
fn at_one_endpoint_it_is_one_that_is_used_twice() {
    let mut cache = keeping();
    let key = host(cache.open_scope().unwrap());
    let first = get(&mut cache, &key, span(4096, 4096));
    let second = hit(&mut cache, &key, span(4096, 4096));
    assert_eq!((first.entry_id(), cache.pin_count(first.entry_id())), (second.entry_id(), Some(2)));
}

#[test]
fn a_part_is_a_hit_and_more_is_a_miss() {
    let mut cache = keeping();
    let key = host(cache.open_scope().unwrap());
    let whole = get(&mut cache, &key, span(8192, 8192));
    for part in [span(8192, 1), span(16383, 1), span(9000, 100), span(8192, 8192)] {
        assert_eq!(hit(&mut cache, &key, part).entry_id(), whole.entry_id());
    }
    for more in
        [span(8191, 2), span(8191, 1), span(16383, 2), span(16384, 1), span(8192, 8193), span(0, 1 << 20)]
    {
        let register = miss(&mut cache, &key, more);
        assert_eq!((register.span, register.key), (more, key));
        assert_eq!(cache.on_failed(register.id), Ok(0));
    }
}

/// A key of 4 KiB pages compared in pages of 64 KiB would find them all.
#[test]
fn ranges_in_one_large_page_are_distinct() {
    let mut cache = keeping();
    let scope = cache.open_scope().unwrap();
    let memories = [
        MemorySpace::Host,
        MemorySpace::Device { device: 0, allocation: None },
        MemorySpace::DmaBuf { dev: 1, inode: 2 },
    ];
    for memory in memories {
        let key = RegistrationKey { memory, ..host(scope) };
        let ids: Vec<_> = (0..16)
            .map(|n| get(&mut cache, &key, span(64 * KIB + n * 4 * KIB, 4 * KIB)).entry_id())
            .collect();
        for (n, id) in (0_u64..).zip(&ids) {
            assert_eq!(hit(&mut cache, &key, span(64 * KIB + n * 4 * KIB + 5, 4 * KIB - 5)).entry_id(), *id);
        }
        let across = miss(&mut cache, &key, span(64 * KIB + 2 * KIB, 4 * KIB));
        assert_eq!(cache.on_failed(across.id), Ok(0));
    }
    assert_eq!(cache.current_usage().entries, 3 * 16);
}

#[test]
fn dma_bufs_are_compared_to_the_byte_and_by_file() {
    let mut cache = keeping();
    let scope = cache.open_scope().unwrap();
    let buf = |dev, inode| RegistrationKey { memory: MemorySpace::DmaBuf { dev, inode }, ..host(scope) };
    let first = get(&mut cache, &buf(1, 7), span(100, 1000));
    for other in [span(99, 1000), span(101, 1000), span(100, 1001)] {
        let pin = get(&mut cache, &buf(1, 7), other);
        assert_ne!(pin.entry_id(), first.entry_id());
        assert_eq!(cache.get(pin.entry_id()), Some((other, RegistrationPhase::Ready)));
    }
    for other in [buf(1, 8), buf(2, 7), buf(7, 1), host(scope)] {
        assert_ne!(get(&mut cache, &other, span(100, 1000)).entry_id(), first.entry_id());
    }
    assert_eq!(hit(&mut cache, &buf(1, 7), span(100, 999)).entry_id(), first.entry_id());
}

#[test]
fn an_allocation_at_the_address_of_another_is_other_memory() {
    let mut cache = keeping();
    let scope = cache.open_scope().unwrap();
    let of = |device, allocation| RegistrationKey {
        memory: MemorySpace::Device { device, allocation },
        ..host(scope)
    };
    let keys = [of(0, Some(1)), of(0, Some(2)), of(1, Some(1)), of(0, None), host(scope)];
    let ids: Vec<_> = keys.iter().map(|key| get(&mut cache, key, span(0, 4096)).entry_id()).collect();
    for (key, id) in keys.iter().zip(&ids) {
        assert_eq!(hit(&mut cache, key, span(1, 1)).entry_id(), *id);
    }
    assert_eq!(cache.current_usage().entries, keys.len());
}

/// Endpoints that come and go, with a registration of the same bytes each, one of which outlives its endpoint.
#[test]
fn an_endpoint_that_is_made_anew_finds_nothing_of_the_old_one() {
    let mut cache = keeping();
    let (mut seen, mut kept) = (Vec::new(), Vec::new());
    for round in 0..100 {
        let scope = cache.open_scope().unwrap();
        assert!(!seen.contains(&scope));
        seen.push(scope);
        let register = miss(&mut cache, &host(scope), span(4096, 4096));
        let pin = cache.on_registered(register.id).unwrap().pin;
        assert_eq!(
            cache.close_scope(scope),
            if round % 7 == 3 {
                kept.push(pin);
                Ok(())
            } else {
                cache.release_pin(pin).unwrap();
                Ok(())
            }
        );
        for gone in &seen {
            assert_eq!(
                cache.request_registration(&host(*gone), span(4096, 4096)),
                Err(RegistrationError::Ended(*gone))
            );
            assert_eq!(cache.close_scope(*gone), Err(NoScope));
        }
        let _ = close_all(&mut cache);
        assert_eq!((cache.current_usage().entries, cache.current_usage().listed), (kept.len(), 0));
        assert_eq!(cache.is_gone(scope), round % 7 != 3);
    }
    for pin in kept {
        cache.release_pin(pin).unwrap();
    }
    assert_eq!(close_all(&mut cache).len(), 14);
    assert!(seen.iter().all(|scope| cache.is_gone(*scope)));
    assert_eq!(cache.current_usage(), RegistrationUsage::default());
}

/// Where the kernel's forks force whole pages, they are what is registered; so they are what is found, and no more.
#[test]
fn whole_pages_are_registered_only_where_the_kernel_needs_them() {
    for page in [4 * KIB, 64 * KIB] {
        let config = RegistrationConfig { entries: 100, idle: KEEP, widen: PageSize::new(page) };
        let mut cache = PinDownCache::new(config);
        let scope = cache.open_scope().unwrap();
        let key = host(scope);
        let register = miss(&mut cache, &key, span(10 * page + 100, 200));
        assert_eq!(register.span, span(10 * page, page));
        let pin = cache.on_registered(register.id).unwrap().pin;
        for (start, len) in [(0, page), (page - 1, 1), (7, 3)] {
            assert_eq!(hit(&mut cache, &key, span(10 * page + start, len)).entry_id(), pin.entry_id());
        }
        let behind = miss(&mut cache, &key, span(11 * page - 1, 2));
        assert_eq!(behind.span, span(10 * page, 2 * page));
        assert_eq!(cache.on_failed(behind.id), Ok(0));
        let before = miss(&mut cache, &key, span(10 * page - 1, 1));
        assert_eq!(before.span, span(9 * page, page));
        let exact = [
            MemorySpace::DmaBuf { dev: 1, inode: 1 },
            MemorySpace::Device { device: 0, allocation: Some(1) },
        ];
        for memory in exact {
            let register = miss(&mut cache, &RegistrationKey { memory, ..key }, span(10 * page + 100, 200));
            assert_eq!(register.span, span(10 * page + 100, 200));
        }
    }
}

/// All pairs of sets of rights.
#[test]
fn a_registration_serves_who_asks_for_no_more_than_it_allows() {
    for given in RegistrationRights::LOCAL.covering_sets() {
        for asked in RegistrationRights::LOCAL.covering_sets() {
            let mut cache = keeping();
            let scope = cache.open_scope().unwrap();
            let _pin = get(&mut cache, &RegistrationKey { rights: given, ..host(scope) }, span(0, 100));
            let found = cache
                .request_registration(&RegistrationKey { rights: asked, ..host(scope) }, span(10, 10))
                .unwrap();
            assert_eq!(
                matches!(found, RegistrationLookup::Hit(_)),
                given.contains_all(asked),
                "{given:?} for {asked:?}"
            );
        }
    }
}

#[test]
fn of_several_the_one_with_the_rights_asked_for_and_the_closest_serves() {
    let mut cache = keeping();
    let scope = cache.open_scope().unwrap();
    let with = |rights| RegistrationKey { rights, ..host(scope) };
    let all = get(&mut cache, &with(RegistrationRights::ALL), span(0, 1000));
    let wide = get(&mut cache, &with(RegistrationRights::WRITE), span(0, 1001));
    assert_eq!(hit(&mut cache, &with(RegistrationRights::WRITE), span(5, 5)).entry_id(), wide.entry_id());
    assert_eq!(hit(&mut cache, &with(RegistrationRights::READ), span(5, 5)).entry_id(), all.entry_id());
    // Smaller than one that is there already: nothing is made.
    assert_eq!(hit(&mut cache, &with(RegistrationRights::ALL), span(4, 8)).entry_id(), all.entry_id());
    let wider = get(&mut cache, &with(RegistrationRights::ALL), span(0, 2000));
    assert_eq!(hit(&mut cache, &with(RegistrationRights::ALL), span(500, 1000)).entry_id(), wider.entry_id());
    assert_eq!(hit(&mut cache, &with(RegistrationRights::ALL), span(500, 100)).entry_id(), all.entry_id());
}

#[test]
fn one_that_stands_is_preferred_to_one_that_is_coming() {
    let mut cache = keeping();
    let scope = cache.open_scope().unwrap();
    let with = |rights| RegistrationKey { rights, ..host(scope) };
    let coming = miss(&mut cache, &with(RegistrationRights::WRITE), span(0, 100));
    let stands = get(&mut cache, &with(RegistrationRights::ALL), span(0, 100));
    assert_eq!(hit(&mut cache, &with(RegistrationRights::WRITE), span(0, 100)).entry_id(), stands.entry_id());
    let mine = cache.on_registered(coming.id).unwrap().pin;
    assert_eq!(hit(&mut cache, &with(RegistrationRights::WRITE), span(0, 100)).entry_id(), mine.entry_id());
}

#[test]
fn what_is_for_records_never_serves_payload() {
    let mut cache = keeping();
    let payload = RegistrationKey { rights: RegistrationRights::ALL, ..host(cache.open_scope().unwrap()) };
    let records = RegistrationKey { purpose: RegistrationPurpose::Records, ..payload };
    let pins = [payload, records].map(|key| get(&mut cache, &key, span(0, 100)));
    assert_ne!(pins[0].entry_id(), pins[1].entry_id());
    for (key, pin) in [payload, records].iter().zip(pins) {
        assert_eq!(hit(&mut cache, key, span(10, 10)), pin);
    }
}
