//! Streams of messages that both ends know beforehand, over memory whose mapping may be replaced under its address.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::OnceLock;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::net::{Called, Comm, Mr, Net, Piece, Request};

/// Messages of a stream that are under way at once.
pub(crate) const SLOTS: usize = 4;
/// Longest message of a stream: more than one slice, and not a whole number of them.
pub(crate) const LEN: usize = (1 << 20) + 1;
/// Lengths in turn: empty, eager, small, a slice, several slices.
const LENGTHS: [usize; 9] = [100, LEN, 0, 5000, (256 << 10) + 1, 32 << 10, 1, (32 << 10) + 1, 600_000];

/// Bytes without a pattern; each seed begins at another one.
fn noise(seed: usize, len: usize) -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    const STARTS: usize = 65_521;
    let noise = NOISE.get_or_init(|| {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as u8
        };
        std::iter::repeat_with(next).take(STARTS + SLOTS * LEN).collect()
    });
    let start = seed.wrapping_mul(7919) % STARTS;
    &noise[start..start + len]
}

/// Pages of their own at an address that can be asked for.
pub(crate) struct Mapped {
    addr: usize,
    len: usize,
}

impl Mapped {
    pub(crate) fn new(len: usize) -> Self {
        // SAFETY: a new mapping, wherever the kernel likes.
        let mapped = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        Self { addr: mapped.expect("memory").expose_provenance(), len }
    }

    /// The same addresses, unmapped and mapped anew: zeros of nobody who knew the old ones.
    pub(crate) fn renewed(self) -> Self {
        let (addr, len) = (self.addr, self.len);
        drop(self);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let at = std::ptr::with_exposed_provenance_mut(addr);
        // SAFETY: replaces nothing, as the flags say.
        let mapped = unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        assert_eq!(mapped.expect("the same addresses").addr(), addr);
        Self { addr, len }
    }

    pub(crate) fn addr(&self) -> usize {
        self.addr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn at(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.end <= self.len, "{range:?} of {}", self.len);
        std::ptr::with_exposed_provenance_mut(self.addr + range.start)
    }

    /// The pattern of a seed.
    pub(crate) fn fill(&self, range: Range<usize>, seed: usize) {
        let noise = noise(seed, range.len());
        // SAFETY: inside the mapping, which nobody reads meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(noise.as_ptr(), self.at(&range), noise.len()) };
    }

    /// The first byte, counted from the start of the range, that is not as the pattern of the seed.
    pub(crate) fn differs(&self, range: Range<usize>, seed: usize) -> Option<usize> {
        let noise = noise(seed, range.len());
        let mut found = vec![0_u8; noise.len()];
        // SAFETY: inside the mapping; who wrote it has said that it is done.
        unsafe { std::ptr::copy_nonoverlapping(self.at(&range), found.as_mut_ptr(), noise.len()) };
        if found == noise { None } else { found.iter().zip(noise).position(|(a, b)| a != b) }
    }

    #[track_caller]
    pub(crate) fn check(&self, range: Range<usize>, seed: usize, what: &str) {
        let differs = self.differs(range.clone(), seed);
        assert_eq!(differs, None, "{what}: bytes {range:?} are not the pattern of {seed}");
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made, which nothing uses any more.
        unsafe { munmap(self.at(&(0..self.len)).cast(), self.len) }.expect("munmap");
    }
}

/// One end of a stream: message after message, each as the name of the stream and its number say.
pub(crate) struct Stream<'a> {
    net: &'a Net,
    pub(crate) comm: Comm,
    sends: bool,
    name: usize,
    lengths: &'static [usize],
    pub(crate) memory: Option<Mapped>,
    pub(crate) mr: Mr,
    begun: usize,
    pub(crate) done: usize,
    requests: VecDeque<Request>,
    /// Something of it has ended in an error; nothing more is asked of it.
    pub(crate) failed: bool,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(net: &'a Net, comm: Comm, sends: bool, name: usize) -> Self {
        Self::of(net, comm, sends, name, &LENGTHS)
    }

    /// With messages of these lengths in turn.
    pub(crate) fn of(net: &'a Net, comm: Comm, sends: bool, name: usize, lengths: &'static [usize]) -> Self {
        let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
        let memory = Mapped::new(SLOTS * longest);
        let mr = net.reg(comm, memory.addr(), memory.len()).expect("regMr");
        let memory = Some(memory);
        Self {
            net,
            comm,
            sends,
            name,
            lengths,
            memory,
            mr,
            begun: 0,
            done: 0,
            requests: VecDeque::new(),
            failed: false,
        }
    }

    /// Number, length, place and seed of a message.
    fn message(&self, at: usize) -> (Range<usize>, usize) {
        let slot = self.memory.as_ref().map_or(0, Mapped::len) / SLOTS;
        let start = at % SLOTS * slot;
        let len = self.lengths[(at + self.name) % self.lengths.len()];
        (start..start + len, self.name * 100_003 + at + 1)
    }

    /// Whether a long one is among them.
    pub(crate) fn is_amid_long(&self) -> bool {
        (self.done..self.begun).any(|at| self.message(at).0.len() > 256 << 10)
    }

    /// One step towards so many messages: begins one if it can, and ends one if it is done. After an error, none.
    pub(crate) fn step(&mut self, upto: usize) -> Called<()> {
        if self.failed {
            return Ok(());
        }
        let outcome = self.advance(upto);
        self.failed = outcome.is_err();
        outcome
    }

    fn advance(&mut self, upto: usize) -> Called<()> {
        let memory = self.memory.as_ref().expect("memory");
        if self.begun < upto && self.requests.len() < SLOTS {
            let (range, seed) = self.message(self.begun);
            let piece = Piece {
                addr: memory.addr() + range.start,
                len: range.len(),
                tag: self.name as i32,
                mr: self.mr,
            };
            let request = if self.sends {
                memory.fill(range, seed);
                self.net.try_send(self.comm, piece, 0)?
            } else {
                self.net.try_recv(self.comm, &[piece], 0)?
            };
            self.requests.extend(request);
            self.begun += usize::from(request.is_some());
        }
        if let Some(&first) = self.requests.front()
            && let Some(sizes) = self.net.try_test(first)?
        {
            self.requests.pop_front();
            let (range, seed) = self.message(self.done);
            self.done += 1;
            if !self.sends {
                assert_eq!(sizes[0] as usize, range.len(), "size of message {} of {}", self.done, self.name);
                memory.check(range, seed, &format!("message {} of stream {}", self.done, self.name));
            }
        }
        Ok(())
    }

    /// No more messages: the memory is given back, and closed is the comm.
    pub(crate) fn close(self) {
        if self.memory.is_some() {
            self.net.dereg(self.comm, self.mr).expect("deregMr");
        }
        if self.sends { self.net.close_send(self.comm) } else { self.net.close_recv(self.comm) }
            .expect("close");
    }

    /// The same with messages under way, as a caller that aborts does.
    pub(crate) fn drop_all(self) {
        if self.sends { self.net.close_send(self.comm) } else { self.net.close_recv(self.comm) }
            .expect("close");
    }
}
