//! Handles of the driver as owned values: each is released when it is dropped, and every call is checked.

use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use kernels::{Kernel, Launch, PTX};

use crate::failure::Failure;

/// Largest number of parameters of a kernel.
const PARAMETERS_MAX: usize = 8;

/// All called driver functions apart from the one selected for [`elapsed`](super::Gpu::elapsed). All drivers since CUDA 11 have them.
const NEEDED: [&str; 26] = [
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetAddressRange_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD8Async",
    "cuLaunchKernel",
];
/// Drivers before CUDA 12.8 lack the newer function, and cudarc binds no other for CUDA 13.
const ELAPSED: [&str; 2] = ["cuEventElapsedTime_v2", "cuEventElapsedTime"];

pub(super) type Elapsed =
    unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// Returns whether an error invalidates the context: every later call fails until the process is restarted.
pub(super) fn is_sticky(error: sys::CUresult) -> bool {
    use sys::CUresult as E;
    matches!(
        error,
        E::CUDA_ERROR_DEINITIALIZED
            | E::CUDA_ERROR_DEVICE_UNAVAILABLE
            | E::CUDA_ERROR_ECC_UNCORRECTABLE
            | E::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | E::CUDA_ERROR_CONTAINED
            | E::CUDA_ERROR_INVALID_CONTEXT
            | E::CUDA_ERROR_ILLEGAL_ADDRESS
            | E::CUDA_ERROR_LAUNCH_TIMEOUT
            | E::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | E::CUDA_ERROR_ASSERT
            | E::CUDA_ERROR_HARDWARE_STACK_ERROR
            | E::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | E::CUDA_ERROR_MISALIGNED_ADDRESS
            | E::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | E::CUDA_ERROR_INVALID_PC
            | E::CUDA_ERROR_LAUNCH_FAILED
            | E::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | E::CUDA_ERROR_MPS_CONNECTION_FAILED
            | E::CUDA_ERROR_MPS_RPC_FAILURE
            | E::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | E::CUDA_ERROR_EXTERNAL_DEVICE
            | E::CUDA_ERROR_UNKNOWN
    )
}

pub(super) fn check<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, Failure> {
    result.map_err(|DriverError(error)| Failure::Cuda {
        call,
        name: format!("{error:?}"),
        is_sticky: is_sticky(error),
    })
}

/// Primary context of a device.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) device: sys::CUdevice,
    pub(super) raw: sys::CUcontext,
}

// SAFETY: the driver's handles may be used from every thread; the pointer is never followed.
unsafe impl Send for Context {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn new(device: sys::CUdevice) -> Result<Self, Failure> {
        // SAFETY: the driver has returned the device.
        let raw = unsafe { result::primary_ctx::retain(device) };
        let raw = check("cuDevicePrimaryCtxRetain", raw)?;
        Ok(Self { device, raw })
    }

    /// Makes it the calling thread's current context.
    pub(super) fn bind(&self) -> Result<(), Failure> {
        // SAFETY: retained until this is dropped.
        check("cuCtxSetCurrent", unsafe {
            result::ctx::set_current(self.raw)
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, by `new`. All users of the context hold a reference to this value.
        let _released = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Allocation of device memory.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) context: Arc<Context>,
    pub(super) address: sys::CUdeviceptr,
    pub(super) bytes: u64,
}

impl Memory {
    pub(super) fn new(context: &Arc<Context>, bytes: u64) -> Result<Self, Failure> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the memory is never read before it was written.
        let address = check("cuMemAlloc_v2", unsafe { result::malloc_sync(length) })?;
        Ok(Self {
            context: Arc::clone(context),
            address,
            bytes,
        })
    }

    /// Returns whether the driver knows an allocation of this size at the address.
    pub(super) fn is_known(&self) -> bool {
        let (mut base, mut size) = (0, 0);
        // SAFETY: both pointers are to values of the function's types.
        let result =
            unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, self.address) };
        result == sys::CUresult::CUDA_SUCCESS
            && base == self.address
            && u64::try_from(size) == Ok(self.bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated once, by `new`; work on it has ended (`Lane::run` waits).
            let _freed = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Pinned host memory of initialised words.
pub(super) struct Pinned {
    pub(super) context: Arc<Context>,
    words: *mut u32,
    count: usize,
}

// SAFETY: it owns what it points to.
unsafe impl Send for Pinned {}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} words)", self.count)
    }
}

