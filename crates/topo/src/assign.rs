//! Assigns NICs to GPUs. Pure: the input is the locations of GPUs and NICs, the output is each GPU's NICs, the same
//! for every caller. Called once at start, with all GPUs of the node, even those that this process or job does not
//! use: otherwise several jobs on one node would each use the same NICs.
//!
//! The rule is that of NVSHMEM's host library, so that its users keep the same NICs. It has two passes, and order
//! alone breaks ties: rows are GPUs by address, columns are NICs by address and name. Unlike in NVSHMEM, no GPU gets
//! a NIC twice.

use crate::distance::{DeviceLocation, Distance, DistanceClass};

/// Most NICs per GPU.
pub const PER_GPU_MAX: usize = 16;

/// A NIC that is assigned to a GPU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AssignedNic {
    /// Column of the NIC.
    pub nic: usize,
    /// Its distance from the GPU.
    pub distance: Distance,
}

/// The NICs of each GPU.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NicAssignment {
    per_gpu: usize,
    rows: Vec<Vec<AssignedNic>>,
    used: Vec<usize>,
}

impl NicAssignment {
    /// Returns how many NICs a GPU may use: the node's NICs divided by its GPUs, at least one, at most `most`.
    #[must_use]
    pub const fn per_gpu(&self) -> usize {
        self.per_gpu
    }

    /// Returns the NICs of a GPU, in the order of their use. Never empty if there is a NIC; empty for a row that does
    /// not exist.
    #[must_use]
    pub fn gpu_nics(&self, gpu: usize) -> &[AssignedNic] {
        self.rows.get(gpu).map_or(&[], Vec::as_slice)
    }

    /// Returns how many GPUs use a NIC.
    #[must_use]
    pub fn user_count(&self, nic: usize) -> usize {
        self.used.get(nic).copied().unwrap_or(0)
    }

    /// Whether a GPU reaches its first NIC without the processor in between. For protocols that depend on how a
    /// switch forwards writes.
    #[must_use]
    pub fn is_close(&self, gpu: usize) -> bool {
        self.gpu_nics(gpu).first().is_some_and(|pick| pick.distance.distance_class() == DistanceClass::Switch)
    }
}

impl NicAssignment {
    /// Renumbers the NICs: column `n` becomes `names[n]`, each below `nics`.
    pub(crate) fn renumber_nics(self, names: &[usize], nics: usize) -> Self {
        let mut used = vec![0; nics];
        for (column, users) in self.used.into_iter().enumerate() {
            used[names[column]] = users;
        }
        let name = |pick: AssignedNic| AssignedNic { nic: names[pick.nic], ..pick };
        let rows = self.rows.into_iter().map(|row| row.into_iter().map(name).collect()).collect();
        Self { rows, used, ..self }
    }
}

/// A GPU and a NIC.
#[derive(Clone, Copy, Debug)]
struct GpuNicPair {
    row: usize,
    nic: usize,
    distance: Distance,
}

/// Assigns NICs to GPUs. `gpus` and `nics` are in the order that breaks ties; `most` is a further limit per GPU, from
/// 1 to [`PER_GPU_MAX`].
#[must_use]
pub fn assign_nics(gpus: &[DeviceLocation], nics: &[DeviceLocation], most: usize) -> NicAssignment {
    let per_gpu = nics_per_gpu(gpus.len(), nics.len(), most);
    let mut result = NicAssignment { per_gpu, rows: vec![Vec::new(); gpus.len()], used: vec![0; nics.len()] };
    let pairs = sorted_pairs(gpus, nics);
    take_nearest(&pairs, &mut result);
    balance_nics(&pairs, &mut result);
    result
}

/// Returns the number of NICs for each GPU.
fn nics_per_gpu(gpus: usize, nics: usize, most: usize) -> usize {
    (nics / gpus.max(1)).clamp(1, most.clamp(1, PER_GPU_MAX))
}

