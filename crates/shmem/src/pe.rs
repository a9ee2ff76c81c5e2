//! This process as a PE of an OpenSHMEM program: its start and end, and all that `abi` finds in it: memory, teams, contexts, heap and locks. Made
//! by `shmem_init`. Waits only where OpenSHMEM's calls do.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trunkline_engine::{EngineParams, ExecuteBy, SharedHeap, WaitPolicy};
use trunkline_fabric::LogLevel;
use trunkline_mem::ipc::PrivateMemory;
use trunkline_mem::{MemoryRange, SharedMemory, StaticVariables};
use trunkline_proto::reserve::{try_collect, try_vec};
use trunkline_proto::wire::pe::{PeRecord as Told, SEGMENTS, SymmetricSegment as ToldSegment};
use trunkline_runtime::{JobMember, OneSided};

use crate::alloc::SymmetricHeap;
use crate::collective::TeamMember;
use crate::ctx::{ContextTable, ContextTarget};
use crate::error::{Result, ShmemError};
use crate::fabric_transport::FabricTransport;
use crate::layout::{ENDS, EXIT, InnerLayout, LEFT};
use crate::lock::LockTable;
use crate::memory::SymmetricMemory;
use crate::neighbour_statics::{self, NeighbourStatics};
use crate::pe_access::PeAccess;
use crate::process_pe::ENDS_WITHIN;
use crate::settings::ShmemSettings;
use crate::symmetric_segments::{HEAP, INNER, STATICS, SymmetricSegments};
use crate::team::{PES_MAX, SHARED, Team, TeamTable, WORLD};

/// Passive progress is what OpenSHMEM's programs expect.
const DEFAULTS: [(&str, &str); 1] = [("TRUNKLINE_PROGRESS_THREAD", "1")];
/// How long PEs may take to meet, each step.
const MEETING: Duration = Duration::from_secs(120);

/// What heaps begin at a multiple of, at most: nothing can be aligned to more.
pub(crate) const ALIGN_MAX: usize = 1 << 32;

/// A PE.
///
/// `process_pe` has the one of this process; `abi` finds in it what a call of C works on. It moves no bytes itself: `team_member` and the
/// memory in that do.
pub(crate) struct Pe {
    /// This PE in its teams, with the symmetric memory by which it reaches all others.
    pub(crate) team_member: TeamMember,
    pub(crate) ctxs: ContextTable,
    pub(crate) heap: Mutex<SymmetricHeap>,
    /// The thread level that was granted.
    pub(crate) threads: AtomicU32,
    pub(crate) left: AtomicBool,
    /// Where the next look at any of several words begins.
    pub(crate) turn: AtomicUsize,
    /// It said once that the heap is full.
    pub(crate) told: AtomicBool,
    pub(crate) locks: LockTable,
    /// The launcher, for the end.
    member: Mutex<Option<JobMember>>,
    /// What others map; held so that they find it.
    _shared: [Option<SharedMemory>; SEGMENTS],
    /// By which others copy from it; they do as long as this is there, whoever this PE itself copies from.
    _copied: Option<Arc<PrivateMemory>>,
}

