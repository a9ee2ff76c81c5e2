//! Address vectors, which map the addresses of peers to the numbers that operations use.

use trunkline_sys::ofi::{ADDR_NOTAVAIL, Addr, av_type};

use crate::wire::StrictAddress;

/// Most addresses per vector.
const PEERS_MAX: usize = 1 << 20;

/// An address vector.
pub(crate) struct AddressVector {
    is_table: bool,
    all: Vec<Option<StrictAddress>>,
    /// Numbers of the bound endpoints.
    pub(crate) endpoints: Vec<u32>,
}

impl AddressVector {
    pub(crate) fn new(kind: u32) -> Self {
        Self { is_table: kind == av_type::TABLE, all: Vec::new(), endpoints: Vec::new() }
    }

    /// Returns the number for an index: the index itself in a table, otherwise a value that differs from all small
    /// numbers.
    fn addr_of(&self, place: usize) -> Addr {
        if self.is_table { place as Addr } else { (place as Addr) << 8 | 0xA5 }
    }

    fn place_of(&self, addr: Addr) -> Option<usize> {
        if !self.is_table && addr & 0xFF != 0xA5 {
            return None;
        }
        usize::try_from(if self.is_table { addr } else { addr >> 8 }).ok()
    }

    /// Inserts an address; returns `None` if the vector is full.
    pub(crate) fn insert(&mut self, address: StrictAddress) -> Option<Addr> {
        if self.all.len() >= PEERS_MAX {
            return None;
        }
        self.all.push(Some(address));
        Some(self.addr_of(self.all.len() - 1))
    }

    /// Removes a peer; returns `false` if it is unknown.
    pub(crate) fn remove(&mut self, addr: Addr) -> bool {
        let place = self.place_of(addr).and_then(|place| self.all.get_mut(place));
        place.is_some_and(|place| place.take().is_some())
    }

    pub(crate) fn lookup_address(&self, addr: Addr) -> Option<StrictAddress> {
        self.place_of(addr).and_then(|place| self.all.get(place).copied()).flatten()
    }

    /// Returns the number of an address, or [`ADDR_NOTAVAIL`] if it is unknown.
    pub(crate) fn find_addr(&self, address: &StrictAddress) -> Addr {
        let place = self.all.iter().position(|there| there.as_ref() == Some(address));
        place.map_or(ADDR_NOTAVAIL, |place| self.addr_of(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_until_they_are_removed() {
        for kind in [av_type::TABLE, av_type::MAP] {
            let mut vector = AddressVector::new(kind);
            let addrs: Vec<_> = (0..3).map(|n| vector.insert([n; 16]).unwrap()).collect();
            assert_eq!(kind == av_type::TABLE, addrs == [0, 1, 2]);
            assert_eq!(vector.lookup_address(addrs[1]), Some([1; 16]));
            assert_eq!(vector.find_addr(&[1; 16]), addrs[1]);
            assert!(vector.remove(addrs[1]) && !vector.remove(addrs[1]) && !vector.remove(77));
            assert_eq!((vector.lookup_address(addrs[1]), vector.find_addr(&[1; 16])), (None, ADDR_NOTAVAIL));
            assert_eq!(vector.lookup_address(ADDR_NOTAVAIL), None);
        }
    }
}
