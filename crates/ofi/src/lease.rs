//! Keys of registrations where the application chooses them: random, if the provider's keys are long enough, and
//! distinct in a domain. A key belongs to one registration, and is free again only after that is closed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::rand::{GetRandomFlags, getrandom};
use trunkline_sys::ofi::KEY_NOTAVAIL;

/// The maximum number of keys in use in a domain.
const MOST: usize = 1 << 20;
/// Keys of at most that many bits are tried in sequence, longer ones at random.
const FEW_BITS: u32 = 16;
/// Attempts for a random key. With at most [`MOST`] keys of more than [`FEW_BITS`] bits in use, one attempt finds a free key except for the
/// shortest keys.
const TRIES: u32 = 256;

/// Why no key is available.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// All keys are in use.
    #[error("all keys of the domain are in use: {live} keys of {bits} bits; deregister memory")]
    Exhausted {
        /// Number of keys in use.
        live: usize,
        /// Bits of a key.
        bits: u32,
    },
    /// The system has no randomness.
    #[error("getrandom failed: {0}")]
    Random(String),
}

/// The keys of a domain.
#[derive(Debug)]
pub struct KeyLeases {
    bits: u32,
    most: usize,
    live: Mutex<HashSet<u64>>,
}

impl KeyLeases {
    /// Creates the keys of a domain, with `bits` bits, at most 64.
    #[must_use]
    pub fn new(bits: u32) -> Arc<Self> {
        Self::with_limit(bits, MOST)
    }

    fn with_limit(bits: u32, most: usize) -> Arc<Self> {
        Arc::new(Self { bits: bits.min(u64::BITS), most, live: Mutex::default() })
    }

    /// Returns the number of keys in use.
    #[must_use]
    pub fn live_count(&self) -> usize {
        self.lock_keys().len()
    }

    /// Returns whether a key is in use.
    #[must_use]
    pub fn is_leased(&self, key: u64) -> bool {
        self.lock_keys().contains(&key)
    }

    fn lock_keys(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key_mask(&self) -> u64 {
        u64::MAX.checked_shr(u64::BITS - self.bits).unwrap_or(0)
    }

    /// Leases a free key: never 0, which a peer may use by mistake, and never the value for "no key" (`FI_KEY_NOTAVAIL`).
    pub(crate) fn take_lease(self: &Arc<Self>) -> Result<KeyLease, LeaseError> {
        let mut live = self.lock_keys();
        let exhausted = LeaseError::Exhausted { live: live.len(), bits: self.bits };
        // Bounded, so that random attempts find a free key.
        if live.len() >= self.most {
            return Err(exhausted);
        }
        // Random keys, so that a peer cannot access other registrations by guessing.
        let first = random_key()?;
        // Short keys are tried in sequence, because random attempts may miss the last free ones.
        let tries = if self.bits <= FEW_BITS { 1 << self.bits } else { TRIES };
        for at in 0..tries {
            let one = if self.bits <= FEW_BITS { first.wrapping_add(at.into()) } else { random_key()? };
            let key = one & self.key_mask();
            let usable = key != 0 && key != KEY_NOTAVAIL;
            if usable && live.insert(key) {
                return Ok(KeyLease { key, leases: Arc::clone(self) });
            }
        }
        Err(exhausted)
    }
}

fn random_key() -> Result<u64, LeaseError> {
    let mut bytes = [0; 8];
    let mut have = 0;
    while have < bytes.len() {
        let more = getrandom(&mut bytes[have..], GetRandomFlags::empty());
        have += more.map_err(|errno| LeaseError::Random(errno.to_string()))?;
    }
    Ok(u64::from_ne_bytes(bytes))
}

/// The lease of a key for one registration; dropping it frees the key.
#[derive(Debug)]
pub(crate) struct KeyLease {
    key: u64,
    leases: Arc<KeyLeases>,
}

impl KeyLease {
    /// Returns the key.
    pub(crate) fn leased_key(&self) -> u64 {
        self.key
    }
}

impl Drop for KeyLease {
    fn drop(&mut self) {
        self.leases.lock_keys().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct_and_reusable() {
        for bits in [3, 8, 16, 24, 32, 64] {
            let leases = KeyLeases::new(bits);
            let mut random = fastrand::Rng::with_seed(u64::from(bits));
            let mut held: Vec<KeyLease> = Vec::new();
            let mut model: HashSet<u64> = HashSet::new();
            for _ in 0..100_000 {
                if held.is_empty() || random.u32(..8) < 4 && held.len() < 1000 {
                    match leases.take_lease() {
                        Ok(lease) => {
                            assert!(lease.leased_key() != 0 && lease.leased_key() & !leases.key_mask() == 0);
                            assert!(
                                model.insert(lease.leased_key()),
                                "{bits} bits: {} twice",
                                lease.leased_key()
                            );
                            held.push(lease);
                        }
                        Err(error) => {
                            let most = (1 << bits.min(20)) - 1;
                            assert_eq!(error, LeaseError::Exhausted { live: held.len(), bits });
                            assert_eq!(held.len(), most, "{error}");
                        }
                    }
                } else {
                    let lease = held.swap_remove(random.usize(..held.len()));
                    assert!(model.remove(&lease.leased_key()));
                }
                assert_eq!(leases.live_count(), model.len());
            }
            assert!(model.iter().all(|key| leases.is_leased(*key)));
        }
    }

    #[test]
    fn exhausted_keys_are_reported_and_stay_leased() {
        let leases = KeyLeases::new(2);
        let held: Vec<KeyLease> = std::iter::from_fn(|| leases.take_lease().ok()).take(9).collect();
        let mut keys: Vec<u64> = held.iter().map(KeyLease::leased_key).collect();
        keys.sort_unstable();
        assert_eq!(keys, [1, 2, 3]);
        assert_eq!(
            leases.take_lease().unwrap_err().to_string(),
            "all keys of the domain are in use: 3 keys of 2 bits; deregister memory"
        );
        drop(held);
        assert_eq!(leases.live_count(), 0);
        assert!(KeyLeases::new(0).take_lease().is_err());
        let few = KeyLeases::with_limit(64, 2);
        let first = few.take_lease().unwrap();
        let _second = few.take_lease().unwrap();
        assert_eq!(few.take_lease().unwrap_err(), LeaseError::Exhausted { live: 2, bits: 64 });
        drop(first);
        assert!(few.take_lease().is_ok());
    }
}
