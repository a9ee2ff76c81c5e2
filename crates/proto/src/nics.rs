//! The NICs of one end of a comm, as another process knows them: by number. Said by handles, compared by the pool.

use crate::limits::RAILS_MAX;

/// Up to four NICs in their order, by number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct NicList {
    numbers: [u16; RAILS_MAX],
    count: u8,
}

impl NicList {
    /// What stands where numbers end that no NIC follows; so no NIC has this one.
    pub const NOBODY: u16 = u16::MAX;

    /// None: those of the other end, where they are not known.
    pub const NONE: Self = Self { numbers: [0; RAILS_MAX], count: 0 };

    /// The one that a process has for its neighbours, of whatever number.
    pub const NEAR: Self = Self { numbers: [Self::NOBODY - 1, 0, 0, 0], count: 1 };

    /// The NICs of that list; `None` if they are more than [`RAILS_MAX`], or one of them is there twice or is
    /// [`NicList::NOBODY`] or that of [`NicList::NEAR`].
    #[must_use]
    pub fn new(list: &[u16]) -> Option<Self> {
        let mut numbers = [0; RAILS_MAX];
        numbers.get_mut(..list.len())?.copy_from_slice(list);
        let differ = list.iter().enumerate().all(|(at, nic)| !list[..at].contains(nic));
        (differ && list.iter().all(|&nic| nic < Self::NOBODY - 1))
            .then_some(Self { numbers, count: list.len() as u8 })
    }

    /// Their numbers.
    #[must_use]
    pub fn nic_numbers(&self) -> &[u16] {
        &self.numbers[..usize::from(self.count)]
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> u8 {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_four_different_ones() {
        assert_eq!(NicList::new(&[]), Some(NicList::NONE));
        assert_eq!(NicList::new(&[2, 0, 1, 7]).map(|nics| nics.len()), Some(4));
        assert_eq!(NicList::new(&[3]).map(|nics| nics.is_empty()), Some(false));
        for wrong in [&[1, 1][..], &[0, 1, 2, 3, 4], &[0xffff], &[0xfffe], &[2, 0xffff, 3]] {
            assert_eq!(NicList::new(wrong), None);
        }
        assert_ne!(NicList::new(&[0, 1]), NicList::new(&[1, 0]), "the order is the order of the links");
    }
}
