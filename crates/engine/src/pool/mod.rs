//! Groups of shared queue pairs, and the comms that use them as members. The rules are in [`trunkline_proto::pool`]; this module
//! applies them to rails and links. Called at set-up, at the end, and for completions.

pub(crate) mod broken_groups;
pub(crate) mod groups;
pub(crate) mod member;
pub(crate) mod member_ids;
pub(crate) mod membership;
pub(crate) mod revoke;
