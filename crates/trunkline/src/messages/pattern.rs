//! The selectors of receives: which messages a receive matches.

use super::{MessageError, OWN_TAGS};

/// Matches any rank, or any tag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Any;

/// Matches tags that agree with `tag` in the bits of `mask`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TagBits {
    /// The tag to compare with.
    pub tag: u64,
    /// The bits that are compared.
    pub mask: u64,
}

impl TagBits {
    /// Matches this tag alone.
    pub(super) const fn from_tag(tag: u64) -> Self {
        Self { tag, mask: u64::MAX }
    }
}

/// The ranks whose messages a receive matches: a rank's number, or [`Any`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SourceSelector {
    /// Messages of that rank.
    Rank(usize),
    /// Messages of any near rank.
    Any,
}

/// The tags that a receive matches: a number below 2^63, [`TagBits`], or [`Any`].
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
    /// Returns the tag and its mask, extended so that reserved tags never match.
    pub(super) const fn check_user_tag(self) -> Result<TagBits, MessageError> {
        let Self { tag, mask } = self;
        if tag < OWN_TAGS { Ok(TagBits { tag, mask: mask | OWN_TAGS }) } else { Err(MessageError::Tag(tag)) }
    }
}
