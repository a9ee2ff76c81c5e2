//! The transport's calls through its table of version 6, as NVSHMEM's host and proxy make them: init, connect,
//! registrations, puts, gets, values, atomics, signals, fence, quiet and finalize. All operations are towards the PE
//! itself.

use std::ffi::{c_int, c_void};
use std::ptr;

use trunkline_sys::nvshmem::v6::{AmoVerb, Transport, VERSION};
use trunkline_sys::nvshmem::{
    AmoBytesdesc, AmoMemdesc, BootstrapHandle, CudaTable, MemHandle, RmaBytesdesc, RmaMemdesc, RmaVerb,
    StatusCode, StdVector, amo, op,
};

use crate::trials::{Case, Outcome};
// The library's function is linked by name.
use trunkline_nvshmem as _;

/// The number of runs after which the tables of the process have their final size.
const WARM_UPS: usize = 3;
/// Values that are fetched at a time.
const FETCHES: usize = 200;
/// The proxy's queue pair; the host's is 0.
const PROXY: c_int = 1;

pub(crate) const ALL: &[Case] = &[
    ("short operations", || life(1000)),
    ("long operations", || life(300_000)),
    ("many registrations", || registrations(40)),
];

unsafe extern "C" {
    fn nvshmemt_init(out: *mut *mut c_void, cuda: *mut CudaTable, version: c_int) -> c_int;
}

/// Calls a function of the table.
macro_rules! call {
    ($pe:expr, $($slot:ident).+, $($arg:expr),* $(,)?) => {{
        let transport = $pe.0;
        // SAFETY: `nvshmemt_init` created the transport, and only the end of its life finalizes it.
        let function = unsafe { (*transport).$($slot).+ }.expect(stringify!($($slot).+));
        // SAFETY: the arguments satisfy NVSHMEM's contract: places of this function's caller, which outlive the call,
        // and memory that stays until its handle is released.
        ended(stringify!($($slot).+), unsafe { function(transport, $($arg),*) })
    }};
}

/// Converts the result of a call. A result that a lack of memory does not explain ends the process.
fn ended(call: &str, code: c_int) -> Outcome {
    match StatusCode(code) {
        StatusCode::SUCCESS => Ok(()),
        StatusCode::OUT_OF_MEMORY | StatusCode::INTERNAL => Err(format!("{call}: {code}")),
        _ => wrong(&format!("{call} returns {code}")),
    }
}

fn wrong(why: &str) -> ! {
    println!("wrong {why}");
    std::process::exit(3);
}

/// The bootstrap of one PE.
unsafe extern "C" fn gather(
    mine: *const c_void,
    all: *mut c_void,
    bytes: c_int,
    _: *mut BootstrapHandle,
) -> c_int {
    // SAFETY: the caller passes its own bytes, and room for as many.
    unsafe { ptr::copy_nonoverlapping(mine.cast::<u8>(), all.cast(), bytes as usize) };
    0
}

fn bootstrap() -> BootstrapHandle {
    BootstrapHandle {
        version: 0,
        pg_rank: 0,
        pg_size: 1,
        mype_node: 0,
        npes_node: 1,
        allgather: Some(gather),
        alltoall: None,
        barrier: None,
        global_exit: None,
        finalize: None,
        show_info: None,
        pre_init_ops: ptr::null_mut(),
        comm_state: ptr::null_mut(),
    }
}

/// The transport of a PE, which is finalized when this is dropped.
struct OnePe(*mut Transport);

