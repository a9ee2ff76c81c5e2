//! Which registration serves a request: the rules for registrations that are bound to endpoints, one per test, and
//! independence of the page size of the host.

use super::*;

const KIB: u64 = 1 << 10;

#[test]
fn each_endpoint_has_its_own_registration() {
    let (mut map, a) = map_and_scope();
    let b = map.open_scope().unwrap();
    let first = get(&mut map, &host(a), span(4096, 4096));
    let second = get(&mut map, &host(b), span(4096, 4096));
    assert_ne!(first.entry_id(), second.entry_id());
}

#[test]
fn requests_at_one_endpoint_share_a_registration() {
    let (mut map, scope) = map_and_scope();
    let first = get(&mut map, &host(scope), span(4096, 4096));
    let second = hit(&mut map, &host(scope), span(4096, 4096));
    assert_eq!((first.entry_id(), users(&map, first.entry_id())), (second.entry_id(), Some(2)));
}

#[test]
fn contained_bytes_hit_and_longer_ones_miss() {
    let (mut map, scope) = map_and_scope();
    let key = host(scope);
    let whole = get(&mut map, &key, span(8192, 8192));
    assert_eq!((whole.start_offset(), whole.granted_span()), (0, span(8192, 8192)));
    for part in [span(8192, 1), span(16383, 1), span(9000, 100), span(8192, 8192)] {
        let grant = hit(&mut map, &key, part);
        assert_eq!((grant.entry_id(), grant.granted_span()), (whole.entry_id(), part));
        assert_eq!(grant.start_offset(), part.start() - 8192);
    }
    for more in
        [span(8191, 2), span(8191, 1), span(16383, 2), span(16384, 1), span(8192, 8193), span(0, 1 << 20)]
    {
        let id = miss(&mut map, &key, more);
        map.on_failed(id);
    }
}

/// A map that compares pages of 64 KiB would find all of these ranges of 4 KiB.
#[test]
fn ranges_in_one_large_page_are_distinct() {
    let (mut map, scope) = map_and_scope();
    let memories =
        [MemorySpace::Host, MemorySpace::Device { device: 0 }, MemorySpace::DmaBuf { dev: 1, inode: 2 }];
    let mut held = Vec::new();
    for memory in memories {
        let key = RegistrationKey { memory, ..host(scope) };
        let part = |n: u64| span(64 * KIB + n * 4 * KIB, 4 * KIB);
        let ids: Vec<_> = (0..16)
            .map(|n| {
                held.push(get(&mut map, &key, part(n)));
                held[held.len() - 1].entry_id()
            })
            .collect();
        for (n, id) in (0_u64..).zip(&ids) {
            let inner = span(part(n).start() + 5, 4 * KIB - 5);
            held.push(hit(&mut map, &key, inner));
            assert_eq!(held[held.len() - 1].entry_id(), *id);
        }
        let across = miss(&mut map, &key, span(64 * KIB + 2 * KIB, 4 * KIB));
        map.on_failed(across);
    }
    assert_eq!(map.registration_count(), 3 * 16);
}

#[test]
fn dma_bufs_match_by_file_and_range() {
    let (mut map, scope) = map_and_scope();
    let buf = |dev, inode| RegistrationKey { memory: MemorySpace::DmaBuf { dev, inode }, ..host(scope) };
    let first = get(&mut map, &buf(1, 7), span(100, 1000));
    for other in [span(99, 1000), span(101, 1000), span(100, 1001)] {
        let grant = get(&mut map, &buf(1, 7), other);
        assert_ne!(grant.entry_id(), first.entry_id());
        assert_eq!((grant.granted_span(), grant.start_offset()), (other, 0));
    }
    for other in [buf(1, 8), buf(2, 7), buf(7, 1), host(scope)] {
        assert_ne!(get(&mut map, &other, span(100, 1000)).entry_id(), first.entry_id());
    }
    assert_eq!(hit(&mut map, &buf(1, 7), span(100, 999)).entry_id(), first.entry_id());
}

#[test]
fn host_and_device_memory_are_distinct() {
    let (mut map, scope) = map_and_scope();
    let of = |memory| RegistrationKey { memory, ..host(scope) };
    let keys =
        [of(MemorySpace::Device { device: 0 }), of(MemorySpace::Device { device: 1 }), of(MemorySpace::Host)];
    let ids = keys.map(|key| get(&mut map, &key, span(0, 4096)).entry_id());
    for (key, id) in keys.iter().zip(ids) {
        assert_eq!(hit(&mut map, key, span(1, 1)).entry_id(), id);
    }
    assert_eq!(map.registration_count(), keys.len());
}

