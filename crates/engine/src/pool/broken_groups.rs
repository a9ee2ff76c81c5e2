//! Groups whose links have ended, to be reported to the pool. The thread that drives a member adds a group, under the group's
//! lock; a thread that drives the control plane removes it. Knows nothing of pools and members.

use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;
use trunkline_proto::pool::group::GroupId;

/// Groups whose links have ended and that the pool does not know of.
///
/// `has_some` is set after a group was added, and cleared before all are taken out. So one word shows that the list is empty, or that
/// another thread is about to set it.
pub(crate) struct BrokenGroups {
    groups: SpinMutex<Vec<GroupId>>,
    has_some: AtomicBool,
}

impl BrokenGroups {
    /// Creates an empty list.
    pub(crate) const fn new() -> Self {
        Self { groups: SpinMutex::new(Vec::new()), has_some: AtomicBool::new(false) }
    }

    /// Adds a group, for the pool to know.
    pub(crate) fn push_group(&self, group: GroupId) {
        self.groups.lock().push(group);
        self.has_some.store(true, Ordering::Release);
    }

    /// Takes all groups out, and passes each to `take`, in the order in which they were added.
    pub(crate) fn drain_groups(&self, take: impl FnMut(GroupId)) {
        if !self.has_some.swap(false, Ordering::Acquire) {
            return;
        }
        self.groups.lock().drain(..).for_each(take);
    }
}
