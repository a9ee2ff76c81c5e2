//! Selects the NICs of a rank of a job: those of its GPU, or those near its processors. Pure, like `assign`. Front
//! ends call it once at start if the user names no NIC. It uses neither fabrics nor environments.

use crate::distance::{DeviceLocation, Distance, NumaNode};
use crate::topology::NodeTopology;

/// Where a rank of a job runs on its node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RankPlacement {
    /// Index of its GPU in [`NodeTopology::gpus`], if it uses one.
    pub gpu: Option<usize>,
    /// NUMA node of the processors that it may run on; `None` if they are on several NUMA nodes, or that is unknown.
    pub numa: Option<NumaNode>,
    /// Its number among the ranks of the node, from 0.
    pub local_rank: usize,
    /// Ranks of the job on the node, at least 1.
    pub local_size: usize,
}

impl NodeTopology {
    /// Returns the NICs of a rank out of `candidates`, as indices into [`Self::nics`], in the order of their use; at
    /// most `most`. Empty only without candidates.
    ///
    /// A rank with a GPU uses that GPU's NICs (`assign_nics`). A rank without one uses its share of the NICs that are
    /// nearest to its processors: ranks with consecutive numbers use consecutive NICs.
    #[must_use]
    pub fn nics_of_rank(&self, candidates: &[usize], rank: &RankPlacement, most: usize) -> Vec<usize> {
        if let Some(gpu) = rank.gpu.filter(|&gpu| gpu < self.gpus().len()) {
            return self.assign_nics(candidates, most).gpu_nics(gpu).iter().map(|pick| pick.nic).collect();
        }
        let place = DeviceLocation { path: None, numa: rank.numa };
        let known: Vec<usize> = candidates.iter().copied().filter(|&at| at < self.nics().len()).collect();
        let distance = |at: usize| Distance::between(&place, &self.nics()[at].place);
        let Some(nearest) = known.iter().map(|&at| distance(at)).min() else { return Vec::new() };
        let is_near = |&at: &usize| distance(at) == nearest;
        let near: Vec<usize> = known.iter().copied().filter(is_near).collect();
        let share = (known.len() / rank.local_size.max(1)).clamp(1, most.max(1)).min(near.len());
        let first = rank.local_rank.wrapping_mul(share);
        (0..share).map(|at| near[(first % near.len() + at) % near.len()]).collect()
    }
}

/// Guesses the GPU of a rank on a node with `gpus` GPUs, from its list of visible GPUs (`CUDA_VISIBLE_DEVICES`).
/// Programs usually use the visible GPU whose index is their local rank, so the entry at that index is taken (modulo
/// the length of the list). If it is not a number below `gpus` (a UUID, for example), or if there is no list, the
/// result is the local rank modulo `gpus`. `None` if the rank sees no GPU.
#[must_use]
pub fn gpu_of_rank(visible: Option<&str>, local_rank: usize, gpus: usize) -> Option<usize> {
    if gpus == 0 {
        return None;
    }
    let Some(visible) = visible else { return Some(local_rank % gpus) };
    let entries: Vec<&str> = visible.split(',').map(str::trim).collect();
    if entries[0].is_empty() || entries[0] == "-1" {
        return None;
    }
    let named = entries[local_rank % entries.len()].parse::<usize>().ok().filter(|&gpu| gpu < gpus);
    Some(named.unwrap_or(local_rank % gpus))
}

/// Whether a list of processors in the kernel's form, such as `0-3,8`, contains all `processors`. `false` if the list
/// has another form.
pub(crate) fn holds_all(list: &str, processors: &[usize]) -> bool {
    let range = |part: &str| -> Option<(usize, usize)> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    let ranges: Option<Vec<_>> = list.trim().split(',').map(range).collect();
    let holds = |ranges: &[(usize, usize)], at| ranges.iter().any(|&(first, last)| first <= at && at <= last);
    ranges.is_some_and(|ranges| processors.iter().all(|&at| holds(&ranges, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_rank_selects_the_visible_gpu() {
        assert_eq!(gpu_of_rank(None, 3, 8), Some(3));
        assert_eq!(gpu_of_rank(None, 9, 8), Some(1));
        assert_eq!(gpu_of_rank(Some("5"), 3, 8), Some(5), "each rank has its own list of one");
        assert_eq!(gpu_of_rank(Some("4, 5,6,7"), 1, 8), Some(5));
        assert_eq!(gpu_of_rank(Some("GPU-1a2b"), 2, 8), Some(2));
        assert_eq!(gpu_of_rank(Some("9"), 2, 8), Some(2), "no such GPU");
        assert_eq!(gpu_of_rank(Some(""), 0, 8), None);
        assert_eq!(gpu_of_rank(Some("-1"), 0, 8), None);
        assert_eq!(gpu_of_rank(None, 0, 0), None);
    }

    #[test]
    fn processor_lists_contain_the_named_processors() {
        assert!(holds_all("0-3,8\n", &[0, 2, 8]));
        assert!(!holds_all("0-3,8", &[4]));
        assert!(!holds_all("", &[0]));
        assert!(!holds_all("0-x", &[0]));
        assert!(holds_all("7", &[7]));
    }
}
