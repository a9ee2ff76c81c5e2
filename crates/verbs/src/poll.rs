//! Converts the device's completions into those of the contract. Called by the rail's poll; takes completions in batches, and
//! finds the operation by the number it was posted with. Receives that writes with immediate consumed are posted again here.

use trunkline_fabric::{Completion, CompletionKind, LinkId, OpStatus, Rail as _};
use trunkline_sys::verbs::{WC_WITH_IMM, Wc, wc_opcode, wc_status};

use crate::VerbsRail;
use crate::error::{PostedKind, completion_status};
use crate::flusher::FlusherMember;
use crate::link::{VerbsLink, WrIdKind};
use crate::queue::{EndedWork, WorkEntry};

/// The result of processing a completion once.
enum CompletionStep {
    /// No completion for the user; the device's completion is done.
    Nothing,
    /// A completion for the user; the device's completion is done.
    Last(Completion),
    /// A completion for the user, and the device's completion implies more.
    More(Completion),
    /// No completion for the user, but the device's completion implies more.
    Again,
}

fn posted_completion(link: LinkId, entry: WorkEntry, status: OpStatus) -> Completion {
    Completion { wr_id: entry.wr_id, link, done: CompletionKind::Posted, status, imm: None, len: 0 }
}

/// Most batches that one poll handles, which bounds its duration.
const BATCHES: u32 = 64;

impl VerbsRail {
    /// Fills `out` from the front with completions; returns their number. One call of the library, unless that returns a full batch.
    #[inline]
    pub(crate) fn collect_completions(&mut self, out: &mut [Completion]) -> usize {
        let mut count = self.tell_all(out, 0);
        for _ in 0..BATCHES {
            if count == out.len() {
                break;
            }
            let more = self.cq.poll_batch();
            count = self.tell_all(out, count);
            if !more {
                break;
            }
        }
        // Post the receives that immediates consumed before the caller acts on their completions: the peer's reaction may need one.
        self.flush();
        if self.flushes > 0 {
            count = self.tell_flushes(out, count);
        }
        if self.refused.is_empty() { count } else { self.give_back(out, count) }
    }

    /// Converts the completions that were polled, as far as there is room; returns the new count.
    #[inline]
    fn tell_all(&mut self, out: &mut [Completion], mut count: usize) -> usize {
        while count < out.len() {
            let Some(wc) = self.cq.oldest_completion() else { break };
            let told = self.tell_completion(&wc);
            if !matches!(told, CompletionStep::More(_) | CompletionStep::Again) {
                self.cq.pop_oldest();
            }
            if let CompletionStep::Last(one) | CompletionStep::More(one) = told {
                out[count] = one;
                count += 1;
            }
        }
        count
    }

    #[inline]
    fn tell_completion(&mut self, wc: &Wc) -> CompletionStep {
        let Some((kind, place, position)) = WrIdKind::from_wr_id(wc.wr_id) else {
            return CompletionStep::Nothing;
        };
        if kind == WrIdKind::Receive {
            return self.tell_receive(place, position, wc);
        }
        let Some(Some(link)) = self.links.get_mut(place as usize) else { return CompletionStep::Nothing };
        if self.leftovers && wc.qp_num != link.qp.qp_number() {
            return CompletionStep::Nothing;
        }
        if kind == WrIdKind::Mark { tell_mark(link, position) } else { tell_work(link, position, wc) }
    }

    /// Converts the completion of a receive: of a send, of a write with immediate, or of a flushed one.
    #[inline]
    fn tell_receive(&mut self, place: u32, slot: u32, wc: &Wc) -> CompletionStep {
        let Some(Some(link)) = self.links.get_mut(place as usize) else { return CompletionStep::Nothing };
        if self.leftovers && wc.qp_num != link.qp.qp_number() {
            return CompletionStep::Nothing;
        }
        let id = link.id;
        if wc.status != wc_status::SUCCESS {
            link.has_broken();
            let Some(wr_id) = link.receives.end_receive(slot) else { return CompletionStep::Nothing };
            return CompletionStep::Last(received_completion(
                id,
                wr_id,
                completion_status(wc.status, PostedKind::Receive),
            ));
        }
        let len = wc.byte_len.into();
        if wc.opcode == wc_opcode::RECV_RDMA_WITH_IMM {
            self.lend_again(place, slot);
            let done = CompletionKind::Written;
            let imm = Some(u32::from_be(wc.imm_data));
            return CompletionStep::Last(Completion {
                wr_id: 0,
                link: id,
                done,
                status: OpStatus::Ok,
                imm,
                len,
            });
        }
        let Some(wr_id) = link.receives.end_receive(slot) else { return CompletionStep::Nothing };
        let imm = (wc.wc_flags & WC_WITH_IMM != 0).then(|| u32::from_be(wc.imm_data));
        CompletionStep::Last(Completion {
            wr_id,
            link: id,
            done: CompletionKind::Received,
            status: OpStatus::Ok,
            imm,
            len,
        })
    }