impl OnePe {
    fn start(boot: &mut BootstrapHandle) -> Result<Self, String> {
        let mut made = ptr::null_mut();
        // SAFETY: the pointer is to a place for the transport; the table of CUDA's functions may be null.
        let code = unsafe { nvshmemt_init(&raw mut made, ptr::null_mut(), VERSION) };
        ended("nvshmemt_init", code)?;
        let pe = Self(made.cast());
        // SAFETY: the transport was created above, and the bootstrap outlives it.
        unsafe { (*pe.0).head.boot_handle = boot };
        let mut device = 0;
        call!(pe, set_up.connect_endpoints, &raw mut device, 1, ptr::null_mut(), 0)?;
        let mut pairs = [0; 2];
        call!(pe, set_up.connect_endpoints, ptr::null_mut(), 0, pairs.as_mut_ptr(), 2)?;
        Ok(pe)
    }

    /// Moves bytes between two places of registered memory.
    fn rma(&self, kind: c_int, there: &Registration<'_>, here: &Registration<'_>, bytes: usize) -> Outcome {
        let verb = RmaVerb { desc: kind, is_nbi: 1, is_stream: 0, cstrm: ptr::null_mut() };
        let (mut remote, mut local) = (there.at(0), here.at(0));
        call!(self, rma, 0, verb, &raw mut remote, &raw mut local, count(bytes), PROXY)
    }

    /// Executes an atomic that fetches to a place of registered memory.
    fn fetch(&self, word: &Registration<'_>, into: &Registration<'_>, place: usize) -> Outcome {
        let verb = AmoVerb { desc: amo::FETCH_ADD, is_fetch: 1, is_val: 0, is_cmp: 0, is_float: 0 };
        let to = into.at(place);
        let mut target = AmoMemdesc {
            remote_memdesc: word.at(0),
            retflag: 1,
            retptr: to.ptr,
            valptr: ptr::null_mut(),
            cmpptr: ptr::null_mut(),
            val: 1,
            cmp: 0,
            ret_handle: to.handle,
        };
        let bytes = AmoBytesdesc { name_type: 0, elembytes: 8 };
        call!(self, amo, 0, ptr::null_mut(), verb, &raw mut target, bytes, PROXY)
    }

    /// Puts two pieces, followed by a signal.
    fn put_signal(&self, there: &Registration<'_>, here: &Registration<'_>, bytes: usize) -> Outcome {
        let far = [there.at(8), there.at(8 + bytes / 2)];
        let near = [here.at(0), here.at(bytes / 2)];
        let counts = [count(bytes / 4); 2];
        let (mut far, mut near, mut counts) = (vector(&far), vector(&near), vector(&counts));
        let write = RmaVerb { desc: op::PUT_SIGNAL, is_nbi: 1, is_stream: 0, cstrm: ptr::null_mut() };
        let verb = AmoVerb { desc: amo::SIGNAL_ADD, is_fetch: 0, is_val: 0, is_cmp: 0, is_float: 0 };
        let none = ptr::null_mut();
        let (retptr, valptr, cmpptr) = (none, none, none);
        let mut target = AmoMemdesc {
            remote_memdesc: there.at(0),
            retflag: 0,
            retptr,
            valptr,
            cmpptr,
            val: 1,
            cmp: 0,
            ret_handle: ptr::null_mut(),
        };
        let word = AmoBytesdesc { name_type: 0, elembytes: 8 };
        let (far, near, counts) = (&raw mut far, &raw mut near, &raw mut counts);
        call!(self, put_signal, 0, write, far, near, counts, verb, &raw mut target, word, PROXY)
    }

    fn quiet(&self) -> Outcome {
        call!(self, quiet, 0, PROXY)
    }
}

impl Drop for OnePe {
    fn drop(&mut self) {
        // NVSHMEM calls nothing else either.
        if let Err(why) = call!(self, set_up.finalize,) {
            wrong(&why);
        }
    }
}

fn count(bytes: usize) -> RmaBytesdesc {
    RmaBytesdesc { nelems: bytes, elembytes: 1, srcstride: 1, deststride: 1 }
}

fn vector<T>(of: &[T]) -> StdVector<T> {
    let end = of.as_ptr_range().end;
    StdVector { begin: of.as_ptr(), end, end_of_storage: end }
}

