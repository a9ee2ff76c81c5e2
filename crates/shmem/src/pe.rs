//! This process as a PE of an OpenSHMEM program: its start and its end, and the memory, teams, contexts, heap and
//! locks that `abi` uses. `shmem_init` creates it. It waits only in calls that OpenSHMEM defines as blocking.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trunkline_engine::{EngineParams, ExecuteBy, SharedHeap, WaitPolicy};
use trunkline_fabric::LogLevel;
use trunkline_mem::ipc::PrivateMemory;
use trunkline_mem::{MemoryRange, SharedMemory, StaticVariables};
use trunkline_proto::reserve::{try_collect, try_vec};
use trunkline_proto::wire::pe::{PeRecord as Told, SEGMENTS, SymmetricSegment as ToldSegment};
use trunkline_runtime::{ChooseError, FrontEndKind, JobMember, OneSided, ProcessSettings};
use trunkline_settings::SettingValues;

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

/// The limit of each step in which PEs meet.
const MEETING: Duration = Duration::from_secs(120);

/// The largest alignment of a heap, and so of allocations in it.
pub(crate) const ALIGN_MAX: usize = 1 << 32;

/// A PE.
///
/// `process_pe` has the one of this process; `abi` finds the objects of C's calls in it. It moves no bytes itself:
/// `team_member` and its memory do.
pub(crate) struct Pe {
    /// This PE as a member of its teams, with the symmetric memory of all PEs.
    pub(crate) team_member: TeamMember,
    pub(crate) ctxs: ContextTable,
    pub(crate) heap: Mutex<SymmetricHeap>,
    /// The thread level that was granted.
    pub(crate) threads: AtomicU32,
    pub(crate) left: AtomicBool,
    /// The index at which the next poll of several words begins.
    pub(crate) turn: AtomicUsize,
    /// Whether a full heap was reported.
    pub(crate) told: AtomicBool,
    pub(crate) locks: LockTable,
    /// The membership in the job, for the last barrier.
    member: Mutex<Option<JobMember>>,
    /// The memory files that other PEs map; kept open so that they can.
    _shared: [Option<SharedMemory>; SEGMENTS],
    /// The permission for other PEs to copy from this one, which ends when it is dropped.
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
    /// Joins the job that the environment describes.
    ///
    /// # Errors
    /// The environment is invalid, memory cannot be allocated, or other PEs do not join in time.
    pub(crate) fn start() -> Result<Self> {
        let (mut process, settings) =
            read_settings().map_err(|error| JobMember::refuse_start(error, MEETING, log_to_stderr(false)))?;
        let values = process.setting_values().clone();
        let params = &mut process.params;
        // PEs of this host execute atomics by themselves, on memory that they have mapped.
        params.execute_by = ExecuteBy::Owner;
        let passive = params.progress_thread;
        let shared_heap = params.shared_heap;
        let bytes = round_to_pages(settings.heap)?;
        // The heap has the same alignment in each PE, so that aligned offsets are aligned addresses everywhere.
        let heap =
            SharedMemory::new_aligned("trunkline.heap", bytes, bytes.next_power_of_two().min(ALIGN_MAX))?;
        let statics = share_statics(params, &log_to_stderr(settings.debug))?;
        // Allocated before the PEs meet: a PE that finds no memory then keeps no other waiting.
        let ctxs = ContextTable::new()?;
        let (job, mut member) =
            JobMember::join(process, None, MEETING, "OpenSHMEM library", log_to_stderr(settings.debug))?;
        let me = member.rank;
        let size = member.size;
        if size > PES_MAX {
            return Err(ShmemError::Exhausted { what: "PEs", limit: PES_MAX });
        }
        let layout = InnerLayout::new(size);
        let inner = SharedMemory::new("trunkline.inner", layout.len() as usize)?;
        if me == 0 {
            print_banner(&settings, &values, size);
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
        if me == 0 {
            settings.ignored.iter().for_each(|line| log_to_stderr(settings.debug)(LogLevel::Info, line));
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

    /// Returns the symmetric memory of all PEs, as this PE accesses it.
    #[inline]
    pub(crate) fn symmetric_memory(&self) -> &SymmetricMemory {
        self.team_member.symmetric_memory()
    }

    /// Returns the teams of this PE.
    #[inline]
    pub(crate) fn team_table(&self) -> &TeamTable {
        self.team_member.team_table()
    }

    /// Leaves the job, when all PEs do.
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
            // No PE leaves while another waits for operations in flight.
            member.barrier()?;
        }
        if let Some(far) = self.symmetric_memory().find_fabric() {
            far.stop_helper();
        }
        Ok(())
    }

    /// Ends the program in all PEs with `status`.
    pub(crate) fn exit_all(&self, status: i32) {
        let memory = self.symmetric_memory();
        let word = u64::from(status.cast_unsigned()) | ENDS;
        let until = Instant::now() + ENDS_WITHIN;
        let others = || (1..memory.pe_count()).map(|step| (memory.own_pe() + step) % memory.pe_count());
        // The control streams first: a PE that sees the end of a link waits only [`ENDS_WITHIN`] for its reason.
        if let Some(far) = memory.find_fabric() {
            for pe in others().filter(|&pe| memory.mapped_memory(pe, INNER).is_none()) {
                while far.send_exit(pe, EXIT, word).is_ok_and(|said| !said) && Instant::now() < until {}
            }
        }
        // Then the word in memory, which also ends PEs that compute without passive progress. A PE that cannot be
        // reached has ended.
        let listed = try_collect(others());
        if listed.is_err() {
            // Without memory for a list, the word is sent once to each PE.
            others().for_each(|pe| drop(memory.try_put_word(pe, EXIT, word)));
        }
        let mut untold = listed.unwrap_or_default();
        let mut until = Instant::now() + ENDS_WITHIN;
        loop {
            let left = untold.len();
            untold.retain(|&pe| memory.try_put_word(pe, EXIT, word).is_ok_and(|told| !told));
            // PEs that received the word first may have ended before the last one does. A quiet fails once for each
            // of them, and is polled again.
            let complete = memory.poll_quiet_all().unwrap_or(false);
            let now = Instant::now();
            if untold.len() < left {
                until = now + ENDS_WITHIN;
            }
            // A PE that does not respond does not keep this PE from ending.
            if untold.is_empty() && complete || now > until {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Returns the lane and the team of a context handle.
    #[inline]
    pub(crate) fn context_target(&self, ctx: usize) -> Result<ContextTarget> {
        self.ctxs.find_context(ctx, self.team_table())
    }
}

/// Reads the settings of this process.
fn read_settings() -> std::result::Result<(ProcessSettings, ShmemSettings), ChooseError> {
    let process = ProcessSettings::from_process(FrontEndKind::OpenShmem)?;
    let settings = ShmemSettings::from_values(process.setting_values())?;
    Ok((process, settings))
}

/// Rounds a length up to whole pages.
fn round_to_pages(bytes: u64) -> Result<usize> {
    let bytes = bytes.checked_next_multiple_of(4096).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or(ShmemError::Argument(
        "the symmetric heap exceeds the address space; lower SHMEM_SYMMETRIC_SIZE",
    ))
}

/// Makes static variables of the program shared memory, unless the settings forbid it or the system refuses.
fn share_statics(
    params: &EngineParams,
    log: &dyn Fn(LogLevel, &str),
) -> Result<(Option<SharedMemory>, MemoryRange)> {
    let Some(statics) = StaticVariables::find() else { return Ok((None, MemoryRange::try_heap(0)?)) };
    if params.shared_statics {
        // SAFETY: OpenSHMEM requires that this is a program's first call, so no other thread of it uses static
        // variables now. Rust has no references to static variables of C.
        match unsafe { statics.share_as_file() } {
            Ok(shared) => {
                let memory = shared.memory().clone();
                return Ok((Some(shared), memory));
            }
            Err(cause) => log(
                LogLevel::Warn,
                &format!(
                    "static variables are not shared with PEs of this host, and are accessed over the network: {cause}"
                ),
            ),
        }
        // A refused segment is where it was before.
        let Some(statics) = StaticVariables::find() else { return Ok((None, MemoryRange::try_heap(0)?)) };
        // SAFETY: variables of C are no Rust references.
        return Ok((None, unsafe { statics.memory() }));
    }
    // SAFETY: variables of C are no Rust references.
    Ok((None, unsafe { statics.memory() }))
}

/// Prints the version and the variables, where the environment requests them.
fn print_banner(settings: &ShmemSettings, values: &SettingValues, size: usize) {
    if settings.version {
        println!("Trunkline {}, OpenSHMEM 1.5, {size} PEs", env!("CARGO_PKG_VERSION"));
    }
    if settings.info {
        println!("{}", ShmemSettings::help_text(values));
    }
}

/// Logs how this PE accesses the others, for `SHMEM_DEBUG`.
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
        "PE {me} of {size}: {heap} bytes of symmetric heap, {statics} of static variables; memory of {whole} other PEs \
         mapped completely, of {parted} in part; {} reached over the network only",
        size - 1 - whole - parted
    );
    log(LogLevel::Info, &line);
}

/// Returns the description of this PE's memory for other PEs.
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

/// Returns an identifier that is equal in processes that can open each other by process id: boot id and PID
/// namespace.
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

/// Parses the descriptions of all PEs, and checks that their memory has the same lengths.
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

/// Maps the memory of PEs on this host, as far as the settings permit it.
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

/// Opens static variables of PEs on this host that are not mapped, for copies by system calls. All PEs call it.
/// Returns the permission to keep as long as other PEs may copy from this one.
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
        // The heap of each PE on this host is mapped.
        if near.segment_memory(HEAP).is_some() && near.segment_memory(STATICS).is_none() {
            near.behind = NeighbourStatics::open(&by, told);
        }
    }
    Ok(Some(by))
}

/// Returns the team of the PEs that share memory with this one, and the number of PEs on this host.
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

/// Registers the symmetric memory with the engine, and opens the fabric.
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
    // After this barrier, operations of any PE find the heaps of all PEs registered.
    member.barrier()?;
    FabricTransport::new(network, segments.0[INNER].clone(), layout.stages_offset(), passive)
}

const _: () = assert!(STATICS == 1 && WORLD == 0);
