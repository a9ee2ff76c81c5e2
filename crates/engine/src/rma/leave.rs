//! How a context loses a path to a member, and a member. A path is left at both ends before what went over it is done again over the
//! others; a member is lost with its last path, or with its process. Called when something fails, and then by each turn until it
//! is over; the rules are `trunkline_proto::rma::{paths, redo}`'s.

use trunkline_fabric::{LinkError, Rail, Status};
use trunkline_proto::id::ProcessId;
use trunkline_proto::rma::Path;
use trunkline_proto::rma::paths::{Stage, Step};
use trunkline_proto::rma::redo::{Again, Redo};
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::dial::{EPOCHS_MAX, Word};
use trunkline_proto::wire::rma::Message;

use crate::rma::context::{Context, Note, Told};
use crate::rma::error::Lost;
use crate::rma::peer::Peer;

/// Turns between two looks at the clock.
const TURNS: u32 = 64;
/// How often the network is asked whether a link still carries, while the time limit for that passes.
const LOOKS_IN_RAIL_TIME: u64 = 16;

impl<R: Rail> Context<R> {
    /// A link has failed at this end.
    #[cold]
    pub(super) fn fail(&mut self, at: u32, path: Path, status: Status) {
        let peer = &mut self.peers[at as usize];
        if peer.lost.is_some() {
            return;
        }
        // That would fail on any path.
        if !status.is_of_link() {
            return self.lose(at, path, Lost::Rails { rail: path.index(), status });
        }
        if peer.paths.stage(path) != Stage::Asked {
            let step = peer.paths.on_failed(path);
            self.do_step(at, path, step, status);
        }
    }

    pub(super) fn do_step(&mut self, at: u32, path: Path, step: Step, status: Status) {
        let peer = &mut self.peers[at as usize];
        let link = &peer.links[path.index()];
        match step {
            Step::Nothing => {}
            Step::Leave { say } => {
                self.rails[link.rail].fail(link.link);
                if say {
                    self.words.push((peer.control, Word::Down { served: link.served }));
                }
                self.attend(at);
            }
            Step::Last => self.lose(at, path, Lost::Rails { rail: path.index(), status }),
        }
    }

    /// There is something to do for a peer.
    pub(super) fn attend(&mut self, at: u32) {
        if !self.busy.contains(&at) {
            self.busy.push(at);
        }
    }

