//! Tests of the cache: which thread registers, waits or closes; and random threads whose memory is freed and mapped
//! again.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, mpsc};

use trunkline_proto::registrations::key::RegistrationRights;

use super::*;

const BOUND: Duration = Duration::from_secs(20);
/// Bytes of the memory that threads free and map.
const BYTES: usize = 64;

/// The open registrations of a NIC.
#[derive(Default)]
struct Nic {
    open: AtomicUsize,
    made: AtomicUsize,
}

/// A registration, with the contents of its bytes when it was made.
struct Mr {
    nic: Arc<Nic>,
    span: ByteSpan,
    scope: RegistrationScope,
    pages: Vec<u64>,
    is_open: Arc<AtomicBool>,
}

impl Drop for Mr {
    fn drop(&mut self) {
        std::thread::yield_now();
        self.is_open.store(false, SeqCst);
        self.nic.open.fetch_sub(1, SeqCst);
    }
}

fn span(start: u64, len: u64) -> ByteSpan {
    ByteSpan::new(start, len).unwrap()
}

fn key(scope: RegistrationScope, rights: RegistrationRights) -> RegistrationKey {
    RegistrationKey { scope, memory: MemorySpace::Host, rights }
}

impl Nic {
    fn make(self: &Arc<Self>, scope: RegistrationScope, span: ByteSpan, pages: Vec<u64>) -> Mr {
        self.open.fetch_add(1, SeqCst);
        self.made.fetch_add(1, SeqCst);
        Mr { nic: Arc::clone(self), span, scope, pages, is_open: Arc::new(AtomicBool::new(true)) }
    }
}

/// A cache, a scope of it, and a NIC.
fn world() -> (Arc<RegistrationCache<Mr>>, RegistrationScope, Arc<Nic>) {
    let cache = Arc::new(RegistrationCache::new(1000));
    let scope = cache.open_scope().unwrap();
    (cache, scope, Arc::default())
}

/// Requests bytes for peers' writes. Returns the grant and the flag of whether the registration is open.
fn ask(
    cache: &RegistrationCache<Mr>,
    nic: &Arc<Nic>,
    scope: RegistrationScope,
    part: ByteSpan,
) -> (RegistrationGrant, Arc<AtomicBool>) {
    let make = || Ok::<_, ()>(nic.make(scope, part, Vec::new()));
    cache
        .acquire(&key(scope, RegistrationRights::WRITE), part, BOUND, make, |mr| Arc::clone(&mr.is_open))
        .unwrap()
}

#[test]
fn repeated_requests_share_one_registration_until_last_release() {
    let (cache, scope, nic) = world();
    let (first, open) = ask(&cache, &nic, scope, span(0, 100));
    let (same, _) = ask(&cache, &nic, scope, span(0, 100));
    let (part, _) = ask(&cache, &nic, scope, span(10, 20));
    assert_eq!((part.start_offset(), part.granted_span(), same.start_offset()), (10, span(10, 20), 0));
    assert_eq!((first.entry_id(), part.entry_id()), (same.entry_id(), same.entry_id()));
    assert_eq!((nic.open.load(SeqCst), cache.registration_count()), (1, 1));
    for grant in [first, part, same] {
        assert!(open.load(SeqCst), "in use");
        cache.release(grant);
    }
    assert!(!open.load(SeqCst), "closed when the last call returns");
    assert_eq!((nic.made.load(SeqCst), cache.registration_count()), (1, 0));
}

#[test]
fn registration_held_only_in_part_serves_no_requests() {
    let (cache, scope, nic) = world();
    let (whole, open) = ask(&cache, &nic, scope, span(0, 100));
    let (part, _) = ask(&cache, &nic, scope, span(0, 10));
    cache.release(whole);
    // The user of the other bytes may have freed them, so they may be other memory now.
    let (other, _) = ask(&cache, &nic, scope, span(50, 10));
    assert_ne!(other.entry_id(), part.entry_id());
    let (again, _) = ask(&cache, &nic, scope, span(0, 10));
    assert_ne!(again.entry_id(), part.entry_id());
    assert!(open.load(SeqCst), "in use");
    for grant in [part, other, again] {
        cache.release(grant);
    }
    assert_eq!((nic.open.load(SeqCst), cache.registration_count()), (0, 0));
}

#[test]
fn revoke_closes_a_used_registration_at_once() {
    let (cache, scope, nic) = world();
    let (first, open) = ask(&cache, &nic, scope, span(0, 100));
    let (second, _) = ask(&cache, &nic, scope, span(0, 100));
    let mut told = None;
    cache.revoke(first, |id| {
        assert!(open.load(SeqCst) && !cache.is_valid(second.entry_id()));
        told = Some(id);
    });
    assert_eq!((told, open.load(SeqCst)), (Some(second.entry_id()), false));
    let (third, _) = ask(&cache, &nic, scope, span(0, 100));
    assert!(cache.is_valid(third.entry_id()) && third.entry_id() != second.entry_id());
    // The second revoke finds nothing to close.
    cache.revoke(second, |_| {});
    cache.release(third);
    assert_eq!((nic.open.load(SeqCst), cache.registration_count()), (0, 0));
}