/// Returns all pairs: the nearest first, then by row, then by column.
fn sorted_pairs(gpus: &[DeviceLocation], nics: &[DeviceLocation]) -> Vec<GpuNicPair> {
    let of_row = |(row, gpu): (usize, &DeviceLocation)| {
        let pair = move |(nic, place): (usize, &DeviceLocation)| (row, nic, Distance::between(gpu, place));
        nics.iter()
            .enumerate()
            .map(pair)
            .map(|(row, nic, distance)| GpuNicPair { row, nic, distance })
            .collect::<Vec<_>>()
    };
    let mut all: Vec<GpuNicPair> = gpus.iter().enumerate().flat_map(of_row).collect();
    all.sort_by_key(|pair| (pair.distance, pair.row, pair.nic));
    all
}

/// First pass: each row takes its pairs in order, until one is of a worse class than its first. The choices of other
/// rows do not matter.
fn take_nearest(pairs: &[GpuNicPair], result: &mut NicAssignment) {
    for &GpuNicPair { row, nic, distance } in pairs {
        let taken = &mut result.rows[row];
        let first = taken.first().map(|first| first.distance.distance_class());
        // The list is sorted, so no later pair of this row is better.
        let worse = first.is_some_and(|first| distance.distance_class() < first);
        if taken.len() < result.per_gpu && !worse {
            taken.push(AssignedNic { nic, distance });
            result.used[nic] += 1;
        }
    }
}

/// Second pass: for each row and slot, replaces a NIC with several users by one of the same class with at least two
/// users fewer. It repeats that until the slot has a NIC without other users, or no such NIC is left.
fn balance_nics(pairs: &[GpuNicPair], result: &mut NicAssignment) {
    let rows = result.rows.len();
    let mut of_row: Vec<Vec<GpuNicPair>> = vec![Vec::new(); rows];
    for &pair in pairs {
        of_row[pair.row].push(pair);
    }
    for (row, row_pairs) in of_row.iter().enumerate() {
        for slot in 0..result.rows[row].len() {
            move_slot(row_pairs, row, slot, result);
        }
    }
}

