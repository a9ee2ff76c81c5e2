//! The fuzz targets of this crate: a check and seed inputs for each. The targets in `testing/fuzz/` and the test that replays `testing/fuzz/corpus/`
//! call the same functions. No product code calls them.

mod actions;
mod device_queue;
mod ipc;
mod mlx5;
mod node;
mod pair;
mod rma;
mod share;
mod tagged;
mod wire;

use alloc::vec::Vec;

pub use actions::{FuzzAction, random_script, read_actions, write_script};

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Its name: the file in `testing/fuzz/fuzz_targets/` and the folder in `testing/fuzz/corpus/`.
    pub name: &'static str,
    /// Accepts any bytes; panics if the code under test is wrong.
    pub check: fn(&[u8]),
    /// Returns the inputs that `cargo xtask corpus` writes, the same each time.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The targets of this crate.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "handle", check: wire::check_handle, seeds: wire::handle_seeds },
    FuzzTarget { name: "frame", check: wire::check_frame, seeds: wire::frame_seeds },
    FuzzTarget { name: "cts", check: wire::check_cts, seeds: wire::cts_seeds },
    FuzzTarget { name: "imm", check: wire::check_imm, seeds: wire::imm_seeds },
    FuzzTarget { name: "eager", check: wire::check_eager, seeds: wire::eager_seeds },
    FuzzTarget { name: "fin", check: wire::check_fin, seeds: wire::fin_seeds },
    FuzzTarget { name: "memory_handle", check: wire::memory_handle, seeds: wire::memory_handle_seeds },
    FuzzTarget { name: "mlx5", check: mlx5::check_queues, seeds: mlx5::queue_seeds },
    FuzzTarget { name: "pe", check: wire::check_pe, seeds: wire::pe_seeds },
    FuzzTarget { name: "start_notice", check: wire::check_start_notice, seeds: wire::start_notice_seeds },
    FuzzTarget { name: "strand", check: wire::check_strand, seeds: wire::strand_seeds },
    FuzzTarget { name: "dial", check: wire::check_dial, seeds: wire::dial_seeds },
    FuzzTarget { name: "devq", check: device_queue::words_of_a_queue, seeds: device_queue::queue_seeds },
    FuzzTarget {
        name: "window_card",
        check: device_queue::window_card,
        seeds: device_queue::window_card_seeds,
    },
    FuzzTarget { name: "guest_card", check: device_queue::guest_card, seeds: device_queue::guest_card_seeds },
    FuzzTarget {
        name: "making_report",
        check: device_queue::making_report,
        seeds: device_queue::making_report_seeds,
    },
    FuzzTarget { name: "post_box", check: device_queue::post_box, seeds: device_queue::post_box_seeds },
    FuzzTarget { name: "ipc", check: ipc::check_messages, seeds: ipc::message_seeds },
    FuzzTarget { name: "ipc_hostile", check: ipc::check_hostile, seeds: ipc::hostile_seeds },
    FuzzTarget { name: "tagged_cell", check: tagged::check_cells, seeds: tagged::cell_seeds },
    FuzzTarget { name: "introduction", check: tagged::check_introduction, seeds: tagged::introduction_seeds },
    FuzzTarget { name: "window", check: ipc::check_windows, seeds: ipc::window_seeds },
    FuzzTarget { name: "share", check: share::check_words, seeds: share::word_seeds },
    FuzzTarget { name: "pool", check: share::check_pool, seeds: share::pool_seeds },
    FuzzTarget { name: "rma", check: rma::check_words, seeds: rma::word_seeds },
    FuzzTarget { name: "rma_hostile", check: rma::check_hostile, seeds: rma::hostile_seeds },
    FuzzTarget { name: "status", check: wire::check_status, seeds: wire::status_seeds },
    FuzzTarget { name: "node_page", check: node::check_page, seeds: node::page_seeds },
    FuzzTarget { name: "pair", check: pair::check_friends, seeds: pair::script_seeds },
    FuzzTarget { name: "hostile", check: pair::check_hostile, seeds: pair::script_seeds },
];

/// Runs the target of this crate with that name.
///
/// # Panics
/// If no target has the name, or the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    run_of(TARGETS, name, bytes);
}

/// Runs the target with that name among those of a crate.
///
/// # Panics
/// If no target of `targets` has the name, or the code under test is wrong.
pub fn run_of(targets: &[FuzzTarget], name: &str, bytes: &[u8]) {
    let target = targets.iter().find(|target| target.name == name);
    assert!(target.is_some(), "no fuzz target {name}");
    if let Some(target) = target {
        (target.check)(bytes);
    }
}

/// A repeatable source of numbers (xorshift), for seeds and scripts.
#[derive(Clone, Debug)]
pub struct RandomNumbers(u64);

impl RandomNumbers {
    /// Creates a sequence that depends on the seed only.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns the next number below `end`, which is not 0.
    pub fn next_below(&mut self, end: usize) -> usize {
        (self.next_u64() % end as u64) as usize
    }
}

/// Returns valid encodings, and for each some that are cut, lengthened or have a flipped bit.
#[must_use]
pub fn make_variants(valid: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut out = valid.to_vec();
    out.push(Vec::new());
    let mut numbers = RandomNumbers::new(1);
    for bytes in valid.iter().take(5) {
        out.push(bytes[..bytes.len() / 2].to_vec());
        out.push(bytes[..bytes.len().saturating_sub(1)].to_vec());
        let mut long = bytes.clone();
        long.push(0xff);
        out.push(long);
        for _ in 0..3 {
            let mut flipped = bytes.clone();
            let at = numbers.next_below(flipped.len());
            flipped[at] ^= 1 << numbers.next_below(8);
            out.push(flipped);
        }
    }
    out
}
