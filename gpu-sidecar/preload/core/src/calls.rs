//! The driver, as the operations see it.
//!
//! Every call passes handles that the program passes in the call being handled, or that the driver has returned to this library and
//! that are not destroyed: [`preload_ops::Driver`] requires it of the operations. Results are written to variables of this thread's stack.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

use preload_ops::Driver;
use preload_ops::graphs::NodeUse;
use preload_ops::launch::Arguments;
use preload_state::memory::{Access, HostSpan, POSIX_FD, Properties, size};

use crate::context::context;
use crate::driver::{self, Address, Code, Handle, INVALID_VALUE, NOT_SUPPORTED, SUCCESS};
use crate::host::Host;
use crate::{arguments, graphs, threads};

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`: selects the smallest granule of physical memory.
const MINIMUM: c_int = 0;
/// Kind of handles by which memory is shared.
const FILE: c_int = POSIX_FD.cast_signed();

pub(crate) const fn check(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

/// Returns the value that a call writes.
pub(crate) fn written<T: Default>(call: impl FnOnce(*mut T) -> Code) -> Result<T, Code> {
    let mut value = T::default();
    check(call(&raw mut value)).map(|()| value)
}

/// Returns the name of a kernel; `None` for a handle of another kind.
fn kernel_name(function: Handle) -> Option<Cow<'static, str>> {
    named(|name| {
        // SAFETY: a handle that the program launches, and a valid pointer to a pointer.
        unsafe { driver::cuKernelGetName(name, function) }
    })
}

/// Returns the pointer to a span of a window.
fn host_memory(span: HostSpan) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(size(span.at))
}

impl Driver for Host {
    fn current_context(self) -> Result<Handle, Code> {
        // SAFETY: `written` passes a valid pointer to a handle.
        written(|context| unsafe { driver::cuCtxGetCurrent(context) })
    }

    fn set_current_context(self, context: Handle) -> Result<(), Code> {
        // SAFETY: 0, or a context that the driver or the program has named; the driver refuses destroyed ones.
        check(unsafe { driver::cuCtxSetCurrent(context) })
    }

    fn primary_context(self, device: c_int) -> Result<Handle, Code> {
        // SAFETY: `written` passes a valid pointer to a handle; the driver checks the device.
        let context =
            written(|context| unsafe { driver::cuDevicePrimaryCtxRetain(context, device) })?;
        // SAFETY: releases the reference retained above, and no other.
        let _back = unsafe { driver::cuDevicePrimaryCtxRelease_v2(device) };
        Ok(context)
    }

    fn is_primary_active(self, device: c_int) -> Result<bool, Code> {
        let mut flags: c_uint = 0;
        let flags = &raw mut flags;
        let active: c_int = written(|active| {
            // SAFETY: both pointers are to variables of this stack; the driver checks the device.
            unsafe { driver::cuDevicePrimaryCtxGetState(device, flags, active) }
        })?;
        Ok(active != 0)
    }

    fn device(self, ordinal: c_int) -> Result<c_int, Code> {
        // SAFETY: `written` passes a valid pointer to a device; the driver checks the ordinal.
        written(|device| unsafe { driver::cuDeviceGet(device, ordinal) })
    }

    fn device_uuid(self, device: c_int) -> Result<[u8; 16], Code> {
        // SAFETY: the driver writes sixteen bytes, the size of the array to which `written` passes a pointer.
        written(|uuid: *mut [u8; 16]| unsafe { driver::cuDeviceGetUuid_v2(uuid.cast(), device) })
    }

    fn device_attribute(self, attribute: c_int, device: c_int) -> Result<c_int, Code> {
        // SAFETY: `written` passes a valid pointer to a number; the driver checks attribute and device.
        written(|value| unsafe { driver::cuDeviceGetAttribute(value, attribute, device) })
    }

    fn stream_context(self, stream: Handle) -> Result<Handle, Code> {
        // SAFETY: a stream that the program uses, and a valid pointer to a handle.
        written(|context| unsafe { driver::cuStreamGetCtx(stream, context) })
    }

    fn query_stream(self, stream: Handle) -> Result<(), Code> {
        // SAFETY: a stream that the program uses and has not destroyed.
        check(unsafe { driver::cuStreamQuery(stream) })
    }

    fn is_capturing(self, stream: Handle) -> Result<bool, Code> {
        // SAFETY: a stream that the program uses, and a valid pointer to a number.
        let status: c_int =
            written(|status| unsafe { driver::cuStreamIsCapturing(stream, status) })?;
        Ok(status != 0)
    }

    fn exchange_capture_mode(self, mode: c_int) -> Result<c_int, Code> {
        let mut mode = mode;
        // SAFETY: a valid pointer to a mode, which the driver reads and writes.
        check(unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) })?;
        Ok(mode)
    }

    fn create_event(self, flags: u32) -> Result<Handle, Code> {
        // SAFETY: `written` passes a valid pointer to a handle.
        written(|event| unsafe { driver::cuEventCreate(event, flags) })
    }

    fn record_event(self, event: Handle, stream: Handle) -> Result<(), Code> {
        // SAFETY: an event of this library's, and a stream that the program uses and has not destroyed.
        check(unsafe { driver::cuEventRecord(event, stream) })
    }

    fn query_event(self, event: Handle) -> Result<(), Code> {
        // SAFETY: an event of this library's, which nothing else destroys while its context lives.
        check(unsafe { driver::cuEventQuery(event) })
    }

    fn synchronize_event(self, event: Handle) -> Result<(), Code> {
        // SAFETY: as in `query_event`.
        check(unsafe { driver::cuEventSynchronize(event) })
    }

    fn elapsed_ms(self, from: Handle, to: Handle) -> Result<f32, Code> {
        // SAFETY: two events of this library's, and a valid pointer to a number.
        written(|milliseconds| unsafe { driver::cuEventElapsedTime(milliseconds, from, to) })
    }

    fn destroy_event(self, event: Handle) {
        // SAFETY: an event of this library's, which the operations do not use again.
        let _any = unsafe { driver::cuEventDestroy_v2(event) };
    }

    fn function_name(self, function: Handle) -> Option<Cow<'static, str>> {
        // A launch accepts either kind of handle. The driver validates a `CUkernel` but uses a `CUfunction` unchecked, so the former
        // is queried first.
        kernel_name(function).or_else(|| {
            // SAFETY: a valid pointer to a pointer. The handle is no kernel, so the program, which launches it, guarantees that it is a
            // function.
            named(|name| unsafe { driver::cuFuncGetName(name, function) })
        })
    }

    fn argument_words(self, function: Handle, arguments: Arguments) -> Option<Vec<u64>> {
        arguments::words(function, kernel_name(function).is_some(), arguments)
    }

    fn graph_nodes(self, graph: Handle, at_most: usize) -> Result<Vec<Handle>, Code> {
        graphs::nodes(graph, at_most)
    }

    fn node_use(self, node: Handle) -> NodeUse {
        graphs::node_use(node)
    }

    fn current_device(self) -> Result<c_int, Code> {
        // SAFETY: `written` passes a valid pointer to a device.
        written(|device| unsafe { driver::cuCtxGetDevice(device) })
    }

    fn synchronize(self) -> Result<(), Code> {
        // SAFETY: the call takes no arguments.
        check(unsafe { driver::cuCtxSynchronize() })
    }

    fn synchronize_within(
        self,
        contexts: &[Handle],
        at_most: Duration,
    ) -> Option<Result<(), Code>> {
        let start = || threads::start("weir-wait", || context().synchronizer.run());
        context().synchronizer.within(contexts, at_most, start)
    }

    fn total_memory(self, device: c_int) -> Result<u64, Code> {
        // SAFETY: `written` passes a valid pointer to a size; the driver checks the device.
        let total: usize = written(|total| unsafe { driver::cuDeviceTotalMem_v2(total, device) })?;
        Ok(total as u64)
    }

    fn memory_info(self) -> Result<(u64, u64), Code> {
        let mut free: usize = 0;
        let place = &raw mut free;
        // SAFETY: both pointers are to variables of this stack.
        let total: usize = written(|total| unsafe { driver::cuMemGetInfo_v2(place, total) })?;
        Ok((free as u64, total as u64))
    }

    fn allocate(self, bytes: u64) -> Result<Address, Code> {
        // SAFETY: `written` passes a valid pointer to an address.
        written(|address| unsafe { driver::cuMemAlloc_v2(address, size(bytes)) })
    }

    fn free(self, address: Address) {
        // SAFETY: an address that `allocate` has returned, and that nothing uses.
        let _freed = unsafe { driver::cuMemFree_v2(address) };
    }

    fn reserve_addresses(self, bytes: u64, alignment: u64) -> Result<Address, Code> {
        let (bytes, alignment) = (size(bytes), size(alignment));
        written(|begin| {
            // SAFETY: `written` passes a valid pointer to an address. Reserved addresses have no memory.
            unsafe { driver::cuMemAddressReserve(begin, bytes, alignment, 0, 0) }
        })
    }

    fn granularity(self, properties: &Properties) -> Result<u64, Code> {
        let properties = std::ptr::from_ref(properties).cast();
        let granule: usize = written(|granule| {
            // SAFETY: the driver's structure, borrowed for the call, and a valid pointer to a size.
            unsafe { driver::cuMemGetAllocationGranularity(granule, properties, MINIMUM) }
        })?;
        Ok(granule as u64)
    }

    fn create_memory(self, properties: &Properties, bytes: u64) -> Result<u64, Code> {
        let properties = std::ptr::from_ref(properties).cast();
        written(|handle| {
            // SAFETY: the driver's structure, borrowed for the call, and a valid pointer to a handle.
            unsafe { driver::cuMemCreate(handle, size(bytes), properties, 0) }
        })
    }

    fn memory_properties(self, handle: u64) -> Result<Properties, Code> {
        written(|properties: *mut Properties| {
            // SAFETY: a handle of this library's, and a valid pointer to the driver's structure.
            unsafe { driver::cuMemGetAllocationPropertiesFromHandle(properties.cast(), handle) }
        })
    }

    fn release_memory(self, handle: u64) {
        // SAFETY: a handle of this library's, which the operations do not use again.
        let _released = unsafe { driver::cuMemRelease(handle) };
    }

    fn map(self, at: Address, bytes: u64, handle: u64) -> Result<(), Code> {
        // SAFETY: addresses that this library has reserved and that have no mapping, so no reference is to them.
        check(unsafe { driver::cuMemMap(at, size(bytes), 0, handle, 0) })
    }

    fn unmap(self, at: Address, bytes: u64) -> Result<(), Code> {
        // SAFETY: a mapping of this library's, whose memory the program has freed and its work does not use any more.
        check(unsafe { driver::cuMemUnmap(at, size(bytes)) })
    }

    fn set_access(self, at: Address, bytes: u64, access: &[Access]) -> Result<(), Code> {
        let list = access.as_ptr().cast();
        // SAFETY: a mapping of this library's, and a list of the driver's structures with its length.
        check(unsafe { driver::cuMemSetAccess(at, size(bytes), list, access.len()) })
    }

    fn export_memory(self, handle: u64) -> Result<OwnedFd, Code> {
        let file: c_int = written(|file: *mut c_int| {
            // SAFETY: a handle of this library's, and a valid pointer to a descriptor, as this kind of handle needs.
            unsafe { driver::cuMemExportToShareableHandle(file.cast(), handle, FILE, 0) }
        })?;
        if file < 0 {
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: `fcntl` with this command takes numbers alone.
        let _set = unsafe { libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC) };
        // SAFETY: opened just now by the driver, which hands it over, and owned by no other value.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    fn import_memory(self, file: BorrowedFd<'_>) -> Result<u64, Code> {
        let number = usize::try_from(file.as_raw_fd()).unwrap_or(usize::MAX);
        let number = std::ptr::without_provenance_mut::<c_void>(number);
        // SAFETY: an open descriptor, borrowed for the call, which the driver takes in place of a pointer; a valid pointer to a handle.
        written(|handle| unsafe { driver::cuMemImportFromShareableHandle(handle, number, FILE) })
    }

    fn create_stream(self) -> Result<Handle, Code> {
        /// `CU_STREAM_NON_BLOCKING`
        const UNORDERED: c_uint = 1;
        // Lower numbers are more urgent; the driver raises this one to its lowest.
        // SAFETY: `written` passes a valid pointer to a handle.
        written(|stream| unsafe {
            driver::cuStreamCreateWithPriority(stream, UNORDERED, c_int::MIN)
        })
    }

    fn synchronize_stream(self, stream: Handle) -> Result<(), Code> {
        // SAFETY: a stream of this library's, whose context lives.
        check(unsafe { driver::cuStreamSynchronize(stream) })
    }

    fn copy_to_host(self, to: HostSpan, from: Address, stream: Handle) -> Result<(), Code> {
        // SAFETY: `to` is within a window that this library has mapped for good and has given to this copy alone, and `from` is mapped and
        // as long.
        check(unsafe {
            driver::cuMemcpyDtoHAsync_v2(host_memory(to), from, size(to.bytes), stream)
        })
    }

    fn copy_to_device(self, to: Address, from: HostSpan, stream: Handle) -> Result<(), Code> {
        // SAFETY: as in `copy_to_host`, in the other direction.
        check(unsafe {
            driver::cuMemcpyHtoDAsync_v2(to, host_memory(from), size(from.bytes), stream)
        })
    }

    fn set_all_bits(self, at: Address, bytes: u64, stream: Handle) -> Result<(), Code> {
        // SAFETY: the driver checks the addresses and the stream.
        check(unsafe { driver::cuMemsetD8Async(at, 0xff, size(bytes), stream) })
    }

    fn write_words(self, to: Address, words: &[u64], stream: Handle) -> Result<(), Code> {
        let (from, bytes) = (words.as_ptr().cast(), size_of_val(words));
        // SAFETY: the driver checks the device's address, and the caller keeps the slice until the copy has ended.
        check(unsafe { driver::cuMemcpyHtoDAsync_v2(to, from, bytes, stream) })
    }

    fn read_words(self, from: Address, words: &mut [u64], stream: Handle) -> Result<(), Code> {
        let (to, bytes) = (words.as_mut_ptr().cast(), size_of_val(words));
        // SAFETY: the driver writes at most the length of the slice, for which every bit pattern is valid, before the stream is synchronised.
        let copied = check(unsafe { driver::cuMemcpyDtoHAsync_v2(to, from, bytes, stream) });
        let over = self.synchronize_stream(stream);
        copied.and(over)
    }

    fn register_host(self, window: HostSpan) -> Result<(), Code> {
        /// `CU_MEMHOSTREGISTER_PORTABLE`: for all contexts.
        const PORTABLE: c_uint = 1;
        // SAFETY: a window that this library has mapped for good.
        check(unsafe {
            driver::cuMemHostRegister_v2(host_memory(window), size(window.bytes), PORTABLE)
        })
    }

    fn release_host(self, window: HostSpan) -> Result<(), Code> {
        // SAFETY: a window that this library has registered, and that no copy uses.
        check(unsafe { driver::cuMemHostUnregister(host_memory(window)) })
    }

    fn load_hash(self) -> Result<Handle, Code> {
        let text = CString::new(kernels::PTX).map_err(|_| INVALID_VALUE)?;
        let name = CString::new(kernels::Kernel::GranuleHash.name()).map_err(|_| INVALID_VALUE)?;
        // SAFETY: `written` passes a valid pointer to a handle; the text ends with a NUL.
        let module =
            written(|module| unsafe { driver::cuModuleLoadData(module, text.as_ptr().cast()) })?;
        // SAFETY: as above; a module that was loaded just now, and a NUL-terminated name.
        written(|function| unsafe { driver::cuModuleGetFunction(function, module, name.as_ptr()) })
    }

    fn launch_hash(self, kernel: Handle, parameters: [u64; 4], stream: Handle) -> Result<(), Code> {
        /// Threads of a block, each of which takes a 256th of a granule.
        const THREADS: c_uint = 256;
        /// Most blocks: eight for each SM of the largest GPU.
        const BLOCKS_MAX: u64 = 8 * 160;
        let [_, _, granules, _] = parameters;
        let blocks = c_uint::try_from(granules.clamp(1, BLOCKS_MAX)).unwrap_or(1);
        let mut parameters = parameters;
        let mut pointers = parameters
            .each_mut()
            .map(|parameter| std::ptr::from_mut(parameter).cast::<c_void>());
        let pointers = pointers.as_mut_ptr();
        // SAFETY: the kernel has four parameters of 64 bits, to which the pointers lead; the driver copies them. Their addresses are of mapped
        // memory.
        check(unsafe {
            driver::cuLaunchKernel(
                kernel,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                pointers,
                std::ptr::null_mut(),
            )
        })
    }

    fn default_pool(self, device: c_int) -> Result<Handle, Code> {
        // SAFETY: `written` passes a valid pointer to a handle; the driver checks the device.
        written(|pool| unsafe { driver::cuDeviceGetMemPool(pool, device) })
    }

    fn pool_attribute(self, pool: Handle, attribute: c_int) -> Result<u64, Code> {
        written(|value: *mut u64| {
            // SAFETY: a pool that the driver or the program has named, and a valid pointer to 64 bits, the size of these attributes.
            unsafe { driver::cuMemPoolGetAttribute(pool, attribute, value.cast()) }
        })
    }

    fn trim_pool(self, pool: Handle, keep: u64) {
        // SAFETY: as in `pool_attribute`; only memory that is not in use is released.
        let _trimmed = unsafe { driver::cuMemPoolTrimTo(pool, size(keep)) };
    }

    fn free_async(self, address: Address, stream: Handle) {
        // SAFETY: memory that the driver has allocated in this call of the program, which has not got its address.
        let _freed = unsafe { driver::cuMemFreeAsync(address, stream) };
    }

    fn graph_memory(self, device: c_int, attribute: c_int) -> Result<u64, Code> {
        written(|value: *mut u64| {
            // SAFETY: a valid pointer to 64 bits, the size of these attributes; the driver checks the device.
            unsafe { driver::cuDeviceGetGraphMemAttribute(device, attribute, value.cast()) }
        })
    }
}

/// Returns the name that a query writes; `None` if it fails or writes none.
fn named(query: impl FnOnce(*mut *const c_char) -> Code) -> Option<Cow<'static, str>> {
    let mut name: *const c_char = std::ptr::null();
    if query(&raw mut name) != SUCCESS || name.is_null() {
        return None;
    }
    // SAFETY: not null, and the driver's NUL-terminated name lives as long as the module, which the launch being handled needs.
    let name = unsafe { CStr::from_ptr(name) };
    Some(name.to_string_lossy())
}
