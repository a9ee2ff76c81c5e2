//! What a rank shares of its memory and who holds it, for whoever asks; and how it is asked back.

use std::time::Duration;

use trunkline_mem::ipc::IpcMemory;
pub use trunkline_node::ipc::{Counts as Driver, Hook};
use trunkline_node::tagged::PeerId;
pub use trunkline_proto::ipc::exporter::Counts as Sharing;
use trunkline_proto::ipc::exporter::Listing;
pub use trunkline_proto::ipc::exporter::{Amount, State, Usage, Why};
use trunkline_proto::time::Duration as Nanoseconds;

use super::{MessageError, Messages};

/// What there is of exported memory, and what has happened with it.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// What may be kept.
    pub budget: Amount,
    /// For how long an export is kept that no message uses; `None`: for ever.
    pub idle: Option<Duration>,
    /// What there is. Zombies are exports that are over and that a message uses or a rank has mapped; their bytes count.
    pub usage: Usage,
    /// Most bytes that were exported at once.
    pub peak_bytes: u64,
    /// Hits, misses, evictions, and messages that went without sharing by the reason why.
    pub counts: Sharing,
    /// What the driver was asked, and what it did not do.
    pub driver: Driver,
}

/// A rank that was told of an export and has not let it go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Holder {
    /// Which rank.
    pub rank: usize,
    /// Messages to it that use the export now.
    pub pins: u32,
}

/// Memory of this rank that others were told of.
#[derive(Clone, Debug)]
pub struct Exported {
    /// Address of the allocation's first byte.
    pub addr: usize,
    /// Its bytes.
    pub len: u64,
    /// What its driver calls the allocation; no other one of this process has that number.
    pub allocation: u64,
    /// Where the export stands.
    pub state: State,
    /// Whether it goes with the last message that uses it, instead of being kept.
    pub passing: bool,
    /// Messages that use it now.
    pub pins: u32,
    /// Since when no message has ended that used it.
    pub unused: Duration,
    /// Who holds it.
    pub held_by: Vec<Holder>,
}

/// What this rank has mapped of another one's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Imported {
    /// Whose memory.
    pub rank: usize,
    /// Exports of it that may be mapped here.
    pub imports: usize,
    /// Mappings.
    pub mappings: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Messages that use them now.
    pub pins: u64,
}

impl<M: IpcMemory> Messages<M> {
    /// What is exported by how much, out of what budget, and what became of messages that would have shared memory. A snapshot.
    #[must_use]
    pub fn shares(&self) -> Shares {
        let exporter = self.endpoint.node().exporter();
        let driver = self.endpoint.node().counts();
        let config = exporter.config();
        Shares {
            budget: config.budget,
            idle: config.idle.map(|limit| Duration::from_nanos(limit.0)),
            usage: exporter.usage(),
            peak_bytes: exporter.peak(),
            counts: exporter.counts(),
            driver,
        }
    }

    /// Every export of this rank, as it stands, with who holds it. In no order.
    #[must_use]
    pub fn listing(&self) -> Vec<Exported> {
        let now = self.now();
        let of = |listing: Listing| Exported {
            addr: listing.memory.span.start() as usize,
            len: listing.memory.span.len(),
            allocation: listing.memory.id.0,
            state: listing.state,
            passing: listing.passing,
            pins: listing.pins,
            unused: Duration::from_nanos(now.0.saturating_sub(listing.used.0)),
            held_by: self.holders(&listing),
        };
        self.endpoint.node().exporter().list().map(of).collect()
    }

    /// The ranks that hold the allocation around an address, and with how many messages that are not done. Also those that hold an allocation
    /// which had that address before and was freed, until they have let it go. Empty: nobody does.
    #[must_use]
    pub fn who_holds(&self, addr: usize) -> Vec<Holder> {
        let around = |listing: &Listing| {
            let start = listing.memory.span.start();
            let len = listing.memory.span.len();
            (addr as u64).checked_sub(start).is_some_and(|offset| offset < len)
        };
        let mut all: Vec<Holder> = Vec::new();
        let exports = self.endpoint.node().exporter().list().filter(around);
        for holder in exports.flat_map(|listing| self.holders(&listing)) {
            match all.iter_mut().find(|other| other.rank == holder.rank) {
                Some(other) => other.pins += holder.pins,
                None => all.push(holder),
            }
        }
        all.sort_by_key(|holder| holder.rank);
        all
    }

    fn holders(&self, of: &Listing) -> Vec<Holder> {
        let rank =
            |(neighbour, pins)| Some(Holder { rank: self.rank_of(self.endpoint.peer(neighbour)?), pins });
        self.endpoint.node().holders(of.name).filter_map(rank).collect()
    }

    /// What this rank has mapped of each rank near.
    #[must_use]
    pub fn imports(&self) -> Vec<Imported> {
        let near = self.peers.iter().enumerate().filter_map(|(rank, peer)| Some((rank, (*peer)?)));
        let of = |(rank, peer): (usize, PeerId)| {
            let neighbour = self.endpoint.neighbour(peer)?;
            let usage = self.endpoint.node().importer().usage(neighbour.source());
            let imports = usage.imports;
            let mappings = usage.mappings;
            Some(Imported { rank, imports, mappings, bytes: usage.bytes, pins: usage.pins })
        };
        near.filter_map(of).collect()
    }

    /// From now on at least so many allocations, and bytes of them, are kept. This alone allocates memory for it, once.
    pub fn grow(&mut self, allocations: usize, bytes: u64) {
        self.endpoint.node_mut().grow(Amount { entries: allocations, bytes });
    }

    /// From now on at most so many allocations, and bytes of them, are kept; with 0 of one nothing is exported. What is beyond goes, the least
    /// recently used first; what messages use, as soon as they are done.
    pub fn shrink(&mut self, allocations: usize, bytes: u64) {
        self.endpoint.node_mut().shrink(Amount { entries: allocations, bytes });
    }

    /// For how long an export is kept from now on that no message uses, 30 s at first; `None`: for ever. What is older goes with the next look,
    /// in any call of this type.
    pub fn idle_limit(&mut self, limit: Option<Duration>) {
        let limit = limit.map(|limit| Nanoseconds(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)));
        self.endpoint.node_mut().idle(limit);
    }

    /// Asks back all that a rank holds of this one's memory: what messages to it use, once they are done. It may be told of it again
    /// afterwards; messages to it that come before it has let go take another way.
    ///
    /// # Errors
    /// [`MessageError::NoRank`], [`MessageError::Far`], [`MessageError::Own`].
    pub fn drain(&mut self, rank: usize) -> Result<(), MessageError> {
        let peer = self.peer(rank)?;
        let neighbour = self.endpoint.neighbour(peer);
        neighbour.into_iter().for_each(|neighbour| self.endpoint.node_mut().drain(neighbour));
        Ok(())
    }

    /// The flag for a hook of whatever frees memory of this kind ([`Hook::freed`]), in any thread: every export is compared with what its
    /// driver says in the next calls of this type, within a millisecond or so if there are any, and what was freed is unmapped everywhere.
    /// A program that preloads `libtrunkline_freehook.so` needs none for memory of GPUs. Without either, memory that was freed is given
    /// back when its address is seen again, after the idle limit, or when it is asked back.
    #[must_use]
    pub fn hook(&self) -> Hook {
        self.endpoint.hook()
    }
}
