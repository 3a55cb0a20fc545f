//! NVML as seen by the pod: the memory of its own device is the pod's limit, as with the driver ([`preload_ops::memory`]), and the only
//! process on it is the calling one. Other devices and other functions are unchanged.

use crate::host::Host;
use crate::pointers::{read, write_out};
use preload_ops::System as _;
use std::ffi::{CStr, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::hook;
use preload_ops::memory::info;
use preload_ops::nvml::{self, INSUFFICIENT_SIZE, Return};
use preload_state::memory::View;

mod device;

use device::Device;

/// `NVML_ERROR_NOT_SUPPORTED`
const NOT_SUPPORTED: Return = 3;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`
const FUNCTION_NOT_FOUND: Return = 13;
/// Value of the instance ids of a process where there is no MIG instance.
const NO_INSTANCE: u32 = u32::MAX;
/// Number of processes among which the own process is searched.
const PROCESSES_MAX: usize = 256;

/// `nvmlMemory_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_v1_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct ProcessV1 {
    pid: u32,
    memory: u64,
}

/// `nvmlProcessInfo_t`, from its second version on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Process {
    pid: u32,
    memory: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// A wrapper, the symbol of the NVML function that it wraps, and that function's address.
struct Wrapper {
    symbol: &'static str,
    address: fn() -> *mut c_void,
    real: &'static AtomicPtr<c_void>,
}

macro_rules! wrappers {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) = $body:expr;)*) => {
        static WRAPPERS: &[Wrapper] = &[
            $(Wrapper {
                symbol: stringify!($name),
                address: || $name::wrapper as *mut c_void,
                real: &$name::REAL,
            },)*
        ];
        $(
            #[allow(non_snake_case, reason = "named as in NVML")]
            mod $name {
                use super::*;

                pub(super) static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

                pub(super) extern "C" fn wrapper($($argument: $kind),*) -> Return {
                    let real = REAL.load(Ordering::Acquire);
                    if real.is_null() {
                        return FUNCTION_NOT_FOUND;
                    }
                    type Function = unsafe extern "C" fn($($kind),*) -> Return;
                    // SAFETY: not null, and the loader's address of the function with this symbol, which NVML documents with this signature.
                    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(real) };
                    // SAFETY: the program's own arguments, valid as it guarantees to NVML, or buffers of this library of the same type and length.
                    let call = |$($argument: $kind),*| unsafe { function($($argument),*) };
                    if hook::is_broken() || !Host.is_active() {
                        return call($($argument),*);
                    }
                    let body = std::panic::AssertUnwindSafe(|| ($body)(&call, $($argument),*));
                    std::panic::catch_unwind(body).unwrap_or_else(|_panic| {
                        hook::disable();
                        call($($argument),*)
                    })
                }
            }
        )*
    };
}

wrappers! {
    fn nvmlDeviceGetMemoryInfo(device: Device, memory: *mut Memory) = memory_info;
    fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut MemoryV2) = memory_info_v2;
    fn nvmlDeviceGetComputeRunningProcesses(device: Device, count: *mut c_uint, list: *mut ProcessV1) = processes;
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: *mut c_uint, list: *mut Process) = processes;
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut c_uint, list: *mut Process) = processes;
    fn nvmlDeviceGetMPSComputeRunningProcesses(device: Device, count: *mut c_uint, list: *mut ProcessV1) = processes;
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Device, count: *mut c_uint, list: *mut Process) = processes;
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: *mut c_uint, list: *mut Process) = processes;
    fn nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: *mut c_uint, list: *mut ProcessV1) = none;
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Device, count: *mut c_uint, list: *mut Process) = none;
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: *mut c_uint, list: *mut Process) = none;
    fn nvmlDeviceGetRunningProcessDetailList(device: Device, list: *mut c_void) = details;
}

