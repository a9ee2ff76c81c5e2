//! The addresses at both ends for the strands of a stream that this process opened. Used by that stream alone; holds no strand
//! and does not decide when to dial.

use std::net::{IpAddr, SocketAddr};

use trunkline_proto::time::Duration;
use trunkline_proto::wire::strand::STRANDS_MAX;

use super::control_connection::{ConnectionFault, ControlConnection};

/// Addresses of both ends.
#[derive(Debug)]
pub(super) struct ConnectionDialer {
    /// Addresses of the other process.
    places: Vec<SocketAddr>,
    /// Addresses of this one.
    from: Vec<IpAddr>,
    silence: Duration,
}

impl ConnectionDialer {
    pub(super) fn new(places: Vec<SocketAddr>, from: Vec<IpAddr>, silence: Duration) -> Self {
        Self { places, from, silence }
    }

    /// Returns the number of strands to establish.
    pub(super) fn connection_count(&self) -> usize {
        self.places.len().max(self.from.len()).min(STRANDS_MAX)
    }

    /// Starts an attempt of a slot.
    pub(super) fn dial_slot(&self, slot: usize) -> Result<ControlConnection, ConnectionFault> {
        let to = self.places[slot % self.places.len()];
        // Slot 0 leaves the source to the kernel, which knows a route, because a host whose routes ignore the
        // source may have no other.
        let from = (slot > 0).then(|| self.from.get(slot % self.from.len().max(1)).copied()).flatten();
        let from = from.filter(|from| from.is_ipv4() == to.is_ipv4());
        ControlConnection::start_connect(to, from, self.silence, slot)
    }

    /// Replaces the addresses of the other process by those that it has sent.
    pub(super) fn update_addresses(&mut self, places: Vec<SocketAddr>) {
        if !places.is_empty() {
            self.places = places;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(10);

    fn nowhere(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn strand_count_is_the_larger_address_count() {
        let from = |count: u8| (1..=count).map(|at| IpAddr::from([127, 0, 0, at])).collect::<Vec<_>>();
        for (places, ours, strands) in [(1, 0, 1), (1, 1, 1), (2, 1, 2), (1, 3, 3), (4, 2, 4), (9, 9, 4)] {
            let mut dial = ConnectionDialer::new(vec![nowhere(9)], from(ours), SILENCE);
            dial.update_addresses((1..=places).map(nowhere).collect());
            dial.update_addresses(Vec::new());
            assert_eq!(dial.connection_count(), strands, "{places} {ours}");
        }
    }
}