/// Endpoints are created and destroyed. Each has a registration of the same bytes, one of which outlives its endpoint.
#[test]
fn new_endpoint_finds_no_old_registration() {
    let mut map = Map::new(1000);
    let (mut seen, mut kept) = (Vec::new(), Vec::new());
    for round in 0..100 {
        let scope = map.open_scope().unwrap();
        assert!(!seen.contains(&scope));
        seen.push(scope);
        let id = miss(&mut map, &host(scope), span(4096, 4096));
        let grant = map.on_made(id, 0).unwrap();
        map.end_scope(scope);
        if round % 7 == 3 {
            kept.push(grant);
        } else {
            assert_eq!(release_and_close(&mut map, grant), Some(id));
        }
        for gone in &seen {
            let refused = map.request_registration(&host(*gone), span(4096, 4096));
            assert_eq!(refused, Err(RegistrationError::Ended(*gone)));
            map.end_scope(*gone);
        }
        assert_eq!((map.registration_count(), map.spans.len()), (kept.len(), 0));
    }
    assert_eq!(kept.len(), 14);
    for grant in kept {
        assert!(release_and_close(&mut map, grant).is_some());
    }
    assert!(is_empty(&map));
}

/// All pairs of sets of rights.
#[test]
fn registration_serves_requests_for_its_rights_or_fewer() {
    for given in RegistrationRights::LOCAL.covering_sets() {
        for asked in RegistrationRights::LOCAL.covering_sets() {
            let (mut map, scope) = map_and_scope();
            let _grant = get(&mut map, &RegistrationKey { rights: given, ..host(scope) }, span(0, 100));
            let found = map
                .request_registration(&RegistrationKey { rights: asked, ..host(scope) }, span(10, 10))
                .unwrap();
            let is_hit = matches!(found, RegistrationLookup::Hit(_));
            assert_eq!(is_hit, given.contains_all(asked), "{given:?} for {asked:?}");
        }
    }
}

#[test]
fn request_prefers_exact_rights_and_the_closest_span() {
    let (mut map, scope) = map_and_scope();
    let with = |rights| RegistrationKey { rights, ..host(scope) };
    let all = get(&mut map, &with(RegistrationRights::ALL), span(0, 1000));
    let wide = get(&mut map, &with(RegistrationRights::WRITE), span(0, 1001));
    assert_eq!(hit(&mut map, &with(RegistrationRights::WRITE), span(5, 5)).entry_id(), wide.entry_id());
    assert_eq!(hit(&mut map, &with(RegistrationRights::READ), span(5, 5)).entry_id(), all.entry_id());
    // The bytes are inside of an open registration, so none is made.
    assert_eq!(hit(&mut map, &with(RegistrationRights::ALL), span(4, 8)).entry_id(), all.entry_id());
    let wider = get(&mut map, &with(RegistrationRights::ALL), span(0, 2000));
    assert_eq!(hit(&mut map, &with(RegistrationRights::ALL), span(500, 1000)).entry_id(), wider.entry_id());
    assert_eq!(hit(&mut map, &with(RegistrationRights::ALL), span(500, 100)).entry_id(), all.entry_id());
}

#[test]
fn open_registration_is_preferred_to_a_pending_one() {
    let (mut map, scope) = map_and_scope();
    let with = |rights| RegistrationKey { rights, ..host(scope) };
    let write = with(RegistrationRights::WRITE);
    let making = miss(&mut map, &write, span(10, 80));
    // One registration has more rights, and one contains more bytes.
    let more = get(&mut map, &with(RegistrationRights::ALL), span(10, 80));
    assert_eq!(hit(&mut map, &write, span(10, 80)).entry_id(), more.entry_id());
    let wide = get(&mut map, &write, span(0, 100));
    assert_eq!(hit(&mut map, &write, span(10, 80)).entry_id(), wide.entry_id());
    let mine = map.on_made(making, 7).unwrap();
    assert_eq!(hit(&mut map, &write, span(10, 80)).entry_id(), mine.entry_id());
}
