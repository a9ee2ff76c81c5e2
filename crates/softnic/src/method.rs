//! The ways to copy that a queue pair has, of which [`LinkMethodChooser`] learns the fastest.

use trunkline_proto::chooser::{self, MethodSet};

/// A way to copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SoftCopyMethod {
    /// Through the ring, in segments.
    Staged,
    /// Through the ring, in segments four times as long.
    StagedLong,
    /// By the target alone, out of the initiator's memory.
    Pulled,
    /// By both sides, each a part.
    Shared,
}

impl MethodSet<4> for SoftCopyMethod {
    const ALL: [Self; 4] = [Self::Staged, Self::StagedLong, Self::Pulled, Self::Shared];
}

/// What one link has learned.
pub(crate) type LinkMethodChooser = chooser::MethodChooser<SoftCopyMethod, 4>;

/// Which methods besides [`SoftCopyMethod::Staged`] an operation can use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AllowedMethods {
    /// It is longer than a usual segment.
    pub(crate) long: bool,
    /// The target reads this side's memory.
    pub(crate) pulled: bool,
    /// And this side may write the target's.
    pub(crate) shared: bool,
}

impl AllowedMethods {
    /// In the order of the methods.
    pub(crate) const fn to_array(self) -> [bool; 4] {
        [true, self.long, self.pulled, self.shared]
    }
}
