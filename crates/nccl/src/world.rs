//! The plugin's one process-wide cell: the engine, made by the first init and there until the library is unloaded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_engine::host::UnixHost;
use trunkline_engine::{Engine, Helper, Params};
use trunkline_fabric::trace::Traced;
use trunkline_fabric::{Level, Split};
use trunkline_mem::gpu::Gpus;
use trunkline_runtime::{Banner, ChooseError, FrontEnd, Hardware, soft_config};
use trunkline_softnic::SoftFabric;

use crate::abi::log::Log;
use crate::abi::unload::{Kept, Reserved, watch_for_the_end};
use crate::contexts::Contexts;
use crate::devices::Devices;
use crate::planted;
use crate::running::Running;
use crate::status::CallError;
use crate::trace::{Trace, Written};

/// Everything that outlives a call.
pub(crate) struct World {
    pub(crate) engine: Running,
    pub(crate) devices: Devices,
    /// Drivers of GPUs, if NICs reach their memory.
    pub(crate) gpus: Gpus,
    pub(crate) log: Arc<Log>,
    trace: Option<Trace>,
    /// Communicators of NCCL that have told us what they are for.
    pub(crate) contexts: Contexts,
    /// Communicators of NCCL that init was called for and finalize was not.
    entered: AtomicUsize,
    /// The process that made it. A forked child has a copy, whose connections are not its own.
    process: u32,
    /// NICs without a place in the PCI tree are fused, too.
    pub(crate) fuses_all: bool,
    /// A thread is to go on for NCCL while it makes no call.
    helped: bool,
    helper: Mutex<Option<Helper>>,
}

/// The place of the world; one init at a time may try to make it.
struct Cell {
    world: Kept<World>,
    starting: Mutex<()>,
}

static WORLD: Cell = Cell { world: Kept::new(), starting: Mutex::new(()) };

/// The world, if init was called.
#[inline]
pub(crate) fn world() -> Result<&'static World, CallError> {
    let Some(world) = WORLD.world.get() else { return Err(CallError::NotStarted) };
    Ok(world)
}

/// Makes the world, the first time. A failed start may be tried again.
pub(crate) fn start(log: Log) -> Result<&'static World, CallError> {
    let _one_at_a_time = WORLD.starting.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(world) = WORLD.world.get() {
        return Ok(world);
    }
    let log = Arc::new(log);
    let reserved = Reserved::new().map_err(|error| CallError::Engine(error.into()));
    let made = reserved.and_then(|reserved| Ok((reserved, make(&log)?)));
    let (reserved, made) = made.map_err(|error| {
        // There is no world whose log could tell it.
        let text = format!("init: {}", trunkline_engine::in_full(&error));
        log.line(Level::Warn, &text);
        if let CallError::Choose(ChooseError::NoNic(_)) = error {
            log.show_hidden(&text);
        }
        CallError::Told(error.code())
    })?;
    watch_for_the_end(&WORLD.world);
    Ok(WORLD.world.put(reserved, made))
}

/// Where the world is kept, for whoever ends it.
pub(crate) fn kept() -> &'static Kept<World> {
    &WORLD.world
}

fn make(log: &Arc<Log>) -> Result<World, CallError> {
    let params = trunkline_runtime::params()?;
    let told = |level, line: &str| {
        log.line(level, &format!("trunkline: {line}"));
        if level == Level::Warn {
            log.show_hidden(line);
        }
    };
    let hardware = Hardware::open(&params, told)?;
    // A driver begins only for NICs that reach its memory; the one for neighbours does not.
    let gpus = if hardware.reaches_devices() && !params.near { Gpus::open() } else { Gpus::default() };
    make_of(log, params, hardware, gpus)
}

