//! This process as a PE of an OpenSHMEM program: its symmetric memory, how it reaches that of others, and what they have together. Made by
//! `shmem_init`; everything in `abi` is a call of this. Waits only where OpenSHMEM's calls do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trunkline_engine::{ExecuteBy, Params, SharedHeap};
use trunkline_fabric::Level;
use trunkline_mem::ipc::Private;
use trunkline_mem::{Memory, OutOfMemory, Shared, Statics};
use trunkline_proto::ranges::Ranges;
use trunkline_proto::reserve::{try_collect, try_vec};
use trunkline_proto::wire::pe::{Pe as Told, SEGMENTS, Segment as ToldSegment};
use trunkline_runtime::{Member, Running};

use crate::behind::{self, Behind};
use crate::ctx::{Ctxs, On};
use crate::error::{Error, Result};
use crate::far::Far;
use crate::layout::{ENDS, EXIT, LEFT, Layout};
use crate::lock::Held;
use crate::near::Near;
use crate::place::{HEAP, INNER, Place, STATICS, Segment, Segments};
use crate::settings::Settings;
use crate::team::{PES_MAX, SHARED, Team, Teams, WORLD};
use crate::wait::{Tests, spins};
use crate::world::ENDS_WITHIN;

/// Passive progress is what OpenSHMEM's programs expect.
const DEFAULTS: [(&str, &str); 1] = [("TRUNKLINE_PROGRESS_THREAD", "1")];
/// How long PEs may take to meet, each step.
const MEETING: Duration = Duration::from_secs(120);

/// What heaps begin at a multiple of, at most: nothing can be aligned to more.
pub(crate) const ALIGN_MAX: usize = 1 << 32;

/// A PE.
pub(crate) struct Pe {
    pub(crate) me: usize,
    pub(crate) size: usize,
    pub(crate) segments: Segments,
    pub(crate) near: Box<[Near]>,
    /// Of some PE a part of the memory is mapped and a part is not.
    pub(crate) parted: bool,
    /// What goes over the fabric, if anything does.
    pub(crate) far: Option<Far>,
    pub(crate) layout: Layout,
    pub(crate) teams: Teams,
    pub(crate) ctxs: Ctxs,
    pub(crate) heap: Mutex<Heap>,
    /// Fruitless looks before it gives its processor away.
    pub(crate) spins: u32,
    /// The thread level that was granted.
    pub(crate) threads: AtomicU32,
    pub(crate) left: AtomicBool,
    /// Where the next look at any of several words begins.
    pub(crate) turn: AtomicUsize,
    pub(crate) tests: Tests,
    /// It said once that the heap is full.
    pub(crate) told: AtomicBool,
    /// Locks of the program that threads of this PE hold or wait for.
    pub(crate) locks: Mutex<Vec<Held>>,
    /// The launcher, for the end.
    member: Mutex<Option<Member>>,
    /// What others map; held so that they find it.
    _shared: [Option<Shared>; SEGMENTS],
    /// By which others copy from it; they do as long as this is there, whoever this PE itself copies from.
    _copied: Option<Arc<Private>>,
}

/// The symmetric heap: what is taken of it.
#[derive(Debug)]
pub(crate) struct Heap {
    pub(crate) ranges: Ranges,
    /// By the offset that C has: where its bytes begin, how many, and how many C asked for.
    pub(crate) taken: HashMap<u64, (u64, u64, u64)>,
}

impl Heap {
    /// Makes room in the tables for one more allocation, and for the gap that it may leave: freeing needs no memory.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn reserve_tables(&mut self) -> std::result::Result<(), OutOfMemory> {
        if !crate::planted("shmem-aborts-without-memory") {
            let bytes = (self.taken.len() + 1) * size_of::<(u64, (u64, u64, u64))>();
            self.taken.try_reserve(1).map_err(|_| OutOfMemory { bytes })?;
        }
        self.ranges.reserve_gap()
    }
}

fn log(debug: bool) -> impl Fn(Level, &str) + Send + Sync + 'static {
    move |level, line: &str| {
        if debug && !crate::planted("shmem-debugs-in-silence") || level == Level::Warn {
            eprintln!("trunkline: {line}");
        }
    }
}

