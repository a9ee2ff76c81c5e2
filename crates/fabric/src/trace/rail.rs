//! A rail that tells a recorder what is posted, what completes, and how its links fare. It changes nothing of what the
//! rail inside does, and never keeps an operation; recorded, it promises fewer copies, so that long operations are
//! signalled and their ends are seen.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_proto::time::Instant;

use super::Recorder;
use super::event::{Event, Kind, Sign, What};
use crate::{
    Caps, Completion, Cq, Done, LinkAddress, LinkError, LinkId, Links, Op, PostError, Rail, Registrar,
    Status, Wake,
};

/// Operations up to this long may stay marks; longer ones are to show how long they take.
const MARK_MAX: u64 = 4096;

/// An open NIC of a [`Traced`](super::Traced) fabric.
#[derive(Debug)]
pub struct TracedRail<R> {
    rail: R,
    track: Option<Box<Track>>,
}

/// What a rail that is recorded has besides.
#[derive(Debug)]
struct Track {
    recorder: Arc<Recorder>,
    nic: u16,
    rail: u32,
    /// Links that were told to be up; at most those of the rail.
    up: Vec<LinkId>,
}

impl Track {
    fn put(&self, at: Instant, link: LinkId, (wr_id, bytes, what): (u64, u64, What)) {
        let nic = self.nic;
        let rail = self.rail;
        self.recorder.put(Event { at: at.0, nic, rail, link, wr_id, bytes, what });
    }

    fn sign(&self, link: LinkId, sign: Sign) {
        self.put(self.recorder.now(), link, (0, 0, What::Link(sign)));
    }

    fn ended(&self, completions: &[Completion]) {
        let now = self.recorder.now();
        for completion in completions {
            self.put(now, completion.link, Event::ended(completion));
        }
    }
}

impl<R: Rail> TracedRail<R> {
    pub(super) fn new(rail: R, nic: usize, recorder: Option<&Arc<Recorder>>) -> Self {
        let track = recorder.map(|recorder| {
            let mixed = recorder.mutant.is("fabric-trace-mixes-rails");
            // No host has more NICs.
            let nic = if mixed { 0 } else { u16::try_from(nic).unwrap_or(u16::MAX) };
            let (recorder, rail) = (Arc::clone(recorder), recorder.add_rail());
            Box::new(Track { recorder, nic, rail, up: Vec::new() })
        });
        Self { rail, track }
    }

    fn sign(&self, link: LinkId, sign: Sign) {
        if let Some(track) = &self.track {
            track.sign(link, sign);
        }
    }

    #[cold]
    #[inline(never)]
    fn post_traced(
        &mut self,
        link: LinkId,
        wr_id: u64,
        op: Op<'_>,
        signalled: bool,
    ) -> Result<(), PostError> {
        // The NIC may be done with it before the post returns.
        let at = self.track.as_ref().map(|track| track.recorder.now());
        let posted = self.rail.post(link, wr_id, op, signalled);
        if let (Some(track), Some(at), Some((kind, bytes)), Ok(())) = (&self.track, at, Kind::of(&op), posted)
        {
            track.put(at, link, (wr_id, bytes, What::Posted { kind, signalled }));
        }
        posted
    }

    #[cold]
    #[inline(never)]
    fn poll_traced(&mut self, out: &mut [Completion]) -> usize {
        let count = self.rail.poll(out);
        if let Some(track) = self.track.as_ref().filter(|_| count > 0) {
            track.ended(&out[..count]);
        }
        count
    }
}

impl<R: Rail> Links for TracedRail<R> {
    fn create(&mut self) -> Result<LinkId, LinkError> {
        let link = self.rail.create()?;
        self.sign(link, Sign::Made);
        Ok(link)
    }

    fn create_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        let link = self.rail.create_on(pipeline)?;
        self.sign(link, Sign::Made);
        Ok(link)
    }

    fn pipeline(&self, link: LinkId) -> Option<u32> {
        self.rail.pipeline(link)
    }

    fn address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        self.rail.address(link)
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        self.rail.connect(link, peer)
    }

    fn is_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        let up = self.rail.is_up(link)?;
        if let Some(track) = self.track.as_mut().filter(|_| up)
            && !track.up.contains(&link)
        {
            track.up.push(link);
            track.sign(link, Sign::Up);
        }
        Ok(up)
    }

    fn rest(&mut self, link: LinkId) -> bool {
        self.rail.rest(link)
    }

    fn look(&mut self, link: LinkId) -> Result<(), LinkError> {
        let seen = self.rail.look(link);
        if seen.is_err() {
            self.sign(link, Sign::Lost);
        }
        seen
    }

    #[inline]
    fn poll_is_call(&self, link: LinkId) -> bool {
        self.rail.poll_is_call(link)
    }

    fn copied_max(&self, link: LinkId) -> u64 {
        let max = self.rail.copied_max(link);
        if self.track.is_some() { max.min(MARK_MAX) } else { max }
    }

    fn fail(&mut self, link: LinkId) {
        self.sign(link, Sign::Fenced);
        self.rail.fail(link);
    }

    fn is_quiet(&mut self, link: LinkId) -> bool {
        self.rail.is_quiet(link)
    }

    fn destroy(&mut self, link: LinkId) {
        self.rail.destroy(link);
        if let Some(track) = &mut self.track {
            track.up.retain(|&up| up != link);
            track.sign(link, Sign::Closed);
        }
    }
}

impl<R: Rail> Rail for TracedRail<R> {
    #[inline]
    fn caps(&self) -> &Caps {
        self.rail.caps()
    }

    fn registrar(&self) -> Arc<dyn Registrar> {
        self.rail.registrar()
    }

    #[inline]
    fn credits(&self, link: LinkId) -> u32 {
        self.rail.credits(link)
    }

    // Inlined, because callers know which operation it is, and so does the rail inside if it is inlined too.
    #[inline(always)]
    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        // Asked first, so that the operation goes on as it came and is not copied for later.
        if self.track.is_some() {
            return self.post_traced(link, wr_id, op, signalled);
        }
        self.rail.post(link, wr_id, op, signalled)
    }

    fn take_back(&mut self, link: LinkId, wr_id: u64) -> bool {
        let taken = self.rail.take_back(link, wr_id);
        if let Some(track) = self.track.as_ref().filter(|_| taken) {
            let done = Done::Posted;
            let status = Status::Flushed;
            track.ended(&[Completion { wr_id, link, done, status, imm: None, len: 0 }]);
        }
        taken
    }

    #[inline]
    fn flush(&mut self) {
        self.rail.flush();
    }

    #[inline]
    fn unsent(&self, link: LinkId) -> u32 {
        self.rail.unsent(link)
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.track.is_some() {
            return self.poll_traced(out);
        }
        self.rail.poll(out)
    }

    #[inline]
    fn cq(&self) -> Option<Cq> {
        self.rail.cq()
    }

    fn arm(&mut self) -> Wake {
        self.rail.arm()
    }

    fn event_descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.rail.event_descriptor()
    }
}
