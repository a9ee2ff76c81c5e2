//! The calls front ends make. None blocks, except that registering, closing and setting up wait for a lane in use.

use std::sync::atomic::{AtomicBool, Ordering};

use spin::mutex::SpinMutex;

use trunkline_fabric::{Fabric, Host, Nic, Rail};
use trunkline_proto::counters::Counters;
use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::RECV_BUFFERS_MAX;
use trunkline_proto::pool::group::GroupId;

use crate::comm::outgoing::Message;
use crate::comm::request::{Outcome, Ticket};
use crate::comm::{Comm, Comms};
use crate::control::linger::Lingering;
use crate::control::{Around, Control};
use crate::lane::Lane;
use crate::memory::regions::NO_MR;
use crate::pool::groups::{Group, Groups, Seat, Turn};
use crate::pool::member::Side;
use crate::pool::ride::new_control;
use crate::status::Status as Shown;
use crate::{CommFault, CommId, Error, MrId, Nics, Params, RequestId};

/// Eager messages whose records were not read yet, above which an isend reads records first.
const UNMATCHED_MAX: usize = 24;

/// Fruitless polls of a lane after which its thread also polls others.
const HELP_AFTER: u32 = 4;

/// One buffer of a receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecvBuf {
    /// The region it lies in.
    pub mr: MrId,
    /// Its first byte, counted as the call's [`Base`] says.
    pub offset: u64,
    /// Its length in bytes; a message may be shorter.
    pub len: u64,
    /// The tag of the message it is for.
    pub tag: u32,
}

/// What the first byte of a buffer is counted from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Base {
    /// The start of its region.
    Region,
    /// Address 0: it is an address of this process.
    Address,
}

/// Trunkline over one fabric, for one process (or one of several in the simulator).
pub struct Engine<F: Fabric, H: Host> {
    pub(crate) comms: Comms,
    pub(crate) groups: Groups<F::Rail>,
    pub(crate) control: Lane<Control<H, F::Rail>>,
    pub(crate) lingering: Lane<Vec<Lingering>>,
    /// Closed comms wait for a turn of their group that nobody else has.
    pub(crate) owes: AtomicBool,
    /// Groups whose links have ended, for the pool to know.
    pub(crate) broken: SpinMutex<Vec<GroupId>>,
    pub(crate) has_broken: AtomicBool,
    pub(crate) fabric: F,
    pub(crate) host: H,
    pub(crate) params: Params,
    pub(crate) status: Shown,
    pub(crate) process: ProcessId,
}

