//! The device in a memory file, with a driver that tests can make fail or delay.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{
    CloseError, CopyBatch, CopyError, CopyPlace, CopyTarget, ExportError, ExportedHandle,
    FindAllocationError, HandleOpenError, HandlePassing, IpcAllocation, IpcCaps, IpcHandle, IpcMemory,
    MappingQueue, MappingTicket, MappingUser, MemfdDevice, NotClosed, OpenedHandle, StagePin,
};

/// The driver's calls that can fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Export,
    Open,
    Close,
    Copy,
    /// Not a failure: while it is set, adjacent allocations appear as one, as segments of virtual memory do.
    GoesOn,
    /// Ends a copy that was begun and has landed.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    End,
    /// Begins a further copy of a batch; its failure means that the device is busy.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    Further,
}

/// A device, and how many further calls of each kind must fail.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) device: MemfdDevice,
    failures: [AtomicU64; 7],
    /// The number of bytes copied.
    copied: AtomicU64,
    /// For each handle, how often it was exported and how often it was unexported.
    handles: Mutex<BTreeMap<Vec<u8>, [u64; 2]>>,
    /// The second device of this process, and the processor's mapping. Each of the three copies only through mappings
    /// that were opened for it.
    places: OnceLock<[MemfdDevice; 2]>,
    /// For which of the three each address is open.
    open: Mutex<BTreeMap<usize, usize>>,
    /// Once set, copies of at least this many bytes take until [`Kind::let_go`].
    holds: OnceLock<usize>,
    /// The long copies that have not landed, and the number of the next one.
    held: Mutex<(Vec<Held>, u64)>,
    /// The length of each long copy.
    lens: Mutex<Vec<usize>>,
    /// Whether a kernel runs. A call that waits for its copy would then wait for the kernel.
    has_kernel: AtomicBool,
    /// The pinned ranges.
    pins: Arc<AtomicU64>,
    /// The requests to open, close, pin and unexport, once only [`Kind::serve_mappings`] executes them.
    mapping: OnceLock<MappingQueue>,
}

/// A pinned range.
struct Pin(Arc<AtomicU64>);

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A long copy.
#[derive(Debug)]
struct Held {
    number: u64,
    bytes: Vec<u8>,
    own: usize,
    other: Option<(MemoryRange, u64)>,
}

/// The properties of the second device's allocations. As users of mappings the two devices have the numbers 0 and 1.
const SECOND: u32 = 4;

impl Kind {
    pub(crate) fn new(device: MemfdDevice) -> Self {
        let (places, open) = (OnceLock::new(), Mutex::default());
        Self {
            device,
            failures: Default::default(),
            copied: AtomicU64::new(0),
            handles: Mutex::default(),
            places,
            open,
            holds: OnceLock::new(),
            held: Mutex::default(),
            lens: Mutex::default(),
            has_kernel: AtomicBool::new(false),
            pins: Arc::default(),
            mapping: OnceLock::new(),
        }
    }

