//! What a context begins: puts, gets, atomics and signals, each as one operation or message on one path. Nothing here waits; what
//! finds no room is not begun.

use trunkline_fabric::{Extent, Op, PostError, Purpose, Rail, Remote, RemoteKey, Source as From, Status};
use trunkline_proto::rma::Path;
use trunkline_proto::rma::atomic::Atomic;
use trunkline_proto::rma::calls::Refused;
use trunkline_proto::rma::ledger::Quiet;
use trunkline_proto::rma::outgoing::{Busy, Sealed, Tag};
use trunkline_proto::wire::rma::signal::Update;
use trunkline_proto::wire::rma::{Message, word};

use crate::rma::context::{Context, Fetch, Local, MESSAGE, Note, Source};
use crate::rma::error::{Lost, RmaError};
use crate::rma::heap::Heap;
use crate::rma::job::Member;
use crate::rma::peer::{Found, Link};

/// Bytes of a piece, where a long transfer is spread over several paths.
const STRIPE: u64 = 512 << 10;
/// Bytes of a piece at most.
const PIECE_MAX: u64 = 1 << 30;

impl<R: Rail> Context<R> {
    /// Takes the place of a peer that carries, unless its fence waits.
    fn ready(&mut self, member: Member) -> Option<u32> {
        let at = *self.known.get(&member)?;
        if self.peers[at as usize].fenced {
            let still = match self.mutant.is("job-fences-swallow-failures") {
                true => self.quiet_of(at) == Ok(Quiet::Done),
                false => self.is_still(at),
            };
            if !still {
                return None;
            }
            self.peers[at as usize].fenced = false;
        }
        Some(at)
    }

    /// Puts the first bytes of these: how many. `None` if there is no room now.
    pub(super) fn put(
        &mut self,
        member: Member,
        heap: u8,
        offset: u64,
        from: Source<'_>,
    ) -> Result<Option<u64>, RmaError> {
        let (source, len) = self.source(from)?;
        let Some((at, path, len)) = self.route(member, len) else { return Ok(None) };
        let peer = &mut self.peers[at as usize];
        let to = remote(&peer.links[path], heap, offset, len)?;
        let Some(on) = Path::new(path as u8) else { return Ok(None) };
        let tag = match peer.outgoing.put(on) {
            Ok(tag) => tag,
            Err(busy) => {
                if busy == Busy::Plain {
                    self.prove(at);
                }
                return Ok(None);
            }
        };
        self.write(at, path, to, source.first(len), tag)?;
        Ok(Some(len))
    }

    /// The peer, the path, and how many of so many bytes go over it at once.
    fn route(&mut self, member: Member, len: u64) -> Option<(u32, usize, u64)> {
        let at = self.ready(member)?;
        let (peer, rails) = (&self.peers[at as usize], &self.rails);
        let path = peer.path(|link| rails[link.rail].credits(link.link) > 0)?;
        let most = if peer.has_several() && len > 2 * STRIPE { STRIPE } else { PIECE_MAX };
        Some((at, path, len.min(most).min(self.message_max)))
    }

    /// Posts a write that the stream has taken. There is room for it.
    fn write(
        &mut self,
        at: u32,
        path: usize,
        to: Remote,
        source: Sourced<'_>,
        tag: Tag,
    ) -> Result<(), RmaError> {
        let bytes = source.len() as u32;
        let (imm, note) = match tag {
            Tag::Plain => (None, Note::Uncounted(bytes)),
            Tag::Counted(imm) => (Some(imm), Note::Plain(bytes)),
        };
        let on = Path::new(path as u8).ok_or(RmaError::Unknown)?;
        let link = &mut self.peers[at as usize].links[path];
        let rail = &mut self.rails[link.rail];
        let from = source.on(&self.heaps, link.rail)?;
        let id = self.ledger.begin(at, on, note).map_err(|_| RmaError::Unknown)?;
        link.unproven |= !self.arrives;
        link.uncounted += u32::from(!self.arrives && tag == Tag::Plain);
        link.bytes += u64::from(bytes);
        match rail.post(link.link, id.to_bits(), Op::Write { from, to, imm }, true) {
            Ok(()) => rail.flush(),
            // There was a credit: the link has ended, which its completions tell, too.
            Err(PostError::Busy) => self.lose(at, path as u8, Lost::Rails(Status::Flushed)),
            Err(PostError::Refused(status)) => self.lose(at, path as u8, Lost::Rails(status)),
        }
        Ok(())
    }

