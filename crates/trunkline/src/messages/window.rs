//! Windows: memory of each rank of a host that all others put to and get from, made and freed by all together.
//!
//! A part that its owner's driver exports and every other rank's driver maps is mapped by all, from the first call to the last, and copied to and from
//! without its owner. Whether it is that is decided once for all ranks: each tells the owner whether it could map the part, and the owner tells each
//! what holds. What is not goes by messages, which its owner serves in its own calls (`serve`).

mod setup;

use std::collections::VecDeque;

use trunkline_mem::ipc::IpcMemory;
use trunkline_node::ipc::LoanRange;
use trunkline_node::tagged::MemoryLoan;
use trunkline_proto::reserve::try_grow;
use trunkline_proto::tagged::StridedRows;
use trunkline_proto::wire::ipc::ExportName;
use trunkline_proto::wire::window::{AccessKind, WindowAccess};

use setup::WindowSetup;

use super::serve::{ACK, ASK, AccessReceive, GOT, PUT, ServedAccess};
use super::{Buffer, MessageError, Messages, Request, TagBits};

/// Windows at a time, at most; one more is refused, at all ranks.
pub const WINDOWS_MAX: usize = 1024;

/// Of them those of which a rank's part is mapped by others: the rest goes by messages. Half of what neighbours take at once.
pub const MAPPED_MAX: usize = 64;

/// Puts and gets by messages that a rank has begun of one window and not seen the end of, at most: the next one waits for the earliest.
const PENDING_MAX: usize = 16;

/// Memory of all ranks of a host, as one rank sees it. Given back by [`Messages::free`], which all call; one that is dropped stays until
/// [`Messages::finish`].
#[derive(Debug)]
#[must_use = "a window stays until all ranks free it"]
pub struct HostWindow {
    pub(super) call: u64,
    parts: Box<[PeerPart]>,
}

/// A rank's part of a window, as another one sees it.
#[derive(Clone, Copy, Debug)]
struct PeerPart {
    len: u64,
    reach: PartReach,
}

/// How it is reached.
#[derive(Clone, Copy, Debug)]
enum PartReach {
    /// It is elsewhere.
    Far,
    Own,
    Mapped(MemoryLoan),
    Asked,
}

/// A place in a rank's part of a window: from a byte on, in one row unless [`WindowPlace::in_rows`] says otherwise.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WindowPlace {
    pub(super) rank: usize,
    pub(super) spot: LoanRange,
}

/// What was done with windows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WindowCounts {
    /// Windows that were made.
    pub made: u64,
    /// Windows that were freed.
    pub freed: u64,
    /// Parts of other ranks that were mapped.
    pub mapped: u64,
    /// Parts of other ranks that were not: memory that cannot be shared, or a driver that refused. Their puts and gets go by messages.
    pub asked: u64,
    /// Puts and gets through a mapping.
    pub copies: u64,
    /// Puts and gets by messages.
    pub messages: u64,
    /// Those of other ranks that this one served.
    pub served: u64,
}

/// All windows of a rank.
#[derive(Debug, Default)]
pub(super) struct WindowTable {
    pub(super) live: Vec<LiveWindow>,
    pub(super) counts: WindowCounts,
    /// Puts and gets by messages so far.
    accesses: u64,
    /// What others have asked for, and the receive of what they ask next.
    pub(super) serving: VecDeque<ServedAccess>,
    pub(super) asked: Option<AccessReceive>,
    /// The last call that made a window, or was to: what is asked of a later one waits until it is made here, too.
    pub(super) settled: u64,
    /// A call ended here with an error, and may have gone well elsewhere: whoever asks for its window is denied.
    pub(super) denies: bool,
}

/// A window that all have.
#[derive(Debug)]
pub(super) struct LiveWindow {
    pub(super) call: u64,
    pub(super) own: Buffer,
    /// To whom this rank's part is lent, and as what.
    lent: Vec<(usize, MemoryLoan)>,
    name: Option<ExportName>,
    /// Whether others reach this rank's part by messages.
    pub(super) served: bool,
    pending: VecDeque<PendingAccess>,
    /// A byte for the end of each put.
    ends: Buffer,
}