impl Pinned {
    pub(super) fn new(context: &Arc<Context>, count: usize) -> Result<Self, Failure> {
        let bytes = count.saturating_mul(4);
        // SAFETY: the memory is initialised below, before it is read.
        let pointer = check("cuMemHostAlloc", unsafe { result::malloc_host(bytes, 0) })?;
        let words = pointer.cast::<u32>();
        // SAFETY: `bytes` long, page-aligned and exclusively owned.
        unsafe { words.write_bytes(0, count) };
        Ok(Self {
            context: Arc::clone(context),
            words,
            count,
        })
    }

    /// Returns the words. Call it only while no stream operation reads or writes them.
    pub(super) fn words(&mut self) -> &mut [u32] {
        // SAFETY: initialised by `new`, `count` long, and `&mut self` excludes other references. No copy is in flight: the
        // functions that enqueue copies (`Lane::run`, `Gpu::load`) wait for their end before they return or call this again.
        unsafe { std::slice::from_raw_parts_mut(self.words, self.count) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated once, by `new`; no copy is in flight.
            let _freed = unsafe { result::free_host(self.words.cast()) };
        }
    }
}

/// A non-blocking CUDA stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) context: Arc<Context>,
    pub(super) raw: sys::CUstream,
}

// SAFETY: the driver's handles may be used from every thread; the pointer is never followed.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, Failure> {
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self {
            context: Arc::clone(context),
            raw: check("cuStreamCreate", raw)?,
        })
    }

    pub(super) fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: the stream exists until this is dropped.
        check("cuStreamSynchronize", unsafe {
            result::stream::synchronize(self.raw)
        })
    }

    /// Enqueues a copy of words to the device; they must stay unchanged until the stream is synchronised.
    pub(super) fn copy_in(&self, to: sys::CUdeviceptr, from: &[u32]) -> Result<(), Failure> {
        // SAFETY: the callers (`Lane::run`, `Gpu::load`) own both and wait before either is accessed or freed.
        check("cuMemcpyHtoDAsync_v2", unsafe {
            result::memcpy_htod_async(to, from, self.raw)
        })
    }

    /// Enqueues a copy of words from the device; they must not be accessed until the stream is synchronised.
    pub(super) fn copy_out(&self, to: &mut [u32], from: sys::CUdeviceptr) -> Result<(), Failure> {
        // SAFETY: as in `copy_in`.
        check("cuMemcpyDtoHAsync_v2", unsafe {
            result::memcpy_dtoh_async(to, from, self.raw)
        })
    }

    pub(super) fn launch(
        &self,
        function: Function,
        launch: &Launch,
        blocks: u32,
        threads: u32,
    ) -> Result<(), Failure> {
        let buffer = launch.encode();
        let mut values = [0_u64; PARAMETERS_MAX];
        let mut pointers = [std::ptr::null_mut::<c_void>(); PARAMETERS_MAX];
        let parameters = launch.kernel().parameters();
        for ((value, pointer), parameter) in values.iter_mut().zip(&mut pointers).zip(parameters) {
            let mut bytes = [0; 8];
            bytes[..parameter.size].copy_from_slice(&buffer[parameter.offset..][..parameter.size]);
            *value = u64::from_le_bytes(bytes);
            *pointer = std::ptr::from_mut(value).cast();
        }
        let pointers = &mut pointers[..parameters.len()];
        // SAFETY: the function is of a loaded module, the pointers are to as many values as it has parameters, each at least as
        // long as its parameter, and are read before the call returns. Addresses among the values are of memory that the
        // callers own and keep until the stream is synchronised.
        check("cuLaunchKernel", unsafe {
            result::launch_kernel(
                function.0,
                (blocks, 1, 1),
                (threads, 1, 1),
                0,
                self.raw,
                pointers,
            )
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once, by `new`.
            let _destroyed = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// A CUDA event with blocking waits.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) context: Arc<Context>,
    pub(super) raw: sys::CUevent,
}

// SAFETY: the driver's handles may be used from every thread; the pointer is never followed.
unsafe impl Send for Event {}

impl Event {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, Failure> {
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC);
        Ok(Self {
            context: Arc::clone(context),
            raw: check("cuEventCreate", raw)?,
        })
    }

    pub(super) fn record(&self, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: both exist until they are dropped.
        check("cuEventRecord", unsafe {
            result::event::record(self.raw, stream.raw)
        })
    }

    pub(super) fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: the event exists until this is dropped.
        check("cuEventSynchronize", unsafe {
            result::event::synchronize(self.raw)
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once, by `new`.
            let _destroyed = unsafe { result::event::destroy(self.raw) };
        }
    }
}

/// The loaded module of the crate `kernels`.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) context: Arc<Context>,
    pub(super) raw: sys::CUmodule,
}

