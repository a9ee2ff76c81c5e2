//! One end of a simulated reliable connection: its queues, how operations leave it, and how it fails. Called by the
//! rail and by the wire.

use std::collections::VecDeque;

use trunkline_fabric::{Completion, CompletionKind, LinkId, OpStatus, RegionExtent, RemoteLocation};

use crate::rail::QueuedCompletion;
use crate::region_bytes::ShadowWrite;
use crate::wire::NetworkEvent;
use crate::world::{SimCore, SimPid};

/// The state of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LinkPhase {
    /// Not connected.
    Made,
    /// Connected from this side.
    Ready,
    /// In error; it can only be destroyed.
    Error,
    /// Its process died; its sent operations may still arrive if `ghost`.
    Dead {
        /// Whether they may.
        ghost: bool,
    },
    /// Destroyed.
    Gone,
}

/// The progress of a connected link towards being up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DialPhase {
    /// It is up; the other end can know that from this time on.
    Up(u64),
    /// It dials; the other end responds from this time on, if it still exists.
    Asks(u64),
    /// It waits for the other end to dial.
    Waits,
    /// The other end never responds; known from this time on.
    Lost(u64),
}

/// The bytes of an operation.
#[derive(Clone, Debug)]
pub(crate) enum SourceBytes {
    Inline(Vec<u8>),
    Region(RegionExtent),
}

impl SourceBytes {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Region(extent) => extent.len,
        }
    }
}

/// A posted operation, except a receive.
#[derive(Clone, Debug)]
pub(crate) enum PostedWork {
    Send {
        head: Vec<u8>,
        body: SourceBytes,
        imm: Option<u32>,
    },
    /// A write. If it is `placed`, it completes only after its bytes have arrived.
    Write {
        from: SourceBytes,
        to: RemoteLocation,
        imm: Option<u32>,
        placed: bool,
    },
    Read {
        into: RegionExtent,
        from: RemoteLocation,
    },
    FetchAdd {
        old: RegionExtent,
        at: RemoteLocation,
        add: u64,
    },
    CompareSwap {
        old: RegionExtent,
        at: RemoteLocation,
        expect: u64,
        swap: u64,
    },
    MatchedSend {
        from: SourceBytes,
        key: u64,
    },
    Flush,
    Nop,
}

impl PostedWork {
    /// Returns the number of bytes that are sent with the request.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Send { head, body, .. } => head.len() as u64 + body.len(),
            Self::Write { from, .. } | Self::MatchedSend { from, .. } => from.len(),
            Self::Read { into, .. } => into.len,
            Self::FetchAdd { .. } | Self::CompareSwap { .. } => 8,
            Self::Flush | Self::Nop => 0,
        }
    }
}

/// The progress of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WorkProgress {
    Posted,
    Departed,
    Done(OpStatus),
}

/// An operation in a link's send queue.
pub(crate) struct SendQueueEntry {
    pub(crate) seq: u64,
    pub(crate) wr_id: u64,
    pub(crate) signalled: bool,
    pub(crate) work: PostedWork,
    pub(crate) progress: WorkProgress,
    /// The target has received its bytes.
    pub(crate) executed: bool,
    /// It was lost with its rail, and may land late.
    pub(crate) haunts: bool,
    /// The target has nothing left to do for it.
    pub(crate) carried_out: bool,
    /// The network has copied its bytes, and completes it before they arrive.
    pub(crate) taken: bool,
    /// It has completed, and is still in flight.
    pub(crate) told: bool,
    /// The status, if its bytes could not be read or placed.
    pub(crate) broken: Option<OpStatus>,
}

/// A receive in a link's receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedReceive {
    pub(crate) wr_id: u64,
    /// The target of the send's bytes.
    pub(crate) into: RegionExtent,
}

