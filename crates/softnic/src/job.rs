//! One operation that is being sent: its kind and its unsent bytes. Created by `post`, the responder and the
//! matcher; driven by the transmitter.

use trunkline_fabric::{OpSource, RegionExtent, RemoteLocation};

use crate::method::SoftCopyMethod;
use crate::record::INLINE;

/// Most bytes that a job holds by itself: a head and an inline body.
pub(crate) const PREFIX: usize = 2 * INLINE;

/// The effect of a job at the target.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JobKind {
    /// A remote write.
    Write { to: RemoteLocation, imm: Option<u32> },
    /// A send.
    Send { imm: Option<u32> },
    /// A matched send that was granted.
    Matched { grant: u64 },
    /// The refusal of a matched send that is longer than its grant.
    Decline { grant: u64 },
    /// A reply to a request.
    Reply { id: u64 },
    /// A read request.
    Read { from: RemoteLocation, len: u64 },
    /// An atomic request.
    Add { at: RemoteLocation, add: u64 },
    /// An atomic request.
    Swap { at: RemoteLocation, expect: u64, swap: u64 },
    /// Nothing.
    Nop,
    /// Waits for a completion queue; becomes [`JobKind::Nop`] when that has produced the completion.
    Wait { cq: u64, index: u64 },
}

/// Bytes that follow those the job holds itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JobBody {
    /// In a region of this side, by local key.
    Local { key: u64, offset: u64 },
    /// In a region of this side, by the remote key that the peer used.
    Exposed { key: u64, addr: u64 },
}

/// One operation that is being sent.
pub(crate) struct TransmitJob {
    /// Its kind.
    pub(crate) kind: JobKind,
    /// Bytes it holds itself; the first `prefix_len` are valid.
    pub(crate) prefix: [u8; PREFIX],
    /// See `prefix`.
    pub(crate) prefix_len: u16,
    /// Bytes that follow those.
    pub(crate) body: JobBody,
    /// Total number of bytes.
    pub(crate) total: u64,
    /// Bytes already sent.
    pub(crate) sent: u64,
    /// How its bytes travel, where there is a choice.
    pub(crate) method: SoftCopyMethod,
    /// The first record is sent.
    pub(crate) started: bool,
    /// The sender waits for its completion.
    pub(crate) awaited: bool,
    /// The number of its operation; undefined for a reply.
    pub(crate) flight: u64,
}

/// A reply to a request of the peer, until all of it is sent. A job is created from it each time that it continues. The queue of replies is allocated for
/// all requests that the peer may send, and a job is several times as large.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct OwedReply {
    /// The peer's number of the request.
    pub(crate) id: u64,
    /// Position of its record.
    pub(crate) at: u64,
    /// The bytes of the reply.
    pub(crate) bytes: ReplyBytes,
    /// Bytes already sent.
    pub(crate) sent: u64,
}

/// The source of a reply's bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReplyBytes {
    /// Bytes of a region of this side, by the remote key that the peer used.
    Region { key: u64, addr: u64, len: u64 },
    /// The word that an atomic replaced.
    Word(u64),
}

impl OwedReply {
    /// Creates the job that continues it.
    #[inline]
    pub(crate) fn to_job(self) -> TransmitJob {
        let mut job = TransmitJob::new(JobKind::Reply { id: self.id }, 0);
        match self.bytes {
            ReplyBytes::Region { key, addr, len } => {
                job.body = JobBody::Exposed { key, addr };
                job.total = len;
            }
            ReplyBytes::Word(word) => job.add_inline(&word.to_ne_bytes()),
        }
        (job.sent, job.started) = (self.sent, self.sent > 0);
        job
    }
}

impl TransmitJob {
    /// Creates a job without bytes.
    #[inline]
    pub(crate) fn new(kind: JobKind, flight: u64) -> Self {
        Self {
            kind,
            prefix: [0; PREFIX],
            prefix_len: 0,
            body: JobBody::Local { key: 0, offset: 0 },
            total: 0,
            sent: 0,
            method: SoftCopyMethod::Staged,
            started: false,
            awaited: false,
            flight,
        }
    }

    /// Adds bytes that it holds itself; at most [`PREFIX`] in total.
    #[inline]
    pub(crate) fn add_inline(&mut self, bytes: &[u8]) {
        let at = usize::from(self.prefix_len);
        if let Some(room) = self.prefix.get_mut(at..at + bytes.len()) {
            room.copy_from_slice(bytes);
            // At most PREFIX.
            self.prefix_len += bytes.len() as u16;
            self.total += bytes.len() as u64;
        }
    }

    /// Adds the bytes of a source.
    #[inline]
    pub(crate) fn add_source(&mut self, source: OpSource<'_>) {
        match source {
            OpSource::Inline(bytes) => self.add_inline(bytes),
            OpSource::Region(RegionExtent { key, offset, len }) => {
                self.body = JobBody::Local { key: key.0, offset };
                self.total += len;
            }
        }
    }
}