impl Pe {
    /// Joins the job that the environment tells of.
    ///
    /// # Errors
    /// What the environment says cannot be, memory cannot be had, or the others do not come.
    pub(crate) fn start() -> Result<Self> {
        let settings = Settings::read(|name| std::env::var(name).ok())?;
        let mut params = trunkline_runtime::params_or(&DEFAULTS)?;
        // Neighbours change words by themselves.
        params.execute_by = ExecuteBy::Owner;
        let passive = params.progress_thread;
        let shared_heap = params.shared_heap;
        let bytes = page(settings.heap)?;
        // What is aligned in the heap is so in each PE.
        let heap = Shared::aligned("trunkline.heap", bytes, bytes.next_power_of_two().min(ALIGN_MAX))?;
        let statics = statics(&params, &log(settings.debug))?;
        // Before the PEs meet: one that finds no memory keeps none waiting.
        let ctxs = Ctxs::new()?;
        let (job, mut member) =
            Member::join(params, None, MEETING, "OpenSHMEM library", log(settings.debug))?;
        let me = member.rank;
        let size = member.size;
        if size > PES_MAX {
            return Err(Error::Exhausted { what: "PEs", limit: PES_MAX });
        }
        let layout = Layout::new(size);
        let inner = Shared::new("trunkline.inner", layout.len() as usize)?;
        if me == 0 {
            say(&settings, size);
        }
        let memory = [heap.memory().clone(), statics.1, inner.memory().clone()];
        let shared = [Some(heap), statics.0, Some(inner)];
        let told = told(&memory, &shared)?;
        let all = read(&member.exchange(&told.to_bytes())?, &told)?;
        let mut near = neighbours(&all, (me, &told), &memory, shared_heap)?;
        let copied = behind(&mut member, &mut near, &all, &memory[STATICS])?;
        let wants_fabric = near.iter().any(|near| !near.is_whole());
        let given = member.exchange(&[u8::from(wants_fabric)])?;
        let (ours, count) = hosts(&all, me, &near)?;
        let segments = Segments(memory);
        let far = match given.iter().all(|bytes| bytes.first() == Some(&0)) {
            true => None,
            false => Some(fabric(job, &mut member, &segments, (layout, passive))?),
        };
        member.barrier()?;
        tell(&log(settings.debug), (me, size), &near, &segments);
        if me == 0 && !settings.ignored.is_empty() {
            let line = format!("{} of other libraries do nothing here", settings.ignored.join(", "));
            log(settings.debug)(Level::Info, &line);
        }
        Ok(Self {
            me,
            size,
            parted: near.iter().any(Near::is_parted),
            near,
            far,
            layout,
            teams: Teams::new(size, ours),
            ctxs,
            heap: Mutex::new(Heap { ranges: Ranges::new(segments.0[0].len() as u64), taken: HashMap::new() }),
            segments,
            spins: spins(count),
            threads: AtomicU32::new(0),
            left: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            tests: Tests::default(),
            told: AtomicBool::new(false),
            locks: Mutex::default(),
            member: Mutex::new(Some(member)),
            _shared: shared,
            _copied: copied.filter(|_| !crate::planted("shmem-forgets-who-copies")),
        })
    }