impl<F: Fabric, H: Host> Engine<F, H> {
    /// An engine over `fabric`. Nothing listens or is connected yet.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn new(fabric: F, host: H, params: Params) -> Result<Self, Error> {
        let process = ProcessId(host.random());
        let status = Shown::new(&fabric, &host, &params, process);
        let control = new_control(&fabric, &host, &params, process);
        Ok(Self {
            comms: Comms::new(crate::status::rows(&params))?,
            // Those whose comms are closed may linger.
            groups: Groups::new(2 * crate::status::rows(&params), params.mutant)?,
            control: Lane::new(control, params.mutant),
            lingering: Lane::new(Vec::new(), params.mutant),
            owes: AtomicBool::new(false),
            broken: SpinMutex::new(Vec::new()),
            has_broken: AtomicBool::new(false),
            fabric,
            host,
            params,
            status,
            process,
        })
    }

    /// The NICs of the fabric.
    pub fn nics(&self) -> &[Nic] {
        self.fabric.nics()
    }

    /// The fabric.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The machine.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// This process.
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.status.counters(self.comms.counts())
    }

    /// Open comms, lanes that linger after close, and control streams: for leak checks.
    pub fn in_use(&self) -> (usize, usize, usize) {
        (self.comms.open(), self.lingering.claim().len(), self.control.claim().streams())
    }

    /// Starts a send. `None` means not yet: call again with the same arguments.
    ///
    /// # Errors
    /// [`Error::Comm`] once the comm has failed; [`Error::Argument`] if the region does not hold the bytes.
    #[inline]
    pub fn isend(
        &self,
        comm: CommId,
        mr: MrId,
        offset: u64,
        len: u64,
        tag: u32,
    ) -> Result<Option<RequestId>, Error> {
        self.isend_from(comm, Base::Region, RecvBuf { mr, offset, len, tag })
    }

    /// [`Engine::isend`], for a buffer whose first byte is counted from `base`.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    #[inline]
    pub fn isend_from(&self, comm: CommId, base: Base, buffer: RecvBuf) -> Result<Option<RequestId>, Error> {
        let slot = self.comm(comm)?;
        let seat = slot.seat();
        let Some(mut lane) = self.groups.try_claim(seat) else { return Ok(None) };
        let Some(mut turn) = turn_of(&mut lane, seat, comm) else { return Err(Error::Unknown("connection")) };
        let turn = &mut turn;
        let Turn { open, rails, .. } = turn;
        if let Some(fault) = open.fault {
            return Err(fault.into());
        }
        slot.adopt();
        if open.link_down {
            self.progress(slot, turn);
            return turn.open.fault.map_or(Ok(None), |fault| Err(fault.into()));
        }
        let Side::Send(side) = &mut open.side else { return Err(Error::Argument("not a sending comm")) };
        if side.many.is_some() {
            side.set_time(self.host.now());
        }
        let Some(RecvBuf { mr, offset, len, tag }) = side.regions.locate(base, buffer) else {
            return Err(Error::Argument("the region does not hold these bytes"));
        };
        let message = Message { mr, offset, len, tag };
        let mut started = if len > side.plan.blind_max || side.unmatched() >= UNMATCHED_MAX {
            // Worth a look for the clear-to-send record: what goes eagerly is copied once more.
            Ok(None)
        } else {
            side.isend(rails, &slot.requests, message)
        };
        if let Ok(None) = started {
            self.progress(slot, turn);
            if let Some(fault) = turn.open.fault {
                return Err(fault.into());
            }
            let Side::Send(side) = &mut turn.open.side else { return Ok(None) };
            started = side.isend(turn.rails, &slot.requests, message);
        }
        if let Side::Send(side) = &turn.open.side {
            slot.send_due.store(side.is_due(turn.rails), Ordering::Relaxed);
        }
        let started = self.started(slot, turn, started);
        if let Ok(None) = started {
            drop(lane);
            self.pay();
        }
        started
    }

    /// Starts a receive of 1 to 8 buffers. `None` means not yet: call again with the same arguments.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    #[inline]
    pub fn irecv(&self, comm: CommId, buffers: &[RecvBuf]) -> Result<Option<RequestId>, Error> {
        self.irecv_into(comm, Base::Region, buffers)
    }

    /// [`Engine::irecv`], for buffers whose first bytes are counted from `base`.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    #[inline]
    pub fn irecv_into(
        &self,
        comm: CommId,
        base: Base,
        buffers: &[RecvBuf],
    ) -> Result<Option<RequestId>, Error> {
        let slot = self.comm(comm)?;
        if buffers.is_empty() || buffers.len() > RECV_BUFFERS_MAX {
            return Err(Error::Argument("a receive has 1 to 8 buffers"));
        }
        let seat = slot.seat();
        let Some(mut lane) = self.groups.try_claim(seat) else { return Ok(None) };
        let Some(mut turn) = turn_of(&mut lane, seat, comm) else { return Err(Error::Unknown("connection")) };
        let turn = &mut turn;
        let Turn { open, rails, .. } = turn;
        if let Some(fault) = open.fault {
            return Err(fault.into());
        }
        // If the thread then waits elsewhere, records that wait for a poll get one.
        if !self.params.mutant.is("engine-forgets-who-receives") {
            slot.adopt();
        }
        let Side::Recv(side) = &mut open.side else { return Err(Error::Argument("not a receiving comm")) };
        let elsewhere = Error::Argument("a region does not hold its buffer");
        let started = if let &[only] = buffers {
            let Some(found) = side.regions.locate(base, only) else { return Err(elsewhere) };
            side.irecv(rails, &slot.requests, &[found])
        } else {
            let mut located = [RecvBuf { mr: NO_MR, offset: 0, len: 0, tag: 0 }; RECV_BUFFERS_MAX];
            for (to, &buffer) in located.iter_mut().zip(buffers) {
                let Some(found) = side.regions.locate(base, buffer) else { return Err(elsewhere) };
                *to = found;
            }
            side.irecv(rails, &slot.requests, &located[..buffers.len()])
        };
        if let Ok(None) = started {
            self.progress(slot, turn);
        }
        let started = self.started(slot, turn, started);
        if let Ok(None) = started {
            drop(lane);
            self.pay();
        }
        started
    }

    /// Makes received bytes visible to those who read them, a device or the CPU. `None` means there is nothing to wait for.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    pub fn iflush(&self, comm: CommId, buffers: &[RecvBuf]) -> Result<Option<RequestId>, Error> {
        self.iflush_from(comm, Base::Region, buffers)
    }

    /// [`Engine::iflush`], of buffers whose first bytes are counted from `base`. Those that no region holds count as memory of
    /// the host.
    ///
    /// # Errors
    /// As [`Engine::isend`].
    pub fn iflush_from(
        &self,
        comm: CommId,
        base: Base,
        buffers: &[RecvBuf],
    ) -> Result<Option<RequestId>, Error> {
        let slot = self.comm(comm)?;
        if buffers.iter().all(|buffer| buffer.len == 0) {
            return Ok(None);
        }
        let seat = slot.seat();
        let mut lane = self.groups.claim(seat);
        let Some(mut turn) = turn_of(&mut lane, seat, comm) else { return Err(Error::Unknown("connection")) };
        let turn = &mut turn;
        let Turn { open, rails, .. } = turn;
        if let Some(fault) = open.fault {
            return Err(fault.into());
        }
        let Side::Recv(side) = &mut open.side else { return Err(Error::Argument("not a receiving comm")) };
        let located = buffers.iter().filter_map(|&buffer| side.regions.locate(base, buffer));
        let Some(what) = side.flushes(located) else { return Ok(None) };
        let started = side.iflush(rails, &slot.requests, what);
        self.started(slot, turn, started)
    }

    #[inline(always)]
    fn started(
        &self,
        slot: &Comm,
        turn: &mut Turn<'_, F::Rail>,
        started: Result<Option<Ticket>, CommFault>,
    ) -> Result<Option<RequestId>, Error> {
        match started {
            Ok(Some(ticket)) => {
                // Something moves, seen from here as little as what the peer writes to this side.
                turn.open.idle = 0;
                Ok(Some(RequestId::new(turn.open.id, ticket)))
            }
            Ok(None) => {
                slot.requests.row.again();
                Ok(None)
            }
            Err(fault) => {
                self.fail(slot, turn, fault);
                Err(turn.open.fault.unwrap_or(fault).into())
            }
        }
    }

    /// Looks at a request; true when it is done, and then gone. Fills in a size for each buffer.
    ///
    /// # Errors
    /// [`Error::Comm`] if it failed; the request is gone too.
    #[inline]
    pub fn test(&self, request: RequestId, sizes: &mut [u64; RECV_BUFFERS_MAX]) -> Result<bool, Error> {
        let done = self.test_count(request, sizes)?;
        if let Some(count) = done {
            sizes[count..].fill(0);
        }
        Ok(done.is_some())
    }

    /// [`Engine::test`], telling how many sizes a finished request has: 1 for a send, 0 for a flush.
    ///
    /// # Errors
    /// As [`Engine::test`].
    #[inline]
    pub fn test_count(
        &self,
        request: RequestId,
        sizes: &mut [u64; RECV_BUFFERS_MAX],
    ) -> Result<Option<usize>, Error> {
        let slot = self.comm(request.comm())?;
        let due = slot.send_due.load(Ordering::Relaxed);
        // Of a request that has ended, the place may be another's.
        let asks_ended = self.params.mutant.is("engine-asks-ended-requests");
        if due && (asks_ended || slot.requests.knows(request.ticket())) && !self.send_went(slot, request)? {
            return Ok(None);
        }
        let mut outcome = slot.requests.take(request.ticket(), sizes);
        if slot.joining.load(Ordering::Relaxed) && outcome != Outcome::Pending {
            self.tend_unpolled(slot, request.comm());
        }
        if outcome == Outcome::Pending && !due {
            let seat = slot.seat();
            if let Some(mut lane) = self.groups.try_claim(seat) {
                let Some(mut turn) = turn_of(&mut lane, seat, request.comm()) else {
                    return Err(Error::Unknown("connection"));
                };
                self.progress_sends(slot, &mut turn);
                drop(lane);
                self.pay();
                outcome = slot.requests.take(request.ticket(), sizes);
            }
        }
        match outcome {
            Outcome::Pending => Ok(None),
            Outcome::Done(count) => Ok(Some(count)),
            Outcome::Failed => Err(self.fault_of(request.comm())),
            Outcome::Unknown => Err(Error::Unknown("request")),
        }
    }

    /// A finished eager send may still be here: gathered with others, or where the network takes nothing now. Lets it
    /// go, and reads the records that came meanwhile; false as long as it is here.
    fn send_went(&self, slot: &Comm, request: RequestId) -> Result<bool, Error> {
        let seat = slot.seat();
        let Some(mut lane) = self.groups.try_claim(seat) else { return Ok(false) };
        let Some(mut turn) = turn_of(&mut lane, seat, request.comm()) else {
            return Err(Error::Unknown("connection"));
        };
        self.progress_sends(slot, &mut turn);
        let Turn { open, rails, .. } = turn;
        let request = request.ticket().slot();
        let here = matches!(&open.side, Side::Send(side) if !side.has_left(rails, request));
        Ok(open.fault.is_some() || !here)
    }

    /// [`Engine::progress`], and records that came are read off the path of any message.
    #[inline]
    fn progress_sends(&self, slot: &Comm, turn: &mut Turn<'_, F::Rail>) {
        self.progress(slot, turn);
        if let Side::Send(side) = &mut turn.open.side {
            side.read_records(turn.rails);
            slot.send_due.store(side.is_due(turn.rails), Ordering::Relaxed);
        }
    }

    /// Goes on with what is under way outside of any comm: handshakes and closed lanes. Front ends need not call it.
    pub fn progress_all(&self) {
        if let Some(mut control) = self.control.try_claim() {
            self.progress_control(&mut control);
        }
        self.deliver_news();
        self.progress_lingering();
    }

    /// Comms whose caller makes no calls for them answer their peers all the same when somebody else does.
    pub(crate) fn deliver_news(&self) {
        if !self.comms.news.swap(false, Ordering::AcqRel) {
            return;
        }
        for (id, slot) in self.comms.all().filter(|(_, slot)| slot.has_news()) {
            let seat = slot.seat();
            let Some(mut lane) = self.groups.try_claim(seat) else {
                // Who has it may be past the look at what is new, or looks for another member.
                self.owes.fetch_or(!self.params.mutant.is("ride-owes-nobody-news"), Ordering::Relaxed);
                let kept = !self.params.mutant.is("ride-loses-news-of-lanes-in-use");
                self.comms.news.fetch_or(kept, Ordering::Release);
                continue;
            };
            if let Some(mut turn) = turn_of(&mut lane, seat, id) {
                if turn.shared.is_some() {
                    self.drive(slot, &mut turn);
                } else {
                    self.tend_links(slot, &mut turn);
                }
            }
        }
    }

    #[inline]
    fn progress(&self, slot: &Comm, turn: &mut Turn<'_, F::Rail>) {
        slot.is_polled();
        self.drive(slot, turn);
        let open = &mut *turn.open;
        if open.link_down && open.fault.is_none() {
            self.look_at_peer(slot, turn);
        } else if open.idle > HELP_AFTER {
            slot.adopt();
            let due = self.look_is_due(open);
            if due {
                open.idle = 0;
            }
            self.help(slot);
            if due {
                self.look_when_idle(slot, turn);
            }
        }
    }

    /// A lane has waited for long.
    #[cold]
    pub(crate) fn look_when_idle(&self, slot: &Comm, turn: &mut Turn<'_, F::Rail>) {
        self.rest_if_idle(turn);
        self.look_at_peer(slot, turn);
    }

    /// Polls a lane, and names what it failed of; whether anything moved.
    #[inline]
    pub(crate) fn drive(&self, slot: &Comm, turn: &mut Turn<'_, F::Rail>) -> bool {
        if turn.open.fault.is_some() {
            return self.drive_failed(slot, turn);
        }
        if turn.open.many
            && let Side::Send(lane) = &mut turn.open.side
        {
            lane.set_time(self.host.now());
        }
        let moved = turn.progress(&self.comms, &slot.requests);
        if turn.open.fault.is_some() {
            self.after_turn(slot, turn);
            self.on_fault(slot, turn);
        } else if turn.is_tended(slot) {
            self.after_turn(slot, turn);
        }
        moved
    }

    /// The same for a comm that has failed, and has something to do only where others share its links.
    #[cold]
    fn drive_failed(&self, slot: &Comm, turn: &mut Turn<'_, F::Rail>) -> bool {
        if turn.shared.is_none() {
            return false;
        }
        let moved = turn.progress_failed(&self.comms, &slot.requests);
        if turn.is_tended(slot) {
            self.after_turn(slot, turn);
        }
        moved
    }

    /// After a turn: links are looked after, and neighbours.
    fn after_turn(&self, slot: &Comm, turn: &mut Turn<'_, F::Rail>) {
        if turn.open.many {
            self.tend_links(slot, turn);
        }
        if turn.shared.is_some() {
            self.tell_neighbours(slot, turn);
        }
    }

    /// The engine's parts that the control plane needs.
    pub(crate) fn around(&self) -> Around<'_, H> {
        let Self { host, comms, params, status, .. } = self;
        Around { host, comms, params, status }
    }

    pub(crate) fn progress_control(&self, control: &mut Control<H, F::Rail>) {
        control.progress(&self.around());
        self.tell_of_broken(control);
        while let Some(id) = control.abandoned.pop() {
            self.forget_attempt(control, id);
        }
        self.clear_leftovers(control);
    }

    pub(crate) fn check_nics(&self, nics: &Nics) -> Result<(), Error> {
        let known = nics.numbers().iter().all(|&nic| nic < self.fabric.nics().len());
        if known { Ok(()) } else { Err(Error::Argument("no such NIC")) }
    }

    #[inline]
    pub(crate) fn comm(&self, id: CommId) -> Result<&Comm, Error> {
        // No error is made, and dropped, where there is a comm.
        let Some(comm) = self.comms.get(id) else { return Err(Error::Unknown("connection")) };
        Ok(comm)
    }

    /// Uses an open comm's lane, waiting for it; `None` if no comm has that name.
    pub(crate) fn open<T>(&self, id: CommId, use_it: impl FnOnce(&mut Turn<'_, F::Rail>) -> T) -> Option<T> {
        let seat = self.comms.get(id)?.seat();
        let mut lane = self.groups.claim(seat);
        let mut turn = turn_of(&mut lane, seat, id)?;
        Some(use_it(&mut turn))
    }
}

/// The turn of the comm of that name, if it has that seat.
#[inline]
pub(crate) fn turn_of<'a, R: Rail>(
    lane: &'a mut Option<Group<R>>,
    seat: Seat,
    id: CommId,
) -> Option<Turn<'a, R>> {
    lane.as_mut()?.turn_of(seat, id)
}

impl<F: Fabric, H: Host> Drop for Engine<F, H> {
    fn drop(&mut self) {
        self.shutdown();
    }
}
