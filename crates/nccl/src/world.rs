//! The plugin's process-wide state: the engine and its surroundings. The first `init` makes it; it exists until the
//! library is unloaded. Every call of the plugin reads it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_engine::host::UnixHost;
use trunkline_engine::{Engine, HelperThread};
use trunkline_fabric::trace::TracedFabric;
use trunkline_fabric::{LogLevel, SplitFabric};
use trunkline_mem::gpu::VendorDrivers;
use trunkline_runtime::{
    ChooseError, FrontEnd, FrontEndKind, HardwareFabric, ProcessBanner, ProcessSettings, soft_config,
};
use trunkline_settings::rows::unused;
use trunkline_softnic::SoftFabric;

use crate::abi::log::NcclLog;
use crate::abi::unload::{ReservedPlace, UnloadCell, watch_for_the_end};
use crate::contexts::NetContexts;
use crate::devices::NetDevices;
use crate::fabric_engine::FabricEngine;
use crate::status::NetCallError;
use crate::trace::{ProcessTrace, WrittenTrace};

/// The state that outlives a call.
pub(crate) struct PluginWorld {
    pub(crate) engine: FabricEngine,
    pub(crate) devices: NetDevices,
    /// Drivers of GPUs; empty unless NICs can access GPU memory.
    pub(crate) gpus: VendorDrivers,
    pub(crate) log: Arc<NcclLog>,
    trace: Option<ProcessTrace>,
    /// The communicators of NCCL versions that pass a context.
    pub(crate) contexts: NetContexts,
    /// Calls of `init` without their `finalize`.
    entered: AtomicUsize,
    /// The process that made the state. A forked child has a copy of it, but does not own its connections.
    process: u32,
    /// Whether NICs that are not in the PCI tree may be fused, too.
    pub(crate) fuses_all: bool,
    /// Whether a progress thread runs while NCCL makes no call.
    helped: bool,
    helper: Mutex<Option<HelperThread>>,
}

/// The cell of the state; `starting` serialises the calls that try to make it.
struct WorldCell {
    world: UnloadCell<PluginWorld>,
    starting: Mutex<()>,
}

static WORLD: WorldCell = WorldCell { world: UnloadCell::new(), starting: Mutex::new(()) };

/// Returns the state, if `init` was called.
#[inline]
pub(crate) fn world() -> Result<&'static PluginWorld, NetCallError> {
    let Some(world) = WORLD.world.get() else { return Err(NetCallError::NotStarted) };
    Ok(world)
}

/// Makes the state, if it does not exist. After a failure, a later call tries again.
pub(crate) fn start_world(log: NcclLog) -> Result<&'static PluginWorld, NetCallError> {
    let _one_at_a_time = WORLD.starting.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(world) = WORLD.world.get() {
        return Ok(world);
    }
    let log = Arc::new(log);
    let reserved = ReservedPlace::new().map_err(|error| NetCallError::Engine(error.into()));
    let made = reserved.and_then(|reserved| Ok((reserved, make_world(&log)?)));
    let (reserved, made) = made.map_err(|error| {
        // The error is logged here: there is no state yet whose log the caller could use.
        let text = format!("init: {}", trunkline_engine::in_full(&error));
        log.log_line(LogLevel::Warn, &text);
        if let NetCallError::Choose(ChooseError::NoNic(_)) = error {
            log.show_hidden(&text);
        }
        NetCallError::Told(error.result_code())
    })?;
    watch_for_the_end(&WORLD.world);
    Ok(WORLD.world.keep_value(reserved, made))
}

/// Returns the cell, for the code that ends the library.
pub(crate) fn world_cell() -> &'static UnloadCell<PluginWorld> {
    &WORLD.world
}

fn make_world(log: &Arc<NcclLog>) -> Result<PluginWorld, NetCallError> {
    let settings = ProcessSettings::from_process(FrontEndKind::Nccl)?;
    let told = |level, line: &str| {
        log.log_line(level, &format!("trunkline: {line}"));
        if level == LogLevel::Warn {
            log.show_hidden(line);
        }
    };
    let hardware = HardwareFabric::open(&settings, told)?;
    // Drivers are opened only for NICs that can access their memory; the NIC for processes of the same host cannot.
    let gpus = if hardware.reaches_devices() && !settings.params.near {
        VendorDrivers::open_all()
    } else {
        VendorDrivers::default()
    };
    make_of(log, settings, hardware, gpus)
}

