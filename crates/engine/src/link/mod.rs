//! Links of comms: the paths of a comm, the links that it shares with other members, their loss and return, and their
//! completions. Called by the lanes of comms under the group's lock; decides nothing about messages.

pub(crate) mod failover;
pub(crate) mod link_frames;
pub(crate) mod links;
pub(crate) mod path;
pub(crate) mod proofs;
pub(crate) mod rails;
pub(crate) mod route;
