//! What an endpoint is for. Everything that belongs to an endpoint carries its role as a type, so that what is of one role
//! cannot be given to an endpoint of the other.

use std::fmt;
use std::hash::Hash;

mod sealed {
    pub trait SealedRole {}
}

/// What an endpoint is for: [`PayloadTraffic`] or [`ControlTraffic`].
pub trait EndpointRole: sealed::SealedRole + Copy + fmt::Debug + Eq + Hash + Send + Sync + 'static {
    /// As errors name it.
    const NAME: &'static str;
}

/// Payload.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PayloadTraffic {}

/// The control path: mailboxes and what else is small.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ControlTraffic {}

impl sealed::SealedRole for PayloadTraffic {}
impl sealed::SealedRole for ControlTraffic {}

impl EndpointRole for PayloadTraffic {
    const NAME: &'static str = "data";
}

impl EndpointRole for ControlTraffic {
    const NAME: &'static str = "control";
}
