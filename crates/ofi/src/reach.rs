//! Which memory of GPUs a NIC reaches: found out by registering some and reading it back, once, when the drivers of GPUs are
//! known; and how such memory is registered after that.

use std::os::fd::AsFd as _;

use trunkline_fabric::{Access, DeviceReach, Exported, RegisterError};
use trunkline_mem::gpu::{Export, Gpu, Gpus, Mapping, Vendor};
use trunkline_mem::{Kind, Memory};
use trunkline_sys::ofi::opt;

use crate::endpoint::{OpenError, OpenStep, Opt};
use crate::errno::Errno;
use crate::info::Info;
use crate::mutant::Planted;
use crate::nic::Opened;
use crate::region::{self, Iface, Model, Mr, Wanted, register};
use crate::rights::Duty;
use crate::role::Data;
use crate::trial::Trial;

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
pub(crate) struct Devices {
    /// What it reaches.
    pub(crate) reach: DeviceReach,
    /// Whose memory there is.
    vendors: Vec<Vendor>,
    /// With what endpoints are opened.
    pub(crate) options: Vec<Opt>,
    /// What was tried and did not work, for people.
    pub(crate) refused: Vec<String>,
}

/// What can be done with a vendor's memory.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    address: bool,
    dmabuf: bool,
}

impl Devices {
    /// Tries memory of each of these drivers on a NIC. `flushes`: whether what is written there is flushed.
    pub(crate) fn tried(info: &Info, gpus: &Gpus, flushes: bool) -> Self {
        let mut found = Self::default();
        let (mut trial, blocked) = match found.open(info, gpus.has(Vendor::Nvidia)) {
            Ok(opened) => opened,
            Err(error) => {
                found.refused.push(error.to_string());
                return found;
            }
        };
        let mut all_dmabufs = true;
        for gpu in gpus.all() {
            let blocked = blocked && gpu.vendor() == Vendor::Nvidia;
            let ways = if blocked { Ways::default() } else { found.attempt(&mut trial, gpu) };
            all_dmabufs &= ways.dmabuf;
            match gpu.vendor() {
                Vendor::Nvidia => found.reach.nvidia = ways.address,
                Vendor::Amd => found.reach.amd = ways.address,
                _ => {}
            }
            found.vendors.push(gpu.vendor());
        }
        found.reach.dmabuf = all_dmabufs && !found.vendors.is_empty();
        let never = Planted::named("ofi-needs-no-flush").is_on();
        found.reach.needs_flush = flushes && found.reach.any() && !never;
        found
    }

    /// Opens the NIC with endpoints that read from themselves through it, and not through memory of the host, which would
    /// flush nothing; and so that the provider leaves CUDA alone, whose calls may wait for kernels of the user's, which wait for
    /// us. Not all know what to do about either. Whether the provider says that it cannot leave CUDA alone.
    fn open(&mut self, info: &Info, cuda: bool) -> Result<(Trial, bool), OpenError> {
        let apart = Opt::flag(opt::SHARED_MEMORY_PERMITTED, false);
        let quiet = Opt::flag(opt::CUDA_API_PERMITTED, false);
        let mut opened = None;
        let mut blocked = false;
        let through = Planted::named("ofi-flushes-through-the-host").is_on();
        for option in [(!through).then_some(apart), cuda.then_some(quiet)].into_iter().flatten() {
            let with = [&self.options[..], &[option]].concat();
            match Trial::open(info, &with) {
                Ok(trial) => (self.options, opened) = (with, Some(trial)),
                Err(OpenError { step: OpenStep::Option(_), errno, .. }) => {
                    blocked |= option == quiet && errno == Errno::NOT_SUPPORTED;
                }
                Err(error) => return Err(error),
            }
        }
        if blocked {
            self.refused.push("the provider moves memory of NVIDIA's GPUs by calls of CUDA".to_owned());
        }
        let ignores = Planted::named("ofi-lets-providers-call-cuda").is_on();
        let trial = opened.map_or_else(|| Trial::open(info, &[]), Ok)?;
        Ok((trial, blocked && !ignores))
    }

