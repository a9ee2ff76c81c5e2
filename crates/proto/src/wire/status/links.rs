//! The links of a comm, as its row of a status page shows them.

use crate::limits::LINKS_MAX;

/// The links of a comm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RowLinks {
    count: u8,
    carrying: u8,
    nics: [u16; LINKS_MAX],
}

impl RowLinks {
    /// Creates links over these NICs, by number; bit i of `carrying` is set if link i is usable. At most [`LINKS_MAX`] links.
    #[must_use]
    pub fn new(nics: &[u16], carrying: u8) -> Self {
        let count = nics.len().min(LINKS_MAX);
        let mut all = [0; LINKS_MAX];
        all[..count].copy_from_slice(&nics[..count]);
        let count = count as u8;
        Self { count, carrying: carrying & link_mask(count), nics: all }
    }

    /// Returns the same links with other usable ones.
    #[must_use]
    pub fn with_carrying(self, carrying: u8) -> Self {
        Self { carrying: carrying & link_mask(self.count), ..self }
    }

    /// Returns which links are usable: bit 0 is the first.
    #[must_use]
    pub const fn carrying(&self) -> u8 {
        self.carrying
    }

    /// Iterates over the links: the number of the NIC, and whether the link is usable.
    pub fn iter(&self) -> impl Iterator<Item = (u16, bool)> + use<> {
        let Self { count, carrying, nics } = *self;
        nics.into_iter()
            .take(usize::from(count))
            .enumerate()
            .map(move |(at, nic)| (nic, carrying >> at & 1 == 1))
    }

    /// Returns the NIC of the first link.
    pub(super) const fn first_nic(&self) -> u16 {
        self.nics[0]
    }

    /// Returns the word of all fields except the first NIC: count in bits 0-7, usable links from bit 8 on, further NICs from bits 16, 32 and 48 on.
    pub(super) fn to_word(self) -> u64 {
        let [_, one, two, three] = self.nics.map(u64::from);
        u64::from(self.count) | u64::from(self.carrying) << 8 | one << 16 | two << 32 | three << 48
    }

    /// Parses links; `None` if they are invalid.
    pub(super) fn from_word(first: u16, word: u64) -> Option<Self> {
        let count = word as u8;
        let carrying = (word >> 8) as u8;
        let nics = [first, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16];
        let beyond = nics.iter().skip(usize::from(count)).any(|&nic| nic != 0);
        let possible = (1..=LINKS_MAX as u8).contains(&count) && carrying & !link_mask(count) == 0 && !beyond;
        possible.then_some(Self { count, carrying, nics })
    }
}

/// Returns a mask of that many links, at most 7.
const fn link_mask(count: u8) -> u8 {
    (1 << count) - 1
}
