//! The current plugin interface in safe Rust, on which every ABI version is a thin layer. Called by `abi`; uses the
//! state of `world`, and keeps none itself.
//!
//! Objects are identified by numbers with generations, which NCCL keeps as opaque pointers.

use trunkline_engine::{CommId, CommNics, EngineError, ListenId, MrId, OffsetBase, RecvBuf, RequestId};
use trunkline_fabric::{DeviceReach, LogLevel};
use trunkline_proto::limits::RAILS_MAX;

use crate::abi::{NET_RECVS_MAX, NET_SIZE_BYTES_MAX, PTR_CUDA, PTR_DMABUF, PTR_HOST};
use crate::devices::{KnownDevices, NetDevice};
use crate::fabric_engine::FabricEngine;
use crate::status::NetCallError;
use crate::world::world;

/// The properties of a device, for all versions.
pub(crate) struct DeviceProperties {
    pub(crate) name: *const core::ffi::c_char,
    pub(crate) pci_path: *const core::ffi::c_char,
    pub(crate) guid: u64,
    pub(crate) ptr_support: i32,
    /// Whether a region registered with one comm is valid for the other comms of its device. It is not: on NICs that
    /// can share, the comms share the registration below, but each has its own name for it. If registrations are
    /// bound to an endpoint of the comm, nothing is shared.
    pub(crate) reg_is_global: i32,
    pub(crate) force_flush: i32,
    pub(crate) speed: i32,
    pub(crate) port: i32,
    pub(crate) latency: f32,
    pub(crate) max_comms: i32,
    pub(crate) max_recvs: i32,
    /// The number of members, and their device numbers; a physical device is its own member.
    pub(crate) members: (i32, [i32; RAILS_MAX]),
    pub(crate) max_bytes: usize,
}

pub(crate) fn devices(known: KnownDevices) -> Result<i32, NetCallError> {
    Ok(world()?.devices.device_count(known))
}

pub(crate) fn properties(dev: i32, known: KnownDevices) -> Result<DeviceProperties, NetCallError> {
    world()?.devices.with_device(dev, known, device_properties)
}

/// Returns the properties of a device.
fn device_properties(device: &NetDevice) -> DeviceProperties {
    let int = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    let numbers = device.nics.numbers();
    let mut members = [0; RAILS_MAX];
    for (to, &number) in members.iter_mut().zip(numbers) {
        *to = i32::try_from(number).unwrap_or(i32::MAX);
    }
    DeviceProperties {
        name: device.device_name().as_ptr(),
        pci_path: device.pci_path().map_or(core::ptr::null(), |path| path.as_ptr()),
        guid: device.guid,
        ptr_support: pointer_support(device.reach),
        reg_is_global: 0,
        force_flush: i32::from(device.needs_flush),
        speed: int(device.speed_mbps),
        port: int(device.port),
        latency: device.latency_us,
        max_comms: int(device.links_max),
        max_recvs: NET_RECVS_MAX as i32,
        // `RAILS_MAX` limits it to four.
        members: (numbers.len() as i32, members),
        // The engine splits messages that are larger than one operation.
        max_bytes: NET_SIZE_BYTES_MAX,
    }
}

/// Returns `ptrSupport`: GPU memory is supported only if a NIC can access it and a driver is open.
fn pointer_support(reach: DeviceReach) -> i32 {
    let bit = |on: bool, bit: i32| if on { bit } else { 0 };
    PTR_HOST | bit(reach.reaches_any(), PTR_CUDA) | bit(reach.dmabuf, PTR_DMABUF)
}

/// Returns the NICs that comms of a device use.
fn device_nics(dev: i32, known: KnownDevices) -> Result<CommNics, NetCallError> {
    world()?.devices.with_device(dev, known, |device| device.nics)
}

pub(crate) fn listen(dev: i32, known: KnownDevices) -> Result<(u64, [u8; 128]), NetCallError> {
    let (listen, handle) = world()?.engine.listen(device_nics(dev, known)?)?;
    Ok((listen.to_bits(), handle))
}

pub(crate) fn connect(
    context: u64,
    dev: i32,
    known: KnownDevices,
    class: Option<u8>,
    handle: &mut [u8; 128],
) -> Result<u64, NetCallError> {
    let world = world()?;
    let nics = device_nics(dev, known)?;
    let mut traffic = world.contexts.last_traffic(context);
    traffic.class = traffic.class.or(class);
    let connected = world.engine.connect_in(traffic, nics, handle)?;
    Ok(connected.map_or(0, CommId::to_bits))
}

pub(crate) fn accept(listen: u64) -> Result<u64, NetCallError> {
    Ok(world()?.engine.accept(ListenId::from_bits(listen))?.map_or(0, CommId::to_bits))
}

pub(crate) fn close_listen(listen: u64) -> Result<(), NetCallError> {
    Ok(world()?.engine.close_listen(ListenId::from_bits(listen))?)
}

/// Checks a comm of NCCL: the bits above the comm's number must be zero.
#[inline]
pub(crate) fn comm_from_bits(bits: u64) -> Result<CommId, NetCallError> {
    if bits == 0 || bits >> 32 != 0 {
        Err(NetCallError::Argument("the pointer is not a comm of this plugin"))
    } else {
        Ok(CommId::from_bits(bits))
    }
}