    /// From now on only [`Kind::serve_mappings`] opens, closes and pins memory, and returns handles to the driver.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn map_beside(&self) {
        self.mapping.set(MappingQueue::new().unwrap()).unwrap();
    }

    /// Executes all queued requests; returns their number.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn serve_mappings(&self) -> usize {
        let mut served = 0;
        while self.mapping.get().is_some_and(|queue| queue.serve_one(|request| request.carry_out(self))) {
            served += 1;
        }
        served
    }

    /// Fills the queue with requests to pin other memory.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn fill_queue(&self) -> Vec<MappingTicket> {
        let memory = MemoryRange::heap(8);
        std::iter::from_fn(|| self.mapping.get().unwrap().post_pin(&memory)).collect()
    }

    /// Abandons these requests, so that no caller takes their results.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn empty_queue(&self, tickets: Vec<MappingTicket>) {
        tickets.into_iter().for_each(|ticket| self.mapping.get().unwrap().abandon_request(ticket));
    }

    /// From now on, copies of at least this many bytes take until [`Kind::let_go`], unless they write a peer's memory.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn hold(&self, bytes: usize) {
        self.holds.set(bytes).unwrap();
    }

    /// Lets all long copies land.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn let_go(&self) {
        for Held { bytes, own, other, .. } in std::mem::take(&mut self.held.lock().unwrap().0) {
            match other {
                Some((memory, at)) => memory.write(at, &bytes).unwrap(),
                None => self.write_now(CopyPlace::Own(own), &bytes).unwrap(),
            }
        }
    }

    /// Starts or ends a kernel. While it runs, a caller that waits for a copy would wait for it, and panics.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn run_kernel(&self, runs: bool) {
        self.has_kernel.store(runs, Ordering::Relaxed);
    }

    fn assert_no_kernel(&self) {
        assert!(
            !self.has_kernel.load(Ordering::Relaxed),
            "no caller may wait for a copy while a kernel runs"
        );
    }

    fn read_now(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        match self.places.get() {
            None => self.device.read(from, out),
            Some(_) => self.copier(from, None)?.read(from, out),
        }
    }

    fn write_now(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        match self.places.get() {
            None => self.device.write(to, bytes),
            Some(_) => self.copier(to, None)?.write(to, bytes),
        }
    }

    /// Returns the lengths of the long copies so far.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn lens(&self) -> Vec<usize> {
        self.lens.lock().unwrap().clone()
    }

    /// Returns the number of pinned ranges.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn pins(&self) -> u64 {
        self.pins.load(Ordering::Relaxed)
    }

    fn take_long(&self, batch: &mut Option<CopyBatch>, copy: Held) {
        let (held, next) = &mut *self.held.lock().unwrap();
        let CopyBatch(number) = batch.get_or_insert_with(|| {
            *next += 1;
            CopyBatch(*next)
        });
        self.lens.lock().unwrap().push(copy.bytes.len());
        held.push(Held { number: *number, ..copy });
    }

    /// Returns the number of long copies that have not landed.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn under_way(&self) -> usize {
        self.held.lock().unwrap().0.len()
    }

    /// Adds a second device, and requires a separate mapping for the processor.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn has_places(&self) {
        let join = |number| MemfdDevice::join(number, &self.device.descriptor().unwrap()).unwrap();
        self.places.set([join(SECOND), join(0)]).unwrap();
    }

    /// The first device, the second device, or the processor.
    pub(crate) fn of(&self, place: u64) -> &MemfdDevice {
        match (place, self.places.get()) {
            (1 | 2, Some(places)) => &places[place as usize - 1],
            _ => &self.device,
        }
    }

    fn place_of(&self, addr: usize) -> u64 {
        u64::from(self.of(1).allocation_of(addr).is_ok() && self.places.get().is_some())
    }

    /// Where an address is open; `None` if it is no longer open anywhere.
    fn place(&self, at: CopyPlace<'_>) -> Option<u64> {
        match at {
            CopyPlace::Own(addr) => Some(self.place_of(addr)),
            CopyPlace::Open(mapped, _) => {
                self.open.lock().unwrap().get(&mapped.local_address()?).map(|at| *at as u64)
            }
        }
    }

    /// Returns which of the three can copy between two addresses, if any can.
    fn copier(&self, one: CopyPlace<'_>, other: Option<CopyPlace<'_>>) -> Result<&MemfdDevice, CopyError> {
        let other = match other {
            None => Some(2),
            Some(at) => self.place(at),
        };
        let place = self.place(one).ok_or(CopyError::Closed)?;
        // The processor reads and writes own memory of either device; tests check no more of it.
        let is_one = Some(place) == other || (matches!(one, CopyPlace::Own(_)) && other == Some(2));
        if is_one { Ok(self.of(place)) } else { Err(CopyError::Closed) }
    }

    pub(crate) fn fail(&self, call: u64, times: u64) {
        self.failures[call as usize].store(times, Ordering::Relaxed);
    }

    /// Returns how many handles were exported and unexported. No handle is unexported more often than exported.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn handles(&self) -> [u64; 2] {
        let handles = self.handles.lock().unwrap();
        let sum = |at: usize| handles.values().map(|counts| counts[at]).sum();
        [sum(0), sum(1)]
    }

    /// Returns the number of bytes copied between memory of two processes.
    #[allow(dead_code, reason = "used by some of the tests that share this file")]
    pub(crate) fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    fn fails(&self, call: Call) -> bool {
        let left = &self.failures[call as usize];
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

impl IpcMemory for Kind {
    fn caps(&self) -> IpcCaps {
        self.device.caps()
    }

    fn allocation_of(&self, addr: usize) -> Result<IpcAllocation, FindAllocationError> {
        self.of(self.place_of(addr)).allocation_of(addr)
    }

    fn holds_range(&self, addr: usize, len: usize) -> bool {
        let goes_on = self.failures[Call::GoesOn as usize].load(Ordering::Relaxed) != 0;
        let mut at = addr;
        while let Ok(found) = self.allocation_of(at) {
            at = found.base + found.len;
            if at >= addr + len || !goes_on {
                break;
            }
        }
        at >= addr + len
    }

    fn export(&self, of: &IpcAllocation, how: HandlePassing) -> Result<ExportedHandle, ExportError> {
        if self.fails(Call::Export) {
            return Err(ExportError::Passing("failure injected by the test"));
        }
        let export = self.device.export(of, how)?;
        self.handles.lock().unwrap().entry(export.handle.bytes().to_vec()).or_default()[0] += 1;
        Ok(export)
    }

    fn unexport(&self, export: ExportedHandle) -> Result<(), CloseError> {
        let mut handles = self.handles.lock().unwrap();
        let [given, taken] =
            handles.get_mut(export.handle.bytes()).expect("only exported handles may be unexported");
        *taken += 1;
        assert!(*taken <= *given, "a handle may be unexported only once");
        self.device.unexport(export)
    }

    fn open(&self, handle: &IpcHandle, descriptor: Option<OwnedFd>) -> Result<OpenedHandle, HandleOpenError> {
        if self.fails(Call::Open) {
            return Err(HandleOpenError::Descriptor("failure injected by the test"));
        }
        self.device.open(handle, descriptor)
    }

    fn mapping_user(&self, own: Option<usize>) -> Option<MappingUser> {
        self.places.get()?;
        Some(own.map_or(MappingUser::Host, |addr| MappingUser::Device(self.place_of(addr) as u32)))
    }

    fn open_for(
        &self,
        handle: &IpcHandle,
        descriptor: Option<OwnedFd>,
        user: MappingUser,
    ) -> Result<OpenedHandle, HandleOpenError> {
        if self.places.get().is_none() {
            return self.open(handle, descriptor);
        }
        let place = match user {
            MappingUser::Device(1) => 1,
            MappingUser::Device(_) => 0,
            MappingUser::Host => 2,
        };
        let mapped = self.of(place).open(handle, descriptor)?;
        self.open.lock().unwrap().insert(mapped.local_address().unwrap(), place as usize);
        Ok(mapped)
    }

    fn close(&self, mapped: OpenedHandle) -> Result<(), NotClosed> {
        if self.fails(Call::Close) {
            return Err(NotClosed { mapped, error: CloseError::Unknown });
        }
        let place = mapped.local_address().and_then(|at| self.open.lock().unwrap().remove(&at));
        self.of(place.unwrap_or(0) as u64).close(mapped)
    }

    fn mapping_queue(&self) -> Option<&MappingQueue> {
        self.mapping.get()
    }

    fn unexport_queue(&self) -> Option<&MappingQueue> {
        self.mapping.get()
    }

    fn pin_queue(&self) -> Option<&MappingQueue> {
        self.mapping.get()
    }

    fn read(&self, from: CopyPlace<'_>, out: &mut [u8]) -> Result<(), CopyError> {
        self.assert_no_kernel();
        self.read_now(from, out)
    }

    fn write(&self, to: CopyPlace<'_>, bytes: &[u8]) -> Result<(), CopyError> {
        self.assert_no_kernel();
        self.write_now(to, bytes)
    }

    fn copy(&self, from: CopyPlace<'_>, to: CopyTarget<'_>, len: usize) -> Result<(), CopyError> {
        self.assert_no_kernel();
        if self.fails(Call::Copy) {
            return Err(CopyError::Gone);
        }
        self.copied.fetch_add(len as u64, Ordering::Relaxed);
        if self.places.get().is_none() {
            return self.device.copy(from, to, len);
        }
        let other = match to {
            CopyTarget::Own(addr) => Some(CopyPlace::Own(addr)),
            CopyTarget::Open(mapped, at) => Some(CopyPlace::Open(mapped, at)),
            CopyTarget::Memory(..) => None,
        };
        self.copier(from, other)?.copy(from, to, len)
    }

    fn batch_bytes(&self) -> Option<u64> {
        self.holds.get().map(|_| 1 << 20)
    }

    fn begin_copy(
        &self,
        batch: &mut Option<CopyBatch>,
        from: CopyPlace<'_>,
        to: CopyTarget<'_>,
        len: usize,
    ) -> Result<(), CopyError> {
        let (own, other) = match to {
            CopyTarget::Own(addr) => (addr, None),
            CopyTarget::Memory(memory, at) => (0, Some((memory.clone(), at))),
            CopyTarget::Open(..) => return self.copy(from, to, len),
        };
        if self.holds.get().is_none_or(|least| len < *least) {
            return self.copy(from, to, len);
        }
        if batch.is_some() && self.fails(Call::Further) {
            return Err(CopyError::Busy);
        }
        let mut bytes = vec![0; len];
        self.read_now(from, &mut bytes)?;
        self.take_long(batch, Held { number: 0, bytes, own, other });
        Ok(())
    }

    fn begin_fill(
        &self,
        batch: &mut Option<CopyBatch>,
        to: CopyPlace<'_>,
        from: &MemoryRange,
        offset: u64,
        len: usize,
    ) -> Result<(), CopyError> {
        let CopyPlace::Own(own) = to else { return self.fill_from(to, from, offset, len) };
        if self.holds.get().is_none_or(|least| len < *least) {
            return self.fill_from(to, from, offset, len);
        }
        if batch.is_some() && self.fails(Call::Further) {
            return Err(CopyError::Busy);
        }
        let mut bytes = vec![0; len];
        from.read(offset, &mut bytes).unwrap();
        self.take_long(batch, Held { number: 0, bytes, own, other: None });
        Ok(())
    }

    fn pin_stage(&self, _memory: &MemoryRange) -> Option<StagePin> {
        self.pins.fetch_add(1, Ordering::Relaxed);
        Some(StagePin::from_guard(Pin(Arc::clone(&self.pins))))
    }

    fn has_ended(&self, batch: &CopyBatch) -> Result<bool, CopyError> {
        let has_landed = self.held.lock().unwrap().0.iter().all(|one| one.number != batch.0);
        if has_landed && self.fails(Call::End) { Err(CopyError::Gone) } else { Ok(has_landed) }
    }
}
