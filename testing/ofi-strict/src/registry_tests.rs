//! Tests of the stages of registrations, and random steps against a model of their budget and keys.

use proptest::prelude::*;

use super::*;

const NOISE: u64 = 0x1234_0000_0000;
const ENDPOINT: i32 = mr_mode::ENDPOINT | mr_mode::PROV_KEY;

fn wanted(rights: u64, requested_key: u64) -> RegistrationRequest {
    RegistrationRequest { range: ProgramRange { base: 4096, len: 100 }, rights, requested_key, bytes: None }
}

fn error<T>(result: Result<T, BrokenRule>) -> i32 {
    result.err().map_or(0, |broken| broken.error)
}

#[test]
fn registration_is_bound_and_enabled_once() {
    let mut all = MrRegistry::new(ENDPOINT, 10, NOISE);
    let (id, key) = all.register(wanted(caps::REMOTE_WRITE, 0)).unwrap();
    assert_eq!(key, None);
    assert_eq!(
        (error(all.enable_registration(id)), error(all.bind_endpoint(id, 3, false))),
        (errno::EINVAL, errno::EINVAL)
    );
    assert_eq!(
        (error(all.bind_endpoint(id, 3, true)), error(all.bind_endpoint(id, 4, true))),
        (0, errno::EINVAL)
    );
    assert_eq!(all.bound_to(3), 1);
    let key = all.enable_registration(id).unwrap();
    assert_eq!(
        (error(all.enable_registration(id)), error(all.bind_endpoint(id, 3, true))),
        (errno::EINVAL, errno::EINVAL)
    );
    assert!(all.check_remote(3, key, 0, 100, true).is_ok());
    assert_eq!(error(all.check_remote(4, key, 0, 100, true)), errno::EKEYREJECTED);
    assert_eq!(error(all.check_remote(3, key, 0, 100, false)), errno::EACCES);
    all.close(id).unwrap();
    assert_eq!((all.bound_to(3), all.entries, all.most_entries()), (0, 0, 2));
    assert_eq!(all.check_remote(3, key, 0, 1, true).unwrap_err().line, None);
    assert!(all.check_remote(3, key + 1, 0, 1, true).unwrap_err().line.is_some());
}

#[test]
fn key_of_another_domain_is_invalid() {
    let key = |noise| {
        let mut all = MrRegistry::new(mr_mode::PROV_KEY, 10, noise);
        let made = all.register(wanted(caps::REMOTE_WRITE, 0)).unwrap();
        (all, made.1.unwrap())
    };
    let ((all, own), (_, others)) = (key(1 << 40), key(2 << 40));
    assert!(all.check_remote(0, own, 0, 1, true).is_ok());
    assert!(all.check_remote(0, others, 0, 1, true).unwrap_err().line.is_some());
}

#[test]
fn addresses_are_offsets_or_virtual() {
    for (mode, base) in [(0, 0), (mr_mode::VIRT_ADDR, 4096)] {
        let mut all = MrRegistry::new(mode | mr_mode::PROV_KEY, 10, NOISE);
        let (_, key) = all.register(wanted(caps::REMOTE_WRITE, 0)).unwrap();
        let key = key.unwrap();
        assert_eq!(
            all.check_remote(0, key, base + 60, 40, true).unwrap().1,
            ProgramRange { base: 4156, len: 40 }
        );
        for (addr, len) in
            [(base + 61, 40), (base + 100, 1), (u64::MAX, 1), (base, u64::MAX), (base.wrapping_sub(1), 1)]
        {
            assert_eq!(error(all.check_remote(0, key, addr, len, true)), errno::EACCES, "{addr:#x} {len}");
        }
    }
}

#[test]
fn registration_in_use_is_not_closed() {
    let mut all = MrRegistry::new(0, 10, NOISE);
    let (id, _) = all.register(wanted(caps::SEND, 7)).unwrap();
    all.update_uses(&[id, id], true);
    all.update_uses(&[id], false);
    assert_eq!(error(all.close(id)), errno::EBUSY);
    all.update_uses(&[id], false);
    assert_eq!(error(all.close(id)), 0);
}

#[test]
fn failed_registration_frees_its_key() {
    let mut all = MrRegistry::new(0, 1, NOISE);
    assert_eq!(error(all.register(wanted(caps::REMOTE_READ, 7))), errno::ENOSPC);
    assert_eq!((all.live_count(), error(all.register(wanted(caps::READ, 7)))), (0, 0));
    assert_eq!(error(all.register(wanted(caps::READ, 7))), errno::ENOKEY);
}

proptest! {
    #[test]
    fn keys_and_entries_follow_a_model(
        steps in proptest::collection::vec((0..8_u64, any::<bool>(), any::<bool>()), 1..200),
    ) {
        let mut all = MrRegistry::new(0, 8, NOISE);
        let mut model = BTreeMap::new();
        for (key, remote, closes) in steps {
            let rights = if remote { caps::REMOTE_READ } else { caps::READ };
            let used: u64 = model.values().map(|(_, cost)| *cost).sum();
            if closes {
                if let Some((id, _)) = model.remove(&key) {
                    prop_assert!(all.close(id).is_ok());
                }
            } else {
                let expected = match () {
                    () if model.contains_key(&key) => errno::ENOKEY,
                    () if used + entry_cost(rights) > 8 => errno::ENOSPC,
                    () => 0,
                };
                let made = all.register(wanted(rights, key));
                prop_assert_eq!(made.as_ref().err().map_or(0, |broken| broken.error), expected);
                if let Ok((id, _)) = made {
                    model.insert(key, (id, entry_cost(rights)));
                }
            }
            prop_assert_eq!(all.entries, model.values().map(|(_, cost)| *cost).sum::<u64>());
            prop_assert_eq!(all.live_count(), model.len());
        }
    }
}