#[test]
fn registrations_of_ended_scopes_are_not_found() {
    let (cache, scope, nic) = world();
    let (old, _) = ask(&cache, &nic, scope, span(0, 100));
    cache.end_scope(scope);
    let next = cache.open_scope().unwrap();
    let (new, _) = ask(&cache, &nic, next, span(0, 100));
    assert_ne!(old.entry_id(), new.entry_id());
    let refused = cache.acquire(
        &key(scope, RegistrationRights::WRITE),
        span(0, 100),
        BOUND,
        || Ok::<_, ()>(nic.make(scope, span(0, 100), Vec::new())),
        |_| (),
    );
    assert!(matches!(refused, Err(AcquireError::Refused(RegistrationError::Ended(_)))), "{refused:?}");
    assert_eq!(cache.registration_count(), 2);
    cache.release(old);
    cache.release(new);
    assert_eq!((nic.open.load(SeqCst), cache.registration_count()), (0, 0));
}

#[test]
fn forgotten_registrations_close_with_their_last_user() {
    let (cache, scope, nic) = world();
    let other_scope = cache.open_scope().unwrap();
    let old = [scope, other_scope].map(|scope| ask(&cache, &nic, scope, span(0, 100)));
    let (stays, _) = ask(&cache, &nic, scope, span(100, 100));
    cache.forget_memory(MemorySpace::Device { device: 0 }, span(0, 1000));
    let (hit, _) = ask(&cache, &nic, scope, span(0, 100));
    assert_eq!(hit.entry_id(), old[0].0.entry_id(), "other memory was forgotten");
    cache.release(hit);
    cache.forget_memory(MemorySpace::Host, span(99, 1));
    for (scope, (grant, open)) in [scope, other_scope].into_iter().zip(old) {
        let (new, _) = ask(&cache, &nic, scope, span(0, 100));
        assert_ne!(new.entry_id(), grant.entry_id());
        assert!(open.load(SeqCst) && cache.is_valid(grant.entry_id()), "in use");
        cache.release(grant);
        assert!(!open.load(SeqCst), "closed when the last call returns");
        cache.release(new);
    }
    let (same, _) = ask(&cache, &nic, scope, span(150, 10));
    assert_eq!(same.entry_id(), stays.entry_id());
    cache.release(stays);
    cache.release(same);
    assert_eq!((nic.open.load(SeqCst), cache.registration_count()), (0, 0));
}

/// Registers 100 bytes. Sends to `inside` from within the registration, which ends when `may_go` receives.
fn acquire_slowly(
    cache: &RegistrationCache<Mr>,
    nic: &Arc<Nic>,
    scope: RegistrationScope,
    inside: &mpsc::Sender<()>,
    may_go: &mpsc::Receiver<()>,
) -> Result<RegistrationGrant, AcquireError<mpsc::RecvTimeoutError>> {
    let make = || {
        inside.send(()).unwrap();
        may_go.recv_timeout(BOUND).map(|()| nic.make(scope, span(0, 100), Vec::new()))
    };
    cache.acquire(&key(scope, RegistrationRights::WRITE), span(0, 100), BOUND, make, |_| ()).map(|one| one.0)
}

#[test]
fn forget_memory_wakes_threads_that_wait_for_it() {
    let (cache, scope, nic) = world();
    let (inside, is_inside) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    std::thread::scope(|threads| {
        let (cache, nic, may_go) = (&cache, &nic, may_go);
        let slow = threads.spawn(move || acquire_slowly(cache, nic, scope, &inside, &may_go));
        is_inside.recv().unwrap();
        let begun = Instant::now();
        let waits = threads.spawn(|| ask(cache, nic, scope, span(0, 10)).0);
        while cache.waits.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        cache.forget_memory(MemorySpace::Host, span(0, 100));
        // It registers itself while the other thread is still registering.
        let waited = waits.join().unwrap();
        assert!(begun.elapsed() < BOUND, "woken by the call");
        go.send(()).unwrap();
        let made = slow.join().unwrap().unwrap();
        assert_ne!(made.entry_id(), waited.entry_id());
        // A registration that was made since is not found either.
        let (new, _) = ask(cache, nic, scope, span(50, 10));
        assert_ne!(new.entry_id(), made.entry_id());
        [made, waited, new].into_iter().for_each(|grant| cache.release(grant));
    });
    assert_eq!((nic.open.load(SeqCst), cache.registration_count()), (0, 0));
}