/// Makes the state over an opened fabric.
fn make_of(
    log: &Arc<NcclLog>,
    settings: ProcessSettings,
    hardware: HardwareFabric,
    gpus: VendorDrivers,
) -> Result<PluginWorld, NetCallError> {
    // NCCL from 2.19 to 2.32 and RCCL use their own transports after an `init` that fails, and also if `devices`
    // returns 0. The second way logs no error. The engine is made in any case, so that each call finds one; then it
    // does not listen.
    let offers = !matches!(hardware, HardwareFabric::PassedOver);
    let addresses = if offers { trunkline_runtime::host_addresses(&settings)? } else { Vec::new() };
    let ignored = settings.setting_values().describe_ignored(unused::nccl::ROWS);
    let mut params = settings.params;
    params.status &= offers;
    let reach = trunkline_runtime::control_reach(&params, &addresses);
    let trace = ProcessTrace::begin_recording(&params).unwrap_or_else(|error| {
        log.log_line(LogLevel::Warn, &format!("the trace cannot be recorded: {error}"));
        None
    });
    let recorder = trace.as_ref().map(|trace| Arc::clone(&trace.recorder));
    let engine_log = Arc::clone(log);
    let host = UnixHost::with_reach(reach, move |level, text| engine_log.log_line(level, text));
    let helped = params.progress_thread;
    let fuses_all = params.fuses_all;
    let near = trunkline_runtime::near_fabric(&params)?;
    if hardware.reaches_devices() {
        tell_drivers(log, &gpus);
    }
    let banner_params = params.clone();
    let mut front_end = FrontEnd { name: "NCCL plugin", gpu_notes: Vec::new() };
    let mut fabric_name = None;
    let engine = match hardware {
        HardwareFabric::Verbs(fabric) => {
            ignored.iter().for_each(|line| log.log_line(LogLevel::Warn, line));
            let (fabric, notes) = trunkline_runtime::meet_verbs(fabric, &gpus);
            front_end.gpu_notes = notes;
            FabricEngine::Verbs(Engine::new(
                TracedFabric::new(SplitFabric::new(fabric, near), recorder),
                host,
                params,
            )?)
        }
        HardwareFabric::Ofi(fabric) => {
            fabric_name = Some(format!("ofi:{}", fabric.provider_name()));
            let (fabric, notes) = trunkline_runtime::meet_ofi(fabric, &gpus);
            front_end.gpu_notes = notes;
            fabric
                .nic_notes()
                .iter()
                .for_each(|(level, note)| log.log_line(*level, &format!("trunkline: {note}")));
            FabricEngine::Ofi(Engine::new(
                TracedFabric::new(SplitFabric::new(fabric, near), recorder),
                host,
                params,
            )?)
        }
        HardwareFabric::None | HardwareFabric::PassedOver => {
            let fabric = SoftFabric::new(soft_config(&params, addresses)).map_err(ChooseError::from)?;
            FabricEngine::Soft(Engine::new(TracedFabric::new(fabric, recorder), host, params)?)
        }
    };
    let nics = if offers { engine.device_nics() } else { &[] };
    let devices = NetDevices::new(nics);
    let fabric = fabric_name.as_deref().unwrap_or(engine.fabric_name());
    let banner = ProcessBanner { front_end: &front_end, fabric, nics, rails: 1, params: &banner_params };
    if let Some(text) = banner.text_once() {
        log.log_line(LogLevel::Info, &text);
    }
    if engine.nics().len() > engine.device_nics().len() {
        log.log_line(LogLevel::Info, "trunkline: shared memory connects processes of this host");
    }
    let log = Arc::clone(log);
    let helper = Mutex::new(None);
    let contexts = NetContexts::new();
    let entered = AtomicUsize::new(0);
    let process = std::process::id();
    Ok(PluginWorld {
        engine,
        devices,
        gpus,
        log,
        trace,
        contexts,
        entered,
        process,
        fuses_all,
        helped,
        helper,
    })
}

/// Logs the drivers of GPUs, and the reasons for missing ones.
fn tell_drivers(log: &NcclLog, gpus: &VendorDrivers) {
    for gpu in gpus.open_drivers() {
        log.log_line(
            LogLevel::Info,
            &format!("trunkline: memory of {} GPUs, {}", gpu.vendor(), gpu.driver_version()),
        );
    }
    for missing in gpus.unavailable_drivers() {
        log.log_line(LogLevel::Info, &format!("trunkline: {missing}"));
    }
}

impl PluginWorld {
    pub(crate) fn enter_communicator(&'static self) {
        // A concurrent first call holds this lock until the progress thread has started.
        let mut helper = self.lock_progress_thread();
        if self.entered.fetch_add(1, Ordering::AcqRel) == 0 {
            self.devices.reset_counted();
        }
        if self.helped && helper.is_none() {
            match self.engine.start_helper() {
                Ok(started) => *helper = Some(started),
                Err(error) => self
                    .log
                    .log_line(LogLevel::Warn, &format!("the progress thread cannot be started: {error}")),
            }
        }
    }

    pub(crate) fn leave_communicator(&self) {
        if self.entered.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.stop_progress_thread();
            self.engine.shutdown();
            self.write_trace();
        }
    }

    /// Writes the events recorded since the last time, if a trace was requested.
    fn write_trace(&self) {
        let Some(trace) = &self.trace else { return };
        match trace.write_file(self.engine.nics()) {
            Ok(None) => {}
            Ok(Some(WrittenTrace { path, recorded, lost })) => {
                let text = format!("trace: {recorded} events in {}, {lost} lost", path.display());
                self.log.log_line(LogLevel::Info, &text);
            }
            Err(error) => self.log.log_line(LogLevel::Warn, &format!("the trace cannot be written: {error}")),
        }
    }

    fn lock_progress_thread(&self) -> MutexGuard<'_, Option<HelperThread>> {
        self.helper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops and joins the progress thread, unless another `init` was called meanwhile.
    fn stop_progress_thread(&self) {
        let mut helper = self.lock_progress_thread();
        if self.entered.load(Ordering::Acquire) == 0 {
            *helper = None;
        }
    }
}

/// Closes all connections when the library is unloaded or the process ends. A forked child leaves its parent's
/// connections alone. Returns whether this process owns a state.
pub(crate) fn end_world() -> bool {
    let Some(world) = WORLD.world.get().filter(|world| world.process == std::process::id()) else {
        return false;
    };
    world.log.silence_log();
    *world.lock_progress_thread() = None;
    world.engine.shutdown_for_unload();
    world.write_trace();
    true
}