/// A put or get by messages.
#[derive(Debug)]
struct PendingAccess {
    rank: usize,
    what: Request,
    len: usize,
    /// Of a put: its end, and where that says how.
    end: Option<(Request, usize)>,
}

impl HostWindow {
    /// Bytes of a rank's part; `None` if it is elsewhere, or there is none.
    #[must_use]
    pub fn len(&self, rank: usize) -> Option<usize> {
        let part = self.parts.get(rank).filter(|part| !matches!(part.reach, PartReach::Far))?;
        Some(part.len as usize)
    }

    /// Whether a rank's part is reached through a mapping, and not by messages: the same at all ranks but the one that has it, which reaches its own.
    #[must_use]
    pub fn is_mapped(&self, rank: usize) -> bool {
        self.parts.get(rank).is_some_and(|part| matches!(part.reach, PartReach::Mapped(_) | PartReach::Own))
    }

    /// Where a rank's part is, for a rank that is near.
    fn rank_part(&self, rank: usize) -> Result<PeerPart, MessageError> {
        let part = self.parts.get(rank).copied();
        part.ok_or(MessageError::NoRank { rank, size: self.parts.len() })
    }
}

impl WindowPlace {
    /// From that byte on.
    #[must_use]
    pub const fn new(rank: usize, at: usize) -> Self {
        Self { rank, spot: LoanRange { at: at as u64, rows: StridedRows::WHOLE } }
    }

    /// In rows of `block` bytes, each `stride` behind the one before.
    ///
    /// # Errors
    /// [`MessageError::Rows`].
    pub fn in_rows(self, block: usize, stride: usize) -> Result<Self, MessageError> {
        let rows = StridedRows::new(block as u64, stride as u64).filter(|_| self.spot.rows.is_whole());
        let rows = rows.ok_or(MessageError::Rows { block, stride })?;
        Ok(Self { spot: LoanRange { rows, ..self.spot }, ..self })
    }

    /// Whether so many bytes are there, in a part of that many.
    fn check_range(self, len: u64, all: u64) -> Result<(), MessageError> {
        let LoanRange { at, rows } = self.spot;
        let span = rows.spanned_bytes(len).filter(|span| at.checked_add(*span).is_some_and(|end| end <= all));
        if let Some(span) = span {
            let whole = rows.packed_bytes(span).is_some() || len == 0;
            return if whole { Ok(()) } else { Err(MessageError::Cut { len, block: rows.to_words()[0] }) };
        }
        Err(MessageError::Range { from: at as usize, len: len as usize, all: all as usize })
    }
}

impl<M: IpcMemory> Messages<M> {
    /// Gives a buffer to all ranks near, and takes what they give: from now on each puts to and gets from the parts of all. All call it; the buffers may be of any
    /// memory and length, also none, and stay this rank's to read and write. It comes back when all have all parts.
    ///
    /// # Errors
    /// [`MessageError::NoWindow`], at all ranks, if one gives a buffer in rows, memory that is not there, or has [`WINDOWS_MAX`] windows, or has no
    /// memory for its tables of a window, which at that rank is [`MessageError::Buffer`].
    /// [`MessageError::Gone`].
    pub fn window(&mut self, buffer: &Buffer) -> Result<HostWindow, MessageError> {
        let call = self.next_call();
        let making = WindowSetup::new(self.size());
        let making = making.and_then(|making| Ok(try_grow(&mut self.windows.live, 1).map(|()| making)?));
        let made = match making {
            Ok(mut making) => {
                let made = self.make_window(call, buffer, &mut making);
                made.inspect_err(|_| self.end_loans(&making, |_| true))
            }
            Err(error) => self.refuse_window(call).and(Err(error)),
        };
        self.windows.settled = call;
        if made.is_err() {
            self.windows.denies = true;
            self.update_access_receive();
        }
        made
    }

    /// Copies a buffer to a place in a rank's part. Where that is mapped the bytes are there when this comes back; where not, after
    /// [`flush`](Self::flush), and until then the buffer stays as it is. Puts to the same bytes, of one rank or of several, have no order before that.
    ///
    /// # Errors
    /// [`MessageError::Range`], [`MessageError::NoRank`], [`MessageError::Far`], [`MessageError::Gone`], [`MessageError::Failed`].
    pub fn put(&mut self, window: &HostWindow, to: WindowPlace, from: &Buffer) -> Result<(), MessageError> {
        self.access_part(AccessKind::Put, window, to, from)
    }

