//! Windows: memory of each rank of a host that all other ranks put to and get from. All ranks create and free a
//! window together.
//!
//! A part is mapped by all ranks, from creation to free, if its owner's driver exports it and every other rank's
//! driver maps it. Puts and gets then copy without the owner. The ranks agree on that once: each reports to the owner
//! whether it could map the part, and the owner announces the result. Other parts are accessed by messages, which the
//! owner serves in its own calls (`serve`).

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

/// The largest number of windows at a time. Creating one more fails at all ranks.
pub const WINDOWS_MAX: usize = 1024;

/// The largest number of windows whose part of a rank is mapped by others; further windows use messages. Half of the
/// loans that a process accepts at a time.
pub const MAPPED_MAX: usize = 64;

/// Puts and gets by messages that a rank has pending on one window, at most. The next one waits for the earliest.
const PENDING_MAX: usize = 16;

/// A window, as one rank sees it. All ranks call [`Messages::free`] to free it; a dropped one stays until
/// [`Messages::finish`].
#[derive(Debug)]
#[must_use = "a window stays until all ranks free it"]
pub struct HostWindow {
    pub(super) call: u64,
    parts: Box<[PeerPart]>,
}

/// A rank's part of a window, as another rank sees it.
#[derive(Clone, Copy, Debug)]
struct PeerPart {
    len: u64,
    reach: PartReach,
}

/// The way in which this rank accesses a part.
#[derive(Clone, Copy, Debug)]
enum PartReach {
    /// The rank is on another host.
    Far,
    Own,
    Mapped(MemoryLoan),
    Asked,
}

/// A place in a rank's part of a window: consecutive bytes from an offset on, or rows ([`WindowPlace::in_rows`]).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WindowPlace {
    pub(super) rank: usize,
    pub(super) spot: LoanRange,
}

/// Counts of windows and of their accesses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WindowCounts {
    /// Windows that were created.
    pub made: u64,
    /// Windows that were freed.
    pub freed: u64,
    /// Parts of other ranks that were mapped.
    pub mapped: u64,
    /// Parts of other ranks that were not mapped, because their memory cannot be shared or a driver refused. Their
    /// puts and gets use messages.
    pub asked: u64,
    /// Puts and gets through a mapping.
    pub copies: u64,
    /// Puts and gets by messages.
    pub messages: u64,
    /// Puts and gets of other ranks that this rank served.
    pub served: u64,
}

/// All windows of a rank.
#[derive(Debug, Default)]
pub(super) struct WindowTable {
    pub(super) live: Vec<LiveWindow>,
    pub(super) counts: WindowCounts,
    /// The number of puts and gets by messages so far.
    accesses: u64,
    /// Accesses that other ranks requested, and the posted receive of the next request.
    pub(super) serving: VecDeque<ServedAccess>,
    pub(super) asked: Option<AccessReceive>,
    /// The last collective call that created a window, or failed to. Requests for later windows wait until this rank
    /// has created them, too.
    pub(super) settled: u64,
    /// A creation failed here and may have succeeded elsewhere: requests for its window are denied.
    pub(super) denies: bool,
}

/// A window that all ranks have.
#[derive(Debug)]
pub(super) struct LiveWindow {
    pub(super) call: u64,
    pub(super) own: Buffer,
    /// The ranks to which this rank's part is lent, and the loans.
    lent: Vec<(usize, MemoryLoan)>,
    name: Option<ExportName>,
    /// Whether other ranks access this rank's part by messages.
    pub(super) served: bool,
    pending: VecDeque<PendingAccess>,
    /// One byte per pending put, for its acknowledgement.
    ends: Buffer,
}

/// A pending put or get by messages.
#[derive(Debug)]
struct PendingAccess {
    rank: usize,
    what: Request,
    len: usize,
    /// For a put: the receive of its acknowledgement, and the byte of `ends` that receives it.
    end: Option<(Request, usize)>,
}

impl HostWindow {
    /// Returns the length of a rank's part in bytes; `None` if the rank is on another host or out of range.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let part = Buffer::private(4096)?;
    /// # let window = messages.window(&part)?;
    /// for rank in 0..messages.size() {
    ///     if let Some(len) = window.len(rank) {
    ///         let way = if window.is_mapped(rank) { "mapped" } else { "by messages" };
    ///         println!("part of rank {rank}: {len} bytes, {way}");
    ///     }
    /// }
    /// # messages.free(window)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub fn len(&self, rank: usize) -> Option<usize> {
        let part = self.parts.get(rank).filter(|part| !matches!(part.reach, PartReach::Far))?;
        Some(part.len as usize)
    }

    /// Returns whether a rank's part is accessed through a mapping, not by messages. All ranks return the same,
    /// except the owner of the part, which returns true.
    ///
    /// See [`HostWindow::len`] for an example.
    #[must_use]
    pub fn is_mapped(&self, rank: usize) -> bool {
        self.parts.get(rank).is_some_and(|part| matches!(part.reach, PartReach::Mapped(_) | PartReach::Own))
    }

    /// Returns the part of a rank.
    fn rank_part(&self, rank: usize) -> Result<PeerPart, MessageError> {
        let part = self.parts.get(rank).copied();
        part.ok_or(MessageError::NoRank { rank, size: self.parts.len() })
    }
}

