//! Streams: bytes from a kernel of one rank to the kernel of the same channel at another rank, in chunks. Several
//! chunks are in flight at a time. Each end keeps its state in the window, so that later kernels continue.
//!
//! Each chunk uses the next lane, and a flag of that lane. Chunks on different lanes overtake each other, so a common
//! flag could announce the wrong chunk. The receiver takes the lanes in the same order. It acknowledges each chunk,
//! so that the sender reuses its room.

use std::sync::atomic::Ordering::Relaxed;

use trunkline_device_queue::{SignalSlot, WordMemory as _};
use trunkline_proto::reserve::try_filled;
use trunkline_proto::wire::device_queue::{
    EntryWork, GRANULE, LocalAddress, QueueEntry, StreamLayout, stream_at,
};

use super::error::KernelError;
use super::kernel::Kernel;

/// The stream and the rank to which a received chunk is forwarded.
struct ForwardTarget {
    stream: StreamLayout,
    rank: usize,
}

impl Kernel<'_> {
    fn peer_stream(&self, with: usize) -> Result<StreamLayout, KernelError> {
        if with >= self.size() || with == self.rank() {
            return Err(KernelError::NoRank(with));
        }
        let stream = self.part.layout.stream_layout(with as u32, self.channel);
        stream.ok_or(KernelError::None { what: "stream of channel", id: self.channel })
    }

    fn chunk_len(&self) -> usize {
        self.part.layout.shape().chunk as usize
    }

    fn lane_of(&self, chunk: u64) -> usize {
        (chunk % u64::from(self.part.layout.shape().lanes)) as usize
    }

    /// Sends bytes to a rank, whose kernel of the same channel receives the same number. Returns when `bytes` may be
    /// changed; they may still be in flight.
    ///
    /// # Errors
    /// [`KernelError::NoRank`]; [`KernelError::None`] if the window has no streams; [`KernelError::Post`],
    /// [`KernelError::Wait`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// let mut text = [0; 5];
    /// match kernel.rank() {
    ///     0 => kernel.send(1, b"hello")?,
    ///     1 => kernel.recv(0, &mut text)?,
    ///     _ => {}
    /// }
    /// kernel.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn send(&self, to: usize, bytes: &[u8]) -> Result<(), KernelError> {
        let stream = self.peer_stream(to)?;
        for chunk in bytes.chunks(self.chunk_len()) {
            let nth = self.part.words.load(stream.state_offset() + stream_at::SENT, Relaxed);
            self.wait_room(stream, nth)?;
            let _ = self.part.memory.write(stream.room_out(nth), chunk);
            self.send_chunk(&ForwardTarget { stream, rank: to }, nth, chunk.len())?;
        }
        Ok(())
    }

    /// Receives bytes from a rank, whose kernel of the same channel sends the same number. Returns when all have
    /// arrived.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn example(kernel: &Kernel<'_>) -> Result<(), KernelError> {
    /// # let next = (kernel.rank() + 1) % kernel.size();
    /// # let previous = (kernel.rank() + kernel.size() - 1) % kernel.size();
    /// let mut halo = [0; 8];
    /// kernel.send(next, &7_u64.to_le_bytes())?; // fits in a chunk, so all ranks can send first
    /// kernel.recv(previous, &mut halo)?;
    /// println!("the number of rank {previous} is {}", u64::from_le_bytes(halo));
    /// # Ok(())
    /// # }
    /// ```
    pub fn recv(&self, from: usize, into: &mut [u8]) -> Result<(), KernelError> {
        let stream = self.peer_stream(from)?;
        for chunk in into.chunks_mut(self.chunk_len()) {
            let nth = self.wait_chunk(stream, chunk.len())?;
            let _ = self.part.memory.read(stream.room_in(nth), chunk);
            self.release_chunk(from, nth)?;
        }
        Ok(())
    }

    /// Receives bytes from one rank, and sends them on to another, chunk by chunk. It releases the room of a chunk
    /// before it waits for room at the next rank, so that ranks in a ring do not deadlock.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn example(kernel: &Kernel<'_>, bytes: &mut [u8]) -> Result<(), KernelError> {
    /// // Rank 0 has the bytes. Each rank sends a chunk on while the next one arrives.
    /// let (rank, last) = (kernel.rank(), kernel.size() - 1);
    /// match rank {
    ///     0 => kernel.send(1, bytes)?,
    ///     _ if rank < last => kernel.forward(rank - 1, rank + 1, bytes)?,
    ///     _ => kernel.recv(rank - 1, bytes)?,
    /// }
    /// # kernel.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn forward(&self, from: usize, to: usize, into: &mut [u8]) -> Result<(), KernelError> {
        let up = self.peer_stream(from)?;
        let down = self.peer_stream(to)?;
        for chunk in into.chunks_mut(self.chunk_len()) {
            let nth = self.wait_chunk(up, chunk.len())?;
            let _ = self.part.memory.read(up.room_in(nth), chunk);
            self.pass_on(chunk, from, nth, &ForwardTarget { stream: down, rank: to })?;
        }
        Ok(())
    }

    /// Receives bytes from one rank, combines them with those in `into`, and sends the result on, chunk by chunk.
    /// `f` receives a chunk of `into` and the received chunk of the same length. It stores the result in the first.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`KernelError::Memory`] if there is no memory for a chunk.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn add(sum: &mut [u8], received: &[u8]) {
    /// #     for (sum, number) in sum.iter_mut().zip(received) {
    /// #         *sum = sum.wrapping_add(*number);
    /// #     }
    /// # }
    /// # fn example(kernel: &Kernel<'_>, bytes: &mut [u8]) -> Result<(), KernelError> {
    /// # let (rank, last) = (kernel.rank(), kernel.size() - 1);
    /// # let (previous, next) = ((rank + last) % kernel.size(), (rank + 1) % kernel.size());
    /// match rank {
    ///     0 => kernel.send(next, bytes)?,
    ///     _ if rank < last => kernel.reduce_forward(previous, next, bytes, add)?,
    ///     _ => kernel.reduce(previous, bytes, add)?, // the last rank has the sums of all ranks
    /// }
    /// match rank {
    ///     _ if rank == last => kernel.send(next, bytes)?, // rank 0 is next in the ring
    ///     _ if rank + 1 == last => kernel.recv(previous, bytes)?,
    ///     _ => kernel.forward(previous, next, bytes)?,
    /// }
    /// # kernel.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reduce_forward(
        &self,
        from: usize,
        to: usize,
        into: &mut [u8],
        mut f: impl FnMut(&mut [u8], &[u8]),
    ) -> Result<(), KernelError> {
        let down = self.peer_stream(to)?;
        self.take_with(from, into, |chunk, came, nth| {
            f(chunk, came);
            self.pass_on(chunk, from, nth, &ForwardTarget { stream: down, rank: to })
        })
    }

    /// Receives bytes and combines them, as [`reduce_forward`](Self::reduce_forward) does, without sending the result
    /// on.
    ///
    /// # Errors
    /// As [`reduce_forward`](Self::reduce_forward).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{Kernel, KernelError};
    /// # fn example(kernel: &Kernel<'_>, numbers: &mut [u8]) -> Result<(), KernelError> {
    /// // Adds the numbers of rank 0 to those of rank 1.
    /// match kernel.rank() {
    ///     0 => kernel.send(1, numbers)?,
    ///     1 => kernel.reduce(0, numbers, |chunk, received| {
    ///         for (sum, number) in chunk.iter_mut().zip(received) {
    ///             *sum = sum.wrapping_add(*number);
    ///         }
    ///     })?,
    ///     _ => {}
    /// }
    /// # kernel.flush()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reduce(
        &self,
        from: usize,
        into: &mut [u8],
        mut f: impl FnMut(&mut [u8], &[u8]),
    ) -> Result<(), KernelError> {
        self.take_with(from, into, |chunk, came, nth| {
            f(chunk, came);
            self.release_chunk(from, nth)
        })
    }

    fn take_with(
        &self,
        from: usize,
        into: &mut [u8],
        mut f: impl FnMut(&mut [u8], &[u8], u64) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let mut came = try_filled(0, self.chunk_len())?;
        let up = self.peer_stream(from)?;
        for chunk in into.chunks_mut(self.chunk_len()) {
            let nth = self.wait_chunk(up, chunk.len())?;
            let came = came.get_mut(..chunk.len()).unwrap_or_default();
            let _ = self.part.memory.read(up.room_in(nth), came);
            f(chunk, came, nth)?;
        }
        Ok(())
    }

    /// Releases the room of a received chunk, and sends the chunk on.
    fn pass_on(
        &self,
        chunk: &[u8],
        from: usize,
        nth: u64,
        onward: &ForwardTarget,
    ) -> Result<(), KernelError> {
        self.release_chunk(from, nth)?;
        let out = self.part.words.load(onward.stream.state_offset() + stream_at::SENT, Relaxed);
        self.wait_room(onward.stream, out)?;
        let _ = self.part.memory.write(onward.stream.room_out(out), chunk);
        self.send_chunk(onward, out, chunk.len())
    }

    /// Waits until the receiver has taken the chunk that used this room before. Then this rank's NIC has read the
    /// room, too.
    fn wait_room(&self, stream: StreamLayout, nth: u64) -> Result<(), KernelError> {
        let depth = u64::from(self.part.layout.shape().depth);
        let taken = (nth + 1).saturating_sub(depth);
        if taken > 0 {
            self.wait_slot(SignalSlot::with_poison_word(stream.free_flag()), taken)?;
        }
        Ok(())
    }

    /// Sends the content of the room of chunk `nth`.
    fn send_chunk(&self, onward: &ForwardTarget, nth: u64, len: usize) -> Result<(), KernelError> {
        let padded = (len as u64).next_multiple_of(GRANULE);
        let lane = self.lane_of(nth);
        let there = self.part.layout.stream_layout(self.rank() as u32, self.channel);
        let there = there.ok_or(KernelError::None { what: "stream of channel", id: self.channel })?;
        let to = self.remote_address(onward.rank, there.room_in(nth))?;
        let from =
            LocalAddress { addr: onward.stream.room_out(nth), key: self.remote_address(self.rank(), 0)?.key };
        let flag = self.remote_address(onward.rank, there.ready_flag(lane as u32))?;
        let write = QueueEntry::new(EntryWork::Write { from, to, len: padded, imm: None });
        self.post_entries(lane, &[write, Self::add_entry(flag, padded)])?;
        self.part.words.store(onward.stream.state_offset() + stream_at::SENT, nth + 1, Relaxed);
        Ok(())
    }

    /// Waits until the next chunk has arrived, and returns its number.
    fn wait_chunk(&self, stream: StreamLayout, len: usize) -> Result<u64, KernelError> {
        let words = &self.part.words;
        let nth = words.load(stream.state_offset() + stream_at::RECEIVED, Relaxed);
        let flag = stream.ready_flag(self.lane_of(nth) as u32);
        let padded = (len as u64).next_multiple_of(GRANULE);
        let expected = words.load(flag + stream_at::EXPECTED, Relaxed) + padded;
        self.wait_slot(SignalSlot::with_poison_word(flag), expected)?;
        words.store(flag + stream_at::EXPECTED, expected, Relaxed);
        words.store(stream.state_offset() + stream_at::RECEIVED, nth + 1, Relaxed);
        Ok(nth)
    }

    /// Acknowledges a chunk, so that the sender reuses its room.
    fn release_chunk(&self, from: usize, nth: u64) -> Result<(), KernelError> {
        let there = self.part.layout.stream_layout(self.rank() as u32, self.channel);
        let there = there.ok_or(KernelError::None { what: "stream of channel", id: self.channel })?;
        let flag = self.remote_address(from, there.free_flag())?;
        self.post_entries(self.lane_of(nth), &[Self::add_entry(flag, 1)]).map(drop)
    }
}