    /// Copies bytes of a place in a rank's part into a buffer, as many as it has. Where the part is mapped they are there when this comes back; where not,
    /// after [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`Messages::put`].
    pub fn get(&mut self, window: &HostWindow, from: WindowPlace, into: &Buffer) -> Result<(), MessageError> {
        self.access_part(AccessKind::Get, window, from, into)
    }

    fn access_part(
        &mut self,
        deed: AccessKind,
        window: &HostWindow,
        place: WindowPlace,
        buffer: &Buffer,
    ) -> Result<(), MessageError> {
        let part = window.rank_part(place.rank)?;
        let len = buffer.len() as u64;
        if let PartReach::Far = part.reach {
            return Err(MessageError::Far { rank: place.rank });
        }
        place.check_range(len, part.len)?;
        match part.reach {
            _ if len == 0 => Ok(()),
            PartReach::Mapped(loan) => self.copy_mapped(deed, loan, place, buffer),
            PartReach::Own => self.copy_own(deed, window, place, buffer),
            PartReach::Asked | PartReach::Far => self.begin_access(deed, window, place, buffer),
        }
    }

    /// Begins a put or a get by messages.
    fn begin_access(
        &mut self,
        deed: AccessKind,
        window: &HostWindow,
        place: WindowPlace,
        buffer: &Buffer,
    ) -> Result<(), MessageError> {
        let WindowPlace { rank, spot: LoanRange { at, rows } } = place;
        if !buffer.ipc_buffer().is_there(self.memory()) {
            return Err(MessageError::Outside);
        }
        let full = |live: &LiveWindow| live.pending.len() >= PENDING_MAX;
        if self.windows.find_window(window.call).is_some_and(full) {
            self.end_first(window.call, |_| true)?;
        }
        let number = self.windows.accesses;
        let len = buffer.len();
        self.windows.accesses += 1;
        let access = WindowAccess { deed, window: window.call, number, at, len: len as u64, rows }.to_bytes();
        let ends = self.windows.find_window(window.call).map(|live| (live.ends.clone(), live.free_end()));
        let (ends, slot) = ends.ok_or(MessageError::NoWindow { rank: self.rank })?;
        let (what, end) = match deed {
            AccessKind::Put => {
                let bits = TagBits::from_tag(ACK | number);
                let end = self.irecv_tagged(rank.into(), bits, &ends.part(slot, 1)?)?;
                self.send_tagged(rank, ASK, &access)?;
                (self.isend_tagged(rank, PUT | number, buffer)?, Some((end, slot)))
            }
            AccessKind::Get => {
                let got = self.irecv_tagged(rank.into(), TagBits::from_tag(GOT | number), buffer)?;
                self.send_tagged(rank, ASK, &access)?;
                (got, None)
            }
        };
        self.windows.counts.messages += 1;
        if let Some(live) = self.windows.find_window_mut(window.call) {
            live.pending.push_back(PendingAccess { rank, what, len, end });
        }
        Ok(())
    }

    /// Comes back when all puts and gets of this rank with one rank are done: what was put is there, and what was got is here.
    ///
    /// # Errors
    /// [`MessageError`]; of several the first. All are over then, too.
    pub fn flush(&mut self, window: &HostWindow, rank: usize) -> Result<(), MessageError> {
        self.flush_those(window.call, |other| other == rank)
    }

    /// The same with all ranks.
    ///
    /// # Errors
    /// As [`Messages::flush`].
    pub fn flush_all(&mut self, window: &HostWindow) -> Result<(), MessageError> {
        self.flush_those(window.call, |_| true)
    }

    fn flush_those(&mut self, call: u64, of: impl Fn(usize) -> bool) -> Result<(), MessageError> {
        let mut end = Ok(());
        while self.windows.find_window(call).is_some_and(|live| live.pending.iter().any(|one| of(one.rank))) {
            let ended = self.end_first(call, &of);
            end = end.and(ended);
        }
        end
    }

