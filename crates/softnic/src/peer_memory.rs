//! Memory of the process at the other end of a link, reached by system calls. Used by the two sides of a direct copy. It never checks whether a
//! copy is allowed, and never reaches a process that has not shown the link's proof.
//!
//! The kernel names the process (`PassedFd::sender`); the proof shows that the link is still in it. Without both, a peer could name any
//! process, this one included, and have its memory copied with this process's rights.

use std::io;
use std::sync::Arc;

use crate::process::HostProcess;

/// The address at which a link's process keeps a word that no other process can know, and the word. The link's peer receives both.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LinkProof {
    /// Address of the word in the link's process.
    pub(crate) addr: u64,
    /// The word. 0 proves nothing.
    pub(crate) word: u64,
}

/// The word itself. Each link has its own, so that the word of one peer proves nothing to another.
pub(crate) struct ProofWord(Box<u64>);

impl ProofWord {
    /// Keeps a random word; the lowest bit is set so that it is not 0.
    pub(crate) fn new(random: u64) -> Self {
        Self(Box::new(random | 1))
    }

    /// Returns the proof for the link's peer.
    pub(crate) fn to_proof(&self) -> LinkProof {
        LinkProof { addr: std::ptr::from_ref(&*self.0).expose_provenance() as u64, word: *self.0 }
    }
}

/// The memory of a link's peer.
pub(crate) struct PeerMemory {
    process: Arc<HostProcess>,
    proof: LinkProof,
}

impl PeerMemory {
    /// Creates the memory of `process`, which should contain the link of `proof`.
    pub(crate) fn new(process: Arc<HostProcess>, proof: LinkProof) -> Self {
        Self { process, proof }
    }

    /// Returns the process.
    pub(crate) fn peer_process(&self) -> &HostProcess {
        &self.process
    }

    /// Whether this process can read that one's memory, and the link is in it.
    pub(crate) fn is_proven(&self) -> bool {
        let mut word = [0u8; 8];
        // SAFETY: eight writable bytes.
        let read = unsafe { self.process.read_bytes(word.as_mut_ptr(), self.proof.addr, 8) };
        read.is_ok() && self.proof.word != 0 && word == self.proof.word.to_ne_bytes()
    }

    /// Reads `len` bytes at address `from` of the peer, and the proof with them in the same system call. A process that has taken the peer's place, by its
    /// number or by `execve`, does not have the proof, so the call fails.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::NotFound`] if the process does not have the proof (any more). Bytes may have been written even so.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    pub(crate) unsafe fn read_bytes(&self, to: *mut u8, from: u64, len: usize) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            // SAFETY: `done < len`, so it stays inside the range.
            let at = unsafe { to.add(done) };
            let mut word = 0u64;
            // SAFETY: `at` is writable for the `len - done` bytes that remain, by the caller's promise.
            done += unsafe {
                self.process.read_with_word(
                    &mut word,
                    self.proof.addr,
                    at,
                    from.wrapping_add(done as u64),
                    len - done,
                )
            }?;
            if word != self.proof.word {
                return Err(io::ErrorKind::NotFound.into());
            }
        }
        Ok(())
    }

    /// Writes `len` bytes to address `to` of the peer, if it has the proof.
    ///
    /// # Errors
    /// As [`PeerMemory::read_bytes`].
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    pub(crate) unsafe fn write_bytes(&self, to: u64, from: *const u8, len: usize) -> io::Result<()> {
        if !self.is_proven() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // SAFETY: the caller promises that `from` is readable for `len` bytes.
        unsafe { self.process.write_bytes(to, from, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_copied_without_the_proof() {
        let mut kept = Box::new(77_u64);
        let from = [5_u8; 64];
        let mut to = [0_u8; 64];
        let addr = |place: *const u8| place.expose_provenance() as u64;
        let proof = LinkProof { addr: addr(std::ptr::from_ref(&*kept).cast()), word: 77 };
        let memory = PeerMemory::new(Arc::new(HostProcess::this_process()), proof);
        assert!(memory.is_proven());
        // SAFETY: both places have 64 bytes.
        unsafe { memory.read_bytes(to.as_mut_ptr(), addr(from.as_ptr()), 64) }.unwrap();
        assert_eq!(to, from);
        // Another program has the process's number, or its address space, by now.
        *kept = 78;
        assert!(!memory.is_proven());
        // SAFETY: as above.
        let read = unsafe { memory.read_bytes(to.as_mut_ptr(), addr(from.as_ptr()), 64) };
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::NotFound);
        let mut target = [1_u8; 64];
        // SAFETY: as above.
        let wrote = unsafe { memory.write_bytes(addr(target.as_mut_ptr()), from.as_ptr(), 64) };
        assert_eq!(wrote.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(target, [1; 64]);
        drop(kept);
    }

    #[test]
    fn a_word_of_zero_proves_nothing() {
        let kept = Box::new(0_u64);
        let proof = LinkProof { addr: std::ptr::from_ref(&*kept).expose_provenance() as u64, word: 0 };
        assert!(!PeerMemory::new(Arc::new(HostProcess::this_process()), proof).is_proven());
        assert_ne!(ProofWord::new(0).to_proof().word, 0);
    }
}