    /// Gets the first bytes of these: how many. `None` if there is no room now.
    pub(super) fn get(
        &mut self,
        member: Member,
        heap: u8,
        offset: u64,
        into: Local,
    ) -> Result<Option<u64>, RmaError> {
        let (_, len) = self.source(Source::Heap(into))?;
        let Some((at, path, len)) = self.route(member, len) else { return Ok(None) };
        let link = &mut self.peers[at as usize].links[path];
        let from = remote(link, heap, offset, len)?;
        let (Some(on), Some(mr)) = (
            Path::new(path as u8),
            self.heaps.get(usize::from(into.heap)).and_then(|heap| heap.on(link.rail)),
        ) else {
            return Err(RmaError::Unknown);
        };
        let into: Extent = mr.extent(into.offset, len);
        let Ok(id) = self.ledger.begin(at, on, Note::Plain(len as u32)) else { return Ok(None) };
        link.bytes += len;
        let rail = &mut self.rails[link.rail];
        match rail.post(link.link, id.to_bits(), Op::Read { into, from }, true) {
            Ok(()) => rail.flush(),
            Err(PostError::Busy) => self.lose(at, path as u8, Lost::Rails(Status::Flushed)),
            Err(PostError::Refused(status)) => self.lose(at, path as u8, Lost::Rails(status)),
        }
        Ok(Some(len))
    }

    /// Asks for an atomic. `None` if there is no room now.
    pub(super) fn atomic(
        &mut self,
        member: Member,
        word: word::Word,
        atomic: Atomic,
    ) -> Result<Option<Fetch>, RmaError> {
        let Some(at) = self.ready(member) else { return Ok(None) };
        let peer = &mut self.peers[at as usize];
        let rails = &self.rails;
        // One of the receives is for what asks, and of those for answers one in four is for acknowledgements.
        let out = u64::from(peer.calls.len()) + peer.outgoing.unacknowledged();
        let most = u64::from(self.answers - self.answers / 4);
        let takes = |link: &Link| out + 1 < u64::from(link.credit) && u64::from(peer.calls.len()) < most;
        let has_room = |link: &Link| takes(link) && rails[link.rail].credits(link.link) > 0;
        let Some(path) = peer.path(has_room) else {
            // What is not acknowledged takes the receives: its target is asked.
            self.ask(at);
            return Ok(None);
        };
        let Some(on) = Path::new(path as u8) else { return Ok(None) };
        let request = match peer.calls.begin(word, atomic) {
            Ok(request) => request,
            Err(Refused::Busy) => return Ok(None),
            Err(Refused::Width) => return Err(RmaError::Argument("the word is not as wide as the type")),
        };
        let slot = request.slot;
        let id = self.ledger.begin(at, on, Note::Call).ok();
        peer.found[slot.index()] = (slot.generation(), id, Found::Pending);
        self.send(at, path, &Message::Request(request));
        Ok(Some(Fetch { peer: at, slot }))
    }

    /// The value that an atomic has found; `None` if it is not known yet.
    pub(super) fn fetched(&mut self, fetch: Fetch) -> Result<Option<u64>, RmaError> {
        let peer = self.peers.get(fetch.peer as usize).ok_or(RmaError::Unknown)?;
        let (generation, _, found) = peer.found[fetch.slot.index()];
        match found {
            _ if generation != fetch.slot.generation() => Err(RmaError::Unknown),
            Found::Value(value) => Ok(Some(value)),
            Found::Nowhere => Err(RmaError::NoWord(peer.member)),
            Found::Pending => match peer.lost {
                Some(lost) => Err(RmaError::Lost { member: peer.member, lost }),
                None => Ok(None),
            },
        }
    }

