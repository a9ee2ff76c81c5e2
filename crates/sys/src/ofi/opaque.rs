//! Opaque types: Trunkline only passes pointers to them.

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => { $(
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )* };
}

opaque! {
    /// `struct fid_stx`: a shared transmit context.
    FidStx
    /// `struct fid_wait`: a wait set.
    FidWait
    /// `struct fid_poll`: a poll set.
    FidPoll
    /// `struct fid_mc`: a multicast group.
    FidMc
    /// `struct fid_av_set`: a set of peers.
    FidAvSet
    /// `struct fi_wait_attr`: attributes of a wait set.
    WaitAttr
    /// `struct fi_poll_attr`: attributes of a poll set.
    PollAttr
    /// `struct fi_atomic_attr`: properties of an atomic operation.
    AtomicAttr
    /// `struct fi_collective_attr`: properties of a collective operation.
    CollectiveAttr
    /// `struct fi_ops_collective`: functions for collective operations.
    OpsCollective
    /// `struct fi_av_set_attr`: attributes of a set of peers.
    AvSetAttr
}
