//! The transport from `nvshmemt_init` to `finalize`: the available NICs, and the mesh of all PEs once the endpoints
//! are connected. Called by `abi`.

use std::io::Write as _;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use trunkline_engine::CommNics;
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::RmaError;
use trunkline_fabric::{LogLevel, NicPort};
use trunkline_mem::gpu::VendorDrivers;
use trunkline_proto::limits::RAILS_MAX;
use trunkline_proto::wire::dial::CARD_BYTES;
use trunkline_runtime::{
    FrontEnd, FrontEndKind, HardwareFabric, OneSided, ProcessSettings, control_reach, host_addresses,
};

use crate::error::{CallError, Result};
use crate::memory::GpuReach;
use crate::mesh::PeMesh;
use crate::settings::TransportSettings;

/// Prints a line in one write, because several processes may share the terminal.
pub(crate) fn print_line(text: &str) {
    // There is no other channel to report a failed write to standard error.
    let _ = std::io::stderr().write_all(format!("trunkline: {text}\n").as_bytes());
}

/// The first number of a queue pair for kernels. Smaller numbers are those of the host and the proxy.
const FIRST_QUEUE_PAIR: i32 = 2;

/// The log, which writes to standard error.
#[derive(Clone, Debug)]
pub(crate) struct StderrLog {
    debug: bool,
}

impl StderrLog {
    /// Writes a line, if its level is enabled.
    pub(crate) fn log_line(&self, level: LogLevel, text: &str) {
        if self.debug || level == LogLevel::Warn {
            print_line(text);
        }
    }
}

/// NVSHMEM's bootstrap, which exchanges data between processes.
pub(crate) trait BootstrapOps {
    /// Returns the number of this process, and the number of processes.
    fn rank_and_size(&self) -> (usize, usize);

    /// Gathers the bytes of every process, by number. All processes call it.
    fn gather_all<const N: usize>(&self, mine: &[u8; N]) -> Result<Vec<[u8; N]>>;
}

/// The transport of this process.
pub(crate) struct TransportPlugin {
    settings: TransportSettings,
    process: ProcessSettings,
    pub(crate) log: StderrLog,
    /// The NICs, by NVSHMEM's number of the device.
    pub(crate) nics: Vec<NicPort>,
    /// The description of this interface for the banner.
    front_end: FrontEnd,
    /// The unopened fabric, until the endpoints are connected.
    closed: Mutex<Option<(HardwareFabric, VendorDrivers)>>,
    mesh: OnceLock<PeMesh>,
    queue_pairs: AtomicI32,
}

impl TransportPlugin {
    /// Reads the settings and lists the NICs. Opens no NIC.
    ///
    /// # Errors
    /// A variable is invalid, or the network that it names is not available.
    pub(crate) fn new() -> Result<Self> {
        let process = ProcessSettings::from_process(FrontEndKind::Nvshmem)?;
        let settings = TransportSettings::from_values(process.setting_values())?;
        let log = StderrLog { debug: settings.debug };
        settings.refused.iter().for_each(|line| log.log_line(LogLevel::Warn, line));
        let told = log.clone();
        let hardware = HardwareFabric::open(&process, move |level, line| told.log_line(level, line))?;
        let gpus = VendorDrivers::open_all();
        let (hardware, gpu_notes) = hardware.with_gpus(&gpus);
        let nics = hardware.list_nics(&process)?;
        Ok(Self {
            settings,
            process,
            log,
            nics,
            front_end: FrontEnd { name: "NVSHMEM transport", gpu_notes },
            closed: Mutex::new(Some((hardware, gpus))),
            mesh: OnceLock::new(),
            queue_pairs: AtomicI32::new(FIRST_QUEUE_PAIR),
        })
    }

    /// Returns whether NVSHMEM may pass batch hints.
    pub(crate) fn takes_batch_hints(&self) -> bool {
        self.settings.batches
    }

    /// Returns the mesh of all PEs.
    ///
    /// # Errors
    /// [`CallError::NotConnected`].
    #[inline]
    pub(crate) fn connected_mesh(&self) -> Result<&PeMesh> {
        self.mesh.get().ok_or(CallError::NotConnected)
    }

    /// Returns the NICs to use among the devices that NVSHMEM chose, at most the number that a PE may use.
    fn chosen_nics(&self, devices: &[i32]) -> Result<CommNics> {
        let none = CallError::Argument("NVSHMEM chose a device number that is out of range");
        let numbers = devices.iter().map(|&device| usize::try_from(device).ok());
        let known = |number: &usize| *number < self.nics.len();
        let mut chosen: Vec<usize> = Vec::new();
        for number in numbers {
            let number = number
                .filter(known)
                .ok_or(CallError::Argument("NVSHMEM chose a device number that is out of range"))?;
            // NVSHMEM's load balancing may choose a device twice.
            if !chosen.contains(&number) {
                chosen.push(number);
            }
        }
        chosen.truncate(self.settings.nics_max.min(RAILS_MAX));
        CommNics::new(&chosen).ok_or(none)
    }

    /// Opens the NICs and connects to the other PEs. All PEs call it.
    ///
    /// # Errors
    /// [`CallError::Connected`], and errors of the fabric, the bootstrap or a PE.
    pub(crate) fn connect_pes(&self, devices: &[i32], boot: &impl BootstrapOps) -> Result<()> {
        let nics = self.chosen_nics(devices)?;
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (hardware, gpus) = closed.ok_or(CallError::Connected)?;
        let reaches = nics.numbers().iter().all(|&nic| self.nics[nic].caps.devices.reaches_any());
        let dmabufs = nics.numbers().iter().any(|&nic| self.nics[nic].caps.devices.dmabuf);
        let (me, size) = boot.rank_and_size();
        let addresses = host_addresses(&self.process)?;
        let log = self.log.clone();
        let host =
            UnixHost::with_reach(control_reach(&self.process.params, &addresses), move |level, line| {
                log.log_line(level, line)
            });
        let (network, carrier) =
            OneSided::new(self.process.params.clone(), hardware, nics, host, addresses, &self.front_end)?;
        if me == 0 {
            let fabric = carrier.fabric;
            let names = carrier.nics.join("+");
            let speed = carrier.speed_mbps;
            self.log.log_line(LogLevel::Info, &format!("{size} PEs over {fabric}, {names}, {speed} Mbit/s"));
        }
        let cards: Vec<[u8; CARD_BYTES]> = boot.gather_all(&network.process_card())?;
        network.set_members(me as u32, &cards).map_err(|error| match error {
            RmaError::Card { member, source } => CallError::Stranger { pe: member as usize, source },
            other => other.into(),
        })?;
        let ways = GpuReach { nic: reaches, dmabuf: dmabufs, gdrcopy: self.settings.gdrcopy };
        let mesh = PeMesh::new(network, size, gpus, ways, self.log.clone())?;
        self.mesh.set(mesh).map_err(|_| CallError::Connected)
    }

    /// Creates queue pairs for kernels. All of them share the proxy's context, with its order and its completion.
    ///
    /// # Errors
    /// [`CallError::NotConnected`].
    pub(crate) fn queue_pairs(&self, out: &mut [i32]) -> Result<()> {
        self.connected_mesh()?;
        out.iter_mut().for_each(|out| *out = self.queue_pairs.fetch_add(1, Ordering::Relaxed));
        Ok(())
    }
}

/// The plugin behind the one pointer that NVSHMEM stores.
pub(crate) type SharedPlugin = Arc<TransportPlugin>;