    /// Returns the completions of ended flushes, as far as there is room.
    fn tell_flushes(&mut self, out: &mut [Completion], mut count: usize) -> usize {
        while count < out.len() {
            let Some((asked, code)) = self.flusher.as_ref().and_then(FlusherMember::next) else { break };
            self.flushes = self.flushes.saturating_sub(1);
            let Some(Some(link)) = self.links.get_mut(asked.link.0 as usize) else { continue };
            if link.life != asked.life {
                continue;
            }
            link.flushes -= 1;
            let status = match code {
                wc_status::SUCCESS if !asked.told => continue,
                wc_status::SUCCESS => OpStatus::Ok,
                code => completion_status(code, PostedKind::OneSided),
            };
            let entry = WorkEntry { wr_id: asked.wr_id, told: asked.told, is_send: false, half: false };
            out[count] = posted_completion(asked.link, entry, status);
            count += 1;
        }
        count
    }

    /// Completes the requests that the device refused, after all those that it accepted have ended, so that the order is kept.
    #[cold]
    fn give_back(&mut self, out: &mut [Completion], mut count: usize) -> usize {
        let mut at = 0;
        while at < self.refused.len() {
            let place = self.refused[at] as usize;
            let Some(Some(link)) = self.links.get_mut(place) else {
                self.refused.swap_remove(at);
                continue;
            };
            while count < out.len() {
                let Some(one) = next_refused(link) else { break };
                out[count] = one;
                count += 1;
            }
            let over = link.queue.len() == 0 && link.receives.are_with_device();
            if over {
                self.refused.swap_remove(at);
            } else {
                at += 1;
            }
        }
        count
    }
}

/// Removes the oldest request that the device refused, if no accepted one is before it; returns its completion.
fn next_refused(link: &mut VerbsLink) -> Option<Completion> {
    while let Some(entry) = link.queue.drop_oldest() {
        if entry.half {
            continue;
        }
        let refusal = link.half.take().or(link.refusal.take());
        let status = refusal.unwrap_or(OpStatus::Flushed);
        return Some(posted_completion(link.id, entry, status));
    }
    let wr_id = link.receives.drop_oldest()?;
    Some(received_completion(link.id, wr_id, OpStatus::Flushed))
}

fn received_completion(link: LinkId, wr_id: u64, status: OpStatus) -> Completion {
    Completion { wr_id, link, done: CompletionKind::Received, status, imm: None, len: 0 }
}

/// Ends all operations before the mark that was posted last: its completion implies that they have ended.
#[cold]
fn tell_mark(link: &mut VerbsLink, mark: u32) -> CompletionStep {
    match link.queue.end_before(mark) {
        EndedWork::Flushed(entry) if entry.half => CompletionStep::Again,
        EndedWork::Flushed(entry) => {
            let status = link.half.take().unwrap_or(OpStatus::Flushed);
            CompletionStep::More(posted_completion(link.id, entry, status))
        }
        EndedWork::Nobody => CompletionStep::Nothing,
        EndedWork::Silently(_) | EndedWork::This(_) => CompletionStep::Again,
    }
}

#[inline]
fn tell_work(link: &mut VerbsLink, position: u32, wc: &Wc) -> CompletionStep {
    let well = wc.status == wc_status::SUCCESS;
    let id = link.id;
    match link.queue.end_oldest(position, well) {
        EndedWork::Nobody => CompletionStep::Nothing,
        EndedWork::Silently(_) => CompletionStep::Again,
        // Its immediate, the next request, reports the failure.
        EndedWork::Flushed(entry) if entry.half => CompletionStep::Again,
        EndedWork::Flushed(entry) => CompletionStep::More(posted_completion(id, entry, OpStatus::Flushed)),
        EndedWork::This(entry) if well && entry.told => {
            CompletionStep::Last(posted_completion(id, entry, OpStatus::Ok))
        }
        EndedWork::This(_) if well => CompletionStep::Nothing,
        EndedWork::This(entry) => {
            link.has_broken();
            let what = if entry.is_send { PostedKind::Send } else { PostedKind::OneSided };
            let status = completion_status(wc.status, what);
            if entry.half {
                link.half = Some(status);
                return CompletionStep::Nothing;
            }
            CompletionStep::Last(posted_completion(id, entry, link.half.take().unwrap_or(status)))
        }
    }
}
