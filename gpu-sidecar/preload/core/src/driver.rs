//! Functions of the driver that this library calls itself, bypassing its own wrappers. Each is looked up at its first call; a
//! function that the driver lacks returns [`NOT_SUPPORTED`].

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

pub(crate) use preload_ops::cuda::{
    Address, Code, Handle, INVALID_VALUE, NOT_SUPPORTED, SUCCESS, SYSTEM_NOT_READY as REFUSED,
};

use crate::context::{DRIVER_FUNCTIONS, context};
use crate::front;

macro_rules! driver {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        /// Functions of the driver, in the order of their addresses.
        #[allow(non_camel_case_types, clippy::enum_variant_names, reason = "named as in the driver API")]
        #[derive(Clone, Copy)]
        enum Function {
            $($name,)*
        }

        /// Number of the driver's functions that this library calls.
        const FUNCTIONS: usize = [$(Function::$name),*].len();

        $(
            $(#[$doc])*
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "as in the driver API")]
            pub(crate) unsafe fn $name($($argument: $kind),*) -> Code {
                const SYMBOL: &str = concat!(stringify!($name), "\0");
                let real = address(Function::$name, SYMBOL);
                if real.is_null() {
                    return NOT_SUPPORTED;
                }
                type Signature = unsafe extern "C" fn($($kind),*) -> Code;
                // SAFETY: not null, and the driver's function with this symbol, which its documentation gives this signature.
                let function = unsafe { std::mem::transmute::<*mut c_void, Signature>(real) };
                // SAFETY: the caller upholds the preconditions of the driver's function.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

const _: () = assert!(FUNCTIONS <= DRIVER_FUNCTIONS);

/// Returns the address of a function of the driver with this NUL-terminated symbol, looked up at the first call; null if the driver lacks
/// it.
fn address(function: Function, symbol: &'static str) -> *mut c_void {
    let Some(known) = context().driver_functions.get(function as usize) else {
        return std::ptr::null_mut();
    };
    let mut real = known.load(Ordering::Acquire);
    if real.is_null() {
        let Ok(symbol) = CStr::from_bytes_with_nul(symbol.as_bytes()) else {
            return std::ptr::null_mut();
        };
        real = front::real(symbol);
        known.store(real, Ordering::Release);
    }
    real
}

driver! {
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int);
    fn cuDeviceGetUuid_v2(uuid: *mut u8, device: c_int);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    fn cuDevicePrimaryCtxRelease_v2(device: c_int);
    fn cuCtxGetCurrent(context: *mut Handle);
    fn cuCtxSetCurrent(context: Handle);
    fn cuCtxGetDevice(device: *mut c_int);
    fn cuCtxSynchronize();
    fn cuStreamGetCtx(stream: Handle, context: *mut Handle);
    fn cuStreamQuery(stream: Handle);
    fn cuStreamIsCapturing(stream: Handle, status: *mut c_int);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    fn cuEventCreate(event: *mut Handle, flags: c_uint);
    fn cuEventRecord(event: Handle, stream: Handle);
    fn cuEventQuery(event: Handle);
    fn cuEventSynchronize(event: Handle);
    fn cuEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle);
    fn cuEventDestroy_v2(event: Handle);
    fn cuFuncGetName(name: *mut *const c_char, function: Handle);
    fn cuKernelGetName(name: *mut *const c_char, kernel: Handle);
    fn cuFuncGetParamInfo(function: Handle, index: usize, offset: *mut usize, bytes: *mut usize);
    fn cuKernelGetParamInfo(kernel: Handle, index: usize, offset: *mut usize, bytes: *mut usize);
    fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
    fn cuGraphNodeGetType(node: Handle, kind: *mut c_int);
    fn cuGraphKernelNodeGetParams_v2(node: Handle, parameters: *mut c_void);
    fn cuGraphKernelNodeGetAttribute(node: Handle, attribute: c_int, value: *mut c_void);
    fn cuGraphMemcpyNodeGetParams(node: Handle, parameters: *mut c_void);
    fn cuGraphMemsetNodeGetParams(node: Handle, parameters: *mut c_void);
    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: *mut Handle);
    fn cuModuleLoadData(module: *mut Handle, image: *const c_void);
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    fn cuLaunchKernel(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    fn cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int);
    fn cuStreamSynchronize(stream: Handle);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: Address, bytes: usize, stream: Handle);
    fn cuMemcpyHtoDAsync_v2(to: Address, from: *const c_void, bytes: usize, stream: Handle);
    fn cuMemsetD8Async(at: Address, value: u8, bytes: usize, stream: Handle);
    fn cuMemHostRegister_v2(at: *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemHostUnregister(at: *mut c_void);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(address: *mut Address, bytes: usize);
    fn cuMemFree_v2(address: Address);
    fn cuMemAddressReserve(address: *mut Address, bytes: usize, alignment: usize, wanted: Address, flags: u64);
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const c_void, flags: u64);
    fn cuMemRelease(handle: u64);
    fn cuMemMap(address: Address, bytes: usize, offset: usize, handle: u64, flags: u64);
    fn cuMemUnmap(address: Address, bytes: usize);
    fn cuMemSetAccess(address: Address, bytes: usize, descriptors: *const c_void, count: usize);
    fn cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const c_void, option: c_int);
    fn cuMemGetAllocationPropertiesFromHandle(properties: *mut c_void, handle: u64);
    fn cuMemExportToShareableHandle(file: *mut c_void, handle: u64, kind: c_int, flags: u64);
    fn cuMemImportFromShareableHandle(handle: *mut u64, file: *mut c_void, kind: c_int);
    fn cuMemGetAddressRange_v2(base: *mut Address, bytes: *mut usize, address: Address);
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: Address);
    fn cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, address: Address);
    fn cuDeviceGetMemPool(pool: *mut Handle, device: c_int);
    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_int, value: *mut c_void);
    fn cuMemPoolTrimTo(pool: Handle, keep: usize);
    fn cuMemFreeAsync(address: Address, stream: Handle);
    fn cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_int, value: *mut c_void);
}