/// One end of a connection.
pub(crate) struct LinkEntry {
    pub(crate) rail: usize,
    pub(crate) id: u32,
    pub(crate) secret: u64,
    pub(crate) phase: LinkPhase,
    pub(crate) remote: Option<usize>,
    pub(crate) dial: DialPhase,
    pub(crate) next_seq: u64,
    /// Operations before this number were passed to the network.
    pub(crate) flushed: u64,
    pub(crate) sends: VecDeque<SendQueueEntry>,
    /// Send slots in use: operations, and signalled completions that were not polled yet.
    pub(crate) slots: u32,
    pub(crate) recvs: VecDeque<QueuedReceive>,
    /// Receives that immediates consumed, until those are polled; in the order of both.
    pub(crate) lent: VecDeque<QueuedReceive>,
    pub(crate) matched: VecDeque<(u64, u64, RegionExtent)>,
    /// Matched sends of the peer without a receive: key and operation.
    pub(crate) parked: VecDeque<(u64, u64)>,
    /// Operations of the peer that have arrived, but are not carried out yet.
    pub(crate) arrived: VecDeque<u64>,
    pub(crate) shadow: Vec<ShadowWrite>,
    /// Its rail died, so the link will break.
    pub(crate) stranded: bool,
    /// When the wire is free again.
    pub(crate) free_at: u64,
    pub(crate) last_arrival: u64,
    pub(crate) last_ack: u64,
}

impl LinkEntry {
    pub(crate) fn new(rail: usize, id: u32, secret: u64) -> Self {
        Self {
            rail,
            id,
            secret,
            phase: LinkPhase::Made,
            remote: None,
            dial: DialPhase::Up(0),
            next_seq: 0,
            flushed: 0,
            sends: VecDeque::new(),
            slots: 0,
            recvs: VecDeque::new(),
            lent: VecDeque::new(),
            matched: VecDeque::new(),
            parked: VecDeque::new(),
            arrived: VecDeque::new(),
            shadow: Vec::new(),
            stranded: false,
            free_at: 0,
            last_arrival: 0,
            last_ack: 0,
        }
    }

    pub(crate) fn send_entry(&mut self, seq: u64) -> Option<&mut SendQueueEntry> {
        let at = self.sends.binary_search_by_key(&seq, |wqe| wqe.seq).ok()?;
        self.sends.get_mut(at)
    }

    /// Returns the number of operations that were not passed to the network, except matched sends.
    pub(crate) fn unsent_count(&self) -> usize {
        let waiting = self.sends.iter().rev().take_while(|wqe| wqe.seq >= self.flushed);
        waiting.filter(|wqe| !matches!(wqe.work, PostedWork::MatchedSend { .. })).count()
    }
}

impl SimCore {
    /// Returns the other end, if both ends are connected to each other and work.
    pub(crate) fn reachable_peer(&self, link: usize) -> Option<usize> {
        let remote = self.links[link].remote?;
        let peer = self.links.get(remote)?;
        if self.is_cut(link) || self.links[link].stranded || peer.stranded {
            return None;
        }
        (peer.phase == LinkPhase::Ready && peer.remote == Some(link)).then_some(remote)
    }

    /// Moves finished operations to the completion queue: in order, if the network keeps an order.
    pub(crate) fn retire_sends(&mut self, link: usize) {
        let mut at = 0;
        while let Some(wqe) = self.links[link].sends.get(at) {
            match wqe.progress {
                WorkProgress::Done(OpStatus::Ok) => {
                    let Some(wqe) = self.links[link].sends.remove(at) else { return };
                    self.finish_send(link, &wqe);
                }
                // A receive that is too short does not break the link.
                WorkProgress::Done(OpStatus::TooLong)
                    if matches!(wqe.work, PostedWork::MatchedSend { .. }) =>
                {
                    let Some(wqe) = self.links[link].sends.remove(at) else { return };
                    self.queue_completion(
                        link,
                        wqe.wr_id,
                        CompletionKind::Posted,
                        OpStatus::TooLong,
                        None,
                        0,
                        true,
                        None,
                    );
                }
                WorkProgress::Done(status) => {
                    let seq = wqe.seq;
                    self.break_link(link, Some((seq, status)));
                    return;
                }
                _ if wqe.taken => {
                    self.report_taken(link, at);
                    at += 1;
                }
                // A matched send without a receive does not block later operations.
                _ if self.weather.caps.link_order && !matches!(wqe.work, PostedWork::MatchedSend { .. }) => {
                    return;
                }
                _ => at += 1,
            }
        }
    }