    /// Waits for the earliest put or get that has not ended, of those.
    fn end_first(&mut self, call: u64, of: impl Fn(usize) -> bool) -> Result<(), MessageError> {
        let Some(live) = self.windows.find_window_mut(call) else { return Ok(()) };
        let Some(at) = live.pending.iter().position(|one| of(one.rank)) else { return Ok(()) };
        let Some(PendingAccess { rank, what, len, end }) = live.pending.remove(at) else { return Ok(()) };
        let ends = live.ends.clone();
        let moved = self.wait(what).map_err(|error| error.with_rank(rank));
        let Some((end, slot)) = end else {
            return match moved {
                Ok(got) if got.len == len as u64 => Ok(()),
                Ok(_) => Err(MessageError::Denied { rank }),
                Err(error) => Err(error),
            };
        };
        let ended = self.wait(end).map_err(|error| error.with_rank(rank));
        moved.and(ended)?;
        let mut word = [0];
        ends.read(slot, &mut word)?;
        if word == [1] { Ok(()) } else { Err(MessageError::Denied { rank }) }
    }

    /// Ends an epoch: comes back when all puts and gets of all ranks are done, at all of them. All call it.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn fence(&mut self, window: &HostWindow) -> Result<(), MessageError> {
        let flushed = self.flush_all(window);
        self.barrier()?;
        flushed
    }

    /// Gives a window back, when all puts and gets of all ranks are done; all call it. Afterwards no rank has any part mapped, unless another window or
    /// messages keep the same allocation: the buffer may be freed.
    ///
    /// # Errors
    /// [`MessageError`]. The window is over then, too.
    pub fn free(&mut self, window: HostWindow) -> Result<(), MessageError> {
        let call = window.call;
        let flushed = self.flush_all(&window);
        let met = self.barrier();
        // What others asked for was seen by them; here it may not have been.
        while met.is_ok() && self.windows.serving.iter().any(|one| one.window_id() == call) {
            self.progress_or_pause();
        }
        for part in window.parts {
            if let PartReach::Mapped(loan) = part.reach {
                self.endpoint.end_loan(loan, true);
            }
        }
        let Some(at) = self.windows.live.iter().position(|live| live.call == call) else { return met };
        let live = self.windows.live.swap_remove(at);
        live.lent.iter().for_each(|(_, loan)| self.endpoint.end_loan(*loan, true));
        self.windows.counts.freed += 1;
        self.windows.denies |= met.is_err();
        self.update_access_receive();
        met.and(flushed)?;
        self.wait_until(|one| match one.died {
            Some(rank) => Err(MessageError::Gone { rank: Some(rank) }),
            None => Ok((!live.name.is_some_and(|name| one.endpoint.node().is_going(name))).then_some(())),
        })?;
        self.barrier()
    }

    /// What was done with windows.
    #[must_use]
    pub const fn window_counts(&self) -> WindowCounts {
        self.windows.counts
    }
}

impl WindowTable {
    pub(super) fn find_window(&self, call: u64) -> Option<&LiveWindow> {
        self.live.iter().find(|live| live.call == call)
    }

    fn find_window_mut(&mut self, call: u64) -> Option<&mut LiveWindow> {
        self.live.iter_mut().find(|live| live.call == call)
    }
}

impl LiveWindow {
    /// A byte for the end of a put that no other one has.
    fn free_end(&self) -> usize {
        let used = |slot: &usize| self.pending.iter().any(|one| one.end.is_some_and(|(_, at)| at == *slot));
        (0..PENDING_MAX).find(|slot| !used(slot)).unwrap_or(0)
    }

    /// So many bytes of this rank's part, as a buffer.
    pub(super) fn spot_buffer(
        &self,
        LoanRange { at, rows }: LoanRange,
        len: u64,
    ) -> Result<Buffer, MessageError> {
        let span = rows.spanned_bytes(len).unwrap_or(u64::MAX);
        let part = self.own.part(at as usize, span as usize)?;
        let [block, stride] = rows.to_words();
        if rows.is_whole() { Ok(part) } else { part.in_rows(block as usize, stride as usize) }
    }
}
