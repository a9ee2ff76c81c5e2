//! A rail that records posts, completions and the changes of its links. It does not change the behaviour of the
//! rail inside, and never keeps an operation. When recorded, it promises fewer copies, so that long operations are
//! signalled and their ends are seen.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trunkline_proto::time::Instant;

use super::EventRecorder;
use super::event::{EventDetail, LinkEvent, RailEvent, TracedOpKind};
use crate::{
    Caps, Completion, CompletionKind, CqPosition, LinkAddress, LinkControl, LinkError, LinkId,
    MemoryRegistrar, Op, OpStatus, PostError, Rail, WaitMethod,
};

/// Operations up to this many bytes may stay marks; longer ones must show their duration.
const MARK_MAX: u64 = 4096;

/// An open NIC of a [`TracedFabric`](super::TracedFabric) fabric.
#[derive(Debug)]
pub struct TracedRail<R> {
    rail: R,
    track: Option<Box<RailTrack>>,
}

/// The additional state of a rail that is recorded.
#[derive(Debug)]
struct RailTrack {
    recorder: Arc<EventRecorder>,
    nic: u16,
    rail: u32,
    /// Links whose connection was recorded; at most those of the rail.
    up: Vec<LinkId>,
}

impl RailTrack {
    fn record_event(&self, at: Instant, link: LinkId, wr_id: u64, bytes: u64, what: EventDetail) {
        let nic = self.nic;
        let rail = self.rail;
        self.recorder.put_event(RailEvent { at: at.0, nic, rail, link, wr_id, bytes, what });
    }

    fn record_link_event(&self, link: LinkId, sign: LinkEvent) {
        self.record_event(self.recorder.now(), link, 0, 0, EventDetail::Link(sign));
    }

    fn record_completions(&self, completions: &[Completion]) {
        let now = self.recorder.now();
        for completion in completions {
            let (wr_id, bytes, what) = RailEvent::completion_detail(completion);
            self.record_event(now, completion.link, wr_id, bytes, what);
        }
    }
}

impl<R: Rail> TracedRail<R> {
    pub(super) fn new(rail: R, nic: usize, recorder: Option<&Arc<EventRecorder>>) -> Self {
        let track = recorder.map(|recorder| {
            // A host has fewer NICs than the type can number.
            let nic = u16::try_from(nic).unwrap_or(u16::MAX);
            let (recorder, rail) = (Arc::clone(recorder), recorder.add_rail());
            Box::new(RailTrack { recorder, nic, rail, up: Vec::new() })
        });
        Self { rail, track }
    }

    fn record_link_event(&self, link: LinkId, sign: LinkEvent) {
        if let Some(track) = &self.track {
            track.record_link_event(link, sign);
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
        // The time is read first: the NIC may finish the operation before the post returns.
        let at = self.track.as_ref().map(|track| track.recorder.now());
        let posted = self.rail.post(link, wr_id, op, signalled);
        if let (Some(track), Some(at), Some((kind, bytes)), Ok(())) =
            (&self.track, at, TracedOpKind::classify_op(&op), posted)
        {
            track.record_event(at, link, wr_id, bytes, EventDetail::Posted { kind, signalled });
        }
        posted
    }

    #[cold]
    #[inline(never)]
    fn poll_traced(&mut self, out: &mut [Completion]) -> usize {
        let count = self.rail.poll(out);
        if let Some(track) = self.track.as_ref().filter(|_| count > 0) {
            track.record_completions(&out[..count]);
        }
        count
    }
}

impl<R: Rail> LinkControl for TracedRail<R> {
    fn create_link(&mut self) -> Result<LinkId, LinkError> {
        let link = self.rail.create_link()?;
        self.record_link_event(link, LinkEvent::Made);
        Ok(link)
    }

    fn create_link_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        let link = self.rail.create_link_on(pipeline)?;
        self.record_link_event(link, LinkEvent::Made);
        Ok(link)
    }

    fn link_pipeline(&self, link: LinkId) -> Option<u32> {
        self.rail.link_pipeline(link)
    }

    fn link_address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        self.rail.link_address(link)
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        self.rail.connect(link, peer)
    }

    fn poll_link_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        let up = self.rail.poll_link_up(link)?;
        if let Some(track) = self.track.as_mut().filter(|_| up)
            && !track.up.contains(&link)
        {
            track.up.push(link);
            track.record_link_event(link, LinkEvent::Up);
        }
        Ok(up)
    }

    fn trim_idle_memory(&mut self, link: LinkId) -> bool {
        self.rail.trim_idle_memory(link)
    }

    fn check_link(&mut self, link: LinkId) -> Result<(), LinkError> {
        let seen = self.rail.check_link(link);
        if seen.is_err() {
            self.record_link_event(link, LinkEvent::Lost);
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

    fn fail_link(&mut self, link: LinkId) {
        self.record_link_event(link, LinkEvent::Fenced);
        self.rail.fail_link(link);
    }

    fn poll_link_quiet(&mut self, link: LinkId) -> bool {
        self.rail.poll_link_quiet(link)
    }

    fn destroy_link(&mut self, link: LinkId) {
        self.rail.destroy_link(link);
        if let Some(track) = &mut self.track {
            track.up.retain(|&up| up != link);
            track.record_link_event(link, LinkEvent::Closed);
        }
    }
}

impl<R: Rail> Rail for TracedRail<R> {
    #[inline]
    fn caps(&self) -> &Caps {
        self.rail.caps()
    }

    fn registrar(&self) -> Arc<dyn MemoryRegistrar> {
        self.rail.registrar()
    }

    #[inline]
    fn post_credits(&self, link: LinkId) -> u32 {
        self.rail.post_credits(link)
    }

    // Inlined, because callers pass a constant kind of operation, and the inner rail benefits too if it is inlined.
    #[inline(always)]
    fn post(&mut self, link: LinkId, wr_id: u64, op: Op<'_>, signalled: bool) -> Result<(), PostError> {
        // Tested first, so that an untraced operation is passed on as it is and not copied for later.
        if self.track.is_some() {
            return self.post_traced(link, wr_id, op, signalled);
        }
        self.rail.post(link, wr_id, op, signalled)
    }

    fn take_back(&mut self, link: LinkId, wr_id: u64) -> bool {
        let taken = self.rail.take_back(link, wr_id);
        if let Some(track) = self.track.as_ref().filter(|_| taken) {
            let done = CompletionKind::Posted;
            let status = OpStatus::Flushed;
            track.record_completions(&[Completion { wr_id, link, done, status, imm: None, len: 0 }]);
        }
        taken
    }

    #[inline]
    fn flush(&mut self) {
        self.rail.flush();
    }

    #[inline]
    fn unsent_ops(&self, link: LinkId) -> u32 {
        self.rail.unsent_ops(link)
    }

    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.track.is_some() {
            return self.poll_traced(out);
        }
        self.rail.poll(out)
    }

    #[inline]
    fn cq_position(&self) -> Option<CqPosition> {
        self.rail.cq_position()
    }

    fn arm_wait(&mut self) -> WaitMethod {
        self.rail.arm_wait()
    }

    fn event_descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.rail.event_descriptor()
    }
}
