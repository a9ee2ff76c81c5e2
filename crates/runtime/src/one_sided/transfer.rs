//! Puts and gets of any length: in the number of pieces that the engine needs, and through the stage of the context if
//! the bytes of this process are not registered.

use trunkline_engine::rma::{HeapAddress, HeapRange, PutSource, RmaError};
use trunkline_mem::{MemoryRange, OutOfBounds};
use trunkline_proto::wire::rma::signal::SignalUpdate;

use super::context::{ContextCalls, FetchSink};

/// The largest number of bytes that are copied into a request, even if the fabric accepts more.
pub(super) const INLINE_MAX: usize = 1024;

/// Bytes that a put copies, so that they may be changed when the call returns.
#[derive(Clone, Copy, Debug)]
pub enum CopyFrom<'a> {
    /// Bytes of a Rust program.
    Slice(&'a [u8]),
    /// Memory that other threads or members may change meanwhile.
    Memory(&'a MemoryRange),
}

/// The place of the bytes of a get, which have arrived when the call returns.
#[derive(Debug)]
pub enum CopyInto<'a> {
    /// Bytes of a Rust program.
    Slice(&'a mut [u8]),
    /// Memory that other threads or members may read meanwhile.
    Memory(&'a MemoryRange),
}

fn outside_memory(_: OutOfBounds) -> RmaError {
    RmaError::Argument("the bytes are outside of the memory")
}

impl CopyFrom<'_> {
    #[inline]
    fn byte_len(&self) -> usize {
        match self {
            Self::Slice(bytes) => bytes.len(),
            Self::Memory(memory) => memory.len(),
        }
    }

    /// Passes all bytes to `put`, at most [`INLINE_MAX`].
    #[inline]
    fn with_bytes<T>(&self, put: impl FnOnce(&[u8]) -> Result<T, RmaError>) -> Result<T, RmaError> {
        match self {
            Self::Slice(bytes) => put(bytes),
            Self::Memory(memory) => {
                let mut copy = [0; INLINE_MAX];
                let copy = &mut copy[..memory.len()];
                memory.read(0, copy).map_err(outside_memory)?;
                put(copy)
            }
        }
    }

    /// Copies the bytes from `at` on into a part of a stage, and fills the part.
    fn fill_part(&self, at: u64, heap: &MemoryRange, part: HeapRange) -> Result<(), RmaError> {
        match self {
            Self::Slice(bytes) => {
                let from = at as usize;
                heap.write(part.offset, &bytes[from..from + part.len as usize])
            }
            Self::Memory(memory) => heap.copy_from(part.offset, memory, at, part.len),
        }
        .map_err(outside_memory)
    }
}

impl CopyInto<'_> {
    fn byte_len(&self) -> usize {
        match self {
            Self::Slice(bytes) => bytes.len(),
            Self::Memory(memory) => memory.len(),
        }
    }

    /// Copies a part of a stage to the bytes from `at` on.
    fn take_part(&mut self, at: u64, heap: &MemoryRange, part: HeapRange) -> Result<(), RmaError> {
        match self {
            Self::Slice(bytes) => {
                let to = at as usize;
                heap.read(part.offset, &mut bytes[to..to + part.len as usize])
            }
            Self::Memory(memory) => memory.copy_from(at, heap, part.offset, part.len),
        }
        .map_err(outside_memory)
    }
}

/// Returns the pieces of `whole` bytes, none longer than `longest`: the offset and the length of each.
fn split_pieces(whole: u64, longest: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..whole).step_by(longest as usize).map(move |at| (at, longest.min(whole - at)))
}

