//! Which memory of GPUs a NIC reaches: found out by registering some and reading it back, once, when the drivers of GPUs are
//! known; and how such memory is registered after that.

use std::os::fd::AsFd as _;

use trunkline_fabric::{AccessRights, DeviceReach, ExportedDmaBuf, RegisterError};
use trunkline_mem::gpu::{DmaBufExport, DmaBufMapping, GpuVendor, VendorDriver, VendorDrivers};
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_sys::ofi::opt;

use crate::endpoint::{EndpointOption, OfiOpenError, OfiOpenStep};
use crate::errno::OfiErrno;
use crate::info::OfiInfo;
use crate::nic::OpenNic;
use crate::region::{self, MemoryIface, MrEnabled, MrRequest, MrScope, register_memory};
use crate::rights::MemoryDuty;
use crate::role::PayloadTraffic;
use crate::trial::NicTrial;

/// Bytes that are tried: so many are alone in their pages.
const TRIED: usize = 2 << 20;
/// As a dma-buf.
const BY_DMABUF: &str = "as a dma-buf";
/// By its address.
const BY_ADDRESS: &str = "by its address";
/// What helps.
const REMEDY: &str = "use a libfabric that knows the GPU's driver, 1.20 or later for dma-bufs, and load the module for peer \
     memory (NVIDIA: nvidia-peermem, and gdrdrv for Slingshot)";

/// What a NIC does with memory of devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceSupport {
    /// What it reaches.
    pub(crate) reach: DeviceReach,
    /// Whose memory there is.
    vendors: Vec<GpuVendor>,
    /// With what endpoints are opened.
    pub(crate) options: Vec<EndpointOption>,
    /// What was tried and did not work, for people.
    pub(crate) refused: Vec<String>,
}

/// What can be done with a vendor's memory.
#[derive(Clone, Copy, Debug, Default)]
struct RegistrationPaths {
    address: bool,
    dmabuf: bool,
}

impl DeviceSupport {
    /// Tries memory of each of these drivers on a NIC. `flushes`: whether what is written there is flushed.
    pub(crate) fn probe_gpus(info: &OfiInfo, gpus: &VendorDrivers, flushes: bool) -> Self {
        let mut found = Self::default();
        let (mut trial, blocked) = match found.open_trial(info, gpus.has_vendor(GpuVendor::Nvidia)) {
            Ok(opened) => opened,
            Err(error) => {
                found.refused.push(error.to_string());
                return found;
            }
        };
        let mut all_dmabufs = true;
        for gpu in gpus.open_drivers() {
            let blocked = blocked && gpu.vendor() == GpuVendor::Nvidia;
            let ways = if blocked { RegistrationPaths::default() } else { found.try_driver(&mut trial, gpu) };
            all_dmabufs &= ways.dmabuf;
            match gpu.vendor() {
                GpuVendor::Nvidia => found.reach.nvidia = ways.address,
                GpuVendor::Amd => found.reach.amd = ways.address,
                _ => {}
            }
            found.vendors.push(gpu.vendor());
        }
        found.reach.dmabuf = all_dmabufs && !found.vendors.is_empty();
        found.reach.needs_flush = flushes && found.reach.reaches_any();
        found
    }

    /// Opens the NIC with endpoints that read from themselves through it, and not through memory of the host, which would
    /// flush nothing; and so that the provider leaves CUDA alone, whose calls may wait for kernels of the user's, which wait for
    /// us. Not all know what to do about either. Whether the provider says that it cannot leave CUDA alone.
    fn open_trial(&mut self, info: &OfiInfo, cuda: bool) -> Result<(NicTrial, bool), OfiOpenError> {
        let apart = EndpointOption::from_flag(opt::SHARED_MEMORY_PERMITTED, false);
        let quiet = EndpointOption::from_flag(opt::CUDA_API_PERMITTED, false);
        let mut opened = None;
        let mut blocked = false;
        for option in [Some(apart), cuda.then_some(quiet)].into_iter().flatten() {
            let with = [&self.options[..], &[option]].concat();
            match NicTrial::open(info, &with) {
                Ok(trial) => (self.options, opened) = (with, Some(trial)),
                Err(OfiOpenError { step: OfiOpenStep::Option(_), errno, .. }) => {
                    blocked |= option == quiet && errno == OfiErrno::NOT_SUPPORTED;
                }
                Err(error) => return Err(error),
            }
        }
        if blocked {
            self.refused.push("the provider moves memory of NVIDIA's GPUs by calls of CUDA".to_owned());
        }
        let trial = opened.map_or_else(|| NicTrial::open(info, &[]), Ok)?;
        Ok((trial, blocked))
    }

