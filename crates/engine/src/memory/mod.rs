//! Memory that is registered for comms: mailboxes, bounce buffers, and callers' buffers. Used by the calls of the engine and by
//! the lanes of comms; contains no messages.

pub(crate) mod bounces;
pub(crate) mod idle_timer;
pub(crate) mod mailbox;
pub(crate) mod regions;
pub(crate) mod registering;
pub(crate) mod slab;
