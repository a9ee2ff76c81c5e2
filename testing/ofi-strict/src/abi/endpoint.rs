//! The C interface of endpoints: open, bind, enable, close, addresses and options. Posting is in `message.rs` and
//! `rma.rs`.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use rustix::event::epoll;
use trunkline_sys::ofi::{
    Fid, FidDomain, FidEp, FidMc, FidPep, Info, OPT_ENDPOINT, Ops, OpsCm, OpsEp, RxAttr, TxAttr, caps, class,
    control, errno, opt,
};

use super::av::{self, AvHandle};
use super::cq::CqHandle;
use super::domain::DomainHandle;
use super::{PANICKED, catch_panics, hand_out, info, message, missing, object_ref, rma, take_back};
use crate::config::FailureStep;
use crate::domain::StrictDomain;
use crate::endpoint::StrictEndpoint;
use crate::gate::CallScope;
use crate::registry::BrokenRule;
use crate::state::{DomainContents, EndpointTerms, QueueBinding};

#[repr(C)]
pub(super) struct EndpointHandle {
    fid: FidEp,
    pub(super) domain: Arc<StrictDomain>,
    pub(super) number: u32,
}

static OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(command),
    ops_open: Some(ops_open),
    tostr: None,
    ops_set: None,
};

static EP_OPS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Some(tx_ctx),
    rx_ctx: Some(rx_ctx),
    rx_size_left: Some(size_left),
    tx_size_left: Some(size_left),
};

static CM_OPS: OpsCm = OpsCm {
    size: size_of::<OpsCm>(),
    setname: Some(setname),
    getname: Some(getname),
    getpeer: Some(getpeer),
    connect: Some(connect),
    listen: Some(listen),
    accept: Some(accept),
    reject: Some(reject),
    shutdown: Some(shutdown),
    join: Some(join),
};

missing! {
    ops_open(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int;
    tx_ctx(*mut FidEp, c_int, *mut TxAttr, *mut *mut FidEp, *mut c_void) -> c_int;
    rx_ctx(*mut FidEp, c_int, *mut RxAttr, *mut *mut FidEp, *mut c_void) -> c_int;
    size_left(*mut FidEp) -> isize;
    setname(*mut Fid, *mut c_void, usize) -> c_int;
    getpeer(*mut FidEp, *mut c_void, *mut usize) -> c_int;
    connect(*mut FidEp, *const c_void, *const c_void, usize) -> c_int;
    listen(*mut FidPep) -> c_int;
    accept(*mut FidEp, *const c_void, usize) -> c_int;
    reject(*mut FidPep, *mut Fid, *const c_void, usize) -> c_int;
    shutdown(*mut FidEp, u64) -> c_int;
    join(*mut FidEp, *const c_void, u64, *mut *mut FidMc, *mut c_void) -> c_int;
}

pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    info: *mut Info,
    out: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let parent: &DomainHandle = unsafe { object_ref(domain) };
        if parent.domain.shared.count_call(FailureStep::Endpoint) {
            return -errno::EIO;
        }
        // SAFETY: `info` is a result of `fi_getinfo`.
        let wishes = unsafe { info::read_hints(info) };
        let depth = parent.domain.shared.config.depth;
        let size = |wish: usize| if wish == 0 { depth } else { wish.min(depth) };
        let terms = EndpointTerms {
            caps: wishes.caps,
            order: wishes.msg_order,
            tx_flags: wishes.tx_flags,
            rx_flags: wishes.rx_flags,
            tx_depth: size(wishes.tx_size),
            rx_depth: size(wishes.rx_size),
            ..EndpointTerms::default()
        };
        let number = parent.domain.run_call(CallScope::Domain, |state| state.add_endpoint(terms));
        let fid = Fid { fclass: class::EP, context, ops: (&raw const OPS).cast_mut() };
        let fid = FidEp {
            fid,
            ops: (&raw const EP_OPS).cast_mut(),
            cm: (&raw const CM_OPS).cast_mut(),
            msg: message::plain_table(),
            rma: rma::rma_table(),
            tagged: message::tagged_table(),
            atomic: ptr::null_mut(),
            collective: ptr::null_mut(),
        };
        // SAFETY: the caller passes a place for the object, which may be written.
        unsafe { hand_out(EndpointHandle { fid, domain: Arc::clone(&parent.domain), number }, out) };
        0
    })
}

impl DomainContents {
    fn add_endpoint(&mut self, terms: EndpointTerms) -> u32 {
        let number = self.next_endpoint();
        self.endpoints.insert(number, StrictEndpoint::new(EndpointTerms { number, ..terms }));
        number
    }

