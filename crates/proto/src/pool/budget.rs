//! The queue pairs that each NIC can have. The pool updates the counts when it makes a group and when a group is destroyed.
//!
//! The policy: the more groups a key has, the emptier the NIC must be for a further one. The first group of a key may use the last
//! queue pair. A key that has `n` groups gets a further one only if at most `1 / (n + 1)` of the NIC's queue pairs is then in use.
//! So comms share more as the limit approaches. At least half of it is left for comms that cannot share: the first of their
//! key, or comms with a peer that does not share.

use alloc::vec::Vec;

use crate::nics::NicList;

/// The queue pairs of one NIC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NicBudget {
    /// Number of the NIC.
    pub nic: u16,
    /// Queue pairs that may be in use.
    pub limit: u32,
    /// Queue pairs in use.
    pub in_use: u32,
}

impl NicBudget {
    const fn new_unlimited(nic: u16) -> Self {
        Self { nic, limit: u32::MAX, in_use: 0 }
    }

    /// Queue pairs that may be in use after a further group, for a key that has `groups` of them.
    fn limit_for_groups(&self, groups: usize) -> u32 {
        self.limit / (groups as u32).saturating_add(1)
    }
}

/// A NIC has too few queue pairs left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct NicShortage {
    pub(super) nic: u16,
    pub(super) limit: u32,
}

/// The budgets of all NICs that were named: a handful.
#[derive(Debug, Default)]
pub(super) struct NicBudgets(Vec<NicBudget>);

impl NicBudgets {
    pub(super) fn as_slice(&self) -> &[NicBudget] {
        &self.0
    }

    pub(super) fn set_limit(&mut self, nic: u16, limit: u32) {
        self.budget_mut(nic).limit = limit;
    }

    fn budget_mut(&mut self, nic: u16) -> &mut NicBudget {
        let at = self.0.iter().position(|budget| budget.nic == nic).unwrap_or_else(|| {
            self.0.push(NicBudget::new_unlimited(nic));
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Checks whether a group of `links` over these NICs may be made, for a key that has `groups` groups.
    pub(super) fn check_fit(&self, nics: &NicList, links: u8, groups: usize) -> Result<(), NicShortage> {
        for (nic, need) in links_per_nic(nics, links) {
            let budget = self.0.iter().find(|budget| budget.nic == nic);
            let Some(&budget) = budget else { continue };
            if budget.in_use.saturating_add(need) > budget.limit_for_groups(groups) {
                return Err(NicShortage { nic, limit: budget.limit });
            }
        }
        Ok(())
    }

    /// Whether such a group would leave less than half of a NIC's queue pairs.
    pub(super) fn are_short(&self, nics: &NicList, links: u8) -> bool {
        links_per_nic(nics, links).any(|(nic, need)| {
            let budget = self.0.iter().find(|budget| budget.nic == nic);
            budget.is_some_and(|budget| budget.in_use.saturating_add(need) > budget.limit / 2)
        })
    }

    pub(super) fn take_queue_pairs(&mut self, nics: &NicList, links: u8) {
        links_per_nic(nics, links).for_each(|(nic, count)| self.budget_mut(nic).in_use += count);
    }

    pub(super) fn return_queue_pairs(&mut self, nics: &NicList, links: u8) {
        links_per_nic(nics, links).for_each(|(nic, count)| self.budget_mut(nic).in_use -= count);
    }
}

/// The number of a group's links on each NIC: link `k` is on NIC `k mod n` of the list.
fn links_per_nic(nics: &NicList, links: u8) -> impl Iterator<Item = (u16, u32)> {
    let count = u32::from(nics.len());
    let links = u32::from(links);
    let share = move |at: usize| links / count + u32::from((at as u32) < links % count);
    nics.nic_numbers().iter().enumerate().map(move |(at, &nic)| (nic, share(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_group_requires_more_free_queue_pairs() {
        let nics = NicList::new(&[5, 2]).unwrap();
        let mut budgets = NicBudgets::default();
        assert_eq!(budgets.check_fit(&nics, 4, 1000), Ok(()), "no limit");
        budgets.set_limit(5, 24);
        budgets.set_limit(2, 100);
        let short = Err(NicShortage { nic: 5, limit: 24 });
        for (takes, groups) in [(4, 2), (2, 1), (6, 0)] {
            for _ in 0..takes {
                assert_eq!(budgets.check_fit(&nics, 3, groups), Ok(()));
                budgets.take_queue_pairs(&nics, 3);
            }
            assert_eq!(budgets.check_fit(&nics, 3, groups), short, "{groups}");
        }
        assert_eq!(budgets.as_slice().iter().map(|budget| budget.in_use).collect::<Vec<_>>(), [24, 12]);
        (0..12).for_each(|_| budgets.return_queue_pairs(&nics, 3));
        assert!(budgets.as_slice().iter().all(|budget| budget.in_use == 0));
    }

    #[test]
    fn use_above_half_counts_as_short() {
        let nics = NicList::new(&[1]).unwrap();
        let mut budgets = NicBudgets::default();
        assert!(!budgets.are_short(&nics, 4));
        budgets.set_limit(1, 8);
        assert!(!budgets.are_short(&nics, 4));
        assert!(budgets.are_short(&nics, 5));
    }
}
