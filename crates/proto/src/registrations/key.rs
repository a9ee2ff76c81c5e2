//! The key of a registration: its scope, its memory and its rights. The registrars of fabrics make keys, and
//! [`RegionMap`](super::RegionMap) compares them, field by field.

use core::num::NonZeroU64;

/// The scope of a registration: one domain, or one endpoint where registrations are bound to endpoints. A scope is
/// never reused, unlike the address of an endpoint, so that a new endpoint cannot find the registrations of an old one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RegistrationScope(pub(super) NonZeroU64);

impl RegistrationScope {
    /// The least number.
    pub(super) const FIRST: Self = Self(NonZeroU64::MIN);

    /// Returns the next number.
    pub(super) fn next_scope(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

/// The rights of a registration, as a set. A registration with more rights also serves a request for fewer.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RegistrationRights(u8);

impl RegistrationRights {
    /// Only this side uses it.
    pub const LOCAL: Self = Self(0);
    /// Peers may write.
    pub const WRITE: Self = Self(1);
    /// Peers may read.
    pub const READ: Self = Self(1 << 1);
    /// Peers may write and read.
    pub const ALL: Self = Self(Self::WRITE.0 | Self::READ.0);

    /// Returns the rights of both sets.
    #[must_use]
    pub const fn with_rights(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether this set contains all rights of the other.
    #[must_use]
    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns all sets that contain this one: itself first, then larger numbers.
    pub(super) fn covering_sets(self) -> impl Iterator<Item = Self> {
        (self.0..=Self::ALL.0).map(Self).filter(move |set| set.contains_all(self))
    }
}

/// The memory that a span refers to. Equal spans of different memory are different bytes.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum MemorySpace {
    /// Memory of the host: spans are addresses of this process.
    Host,
    /// Memory of a device: spans are addresses of this process.
    Device {
        /// The device, by a number that is unique in the process.
        device: u32,
    },
    /// Memory of a dma-buf: spans are byte offsets in it. A registration keeps the dma-buf alive, so its inode number
    /// is not reused while the registration is open.
    DmaBuf {
        /// The file system that the descriptor names (`st_dev`).
        dev: u64,
        /// The file in it (`st_ino`).
        inode: u64,
    },
}

/// A request finds registrations of the same scope and memory that allow at least the same rights.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RegistrationKey {
    /// The scope.
    pub scope: RegistrationScope,
    /// The memory.
    pub memory: MemorySpace,
    /// The rights.
    pub rights: RegistrationRights,
}

impl RegistrationKey {
    /// Returns the least key of that scope.
    pub(super) const fn first_of(scope: RegistrationScope) -> Self {
        Self { scope, memory: MemorySpace::Host, rights: RegistrationRights::LOCAL }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn covering_sets_contain_all_rights() {
        let sets = |rights: RegistrationRights| rights.covering_sets().collect::<Vec<_>>();
        let [none, write, read, all] = [0, 1, 2, 3].map(RegistrationRights);
        assert_eq!((write, read), (RegistrationRights::WRITE, RegistrationRights::READ));
        assert_eq!((write.with_rights(read), RegistrationRights::ALL), (all, all));
        assert!(all.contains_all(read) && all.contains_all(all) && read.contains_all(none));
        assert!(!read.contains_all(write) && !none.contains_all(read) && !write.contains_all(all));
        assert_eq!(sets(none), [none, write, read, all]);
        assert_eq!(
            (sets(write), sets(read), sets(all)),
            ([write, all].into(), [read, all].into(), [all].into())
        );
    }

    #[test]
    fn first_key_of_a_scope_is_the_least() {
        let first = RegistrationKey::first_of(RegistrationScope::FIRST);
        for memory in
            [MemorySpace::Host, MemorySpace::Device { device: 0 }, MemorySpace::DmaBuf { dev: 0, inode: 0 }]
        {
            for rights in RegistrationRights::LOCAL.covering_sets() {
                assert!(first <= RegistrationKey { memory, rights, ..first });
            }
        }
        let next = RegistrationScope::FIRST.next_scope().unwrap();
        assert!(
            RegistrationKey::first_of(next) > RegistrationKey { rights: RegistrationRights::ALL, ..first }
        );
        assert_eq!(RegistrationScope(NonZeroU64::MAX).next_scope(), None);
    }
}
