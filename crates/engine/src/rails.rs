//! The NICs of a group, opened for it: completion queues, and the links on them. Held by the group's lane and lent to the
//! member whose turn it is; knows nothing of messages or of members.

use trunkline_fabric::{Completion, Rail};
use trunkline_proto::limits::SLICES_MAX;
use trunkline_proto::pool::credits::Credits;

use crate::Mutant;

/// One rail for each NIC that the links of a group are on. The first is here and not behind a pointer, because most
/// groups have only that one.
pub(crate) struct Rails<R: Rail> {
    first: R,
    more: Vec<R>,
    /// Operations posted so far by sending ends, where there is one link.
    pub(crate) posts: u64,
    /// A message was given to the network since the last poll.
    pub(crate) burst: bool,
    /// Eager messages that the other end has room for, of all members of a group that sends.
    pub(crate) eager: Option<Credits>,
    /// Slices of long messages that all members may have under way.
    pub(crate) slices: Credits,
}

impl<R: Rail> Rails<R> {
    /// These, in the order of their NICs.
    pub(crate) fn new(first: R, more: Vec<R>, mutant: Mutant) -> Self {
        let slices = Credits::new(SLICES_MAX, mutant);
        Self { first, more, posts: 0, burst: false, eager: None, slices }
    }

    /// How many.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        1 + self.more.len()
    }

    /// One rail. There are as many as [`Rails::len`] says.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> &R {
        if at == 0 { &self.first } else { &self.more[at - 1] }
    }

    /// The same, to use.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut R {
        if at == 0 { &mut self.first } else { &mut self.more[at - 1] }
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &R> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Gives what is posted to the network.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.first.flush();
        self.more.iter_mut().for_each(Rail::flush);
    }

    /// Takes what one rail has finished.
    #[inline]
    pub(crate) fn poll(&mut self, at: usize, batch: &mut [Completion]) -> usize {
        self.get_mut(at).poll(batch)
    }
}
