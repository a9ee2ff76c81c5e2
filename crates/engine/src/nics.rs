//! The NICs that one comm uses at this end: one, or several that are fused. Made by front ends, read at set-up.

use trunkline_proto::limits::RAILS_MAX;
use trunkline_proto::nics;

/// One to four different NICs, by their numbers in the fabric's list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CommNics {
    numbers: [usize; RAILS_MAX],
    count: usize,
}

impl CommNics {
    /// Returns the NICs of a list, in its order; `None` if it is empty, longer than four, or contains a NIC twice.
    #[must_use]
    pub fn new(list: &[usize]) -> Option<Self> {
        let mut numbers = [0; RAILS_MAX];
        numbers.get_mut(..list.len())?.copy_from_slice(list);
        let differ = list.iter().enumerate().all(|(at, nic)| !list[..at].contains(nic));
        (!list.is_empty() && differ).then_some(Self { numbers, count: list.len() })
    }

    /// Returns their numbers.
    #[must_use]
    pub fn numbers(&self) -> &[usize] {
        &self.numbers[..self.count]
    }

    /// Returns the first one.
    #[must_use]
    pub fn first_nic(&self) -> usize {
        self.numbers[0]
    }

    /// Returns them in wire format; `None` if a number does not fit.
    pub(crate) fn to_wire(self) -> Option<nics::NicList> {
        let mut numbers = [0; RAILS_MAX];
        for (told, &number) in numbers.iter_mut().zip(self.numbers()) {
            *told = u16::try_from(number).ok()?;
        }
        nics::NicList::new(&numbers[..self.count])
    }
}

impl From<usize> for CommNics {
    fn from(nic: usize) -> Self {
        Self { numbers: [nic, 0, 0, 0], count: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comm_nics_accept_one_to_four_distinct_numbers() {
        assert_eq!(CommNics::new(&[3]), Some(CommNics::from(3)));
        assert_eq!(CommNics::new(&[2, 0, 1, 7]).map(|nics| nics.numbers().to_vec()), Some(vec![2, 0, 1, 7]));
        for wrong in [&[][..], &[1, 1], &[0, 1, 2, 3, 4]] {
            assert_eq!(CommNics::new(wrong), None);
        }
    }

    #[test]
    fn wire_form_requires_16_bit_nic_numbers() {
        let told = |list: &[usize]| CommNics::new(list).and_then(|nics| nics.to_wire());
        assert_eq!(told(&[2, 0xfffd, 0]), nics::NicList::new(&[2, 0xfffd, 0]));
        assert!(told(&[7]).is_some());
        for wrong in [&[0xffff][..], &[0xfffe], &[1, 0x1_0000]] {
            assert_eq!(told(wrong), None);
        }
    }
}