    /// Leaves, when all PEs do.
    ///
    /// # Errors
    /// As a barrier.
    pub(crate) fn leave(&self) -> Result<()> {
        self.barrier_all()?;
        self.left.store(true, Ordering::Release);
        let _ = self.segments.0[INNER].store(LEFT, 1);
        if let Some(far) = &self.far {
            far.quiet_all()?;
        }
        let member = self.member.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut member) = member {
            // Nobody leaves while another waits for what is on its way.
            member.barrier()?;
        }
        if let Some(far) = &self.far {
            far.rest();
        }
        Ok(())
    }

    /// Ends the program in all PEs.
    pub(crate) fn exit_all(&self, status: i32) {
        let word = u64::from(status.cast_unsigned()) | ENDS;
        let until = Instant::now() + ENDS_WITHIN;
        let others = || (1..self.size).map(|step| (self.me + step) % self.size);
        // By the control streams first: whoever hears of an end waits only so long for the reason.
        if let Some(far) = self.far.as_ref().filter(|_| !crate::planted("shmem-ends-by-links-alone")) {
            for pe in others().filter(|&pe| self.mapped(pe, INNER).is_none()) {
                while far.end(pe, EXIT, word).is_ok_and(|said| !said) && Instant::now() < until {}
            }
        }
        // And by what reaches those that compute where nobody listens for them. Who cannot be told is gone.
        let listed = try_collect(others());
        if listed.is_err() {
            // Without memory for a list each PE gets the word once.
            others().for_each(|pe| drop(self.try_tell(pe, EXIT, word)));
        }
        let mut untold = listed.unwrap_or_default();
        let mut until = Instant::now() + ENDS_WITHIN;
        loop {
            let left = untold.len();
            untold.retain(|&pe| self.try_tell(pe, EXIT, word).is_ok_and(|told| !told));
            // Those that were told first may be gone before the last one is: that is told once for each, and the others are still waited for.
            let complete = self.try_complete().unwrap_or(false);
            let now = Instant::now();
            if untold.len() < left {
                until = now + ENDS_WITHIN;
            }
            // Who does not answer does not keep this PE from ending.
            if untold.is_empty() && complete || now > until && !crate::planted("shmem-ends-when-all-hear") {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// What a handle of C stands for.
    #[inline]
    pub(crate) fn on(&self, ctx: usize) -> Result<On> {
        self.ctxs.named(ctx, &self.teams)
    }

    /// Where bytes of this process are in symmetric memory.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`].
    #[inline]
    pub(crate) fn place(&self, addr: usize, len: usize) -> Result<Place> {
        self.segments.find(addr, len).ok_or_else(|| Error::not_symmetric(addr, len))
    }

    /// A range of a PE's memory, if it is mapped here.
    #[inline]
    pub(crate) fn mapped(&self, pe: usize, segment: Segment) -> Option<&Memory> {
        self.near[pe].segment(segment)
    }

    /// The fabric, which is there if any memory is not mapped.
    #[inline]
    pub(crate) fn far(&self) -> Result<&Far> {
        self.far.as_ref().ok_or_else(Error::not_running)
    }

    /// Whether a PE's memory of that kind is read and written by loads and stores, and where.
    pub(crate) fn pointer(&self, place: Place, pe: usize) -> Option<usize> {
        let memory = self.mapped(pe, place.segment)?;
        Some(memory.addr() + place.offset as usize)
    }
}

/// Bytes of whole pages.
fn page(bytes: u64) -> Result<usize> {
    let bytes = bytes.checked_next_multiple_of(4096).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or(Error::Argument("no symmetric heap is that large"))
}

/// Static variables of the program, made memory that others map unless that is not wanted, or refused.
fn statics(params: &Params, log: &dyn Fn(Level, &str)) -> Result<(Option<Shared>, Memory)> {
    let Some(statics) = Statics::find() else { return Ok((None, Memory::try_heap(0)?)) };
    if params.shared_statics {
        // SAFETY: a program's first call, before threads of its own use static variables at the same time, as OpenSHMEM asks for; those of
        // C are no Rust references.
        match unsafe { statics.share() } {
            Ok(shared) => {
                let memory = shared.memory().clone();
                return Ok((Some(shared), memory));
            }
            Err(_) if crate::planted("shmem-refused-in-silence") => {}
            Err(cause) => log(
                Level::Warn,
                &format!(
                    "static variables are not shared with PEs of this host, and go over the network: {cause}"
                ),
            ),
        }
        // What could not be shared is where it was.
        let Some(statics) = Statics::find() else { return Ok((None, Memory::try_heap(0)?)) };
        // SAFETY: variables of C are no Rust references.
        return Ok((None, unsafe { statics.memory() }));
    }
    // SAFETY: variables of C are no Rust references.
    Ok((None, unsafe { statics.memory() }))
}

/// Prints what the environment asks for.
fn say(settings: &Settings, size: usize) {
    if settings.version {
        println!("Trunkline {}, OpenSHMEM 1.5, {size} PEs", env!("CARGO_PKG_VERSION"));
    }
    if settings.info {
        println!("{}", settings.help());
    }
}

/// For `SHMEM_DEBUG`: how this PE reaches the others.
fn tell(log: &dyn Fn(Level, &str), (me, size): (usize, usize), near: &[Near], segments: &Segments) {
    let heap = segments.0[HEAP].len();
    let statics = segments.0[STATICS].len();
    let whole = near.iter().filter(|near| near.is_whole()).count() - 1;
    let parted = near.iter().filter(|near| near.is_parted()).count();
    let line = format!(
        "PE {me} of {size}: {heap} bytes of symmetric heap, {statics} of static variables; loads and stores reach {whole} PEs, in part {parted}, and \
         the network {}",
        size - 1 - whole - parted
    );
    log(Level::Info, &line);
}

/// What this PE says of itself.
fn told(memory: &[Memory; SEGMENTS], shared: &[Option<Shared>; SEGMENTS]) -> Result<Told> {
    let segment = |at: usize| {
        let found = shared[at].as_ref().map(Shared::found);
        let len = memory[at].len() as u64;
        found.map_or(ToldSegment { len, inode: 0, fd: 0 }, |found| ToldSegment {
            len,
            inode: found.inode,
            fd: found.fd,
        })
    };
    Ok(Told { node: node(), pid: std::process::id(), segments: [segment(0), segment(1), segment(2)] })
}

/// What processes have together that find each other by number.
fn node() -> [u8; 24] {
    let mut node = [0; 24];
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = boot.bytes().filter_map(|digit| char::from(digit).to_digit(16));
    for (at, digit) in digits.take(32).enumerate() {
        node[at / 2] |= (digit as u8) << if at.is_multiple_of(2) { 4 } else { 0 };
    }
    let space = rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino);
    node[16..].copy_from_slice(&space.to_le_bytes());
    node
}

/// What the others said, which must fit.
fn read(given: &[Vec<u8>], own: &Told) -> Result<Vec<Told>> {
    let mut all = try_vec(given.len())?;
    for (pe, bytes) in given.iter().enumerate() {
        let told = Told::from_bytes(bytes).map_err(|source| Error::Pe { pe, source })?;
        for (at, what) in ["symmetric heap", "static variables", "inner memory"].into_iter().enumerate() {
            let theirs = told.segments[at].len;
            let ours = own.segments[at].len;
            if theirs != ours {
                return Err(Error::Differ { pe, what, theirs, ours });
            }
        }
        all.push(told);
    }
    Ok(all)
}

/// Maps the memory of those who may be.
fn neighbours(
    all: &[Told],
    (me, own): (usize, &Told),
    memory: &[Memory; SEGMENTS],
    shared_heap: SharedHeap,
) -> Result<Box<[Near]>> {
    let together = |pe: usize| match shared_heap {
        SharedHeap::Host => true,
        SharedHeap::Nobody => false,
        SharedHeap::Of(count) => pe / count as usize == me / count as usize,
    };
    let near = |(pe, told): (usize, &Told)| match pe {
        _ if pe == me => Near::own(memory),
        _ if (told.node == own.node && together(pe)) => Near::of(told),
        _ => Near::default(),
    };
    Ok(try_collect(all.iter().enumerate().map(near))?.into_boxed_slice())
}

/// Has the system copy from static variables of neighbours that are not mapped, if there are any. All PEs do the same. What is to be held as
/// long as others may copy from this one.
fn behind(
    member: &mut Member,
    near: &mut [Near],
    all: &[Told],
    statics: &Memory,
) -> Result<Option<Arc<Private>>> {
    let missing = |told: &Told| told.segments[STATICS].inode == 0 && told.segments[STATICS].len > 0;
    if !all.iter().any(missing) {
        return Ok(None);
    }
    let by = Arc::new(Private::new()?);
    let given = member.exchange(&behind::told(&by, statics.addr())?)?;
    for (near, told) in near.iter_mut().zip(&given) {
        // Of neighbours the heap is mapped.
        if near.segment(HEAP).is_some() && near.segment(STATICS).is_none() {
            near.behind = Behind::open(&by, told);
        }
    }
    Ok(Some(by))
}

/// The team of those who share memory with this PE, and how many PEs are on this host.
fn hosts(all: &[Told], me: usize, near: &[Near]) -> Result<(Team, usize)> {
    let mut whole: Vec<usize> = try_vec(all.len())?;
    whole.extend((0..all.len()).filter(|&pe| near[pe].is_whole()));
    let stride = match whole[..] {
        [first, second, ..] => second - first,
        _ => 1,
    };
    let even = whole.windows(2).all(|pair| pair[1] - pair[0] == stride);
    let start = if even { whole.first().copied().unwrap_or(me) } else { me };
    let size = if even { whole.len().max(1) } else { 1 };
    let count = all.iter().filter(|told| told.node == all[me].node).count();
    Ok((Team { slot: SHARED, start, stride: stride as i64, size }, count))
}

/// Gives the engine the memory that others reach.
fn fabric(
    job: Running,
    member: &mut Member,
    segments: &Segments,
    (layout, passive): (Layout, bool),
) -> Result<Far> {
    for memory in &segments.0 {
        job.add_heap(memory.clone())?;
    }
    // Who begins something finds all heaps of all.
    member.barrier()?;
    Far::new(job, segments.0[INNER].clone(), layout.stages(), passive)
}

const _: () = assert!(STATICS == 1 && WORLD == 0);