fn log_to_stderr(debug: bool) -> impl Fn(LogLevel, &str) + Send + Sync + 'static {
    move |level, line: &str| {
        if debug || level == LogLevel::Warn {
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
        let settings = ShmemSettings::from_variables(|name| std::env::var(name).ok())?;
        let mut params = trunkline_runtime::params_or(&DEFAULTS)?;
        // Neighbours change words by themselves.
        params.execute_by = ExecuteBy::Owner;
        let passive = params.progress_thread;
        let shared_heap = params.shared_heap;
        let bytes = round_to_pages(settings.heap)?;
        // What is aligned in the heap is so in each PE.
        let heap =
            SharedMemory::new_aligned("trunkline.heap", bytes, bytes.next_power_of_two().min(ALIGN_MAX))?;
        let statics = share_statics(&params, &log_to_stderr(settings.debug))?;
        // Before the PEs meet: one that finds no memory keeps none waiting.
        let ctxs = ContextTable::new()?;
        let (job, mut member) =
            JobMember::join(params, None, MEETING, "OpenSHMEM library", log_to_stderr(settings.debug))?;
        let me = member.rank;
        let size = member.size;
        if size > PES_MAX {
            return Err(ShmemError::Exhausted { what: "PEs", limit: PES_MAX });
        }
        let layout = InnerLayout::new(size);
        let inner = SharedMemory::new("trunkline.inner", layout.len() as usize)?;
        if me == 0 {
            print_banner(&settings, size);
        }
        let memory = [heap.memory().clone(), statics.1, inner.memory().clone()];
        let shared = [Some(heap), statics.0, Some(inner)];
        let told = own_record(&memory, &shared)?;
        let all = parse_records(&member.exchange(&told.to_bytes())?, &told)?;
        let mut near = map_neighbours(&all, me, &told, &memory, shared_heap)?;
        let copied = open_statics(&mut member, &mut near, &all, &memory[STATICS])?;
        let wants_fabric = near.iter().any(|near| !near.is_whole());
        let given = member.exchange(&[u8::from(wants_fabric)])?;
        let (ours, count) = shared_team(&all, me, &near)?;
        let segments = SymmetricSegments(memory);
        let far = match given.iter().all(|bytes| bytes.first() == Some(&0)) {
            true => None,
            false => Some(start_fabric(job, &mut member, &segments, layout, passive)?),
        };
        member.barrier()?;
        log_reach(&log_to_stderr(settings.debug), me, size, &near, &segments);
        if me == 0 && !settings.ignored.is_empty() {
            let line = format!("{} of other libraries do nothing here", settings.ignored.join(", "));
            log_to_stderr(settings.debug)(LogLevel::Info, &line);
        }
        let heap_bytes = segments.0[HEAP].len() as u64;
        let reached = SymmetricMemory::new(me, segments, near, far, WaitPolicy::CHANGE.for_threads(count));
        Ok(Self {
            team_member: TeamMember::new(reached, ours, layout),
            ctxs,
            heap: Mutex::new(SymmetricHeap::new(heap_bytes)),
            threads: AtomicU32::new(0),
            left: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            told: AtomicBool::new(false),
            locks: LockTable::default(),
            member: Mutex::new(Some(member)),
            _shared: shared,
            _copied: copied,
        })
    }

    /// The symmetric memory of all PEs, as this one reaches it.
    #[inline]
    pub(crate) fn symmetric_memory(&self) -> &SymmetricMemory {
        self.team_member.symmetric_memory()
    }

    /// The teams that this PE is in.
    #[inline]
    pub(crate) fn team_table(&self) -> &TeamTable {
        self.team_member.team_table()
    }

    /// Leaves, when all PEs do.
    ///
    /// # Errors
    /// As a barrier.
    pub(crate) fn finalize_pe(&self) -> Result<()> {
        self.team_member.barrier_all()?;
        self.left.store(true, Ordering::Release);
        let _ = self.symmetric_memory().own_segments().0[INNER].store(LEFT, 1);
        if let Some(far) = self.symmetric_memory().find_fabric() {
            far.quiet_all()?;
        }
        let member = self.member.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut member) = member {
            // Nobody leaves while another waits for what is on its way.
            member.barrier()?;
        }
        if let Some(far) = self.symmetric_memory().find_fabric() {
            far.stop_helper();
        }
        Ok(())
    }

    /// Ends the program in all PEs.
    pub(crate) fn exit_all(&self, status: i32) {
        let memory = self.symmetric_memory();
        let word = u64::from(status.cast_unsigned()) | ENDS;
        let until = Instant::now() + ENDS_WITHIN;
        let others = || (1..memory.pe_count()).map(|step| (memory.own_pe() + step) % memory.pe_count());
        // By the control streams first: whoever hears of an end waits only so long for the reason.
        if let Some(far) = memory.find_fabric() {
            for pe in others().filter(|&pe| memory.mapped_memory(pe, INNER).is_none()) {
                while far.send_exit(pe, EXIT, word).is_ok_and(|said| !said) && Instant::now() < until {}
            }
        }
        // And by what reaches those that compute where nobody listens for them. Who cannot be told is gone.
        let listed = try_collect(others());
        if listed.is_err() {
            // Without memory for a list each PE gets the word once.
            others().for_each(|pe| drop(memory.try_put_word(pe, EXIT, word)));
        }
        let mut untold = listed.unwrap_or_default();
        let mut until = Instant::now() + ENDS_WITHIN;
        loop {
            let left = untold.len();
            untold.retain(|&pe| memory.try_put_word(pe, EXIT, word).is_ok_and(|told| !told));
            // Those that were told first may be gone before the last one is: that is told once for each, and the others are still waited for.
            let complete = memory.poll_quiet_all().unwrap_or(false);
            let now = Instant::now();
            if untold.len() < left {
                until = now + ENDS_WITHIN;
            }
            // Who does not answer does not keep this PE from ending.
            if untold.is_empty() && complete || now > until {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// What a handle of C stands for.
    #[inline]
    pub(crate) fn context_target(&self, ctx: usize) -> Result<ContextTarget> {
        self.ctxs.find_context(ctx, self.team_table())
    }
}

/// Bytes of whole pages.
fn round_to_pages(bytes: u64) -> Result<usize> {
    let bytes = bytes.checked_next_multiple_of(4096).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or(ShmemError::Argument("no symmetric heap is that large"))
}

/// Static variables of the program, made memory that others map unless that is not wanted, or refused.
fn share_statics(
    params: &EngineParams,
    log: &dyn Fn(LogLevel, &str),
) -> Result<(Option<SharedMemory>, MemoryRange)> {
    let Some(statics) = StaticVariables::find() else { return Ok((None, MemoryRange::try_heap(0)?)) };
    if params.shared_statics {
        // SAFETY: a program's first call, before threads of its own use static variables at the same time, as OpenSHMEM asks for; those of
        // C are no Rust references.
        match unsafe { statics.share_as_file() } {
            Ok(shared) => {
                let memory = shared.memory().clone();
                return Ok((Some(shared), memory));
            }
            Err(cause) => log(
                LogLevel::Warn,
                &format!(
                    "static variables are not shared with PEs of this host, and go over the network: {cause}"
                ),
            ),
        }
        // What could not be shared is where it was.
        let Some(statics) = StaticVariables::find() else { return Ok((None, MemoryRange::try_heap(0)?)) };
        // SAFETY: variables of C are no Rust references.
        return Ok((None, unsafe { statics.memory() }));
    }
    // SAFETY: variables of C are no Rust references.
    Ok((None, unsafe { statics.memory() }))
}

/// Prints what the environment asks for.
fn print_banner(settings: &ShmemSettings, size: usize) {
    if settings.version {
        println!("Trunkline {}, OpenSHMEM 1.5, {size} PEs", env!("CARGO_PKG_VERSION"));
    }
    if settings.info {
        println!("{}", settings.help_text());
    }
}

/// For `SHMEM_DEBUG`: how this PE reaches the others.
fn log_reach(
    log: &dyn Fn(LogLevel, &str),
    me: usize,
    size: usize,
    near: &[PeAccess],
    segments: &SymmetricSegments,
) {
    let heap = segments.0[HEAP].len();
    let statics = segments.0[STATICS].len();
    let whole = near.iter().filter(|near| near.is_whole()).count() - 1;
    let parted = near.iter().filter(|near| near.is_parted()).count();
    let line = format!(
        "PE {me} of {size}: {heap} bytes of symmetric heap, {statics} of static variables; loads and stores reach {whole} PEs, in part {parted}, and \
         the network {}",
        size - 1 - whole - parted
    );
    log(LogLevel::Info, &line);
}

/// What this PE says of itself.
fn own_record(memory: &[MemoryRange; SEGMENTS], shared: &[Option<SharedMemory>; SEGMENTS]) -> Result<Told> {
    let segment = |at: usize| {
        let found = shared[at].as_ref().map(SharedMemory::file_id);
        let len = memory[at].len() as u64;
        found.map_or(ToldSegment { len, inode: 0, fd: 0 }, |found| ToldSegment {
            len,
            inode: found.inode,
            fd: found.fd,
        })
    };
    Ok(Told { node: node_id(), pid: std::process::id(), segments: [segment(0), segment(1), segment(2)] })
}

/// What processes have together that find each other by number.
fn node_id() -> [u8; 24] {
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
fn parse_records(given: &[Vec<u8>], own: &Told) -> Result<Vec<Told>> {
    let mut all = try_vec(given.len())?;
    for (pe, bytes) in given.iter().enumerate() {
        let told = Told::from_bytes(bytes).map_err(|source| ShmemError::Pe { pe, source })?;
        for (at, what) in ["symmetric heap", "static variables", "inner memory"].into_iter().enumerate() {
            let theirs = told.segments[at].len;
            let ours = own.segments[at].len;
            if theirs != ours {
                return Err(ShmemError::Differ { pe, what, theirs, ours });
            }
        }
        all.push(told);
    }
    Ok(all)
}

/// Maps the memory of those who may be.
fn map_neighbours(
    all: &[Told],
    me: usize,
    own: &Told,
    memory: &[MemoryRange; SEGMENTS],
    shared_heap: SharedHeap,
) -> Result<Box<[PeAccess]>> {
    let together = |pe: usize| match shared_heap {
        SharedHeap::Host => true,
        SharedHeap::Nobody => false,
        SharedHeap::Of(count) => pe / count as usize == me / count as usize,
    };
    let near = |(pe, told): (usize, &Told)| match pe {
        _ if pe == me => PeAccess::of_own_memory(memory),
        _ if (told.node == own.node && together(pe)) => PeAccess::map_neighbour(told),
        _ => PeAccess::default(),
    };
    Ok(try_collect(all.iter().enumerate().map(near))?.into_boxed_slice())
}

/// Has the system copy from static variables of neighbours that are not mapped, if there are any. All PEs do the same. What is to be held as
/// long as others may copy from this one.
fn open_statics(
    member: &mut JobMember,
    near: &mut [PeAccess],
    all: &[Told],
    statics: &MemoryRange,
) -> Result<Option<Arc<PrivateMemory>>> {
    let missing = |told: &Told| told.segments[STATICS].inode == 0 && told.segments[STATICS].len > 0;
    if !all.iter().any(missing) {
        return Ok(None);
    }
    let by = Arc::new(PrivateMemory::new()?);
    let given = member.exchange(&neighbour_statics::export_statics(&by, statics.addr())?)?;
    for (near, told) in near.iter_mut().zip(&given) {
        // Of neighbours the heap is mapped.
        if near.segment_memory(HEAP).is_some() && near.segment_memory(STATICS).is_none() {
            near.behind = NeighbourStatics::open(&by, told);
        }
    }
    Ok(Some(by))
}

/// The team of those who share memory with this PE, and how many PEs are on this host.
fn shared_team(all: &[Told], me: usize, near: &[PeAccess]) -> Result<(Team, usize)> {
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
fn start_fabric(
    network: OneSided,
    member: &mut JobMember,
    segments: &SymmetricSegments,
    layout: InnerLayout,
    passive: bool,
) -> Result<FabricTransport> {
    for memory in &segments.0 {
        network.add_heap(memory.clone())?;
    }
    // Who begins something finds all heaps of all.
    member.barrier()?;
    FabricTransport::new(network, segments.0[INNER].clone(), layout.stages_offset(), passive)
}

const _: () = assert!(STATICS == 1 && WORLD == 0);
