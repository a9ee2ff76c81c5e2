//! One queue pair of the library: created, moved through its states, given requests, and destroyed with its owner. It tracks no operation.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use trunkline_sys::verbs::{
    Ece, INIT_ATTR_PD, INIT_ATTR_SEND_OPS_FLAGS, PostRecv, PostSend, QPT_RC, Qp as RawQp, QpAttr, QpCap,
    QpEx, QpInitAttr, QpInitAttrEx, RecvWr, SendWr, Sge, VerbsContext, WrAtomicCmpSwp, WrAtomicFetchAdd,
    WrComplete, WrRdma, WrRdmaWriteImm, WrSend, WrSendImm, WrSetInlineData, WrSetSgeList, send_ops,
    wr_opcode,
};

use crate::cq::CompletionQueue;
use crate::device::{VerbsDevice, check_code, last_error};
use crate::events::ObjectFault;

/// All operations that are built in place.
const OPS: u64 = send_ops::RDMA_WRITE
    | send_ops::RDMA_WRITE_WITH_IMM
    | send_ops::SEND
    | send_ops::SEND_WITH_IMM
    | send_ops::RDMA_READ
    | send_ops::ATOMIC_CMP_AND_SWP
    | send_ops::ATOMIC_FETCH_AND_ADD;

/// How requests are submitted to the device; determined when the queue pair is created.
pub(crate) enum PostMethod {
    /// As a list (ibv_post_send(3)).
    Listed,
    /// Built in place (ibv_wr_post(3)), which saves a copy of each request.
    Built(WrBuilder),
}

/// The calls that build requests in place.
pub(crate) struct WrBuilder {
    qp: *mut QpEx,
    start: WrSend,
    complete: WrComplete,
    write: WrRdma,
    write_imm: WrRdmaWriteImm,
    send: WrSend,
    send_imm: WrSendImm,
    read: WrRdma,
    swap: WrAtomicCmpSwp,
    add: WrAtomicFetchAdd,
    copy: WrSetInlineData,
    place: WrSetSgeList,
}

/// A queue pair.
pub(crate) struct VerbsQp {
    device: Arc<VerbsDevice>,
    raw: *mut RawQp,
    ring: PostMethod,
    post_send: PostSend,
    post_recv: PostRecv,
    number: u32,
    granted: QpCap,
    fault: Arc<ObjectFault>,
}

// SAFETY: a queue pair has one owner at a time, and libibverbs functions may be called from any thread.
unsafe impl Send for VerbsQp {}

