//! The transport from `nvshmemt_init` to `finalize`: which NICs there are, and once the endpoints are connected the mesh of all PEs. Called by `abi`.

use std::io::Write as _;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::RmaError;
use trunkline_engine::{CommNics, EngineParams};
use trunkline_fabric::{LogLevel, NicPort};
use trunkline_mem::gpu::VendorDrivers;
use trunkline_proto::limits::RAILS_MAX;
use trunkline_proto::wire::dial::CARD_BYTES;
use trunkline_runtime::{FrontEnd, HardwareFabric, OneSided, control_reach, host_addresses, params_or};

use crate::error::{CallError, Result};
use crate::memory::GpuReach;
use crate::mesh::PeMesh;
use crate::settings::TransportSettings;

/// Prints a line, all of it at once: several processes may write to the same terminal.
pub(crate) fn print_line(text: &str) {
    // What cannot be said is not said.
    let _ = std::io::stderr().write_all(format!("trunkline: {text}\n").as_bytes());
}

/// The first number for a queue pair of a kernel's: those before it are the host's and the proxy's own.
const FIRST_QUEUE_PAIR: i32 = 2;

/// Where lines go.
#[derive(Clone, Debug)]
pub(crate) struct StderrLog {
    debug: bool,
}

impl StderrLog {
    /// A line, if it is wanted.
    pub(crate) fn log_line(&self, level: LogLevel, text: &str) {
        if self.debug || level == LogLevel::Warn {
            print_line(text);
        }
    }
}

/// NVSHMEM's bootstrap.
pub(crate) trait BootstrapOps {
    /// The number of this process, and of how many.
    fn rank_and_size(&self) -> (usize, usize);

    /// What each gave, by number. All call it.
    fn gather_all<const N: usize>(&self, mine: &[u8; N]) -> Result<Vec<[u8; N]>>;
}

/// The transport of this process.
pub(crate) struct TransportPlugin {
    settings: TransportSettings,
    params: EngineParams,
    pub(crate) log: StderrLog,
    /// The NICs, by NVSHMEM's number for them.
    pub(crate) nics: Vec<NicPort>,
    /// For the banner.
    front_end: FrontEnd,
    /// Until the endpoints are connected.
    closed: Mutex<Option<(HardwareFabric, VendorDrivers)>>,
    mesh: OnceLock<PeMesh>,
    queue_pairs: AtomicI32,
}

impl TransportPlugin {
    /// Finds out what there is; opens no NIC.
    ///
    /// # Errors
    /// A variable is wrong, or the network that it names is not there.
    pub(crate) fn new() -> Result<Self> {
        let settings = TransportSettings::from_variables(|name| std::env::var(name).ok())?;
        let log = StderrLog { debug: settings.debug };
        settings.refused.iter().for_each(|line| log.log_line(LogLevel::Warn, line));
        let defaults: Vec<_> =
            settings.defaults.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let params = params_or(&defaults)?;
        let told = log.clone();
        let hardware = HardwareFabric::open(&params, move |level, line| told.log_line(level, line))?;
        let gpus = VendorDrivers::open_all();
        let (hardware, gpu_notes) = hardware.with_gpus(&gpus);
        let nics = hardware.list_nics(&params)?;
        Ok(Self {
            settings,
            params,
            log,
            nics,
            front_end: FrontEnd { name: "NVSHMEM transport", gpu_notes },
            closed: Mutex::new(Some((hardware, gpus))),
            mesh: OnceLock::new(),
            queue_pairs: AtomicI32::new(FIRST_QUEUE_PAIR),
        })
    }

    /// Whether NVSHMEM is to say which operations follow each other at once.
    pub(crate) fn takes_batch_hints(&self) -> bool {
        self.settings.batches
    }

    /// All PEs, once they are connected.
    ///
    /// # Errors
    /// [`CallError::NotConnected`].
    #[inline]
    pub(crate) fn connected_mesh(&self) -> Result<&PeMesh> {
        self.mesh.get().ok_or(CallError::NotConnected)
    }

    /// Which of the devices that NVSHMEM chose are used: no more than a PE may have.
    fn chosen_nics(&self, devices: &[i32]) -> Result<CommNics> {
        let none = CallError::Argument("a device was chosen that there is not");
        let numbers = devices.iter().map(|&device| usize::try_from(device).ok());
        let known = |number: &usize| *number < self.nics.len();
        let mut chosen: Vec<usize> = Vec::new();
        for number in numbers {
            let number =
                number.filter(known).ok_or(CallError::Argument("a device was chosen that there is not"))?;
            // NVSHMEM's balance may choose one twice.
            if !chosen.contains(&number) {
                chosen.push(number);
            }
        }
        chosen.truncate(self.settings.nics_max.min(RAILS_MAX));
        CommNics::new(&chosen).ok_or(none)
    }

    /// Opens the NICs and meets the other PEs. All of them call it.
    ///
    /// # Errors
    /// [`CallError::Connected`], and what the fabric, the bootstrap or a PE says.
    pub(crate) fn connect_pes(&self, devices: &[i32], boot: &impl BootstrapOps) -> Result<()> {
        let nics = self.chosen_nics(devices)?;
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (hardware, gpus) = closed.ok_or(CallError::Connected)?;
        let reaches = nics.numbers().iter().all(|&nic| self.nics[nic].caps.devices.reaches_any());
        let dmabufs = nics.numbers().iter().any(|&nic| self.nics[nic].caps.devices.dmabuf);
        let (me, size) = boot.rank_and_size();
        let addresses = host_addresses(&self.params)?;
        let log = self.log.clone();
        let host = UnixHost::with_reach(control_reach(&self.params, &addresses), move |level, line| {
            log.log_line(level, line)
        });
        let (network, carrier) =
            OneSided::new(self.params.clone(), hardware, nics, host, addresses, &self.front_end)?;
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

    /// New queue pairs for kernels. The proxy has one lane, which all of them share: each is ordered, and complete, as that is.
    ///
    /// # Errors
    /// [`CallError::NotConnected`].
    pub(crate) fn queue_pairs(&self, out: &mut [i32]) -> Result<()> {
        self.connected_mesh()?;
        out.iter_mut().for_each(|out| *out = self.queue_pairs.fetch_add(1, Ordering::Relaxed));
        Ok(())
    }
}

/// So that what NVSHMEM holds is one pointer.
pub(crate) type SharedPlugin = Arc<TransportPlugin>;
