//! The links of a comm as its row of a status page shows them.

use crate::limits::LINKS_MAX;

/// The links of a comm.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RowLinks {
    count: u8,
    carrying: u8,
    nics: [u16; LINKS_MAX],
}

impl RowLinks {
    /// Links over these NICs, by number, of which those with a set bit carry; as many as a comm can have.
    #[must_use]
    pub fn new(nics: &[u16], carrying: u8) -> Self {
        let count = nics.len().min(LINKS_MAX);
        let mut all = [0; LINKS_MAX];
        all[..count].copy_from_slice(&nics[..count]);
        let count = count as u8;
        Self { count, carrying: carrying & link_mask(count), nics: all }
    }

    /// The same links, of which these carry.
    #[must_use]
    pub fn with_carrying(self, carrying: u8) -> Self {
        Self { carrying: carrying & link_mask(self.count), ..self }
    }

    /// Which carry.
    #[must_use]
    pub const fn carrying(&self) -> u8 {
        self.carrying
    }

    /// Each link: the number of its NIC, and whether it carries.
    pub fn iter(&self) -> impl Iterator<Item = (u16, bool)> + use<> {
        let Self { count, carrying, nics } = *self;
        nics.into_iter()
            .take(usize::from(count))
            .enumerate()
            .map(move |(at, nic)| (nic, carrying >> at & 1 == 1))
    }

    /// The NIC of the first.
    pub(super) const fn first_nic(&self) -> u16 {
        self.nics[0]
    }

    /// All but that.
    pub(super) fn to_word(self) -> u64 {
        let [_, one, two, three] = self.nics.map(u64::from);
        u64::from(self.count) | u64::from(self.carrying) << 8 | one << 16 | two << 32 | three << 48
    }

    /// Reads them; `None` for links that cannot be.
    pub(super) fn from_word(first: u16, word: u64) -> Option<Self> {
        let count = word as u8;
        let carrying = (word >> 8) as u8;
        let nics = [first, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16];
        let beyond = nics.iter().skip(usize::from(count)).any(|&nic| nic != 0);
        let possible = (1..=LINKS_MAX as u8).contains(&count) && carrying & !link_mask(count) == 0 && !beyond;
        possible.then_some(Self { count, carrying, nics })
    }
}

/// A bit for each of so many links, of which there are few.
const fn link_mask(count: u8) -> u8 {
    (1 << count) - 1
}
