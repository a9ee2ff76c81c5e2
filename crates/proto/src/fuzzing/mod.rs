//! What each fuzz target does with its input, and the inputs it begins with. The targets in `testing/fuzz/` and the ordinary
//! test that replays `testing/fuzz/corpus/` call the same functions; nothing of this is in the product.

mod actions;
mod devq;
mod ipc;
mod mlx5;
mod node;
mod pair;
mod rma;
mod share;
mod tagged;
mod wire;

use alloc::vec::Vec;

pub use actions::{Action, random_script, read_actions, write_script};

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: the file in `testing/fuzz/fuzz_targets/` and the folder in `testing/fuzz/corpus/`.
    pub name: &'static str,
    /// Takes any bytes; panics when the code under test is wrong.
    pub check: fn(&[u8]),
    /// The inputs that `cargo xtask corpus` writes, the same each time.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The targets of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "handle", check: wire::handle, seeds: wire::handle_seeds },
    Target { name: "frame", check: wire::frame, seeds: wire::frame_seeds },
    Target { name: "cts", check: wire::cts, seeds: wire::cts_seeds },
    Target { name: "imm", check: wire::imm, seeds: wire::imm_seeds },
    Target { name: "eager", check: wire::eager, seeds: wire::eager_seeds },
    Target { name: "fin", check: wire::fin, seeds: wire::fin_seeds },
    Target { name: "memory_handle", check: wire::memory_handle, seeds: wire::memory_handle_seeds },
    Target { name: "mlx5", check: mlx5::queues, seeds: mlx5::queue_seeds },
    Target { name: "pe", check: wire::pe, seeds: wire::pe_seeds },
    Target { name: "strand", check: wire::strand, seeds: wire::strand_seeds },
    Target { name: "dial", check: wire::dial, seeds: wire::dial_seeds },
    Target { name: "devq", check: devq::words_of_a_queue, seeds: devq::seeds },
    Target { name: "window_card", check: devq::window_card, seeds: devq::window_card_seeds },
    Target { name: "guest_card", check: devq::guest_card, seeds: devq::guest_card_seeds },
    Target { name: "making_report", check: devq::making_report, seeds: devq::making_report_seeds },
    Target { name: "post_box", check: devq::post_box, seeds: devq::post_box_seeds },
    Target { name: "ipc", check: ipc::messages, seeds: ipc::message_seeds },
    Target { name: "ipc_hostile", check: ipc::hostile, seeds: ipc::hostile_seeds },
    Target { name: "tagged_cell", check: tagged::cells, seeds: tagged::cell_seeds },
    Target { name: "introduction", check: tagged::introduction, seeds: tagged::introduction_seeds },
    Target { name: "window", check: ipc::windows, seeds: ipc::window_seeds },
    Target { name: "share", check: share::words, seeds: share::word_seeds },
    Target { name: "pool", check: share::pool, seeds: share::pool_seeds },
    Target { name: "rma", check: rma::words, seeds: rma::word_seeds },
    Target { name: "rma_hostile", check: rma::hostile, seeds: rma::hostile_seeds },
    Target { name: "status", check: wire::status, seeds: wire::status_seeds },
    Target { name: "node_page", check: node::page, seeds: node::page_seeds },
    Target { name: "pair", check: pair::friends, seeds: pair::seeds },
    Target { name: "hostile", check: pair::hostile, seeds: pair::seeds },
];

/// Runs the target of that name of this crate.
///
/// # Panics
/// When there is none, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    run_of(TARGETS, name, bytes);
}

/// Runs the target of that name among those of a crate.
///
/// # Panics
/// When there is none in `targets`, or when the code under test is wrong.
pub fn run_of(targets: &[Target], name: &str, bytes: &[u8]) {
    let target = targets.iter().find(|target| target.name == name);
    assert!(target.is_some(), "no fuzz target {name}");
    if let Some(target) = target {
        (target.check)(bytes);
    }
}

/// A repeatable source of numbers (xorshift), for seeds and scripts.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// A sequence of its own for each seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next_u64() % end as u64) as usize
    }
}

/// Encodings that are right, and for each some that are cut, lengthened or have a flipped bit.
#[must_use]
pub fn variants(valid: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut out = valid.to_vec();
    out.push(Vec::new());
    let mut numbers = Numbers::new(1);
    for bytes in valid.iter().take(5) {
        out.push(bytes[..bytes.len() / 2].to_vec());
        out.push(bytes[..bytes.len().saturating_sub(1)].to_vec());
        let mut long = bytes.clone();
        long.push(0xff);
        out.push(long);
        for _ in 0..3 {
            let mut flipped = bytes.clone();
            let at = numbers.below(flipped.len());
            flipped[at] ^= 1 << numbers.below(8);
            out.push(flipped);
        }
    }
    out
}
