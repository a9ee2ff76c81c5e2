//! Streams of messages that both ends can compute, in memory whose mapping may be replaced at the same address.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::OnceLock;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::net::{Called, Comm, Mr, Net, Piece, Request};

/// Outstanding messages of a stream.
pub(crate) const SLOTS: usize = 4;
/// Longest message of a stream: more than one slice, and not a whole number of them.
pub(crate) const LEN: usize = (1 << 20) + 1;
/// Lengths in turn: empty, eager, small, a slice, several slices.
const LENGTHS: [usize; 9] = [100, LEN, 0, 5000, (256 << 10) + 1, 32 << 10, 1, (32 << 10) + 1, 600_000];

/// Bytes without a pattern; each seed begins at another offset.
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

/// Pages mapped at a given address.
pub(crate) struct Mapped {
    addr: usize,
    len: usize,
}

impl Mapped {
    pub(crate) fn new(len: usize) -> Self {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapped = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        Self { addr: mapped.expect("memory").expose_provenance(), len }
    }

    /// Unmaps the pages and maps new ones at the same address, which contain zeros.
    pub(crate) fn renewed(self) -> Self {
        let (addr, len) = (self.addr, self.len);
        drop(self);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let at = std::ptr::with_exposed_provenance_mut(addr);
        // SAFETY: the flags forbid replacing another mapping.
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

    /// Writes the pattern of a seed.
    pub(crate) fn fill(&self, range: Range<usize>, seed: usize) {
        let noise = noise(seed, range.len());
        // SAFETY: the range is inside the mapping, and no thread reads it meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(noise.as_ptr(), self.at(&range), noise.len()) };
    }

    /// The first byte, counted from the start of the range, that differs from the seed's pattern.
    pub(crate) fn differs(&self, range: Range<usize>, seed: usize) -> Option<usize> {
        let noise = noise(seed, range.len());
        let mut found = vec![0_u8; noise.len()];
        // SAFETY: the range is inside the mapping, and its writer has reported completion.
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
        // SAFETY: a mapping of ours, which is no longer used.
        unsafe { munmap(self.at(&(0..self.len)).cast(), self.len) }.expect("munmap");
    }
}

/// One end of a stream of messages, whose content depends on the stream's name and the message's number.
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
    /// A request has failed; the stream makes no more calls.
    pub(crate) failed: bool,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(net: &'a Net, comm: Comm, sends: bool, name: usize) -> Self {
        Self::of(net, comm, sends, name, &LENGTHS)
    }

    /// Creates a stream with messages of these lengths in turn.
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

    /// The range of the buffer and the seed of a message.
    fn message(&self, at: usize) -> (Range<usize>, usize) {
        let slot = self.memory.as_ref().map_or(0, Mapped::len) / SLOTS;
        let start = at % SLOTS * slot;
        let len = self.lengths[(at + self.name) % self.lengths.len()];
        (start..start + len, self.name * 100_003 + at + 1)
    }

    /// Whether a long message is outstanding.
    pub(crate) fn is_amid_long(&self) -> bool {
        (self.done..self.begun).any(|at| self.message(at).0.len() > 256 << 10)
    }

    /// One step towards `upto` messages: starts one and completes one, if possible. After an error it does nothing.
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

    /// Ends the stream: deregisters its memory, and closes the comm.
    pub(crate) fn close(self) {
        if self.memory.is_some() {
            self.net.dereg(self.comm, self.mr).expect("deregMr");
        }
        if self.sends { self.net.close_send(self.comm) } else { self.net.close_recv(self.comm) }
            .expect("close");
    }

    /// Ends the stream with outstanding messages, as a caller that aborts does.
    pub(crate) fn drop_all(self) {
        if self.sends { self.net.close_send(self.comm) } else { self.net.close_recv(self.comm) }
            .expect("close");
    }
}
