//! What ranks of a host do together: broadcast and all-to-all, by tagged messages.
//!
//! A buffer that others can map is read by each of them at the same time, by one export; its owner comes back when all have read it. Whether all do that is
//! decided once for a call, before its messages: of a broadcast by the root, whose memory is the only one that is read, and of an exchange by all, who tell each
//! other whether theirs can be (docs/wire.md). Where one's cannot, how bytes go is settled by the two ends of each message: ranks whose buffers differ in kind
//! never wait for something else than the others do.

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_mem::ipc::IpcMemory;
use trunkline_proto::reserve::{try_deque, try_vec};
use trunkline_proto::tagged::{CopyMethod, MethodChoice};

use super::{Buffer, EAGER_MAX, MessageError, Messages, OWN_TAGS, Request, TagBits};

/// Tags of these calls.
const TOGETHER: u64 = OWN_TAGS | 1 << 62;
/// And of what ranks tell each other before.
const DECIDES: u64 = 1 << 61;

/// How calls of all ranks went whose parts were too long to go with a message ([`Messages::broadcast`], [`Messages::all_to_all`]).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CollectiveCounts {
    /// Calls in which all who get read the memory of who gives; of broadcasts only the root counts.
    pub read: u64,
    /// Calls in which that could not be, so that each message was settled by its two ends.
    pub apart: u64,
}

impl<M: IpcMemory> Messages<M> {
    /// Gives the bytes of one rank to all that are near: afterwards each has in `buffer` what `root` has in its own, which is as long. All call it. It comes
    /// back when this rank's buffer may be written again; others may still be waiting for theirs.
    ///
    /// # Errors
    /// [`MessageError`]; of several the first. All of this rank's part is over then, too.
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

    /// Gives part `n` of `from` to rank `n`, and puts what rank `n` gives into part `n` of `into`: each of as many bytes as a buffer has for each rank
    /// of the world. All that are near call it with buffers of the same length; parts of ranks elsewhere stay as they are. It comes back when this rank
    /// has all, and all have what it gave.
    ///
    /// # Errors
    /// As [`Messages::broadcast`]; [`MessageError::Parts`].
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
        // Not all to the same rank first.
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

    /// Of a call whose lengths differed: what was told of memory, and nobody asked for.
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

    /// Whether this rank's memory can be read by all, and nothing else was asked for. What is wrong with it is said by its messages.
    fn check_shareable(&mut self, near: &[usize], buffer: &Buffer) -> bool {
        let is_asked = matches!(
            self.endpoint.copy_choice(),
            MethodChoice::Learned | MethodChoice::Fixed(CopyMethod::Pull)
        );
        let Some(rank) = near.first().filter(|_| is_asked) else { return false };
        let Ok(peer) = self.peer_id(*rank) else { return false };
        self.wait_until(|one| Ok(one.endpoint.is_readable(peer, buffer.ipc_buffer())?)).unwrap_or(false)
    }

    /// Whether the memory of all ranks can be read by all: each tells the others of its own.
    fn all_offer(&mut self, tag: u64, near: &[usize], buffer: &Buffer) -> Result<bool, MessageError> {
        let mut all = self.check_shareable(near, buffer);
        self.send_to_all(tag | DECIDES, near, |_| [u8::from(all)])?;
        for rank in near {
            all &= self.receive_offer(tag, *rank)?;
        }
        Ok(all)
    }

    /// What a rank tells of its memory; nothing, if its part is so short that it has been sent: then the lengths differ, and the message says so.
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

    /// Who does not come may have heard before this rank that another one has died: so the death of any ends what all do.
    fn still_there(&self, rank: usize) -> Result<(), MessageError> {
        if self.endpoint.is_gone(self.peer_id(rank)?) {
            return Err(MessageError::Gone { rank: Some(rank) });
        }
        match self.died {
            Some(rank) => Err(MessageError::Gone { rank: Some(rank) }),
            None => Ok(()),
        }
    }

    /// Ranks of this host, this one apart.
    pub(super) fn near_ranks(&self) -> Arc<Vec<usize>> {
        Arc::clone(&self.near)
    }

    pub(super) fn next_call(&mut self) -> u64 {
        self.meetings += 1;
        TOGETHER | self.meetings
    }

    /// Tells each of those ranks something short.
    pub(super) fn send_to_all<const N: usize>(
        &mut self,
        tag: u64,
        to: &[usize],
        what: impl Fn(usize) -> [u8; N],
    ) -> Result<(), MessageError> {
        to.iter().try_for_each(|rank| self.send_tagged(*rank, tag, &what(*rank)))
    }

    /// Takes what a rank tells each in a call that all make.
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

    /// Waits until all are over; the first error of any.
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

    /// Waits for a message that is as long as its buffer.
    fn wait_exact(&mut self, request: Request, rank: usize, into: &Buffer) -> Result<(), MessageError> {
        let got = self.wait(request).map_err(|error| error.with_rank(rank))?;
        if got.len == into.len() as u64 {
            return Ok(());
        }
        Err(MessageError::Differ { rank, got: got.len, expected: into.len() as u64 })
    }
}