    /// Signals. False if there is no room now.
    pub(super) fn signal(&mut self, member: Member, update: Update) -> Result<bool, RmaError> {
        let Some(at) = self.ready(member) else { return Ok(false) };
        let peer = &mut self.peers[at as usize];
        let rails = &self.rails;
        let out = u64::from(peer.calls.len()) + peer.outgoing.unacknowledged();
        let has_room =
            |link: &Link| out + 1 < u64::from(link.credit) && rails[link.rail].credits(link.link) > 0;
        let Some(path) = peer.path(has_room) else {
            // What is not acknowledged takes the receives: its target is asked.
            self.ask(at);
            return Ok(false);
        };
        let sealed = match peer.outgoing.begin() {
            Ok(batch) => peer.outgoing.end(batch, update, false).map_err(|(batch, busy)| {
                peer.outgoing.abandon(batch);
                busy
            }),
            Err(busy) => Err(busy),
        };
        match sealed {
            Ok(Sealed::Message(signal)) => {
                // There is such a peer.
                let _ = self.ledger.signalled(at);
                self.send(at, path, &Message::Signal(signal));
                Ok(true)
            }
            Ok(Sealed::Fenced(_)) => Err(RmaError::Argument("no NIC of this context executes signals")),
            Err(busy) => {
                if busy == Busy::Plain {
                    self.prove(at);
                }
                Ok(false)
            }
        }
    }

    /// Sends a message over a path that has room.
    pub(super) fn send(&mut self, at: u32, path: usize, message: &Message) {
        let link = &self.peers[at as usize].links[path];
        let rail = &mut self.rails[link.rail];
        let (bytes, len) = message.to_bytes();
        let op = Op::Send { head: &bytes[..len], body: From::Inline(&[]), imm: None };
        // A link that takes none has ended, which its completions tell.
        let _ = rail.post(link.link, MESSAGE, op, false);
        rail.flush();
    }

    fn source<'a>(&self, from: Source<'a>) -> Result<(Sourced<'a>, u64), RmaError> {
        match from {
            Source::Bytes(bytes) if bytes.len() as u64 > self.inline_max => {
                Err(RmaError::Argument("more bytes than are copied at once"))
            }
            Source::Bytes(bytes) => Ok((Sourced::Bytes(bytes), bytes.len() as u64)),
            Source::Heap(local) => {
                let memory = self.heaps.get(usize::from(local.heap)).and_then(Heap::memory);
                let memory = memory.ok_or(RmaError::Argument("there is no such heap"))?;
                memory
                    .checked(local.offset, local.len)
                    .map_err(|_| RmaError::Argument("outside of the heap"))?;
                Ok((Sourced::Heap(local), local.len))
            }
        }
    }
}

/// Where bytes come from, once that was checked.
#[derive(Clone, Copy)]
enum Sourced<'a> {
    Bytes(&'a [u8]),
    Heap(Local),
}

impl<'a> Sourced<'a> {
    fn len(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Heap(local) => local.len,
        }
    }

    /// The first of them; bytes go whole.
    fn first(self, len: u64) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes),
            Self::Heap(local) => Self::Heap(Local { len, ..local }),
        }
    }

    fn on(self, heaps: &[Heap], rail: usize) -> Result<From<'a>, RmaError> {
        match self {
            Self::Bytes(bytes) => Ok(From::Inline(bytes)),
            Self::Heap(local) => {
                let mr = heaps.get(usize::from(local.heap)).and_then(|heap| heap.on(rail));
                Ok(From::Region(mr.ok_or(RmaError::Unknown)?.extent(local.offset, local.len)))
            }
        }
    }
}

/// Where bytes of a member's heap are, over a link.
fn remote(link: &Link, heap: u8, offset: u64, len: u64) -> Result<Remote, RmaError> {
    let heap = link.heaps.get(usize::from(heap)).ok_or(RmaError::Argument("the member has no such heap"))?;
    let inside = offset.checked_add(len).is_some_and(|end| end <= heap.len);
    if !inside {
        return Err(RmaError::Argument("outside of the member's heap"));
    }
    let (key, addr) = (RemoteKey(heap.region.key), heap.region.addr.wrapping_add(offset));
    Ok(Remote { key, addr, purpose: Purpose::Bounce })
}
