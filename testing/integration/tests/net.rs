//! The plugin as a host uses it: one loaded table, called with arguments that keep the contract. Outputs are filled
//! with garbage before each call, so that unwritten ones are detected.

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::ops::Range;
use std::path::Path;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libloading::os::unix::Library;
use trunkline_sys::nccl_net::{Logger, NetAttr, PTR_HOST, ResultCode};

use crate::raw::{self, Group, Opaque, Props, Raw};

/// Longest time of any wait, unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// The limit of a wait; the long sizes may have gibibytes of memory to touch.
pub(crate) fn limit() -> Duration {
    if crate::sharing::is_full() { 10 * LIMIT } else { LIMIT }
}

/// Connect and accept never block.
const CALL_LIMIT: Duration = Duration::from_millis(50);
/// A pointer as an earlier request may have left it.
pub(crate) const STALE: usize = 0x7fff_dead_beef;

pub(crate) type Handle = [u8; 128];
pub(crate) type Called<T> = Result<T, ResultCode>;

/// The lines that the plugin logged.
pub(crate) static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The plugin passes `"%s"` and one string, which is the sixth argument.
unsafe extern "C" fn log(
    level: c_int,
    _: c_ulong,
    _: *const c_char,
    _: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the plugin passes a NUL-terminated format.
    let format = unsafe { CStr::from_ptr(format) }.to_string_lossy();
    assert_eq!(format.matches('%').count(), 1, "{format}");
    // SAFETY: and a NUL-terminated string for its `%s`.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    eprintln!("plugin {level}: {text}");
    LINES.lock().unwrap().push(format!("{level} {text}"));
}

fn logger() -> Logger {
    type Fixed = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    let log: Fixed = log;
    // SAFETY: on the supported platforms, integer arguments of a variadic call are passed as fixed ones are.
    unsafe { std::mem::transmute::<Fixed, Logger>(log) }
}

/// Number of log lines that contain a text.
pub(crate) fn logged(text: &str) -> usize {
    LINES.lock().unwrap().iter().filter(|line| line.contains(text)).count()
}

/// A comm, listening or connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Comm(pub(crate) usize);
/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mr(pub(crate) usize);
/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request(pub(crate) usize);

pub(crate) fn opaque(address: usize) -> Opaque {
    with_exposed_provenance_mut(address)
}

/// Memory that the plugin may write while a test reads it.
pub(crate) struct Buf(Box<[AtomicU8]>);

/// The pattern of a seed repeats after this length.
const PERIOD: usize = 251;

/// Returns the bytes of memory, each with the byte that a seed's pattern has there.
fn with_pattern(memory: &[AtomicU8], seed: usize) -> impl Iterator<Item = (&AtomicU8, u8)> {
    let first = seed.wrapping_mul(31) as u8;
    memory
        .chunks(PERIOD)
        .flat_map(move |part| part.iter().zip((0..PERIOD as u8).map(move |at| first.wrapping_add(at))))
}

impl Buf {
    /// Zero bytes.
    pub(crate) fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU8::new(0)).collect())
    }

    /// Writes the pattern of a seed, from byte 0 of the range on.
    pub(crate) fn fill(&self, range: Range<usize>, seed: usize) {
        with_pattern(&self.0[range], seed).for_each(|(byte, wanted)| byte.store(wanted, Ordering::Relaxed));
    }

    pub(crate) fn filled(len: usize, seed: usize) -> Self {
        let buf = Self::new(len);
        buf.fill(0..len, seed);
        buf
    }

    pub(crate) fn addr(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[track_caller]
    pub(crate) fn check(&self, range: Range<usize>, seed: usize) {
        let mut bytes = with_pattern(&self.0[range.clone()], seed);
        if let Some(at) = bytes.position(|(byte, wanted)| byte.load(Ordering::Relaxed) != wanted) {
            panic!("byte {at} of {range:?} is wrong (seed {seed}): {:?}", self.0[range.start + at]);
        }
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        self.0[range].iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    #[track_caller]
    pub(crate) fn untouched(&self, range: Range<usize>) {
        let touched = self.0[range.clone()].iter().position(|byte| byte.load(Ordering::Relaxed) != 0);
        assert_eq!(touched, None, "bytes of {range:?} were written");
    }
}

/// One buffer of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) tag: i32,
    pub(crate) mr: Mr,
}

