//! What a test has NVIDIA's driver do besides, on a GPU: memory of a pool, and how much is free.

use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;

use libloading::os::unix::Library;

type Code = u32;

/// The first device of this process, in its primary context, which is kept until the process ends.
pub(crate) struct Nvidia {
    library: ManuallyDrop<Library>,
    context: *mut c_void,
}

impl Nvidia {
    pub(crate) fn open() -> Self {
        // SAFETY: whoever asks has the driver open already.
        let library = ManuallyDrop::new(unsafe { Library::new("libcuda.so.1") }.unwrap());
        let mut nvidia = Self { library, context: std::ptr::null_mut() };
        let init: unsafe extern "C" fn(u32) -> Code = nvidia.function(c"cuInit");
        // SAFETY: as often as anyone likes.
        assert_eq!(unsafe { init(0) }, 0);
        let retain: unsafe extern "C" fn(*mut *mut c_void, i32) -> Code =
            nvidia.function(c"cuDevicePrimaryCtxRetain");
        // SAFETY: a place of ours.
        assert_eq!(unsafe { retain(&raw mut nvidia.context, 0) }, 0);
        nvidia
    }

    fn function<T: Copy>(&self, name: &CStr) -> T {
        // SAFETY: the function of this name has that type, by the driver's header.
        *unsafe { self.library.get::<T>(name.to_bytes_with_nul()) }.unwrap()
    }

    fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        let push: unsafe extern "C" fn(*mut c_void) -> Code = self.function(c"cuCtxPushCurrent_v2");
        let pop: unsafe extern "C" fn(*mut *mut c_void) -> Code = self.function(c"cuCtxPopCurrent_v2");
        // SAFETY: it is retained until the process ends.
        assert_eq!(unsafe { push(self.context) }, 0);
        let result = call();
        let mut popped = std::ptr::null_mut();
        // SAFETY: pushed above.
        assert_eq!(unsafe { pop(&raw mut popped) }, 0);
        result
    }

    /// What `cudaMallocAsync` gives; kept until the process ends.
    pub(crate) fn pooled(&self, len: usize) -> usize {
        let allocate: unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> Code =
            self.function(c"cuMemAllocAsync");
        let synchronize: unsafe extern "C" fn() -> Code = self.function(c"cuCtxSynchronize");
        let mut at = 0;
        self.within(|| {
            // SAFETY: a place of ours; the default stream.
            assert_eq!(unsafe { allocate(&raw mut at, len, std::ptr::null_mut()) }, 0);
            // SAFETY: a context is current.
            assert_eq!(unsafe { synchronize() }, 0);
        });
        at as usize
    }

    /// Segments of virtual memory, one behind the other as PyTorch's expandable segments are, at least so many bytes in all; kept until the process ends.
    pub(crate) fn segments(&self, len: usize) -> usize {
        // `CUmemAllocationProp`: pinned memory of the first device, to be exported as a descriptor.
        let properties: [u64; 4] = [1 | 1 << 32, 1, 0, 0];
        // `CUmemAccessDesc`: the first device reads and writes.
        let access: [u32; 3] = [1, 0, 3];
        let granularity: unsafe extern "C" fn(*mut usize, *const u64, u32) -> Code =
            self.function(c"cuMemGetAllocationGranularity");
        let reserve: unsafe extern "C" fn(*mut u64, usize, usize, u64, u64) -> Code =
            self.function(c"cuMemAddressReserve");
        let create: unsafe extern "C" fn(*mut u64, usize, *const u64, u64) -> Code =
            self.function(c"cuMemCreate");
        let map: unsafe extern "C" fn(u64, usize, usize, u64, u64) -> Code = self.function(c"cuMemMap");
        let allow: unsafe extern "C" fn(u64, usize, *const u32, usize) -> Code =
            self.function(c"cuMemSetAccess");
        let (mut step, mut base) = (0, 0);
        self.within(|| {
            // SAFETY: places of ours.
            assert_eq!(unsafe { granularity(&raw mut step, properties.as_ptr(), 0) }, 0);
            let step = step.max(2 << 20);
            let all = len.next_multiple_of(step);
            // SAFETY: a place of ours.
            assert_eq!(unsafe { reserve(&raw mut base, all, 0, 0, 0) }, 0);
            for at in (0..all).step_by(step) {
                let mut handle = 0;
                // SAFETY: places of ours.
                assert_eq!(unsafe { create(&raw mut handle, step, properties.as_ptr(), 0) }, 0);
                // SAFETY: inside of what was reserved.
                assert_eq!(unsafe { map(base + at as u64, step, 0, handle, 0) }, 0);
            }
            // SAFETY: memory that was mapped, and one description.
            assert_eq!(unsafe { allow(base, all, access.as_ptr(), 1) }, 0);
        });
        base as usize
    }

    /// Bytes of the device that nobody has.
    pub(crate) fn free_bytes(&self) -> usize {
        let ask: unsafe extern "C" fn(*mut usize, *mut usize) -> Code = self.function(c"cuMemGetInfo_v2");
        let (mut free, mut total) = (0, 0);
        // SAFETY: places of ours.
        self.within(|| assert_eq!(unsafe { ask(&raw mut free, &raw mut total) }, 0));
        free
    }
}