#[test]
fn failed_registration_is_removed_and_its_waiter_retries() {
    let (cache, scope, nic) = world();
    let (inside, is_inside) = mpsc::channel();
    std::thread::scope(|threads| {
        let failing = threads.spawn(|| {
            let make = || {
                inside.send(()).unwrap();
                while cache.waits.load(SeqCst) == 0 {
                    std::thread::yield_now();
                }
                Err::<Mr, _>("no")
            };
            cache
                .acquire(&key(scope, RegistrationRights::WRITE), span(0, 100), BOUND, make, |_| ())
                .map(|_| ())
        });
        is_inside.recv().unwrap();
        let (grant, _) = ask(&cache, &nic, scope, span(0, 100));
        assert!(matches!(failing.join().unwrap(), Err(AcquireError::Make("no"))));
        cache.release(grant);
    });
    assert_eq!((nic.made.load(SeqCst), nic.open.load(SeqCst), cache.registration_count()), (1, 0, 0));
    // A thread that panics while it registers does not block others either.
    let panics = || -> Result<Mr, ()> { panic!("while it registers") };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cache.acquire(&key(scope, RegistrationRights::WRITE), span(0, 100), BOUND, panics, |_| ()).map(|_| ())
    }));
    assert!(caught.is_err());
    assert_eq!(cache.registration_count(), 0);
    cache.release(ask(&cache, &nic, scope, span(0, 100)).0);
}

#[test]
fn requests_wait_bounded_and_for_same_memory_only() {
    let (cache, scope, nic) = world();
    let (inside, is_inside) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    std::thread::scope(|threads| {
        let (cache, nic, may_go) = (&cache, &nic, may_go);
        let slow = threads.spawn(move || acquire_slowly(cache, nic, scope, &inside, &may_go));
        is_inside.recv().unwrap();
        // Meanwhile other memory can be registered and closed.
        cache.release(ask(cache, nic, scope, span(200, 100)).0);
        let make = || Ok::<_, ()>(nic.make(scope, span(0, 10), Vec::new()));
        let soon = Duration::from_millis(20);
        let late = cache.acquire(&key(scope, RegistrationRights::WRITE), span(0, 10), soon, make, |_| ());
        assert!(matches!(late, Err(AcquireError::Late)), "{late:?}");
        go.send(()).unwrap();
        cache.release(slow.join().unwrap().unwrap());
    });
    assert_eq!((nic.open.load(SeqCst), cache.registration_count()), (0, 0));
}

#[test]
fn cache_refuses_registrations_beyond_its_limit() {
    let cache = RegistrationCache::new(2);
    let (scope, nic) = (cache.open_scope().unwrap(), Arc::default());
    let held = [0, 100].map(|start| ask(&cache, &nic, scope, span(start, 100)).0);
    let make = || Ok::<_, ()>(nic.make(scope, span(200, 1), Vec::new()));
    let full = cache.acquire(&key(scope, RegistrationRights::WRITE), span(200, 1), BOUND, make, |_| ());
    assert!(matches!(full, Err(AcquireError::Refused(RegistrationError::Full(2)))), "{full:?}");
    // Open registrations still serve requests.
    cache.release(ask(&cache, &nic, scope, span(0, 100)).0);
    held.into_iter().for_each(|grant| cache.release(grant));
    cache.release(ask(&cache, &nic, scope, span(200, 1)).0);
    assert_eq!(nic.open.load(SeqCst), 0);
}

/// A registration that calls a function when it is closed.
struct OnClose(Option<Box<dyn FnOnce() + Send>>);

impl Drop for OnClose {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|close| close());
    }
}

#[test]
fn full_cache_waits_until_one_is_closed() {
    let cache = Arc::new(RegistrationCache::new(1));
    let key = key(cache.open_scope().unwrap(), RegistrationRights::WRITE);
    let (closing, is_closing) = mpsc::channel();
    let others = Arc::clone(&cache);
    let close = move || {
        closing.send(()).unwrap();
        while others.waits.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
    };
    let slow = || Ok::<_, ()>(OnClose(Some(Box::new(close))));
    let (grant, ()) = cache.acquire(&key, span(0, 100), BOUND, slow, |_| ()).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| cache.release(grant));
        is_closing.recv().unwrap();
        let begun = Instant::now();
        let (next, ()) =
            cache.acquire(&key, span(200, 100), BOUND, || Ok::<_, ()>(OnClose(None)), |_| ()).unwrap();
        assert!(begun.elapsed() < BOUND, "woken by the close");
        assert_eq!(cache.registration_count(), 1);
        cache.release(next);
    });
    assert_eq!(cache.registration_count(), 0);
}

/// Memory that threads hold parts of. A part without a holder is freed, and is other memory when it is held again.
struct Host {
    holders: Mutex<[u32; BYTES]>,
    pages: Vec<AtomicU64>,
}

