//! A model of write-combined memory for tests: stores are held back, and become visible in any order until a fence.
//! Several crates include this file in their tests. The model has no accessible address.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test uses a part of this file")]

use std::fmt;
use std::sync::Mutex;

use trunkline_mem::MappedBytes;

/// Up to this number of held stores all subsets are explored, beyond it random ones.
const EXPLORED_MAX: usize = 10;
/// The number of random subsets that are explored.
const SAMPLES: usize = 300;

/// Called with every image of the memory that the device may see.
type Watch = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Write-combined memory, and the stores that the device may not see yet.
pub struct HeldStores {
    state: Mutex<HeldState>,
    watch: Option<Watch>,
}

struct HeldState {
    /// The bytes that the device is certain to see.
    image: Vec<u8>,
    /// Later stores, the oldest first.
    held: Vec<(u64, Vec<u8>)>,
    random: u64,
    fences: u64,
    /// Bytes that were copied to the memory, and from it.
    copied: [usize; 2],
}

impl HeldStores {
    /// Makes `len` zeroed bytes. `watch` is called with each image that the device may see, at each store.
    pub fn new(len: usize, seed: u64, watch: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self { watch: Some(Box::new(watch)), ..Self::unwatched(len, seed) }
    }

    /// Makes `len` zeroed bytes whose images no test reads.
    pub fn unwatched(len: usize, seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let state = HeldState { image: vec![0; len], held: Vec::new(), random, fences: 0, copied: [0; 2] };
        Self { state: Mutex::new(state), watch: None }
    }

    /// Returns the number of stores that no fence has published.
    pub fn held_back(&self) -> usize {
        self.state.lock().unwrap().held.len()
    }

    /// Returns the number of fences.
    pub fn fences(&self) -> u64 {
        self.state.lock().unwrap().fences
    }

    /// Returns the number of bytes copied to the memory, and from it.
    pub fn copied(&self) -> [usize; 2] {
        self.state.lock().unwrap().copied
    }

    /// Returns bytes that the device is certain to see.
    pub fn image(&self) -> Vec<u8> {
        self.state.lock().unwrap().image.clone()
    }

    /// Changes bytes that the device sees, as a write of the device.
    pub fn set_image(&self, at: usize, bytes: &[u8]) {
        self.state.lock().unwrap().image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn hold_store(&self, at: u64, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap();
        state.held.push((at, bytes.to_vec()));
        state.each_image(&self.watch);
    }

    /// Returns the bytes as this processor sees them, with its own held stores.
    fn own(&self, at: u64, out: &mut [u8]) {
        let state = self.state.lock().unwrap();
        let all = state.with(|_| true);
        out.copy_from_slice(&all[at as usize..at as usize + out.len()]);
    }
}

impl HeldState {
    /// Returns the image with some of the held stores. A store implies the earlier stores to the same bytes.
    fn with(&self, takes: impl Fn(usize) -> bool) -> Vec<u8> {
        let overlap = |a: &(u64, Vec<u8>), b: &(u64, Vec<u8>)| {
            a.0 < b.0 + b.1.len() as u64 && b.0 < a.0 + a.1.len() as u64
        };
        let mut taken: Vec<bool> = (0..self.held.len()).map(takes).collect();
        for later in (0..taken.len()).rev() {
            if taken[later] {
                let earlier = self.held.iter().zip(&mut taken).take(later);
                earlier.for_each(|(store, taken)| *taken |= overlap(store, &self.held[later]));
            }
        }
        let mut image = self.image.clone();
        for ((at, bytes), _) in self.held.iter().zip(taken).filter(|(_, taken)| *taken) {
            image[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
        }
        image
    }

    fn each_image(&mut self, watch: &Option<Watch>) {
        let Some(watch) = watch else { return };
        let count = self.held.len();
        if count <= EXPLORED_MAX {
            (0..1_u32 << count).for_each(|subset| watch(&self.with(|at| subset >> at & 1 == 1)));
            return;
        }
        for _ in 0..SAMPLES {
            let mut words = Vec::new();
            for _ in 0..count.div_ceil(64) {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                words.push(self.random);
            }
            watch(&self.with(|at| words[at / 64] >> (at % 64) & 1 == 1));
        }
    }
}

impl MappedBytes for HeldStores {
    fn load_word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.own(at, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn load_half(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.own(at, &mut bytes);
        u32::from_ne_bytes(bytes)
    }

    fn store_word(&self, at: u64, value: u64) {
        self.hold_store(at, &value.to_ne_bytes());
    }

    fn store_half(&self, at: u64, value: u32) {
        self.hold_store(at, &value.to_ne_bytes());
    }

    fn fence(&self) {
        let mut state = self.state.lock().unwrap();
        state.image = state.with(|_| true);
        state.held.clear();
        state.fences += 1;
    }

    fn copy_to(&self, at: u64, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap();
        state.copied[0] += bytes.len();
        // Copied in pieces, the last one first.
        let pieces = bytes.chunks(61).enumerate().collect::<Vec<_>>();
        for (index, piece) in pieces.into_iter().rev() {
            state.held.push((at + 61 * index as u64, piece.to_vec()));
        }
        state.each_image(&self.watch);
    }

    /// Streaming loads do not see stores that are held back.
    fn copy_from(&self, at: u64, out: &mut [u8]) {
        let mut state = self.state.lock().unwrap();
        state.copied[1] += out.len();
        out.copy_from_slice(&state.image[at as usize..at as usize + out.len()]);
    }
}

impl fmt::Debug for HeldStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldStores")
    }
}
