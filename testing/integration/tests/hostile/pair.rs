//! The kinds of pairs, and how their messages travel: a trait that each kind of traffic implements. Used by the victims; knows no attack.

use trunkline_softnic::{SoftConfig, WireMode};

/// The variable that names the kind of pair to a world's processes.
pub(crate) const PAIR: &str = "TRUNKLINE_TEST_PAIR";

/// The messages of the pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PairKind {
    /// Puts and signals between members of a one-sided job, over the software NIC in shared memory.
    OneSided,
    /// The same over the software NIC's TCP wire.
    OverTcp,
    /// Sends and receives over two connections, as the plugin makes them.
    TwoSided,
}

impl PairKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OneSided => "one-sided",
            Self::OverTcp => "over TCP",
            Self::TwoSided => "two-sided",
        }
    }

    pub(crate) fn of_this_process() -> Self {
        let name = std::env::var(PAIR).unwrap_or_default();
        let all = [Self::OneSided, Self::OverTcp, Self::TwoSided];
        all.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::OneSided)
    }

    /// The NICs of the pair and of the attacker.
    pub(crate) fn nics(self) -> SoftConfig {
        let wire = if self == Self::OverTcp { WireMode::Tcp } else { WireMode::Auto };
        SoftConfig { wire, ..SoftConfig::default() }
    }
}

/// How the messages of one victim travel. A step does the work that can be done at once; the victim repeats it.
pub(crate) trait PairTraffic {
    /// Sends a message; whether all of it was sent.
    fn send_step(&mut self, number: u64, bytes: &[u8]) -> Result<bool, String>;

    /// The bytes of a message, once it has arrived.
    fn receive_step(&mut self, number: u64, len: usize) -> Result<Option<Vec<u8>>, String>;

    /// Makes progress on all operations in flight.
    fn progress(&mut self) -> Result<(), String>;

    /// Serves other processes as any process of this kind does; called occasionally.
    fn serve_others(&mut self) -> Result<(), String>;

    /// From now on the victim dials the attacker, too.
    fn begin_calls(&mut self) {}

    /// Whether memory that no other process may write is unchanged.
    fn is_untouched(&self) -> bool {
        true
    }
}
