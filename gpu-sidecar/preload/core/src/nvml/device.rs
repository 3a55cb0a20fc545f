//! Identification of the pod's device among NVML's.

use std::ffi::{c_char, c_uint, c_void};
use std::sync::atomic::Ordering;

use preload_ops::nvml::{self, Return};

use crate::context::context;
use crate::host::Host;

/// `nvmlDevice_t`
pub(super) type Device = usize;

/// Size of the buffer for a device's UUID; NVML documents 80 and 96 bytes.
const UUID_TEXT: usize = 96;

/// Returns the UUID digits of the pod's device; `None` if the driver cannot name it.
fn own_digits() -> Option<&'static [u8]> {
    let own = &context().device_digits;
    if own.get().is_none() {
        let _first = own.set(nvml::own_digits(Host)?);
    }
    own.get().map(Vec::as_slice)
}

/// Returns NVML's `nvmlDeviceGetUUID`, from the library that contains the function at `known`; `None` if it cannot be found.
fn name_function(
    known: Option<*mut c_void>,
) -> Option<unsafe extern "C" fn(Device, *mut c_char, c_uint) -> Return> {
    let known_function = &context().device_name;
    let mut found = known_function.load(Ordering::Acquire);
    if found.is_null() {
        let known = known?;
        let mut place = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: any address may be queried, and `place` is a structure of this stack to write.
        if unsafe { libc::dladdr(known, place.as_mut_ptr()) } == 0 {
            return None;
        }
        // SAFETY: the loader has written it, since the call has succeeded.
        let place = unsafe { place.assume_init() };
        // SAFETY: the name of a loaded library; `RTLD_NOLOAD` loads nothing new.
        let library = unsafe { libc::dlopen(place.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        // SAFETY: an open library and a NUL-terminated string. This function is not wrapped.
        found = unsafe { libc::dlsym(library, c"nvmlDeviceGetUUID".as_ptr()) };
        if found.is_null() {
            return None;
        }
        known_function.store(found, Ordering::Release);
    }
    // SAFETY: not null, and NVML's function with this symbol, which its documentation gives this signature.
    Some(unsafe {
        std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(Device, *mut c_char, c_uint) -> Return,
        >(found)
    })
}

/// Returns whether a device is the pod's. `known` is the address of some function of NVML.
pub(super) fn is_own(device: Device, known: Option<*mut c_void>) -> bool {
    let (Some(own), Some(name)) = (own_digits(), name_function(known)) else {
        return false;
    };
    let mut text: [c_char; UUID_TEXT] = [0; UUID_TEXT];
    let room = c_uint::try_from(text.len()).unwrap_or(0);
    // SAFETY: the buffer has the size that is passed, and NVML has accepted the device in the same call.
    if unsafe { name(device, text.as_mut_ptr(), room) } != 0 {
        return false;
    }
    let text: Vec<u8> = text
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| byte.cast_unsigned())
        .collect();
    nvml::digits(&text) == own
}
