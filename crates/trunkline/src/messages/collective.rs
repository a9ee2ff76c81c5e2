//! Collective calls of the ranks of a host: broadcast and all-to-all, by tagged messages.
//!
//! If other ranks can map a buffer, all of them read it at the same time through one export, and its owner returns when
//! all have read it. Whether a call does that is decided once, before its messages (docs/wire.md). In a broadcast the
//! root decides, whose memory alone is read. In an exchange all ranks decide: they send each other whether their memory
//! can be read.
//!
//! Where one rank's memory cannot be read, the two ends of each message choose its method. So ranks whose buffers are
//! of different kinds still wait for the same messages.

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::reserve::{try_deque, try_vec};
use trunkline_proto::tagged::{CopyMethod, MethodChoice};

use super::{Buffer, EAGER_MAX, MessageError, Messages, OWN_TAGS, Request, TagBits};

/// The tags of collective calls.
const TOGETHER: u64 = OWN_TAGS | 1 << 62;
/// The bit of tags for messages by which ranks decide on a method.
const DECIDES: u64 = 1 << 61;

/// Counts of collective calls ([`Messages::broadcast`], [`Messages::all_to_all`]) whose parts were too long to be
/// sent eagerly.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CollectiveCounts {
    /// Calls in which all receivers read the memory of the senders; in broadcasts only the root counts.
    pub read: u64,
    /// Calls in which that was not possible, so that the two ends of each message chose its method.
    pub apart: u64,
}

