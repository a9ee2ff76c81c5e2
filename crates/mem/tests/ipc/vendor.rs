//! GPU memory as a subject of the acceptance suite, and further driver calls for tests.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Mutex;

use libloading::os::unix::Library;
use trunkline_mem::ipc::{
    AnyMemory, CopyPlace, CudaMemory, HandlePassing, HipMemory, IpcCaps, IpcMemory, LevelZero,
};
use trunkline_sys::cuda_ipc::{self as cuda, MemAccessDesc};

use crate::peer::Parcel;
use crate::stub;
use crate::subject::Subject;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Clears new memory, as the suite requires; no driver does so.
fn zeroed(memory: &dyn IpcMemory, addr: usize, len: usize) -> Result<usize, String> {
    memory.write(CopyPlace::Own(addr), &vec![0; len]).map_err(text)?;
    Ok(addr)
}

/// Memory of `cudaMalloc`.
pub(crate) struct Legacy {
    pub(crate) memory: CudaMemory,
}

/// Implements allocation by a GPU driver.
macro_rules! allocates {
    ($subject:ty; $($more:item)*) => {
        impl Subject for $subject {
            fn memory(&self) -> &dyn IpcMemory {
                &self.memory
            }

            $($more)*

            fn alloc(&self, len: usize) -> Result<usize, String> {
                zeroed(&self.memory, self.memory.alloc(len).map_err(text)?, len)
            }

            fn free(&self, addr: usize) -> Result<(), String> {
                self.memory.free(addr).map_err(text)
            }
        }
    };
}

allocates!(Legacy;
    /// The kind without descriptors.
    fn caps(&self) -> IpcCaps {
        IpcCaps { by_descriptor: false, ..self.memory.caps() }
    }
);

/// Memory of `hipMalloc`.
pub(crate) struct Amd {
    pub(crate) memory: HipMemory,
}

allocates!(Amd;);

/// Memory of `zeMemAllocDevice`.
pub(crate) struct Intel {
    pub(crate) memory: LevelZero,
}

allocates!(Intel;
    fn keeps_exports(&self) -> bool {
        true
    }
);

/// `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: u32,
    device: c_int,
    metadata: *mut c_void,
    flags: [u8; 8],
}

type Create = unsafe extern "C" fn(*mut u64, usize, *const Properties, u64) -> u32;
type Granularity = unsafe extern "C" fn(*mut usize, *const Properties, u32) -> u32;

/// Virtual memory; each allocation is one segment unless a test requests more.
pub(crate) struct Segments {
    memory: CudaMemory,
    library: ManuallyDrop<Library>,
    /// Lengths, by first address.
    lens: Mutex<HashMap<usize, usize>>,
}

impl Segments {
    pub(crate) fn new() -> Self {
        let memory = CudaMemory::open_device(0).unwrap();
        let library = ManuallyDrop::new(stub::open("libcuda.so.1"));
        Self { memory, library, lens: Mutex::default() }
    }

    fn function<T: Copy>(&self, name: &CStr) -> T {
        // SAFETY: the function of this name has that type, by the driver's header.
        *unsafe { self.library.get::<T>(name.to_bytes_with_nul()) }.unwrap()
    }

    /// Makes adjacent segments of those lengths, with handles of that type.
    fn make(&self, lens: &[usize], types: u32) -> Result<usize, String> {
        let ok = |code: u32| if code == 0 { Ok(()) } else { Err(format!("code {code}")) };
        let properties = Properties {
            kind: 1,
            handle_types: types,
            location: 1,
            device: 0,
            metadata: std::ptr::null_mut(),
            flags: [0; 8],
        };
        let mut step = 0;
        // SAFETY: both pointers are valid places of this function.
        ok(unsafe {
            self.function::<Granularity>(c"cuMemGetAllocationGranularity")(
                &raw mut step,
                &raw const properties,
                0,
            )
        })?;
        let lens: Vec<usize> = lens.iter().map(|len| len.next_multiple_of(step)).collect();
        let all = lens.iter().sum();
        let mut base = 0;
        let reserve = self.function::<cuda::MemAddressReserve>(c"cuMemAddressReserve");
        // SAFETY: the pointer is a valid place of this function.
        ok(unsafe { reserve(&raw mut base, all, 0, 0, 0) })?;
        let mut at = base;
        for len in lens {
            let mut handle = 0;
            // SAFETY: both pointers are valid places of this function.
            let made = ok(unsafe {
                self.function::<Create>(c"cuMemCreate")(&raw mut handle, len, &raw const properties, 0)
            });
            if made.is_err() {
                // SAFETY: frees the reserved range.
                ok(unsafe { self.function::<cuda::MemAddressFree>(c"cuMemAddressFree")(base, all) })?;
                return Err("OutOfMemory".to_owned());
            }
            // SAFETY: the range lies inside the reserved range.
            ok(unsafe { self.function::<cuda::MemMap>(c"cuMemMap")(at, len, 0, handle, 0) })?;
            // SAFETY: the mapping holds the memory.
            ok(unsafe { self.function::<cuda::MemRelease>(c"cuMemRelease")(handle) })?;
            at += len as u64;
        }
        let access = MemAccessDesc { location_type: 1, location_id: 0, flags: 3 };
        let allow = self.function::<cuda::MemSetAccess>(c"cuMemSetAccess");
        // SAFETY: the range was mapped above.
        ok(unsafe { allow(base, all, &raw const access, 1) })?;
        self.lens.lock().unwrap().insert(base as usize, all);
        zeroed(&self.memory, base as usize, all)
    }
}

