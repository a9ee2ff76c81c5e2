//! Planted bugs of the simulated network, each of which one checker must catch. Chosen by the test harness and passed
//! as a value; without the feature `mutants` only [`NetworkMutant::None`] has any effect.

/// A planted bug.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum NetworkMutant {
    /// No bug.
    #[default]
    None,
    /// A write now and then loses its last byte.
    LoseByte,
    /// A write lands where another one was meant to.
    SwapMessages,
    /// The application is told twice that a request is done.
    DuplicateCompletion,
    /// A deregistered region stays in the NIC's table.
    LeakRegion,
    /// Operations towards a dead peer never fail, and its control streams never close.
    HidePeerDeath,
    /// Writes into a deregistered region still land.
    LateWrite,
    /// A flush makes nothing visible.
    EmptyFlush,
    /// A registration that cannot be ended when its owner drops it is never tried again.
    ForgetAbandoned,
}

impl NetworkMutant {
    /// Every planted bug and the name it is chosen by.
    pub const ALL: [(&'static str, Self); 8] = [
        ("sim-lose-byte", Self::LoseByte),
        ("sim-swap-messages", Self::SwapMessages),
        ("sim-duplicate-completion", Self::DuplicateCompletion),
        ("sim-leak-region", Self::LeakRegion),
        ("sim-hide-peer-death", Self::HidePeerDeath),
        ("sim-late-write", Self::LateWrite),
        ("sim-empty-flush", Self::EmptyFlush),
        ("sim-forgets-abandoned-regions", Self::ForgetAbandoned),
    ];

    /// The bug of that name, where planted bugs are compiled in.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if !cfg!(feature = "mutants") {
            return None;
        }
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, mutant)| *mutant)
    }
}
