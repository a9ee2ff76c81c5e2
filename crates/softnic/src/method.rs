//! The copy methods of a queue pair, of which [`LinkMethodChooser`] learns the fastest.

use trunkline_proto::chooser::{self, MethodSet};

/// A way to copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SoftCopyMethod {
    /// Through the ring, in segments.
    Staged,
    /// Through the ring, in segments of four times the length.
    StagedLong,
    /// By the target alone, out of the initiator's memory.
    Pulled,
    /// By both sides, each a part.
    Shared,
}

impl MethodSet<4> for SoftCopyMethod {
    const ALL: [Self; 4] = [Self::Staged, Self::StagedLong, Self::Pulled, Self::Shared];
}

/// The measurements of one link.
pub(crate) type LinkMethodChooser = chooser::MethodChooser<SoftCopyMethod, 4>;

/// The methods apart from [`SoftCopyMethod::Staged`] that an operation can use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AllowedMethods {
    /// The operation is longer than a usual segment.
    pub(crate) long: bool,
    /// The target can read this side's memory.
    pub(crate) pulled: bool,
    /// In addition, this side may write the target's memory.
    pub(crate) shared: bool,
}

impl AllowedMethods {
    /// Returns them in the order of the methods.
    pub(crate) const fn to_array(self) -> [bool; 4] {
        [true, self.long, self.pulled, self.shared]
    }
}