/// The same of what has been opened.
fn make_of(log: &Arc<Log>, mut params: Params, hardware: Hardware, gpus: Gpus) -> Result<World, CallError> {
    // NCCL from 2.19 to 2.32 and RCCL go on to their own transports after an init that fails, and as well where `devices` counts none; the second
    // way is no error in their logs. There is an engine all the same, so that each call finds one; it listens nowhere.
    let offers = !matches!(hardware, Hardware::PassedOver) || planted("nccl-offers-software-nic");
    let addresses = if offers { trunkline_runtime::addresses(&params)? } else { Vec::new() };
    params.status &= offers;
    let reach = trunkline_runtime::reach(&params, &addresses);
    let trace = Trace::begin(&params).unwrap_or_else(|error| {
        log.line(Level::Warn, &format!("no trace: {error}"));
        None
    });
    let recorder = trace.as_ref().map(|trace| Arc::clone(&trace.recorder));
    let engine_log = Arc::clone(log);
    let host = UnixHost::reached(reach, move |level, text| engine_log.line(level, text));
    let helped = params.progress_thread;
    let fuses_all = params.fuses_all;
    let near = trunkline_runtime::near(&params)?;
    if hardware.reaches_devices() {
        tell_drivers(log, &gpus);
    }
    let banner_params = params.clone();
    let mut front_end = FrontEnd { name: "NCCL plugin", gpu_notes: Vec::new() };
    let mut fabric_name = None;
    let engine = match hardware {
        Hardware::Verbs(fabric) => {
            let told = trunkline_verbs::unheard(|name| std::env::var(name).ok());
            told.iter().for_each(|line| log.line(Level::Warn, line));
            let fabric = if planted("nccl-promises-gpus-without-drivers") {
                fabric
            } else {
                let (fabric, notes) = trunkline_runtime::meet_verbs(fabric, &gpus);
                front_end.gpu_notes = notes;
                fabric
            };
            Running::Verbs(Engine::new(Traced::new(Split::new(fabric, near), recorder), host, params)?)
        }
        Hardware::Ofi(fabric) => {
            fabric_name = Some(format!("ofi:{}", fabric.provider()));
            let (fabric, notes) = trunkline_runtime::meet_ofi(fabric, &gpus);
            front_end.gpu_notes = notes;
            fabric.notes().iter().for_each(|(level, note)| log.line(*level, &format!("trunkline: {note}")));
            Running::Ofi(Engine::new(Traced::new(Split::new(fabric, near), recorder), host, params)?)
        }
        Hardware::None | Hardware::PassedOver => {
            let fabric = SoftFabric::new(soft_config(&params, addresses)).map_err(ChooseError::from)?;
            Running::Soft(Engine::new(Traced::new(fabric, recorder), host, params)?)
        }
    };
    let nics = if offers { engine.devices() } else { &[] };
    let devices = Devices::new(nics);
    let fabric = fabric_name.as_deref().unwrap_or(engine.fabric());
    let banner = Banner { front_end: &front_end, fabric, nics, rails: 1, params: &banner_params };
    if let Some(text) = banner.once() {
        log.line(Level::Info, &text);
    }
    if engine.nics().len() > engine.devices().len() {
        log.line(Level::Info, "trunkline: shared memory connects processes of this host");
    }
    let log = Arc::clone(log);
    let helper = Mutex::new(None);
    let contexts = Contexts::new();
    let entered = AtomicUsize::new(0);
    let process = std::process::id();
    Ok(World { engine, devices, gpus, log, trace, contexts, entered, process, fuses_all, helped, helper })
}

/// Tells which drivers of GPUs there are.
fn tell_drivers(log: &Log, gpus: &Gpus) {
    for gpu in gpus.all() {
        log.line(Level::Info, &format!("trunkline: memory of {} GPUs, {}", gpu.vendor(), gpu.version()));
    }
    for missing in gpus.missing() {
        log.line(Level::Info, &format!("trunkline: {missing}"));
    }
}

impl World {
    pub(crate) fn enter(&'static self) {
        // Whoever enters beside the first waits until that has begun.
        let mut helper = self.helper();
        if self.entered.fetch_add(1, Ordering::AcqRel) == 0 {
            self.devices.begin();
        }
        if self.helped && helper.is_none() {
            match self.engine.help() {
                Ok(started) => *helper = Some(started),
                Err(error) => self.log.line(Level::Warn, &format!("no progress thread: {error}")),
            }
        }
    }

    pub(crate) fn leave(&self) {
        if self.entered.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end_helper();
            self.engine.shutdown();
            self.write_trace();
        }
    }

    /// Writes what was recorded since the last time, if a trace was asked for.
    fn write_trace(&self) {
        let Some(trace) = &self.trace else { return };
        match trace.write(self.engine.nics()) {
            Ok(None) => {}
            Ok(Some(Written { path, recorded, lost })) => {
                let text = format!("trace: {recorded} events in {}, {lost} lost", path.display());
                self.log.line(Level::Info, &text);
            }
            Err(error) => self.log.line(Level::Warn, &format!("no trace: {error}")),
        }
    }

    fn helper(&self) -> MutexGuard<'_, Option<Helper>> {
        self.helper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the thread, unless an init came meanwhile.
    fn end_helper(&self) {
        let mut helper = self.helper();
        if self.entered.load(Ordering::Acquire) == 0 {
            *helper = None;
        }
    }
}

/// Called when the library is unloaded or the process ends: closes what is still open. A forked child leaves alone what
/// is its parent's. Whether there is a world of this process.
pub(crate) fn end() -> bool {
    let Some(world) = WORLD.world.get().filter(|world| world.process == std::process::id()) else {
        return false;
    };
    world.log.silence();
    *world.helper() = None;
    world.engine.unload();
    world.write_trace();
    true
}