impl Host {
    fn hold(&self, part: ByteSpan) {
        let mut holders = self.holders.lock().unwrap();
        (part.start()..part.end()).for_each(|at| holders[at as usize] += 1);
    }

    fn let_go(&self, part: ByteSpan) {
        let mut holders = self.holders.lock().unwrap();
        for at in part.start()..part.end() {
            holders[at as usize] -= 1;
            if holders[at as usize] == 0 {
                self.pages[at as usize].fetch_add(1, SeqCst);
            }
        }
    }

    fn pages(&self, part: ByteSpan) -> Vec<u64> {
        (part.start()..part.end()).map(|at| self.pages[at as usize].load(SeqCst)).collect()
    }
}

/// One thread. Each granted registration must be open, of the scope, contain the bytes, be of the currently mapped
/// memory, and stay open.
fn at_random(
    seed: u64,
    cache: &RegistrationCache<Mr>,
    scopes: &[RegistrationScope],
    nic: &Arc<Nic>,
    host: &Host,
) -> [u64; 2] {
    let mut state = seed;
    let mut random = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let (mut held, mut counts): (Vec<(RegistrationGrant, ByteSpan, Arc<AtomicBool>)>, _) =
        (Vec::new(), [0, 0]);
    for _ in 0..3000 {
        if held.len() > 3 || !held.is_empty() && random(2) == 0 {
            let (grant, part, is_open) = held.swap_remove(random(held.len() as u64) as usize);
            assert!(is_open.load(SeqCst), "closed while it is used");
            if random(20) == 0 && seed == 0 {
                // The grant is of a scope that only this thread uses.
                cache.revoke(grant, |_| {});
                assert!(!is_open.load(SeqCst));
                // Its other users are on the same endpoint, which is no longer usable.
                let others = held.extract_if(.., |(_, _, is_open)| !is_open.load(SeqCst));
                for (grant, part, _) in others.collect::<Vec<_>>() {
                    assert!(!cache.is_valid(grant.entry_id()));
                    cache.release(grant);
                    host.let_go(part);
                }
            } else {
                cache.release(grant);
            }
            host.let_go(part);
            continue;
        }
        // Few positions, so that threads request the same bytes.
        let start = random(4) * 16 + random(2) * 4;
        let part = span(start, (random(3) * 8 + 4).min(BYTES as u64 - start));
        let scope = if seed == 0 { scopes[0] } else { scopes[1 + random(2) as usize] };
        let rights = if random(3) == 0 { RegistrationRights::LOCAL } else { RegistrationRights::WRITE };
        let fails = random(8) == 0;
        host.hold(part);
        let make = || if fails { Err(()) } else { Ok(nic.make(scope, part, host.pages(part))) };
        let look = |mr: &Mr| (mr.span, mr.scope, mr.pages.clone(), Arc::clone(&mr.is_open));
        match cache.acquire(&key(scope, rights), part, BOUND, make, look) {
            Ok((grant, (whole, of, pages, is_open))) => {
                assert!(whole.contains(part) && of == scope && grant.granted_span() == part);
                assert_eq!(grant.start_offset(), part.start() - whole.start());
                let from = grant.start_offset() as usize;
                assert_eq!(
                    pages[from..from + part.len() as usize],
                    host.pages(part),
                    "registered memory was freed"
                );
                assert!(is_open.load(SeqCst));
                held.push((grant, part, is_open));
                counts[0] += 1;
            }
            Err(AcquireError::Make(())) => {
                host.let_go(part);
                counts[1] += 1;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    for (grant, part, is_open) in held {
        assert!(is_open.load(SeqCst));
        cache.release(grant);
        host.let_go(part);
    }
    counts
}

#[test]
fn random_threads_get_open_registrations_of_their_memory() {
    let (cache, first, nic) = world();
    let scopes = [first, cache.open_scope().unwrap(), cache.open_scope().unwrap()];
    let host =
        Host { holders: Mutex::new([0; BYTES]), pages: (0..BYTES).map(|_| AtomicU64::new(0)).collect() };
    let barrier = Barrier::new(4);
    let one = |seed| {
        barrier.wait();
        at_random(seed, &cache, &scopes, &nic, &host)
    };
    let counts: Vec<[u64; 2]> = std::thread::scope(|threads| {
        let one = &one;
        let all: Vec<_> = (0..4).map(|seed| threads.spawn(move || one(seed))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let [given, failed] = counts.iter().fold([0, 0], |all, one| [all[0] + one[0], all[1] + one[1]]);
    // Each grant is of a registration that was made for it, or was open already.
    let made = nic.made.load(SeqCst) as u64;
    assert!(made + 100 < given && failed > 100, "{made} registrations for {given} grants; {failed} failed");
    assert_eq!((nic.open.load(SeqCst), cache.registration_count()), (0, 0));
}