    /// Carries out a flush on a link in error: it makes the bytes visible that have arrived.
    pub(crate) fn flush_alone(&mut self, link: usize, wr_id: u64, signalled: bool) {
        let entry = &mut self.links[link];
        let seq = entry.next_seq;
        entry.next_seq += 1;
        entry.slots += 1;
        self.mark_shadow(link, seq);
        self.reveal_shadow(link, seq);
        if signalled {
            self.queue_completion(link, wr_id, CompletionKind::Posted, OpStatus::Ok, None, 0, true, None);
        } else {
            self.links[link].slots -= 1;
        }
    }

    fn finish_send(&mut self, link: usize, wqe: &SendQueueEntry) {
        if let PostedWork::Flush = wqe.work {
            self.reveal_shadow(link, wqe.seq);
        }
        if wqe.told {
            return;
        }
        if wqe.signalled {
            self.queue_completion(link, wqe.wr_id, CompletionKind::Posted, OpStatus::Ok, None, 0, true, None);
        } else {
            self.links[link].slots -= 1;
        }
    }

    /// Queues a completion of `link`; once it has room, the peer's operation `ack` is acknowledged.
    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    pub(crate) fn queue_completion(
        &mut self,
        link: usize,
        wr_id: u64,
        done: CompletionKind,
        status: OpStatus,
        imm: Option<u32>,
        len: u64,
        frees_slot: bool,
        ack: Option<u64>,
    ) {
        let rail = self.links[link].rail;
        let id = self.links[link].id;
        let completion = Completion { wr_id, link: LinkId(id), done, status, imm, len };
        self.rails[rail].waiting.push_back(QueuedCompletion { completion, link, frees_slot, ack });
        self.fill_queue(rail);
    }

    /// Puts a link into error: operation `first` fails with its status, all others are flushed.
    pub(crate) fn break_link(&mut self, link: usize, first: Option<(u64, OpStatus)>) {
        if !matches!(self.links[link].phase, LinkPhase::Made | LinkPhase::Ready) {
            return;
        }
        self.links[link].phase = LinkPhase::Error;
        let name = self.link_name(link);
        self.note_trace(format_args!("{name} breaks: {:?}", first.map(|(_, status)| status)));
        let mut sends = std::mem::take(&mut self.links[link].sends);
        if let Some((seq, status)) = first
            && let Some(at) = sends.iter().position(|wqe| wqe.seq == seq)
            && !matches!(sends[at].work, PostedWork::Flush)
            && let Some(wqe) = sends.remove(at)
            && !wqe.told
        {
            self.queue_completion(link, wqe.wr_id, CompletionKind::Posted, status, None, 0, true, None);
        }
        for wqe in sends.into_iter().filter(|wqe| !wqe.told) {
            if let PostedWork::Flush = wqe.work {
                self.finish_send(link, &wqe);
            } else {
                self.queue_completion(
                    link,
                    wqe.wr_id,
                    CompletionKind::Posted,
                    OpStatus::Flushed,
                    None,
                    0,
                    true,
                    None,
                );
            }
        }
        let recvs = std::mem::take(&mut self.links[link].recvs);
        let matched = std::mem::take(&mut self.links[link].matched);
        let receives = recvs.iter().map(|receive| receive.wr_id).chain(matched.iter().map(|(_, id, _)| *id));
        for wr_id in receives {
            self.queue_completion(
                link,
                wr_id,
                CompletionKind::Received,
                OpStatus::Flushed,
                None,
                0,
                false,
                None,
            );
        }
        self.forget_incoming(link);
    }