    fn close_endpoint(&mut self, number: u32) -> Result<(), BrokenRule> {
        let bound = self.memory.bound_to(number);
        if bound > 0 {
            let line = format!("close of an endpoint with {bound} live registrations");
            return Err(BrokenRule::with_rule(errno::EBUSY, line));
        }
        if let Some((endpoint, mut world)) = self.endpoint_parts(number) {
            endpoint.close(&mut world);
        }
        self.endpoints.remove(&number);
        self.queues.values_mut().for_each(|queue| queue.endpoints.retain(|one| *one != number));
        self.vectors.values_mut().for_each(|vector| vector.endpoints.retain(|one| *one != number));
        Ok(())
    }

    fn bind_queue(&mut self, number: u32, queue: u32, flags: u64) -> Result<(), BrokenRule> {
        let wrong = |error, line: &str| Err(BrokenRule::with_rule(error, line));
        let Some(endpoint) = self.endpoints.get_mut(&number) else {
            return Err(BrokenRule::without_rule(errno::EINVAL));
        };
        if endpoint.is_enabled() {
            return wrong(errno::EOPBADSTATE, "bind of a queue to an endpoint that is enabled");
        }
        let known = caps::TRANSMIT | caps::RECV | caps::SELECTIVE_COMPLETION;
        if flags & !known != 0 || flags & (caps::TRANSMIT | caps::RECV) == 0 {
            return wrong(errno::EBADFLAGS, "bind of a queue with other flags than FI_TRANSMIT, FI_RECV");
        }
        let binding = QueueBinding { queue, is_selective: flags & caps::SELECTIVE_COMPLETION != 0 };
        let terms = &mut endpoint.terms;
        for (bit, slot) in [(caps::TRANSMIT, &mut terms.tx), (caps::RECV, &mut terms.rx)] {
            if flags & bit != 0 && slot.replace(binding).is_some() {
                return wrong(errno::EINVAL, "bind of a second queue for the same direction");
            }
        }
        if let Some(queue) = self.queues.get_mut(&queue)
            && !queue.endpoints.contains(&number)
        {
            queue.endpoints.push(number);
        }
        Ok(())
    }

    fn bind_vector(&mut self, number: u32, vector: u32) -> Result<(), BrokenRule> {
        let Some(endpoint) = self.endpoints.get_mut(&number) else {
            return Err(BrokenRule::without_rule(errno::EINVAL));
        };
        if endpoint.is_enabled() || endpoint.terms.vector.is_some() {
            let line = "bind of an address vector to an endpoint that is enabled or has one";
            return Err(BrokenRule::with_rule(errno::EOPBADSTATE, line));
        }
        endpoint.terms.vector = Some(vector);
        if let Some(vector) = self.vectors.get_mut(&vector) {
            vector.endpoints.push(number);
        }
        Ok(())
    }

    fn enable_endpoint(&mut self, number: u32) -> Result<(), BrokenRule> {
        if self.says_again() {
            return Err(BrokenRule::without_rule(errno::EAGAIN));
        }
        let Some(endpoint) = self.endpoints.get_mut(&number) else {
            return Err(BrokenRule::without_rule(errno::EINVAL));
        };
        endpoint.enable()?;
        let Some(watcher) = endpoint.ready_watcher() else { return Ok(()) };
        for queue in self.queues.values().filter(|queue| queue.endpoints.contains(&number)) {
            if let Some(wait) = &queue.wait {
                let token = epoll::EventData::new_u64(u64::from(number) + 1);
                let added = epoll::add(&wait.all, watcher, token, epoll::EventFlags::IN);
                added.map_err(|error| BrokenRule::without_rule(error.raw_os_error()))?;
            }
        }
        Ok(())
    }
}

