//! What is attached of other processes: pieces of their addresses, each at a place here, kept for copies to come until there are too many.
//! A piece is of addresses, not of what is there: it can be stale no more than they can.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use trunkline_sys::xpmem::PermitId;

use super::library::XpmemLibrary;
use crate::ipc::OpenedHandle;
use crate::ipc::error::CallFailure;

/// Bytes of a piece, which begins at a multiple of them. A mapping of them costs addresses, and memory only for pages that are copied from.
pub(super) const PIECE: usize = 8 << 20;

/// What the proof of a process is in.
pub(super) const PAGE: usize = 4096;

/// Another process, of which something is open.
#[derive(Debug)]
pub(super) struct AttachedPeer {
    /// If it can be attached: by what.
    pub(super) permit: Option<AttachPermit>,
    /// How it is reached by system calls, or why it is not.
    pub(super) by_calls: Result<OpenedHandle, CallFailure>,
}

/// The permission to attach a process's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachPermit {
    pub(super) id: PermitId,
    /// The page of its proof, attached here.
    pub(super) page: usize,
    /// Where in that the proof is, and what.
    pub(super) word: usize,
    pub(super) proof: u64,
}

impl AttachPermit {
    /// Nothing more is attached by it.
    pub(super) fn end_permit(self, driver: &XpmemLibrary) {
        driver.detach_range(self.page);
        driver.release_permit(self.id);
    }
}

#[derive(Debug)]
struct AttachedPiece {
    at: usize,
    /// When it was last copied from.
    used: AtomicU64,
}

/// Who is open, and what is attached of them. Borrowed as long as bytes are copied, so that nothing is detached under a copy.
#[derive(Debug)]
pub(super) struct PeerAttachments {
    pub(super) peers: BTreeMap<u64, AttachedPeer>,
    pub(super) next: u64,
    /// By peer and number of the piece there.
    pieces: BTreeMap<(u64, usize), AttachedPiece>,
    /// How many of them there may be.
    most: usize,
    uses: AtomicU64,
}

impl PeerAttachments {
    pub(super) fn new(most: usize) -> Self {
        let peers = BTreeMap::new();
        let pieces = BTreeMap::new();
        Self { peers, next: 1, pieces, most: most.max(1), uses: AtomicU64::new(0) }
    }

    /// Where a piece of a peer is attached.
    pub(super) fn find_piece(&self, peer: u64, number: usize) -> Option<usize> {
        let piece = self.pieces.get(&(peer, number))?;
        piece.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(piece.at)
    }

    /// Attaches a piece of a peer; `None`: it is attached already, by another thread.
    ///
    /// # Errors
    /// What the library says.
    pub(super) fn attach_piece(
        &mut self,
        driver: &XpmemLibrary,
        peer: u64,
        permit: AttachPermit,
        number: usize,
    ) -> Result<Option<()>, CallFailure> {
        if self.find_piece(peer, number).is_some() {
            return Ok(None);
        }
        while self.pieces.len() >= self.most {
            let oldest = self.pieces.iter().min_by_key(|(_, piece)| piece.used.load(Ordering::Relaxed));
            let Some((owner, piece)) = oldest.map(|(key, _)| *key) else { break };
            self.detach_piece(driver, owner, piece);
        }
        let at = driver.attach_range(permit.id, number.saturating_mul(PIECE), PIECE)?;
        let used = AtomicU64::new(self.uses.fetch_add(1, Ordering::Relaxed));
        self.pieces.insert((peer, number), AttachedPiece { at, used });
        Ok(Some(()))
    }

    fn detach_piece(&mut self, driver: &XpmemLibrary, peer: u64, number: usize) {
        if let Some(piece) = self.pieces.remove(&(peer, number)) {
            driver.detach_range(piece.at);
        }
    }

    /// Ends what is attached of a peer.
    pub(super) fn detach_peer(&mut self, driver: &XpmemLibrary, peer: u64, permit: AttachPermit) {
        let keys: Vec<_> = self.pieces.range((peer, 0)..=(peer, usize::MAX)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|(peer, number)| self.detach_piece(driver, peer, number));
        permit.end_permit(driver);
    }
}