/// A kernel of a loaded [`Module`]; [`Gpu`](super::Gpu) keeps both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: the driver's handles may be used from every thread; the pointer is never followed.
unsafe impl Send for Module {}
// SAFETY: as above; it permits no mutation.
unsafe impl Sync for Module {}
// SAFETY: as above.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, Failure> {
        let text = CString::new(PTX).map_err(|error| {
            Failure::Library(format!("the kernels' PTX contains a NUL: {error}"))
        })?;
        // SAFETY: NUL-terminated PTX, which is read before the call returns.
        let raw = unsafe { result::module::load_data(text.as_ptr().cast()) };
        Ok(Self {
            context: Arc::clone(context),
            raw: check("cuModuleLoadData", raw)?,
        })
    }

    pub(super) fn function(&self, kernel: Kernel) -> Result<Function, Failure> {
        let name = CString::new(kernel.name()).map_err(|error| {
            Failure::Library(format!("a kernel's name contains a NUL: {error}"))
        })?;
        // SAFETY: the module is loaded.
        let raw = unsafe { result::module::get_function(self.raw, name) };
        Ok(Function(check("cuModuleGetFunction", raw)?))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded once, by `new`; none of its kernels run.
            let _unloaded = unsafe { result::module::unload(self.raw) };
        }
    }
}

/// Opens the driver's library and checks that all needed functions exist; returns the function for elapsed times.
pub(super) fn library() -> Result<Elapsed, Failure> {
    // SAFETY: libraries of these names are the driver's or a stand-in, with initialisers that may run here.
    if !unsafe { sys::is_culib_present() } {
        return Err(Failure::Library(
            "cannot open libcuda.so.1: install NVIDIA's driver, set LD_LIBRARY_PATH to the folder of a software GPU, \
             or use --device cpu to wait for the service time"
                .to_owned(),
        ));
    }
    // SAFETY: as above; the library is present.
    let library = unsafe { sys::culib() };
    let mut missing = Vec::new();
    for name in NEEDED {
        // SAFETY: only the existence is checked; the type does not matter.
        if unsafe { library.get::<*const c_void>(name.as_bytes()) }.is_err() {
            missing.push(name);
        }
    }
    let mut elapsed = None;
    for name in ELAPSED {
        if elapsed.is_none() {
            // SAFETY: both have this type, as cuda.h declares them.
            let found = unsafe { library.get::<Elapsed>(name.as_bytes()) };
            elapsed = found.ok().map(|symbol| *symbol);
        }
    }
    if elapsed.is_none() {
        missing.push(ELAPSED[1]);
    }
    match elapsed {
        Some(elapsed) if missing.is_empty() => Ok(elapsed),
        _ => Err(Failure::Library(format!(
            "libcuda.so.1 lacks {}: a driver of CUDA 11.4 or newer is required",
            missing.join(", ")
        ))),
    }
}
