//! The sharing parameters of a process, and the preferences of one comm. The engine reads them once and passes them as values; nothing
//! here decides.

use crate::limits::{GROUPS_ASKED_MAX, GROUPS_OF_KEY_MAX};
use crate::wire::share::ShareOffer;

/// Whether comms share queue pairs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SharingMode {
    /// Never: each comm has queue pairs of its own.
    Off,
    /// Each comm of a key beyond the number of groups shares.
    On,
    /// Like `On` while more than half of a NIC's queue pairs are in use. Before that, each comm begins a group of its own, which other
    /// comms may join later.
    Auto,
}

/// The sharing parameters of this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoolConfig {
    sharing: SharingMode,
    groups: u8,
    depth_multiplier: u8,
}

/// A parameter is out of range.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PoolConfigError {
    /// The number of groups.
    #[error("{0} groups are out of range (1 to {GROUPS_ASKED_MAX})")]
    Groups(u8),
    /// The depth multiplier.
    #[error("the depth multiplier is 0, but must be at least 1")]
    Depth,
}

impl PoolConfig {
    /// The parameters of a process that shares nothing.
    pub const OFF: Self = Self { sharing: SharingMode::Off, groups: 1, depth_multiplier: 1 };

    /// Parameters for comms towards one peer on `groups` groups, 1 to [`GROUPS_ASKED_MAX`]. Their queues are `depth_multiplier` times as
    /// deep as those of one comm, 1 to 255.
    ///
    /// # Errors
    /// [`PoolConfigError`] names the parameter that is out of range.
    pub const fn new(
        sharing: SharingMode,
        groups: u8,
        depth_multiplier: u8,
    ) -> Result<Self, PoolConfigError> {
        if groups == 0 || groups > GROUPS_ASKED_MAX {
            return Err(PoolConfigError::Groups(groups));
        }
        if depth_multiplier == 0 {
            return Err(PoolConfigError::Depth);
        }
        Ok(Self { sharing, groups, depth_multiplier })
    }

    /// Returns the offer that HELLO carries to the other process.
    #[must_use]
    pub const fn sharing_offer(&self) -> ShareOffer {
        match self.sharing {
            SharingMode::Off => ShareOffer::NONE,
            SharingMode::On => ShareOffer { groups: self.groups },
            SharingMode::Auto => ShareOffer { groups: GROUPS_OF_KEY_MAX },
        }
    }

    /// Groups that a key may have; `short` states whether queue pairs are short.
    #[must_use]
    pub(super) const fn group_limit(&self, short: bool) -> u8 {
        match (self.sharing, short) {
            (SharingMode::Off, _) => 0,
            (SharingMode::Auto, false) => GROUPS_OF_KEY_MAX,
            _ => self.groups,
        }
    }

    /// Depth of a queue of a group, in entries: `of_one` (the need of one comm alone) times the multiplier, but at most
    /// `device_max`.
    #[must_use]
    pub const fn queue_depth(&self, of_one: u32, device_max: u32) -> u32 {
        let wanted = of_one.saturating_mul(self.depth_multiplier as u32);
        if wanted < device_max { wanted } else { device_max }
    }
}

/// A caller's estimate of the traffic that a comm is part of; 0 in unknown fields.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TrafficHint {
    /// Most peers to which such comms send at one time.
    pub peers: u32,
    /// Most comms that are active towards one of these peers at one time.
    pub flows: u32,
    /// The traffic class for the network; where comms share queue pairs, the first one's class applies.
    pub class: Option<u8>,
}

/// The weight of a comm that carries all of a process's traffic alone.
const WEIGHT_MAX: u32 = 16;

/// The preferences of one comm for the pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GroupPreference {
    /// Number of its links, 1 to 4.
    pub links: u8,
    /// Prefers links of its own. This is a hint: the comm shares anyway where more than half of the queue pairs are in use.
    pub alone: bool,
    /// How many ordinary comms it counts for when groups are compared; 0 counts as 1.
    pub weight: u8,
    /// Most groups of its key that it may begin; 0: it must not share.
    pub groups_at_most: u8,
    /// The number of this request in one connection attempt, from 0. Replies to earlier requests are ignored.
    pub turn: u32,
    /// The traffic class of links that are made for it.
    pub class: Option<u8>,
}