    /// A control stream has ended, and with it the process that it led to.
    pub(super) fn on_lost(&mut self, control: SlotId, processes: &[ProcessId]) {
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            if peer.control == control
                && let Some(&process) = processes.get(peer.member as usize)
                && let Some(path) = Path::new(0)
            {
                self.lose(at as u32, path, Lost::Dead(process));
                // Its links may have failed before: that said nothing of the process.
                self.peers[at].lost = Some(Lost::Dead(process));
            }
        }
    }

    /// A member cannot be reached any more: nothing is under way towards it, and what was has failed.
    #[cold]
    pub(super) fn lose(&mut self, at: u32, path: Path, lost: Lost) {
        let Some(peer) = self.peers.get_mut(at as usize).filter(|peer| peer.lost.is_none()) else { return };
        peer.lost = Some(lost);
        let asked = peer.on_nic.iter_mut().chain([&mut peer.asked]);
        asked.flat_map(|asked| asked.found.iter_mut()).for_each(|found| found.1 = None);
        (peer.sending, peer.redo) = (None, Redo::new(self.mutant));
        peer.steps.clear();
        if !matches!(lost, Lost::Dead(_)) {
            self.words.push((peer.control, Word::Leave { stream: self.stream }));
        }
        self.why = match lost {
            Lost::Rails { status, .. } => status,
            Lost::Dead(_) | Lost::Refused(_) | Lost::NoMemory(_) | Lost::Protocol => Status::PeerDead,
        };
        let links = peer.links.len() as u8;
        for path in (0..links).filter_map(Path::new) {
            self.destroy(at, path);
        }
        self.tell_lost(at);
        self.ledger.lose(at, path, |_| ());
    }

    /// Ends a link at this side: nothing of it is told any more, and nothing lands.
    pub(super) fn destroy(&mut self, at: u32, path: Path) {
        let link = &mut self.peers[at as usize].links[path.index()];
        if !std::mem::replace(&mut link.exists, false) {
            return;
        }
        self.rails[link.rail].fail(link.link);
        self.rails[link.rail].destroy(link.link);
        if let Some(name) = self.names[link.rail].get_mut(link.link.0 as usize) {
            *name = None;
        }
        (link.proving, link.bytes) = (0, 0);
        link.unproven.clear();
        link.proofs.clear();
    }

    /// Goes on with what lost paths leave to be done, and with puts with signal. Whether anything moved.
    #[inline]
    pub(super) fn go_on(&mut self) -> bool {
        !self.busy.is_empty() && self.go_on_with_all()
    }

    #[cold]
    fn go_on_with_all(&mut self) -> bool {
        let mut moved = false;
        let mut left = std::mem::take(&mut self.busy);
        left.retain(|&at| {
            moved |= self.settle(at) | self.redo(at) | self.go_on_sending(at) | self.go_on_stepping(at);
            self.peers[at as usize].has_work()
        });
        // What a step has added meanwhile.
        for at in self.busy.drain(..) {
            if !left.contains(&at) {
                left.push(at);
            }
        }
        self.busy = left;
        moved
    }

    /// Paths that both ends have left.
    fn settle(&mut self, at: u32) -> bool {
        let mut moved = false;
        for path in (0..self.peers[at as usize].links.len() as u8).filter_map(Path::new) {
            let peer = &mut self.peers[at as usize];
            if peer.lost.is_some() || peer.paths.stage(path) != Stage::Leaving {
                continue;
            }
            let link = &peer.links[path.index()];
            let is_quiet = !link.exists || self.rails[link.rail].is_quiet(link.link);
            let Some(standing) = peer.paths.settle(path, is_quiet) else { continue };
            moved = true;
            self.destroy(at, path);
            let peer = &mut self.peers[at as usize];
            peer.asks = true;
            let outgoing = &mut peer.outgoing;
            let ledger = &mut self.ledger;
            if peer.redo.settle((at, path), &standing, outgoing, ledger, Note::kind).is_err() {
                self.lose(at, path, Lost::Protocol);
            }
        }
        moved
    }

    /// Does again what is due, as far as there is room.
    fn redo(&mut self, at: u32) -> bool {
        let mut moved = false;
        // Nobody may be in a quiet: a signal waits at its target until what was written again has arrived.
        if !self.peers[at as usize].redo.is_empty() && !self.mutant.is("job-proves-only-in-quiets") {
            self.prove(at);
        }
        if self.peers[at as usize].asks {
            self.peers[at as usize].asks = !self.ask(at);
        }
        loop {
            let peer = &mut self.peers[at as usize];
            let rails = &self.rails;
            while let Some(lost) = peer.redo.make_up(EPOCHS_MAX) {
                self.words.push((peer.control, Word::MakeUp { stream: self.stream, lost }));
            }
            let Some(again) = peer.redo.next() else { return moved };
            let Some((path, _)) = peer.path(|link| rails[link.rail].credits(link.link) > 0) else {
                return moved;
            };
            peer.redo.took();
            moved = true;
            match again {
                Again::Signal(number, signal) => {
                    peer.outgoing.sent_over(number, path);
                    self.send(at, path, &Message::Signal(signal));
                }
                Again::Op(id) => self.do_again(at, path, id),
            }
        }
    }

    fn do_again(&mut self, at: u32, path: Path, id: SlotId) {
        let Some(note) = self.ledger.note_mut(id) else { return };
        if let Note::Put(_, told @ Told::Counted(_)) = note {
            *told = Told::Rewritten;
        }
        let note = *note;
        // It is under way.
        let _ = self.ledger.moved(id, path);
        match note {
            Note::Put(..) | Note::Get(_) => self.post(at, path, id, note, (None, None)),
            // There was one path only, and with it the member is lost.
            Note::Native(..) => {}
            Note::Call(slot) => {
                let calls = &mut self.peers[at as usize].asked.calls;
                let again = calls.again(slot).filter(|_| !self.mutant.is("job-forgets-lost-requests"));
                let Some(request) = again else { return };
                // Both ends have left the path that it went over, so this is the only message with it; the reply tells that it
                // has come.
                calls.on_copy_gone(slot);
                self.send(at, path, &Message::Request(request));
            }
        }
    }

    /// Asks the network now and then whether links still carry that something is waited for on: what was posted may never
    /// complete.
    #[inline]
    pub(super) fn tend(&mut self, now: impl Fn() -> Instant, rail_time: Duration) {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS) {
            self.look_at_links(now(), rail_time);
        }
    }

    #[cold]
    fn look_at_links(&mut self, now: Instant, rail_time: Duration) {
        if now - self.looked < Duration(rail_time.0 / LOOKS_IN_RAIL_TIME) || self.mutant.is("job-never-looks")
        {
            return;
        }
        self.looked = now;
        for at in 0..self.peers.len() {
            for path in (0..self.peers[at].links.len() as u8).filter_map(Path::new) {
                let peer = &self.peers[at];
                let waits = peer.lost.is_none() && self.ledger.pending(at as u32) > 0;
                let link = &peer.links[path.index()];
                if !waits || !peer.paths.carries(path) {
                    continue;
                }
                let looked: Result<(), LinkError> = self.rails[link.rail].look(link.link);
                if looked.is_err() {
                    self.fail(at as u32, path, Status::PeerDead);
                }
            }
        }
    }

    /// Whether nothing is under way, nor anything to be said of it; asks for what has to be asked for.
    pub(super) fn is_idle(&mut self) -> bool {
        for at in 0..self.peers.len() as u32 {
            if self.peers[at as usize].lost.is_none() {
                self.is_still(at);
            }
        }
        let (began, ended) = self.ledger.counts();
        began == ended && self.busy.is_empty() && self.words.is_empty()
    }

    /// Whether something is under way, or is to be.
    pub(super) fn has_begun(&self) -> bool {
        let coming = |peer: &Peer| peer.lost.is_none() && peer.paths.are_coming();
        !self.ledger.is_idle()
            || !self.busy.is_empty()
            || !self.words.is_empty()
            || self.peers.iter().any(coming)
    }

    /// What is to be said to those whom this context has links to, as it ends.
    pub(super) fn farewell(&self) -> impl Iterator<Item = (SlotId, Word)> {
        let lives = self.peers.iter().filter(|peer| peer.lost.is_none());
        let silent = self.mutant.is("job-takes-no-leave");
        lives.filter(move |_| !silent).map(|peer| (peer.control, Word::Leave { stream: self.stream }))
    }
}