    /// Tries one driver's memory in both ways.
    fn attempt(&mut self, trial: &mut Trial, gpu: &Gpu) -> Ways {
        let memory = match gpu.lend(TRIED) {
            Ok(memory) => memory,
            Err(error) => {
                self.refused.push(error.to_string());
                return Ways::default();
            }
        };
        let Some(iface) = iface(gpu.vendor(), &memory) else { return Ways::default() };
        let address = proves(trial, &memory, iface, None);
        let dmabuf = match gpu.export(memory.addr(), memory.len(), Mapping::Any) {
            Ok(Export::Given(given)) => {
                let exported = Exported { fd: given.fd.as_fd(), offset: given.offset };
                proves(trial, &memory, iface, Some(exported))
            }
            Ok(Export::Refused(refusal)) => Err(refusal.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let tries = [(BY_ADDRESS, &address), (BY_DMABUF, &dmabuf)];
        for (how, why) in tries.into_iter().filter_map(|(how, tried)| Some((how, tried.as_ref().err()?))) {
            self.refused.push(format!("memory of {} GPUs {how}: {why}", gpu.vendor()));
        }
        Ways { address: address.is_ok(), dmabuf: dmabuf.is_ok() }
    }

    /// Whose memory may be registered in a way.
    fn vendors(&self, is_dmabuf: bool) -> impl Iterator<Item = Vendor> + '_ {
        let may = move |vendor: &Vendor| match vendor {
            _ if is_dmabuf => self.reach.dmabuf,
            Vendor::Nvidia => self.reach.nvidia,
            Vendor::Amd => self.reach.amd,
            _ => false,
        };
        self.vendors.iter().copied().filter(may)
    }
}

/// libfabric's name of whose memory it is.
fn iface(vendor: Vendor, memory: &Memory) -> Option<Iface> {
    match (vendor, memory.kind()) {
        (Vendor::Nvidia, Kind::Device(device)) => Some(Iface::Cuda(device)),
        (Vendor::Amd, Kind::Device(device)) => Some(Iface::Rocr(device)),
        _ => None,
    }
}

/// Registers memory and has the NIC read a byte of it, which is what a flush does.
fn proves(
    trial: &mut Trial,
    memory: &Memory,
    iface: Iface,
    dmabuf: Option<Exported<'_>>,
) -> Result<(), String> {
    let of_device = trial.register(memory, iface, dmabuf, Duty::User(Access::READ_WRITE));
    let of_device = of_device.map_err(|error| error.to_string())?;
    if Planted::named("ofi-reads-no-device-back").is_on() {
        return Ok(());
    }
    let place = Memory::try_heap(1).map_err(|error| error.to_string())?;
    let into = trial.register(&place, Iface::Host, None, Duty::Landing).map_err(|error| error.to_string())?;
    trial.read(&of_device, &into).map_err(|errno| format!("reading it back: {errno}"))
}

/// Registers memory of a device, which a probe has shown to work.
pub(crate) fn make(
    nic: &Opened,
    model: &Model<Data>,
    memory: &Memory,
    exported: Option<Exported<'_>>,
    access: Access,
) -> Result<Mr<Data>, RegisterError> {
    let how = if exported.is_some() { BY_DMABUF } else { BY_ADDRESS };
    let mut refused = None;
    for vendor in nic.devices.vendors(exported.is_some()) {
        let Some(iface) = iface(vendor, memory) else { break };
        let duty = Duty::User(Access { atomic: false, ..access });
        match register(&nic.domain, model, &Wanted { memory, iface, dmabuf: exported, duty }) {
            Ok(made) => return Ok(made),
            Err(error) => refused = Some(error),
        }
    }
    Err(match refused {
        Some(region::RegisterError::Keys { source, .. }) => {
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