impl GroupPreference {
    /// Returns the default preferences of a comm with that many links.
    #[must_use]
    pub const fn new(links: u8) -> Self {
        Self { links, alone: false, weight: 1, groups_at_most: u8::MAX, turn: 0, class: None }
    }

    /// Adds the traffic that the comm is part of. The comm's weight is its share of that traffic, so that heavy comms are placed in
    /// different groups. A comm without an estimate has weight 1, and so has one that shares its traffic with eight or more others.
    #[must_use]
    pub const fn with_traffic(self, traffic: TrafficHint) -> Self {
        let class = traffic.class;
        if traffic.peers == 0 || traffic.flows == 0 {
            return Self { class, ..self };
        }
        let weight = WEIGHT_MAX / traffic.peers.saturating_mul(traffic.flows);
        // At most 16.
        Self { weight: if weight == 0 { 1 } else { weight as u8 }, class, ..self }
    }

    /// Limits the groups to the other process's offer.
    #[must_use]
    pub fn with_offer(self, offer: ShareOffer) -> Self {
        Self { groups_at_most: self.groups_at_most.min(offer.groups), ..self }
    }

    /// Returns the same preferences for the next request of the attempt.
    pub(super) const fn next_turn(self) -> Self {
        Self { turn: self.turn.saturating_add(1), ..self }
    }

    pub(super) const fn effective_weight(&self) -> u32 {
        if self.weight == 0 { 1 } else { self.weight as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_values_are_limited_to_their_ranges() {
        for groups in [0, GROUPS_ASKED_MAX + 1] {
            assert_eq!(PoolConfig::new(SharingMode::On, groups, 1), Err(PoolConfigError::Groups(groups)));
        }
        assert_eq!(PoolConfig::new(SharingMode::On, 1, 0), Err(PoolConfigError::Depth));
        let config = PoolConfig::new(SharingMode::On, 8, 4).unwrap();
        assert_eq!(
            (config.queue_depth(256, 4096), config.queue_depth(256, 1000), config.queue_depth(u32::MAX, 9)),
            (1024, 1000, 9)
        );
    }

    #[test]
    fn offer_is_the_allowed_number_of_groups() {
        let offers = |sharing| PoolConfig::new(sharing, 4, 1).unwrap();
        assert_eq!(offers(SharingMode::Off).sharing_offer(), ShareOffer { groups: 0 });
        assert_eq!(
            (offers(SharingMode::On).sharing_offer().groups, offers(SharingMode::On).group_limit(false)),
            (4, 4)
        );
        let auto = offers(SharingMode::Auto);
        assert_eq!(
            (auto.sharing_offer().groups, auto.group_limit(false), auto.group_limit(true)),
            (64, 64, 4)
        );
        assert_eq!(GroupPreference::new(1).with_offer(ShareOffer { groups: 0 }).groups_at_most, 0);
        assert_eq!(
            GroupPreference { groups_at_most: 2, ..GroupPreference::new(1) }
                .with_offer(ShareOffer { groups: 3 })
                .groups_at_most,
            2
        );
    }

    #[test]
    fn weight_grows_with_the_share_of_traffic() {
        let weight = |peers, flows| {
            GroupPreference::new(1).with_traffic(TrafficHint { peers, flows, class: None }).weight
        };
        assert_eq!([weight(1, 1), weight(1, 2), weight(2, 2), weight(1, 9)], [16, 8, 4, 1]);
        assert_eq!([weight(15, 1), weight(1000, 1000), weight(u32::MAX, u32::MAX)], [1, 1, 1]);
        assert_eq!([weight(0, 4), weight(4, 0), weight(0, 0)], [1, 1, 1], "an unknown load has weight 1");
    }
}
