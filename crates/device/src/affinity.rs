//! Binds an executor's thread to processors near the GPU whose doorbells it polls, as listed by sysfs. The thread calls it once at its
//! start. It leaves the thread unbound if sysfs lists no processors, or none that the thread may use.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The root of sysfs.
pub(super) const SYSFS: &str = "/sys";

/// Binds the calling thread to those processors near a PCI device that it may use. Returns whether it is bound.
pub(super) fn run_near(sysfs: &Path, pci_address: &str) -> bool {
    let path = sysfs.join("bus/pci/devices").join(pci_address).join("local_cpulist");
    let Ok(list) = std::fs::read_to_string(path) else { return false };
    let Ok(allowed) = sched_getaffinity(None) else { return false };
    let mut near = CpuSet::new();
    // Processors that the user has excluded, for example by `taskset`, stay excluded.
    let is_allowed = |cpu: &usize| *cpu < CpuSet::MAX_CPU && allowed.is_set(*cpu);
    processors_of(&list).filter(is_allowed).for_each(|cpu| near.set(cpu));
    near.count() > 0 && sched_setaffinity(None, &near).is_ok()
}

/// Returns the processors in a list like `0-3,8`. Unreadable items are skipped.
fn processors_of(list: &str) -> impl Iterator<Item = usize> {
    list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let ends = first.parse().ok().zip(last.parse::<usize>().ok());
        ends.map_or(0..0, |(first, last)| first..last.min(CpuSet::MAX_CPU).saturating_add(1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the processors of a thread that may use the first `most` ones, and binds itself near a device with this list.
    fn bind(list: &str, most: usize) -> (bool, Vec<usize>) {
        let sysfs = tempfile::tempdir().unwrap();
        let device = sysfs.path().join("bus/pci/devices/0000:3b:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("local_cpulist"), list).unwrap();
        let bound = std::thread::spawn(move || {
            let mut some = CpuSet::new();
            allowed().into_iter().take(most).for_each(|cpu| some.set(cpu));
            sched_setaffinity(None, &some).unwrap();
            let is_bound = run_near(sysfs.path(), "0000:3b:00.0");
            (is_bound, allowed())
        });
        bound.join().unwrap()
    }

    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    #[test]
    fn thread_is_bound_near_its_device() {
        let all = allowed();
        let first = all[0];
        let last = all[all.len() - 1];
        assert_eq!(bind(&format!("{last}\n"), all.len()), (true, vec![last]));
        // The other listed processors are not allowed, or do not exist.
        assert_eq!(bind(&format!("{first},1000-1023\n"), all.len()), (true, vec![first]));
    }

    #[test]
    fn thread_stays_on_permitted_processors() {
        let all = allowed();
        for list in ["", "1023\n", "what\n", "9-3\n"] {
            assert_eq!(bind(list, all.len()), (false, all.clone()), "{list:?}");
        }
        // Processors that the user has excluded stay excluded, although the kernel would accept them.
        if let [first, .., last] = all[..] {
            assert_eq!(bind(&last.to_string(), 1), (false, vec![first]));
        }
    }

    #[test]
    fn processor_lists_are_parsed() {
        assert_eq!(processors_of("0-2,8,10-11\n").collect::<Vec<_>>(), [0, 1, 2, 8, 10, 11]);
        assert_eq!(processors_of("x-2,,7").collect::<Vec<_>>(), [7]);
    }
}