/// A wait polls without a pause for this time. Afterwards it sleeps between two polls, so that other roles can use the processors.
const ATTENTIVE: Duration = Duration::from_millis(1);
/// The shortest and the longest of those pauses.
const REST: Duration = Duration::from_micros(50);
const REST_MAX: Duration = Duration::from_micros(500);

/// Waits with a deadline until a condition is true.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let waited = start.elapsed();
        assert!(waited < limit(), "{what}: nothing within {:?}", limit());
        if waited < ATTENTIVE {
            std::thread::yield_now();
        } else {
            // After a long wait a late result costs little.
            std::thread::sleep((waited / 20).clamp(REST, REST_MAX));
        }
    }
}

/// Nanoseconds this thread has waited for a processor.
fn run_delay() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Measures the time of a thread. Time without a processor is counted separately.
pub(crate) struct Stopwatch {
    start: Instant,
    delay: u64,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { delay: run_delay(), start: Instant::now() }
    }

    /// The elapsed time.
    pub(crate) fn whole(&self) -> Duration {
        self.start.elapsed()
    }

    /// The elapsed time without the time in which this thread waited for a processor.
    pub(crate) fn own(&self) -> Duration {
        let waited = Duration::from_nanos(run_delay().saturating_sub(self.delay));
        self.whole().saturating_sub(waited)
    }
}

/// Emulated processors, and their kernel's own work, are much slower (`scripts/rxe-vm`).
fn call_limit() -> Duration {
    match std::env::var_os("TRUNKLINE_TEST_EMULATED") {
        Some(_) => 40 * CALL_LIMIT,
        None => CALL_LIMIT,
    }
}

/// Runs a call that must not block.
fn prompt<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let watch = Stopwatch::start();
    let result = call();
    if watch.whole() > CALL_LIMIT {
        let own = watch.own();
        assert!(own < call_limit(), "{what} took {own:?}");
    }
    result
}

fn ok(code: ResultCode) -> Called<()> {
    if code == ResultCode::SUCCESS { Ok(()) } else { Err(code) }
}

/// A started plugin.
pub(crate) struct Net {
    pub(crate) raw: Box<dyn Raw>,
    ctx: usize,
    /// The device that comms are made on.
    dev: i32,
    /// Whether connect and accept get a pointer for a device handle; NCCL's probe passes null.
    devices: bool,
    /// Whether it has been finalized.
    ended: AtomicBool,
}

impl Drop for Net {
    /// If `TEST_FINALIZE` is set, a communicator is finalized at the end of its scenario, so that the test can check for leaks.
    fn drop(&mut self) {
        if std::env::var_os("TEST_FINALIZE").is_some() && !self.ended.load(Ordering::Relaxed) {
            let _ = self.finalize();
        }
    }
}