/// Waits briefly for the peer of a comm. Meanwhile it makes progress on closed and unpolled comms of this process:
/// the peer may be one of them, and may depend on this thread.
fn wait_beside(engine: &FabricEngine) {
    engine.go_on();
    std::thread::yield_now();
}

pub(crate) fn close(bits: u64) -> Result<(), NetCallError> {
    let engine = &world()?.engine;
    let comm = comm_from_bits(bits)?;
    // This returns `true` at once unless messages are cut off; then it takes at most the peer time limit.
    while !engine.prepare_close(comm)? {
        wait_beside(engine);
    }
    Ok(engine.close(comm)?)
}

pub(crate) fn deregister(bits: u64, mr: u64) -> Result<(), NetCallError> {
    let engine = &world()?.engine;
    let comm = comm_from_bits(bits)?;
    let mr = MrId::from_bits(mr);
    loop {
        match engine.deregister(comm, mr) {
            // Lasts at most the peer time limit.
            Err(EngineError::Draining) => wait_beside(engine),
            ended => return Ok(ended?),
        }
    }
}

/// A buffer as NCCL describes it.
#[derive(Clone, Copy)]
pub(crate) struct NcclBuffer {
    pub(crate) mr: u64,
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) tag: i32,
}

impl NcclBuffer {
    #[inline]
    fn to_recv_buf(self) -> RecvBuf {
        RecvBuf {
            mr: MrId::from_bits(self.mr),
            offset: self.addr as u64,
            len: self.len as u64,
            tag: self.tag.cast_unsigned(),
        }
    }
}

#[inline]
pub(crate) fn isend(bits: u64, buffer: NcclBuffer) -> Result<u64, NetCallError> {
    let request =
        world()?.engine.isend_from(comm_from_bits(bits)?, OffsetBase::Address, buffer.to_recv_buf())?;
    Ok(request.map_or(0, RequestId::to_bits))
}

#[inline]
fn to_recv_bufs(buffers: &[NcclBuffer]) -> Result<[RecvBuf; NET_RECVS_MAX], NetCallError> {
    if buffers.is_empty() || buffers.len() > NET_RECVS_MAX {
        return Err(NetCallError::Argument("a receive must have 1 to 8 buffers"));
    }
    let none = NcclBuffer { mr: 0, addr: 0, len: 0, tag: 0 };
    let mut out = [none.to_recv_buf(); NET_RECVS_MAX];
    for (to, buffer) in out.iter_mut().zip(buffers) {
        *to = buffer.to_recv_buf();
    }
    Ok(out)
}

#[inline]
pub(crate) fn irecv(bits: u64, buffers: &[NcclBuffer]) -> Result<u64, NetCallError> {
    let engine = &world()?.engine;
    let comm = comm_from_bits(bits)?;
    let request = if let [only] = buffers {
        engine.irecv_into(comm, OffsetBase::Address, &[only.to_recv_buf()])?
    } else {
        engine.irecv_into(comm, OffsetBase::Address, &to_recv_bufs(buffers)?[..buffers.len()])?
    };
    Ok(request.map_or(0, RequestId::to_bits))
}

pub(crate) fn iflush(bits: u64, buffers: &[NcclBuffer]) -> Result<u64, NetCallError> {
    let located = to_recv_bufs(buffers)?;
    let request =
        world()?.engine.iflush_from(comm_from_bits(bits)?, OffsetBase::Address, &located[..buffers.len()])?;
    Ok(request.map_or(0, RequestId::to_bits))
}

#[inline]
pub(crate) fn test(request: u64, sizes: &mut [u64; NET_RECVS_MAX]) -> Result<Option<usize>, NetCallError> {
    Ok(world()?.engine.test_count(RequestId::from_bits(request), sizes)?)
}

/// Makes a virtual device of physical devices; returns its number.
pub(crate) fn make_virtual(members: &[i32]) -> Result<i32, NetCallError> {
    let world = world()?;
    if members.len() > 1 && !world.engine.can_fuse() {
        return Err(NetCallError::Argument("NICs are not fused: NCCL_IB_MERGE_NICS is 0"));
    }
    let nics = world.engine.nics();
    let is_placed = |dev: &i32| {
        let nic = usize::try_from(*dev).ok().and_then(|dev| nics.get(dev));
        nic.is_none_or(|nic| nic.pci_path.is_some())
    };
    if members.len() > 1 && !world.fuses_all && !members.iter().all(is_placed) {
        return Err(NetCallError::Argument(
            "NICs without a place in the PCI tree are not fused, because NCCL would find no path to them; TRUNKLINE_FUSE=all fuses them",
        ));
    }
    let dev = world.devices.fuse_devices(members, nics)?;
    world.devices.with_device(dev, KnownDevices::All, |device| {
        let name = device.device_name().to_string_lossy();
        let speed = device.speed_mbps;
        world.log.log_line(LogLevel::Info, &format!("trunkline: device {dev} is {name}, {speed} Mb/s"));
    })?;
    Ok(dev)
}