impl<M: IpcMemory> Messages<M> {
    /// Copies the buffer of `root` into the buffers of all near ranks, which are as long. All of them call it.
    /// Returns when this rank's buffer may be written again; other ranks may still be receiving.
    ///
    /// # Errors
    /// The first error of this rank's messages, whose requests have all ended then. [`MessageError::Differ`] if a
    /// buffer has another length.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// let table = Buffer::private(1 << 20)?; // The same length at each rank.
    /// if messages.rank() == 0 {
    ///     table.write(0, b"parameters")?;
    /// }
    /// messages.broadcast(0, &table)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn broadcast(&mut self, root: usize, buffer: &Buffer) -> Result<(), MessageError> {
        let tag = self.next_call();
        if root != self.rank {
            let received = self.irecv_tagged(root.into(), TagBits::from_tag(tag), buffer)?;
            return self.wait_exact(received, root, buffer);
        }
        let near = self.near_ranks();
        let read = buffer.len() > EAGER_MAX && self.check_shareable(&near, buffer);
        self.count_call(buffer.len(), read);
        let mut sent = try_vec(near.len())?;
        sent.extend(near.iter().map(|rank| self.send_part(*rank, tag, buffer, read)));
        self.wait_all(sent, VecDeque::new())
    }

    /// Exchanges parts between all near ranks: part `n` of `from` is sent to rank `n`, and the part that rank `n`
    /// sends here is stored as part `n` of `into`. A buffer has one part per rank of the world, all of the same
    /// length. Parts of ranks on other hosts do not change.
    ///
    /// All near ranks call it with buffers of the same length. Returns when this rank has received all parts, and all
    /// ranks have received its parts.
    ///
    /// # Errors
    /// As [`Messages::broadcast`]; [`MessageError::Parts`] if the buffers have no equal part for each rank.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// // Each rank has one row of a matrix, and receives one column: the transpose.
    /// let (rank, size) = (messages.rank(), messages.size());
    /// let [row, column] = [Buffer::private(8 * size)?, Buffer::private(8 * size)?];
    /// for at in 0..size {
    ///     let element = (rank * size + at) as u64;
    ///     row.write(8 * at, &element.to_le_bytes())?;
    /// }
    /// messages.all_to_all(&row, &column)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn all_to_all(&mut self, from: &Buffer, into: &Buffer) -> Result<(), MessageError> {
        let size = self.size();
        let len = from.len();
        if into.len() != len || !len.is_multiple_of(size) {
            return Err(MessageError::Parts { from: len, into: into.len(), size });
        }
        let tag = self.next_call();
        let part = len / size;
        let near = self.near_ranks();
        let read = part > EAGER_MAX && self.all_offer(tag, &near, from)?;
        self.count_call(part, read);
        let mut received = try_deque(near.len())?;
        let mut sent = try_vec(near.len())?;
        for rank in near.iter() {
            let into = into.part(rank * part, part)?;
            let request = self.irecv_tagged((*rank).into(), TagBits::from_tag(tag), &into);
            received.push_back((request, *rank, into));
        }
        // Each rank starts with the next higher one, so that not all send to the same rank first.
        let turn = near.iter().position(|rank| *rank > self.rank).unwrap_or(0);
        let turns = near.iter().cycle().skip(turn).take(near.len());
        for rank in turns {
            sent.push(self.send_part(*rank, tag, &from.part(rank * part, part)?, read));
        }
        self.copy(&from.part(self.rank * part, part)?, &into.part(self.rank * part, part)?)?;
        let end = self.wait_all(sent, received);
        if end.is_err() {
            self.discard_offers(tag, &near);
        }
        end
    }

    /// Discards offers of a failed call that were received and not taken, so that they do not stay in the inbox.
    fn discard_offers(&mut self, tag: u64, near: &[usize]) {
        for rank in near {
            let Ok(peer) = self.peer_id(*rank) else { continue };
            let _ = self.endpoint.take_bytes(Some(peer), tag | DECIDES, u64::MAX, &mut [0]);
        }
    }

    const fn count_call(&mut self, len: usize, read: bool) {
        if len > EAGER_MAX {
            self.together.read += read as u64;
            self.together.apart += !read as u64;
        }
    }

    fn send_part(
        &mut self,
        to: usize,
        tag: u64,
        buffer: &Buffer,
        read: bool,
    ) -> Result<Request, MessageError> {
        if !read {
            return self.isend_tagged(to, tag, buffer);
        }
        self.begin_send(to, buffer, |endpoint, peer, buffer| endpoint.send_to_be_read(peer, tag, buffer))
    }

    /// Returns whether all near ranks can read this rank's memory, and the copy method permits it. Errors of the
    /// memory are left to its messages, which report them.
    fn check_shareable(&mut self, near: &[usize], buffer: &Buffer) -> bool {
        let is_asked = matches!(
            self.endpoint.copy_choice(),
            MethodChoice::Learned | MethodChoice::Fixed(CopyMethod::Pull)
        );
        let Some(rank) = near.first().filter(|_| is_asked) else { return false };
        let Ok(peer) = self.peer_id(*rank) else { return false };
        self.wait_until(|one| Ok(one.endpoint.is_readable(peer, buffer.ipc_buffer())?)).unwrap_or(false)
    }

    /// Returns whether all ranks can read the memory of all: each sends the others whether its own can be read.
    fn all_offer(&mut self, tag: u64, near: &[usize], buffer: &Buffer) -> Result<bool, MessageError> {
        let mut all = self.check_shareable(near, buffer);
        self.send_to_all(tag | DECIDES, near, |_| [u8::from(all)])?;
        for rank in near {
            all &= self.receive_offer(tag, *rank)?;
        }
        Ok(all)
    }

    /// Receives whether a rank's memory can be read. Returns false if that rank's part has arrived already: then it
    /// is short, the lengths differ, and the message reports that.
    fn receive_offer(&mut self, tag: u64, rank: usize) -> Result<bool, MessageError> {
        let peer = self.peer_id(rank)?;
        let mut said = [0];
        loop {
            match self.endpoint.take_bytes(Some(peer), tag | DECIDES, u64::MAX, &mut said) {
                Some(Ok(done)) => return Ok(done.len == 1 && said == [1]),
                Some(Err(error)) => return Err(MessageError::from(error).with_rank(rank)),
                None if self.endpoint.probe(Some(peer), tag, u64::MAX).is_some() => return Ok(false),
                None => self.still_there(rank)?,
            }
            self.progress_or_pause();
        }
    }

    /// Fails if the rank has ended, or any near rank has died: a missing rank may have failed this call because of
    /// that death, before this rank noticed it.
    fn still_there(&self, rank: usize) -> Result<(), MessageError> {
        if self.endpoint.is_gone(self.peer_id(rank)?) {
            return Err(MessageError::Gone { rank: Some(rank) });
        }
        match self.died {
            Some(rank) => Err(MessageError::Gone { rank: Some(rank) }),
            None => Ok(()),
        }
    }

    /// Returns the other ranks of this host.
    pub(super) fn near_ranks(&self) -> Arc<Vec<usize>> {
        Arc::clone(&self.near)
    }

    pub(super) fn next_call(&mut self) -> u64 {
        self.meetings += 1;
        TOGETHER | self.meetings
    }

    /// Sends a short message to each of the ranks.
    pub(super) fn send_to_all<const N: usize>(
        &mut self,
        tag: u64,
        to: &[usize],
        what: impl Fn(usize) -> [u8; N],
    ) -> Result<(), MessageError> {
        to.iter().try_for_each(|rank| self.send_tagged(*rank, tag, &what(*rank)))
    }

    /// Receives the short message of a rank in a collective call.
    pub(super) fn receive_from(
        &mut self,
        tag: u64,
        rank: usize,
        into: &mut [u8],
    ) -> Result<(), MessageError> {
        let peer = self.peer_id(rank)?;
        let expected = into.len() as u64;
        loop {
            match self.endpoint.take_bytes(Some(peer), tag, u64::MAX, into) {
                Some(Ok(done)) if done.len == expected => return Ok(()),
                Some(Ok(done)) => return Err(MessageError::Differ { rank, got: done.len, expected }),
                Some(Err(error)) => return Err(MessageError::from(error).with_rank(rank)),
                None => self.still_there(rank)?,
            }
            self.progress_or_pause();
        }
    }

    /// Waits until all requests have ended. Returns the first error.
    fn wait_all(
        &mut self,
        sent: Vec<Result<Request, MessageError>>,
        received: VecDeque<(Result<Request, MessageError>, usize, Buffer)>,
    ) -> Result<(), MessageError> {
        let mut end = Ok(());
        for (request, rank, into) in received {
            let got = request.and_then(|request| self.wait_exact(request, rank, &into));
            end = end.and(got);
        }
        for request in sent {
            let gone = request.and_then(|request| self.wait(request).map(drop));
            end = end.and(gone);
        }
        end
    }

    /// Waits for a message, and checks that it is as long as its buffer.
    fn wait_exact(&mut self, request: Request, rank: usize, into: &Buffer) -> Result<(), MessageError> {
        let got = self.wait(request).map_err(|error| error.with_rank(rank))?;
        if got.len == into.len() as u64 {
            return Ok(());
        }
        Err(MessageError::Differ { rank, got: got.len, expected: into.len() as u64 })
    }
}