/// Executes the second pass for one slot. `pairs` are the pairs of its row.
fn move_slot(pairs: &[GpuNicPair], row: usize, slot: usize, result: &mut NicAssignment) {
    let class = result.rows[row][slot].distance.distance_class();
    for &GpuNicPair { nic, distance, .. } in pairs {
        let now = result.rows[row][slot].nic;
        let is_worse = distance.distance_class() < class;
        if is_worse || result.used[now] < 2 {
            return;
        }
        let has_it = result.rows[row].iter().any(|pick| pick.nic == nic);
        if !has_it && result.used[now] >= result.used[nic] + 2 {
            result.used[now] -= 1;
            result.used[nic] += 1;
            result.rows[row][slot] = AssignedNic { nic, distance };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::distance::NumaNode;
    use crate::pci::PciPath;

    fn place(path: &str) -> DeviceLocation {
        let (path, node) = path.split_once(' ').unwrap_or((path, "0"));
        DeviceLocation { path: PciPath::parse(&format!("devices/{path}")), numa: NumaNode::parse(node) }
    }

    fn places(paths: &[&str]) -> Vec<DeviceLocation> {
        paths.iter().map(|path| place(path)).collect()
    }

    /// Places on one bus with equal distances between all of them.
    fn flat(range: std::ops::Range<u8>) -> Vec<DeviceLocation> {
        range.map(|at| place(&format!("pci0000:00/0000:00:{at:02x}.0"))).collect()
    }

    /// Returns the columns of each row.
    fn columns(result: &NicAssignment) -> Vec<Vec<usize>> {
        result.rows.iter().map(|row| row.iter().map(|pick| pick.nic).collect()).collect()
    }

    fn assigned(gpus: &[DeviceLocation], nics: &[DeviceLocation]) -> Vec<Vec<usize>> {
        columns(&assign_nics(gpus, nics, PER_GPU_MAX))
    }

    const SWITCH: &str = "pci0000:10/0000:10:01.0/0000:11:00.0/";
    /// A NIC below the same port as [`SWITCH`], behind a further bridge.
    const CASCADE: &str = "pci0000:10/0000:10:01.0/0000:31:00.0/0000:32:00.0/0000:33:00.0";

    fn below(number: u8) -> String {
        format!("{SWITCH}0000:12:{number:02x}.0/0000:{:02x}:00.0", 0x20 + number)
    }

    #[test]
    fn nics_per_gpu_is_its_share() {
        for (gpus, nics, most, part) in [
            (8, 8, 16, 1),
            (8, 9, 16, 1),
            (8, 15, 16, 1),
            (8, 32, 16, 4),
            (8, 4, 16, 1),
            (1, 40, 16, 16),
            (1, 40, 99, 16),
            (1, 8, 2, 2),
            (4, 8, 0, 1),
            (0, 8, 16, 8),
            (4, 0, 16, 1),
        ] {
            assert_eq!(nics_per_gpu(gpus, nics, most), part, "{gpus} {nics} {most}");
        }
    }

    #[test]
    fn single_nic_is_assigned_to_every_gpu() {
        assert_eq!(assigned(&flat(0..3), &flat(8..9)), [[0], [0], [0]]);
    }

    #[test]
    fn pairs_are_sorted_by_distance_row_and_column() {
        let gpus = places(&[&below(0), "pci0000:80/0000:80:01.0/0000:81:00.0 1"]);
        let nics = places(&[
            "pci0000:80/0000:80:02.0/0000:82:00.0 1",
            &below(1),
            &below(2),
            "pci0000:80/0000:80:03.0/0000:83:00.0 1",
        ]);
        let order: Vec<_> = sorted_pairs(&gpus, &nics).iter().map(|pair| (pair.row, pair.nic)).collect();
        assert_eq!(order, [(0, 1), (0, 2), (1, 0), (1, 3), (0, 0), (0, 3), (1, 1), (1, 2)]);
    }

    #[test]
    fn first_column_wins_ties() {
        let result = assign_nics(&flat(0..1), &flat(8..11), 1);
        assert_eq!(columns(&result), [[0]]);
    }

    #[test]
    fn nic_behind_one_switch_precedes_others() {
        let gpus = places(&[&below(0)]);
        let nics = places(&[CASCADE, &below(1)]);
        let result = assign_nics(&gpus, &nics, 2);
        assert_eq!(
            result.gpu_nics(0),
            [
                AssignedNic { nic: 1, distance: Distance::Pix },
                AssignedNic { nic: 0, distance: Distance::Pxb }
            ]
        );
    }

    #[test]
    fn pix_and_pxb_are_one_class() {
        // Both GPUs are near both NICs, so each gets its own.
        let gpus = places(&[&below(0), &below(3)]);
        assert_eq!(assigned(&gpus, &places(&[&below(1), CASCADE])), [[1], [0]]);
        // A second NIC further down is used in addition to the first.
        assert_eq!(columns(&assign_nics(&gpus[..1], &places(&[&below(1), CASCADE]), 2)), [[0, 1]]);
    }

    #[test]
    fn slot_stays_empty_instead_of_a_far_nic() {
        let gpus = places(&[&below(0)]);
        let nics = places(&[
            &below(1),
            "pci0000:10/0000:10:02.0/0000:40:00.0",
            "pci0000:80/0000:80:02.0/0000:82:00.0",
        ]);
        let result = assign_nics(&gpus, &nics, 3);
        assert_eq!((result.per_gpu(), columns(&result)), (3, vec![vec![0]]));
    }

    #[test]
    fn far_nic_is_assigned_without_near_ones() {
        let gpus = places(&["pci0000:10/0000:10:01.0/0000:11:00.0 0"]);
        let result = assign_nics(&gpus, &places(&["pci0000:80/0000:80:02.0/0000:82:00.0 1"]), 1);
        assert_eq!(result.gpu_nics(0), [AssignedNic { nic: 0, distance: Distance::Sys }]);
        assert!(!result.is_close(0));
    }

    #[test]
    fn first_pass_ignores_other_gpus() {
        let mut result = NicAssignment { per_gpu: 1, rows: vec![Vec::new(); 3], used: vec![0; 3] };
        take_nearest(&sorted_pairs(&flat(0..3), &flat(8..11)), &mut result);
        assert_eq!((columns(&result), result.used), (vec![vec![0]; 3], vec![3, 0, 0]));
    }

    #[test]
    fn second_pass_balances_row_by_row() {
        // The first row moves by one NIC, the second by two, and so on; the last keeps the first NIC alone.
        assert_eq!(assigned(&flat(0..4), &flat(8..12)), [[1], [2], [3], [0]]);
    }

    #[test]
    fn slot_moves_until_its_nic_is_unshared() {
        // The second row moves from NIC 0, which three rows use by then, to 1, which the first row uses, and on to 2.
        assert_eq!(assigned(&flat(0..4), &flat(8..12))[1], [2]);
    }

    #[test]
    fn slot_moves_only_to_two_users_fewer() {
        assert_eq!(assigned(&flat(0..3), &flat(8..10)), [[1], [0], [0]]);
    }

    #[test]
    fn second_pass_stays_within_the_class() {
        let gpus = places(&[&below(0), &below(3)]);
        let nics = places(&[
            &below(1),
            "pci0000:10/0000:10:02.0/0000:40:00.0",
            "pci0000:80/0000:80:02.0/0000:82:00.0",
        ]);
        assert_eq!(assigned(&gpus, &nics), [[0], [0]]);
    }

    /// A case in which the published rule moves the second row's first slot to the NIC of its second slot.
    #[test]
    fn no_gpu_gets_a_nic_twice() {
        let port = |device: &str| place(&format!("pci0000:10/0000:10:01.0/{device}"));
        let gpus = [port("0000:11:00.0"), place("pci0000:10/0000:10:05.0"), port("0000:11:02.0")];
        let mut nics = vec![port("0000:11:03.0"), place("pci0000:10/0000:10:06.0")];
        nics.extend((0..4).map(|at| place(&format!("pci0000:80/0000:80:0{at}.0 1"))));
        assert_eq!(published(&gpus, &nics, 2), [vec![0], vec![1, 1], vec![0]]);
        assert_eq!(assigned(&gpus, &nics), [vec![0], vec![0, 1], vec![0]]);
    }

    #[test]
    fn slots_stay_in_their_order() {
        let result = assign_nics(&flat(0..2), &flat(8..12), PER_GPU_MAX);
        assert_eq!((result.per_gpu(), columns(&result)), (2, vec![vec![2, 3], vec![0, 1]]));
    }

    #[test]
    fn assignment_is_empty_without_gpus_or_nics() {
        assert_eq!(columns(&assign_nics(&[], &flat(0..4), 16)), Vec::<Vec<usize>>::new());
        let none = assign_nics(&flat(0..2), &[], 16);
        assert_eq!(
            (columns(&none), none.user_count(0), none.gpu_nics(7), none.is_close(0)),
            (vec![vec![]; 2], 0, &[][..], false)
        );
    }

    #[test]
    fn gpus_of_other_jobs_are_balanced_too() {
        // Eight GPUs: if each job balanced only its own GPU, all GPUs would use NIC 0.
        let result = assign_nics(&flat(0..8), &flat(8..16), PER_GPU_MAX);
        let mut nics: Vec<usize> = (0..8).map(|row| result.gpu_nics(row)[0].nic).collect();
        nics.sort_unstable();
        assert_eq!(nics, (0..8).collect::<Vec<_>>());
        let alone = assign_nics(&flat(3..4), &flat(8..16), 1);
        assert_eq!(alone.gpu_nics(0)[0].nic, 0);
    }

    /// The published rule, which may give a row the same NIC twice.
    fn published(gpus: &[DeviceLocation], nics: &[DeviceLocation], per_gpu: usize) -> Vec<Vec<usize>> {
        let mut list = Vec::new();
        for (row, gpu) in gpus.iter().enumerate() {
            for (nic, place) in nics.iter().enumerate() {
                list.push((Distance::between(gpu, place), row, nic));
            }
        }
        list.sort();
        let mut slots: Vec<Vec<(usize, Distance)>> = vec![Vec::new(); gpus.len()];
        let mut closed = vec![false; gpus.len()];
        let mut used = vec![0_usize; nics.len()];
        for &(distance, row, nic) in &list {
            if closed[row] || slots[row].len() == per_gpu {
                continue;
            }
            let first = slots[row].first().map_or(Distance::Sys, |slot| slot.1);
            if distance.distance_class() < first.distance_class() {
                closed[row] = true;
            } else {
                slots[row].push((nic, distance));
                used[nic] += 1;
            }
        }
        for (row, slots) in slots.iter_mut().enumerate() {
            for slot in slots {
                for &(distance, _, nic) in list.iter().filter(|pair| pair.1 == row) {
                    let (now, at) = *slot;
                    if used[now] < 2 || distance.distance_class() < at.distance_class() {
                        break;
                    }
                    if used[now] >= used[nic] + 2 {
                        used[now] -= 1;
                        used[nic] += 1;
                        *slot = (nic, distance);
                    }
                }
            }
        }
        slots.into_iter().map(|row| row.into_iter().map(|slot| slot.0).collect()).collect()
    }

    fn repeats(rows: &[Vec<usize>]) -> bool {
        rows.iter().any(|row| row.iter().enumerate().any(|(at, nic)| row[..at].contains(nic)))
    }

    fn any_place() -> impl Strategy<Value = DeviceLocation> {
        let hops = prop::collection::vec(0_u8..2, 0..4);
        (0_u8..3, hops, any::<u8>(), 0_u8..3, prop::bool::weighted(0.9)).prop_map(
            |(bridge, hops, own, node, seen)| {
                let hops: String =
                    hops.iter().enumerate().map(|(at, hop)| format!("/0000:0{at}:0{hop}.0")).collect();
                let path = format!("devices/pci0000:0{bridge}{hops}/0000:{own:02x}:1f.7");
                let numa = if node < 2 { NumaNode::parse(&node.to_string()) } else { None };
                DeviceLocation { path: PciPath::parse(&path).filter(|_| seen), numa }
            },
        )
    }

    fn some_places(most: usize) -> impl Strategy<Value = Vec<DeviceLocation>> {
        prop::collection::vec(any_place(), 1..=most)
    }

    proptest! {
        #[test]
        fn every_gpu_gets_a_nic_of_its_best_class(gpus in some_places(10), nics in some_places(20), most in 1_usize..20) {
            let result = assign_nics(&gpus, &nics, most);
            for (row, gpu) in gpus.iter().enumerate() {
                let classes = nics.iter().map(|nic| Distance::between(gpu, nic).distance_class());
                let best = classes.clone().max().unwrap();
                let reachable = classes.filter(|class| *class == best).count();
                let picks = result.gpu_nics(row);
                prop_assert_eq!(picks.len(), result.per_gpu().min(reachable));
                for pick in picks {
                    prop_assert_eq!(pick.distance, Distance::between(gpu, &nics[pick.nic]));
                    prop_assert_eq!(pick.distance.distance_class(), best);
                }
            }
            prop_assert!(!repeats(&columns(&result)));
        }

        #[test]
        fn users_are_counted(gpus in some_places(10), nics in some_places(20)) {
            let result = assign_nics(&gpus, &nics, PER_GPU_MAX);
            for nic in 0..nics.len() {
                let users = (0..gpus.len()).filter(|&row| result.gpu_nics(row).iter().any(|pick| pick.nic == nic)).count();
                prop_assert_eq!(result.user_count(nic), users);
            }
        }

        #[test]
        fn equal_nics_are_used_equally(gpus in 1_u8..16, nics in 1_u8..16) {
            let result = assign_nics(&flat(0..gpus), &flat(16..16 + nics), PER_GPU_MAX);
            let users: Vec<usize> = (0..usize::from(nics)).map(|nic| result.user_count(nic)).collect();
            let (least, most) = (users.iter().min().unwrap(), users.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", users);
        }

        #[test]
        fn second_pass_never_raises_the_maximum_use(gpus in some_places(10), nics in some_places(20)) {
            let mut result = NicAssignment { per_gpu: nics_per_gpu(gpus.len(), nics.len(), 16), rows: vec![Vec::new(); gpus.len()], used: vec![0; nics.len()] };
            let pairs = sorted_pairs(&gpus, &nics);
            take_nearest(&pairs, &mut result);
            let before = result.used.iter().max().copied();
            balance_nics(&pairs, &mut result);
            prop_assert!(result.used.iter().max().copied() <= before);
        }

        #[test]
        fn assignment_equals_published_rule_without_repeats(gpus in some_places(10), nics in some_places(20), most in 1_usize..17) {
            let theirs = published(&gpus, &nics, nics_per_gpu(gpus.len(), nics.len(), most));
            if !repeats(&theirs) {
                prop_assert_eq!(columns(&assign_nics(&gpus, &nics, most)), theirs);
            }
        }
    }
}