impl<S: FetchSink> ContextCalls<'_, S> {
    /// Puts registered bytes, which must not change until a quiet.
    ///
    /// # Errors
    /// [`RmaError::Lost`]; [`RmaError::Argument`] if either side is not in its heap.
    pub fn put_registered(&self, mut to: HeapAddress, mut from: HeapRange) -> Result<(), RmaError> {
        while from.len > 0 {
            let taken = self.wait_until(|| self.begin_put(to, PutSource::Heap(from)))?;
            (to.offset, from.offset, from.len) = (to.offset + taken, from.offset + taken, from.len - taken);
        }
        Ok(())
    }

    /// Puts bytes that are copied before the call returns.
    ///
    /// # Errors
    /// As [`put_registered`](Self::put_registered); [`RmaError::Failed`] of earlier operations.
    pub fn put_copied(&self, to: HeapAddress, from: CopyFrom<'_>) -> Result<(), RmaError> {
        let len = from.byte_len();
        if len == 0 {
            return Ok(());
        }
        if len <= self.context.inline_max() {
            return from.with_bytes(|bytes| {
                self.wait_until(|| self.begin_put(to, PutSource::Bytes(bytes))).map(drop)
            });
        }
        for (at, len) in split_pieces(len as u64, self.context.stage.put_piece()) {
            self.with_staged(&from, at, len, |part| self.put_registered(to.offset_by(at), part))?;
        }
        Ok(())
    }

    /// Puts at most [`inline_max`](super::OneSidedContext::inline_max) bytes, if there is room now. Returns whether
    /// there was.
    ///
    /// # Errors
    /// As [`put_registered`](Self::put_registered).
    pub fn try_put_bytes(&self, to: HeapAddress, bytes: &[u8]) -> Result<bool, RmaError> {
        Ok(self.begin_put(to, PutSource::Bytes(bytes))?.is_some())
    }

    /// Gets into registered bytes, which have arrived after a quiet.
    ///
    /// # Errors
    /// As [`put_registered`](Self::put_registered).
    pub fn get_registered(&self, mut from: HeapAddress, mut into: HeapRange) -> Result<(), RmaError> {
        while into.len > 0 {
            let HeapAddress { member, heap, offset } = from;
            let taken =
                self.wait_until(|| self.fabric_job().get(self.context_id(), member, heap, offset, into))?;
            (from.offset, into.offset, into.len) =
                (from.offset + taken, into.offset + taken, into.len - taken);
        }
        Ok(())
    }

    /// Gets bytes, which have arrived when the call returns. All earlier operations towards that member are complete
    /// then, too.
    ///
    /// # Errors
    /// As [`put_copied`](Self::put_copied).
    pub fn get_copied(&self, from: HeapAddress, mut into: CopyInto<'_>) -> Result<(), RmaError> {
        for (at, len) in split_pieces(into.byte_len() as u64, self.context.stage.get_piece()) {
            self.with_fetched(len, &mut into, at, |part| {
                self.get_registered(from.offset_by(at), part)?;
                self.quiet_member(from.member)
            })?;
        }
        Ok(())
    }

    /// Gets elements of `element` bytes that are not contiguous, all of one member. `address_of` returns the address of
    /// each by its number. The gets are in flight together as far as the stage has room, and have arrived when the call
    /// returns.
    ///
    /// # Errors
    /// As [`put_copied`](Self::put_copied).
    pub fn get_elements(
        &self,
        element: usize,
        into: &mut [u8],
        address_of: impl Fn(usize) -> HeapAddress,
    ) -> Result<(), RmaError> {
        let at_once = self.context.stage.get_piece() as usize / element.max(1);
        for (group, bytes) in into.chunks_mut(at_once.max(1) * element.max(1)).enumerate() {
            let first = group * at_once.max(1);
            if at_once == 0 {
                self.get_copied(address_of(first), CopyInto::Slice(bytes))?;
                continue;
            }
            let member = address_of(first).member;
            let whole = bytes.len() as u64;
            self.with_fetched(whole, &mut CopyInto::Slice(bytes), 0, |part| {
                for (number, (at, len)) in split_pieces(whole, element as u64).enumerate() {
                    let one = HeapRange { offset: part.offset + at, len, ..part };
                    self.get_registered(address_of(first + number), one)?;
                }
                self.quiet_member(member)
            })?;
        }
        Ok(())
    }

    /// Puts registered bytes, then changes a word of the same member. The bytes must not change until a quiet.
    ///
    /// # Errors
    /// As [`put_registered`](Self::put_registered).
    pub fn put_signal_registered(
        &self,
        to: HeapAddress,
        from: HeapRange,
        update: SignalUpdate,
    ) -> Result<(), RmaError> {
        self.begin_put_signal(to, PutSource::Heap(from), update)
    }

    /// Puts bytes that are copied before the call returns, then changes a word of the same member.
    ///
    /// # Errors
    /// As [`put_copied`](Self::put_copied).
    pub fn put_signal_copied(
        &self,
        to: HeapAddress,
        from: CopyFrom<'_>,
        update: SignalUpdate,
    ) -> Result<(), RmaError> {
        let len = from.byte_len();
        if len <= self.context.inline_max() && len > 0 {
            return from.with_bytes(|bytes| self.begin_put_signal(to, PutSource::Bytes(bytes), update));
        }
        let len = len as u64;
        if len > 0 && len <= self.context.stage.put_piece() {
            return self.with_staged(&from, 0, len, |part| self.put_signal_registered(to, part, update));
        }
        self.put_copied(to, from)?;
        // The engine orders a signal after earlier puts.
        self.send_signal(to.member, update)
    }

    #[inline]
    fn begin_put(&self, to: HeapAddress, from: PutSource<'_>) -> Result<Option<u64>, RmaError> {
        self.fabric_job().put(self.context_id(), to.member, to.heap, to.offset, from)
    }

    fn begin_put_signal(
        &self,
        to: HeapAddress,
        from: PutSource<'_>,
        update: SignalUpdate,
    ) -> Result<(), RmaError> {
        let HeapAddress { member, heap, offset } = to;
        let put = || self.fabric_job().put_signal(self.context_id(), member, heap, offset, from, update);
        self.wait_until(|| Ok(put()?.then_some(())))
    }

    /// Calls `put` with a part of the stage that contains `len` bytes of `from`, from `at` on.
    fn with_staged(
        &self,
        from: &CopyFrom<'_>,
        at: u64,
        len: u64,
        put: impl FnOnce(HeapRange) -> Result<(), RmaError>,
    ) -> Result<(), RmaError> {
        let stage = &self.context.stage;
        let part = self.reserve_part(len)?;
        let put = from.fill_part(at, stage.heap_memory(), part).and_then(|()| put(part));
        // The network reads the part until a quiet, also for a put that failed after some pieces.
        stage.finish_use();
        put
    }

    /// Calls `get` with a part of the stage, and copies the `len` bytes that arrive there to `into`, from `at` on.
    fn with_fetched(
        &self,
        len: u64,
        into: &mut CopyInto<'_>,
        at: u64,
        get: impl FnOnce(HeapRange) -> Result<(), RmaError>,
    ) -> Result<(), RmaError> {
        let stage = &self.context.stage;
        let part = self.reserve_part(len)?;
        match get(part) {
            Ok(()) => {
                let taken = into.take_part(at, stage.heap_memory(), part);
                stage.return_part(part);
                taken
            }
            Err(error) => {
                // The network may still write to the part.
                stage.finish_use();
                Err(error)
            }
        }
    }

    /// Waits for room in the stage.
    fn reserve_part(&self, len: u64) -> Result<HeapRange, RmaError> {
        self.wait_until(|| self.context.stage.try_reserve(len, || self.poll_quiet()))
    }
}
