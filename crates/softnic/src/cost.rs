//! What copying costs on this machine: measured once for each fabric, when its first link is connected. Asked at
//! connect; the data path only sees the size from which one copy by the receiver is the better method.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::copy;
use crate::pull::Process;

/// Sizes measured, in bytes, ascending.
const SIZES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
/// Times each is measured; the best counts.
const ROUNDS: usize = 3;
/// What a record by record hand-over adds to a staged copy, in percent.
const HANDOVER: u128 = 30;

/// Time to copy each of [`SIZES`], by method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    memcpy: [Duration; SIZES.len()],
    pull: [Option<Duration>; SIZES.len()],
    cores: usize,
}

impl Table {
    /// Measures; takes about a millisecond.
    pub(crate) fn measure() -> Self {
        let largest = SIZES[SIZES.len() - 1];
        let from = vec![1u8; largest];
        let mut to = vec![2u8; largest];
        let own = Process::new(std::process::id());
        let best = |run: &mut dyn FnMut() -> bool| {
            let once = |run: &mut dyn FnMut() -> bool| {
                let start = Instant::now();
                run().then(|| start.elapsed())
            };
            (0..ROUNDS).filter_map(|_| once(run)).min()
        };
        let memcpy = SIZES.map(|size| {
            best(&mut || {
                // SAFETY: both vectors have at least `size` bytes.
                unsafe { copy::bytes(black_box(to.as_mut_ptr()), black_box(from.as_ptr()), size) };
                true
            })
            .unwrap_or_default()
        });
        let at = from.as_ptr().expose_provenance() as u64;
        let pull = SIZES.map(|size| best(&mut || own.copies(to.as_mut_slice(), at, size)));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { memcpy, pull, cores }
    }

    /// Bytes from which pulling is faster than staging, up to any size.
    pub(crate) fn pull_from(&self) -> Option<u64> {
        let mut from = None;
        for (index, size) in SIZES.into_iter().enumerate().rev() {
            // With one core the two copies of staging do not overlap.
            let copies = if self.cores > 1 { 1 } else { 2 };
            let staged = self.memcpy[index].as_nanos() * copies * (100 + HANDOVER) / 100;
            if self.pull[index].is_none_or(|pull| pull.as_nanos() >= staged) {
                break;
            }
            from = Some(size as u64);
        }
        from
    }
}

#[cfg(test)]
mod tests {
    use super::{SIZES, Table};
    use std::time::Duration;

    fn table(memcpy: [u64; SIZES.len()], pull: [u64; SIZES.len()], cores: usize) -> Table {
        let pull = pull.map(|us| (us > 0).then(|| Duration::from_micros(us)));
        Table { memcpy: memcpy.map(Duration::from_micros), pull, cores }
    }

    #[test]
    fn the_cheaper_method_is_chosen_by_size() {
        assert_eq!(table([10, 40, 160], [11, 60, 150], 2).pull_from(), Some(1 << 20));
        assert_eq!(table([10, 40, 160], [12, 50, 150], 2).pull_from(), Some(64 << 10));
        assert_eq!(table([10, 40, 160], [20, 80, 320], 2).pull_from(), None);
        assert_eq!(table([10, 40, 160], [20, 80, 320], 1).pull_from(), Some(64 << 10));
        assert_eq!(table([10, 40, 160], [0, 0, 0], 1).pull_from(), None, "where the system refuses");
    }

    #[test]
    fn measuring_is_quick() {
        let start = std::time::Instant::now();
        let table = Table::measure();
        assert!(table.memcpy.iter().all(|time| !time.is_zero()));
        assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    }
}
