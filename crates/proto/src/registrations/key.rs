//! What a registration is of and for: where it holds, what may be done with it, whose bytes they are. Made by the engine
//! from what it is asked to register; compared by the cache, bit by bit.

use core::num::NonZeroU64;

/// Where a registration holds: one domain, or one endpoint where registrations are bound to endpoints. Given by the cache,
/// a number that no other has had or will have; so it cannot be mistaken for another, as the address of an endpoint can
/// that is made where an older one was.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RegistrationScope(pub(super) NonZeroU64);

/// What a registration allows, as a set. One that allows more serves who asks for less.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RegistrationRights(u8);

impl RegistrationRights {
    /// Only this side uses it.
    pub const LOCAL: Self = Self(0);
    /// Peers may write.
    pub const WRITE: Self = Self(1);
    /// Peers may read.
    pub const READ: Self = Self(1 << 1);
    /// Peers may do atomics.
    pub const ATOMIC: Self = Self(1 << 2);
    /// What peers write is seen in order and at once.
    pub const STRICT: Self = Self(1 << 3);
    /// All of them.
    pub const ALL: Self = Self(Self::SETS as u8 - 1);
    /// How many sets there are.
    pub(super) const SETS: usize = 1 << 4;

    /// These and those.
    #[must_use]
    pub const fn with_rights(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of the other are among these.
    #[must_use]
    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set as a number below [`Self::SETS`].
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    /// All sets that cover this one: itself first, then larger numbers.
    pub(super) fn covering_sets(self) -> impl Iterator<Item = Self> {
        (self.0..=Self::ALL.0).map(Self).filter(move |set| set.contains_all(self))
    }
}

/// Whose bytes a span counts, and from where. Equal spans of different memory have nothing to do with each other.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum MemorySpace {
    /// Of the host: spans are addresses of this process.
    Host,
    /// Of a device, found by its address: spans are addresses of this process.
    Device {
        /// Which, by a number that no other device of the process has.
        device: u32,
        /// What its driver calls the allocation, if it has a name for each that is not used again: then a new allocation
        /// at the same address is other memory. Otherwise [`PinDownCache::forget_memory`](super::PinDownCache::forget_memory) must be
        /// told when memory is freed.
        allocation: Option<u64>,
    },
    /// Behind a dma-buf: spans are offsets in it, to the byte. A registration keeps the dma-buf alive, so that its name is
    /// not given to another one while the registration stands.
    DmaBuf {
        /// The file system that the descriptor names (`st_dev`).
        dev: u64,
        /// The file in it (`st_ino`).
        inode: u64,
    },
}

/// What operations use a registration: where registrations are bound to endpoints, each of the two has one of its own. One
/// for the one never serves the other, wherever it is bound.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum RegistrationPurpose {
    /// Those with payload: of users, or in our own buffers.
    Payload,
    /// Those that write records: into mailboxes and signals.
    Records,
}

impl RegistrationPurpose {
    pub(super) const BOTH: [Self; 2] = [Self::Payload, Self::Records];
}

/// A registration is found by who asks for the same scope, memory and purpose, and for no more rights.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RegistrationKey {
    /// Where it holds.
    pub scope: RegistrationScope,
    /// Whose bytes they are.
    pub memory: MemorySpace,
    /// What uses it.
    pub purpose: RegistrationPurpose,
    /// What it allows.
    pub rights: RegistrationRights,
}

impl RegistrationKey {
    /// Before all keys of that scope.
    pub(super) const fn first_of(scope: RegistrationScope) -> Self {
        Self {
            scope,
            memory: MemorySpace::Host,
            purpose: RegistrationPurpose::Payload,
            rights: RegistrationRights::LOCAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn rights_are_covered_by_those_that_have_them_all() {
        let both = RegistrationRights::WRITE.with_rights(RegistrationRights::READ);
        assert!(
            both.contains_all(RegistrationRights::READ)
                && both.contains_all(both)
                && both.contains_all(RegistrationRights::LOCAL)
        );
        assert!(
            !both.contains_all(RegistrationRights::ATOMIC)
                && !RegistrationRights::LOCAL.contains_all(RegistrationRights::READ)
        );
        let sets: Vec<_> =
            RegistrationRights::WRITE.with_rights(RegistrationRights::ATOMIC).covering_sets().collect();
        assert_eq!(
            sets,
            [RegistrationRights(5), RegistrationRights(7), RegistrationRights(13), RegistrationRights(15)]
        );
        assert_eq!(RegistrationRights::LOCAL.covering_sets().count(), RegistrationRights::SETS);
        assert_eq!(RegistrationRights::ALL.covering_sets().count(), 1);
    }

    #[test]
    fn nothing_of_a_scope_is_before_its_first_key() {
        let scope = RegistrationScope(NonZeroU64::MIN);
        let first = RegistrationKey::first_of(scope);
        let device = MemorySpace::Device { device: 0, allocation: None };
        for memory in [MemorySpace::Host, device, MemorySpace::DmaBuf { dev: 0, inode: 0 }] {
            for purpose in RegistrationPurpose::BOTH {
                for rights in RegistrationRights::LOCAL.covering_sets() {
                    assert!(first <= RegistrationKey { scope, memory, purpose, rights });
                }
            }
        }
    }
}
