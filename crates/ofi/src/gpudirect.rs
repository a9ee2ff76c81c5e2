//! The memory of GPUs that a NIC can access: probed once by registering some and reading it back, when the drivers of GPUs are known; and the
//! registration of such memory afterwards.

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

/// Length of the probed memory, in bytes: large enough that no other allocation shares its pages.
const TRIED: usize = 2 << 20;
/// Registration as a dma-buf.
const BY_DMABUF: &str = "as a dma-buf";
/// Registration by address.
const BY_ADDRESS: &str = "by its address";
/// The remedy named in errors.
const REMEDY: &str = "use a libfabric that knows the GPU's driver, 1.20 or later for dma-bufs, and load the module for peer \
     memory (NVIDIA: nvidia-peermem, and gdrdrv for Slingshot)";

/// A NIC's support for memory of devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceSupport {
    /// The memory that it can access.
    pub(crate) reach: DeviceReach,
    /// The vendors whose memory exists.
    vendors: Vec<GpuVendor>,
    /// The options with which endpoints are opened.
    pub(crate) options: Vec<EndpointOption>,
    /// Failed attempts, as texts for the user.
    pub(crate) refused: Vec<String>,
}

/// Which registrations work for a vendor's memory.
#[derive(Clone, Copy, Debug, Default)]
struct RegistrationPaths {
    address: bool,
    dmabuf: bool,
}

impl DeviceSupport {
    /// Probes memory of each of these drivers on a NIC. `flushes` states whether writes to such memory are flushed.
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
            // The option concerns CUDA only, so memory of other vendors is probed in any case.
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
        // A device must work with every driver's memory by dma-buf, because callers choose dma-bufs per NIC, not per vendor.
        found.reach.dmabuf = all_dmabufs && !found.vendors.is_empty();
        // A completion in memory of the host may become visible before the data has reached the GPU over PCIe.
        found.reach.needs_flush = flushes && found.reach.reaches_any();
        found
    }

    /// Opens the NIC with two options, as far as the provider knows them. Option `FI_OPT_SHARED_MEMORY_PERMITTED` is disabled, so that an endpoint's reads
    /// from itself use the NIC: a copy through memory of the host would flush nothing. Option `FI_OPT_CUDA_API_PERMITTED` is disabled, because CUDA calls
    /// of the provider may wait for the user's kernels, which wait for this engine. Returns whether the provider refuses to work without CUDA
    /// calls.
    fn open_trial(&mut self, info: &OfiInfo, cuda: bool) -> Result<(NicTrial, bool), OfiOpenError> {
        let apart = EndpointOption::from_flag(opt::SHARED_MEMORY_PERMITTED, false);
        let quiet = EndpointOption::from_flag(opt::CUDA_API_PERMITTED, false);
        let mut opened = None;
        let mut blocked = false;
        for option in [Some(apart), cuda.then_some(quiet)].into_iter().flatten() {
            // One option at a time, because an unknown one fails the whole endpoint.
            let with = [&self.options[..], &[option]].concat();
            match NicTrial::open(info, &with) {
                Ok(trial) => (self.options, opened) = (with, Some(trial)),
                Err(OfiOpenError { step: OfiOpenStep::Option(_), errno, .. }) => {
                    // FI_EOPNOTSUPP states that the provider needs CUDA calls (fi_endpoint(3)); another error means that it does not know the option.
                    blocked |= option == quiet && errno == OfiErrno::NOT_SUPPORTED;
                }
                Err(error) => return Err(error),
            }
        }
        if blocked {
            self.refused.push("the provider copies memory of NVIDIA's GPUs by calls of CUDA".to_owned());
        }
        let trial = opened.map_or_else(|| NicTrial::open(info, &[]), Ok)?;
        Ok((trial, blocked))
    }

    /// Probes one driver's memory in both ways.
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

    /// Returns the vendors whose memory may be registered in that way.
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

/// Returns libfabric's interface for a vendor's memory.
fn memory_iface(vendor: GpuVendor, memory: &MemoryRange) -> Option<MemoryIface> {
    match (vendor, memory.kind()) {
        (GpuVendor::Nvidia, MemoryKind::Device(device)) => Some(MemoryIface::Cuda(device)),
        (GpuVendor::Amd, MemoryKind::Device(device)) => Some(MemoryIface::Rocr(device)),
        _ => None,
    }
}

/// Registers memory and has the NIC read a byte of it, as a flush does.
fn prove_read(
    trial: &mut NicTrial,
    memory: &MemoryRange,
    iface: MemoryIface,
    dmabuf: Option<ExportedDmaBuf<'_>>,
) -> Result<(), String> {
    let of_device = trial.register_memory(memory, iface, dmabuf, MemoryDuty::User(AccessRights::READ_WRITE));
    let of_device = of_device.map_err(|error| error.to_string())?;
    // One byte is enough to show that the NIC can access the memory.
    let place = MemoryRange::try_heap(1).map_err(|error| error.to_string())?;
    let into = trial
        .register_memory(&place, MemoryIface::Host, None, MemoryDuty::Landing)
        .map_err(|error| error.to_string())?;
    trial.read_region(&of_device, &into).map_err(|errno| format!("reading it back: {errno}"))
}

/// Registers memory of a device, after a probe has shown that it works.
pub(crate) fn register_device_memory(
    nic: &OpenNic,
    model: &MrScope<PayloadTraffic>,
    memory: &MemoryRange,
    exported: Option<ExportedDmaBuf<'_>>,
    access: AccessRights,
) -> Result<MrEnabled<PayloadTraffic>, RegisterError> {
    let how = if exported.is_some() { BY_DMABUF } else { BY_ADDRESS };
    let mut refused = None;
    // The vendor of the memory is unknown here, so each vendor whose memory works is tried.
    for vendor in nic.devices.reachable_vendors(exported.is_some()) {
        let Some(iface) = memory_iface(vendor, memory) else { break };
        // Without the atomic right, because this fabric has no atomics and the right would imply writes.
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
            why: "the provider accepted none when it was probed".to_owned(),
            remedy: REMEDY,
        },
    })
}