/// Loads the plugin; dropping the library unloads it.
pub(crate) fn load(path: &Path) -> Library {
    let flags = libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_LOCAL;
    // SAFETY: the plugin has no initialisers that do anything.
    let library = unsafe { Library::open(Some(path), flags) };
    library.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Net {
    /// Starts the plugin beside the tests, which stays loaded.
    pub(crate) fn start(version: u8) -> Self {
        let path = std::env::var_os("TRUNKLINE_TEST_PLUGIN").expect("TRUNKLINE_TEST_PLUGIN names the plugin");
        let library = load(Path::new(&path));
        let net = Self::of(&library, version);
        std::mem::forget(library);
        let net = net.expect("init succeeds");
        match fused_here().filter(|_| version >= 9) {
            Some(count) => net.on_fused(count),
            None => net,
        }
    }

    /// Starts a loaded plugin; the library must outlive the result.
    pub(crate) fn of(library: &Library, version: u8) -> Called<Self> {
        let raw = raw::find(library, version).expect("the table of each version");
        Self::init(raw)
    }

    /// Calls `init`.
    pub(crate) fn init(raw: Box<dyn Raw>) -> Called<Self> {
        let mut ctx = null_mut();
        // SAFETY: all arguments as the contract requires.
        ok(unsafe { raw.init(&raw mut ctx, Some(logger())) })?;
        if raw.version() >= 11 {
            assert!(!ctx.is_null(), "init returned a null context");
        }
        Ok(Self { raw, ctx: ctx.expose_provenance(), dev: 0, devices: false, ended: AtomicBool::new(false) })
    }

    /// Calls as the proxy does: with pointers for device handles.
    pub(crate) fn with_device_handles(mut self) -> Self {
        self.devices = true;
        self
    }

    /// Makes comms on another device.
    pub(crate) fn on(mut self, dev: i32) -> Self {
        self.dev = dev;
        self
    }

    /// Makes comms on the first `count` NICs together.
    pub(crate) fn on_fused(self, count: i32) -> Self {
        let members: Vec<i32> = (0..count).collect();
        let dev = self.make_v_device(&members).expect("a version that fuses").expect("makeVDevice");
        self.on(dev)
    }

    pub(crate) fn version(&self) -> u8 {
        self.raw.version()
    }

    pub(crate) fn ctx(&self) -> Opaque {
        opaque(self.ctx)
    }

    pub(crate) fn devices(&self) -> i32 {
        let mut count = -1;
        // SAFETY: a valid pointer for the number.
        ok(unsafe { self.raw.devices(&raw mut count) }).expect("devices");
        count
    }

    pub(crate) fn props(&self, dev: i32) -> Called<Props> {
        // SAFETY: the driver allocates the structure.
        unsafe { self.raw.properties(dev, false) }
    }

    pub(crate) fn listen(&self) -> (Comm, Handle) {
        self.try_listen().expect("listen")
    }

    pub(crate) fn try_listen(&self) -> Called<(Comm, Handle)> {
        let (mut handle, mut comm) = ([0xa5; 128], null_mut());
        let place = handle.as_mut_ptr().cast();
        // SAFETY: output buffers of the sizes that the contract requires.
        ok(unsafe { self.raw.listen(self.ctx(), self.dev, place, &raw mut comm) })?;
        assert!(!comm.is_null(), "listen returned a null comm");
        Ok((Comm(comm.expose_provenance()), handle))
    }

    /// One call of connect.
    pub(crate) fn try_connect(&self, handle: &mut Handle) -> Called<Option<Comm>> {
        let (mut comm, mut device) = (opaque(STALE), null_mut());
        let place = if self.devices { &raw mut device } else { null_mut() };
        let handle = handle.as_mut_ptr().cast();
        // SAFETY: a private copy of a handle, and valid pointers for the results.
        let call = || unsafe { self.raw.connect(self.ctx(), self.dev, handle, &raw mut comm, place) };
        let code = prompt("connect", call);
        assert!(device.is_null(), "the host drives the network");
        ok(code)?;
        assert_ne!(comm, opaque(STALE), "connect did not write its comm");
        Ok((!comm.is_null()).then(|| Comm(comm.expose_provenance())))
    }

    /// One call of accept.
    pub(crate) fn try_accept(&self, listen: Comm) -> Called<Option<Comm>> {
        let (mut comm, mut device) = (opaque(STALE), null_mut());
        let place = if self.devices { &raw mut device } else { null_mut() };
        // SAFETY: valid pointers for the results.
        let call = || unsafe { self.raw.accept(opaque(listen.0), &raw mut comm, place) };
        let code = prompt("accept", call);
        ok(code)?;
        assert_ne!(comm, opaque(STALE), "accept did not write its comm");
        Ok((!comm.is_null()).then(|| Comm(comm.expose_provenance())))
    }

    /// Connects this process to itself on this thread; returns the sending and the receiving comm.
    #[track_caller]
    pub(crate) fn to_self(&self) -> (Comm, Comm) {
        self.to(self)
    }

    /// Connects to another device or version of the same plugin.
    #[track_caller]
    pub(crate) fn to(&self, other: &Self) -> (Comm, Comm) {
        let (listen, mut handle) = other.listen();
        let (mut send, mut recv) = (None, None);
        let pair = until("a connection to itself", || {
            send = send.or_else(|| self.try_connect(&mut handle).expect("connect"));
            recv = recv.or_else(|| other.try_accept(listen).expect("accept"));
            send.zip(recv)
        });
        other.close_listen(listen).expect("closeListen");
        pair
    }

    pub(crate) fn reg(&self, comm: Comm, addr: usize, len: usize) -> Called<Mr> {
        self.reg_as(comm, addr, len, PTR_HOST)
    }

    /// Registers memory of any kind.
    pub(crate) fn reg_as(&self, comm: Comm, addr: usize, len: usize, kind: c_int) -> Called<Mr> {
        let mut mr = opaque(STALE);
        // SAFETY: live memory, kept by the caller.
        ok(unsafe { self.raw.reg_mr(opaque(comm.0), opaque(addr), len, kind, &raw mut mr) })?;
        assert!(!mr.is_null() && mr != opaque(STALE), "regMr returned {mr:?}");
        Ok(Mr(mr.expose_provenance()))
    }

    #[track_caller]
    pub(crate) fn reg_buf(&self, comm: Comm, buf: &Buf) -> Mr {
        self.reg(comm, buf.addr(), buf.len()).expect("regMr")
    }

    pub(crate) fn dereg(&self, comm: Comm, mr: Mr) -> Called<()> {
        // SAFETY: pointers that the plugin returned.
        ok(unsafe { self.raw.dereg_mr(opaque(comm.0), opaque(mr.0)) })
    }

    /// Calls isend once; the request pointer contains `stale` before.
    pub(crate) fn try_send(&self, comm: Comm, piece: Piece, stale: usize) -> Called<Option<Request>> {
        let mut request = opaque(stale);
        let Piece { addr, len, tag, mr } = piece;
        // SAFETY: registered memory, kept by the caller.
        let code = unsafe {
            self.raw.isend(opaque(comm.0), (opaque(addr), len), tag, opaque(mr.0), &raw mut request)
        };
        assert!(request != opaque(stale) || stale == 0, "isend did not write its request");
        ok(code)?;
        Ok((!request.is_null()).then(|| Request(request.expose_provenance())))
    }

    /// Calls irecv once; the request pointer contains `stale` before.
    pub(crate) fn try_recv(&self, comm: Comm, pieces: &[Piece], stale: usize) -> Called<Option<Request>> {
        let mut request = opaque(stale);
        let mut data: Vec<Opaque> = pieces.iter().map(|piece| opaque(piece.addr)).collect();
        let mut sizes: Vec<usize> = pieces.iter().map(|piece| piece.len).collect();
        let mut tags: Vec<c_int> = pieces.iter().map(|piece| piece.tag).collect();
        let mut mrs: Vec<Opaque> = pieces.iter().map(|piece| opaque(piece.mr.0)).collect();
        let group = Group {
            n: pieces.len() as c_int,
            data: data.as_mut_ptr(),
            sizes: sizes.as_mut_ptr(),
            tags: tags.as_mut_ptr(),
            mhandles: mrs.as_mut_ptr(),
        };
        // SAFETY: arrays of `n` entries about registered memory, kept by the caller.
        let code = unsafe { self.raw.irecv(opaque(comm.0), group, &raw mut request) };
        assert!(request != opaque(stale) || stale == 0, "irecv did not write its request");
        ok(code)?;
        Ok((!request.is_null()).then(|| Request(request.expose_provenance())))
    }

    /// Calls isend, with the same arguments, until it returns a request.
    #[track_caller]
    pub(crate) fn send(&self, comm: Comm, piece: Piece) -> Request {
        let mut stale = STALE;
        until("isend", || {
            let started = self.try_send(comm, piece, stale).expect("isend");
            stale = 0x1;
            started
        })
    }

    /// Calls irecv, with the same arguments, until it returns a request.
    #[track_caller]
    pub(crate) fn recv(&self, comm: Comm, pieces: &[Piece]) -> Request {
        until("irecv", || self.try_recv(comm, pieces, STALE).expect("irecv"))
    }

    /// One call of iflush.
    pub(crate) fn try_flush(&self, comm: Comm, pieces: &[Piece]) -> Called<Option<Request>> {
        let mut request = opaque(STALE);
        let mut data: Vec<Opaque> = pieces.iter().map(|piece| opaque(piece.addr)).collect();
        let mut sizes: Vec<c_int> = pieces.iter().map(|piece| piece.len as c_int).collect();
        let mut mrs: Vec<Opaque> = pieces.iter().map(|piece| opaque(piece.mr.0)).collect();
        let (data, sizes, mrs) = (data.as_mut_ptr(), sizes.as_mut_ptr(), mrs.as_mut_ptr());
        let n = pieces.len() as c_int;
        // SAFETY: arrays of `n` entries about registered memory, kept by the caller.
        let code = unsafe { self.raw.iflush(opaque(comm.0), n, data, sizes, mrs, &raw mut request) };
        assert_ne!(request, opaque(STALE), "iflush did not write its request");
        ok(code)?;
        Ok((!request.is_null()).then(|| Request(request.expose_provenance())))
    }

    /// Calls test once; returns the sizes, -1 where the plugin wrote none.
    pub(crate) fn try_test(&self, request: Request) -> Called<Option<[i32; 8]>> {
        let (mut done, mut sizes) = (-1, [-1; 8]);
        // SAFETY: valid pointers for the results.
        ok(unsafe { self.raw.test(opaque(request.0), &raw mut done, sizes.as_mut_ptr()) })?;
        assert!(done == 0 || done == 1, "done is {done}");
        Ok((done == 1).then_some(sizes))
    }

    /// Calls test until the request is done.
    #[track_caller]
    pub(crate) fn finish(&self, request: Request) -> [i32; 8] {
        until("test", || self.try_test(request).expect("test"))
    }

    /// Calls test until all requests are done, repeatedly in the order given.
    #[track_caller]
    pub(crate) fn finish_all(&self, requests: &[Request]) -> Vec<[i32; 8]> {
        let mut sizes = vec![None; requests.len()];
        until("test of many", || {
            for (at, &request) in requests.iter().enumerate() {
                if sizes[at].is_none() {
                    sizes[at] = self.try_test(request).expect("test");
                }
            }
            sizes.iter().all(Option::is_some).then_some(())
        });
        sizes.into_iter().flatten().collect()
    }

    pub(crate) fn close_send(&self, comm: Comm) -> Called<()> {
        // SAFETY: a pointer that the plugin returned.
        ok(unsafe { self.raw.close_send(opaque(comm.0)) })
    }

    pub(crate) fn close_recv(&self, comm: Comm) -> Called<()> {
        // SAFETY: a pointer that the plugin returned.
        ok(unsafe { self.raw.close_recv(opaque(comm.0)) })
    }

    pub(crate) fn close_listen(&self, comm: Comm) -> Called<()> {
        // SAFETY: a pointer that the plugin returned.
        ok(unsafe { self.raw.close_listen(opaque(comm.0)) })
    }

    /// Calls finalize; `None` in versions without it.
    pub(crate) fn finalize(&self) -> Option<Called<()>> {
        self.ended.store(true, Ordering::Relaxed);
        // SAFETY: the context that init returned.
        unsafe { self.raw.finalize(self.ctx()) }.map(ok)
    }

    pub(crate) fn set_net_attr(&self) -> Option<Called<()>> {
        self.hint(NetAttr::UNDEF)
    }

    pub(crate) fn hint(&self, mut attr: NetAttr) -> Option<Called<()>> {
        // SAFETY: the context that init returned, and valid attributes.
        unsafe { self.raw.set_net_attr(self.ctx(), &raw mut attr) }.map(ok)
    }

    pub(crate) fn make_v_device(&self, members: &[i32]) -> Option<Called<i32>> {
        let mut dev = -1;
        // SAFETY: a valid pointer for the number; the driver makes the structure.
        unsafe { self.raw.make_v_device(&raw mut dev, Some(members)) }.map(|code| ok(code).map(|()| dev))
    }
}

/// The number of NICs that this process's comms use together: `TEST_FUSED`, one number, or one for each of two processes.
fn fused_here() -> Option<i32> {
    let asked = std::env::var("TEST_FUSED").ok()?;
    let role = std::env::var("TRUNKLINE_TEST_ROLE").ok().and_then(|role| role.parse().ok()).unwrap_or(0);
    let counts: Vec<i32> = asked.split(',').map(|count| count.parse().expect("a number of NICs")).collect();
    counts.get(role).or(counts.first()).copied()
}

/// A new number for each use, so that no two messages of a test have equal bytes.
pub(crate) fn fresh_seed() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