    /// Tries one driver's memory in both ways.
    fn try_driver(&mut self, trial: &mut NicTrial, gpu: &VendorDriver) -> RegistrationPaths {
        let memory = match gpu.allocate_probe(TRIED) {
            Ok(memory) => memory,
            Err(error) => {
                self.refused.push(error.to_string());
                return RegistrationPaths::default();
            }
        };
        let Some(iface) = memory_iface(gpu.vendor(), &memory) else { return RegistrationPaths::default() };
        let address = prove_read(trial, &memory, iface, None);
        let dmabuf = match gpu.export_dmabuf(memory.addr(), memory.len(), DmaBufMapping::Any) {
            Ok(DmaBufExport::Given(given)) => {
                let exported = ExportedDmaBuf { fd: given.fd.as_fd(), offset: given.offset };
                prove_read(trial, &memory, iface, Some(exported))
            }
            Ok(DmaBufExport::Refused(refusal)) => Err(refusal.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let tries = [(BY_ADDRESS, &address), (BY_DMABUF, &dmabuf)];
        for (how, why) in tries.into_iter().filter_map(|(how, tried)| Some((how, tried.as_ref().err()?))) {
            self.refused.push(format!("memory of {} GPUs {how}: {why}", gpu.vendor()));
        }
        RegistrationPaths { address: address.is_ok(), dmabuf: dmabuf.is_ok() }
    }

    /// Whose memory may be registered in a way.
    fn reachable_vendors(&self, is_dmabuf: bool) -> impl Iterator<Item = GpuVendor> + '_ {
        let may = move |vendor: &GpuVendor| match vendor {
            _ if is_dmabuf => self.reach.dmabuf,
            GpuVendor::Nvidia => self.reach.nvidia,
            GpuVendor::Amd => self.reach.amd,
            _ => false,
        };
        self.vendors.iter().copied().filter(may)
    }
}

/// libfabric's name of whose memory it is.
fn memory_iface(vendor: GpuVendor, memory: &MemoryRange) -> Option<MemoryIface> {
    match (vendor, memory.kind()) {
        (GpuVendor::Nvidia, MemoryKind::Device(device)) => Some(MemoryIface::Cuda(device)),
        (GpuVendor::Amd, MemoryKind::Device(device)) => Some(MemoryIface::Rocr(device)),
        _ => None,
    }
}

/// Registers memory and has the NIC read a byte of it, which is what a flush does.
fn prove_read(
    trial: &mut NicTrial,
    memory: &MemoryRange,
    iface: MemoryIface,
    dmabuf: Option<ExportedDmaBuf<'_>>,
) -> Result<(), String> {
    let of_device = trial.register_memory(memory, iface, dmabuf, MemoryDuty::User(AccessRights::READ_WRITE));
    let of_device = of_device.map_err(|error| error.to_string())?;
    let place = MemoryRange::try_heap(1).map_err(|error| error.to_string())?;
    let into = trial
        .register_memory(&place, MemoryIface::Host, None, MemoryDuty::Landing)
        .map_err(|error| error.to_string())?;
    trial.read_region(&of_device, &into).map_err(|errno| format!("reading it back: {errno}"))
}

/// Registers memory of a device, which a probe has shown to work.
pub(crate) fn register_device_memory(
    nic: &OpenNic,
    model: &MrScope<PayloadTraffic>,
    memory: &MemoryRange,
    exported: Option<ExportedDmaBuf<'_>>,
    access: AccessRights,
) -> Result<MrEnabled<PayloadTraffic>, RegisterError> {
    let how = if exported.is_some() { BY_DMABUF } else { BY_ADDRESS };
    let mut refused = None;
    for vendor in nic.devices.reachable_vendors(exported.is_some()) {
        let Some(iface) = memory_iface(vendor, memory) else { break };
        let duty = MemoryDuty::User(AccessRights { atomic: false, ..access });
        match register_memory(&nic.domain, model, &MrRequest { memory, iface, dmabuf: exported, duty }) {
            Ok(made) => return Ok(made),
            Err(error) => refused = Some(error),
        }
    }
    Err(match refused {
        Some(region::OfiRegisterError::Keys { source, .. }) => {
            RegisterError::System { what: "choosing a key", source: std::io::Error::other(source) }
        }
        Some(error) => RegisterError::Device { how, why: error.to_string(), remedy: REMEDY },
        None => RegisterError::Device {
            how,
            why: "the provider took none when it was tried".to_owned(),
            remedy: REMEDY,
        },
    })
}
