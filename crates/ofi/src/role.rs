//! What an endpoint is for. Everything that belongs to an endpoint carries its role as a type, so that what is of one role
//! cannot be given to an endpoint of the other.

use std::fmt;
use std::hash::Hash;

mod sealed {
    pub trait Sealed {}
}

/// What an endpoint is for: [`Data`] or [`Ctrl`].
pub trait Role: sealed::Sealed + Copy + fmt::Debug + Eq + Hash + Send + Sync + 'static {
    /// As errors name it.
    const NAME: &'static str;
}

/// Payload.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Data {}

/// The control path: mailboxes and what else is small.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Ctrl {}

impl sealed::Sealed for Data {}
impl sealed::Sealed for Ctrl {}

impl Role for Data {
    const NAME: &'static str = "data";
}

impl Role for Ctrl {
    const NAME: &'static str = "control";
}