/// Memory that a PE has registered.
struct Registration<'a> {
    pe: &'a OnePe,
    bytes: Box<[u64]>,
    handle: Box<MemHandle>,
}

impl<'a> Registration<'a> {
    fn new(pe: &'a OnePe, bytes: usize) -> Result<Self, String> {
        let bytes = trunkline_proto::reserve::try_filled(5_u64, bytes.div_ceil(8));
        let mut bytes = bytes.map_err(|lack| lack.to_string())?;
        let mut handle = Box::new(MemHandle { reserved: [0; 512] });
        let (out, base, len): (_, *mut c_void, _) =
            (&raw mut *handle, bytes.as_mut_ptr().cast(), size_of_val(&*bytes));
        // SAFETY: `nvshmemt_init` created the transport.
        let register = unsafe { (*pe.0).set_up.get_mem_handle }.unwrap();
        // SAFETY: the bytes stay until the handle is released.
        ended("get_mem_handle", unsafe { register(out, base, len, pe.0, false) })?;
        Ok(Self { pe, bytes, handle })
    }

    /// Returns the place at an offset from its start.
    fn at(&self, offset: usize) -> RmaMemdesc {
        let ptr = self.bytes.as_ptr().cast_mut().wrapping_byte_add(offset).cast();
        RmaMemdesc { ptr, offset: offset as u64, handle: ptr::from_ref(&*self.handle).cast_mut() }
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        // SAFETY: `nvshmemt_init` created the transport, which is finalized after its registrations.
        let release = unsafe { (*self.pe.0).set_up.release_mem_handle }.unwrap();
        // SAFETY: the handle was created by a registration, and is not released yet.
        if let Err(why) = ended("release_mem_handle", unsafe { release(&raw mut *self.handle, self.pe.0) }) {
            wrong(&why);
        }
    }
}

pub(crate) fn warm_up() {
    for _ in 0..WARM_UPS {
        life(300_000).unwrap();
        registrations(40).unwrap();
    }
}

/// Runs a transport's whole life, with operations of a length.
pub(crate) fn life(bytes: usize) -> Outcome {
    let mut boot = bootstrap();
    let pe = OnePe::start(&mut boot)?;
    let (source, target) = (Registration::new(&pe, bytes)?, Registration::new(&pe, bytes + 16)?);
    let fetched = Registration::new(&pe, FETCHES * 16)?;
    pe.rma(op::PUT, &target, &source, bytes)?;
    call!(pe, fence, 0, PROXY, 0)?;
    pe.rma(op::GET, &target, &source, bytes)?;
    pe.quiet()?;
    // Memory without a handle is copied through the stage.
    let mut value = [0_u64; 4];
    let mut elsewhere = RmaMemdesc { ptr: value.as_mut_ptr().cast(), offset: 0, handle: ptr::null_mut() };
    let verb = RmaVerb { desc: op::GET, is_nbi: 0, is_stream: 0, cstrm: ptr::null_mut() };
    let mut from = target.at(0);
    call!(pe, rma, 0, verb, &raw mut from, &raw mut elsewhere, count(32), 0)?;
    for place in 0..FETCHES {
        pe.fetch(&target, &fetched, place * 16)?;
    }
    pe.quiet()?;
    pe.put_signal(&target, &source, bytes)?;
    pe.quiet()?;
    call!(pe, set_up.progress,)
}

/// Runs a transport's life with a number of registrations.
fn registrations(count: usize) -> Outcome {
    let mut boot = bootstrap();
    let pe = OnePe::start(&mut boot)?;
    let mut all = trunkline_proto::reserve::try_vec(count).map_err(|lack| lack.to_string())?;
    for _ in 0..count {
        all.push(Registration::new(&pe, 5000)?);
    }
    for pair in all.windows(2) {
        pe.rma(op::PUT, &pair[0], &pair[1], 5000)?;
    }
    pe.quiet()
}
