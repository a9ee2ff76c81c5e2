//! The NICs of one end of a comm, by the numbers that other processes know. Handles contain them, and the pool compares them.

use crate::limits::RAILS_MAX;

/// Up to four NICs in their order, by number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct NicList {
    numbers: [u16; RAILS_MAX],
    count: u8,
}

impl NicList {
    /// The value in unused places after the last number; so no NIC has this number.
    pub const NOBODY: u16 = u16::MAX;

    /// The empty list: the NICs of the other end, if they are unknown.
    pub const NONE: Self = Self { numbers: [0; RAILS_MAX], count: 0 };

    /// The NIC for processes on the same host, whatever its number is.
    pub const NEAR: Self = Self { numbers: [Self::NOBODY - 1, 0, 0, 0], count: 1 };

    /// Returns a list of those NICs. `None` if there are more than [`RAILS_MAX`], if one is contained twice, or if a number is
    /// [`NicList::NOBODY`] or that of [`NicList::NEAR`].
    #[must_use]
    pub fn new(list: &[u16]) -> Option<Self> {
        let mut numbers = [0; RAILS_MAX];
        numbers.get_mut(..list.len())?.copy_from_slice(list);
        let differ = list.iter().enumerate().all(|(at, nic)| !list[..at].contains(nic));
        (differ && list.iter().all(|&nic| nic < Self::NOBODY - 1))
            .then_some(Self { numbers, count: list.len() as u8 })
    }

    /// The numbers of the NICs.
    #[must_use]
    pub fn nic_numbers(&self) -> &[u16] {
        &self.numbers[..usize::from(self.count)]
    }

    /// Number of NICs.
    #[must_use]
    pub const fn len(&self) -> u8 {
        self.count
    }

    /// Whether the list is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nic_list_accepts_up_to_four_distinct_numbers() {
        assert_eq!(NicList::new(&[]), Some(NicList::NONE));
        assert_eq!(NicList::new(&[2, 0, 1, 7]).map(|nics| nics.len()), Some(4));
        assert_eq!(NicList::new(&[3]).map(|nics| nics.is_empty()), Some(false));
        for wrong in [&[1, 1][..], &[0, 1, 2, 3, 4], &[0xffff], &[0xfffe], &[2, 0xffff, 3]] {
            assert_eq!(NicList::new(wrong), None);
        }
        assert_ne!(NicList::new(&[0, 1]), NicList::new(&[1, 0]), "the order is the order of the links");
    }
}
