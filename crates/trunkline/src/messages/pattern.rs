//! Which messages a receive fits.

use super::{MessageError, OWN_TAGS};

/// Any rank, or any tag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Any;

/// Tags that agree with `tag` in the bits of `mask`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TagBits {
    /// The tag.
    pub tag: u64,
    /// The bits of it that count.
    pub mask: u64,
}

impl TagBits {
    /// The tag alone.
    pub(super) const fn from_tag(tag: u64) -> Self {
        Self { tag, mask: u64::MAX }
    }
}

/// Whose messages a receive fits: a rank's number, or [`Any`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SourceSelector {
    /// That rank's.
    Rank(usize),
    /// Any rank's that is near.
    Any,
}

/// Which tags a receive fits: a number below 2^63, [`TagBits`], or [`Any`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TagSelector {
    tag: u64,
    mask: u64,
}

impl From<usize> for SourceSelector {
    fn from(rank: usize) -> Self {
        Self::Rank(rank)
    }
}

impl From<Any> for SourceSelector {
    fn from(Any: Any) -> Self {
        Self::Any
    }
}

impl From<u64> for TagSelector {
    fn from(tag: u64) -> Self {
        Self { tag, mask: u64::MAX }
    }
}

impl From<TagBits> for TagSelector {
    fn from(TagBits { tag, mask }: TagBits) -> Self {
        Self { tag, mask }
    }
}

impl From<Any> for TagSelector {
    fn from(Any: Any) -> Self {
        Self { tag: 0, mask: 0 }
    }
}

impl TagSelector {
    /// The tag and its bits, which never fit tags of this crate's own.
    pub(super) const fn check_user_tag(self) -> Result<TagBits, MessageError> {
        let Self { tag, mask } = self;
        if tag < OWN_TAGS { Ok(TagBits { tag, mask: mask | OWN_TAGS }) } else { Err(MessageError::Tag(tag)) }
    }
}