impl WindowPlace {
    /// Returns the place that begins at byte `at` of the part of `rank`.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages, WindowPlace};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let next = (messages.rank() + 1) % messages.size();
    /// # let part = Buffer::private(4096)?;
    /// # let window = messages.window(&part)?;
    /// // Each rank has 64 bytes in the part of the next one.
    /// let block = Buffer::private(64)?;
    /// let place = WindowPlace::new(next, 64 * messages.rank());
    /// messages.put(&window, place, &block)?;
    /// # messages.free(window)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    #[must_use]
    pub const fn new(rank: usize, at: usize) -> Self {
        Self { rank, spot: LoanRange { at: at as u64, rows: StridedRows::WHOLE } }
    }

    /// Returns the same place in rows of `block` bytes, whose starts are `stride` bytes apart.
    ///
    /// # Errors
    /// [`MessageError::Rows`] if rows are empty or overlap, or the place is in rows already.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages, WindowPlace};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let next = (messages.rank() + 1) % messages.size();
    /// # let part = Buffer::private(8 * 100 * 100)?;
    /// # let window = messages.window(&part)?;
    /// // The part is a matrix of 100 rows of 100 elements, each of 8 bytes.
    /// let column = WindowPlace::new(next, 8 * 5).in_rows(8, 8 * 100)?;
    /// let elements = Buffer::private(8 * 100)?;
    /// messages.put(&window, column, &elements)?; // Into column 5.
    /// # messages.free(window)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn in_rows(self, block: usize, stride: usize) -> Result<Self, MessageError> {
        let rows = StridedRows::new(block as u64, stride as u64).filter(|_| self.spot.rows.is_whole());
        let rows = rows.ok_or(MessageError::Rows { block, stride })?;
        Ok(Self { spot: LoanRange { rows, ..self.spot }, ..self })
    }

    /// Checks that `len` bytes of this place are inside a part of `all` bytes, and fill whole rows.
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
    /// Creates a window of a buffer of each near rank. All of them call it; it returns when all can access all parts.
    /// The buffers may be of any memory and length, also empty, and their ranks may read and write them as before.
    ///
    /// # Errors
    /// - [`MessageError::NoWindow`], at all ranks: a rank passed a buffer in rows or freed memory, has
    ///   [`WINDOWS_MAX`] windows, or has no memory for its tables. In the last case that rank itself returns
    ///   [`MessageError::Buffer`].
    /// - [`MessageError::Gone`]: a rank has ended.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages, WindowPlace};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let next = (messages.rank() + 1) % messages.size();
    /// let [part, source] = [Buffer::private(4096)?, Buffer::private(8)?];
    /// let window = messages.window(&part)?;
    /// messages.put(&window, WindowPlace::new(next, 0), &source)?;
    /// messages.fence(&window)?; // The puts of all ranks have arrived.
    /// let mut bytes = [0; 8];
    /// messages.read(&part, 0, &mut bytes)?;
    /// messages.free(window)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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

    /// Copies a buffer to a place in a rank's part. If the part is mapped, the bytes have arrived when the call
    /// returns. If not, they have arrived after [`flush`](Self::flush), and the buffer must not change until then.
    /// Puts to the same bytes are unordered before that, whether of one rank or of several.
    ///
    /// # Errors
    /// - [`MessageError::Range`], [`MessageError::Cut`]: the bytes are not inside the part, or do not fill its rows.
    /// - [`MessageError::NoRank`], [`MessageError::Far`], [`MessageError::Gone`]: the rank is out of range, on
    ///   another host, or has ended.
    /// - [`MessageError::Outside`], [`MessageError::Failed`]: the memory is not in one allocation, or cannot be
    ///   copied.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages, WindowPlace};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let next = (messages.rank() + 1) % messages.size();
    /// # let part = Buffer::private(4096)?;
    /// # let window = messages.window(&part)?;
    /// let source = Buffer::private(8)?;
    /// source.write(0, &7_u64.to_le_bytes())?;
    /// messages.put(&window, WindowPlace::new(next, 64), &source)?;
    /// messages.flush(&window, next)?; // The bytes have arrived, and `source` may change.
    /// # messages.free(window)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn put(&mut self, window: &HostWindow, to: WindowPlace, from: &Buffer) -> Result<(), MessageError> {
        self.access_part(AccessKind::Put, window, to, from)
    }

    /// Copies bytes from a place in a rank's part into a buffer, as many as the buffer has. If the part is mapped,
    /// they have arrived when the call returns; if not, after [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`Messages::put`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages, WindowPlace};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let next = (messages.rank() + 1) % messages.size();
    /// # let part = Buffer::private(4096)?;
    /// # let window = messages.window(&part)?;
    /// let into = Buffer::private(8)?;
    /// messages.get(&window, WindowPlace::new(next, 64), &into)?;
    /// messages.flush(&window, next)?; // The part may not be mapped.
    /// let mut bytes = [0; 8];
    /// into.read(0, &mut bytes)?;
    /// println!("{}", u64::from_le_bytes(bytes));
    /// # messages.free(window)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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

    /// Posts a put or a get by messages.
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

    /// Waits until all puts and gets of this rank to one rank's part are complete: put bytes have arrived there, and
    /// got bytes have arrived here.
    ///
    /// # Errors
    /// The first error of these operations; [`MessageError::Denied`] if the owner rejected one. All of them have
    /// ended when the call returns.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages, WindowPlace};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let next = (messages.rank() + 1) % messages.size();
    /// # let part = Buffer::private(4096)?;
    /// # let window = messages.window(&part)?;
    /// let half = Buffer::private(2048)?;
    /// for at in [0, 2048] {
    ///     messages.put(&window, WindowPlace::new(next, at), &half)?;
    /// }
    /// messages.flush(&window, next)?; // One wait for both puts.
    /// # messages.free(window)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn flush(&mut self, window: &HostWindow, rank: usize) -> Result<(), MessageError> {
        self.flush_those(window.call, |other| other == rank)
    }

    /// Waits until all puts and gets of this rank to all parts are complete.
    ///
    /// # Errors
    /// As [`Messages::flush`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages, WindowPlace};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let part = Buffer::private(4096)?;
    /// # let window = messages.window(&part)?;
    /// // The first 8 bytes of each part, of ranks that share one host.
    /// let all = Buffer::private(8 * messages.size())?;
    /// for rank in 0..messages.size() {
    ///     messages.get(&window, WindowPlace::new(rank, 0), &all.part(8 * rank, 8)?)?;
    /// }
    /// messages.flush_all(&window)?;
    /// # messages.free(window)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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

    /// Waits for the earliest pending put or get to a rank that `of` accepts.
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

    /// Ends an epoch, as `MPI_Win_fence` does: waits until all puts and gets of all ranks are complete at all ranks.
    /// All ranks call it.
    ///
    /// # Errors
    /// As [`Messages::flush`] and [`Messages::barrier`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages, WindowPlace};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// # let next = (messages.rank() + 1) % messages.size();
    /// # let part = Buffer::private(4096)?;
    /// # let window = messages.window(&part)?;
    /// # let source = Buffer::private(8)?;
    /// messages.put(&window, WindowPlace::new(next, 0), &source)?;
    /// messages.fence(&window)?; // Each rank can read the bytes that were put to its part.
    /// let mut bytes = [0; 8];
    /// messages.read(&part, 0, &mut bytes)?;
    /// messages.fence(&window)?; // All ranks have read them: the next put may replace them.
    /// # messages.free(window)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn fence(&mut self, window: &HostWindow) -> Result<(), MessageError> {
        let flushed = self.flush_all(window);
        self.barrier()?;
        flushed
    }

    /// Frees a window when all puts and gets of all ranks are complete. All ranks call it. Afterwards no rank has any
    /// part mapped, unless another window or a message uses the same allocation, and the buffer may be freed.
    ///
    /// # Errors
    /// As [`Messages::fence`]. The window has ended in any case.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// let address = messages.memory().alloc(4096)?;
    /// let window = messages.window(&Buffer::from_address(address, 4096))?;
    /// // ...
    /// messages.free(window)?; // No rank has the part mapped any more.
    /// messages.memory().free(address)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn free(&mut self, window: HostWindow) -> Result<(), MessageError> {
        let call = window.call;
        let flushed = self.flush_all(&window);
        let met = self.barrier();
        // Other ranks have received the bytes of their accesses; this rank may not have polled the end of its own
        // side yet.
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

    /// Returns counts of windows and of their accesses.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let messages = Messages::start(&world, HostMemory::new()?)?;
    /// let counts = messages.window_counts();
    /// println!("{} parts mapped, {} not", counts.mapped, counts.asked);
    /// println!("{} accesses by copies, {} by messages", counts.copies, counts.messages);
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
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
    /// Returns a byte for an acknowledgement that no pending put uses.
    fn free_end(&self) -> usize {
        let used = |slot: &usize| self.pending.iter().any(|one| one.end.is_some_and(|(_, at)| at == *slot));
        (0..PENDING_MAX).find(|slot| !used(slot)).unwrap_or(0)
    }

    /// Returns `len` bytes of this rank's part, from a place on, as a buffer.
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
