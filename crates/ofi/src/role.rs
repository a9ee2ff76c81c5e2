//! The role of an endpoint. Every object that belongs to an endpoint carries its role as a type, so that objects of one role cannot be passed
//! to an endpoint of the other.

use std::fmt;
use std::hash::Hash;

mod sealed {
    pub trait SealedRole {}
}

/// The role of an endpoint: [`PayloadTraffic`] or [`ControlTraffic`].
pub trait EndpointRole: sealed::SealedRole + Copy + fmt::Debug + Eq + Hash + Send + Sync + 'static {
    /// The name in errors.
    const NAME: &'static str;
}

/// Payload.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PayloadTraffic {}

/// The control path: mailboxes and other small data.
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