    /// Cancels a matched operation that was not matched yet.
    pub(crate) fn take_back(&mut self, link: usize, wr_id: u64) -> bool {
        let peer = self.links[link].remote;
        let entry = &mut self.links[link];
        if let Some(at) = entry.matched.iter().position(|&(_, known, _)| known == wr_id) {
            entry.matched.remove(at);
            return true;
        }
        // A matched operation is done, or will be soon; one in flight finds nothing when it arrives.
        let waits = |wqe: &SendQueueEntry| {
            let open = !matches!(wqe.progress, WorkProgress::Done(_)) && !wqe.executed;
            open && wqe.wr_id == wr_id && matches!(wqe.work, PostedWork::MatchedSend { .. })
        };
        let Some(at) = entry.sends.iter().position(waits) else { return false };
        let Some(wqe) = entry.sends.remove(at) else { return false };
        entry.slots -= 1;
        if let Some(peer) = peer {
            self.links[peer].parked.retain(|&(_, seq)| seq != wqe.seq);
        }
        true
    }

    fn forget_incoming(&mut self, link: usize) {
        let entry = &mut self.links[link];
        entry.arrived.clear();
        entry.parked.clear();
        // Writes that have arrived completely still need only their flush.
        entry.shadow.retain(|shadow| shadow.complete);
        if let Some(remote) = entry.remote {
            self.schedule_after(self.weather.retry_time, NetworkEvent::Check { link: remote });
        }
    }

    /// Destroys a link: its completions are dropped, and nothing lands any more.
    pub(crate) fn destroy_link(&mut self, link: usize) {
        if self.links[link].phase == LinkPhase::Gone {
            return;
        }
        let rail = self.links[link].rail;
        let id = self.links[link].id;
        let entry = &mut self.links[link];
        entry.phase = LinkPhase::Gone;
        entry.sends.clear();
        entry.recvs.clear();
        entry.lent.clear();
        entry.matched.clear();
        self.forget_incoming(link);
        let rail = &mut self.rails[rail];
        rail.waiting.retain(|waiting| waiting.link != link);
        rail.queue.retain(|waiting| waiting.link != link);
        if let Some(slot) = rail.links.get_mut(id as usize) {
            *slot = None;
        }
        self.links[link].shadow.clear();
        let name = self.link_name(link);
        self.note_trace(format_args!("{name} is destroyed"));
    }

    /// Stops every link of a dead process; operations in the network may still arrive.
    pub(crate) fn kill_links_of(&mut self, process: SimPid) {
        let ghost = self.dice.coin();
        for link in 0..self.links.len() {
            let entry = &self.links[link];
            if self.rails[entry.rail].process == process && entry.phase != LinkPhase::Gone {
                self.links[link].phase = LinkPhase::Dead { ghost };
                self.forget_incoming(link);
            }
        }
    }

    /// Puts one working link into error; returns the processes at its ends.
    pub(crate) fn flap_one(&mut self) -> Option<(SimPid, SimPid)> {
        let process = |link: usize| self.rails[self.links[link].rail].process;
        let working: Vec<(usize, SimPid, SimPid)> = (0..self.links.len())
            .filter(|&link| self.links[link].phase == LinkPhase::Ready)
            .filter_map(|link| Some((link, process(link), process(self.links[link].remote?))))
            .collect();
        let (link, one, other) = *working.get(self.dice.below(working.len() as u64) as usize)?;
        self.break_link(link, None);
        Some((one, other))
    }

    /// Returns the name of the link for a trace.
    pub(crate) fn link_name(&self, link: usize) -> String {
        if !self.trace.is_on() {
            return String::new();
        }
        let entry = &self.links[link];
        let peer = entry
            .remote
            .map_or_else(String::new, |peer| format!("->{}", self.rails[self.links[peer].rail].process));
        format!("{}{peer} link {}#{link}", self.rails[entry.rail].process, entry.id)
    }
}