/// Returns the address that a program gets for an NVML function: the wrapper's, or `real` if there is none.
pub(crate) fn wrap(symbol: &CStr, real: *mut c_void) -> *mut c_void {
    let mut wrappers = WRAPPERS.iter();
    let Some(wrapper) = wrappers.find(|one| one.symbol.as_bytes() == symbol.to_bytes()) else {
        return real;
    };
    let address = (wrapper.address)();
    if real.is_null() || real == address {
        return real;
    }
    let first = wrapper.real.compare_exchange(
        std::ptr::null_mut(),
        real,
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    let _known = first.is_err();
    address
}

/// Returns the address of some wrapped NVML function, by which NVML's library can be located; `None` if none was looked up.
fn any_real() -> Option<*mut c_void> {
    let mut known = WRAPPERS.iter().map(|one| one.real.load(Ordering::Acquire));
    known.find(|real| !real.is_null())
}

/// Returns whether a device is the pod's.
fn is_own(device: Device) -> bool {
    device::is_own(device, any_real())
}

/// Returns the memory to report for a device in place of NVML's values; `None` if the device is not the pod's.
fn seen(device: Device, total: u64, free: u64) -> Option<View> {
    is_own(device).then(|| info::view(Host, free, total))
}

fn memory_info(
    call: &dyn Fn(Device, *mut Memory) -> Return,
    device: Device,
    memory: *mut Memory,
) -> Return {
    let code = call(device, memory);
    if code == 0
        && let Some(known) = read(memory)
        && let Some(view) = seen(device, known.total, known.free)
    {
        let shown = Memory {
            total: view.total,
            free: view.free,
            used: view.total - view.free,
        };
        write_out(memory, shown);
    }
    code
}

/// Like [`memory_info`]. NVML has checked the version of the program's structure.
fn memory_info_v2(
    call: &dyn Fn(Device, *mut MemoryV2) -> Return,
    device: Device,
    memory: *mut MemoryV2,
) -> Return {
    let code = call(device, memory);
    if code == 0
        && let Some(known) = read(memory)
        && let Some(view) = seen(device, known.total, known.free)
    {
        let shown = MemoryV2 {
            version: known.version,
            total: view.total,
            reserved: 0,
            free: view.free,
            used: view.total - view.free,
        };
        write_out(memory, shown);
    }
    code
}

type List<'a, T> = &'a dyn Fn(Device, *mut c_uint, *mut T) -> Return;

/// Entry of a list of processes, in one of NVML's versions.
trait Entry: Copy {
    /// Returns an entry for this process, for when NVML lists none.
    fn own() -> Self;
    fn pid(&self) -> u32;
    fn set_memory(&mut self, bytes: u64);
}

impl Entry for ProcessV1 {
    fn own() -> Self {
        Self {
            pid: std::process::id(),
            memory: 0,
        }
    }

    fn pid(&self) -> u32 {
        self.pid
    }

    fn set_memory(&mut self, bytes: u64) {
        self.memory = bytes;
    }
}

impl Entry for Process {
    fn own() -> Self {
        Self {
            pid: std::process::id(),
            memory: 0,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
        }
    }

    fn pid(&self) -> u32 {
        self.pid
    }

    fn set_memory(&mut self, bytes: u64) {
        self.memory = bytes;
    }
}

/// Returns the entry of this process, the only one that the program gets to see; `None` if it has no context. NVML's own entry is
/// used if it has this process's id, except for the memory.
fn own<T: Entry>(call: List<'_, T>, device: Device) -> Result<Option<T>, Return> {
    let mut all = vec![T::own(); PROCESSES_MAX];
    let mut count = c_uint::try_from(all.len()).unwrap_or(0);
    match call(device, &raw mut count, all.as_mut_ptr()) {
        0 => {}
        INSUFFICIENT_SIZE => count = 0,
        code => return Err(code),
    }
    let listed = all.iter().take(count as usize);
    let listed = listed.copied().find(|one| one.pid() == std::process::id());
    Ok(nvml::own_memory(Host).map(|bytes| {
        let mut own = listed.unwrap_or_else(T::own);
        own.set_memory(bytes);
        own
    }))
}

/// Writes the list to the program's buffer by NVML's rules for lists, and returns NVML's result.
fn answer<T: Copy>(count: *mut c_uint, list: *mut T, process: Option<T>) -> Return {
    let room = read(count).unwrap_or(0);
    let (number, code) = nvml::answer(room, !list.is_null(), process.is_some());
    write_out(count, number);
    if code == 0
        && let Some(process) = process
    {
        // The list has room for at least one entry.
        write_out(list, process);
    }
    code
}

fn processes<T: Entry>(
    call: List<'_, T>,
    device: Device,
    count: *mut c_uint,
    list: *mut T,
) -> Return {
    if count.is_null() || !is_own(device) {
        return call(device, count, list);
    }
    match own(call, device) {
        Ok(process) => answer(count, list, process),
        Err(code) => code,
    }
}

/// Reports no graphics processes on the pod's device.
fn none<T: Entry>(call: List<'_, T>, device: Device, count: *mut c_uint, list: *mut T) -> Return {
    if count.is_null() || !is_own(device) {
        return call(device, count, list);
    }
    answer(count, list, None)
}

/// Refuses details on the pod's device, which would include those of other pods.
fn details(
    call: &dyn Fn(Device, *mut c_void) -> Return,
    device: Device,
    list: *mut c_void,
) -> Return {
    if is_own(device) {
        NOT_SUPPORTED
    } else {
        call(device, list)
    }
}

#[cfg(test)]
mod tests {
    use preload_ops::nvml::INVALID_ARGUMENT;

    use super::*;

    #[test]
    fn a_process_list_is_returned_by_nvmls_rules() {
        let one = ProcessV1 { pid: 1, memory: 2 };
        let mut list = [ProcessV1 { pid: 0, memory: 0 }; 2];
        let mut count = 0;
        let none = std::ptr::null_mut();
        assert_eq!(answer(&raw mut count, none, Some(one)), INSUFFICIENT_SIZE);
        assert_eq!(count, 1);
        assert_eq!(answer(&raw mut count, none, Some(one)), INVALID_ARGUMENT);
        count = 2;
        assert_eq!(answer(&raw mut count, list.as_mut_ptr(), Some(one)), 0);
        assert_eq!((count, list[0].pid, list[1].pid), (1, 1, 0));
        assert_eq!(answer::<ProcessV1>(&raw mut count, none, None), 0);
        assert_eq!(count, 0);
    }
}
