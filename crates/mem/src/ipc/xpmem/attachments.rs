//! Attachments of other processes: pieces of their address spaces, each mapped at a local address and kept for later copies up to a maximum
//! number. A piece maps addresses, not their content, so it cannot be stale.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use trunkline_sys::xpmem::PermitId;

use super::library::XpmemLibrary;
use crate::ipc::OpenedHandle;
use crate::ipc::error::CallFailure;

/// Length of a piece, in bytes; a piece begins at a multiple of it. A piece uses addresses, and memory only for pages that are copied from.
pub(super) const PIECE: usize = 8 << 20;

/// Length of the attached page that contains a process's proof, in bytes.
pub(super) const PAGE: usize = 4096;

/// Another process whose handle is open.
#[derive(Debug)]
pub(super) struct AttachedPeer {
    /// The permission to attach its memory; `None` if attaching is refused.
    pub(super) permit: Option<AttachPermit>,
    /// The handle for copies by system calls, or the reason why those are refused.
    pub(super) by_calls: Result<OpenedHandle, CallFailure>,
}

/// The permission to attach a process's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachPermit {
    pub(super) id: PermitId,
    /// Local address of the attached page that contains its proof.
    pub(super) page: usize,
    /// Offset of the proof in that page; `proof` is its value.
    pub(super) word: usize,
    pub(super) proof: u64,
}

impl AttachPermit {
    /// Detaches the proof's page and releases the permission.
    pub(super) fn end_permit(self, driver: &XpmemLibrary) {
        driver.detach_range(self.page);
        driver.release_permit(self.id);
    }
}

#[derive(Debug)]
struct AttachedPiece {
    at: usize,
    /// Sequence number of its last use.
    used: AtomicU64,
}

/// Open peers and their attachments. Borrowed during a copy, so that nothing is detached under it.
#[derive(Debug)]
pub(super) struct PeerAttachments {
    pub(super) peers: BTreeMap<u64, AttachedPeer>,
    pub(super) next: u64,
    /// Pieces, by peer and index of the piece in its address space.
    pieces: BTreeMap<(u64, usize), AttachedPiece>,
    /// The maximum number of pieces.
    most: usize,
    uses: AtomicU64,
}

impl PeerAttachments {
    pub(super) fn new(most: usize) -> Self {
        let peers = BTreeMap::new();
        let pieces = BTreeMap::new();
        Self { peers, next: 1, pieces, most: most.max(1), uses: AtomicU64::new(0) }
    }

    /// Returns the local address of a piece, if it is attached.
    pub(super) fn find_piece(&self, peer: u64, number: usize) -> Option<usize> {
        let piece = self.pieces.get(&(peer, number))?;
        piece.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(piece.at)
    }

    /// Attaches a piece of a peer; `None` if another thread has attached it already.
    ///
    /// # Errors
    /// The library's error.
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

    /// Detaches all pieces of a peer.
    pub(super) fn detach_peer(&mut self, driver: &XpmemLibrary, peer: u64, permit: AttachPermit) {
        let keys: Vec<_> = self.pieces.range((peer, 0)..=(peer, usize::MAX)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|(peer, number)| self.detach_piece(driver, peer, number));
        permit.end_permit(driver);
    }
}