impl EndpointHandle {
    /// Runs a call that may break a rule; returns the call's result for C.
    pub(super) fn checked_call(
        &self,
        act: impl FnOnce(&mut DomainContents) -> Result<(), BrokenRule>,
    ) -> c_int {
        self.domain.run_call(CallScope::Endpoint(self.number), |state| match act(state) {
            Ok(()) => 0,
            Err(broken) => -state.report_broken(&broken),
        })
    }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &EndpointHandle = unsafe { object_ref(fid) };
        let result = this.checked_call(|state| state.close_endpoint(this.number));
        if result == 0 {
            // SAFETY: as above, and no other object uses it.
            unsafe { take_back::<EndpointHandle>(fid) };
        }
        result
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &EndpointHandle = unsafe { object_ref(fid) };
        // SAFETY: the caller passes an open object, and every object begins with a `Fid`.
        let kind = unsafe { &*other }.fclass;
        let (domain, number) = match kind {
            class::CQ => {
                // SAFETY: the object is open, see `abi`, and its class shows its type.
                let queue: &CqHandle = unsafe { object_ref(other) };
                (&queue.domain, queue.number)
            }
            class::AV => {
                // SAFETY: the object is open, see `abi`, and its class shows its type.
                let vector: &AvHandle = unsafe { object_ref(other) };
                (&vector.domain, vector.number)
            }
            // Event queues are always empty, so no binding is recorded.
            class::EQ => return 0,
            _ => return -errno::ENOSYS,
        };
        if !Arc::ptr_eq(domain, &this.domain) {
            let line = "bind of an endpoint to an object of another domain";
            return this.checked_call(|_| Err(BrokenRule::with_rule(errno::EINVAL, line)));
        }
        if kind == class::AV {
            return this.checked_call(|state| state.bind_vector(this.number, number));
        }
        let result = this.checked_call(|state| state.bind_queue(this.number, number, flags));
        if result == 0 {
            this.domain.join_queue(this.number, number);
        }
        result
    })
}

unsafe extern "C" fn command(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &EndpointHandle = unsafe { object_ref(fid) };
        match command {
            control::ENABLE if this.domain.shared.count_call(FailureStep::Enable) => -errno::EIO,
            control::ENABLE => this.checked_call(|state| state.enable_endpoint(this.number)),
            control::GETOPSFLAG => {
                // SAFETY: for this command the argument points to 64 bits of flags.
                let asked = unsafe { arg.cast::<u64>().read() };
                let flags = this.domain.run_call(CallScope::Endpoint(this.number), |state| {
                    let terms = state.endpoints.get(&this.number).map(|endpoint| endpoint.terms);
                    let terms = terms.unwrap_or_default();
                    if asked & caps::TRANSMIT != 0 { terms.tx_flags } else { terms.rx_flags }
                });
                // SAFETY: as above.
                unsafe { arg.cast::<u64>().write(flags) };
                0
            }
            _ => -errno::ENOSYS,
        }
    })
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: *mut c_void) -> isize {
    catch_panics(PANICKED as isize, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &EndpointHandle = unsafe { object_ref(fid) };
        let is_found = this.domain.run_call(CallScope::Endpoint(this.number), |state| {
            let parts = state.endpoint_parts(this.number);
            parts.is_some_and(|(endpoint, mut world)| endpoint.cancel_receive(context as usize, &mut world))
        });
        if is_found { 0 } else { -(errno::ENOENT as isize) }
    })
}

unsafe extern "C" fn getname(fid: *mut Fid, addr: *mut c_void, len: *mut usize) -> c_int {
    catch_panics(PANICKED, || {
        // SAFETY: the object is open and has this function's table, see `abi`.
        let this: &EndpointHandle = unsafe { object_ref(fid) };
        if this.domain.shared.count_call(FailureStep::Getname) {
            return -errno::EIO;
        }
        let address = this.domain.run_call(CallScope::Endpoint(this.number), |state| {
            let address = state.endpoints.get(&this.number).and_then(StrictEndpoint::own_address);
            if address.is_none() {
                state.report_violation("getname of an endpoint that is not enabled");
            }
            address
        });
        let Some(address) = address else { return -errno::EOPBADSTATE };
        // SAFETY: the caller passes a buffer and its length, as the interface requires.
        if unsafe { av::write_address(&address, addr, len) } { 0 } else { -errno::ETOOSMALL }
    })
}

unsafe extern "C" fn getopt(
    _fid: *mut Fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    if (level, name) != (OPT_ENDPOINT, opt::CM_DATA_SIZE) || value.is_null() {
        return -errno::ENOPROTOOPT;
    }
    // SAFETY: the caller passes a place for the length, as the interface requires.
    unsafe { len.write(size_of::<usize>()) };
    // SAFETY: the value of this option is a `size_t`.
    unsafe { value.cast::<usize>().write(0) };
    0
}

unsafe extern "C" fn setopt(
    _fid: *mut Fid,
    level: c_int,
    name: c_int,
    _value: *const c_void,
    _len: usize,
) -> c_int {
    // Endpoints never access device memory, so every method is acceptable.
    if (level, name) == (OPT_ENDPOINT, opt::FI_HMEM_P2P) { 0 } else { -errno::ENOPROTOOPT }
}