impl VerbsQp {
    /// Creates a queue pair whose completions are added to `cq`, with queues and inline bytes of at least these sizes.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new(
        device: &Arc<VerbsDevice>,
        cq: &CompletionQueue,
        mut cap: QpCap,
        extended: bool,
    ) -> io::Result<Self> {
        let raw = match extended {
            true => Self::create_extended(device, cq, &mut cap),
            false => Self::create_plain(device, cq, &mut cap),
        };
        if raw.is_null() {
            return Err(last_error());
        }
        let ops = device.context_ops();
        let (Some(post_send), Some(post_recv)) = (ops.post_send, ops.post_recv) else {
            // SAFETY: it was just created, and nothing else uses it.
            unsafe { (device.calls().destroy_qp)(raw) };
            return Err(io::ErrorKind::Unsupported.into());
        };
        let built = if extended { WrBuilder::from_qp(device, raw) } else { None };
        // SAFETY: it was just created, so the pointer is valid.
        let number = unsafe { (*raw).qp_num };
        device.queue_pairs.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            device: Arc::clone(device),
            raw,
            ring: built.map_or(PostMethod::Listed, PostMethod::Built),
            post_send,
            post_recv,
            number,
            granted: cap,
            fault: device.faults.watch_object(raw),
        })
    }

    /// Requests sizes `cap`, and replaces them by the granted ones; null if refused.
    fn create_plain(device: &VerbsDevice, cq: &CompletionQueue, cap: &mut QpCap) -> *mut RawQp {
        let mut attr = QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: cq.as_raw(),
            recv_cq: cq.as_raw(),
            srq: std::ptr::null_mut(),
            cap: *cap,
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and completion queue are of this device and open; all attributes are initialised.
        let made = unsafe { (device.calls().create_qp)(device.protection_domain(), &raw mut attr) };
        *cap = attr.cap;
        made
    }

    /// As [`VerbsQp::create_plain`], for a queue pair on which work is built in place.
    fn create_extended(device: &VerbsDevice, cq: &CompletionQueue, cap: &mut QpCap) -> *mut RawQp {
        let at = std::mem::offset_of!(VerbsContext, create_qp_ex);
        let create = device.extended_context(size_of::<VerbsContext>() - at).and_then(|whole| {
            // SAFETY: `extended_context` checked that the slot lies inside the library's structure.
            unsafe { (*whole).create_qp_ex }
        });
        let Some(create) = create else { return std::ptr::null_mut() };
        // SAFETY: the attributes consist of numbers and pointers, for which all zeros is a valid value.
        let mut attr: QpInitAttrEx = unsafe { std::mem::zeroed() };
        (attr.send_cq, attr.recv_cq) = (cq.as_raw(), cq.as_raw());
        (attr.cap, attr.qp_type, attr.pd) = (*cap, QPT_RC, device.protection_domain());
        attr.comp_mask = INIT_ATTR_PD | INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = OPS;
        // SAFETY: domain and completion queue are of this device and open; all attributes are initialised.
        let made = unsafe { create(device.context(), &raw mut attr) };
        *cap = attr.cap;
        made
    }

    /// Returns the sizes that the device granted.
    pub(crate) fn granted_sizes(&self) -> QpCap {
        self.granted
    }

    /// Returns its number on the network.
    #[inline]
    pub(crate) fn qp_number(&self) -> u32 {
        self.number
    }

    /// Returns how requests are submitted to it.
    #[inline]
    pub(crate) fn post_method(&self) -> &PostMethod {
        &self.ring
    }

    /// Returns its pipeline.
    pub(crate) fn pipeline(&self) -> u32 {
        self.device.pipelines.qp_pipeline(self.raw)
    }

    /// Returns why the device has failed it, if it has.
    pub(crate) fn fault_reason(&self) -> Option<&'static str> {
        self.fault.fault_reason()
    }

    /// Moves it to another state.
    ///
    /// # Errors
    /// The system's error; it does not name the wrong attribute.
    pub(crate) fn modify(&self, attr: &QpAttr, mask: i32) -> io::Result<()> {
        let mut attr = *attr;
        // SAFETY: the queue pair is open while `self` lives; all attributes are initialised.
        check_code(unsafe { (self.device.calls().modify_qp)(self.raw, &raw mut attr, mask) })
    }

    /// Returns the extensions (ECE) that it offers or uses; `None` if library or device do not support them.
    pub(crate) fn query_ece(&self) -> Option<Ece> {
        let query = self.device.calls().query_ece?;
        let mut ece = Ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: the queue pair is open while `self` lives; `ece` is valid for writes.
        (unsafe { query(self.raw, &raw mut ece) } == 0).then_some(ece)
    }

    /// Enables the extensions that the peer's device requested or accepted.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn set_ece(&self, mut ece: Ece) -> io::Result<()> {
        let Some(set) = self.device.calls().set_ece else { return Ok(()) };
        // SAFETY: the queue pair is open while `self` lives; all fields of `ece` are initialised.
        check_code(unsafe { set(self.raw, &raw mut ece) })
    }

    /// Submits a list of requests.
    ///
    /// # Errors
    /// The system's number, and the first request that was refused.
    #[inline]
    pub(crate) fn post_send(&self, list: *mut SendWr) -> Result<(), (i32, *mut SendWr)> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is open while `self` lives; the caller keeps the list, its entries and inline bytes valid during the call.
        let code = unsafe { (self.post_send)(self.raw, list, &raw mut bad) };
        if code == 0 { Ok(()) } else { Err((code, bad)) }
    }

    /// Submits a list of receives.
    ///
    /// # Errors
    /// As [`VerbsQp::post_send`].
    #[inline]
    pub(crate) fn post_recv(&self, list: *mut RecvWr) -> Result<(), (i32, *mut RecvWr)> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: as in `post_send`.
        let code = unsafe { (self.post_recv)(self.raw, list, &raw mut bad) };
        if code == 0 { Ok(()) } else { Err((code, bad)) }
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        self.device.faults.remove(self.raw);
        // SAFETY: it is dropped, so no call uses it any more, and its asynchronous events have been acknowledged.
        unsafe { (self.device.calls().destroy_qp)(self.raw) };
        self.device.queue_pairs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WrBuilder {
    /// Returns the calls of a queue pair that was created for them.
    fn from_qp(device: &VerbsDevice, raw: *mut RawQp) -> Option<Self> {
        let to_extended = device.calls().qp_to_qp_ex?;
        // SAFETY: the queue pair was just created.
        let qp = unsafe { to_extended(raw) };
        if qp.is_null() {
            return None;
        }
        // SAFETY: the table belongs to the queue pair and does not change.
        let table = unsafe { &*qp };
        Some(Self {
            qp,
            start: table.wr_start?,
            complete: table.wr_complete?,
            write: table.wr_rdma_write?,
            write_imm: table.wr_rdma_write_imm?,
            send: table.wr_send?,
            send_imm: table.wr_send_imm?,
            read: table.wr_rdma_read?,
            swap: table.wr_atomic_cmp_swp?,
            add: table.wr_atomic_fetch_add?,
            copy: table.wr_set_inline_data?,
            place: table.wr_set_sge_list?,
        })
    }

    /// Begins a list of requests.
    #[inline]
    pub(crate) fn start_list(&self) {
        // SAFETY: the queue pair is open while `self` lives.
        unsafe { (self.start)(self.qp) };
    }

    /// Submits the list to the device.
    ///
    /// # Errors
    /// The system's number; none of the requests was accepted.
    #[inline]
    pub(crate) fn submit_list(&self) -> Result<(), i32> {
        // SAFETY: a list was begun.
        match unsafe { (self.complete)(self.qp) } {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Begins a request of the list.
    #[inline]
    pub(crate) fn begin_request(&self, wr: &SendWr) {
        let qp = self.qp;
        // SAFETY: the queue pair is open while `self` lives, and has one owner, so no other thread writes the field.
        unsafe { (*qp).wr_id = wr.wr_id };
        // SAFETY: as above. Soft-RoCE needs the flag for inline bytes; other providers derive it from the call.
        unsafe { (*qp).wr_flags = wr.send_flags };
        if matches!(wr.opcode, wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD) {
            // SAFETY: the opcode determines which field of the union was written.
            let to = unsafe { wr.wr.atomic };
            match wr.opcode {
                // SAFETY: a list was begun.
                wr_opcode::ATOMIC_CMP_AND_SWP => unsafe {
                    (self.swap)(qp, to.rkey, to.remote_addr, to.compare_add, to.swap);
                },
                // SAFETY: a list was begun.
                _ => unsafe { (self.add)(qp, to.rkey, to.remote_addr, to.compare_add) },
            }
            return;
        }
        // SAFETY: as above; for sends, all fields of the union are zeros.
        let to = unsafe { wr.wr.rdma };
        match wr.opcode {
            // SAFETY: a list was begun.
            wr_opcode::RDMA_WRITE => unsafe { (self.write)(qp, to.rkey, to.remote_addr) },
            // SAFETY: a list was begun.
            wr_opcode::RDMA_WRITE_WITH_IMM => unsafe {
                (self.write_imm)(qp, to.rkey, to.remote_addr, wr.imm_data);
            },
            // SAFETY: a list was begun.
            wr_opcode::RDMA_READ => unsafe { (self.read)(qp, to.rkey, to.remote_addr) },
            // SAFETY: a list was begun.
            wr_opcode::SEND_WITH_IMM => unsafe { (self.send_imm)(qp, wr.imm_data) },
            // SAFETY: a list was begun.
            _ => unsafe { (self.send)(qp) },
        }
    }

    /// Ends a request whose bytes are copied.
    #[inline]
    pub(crate) fn set_inline_bytes(&self, bytes: &Sge) {
        let addr = std::ptr::with_exposed_provenance_mut(bytes.addr as usize);
        // SAFETY: a request was begun; the stage keeps the bytes valid during the call, which copies them.
        unsafe { (self.copy)(self.qp, addr, bytes.length as usize) };
    }

    /// Ends a request whose bytes are registered.
    #[inline]
    pub(crate) fn set_sge_list(&self, list: &[Sge]) {
        // SAFETY: a request was begun; the stage keeps the list valid during the call.
        unsafe { (self.place)(self.qp, list.len(), list.as_ptr()) };
    }
}
