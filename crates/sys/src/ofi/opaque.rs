//! What Trunkline neither makes nor looks into, and only pointers lead to.

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
    /// `struct fid_stx`: a shared sending context.
    FidStx
    /// `struct fid_wait`: a wait set.
    FidWait
    /// `struct fid_poll`: a poll set.
    FidPoll
    /// `struct fid_mc`: a multicast group.
    FidMc
    /// `struct fid_av_set`: a set of peers.
    FidAvSet
    /// `struct fi_wait_attr`: what kind of wait set.
    WaitAttr
    /// `struct fi_poll_attr`: what kind of poll set.
    PollAttr
    /// `struct fi_atomic_attr`: what an atomic operation can do.
    AtomicAttr
    /// `struct fi_collective_attr`: what a collective can do.
    CollectiveAttr
    /// `struct fi_ops_collective`: collectives.
    OpsCollective
    /// `struct fi_av_set_attr`: what kind of set.
    AvSetAttr
}