impl Subject for Segments {
    fn memory(&self) -> &dyn IpcMemory {
        &self.memory
    }

    /// Passed by descriptors, and without rules for addresses.
    fn caps(&self) -> IpcCaps {
        IpcCaps { by_bytes: false, opens_once: false, refuses_overlap: false, ..self.memory.caps() }
    }

    fn alloc(&self, len: usize) -> Result<usize, String> {
        self.make(&[len], 1)
    }

    fn free(&self, addr: usize) -> Result<(), String> {
        let len = self.lens.lock().unwrap().remove(&addr).ok_or("Unknown")?;
        // SAFETY: unmaps exactly the ranges that were mapped there.
        assert_eq!(unsafe { self.function::<cuda::MemUnmap>(c"cuMemUnmap")(addr as u64, len) }, 0);
        let free_addresses = self.function::<cuda::MemAddressFree>(c"cuMemAddressFree");
        // SAFETY: frees the reserved range.
        assert_eq!(unsafe { free_addresses(addr as u64, len) }, 0);
        Ok(())
    }
}

/// Makes further driver calls for tests.
pub(crate) fn also(
    kind: &str,
    subject: &dyn Subject,
    name: &str,
    arguments: [u64; 6],
) -> Result<u64, String> {
    let [a, b, ..] = arguments;
    if let Some(sort) = name.strip_prefix("make ") {
        return stub::make(stub::library_of(kind).unwrap(), sort, a).ok_or_else(|| "OutOfMemory".to_owned());
    }
    match name {
        // Two adjacent segments.
        "segments" => Ok(Segments::new().keep(&[a as usize, b as usize], 1)? as u64),
        // Memory that the driver allocates for another device.
        "on_device" => {
            let kind = kind.trim_end_matches("_segment");
            let other = ManuallyDrop::new(AnyMemory::open(kind, b as u32).map_err(text)?);
            Ok(other.alloc(a as usize).map_err(text)? as u64)
        }
        // Memory that may not be exported.
        "unshareable" => Ok(Segments::new().keep(&[a as usize], 0)? as u64),
        // Memory of `cudaMallocAsync`.
        "pooled" => {
            let other = Segments::new();
            let allocate: unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> u32 =
                other.function(c"cuMemAllocAsync");
            let mut at = 0;
            let code = other.within(|| {
                // SAFETY: the pointer is a valid place of this function.
                unsafe { allocate(&raw mut at, a as usize, std::ptr::null_mut()) }
            });
            std::mem::forget(other);
            if code == 0 { Ok(at) } else { Err(format!("code {code}")) }
        }
        "holds" => Ok(u64::from(subject.memory().holds_range(a as usize, b as usize))),
        other => Ok(subject.tells(other)),
    }
}

impl Segments {
    /// As [`Segments::make`]; the memory lives until the process ends.
    fn keep(self, lens: &[usize], types: u32) -> Result<usize, String> {
        let made = self.make(lens, types);
        std::mem::forget(self);
        made
    }

    /// Calls a function in the primary context of the device.
    fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        use trunkline_sys::cuda::{Context, CtxPopCurrent, CtxPushCurrent, DevicePrimaryCtxRetain};
        let mut context: *mut Context = std::ptr::null_mut();
        let retain = self.function::<DevicePrimaryCtxRetain>(c"cuDevicePrimaryCtxRetain");
        // SAFETY: the pointer is a valid place of this function.
        assert_eq!(unsafe { retain(&raw mut context, 0) }, 0);
        // SAFETY: the context is retained until the process ends.
        assert_eq!(unsafe { self.function::<CtxPushCurrent>(c"cuCtxPushCurrent_v2")(context) }, 0);
        let result = call();
        // SAFETY: the context was pushed above.
        assert_eq!(unsafe { self.function::<CtxPopCurrent>(c"cuCtxPopCurrent_v2")(&raw mut context) }, 0);
        result
    }
}

/// Returns a forged parcel: the handle's allocation is longer, with a valid check word.
pub(crate) fn longer(parcel: &Parcel, by: u64) -> Parcel {
    parcel.with(|bytes| {
        let mut words: Vec<u64> =
            bytes[8..].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        words[3] += by;
        let start = 0xcbf2_9ce4_8422_2325 ^ u64::from(parcel.handle.kind());
        let check = words[..13].iter().fold(start, |sum, word| {
            let sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            sum ^ sum >> 29
        });
        words[13] = check;
        bytes.truncate(8);
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    })
}

#[test]
fn false_length_in_a_handle_is_refused() {
    for kind in ["cuda", "cuda_segment", "hip", "ze"] {
        if !stub::is_there(kind) {
            return;
        }
        let world = crate::peer::World::new(kind, 64 << 20);
        let [owner, importer] = [world.process(), world.process()];
        let addr = owner.alloc(64 << 10).unwrap();
        let parcel = owner.export(&owner.find(addr).unwrap(), HandlePassing::Either).unwrap();
        for by in [8, 64 << 10, 1 << 40] {
            let error = importer.open(&longer(&parcel, by)).unwrap_err();
            // A driver that receives a length rejects it by itself.
            let is_refused = error.starts_with("Handle(Value(\"length\"))") || kind == "cuda_segment";
            assert!(is_refused, "{kind} {by}: {error}");
        }
        importer.open(&longer(&parcel, 0)).unwrap();
    }
}
