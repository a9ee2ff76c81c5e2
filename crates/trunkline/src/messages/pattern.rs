//! Which messages a receive fits.

use super::{MessageError, OWN_TAGS};

/// Any rank, or any tag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Any;

/// Tags that agree with `tag` in the bits of `mask`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bits {
    /// The tag.
    pub tag: u64,
    /// The bits of it that count.
    pub mask: u64,
}

/// Whose messages a receive fits: a rank's number, or [`Any`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum From {
    /// That rank's.
    Rank(usize),
    /// Any rank's that is near.
    Any,
}

/// Which tags a receive fits: a number below 2^63, [`Bits`], or [`Any`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tag {
    tag: u64,
    mask: u64,
}

impl std::convert::From<usize> for From {
    fn from(rank: usize) -> Self {
        Self::Rank(rank)
    }
}

impl std::convert::From<Any> for From {
    fn from(Any: Any) -> Self {
        Self::Any
    }
}

impl std::convert::From<u64> for Tag {
    fn from(tag: u64) -> Self {
        Self { tag, mask: u64::MAX }
    }
}

impl std::convert::From<Bits> for Tag {
    fn from(Bits { tag, mask }: Bits) -> Self {
        Self { tag, mask }
    }
}

impl std::convert::From<Any> for Tag {
    fn from(Any: Any) -> Self {
        Self { tag: 0, mask: 0 }
    }
}

impl Tag {
    /// The tag and its bits, which never fit tags of this crate's own.
    pub(super) const fn checked(self) -> Result<(u64, u64), MessageError> {
        let Self { tag, mask } = self;
        if tag < OWN_TAGS { Ok((tag, mask | OWN_TAGS)) } else { Err(MessageError::Tag(tag)) }
    }
}
