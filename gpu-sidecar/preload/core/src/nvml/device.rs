//! Identification of the pod's device among NVML's.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{Device, Return};
use crate::driver::{self, SUCCESS};

/// Size of the buffer for a device's UUID; NVML documents 80 and 96 bytes.
const UUID_TEXT: usize = 96;

/// Returns the hexadecimal digits of a device's UUID in lower case, without prefix and hyphens.
fn digits(text: &[u8]) -> Vec<u8> {
    let rest = text.split(|byte| *byte == b'-').skip(1);
    rest.flatten().map(u8::to_ascii_lowercase).collect()
}

/// Returns the UUID digits of the pod's device, which is the driver's first one; `None` if the driver cannot name it.
fn own_digits() -> Option<&'static [u8]> {
    static OWN: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(own) = OWN.get() {
        return Some(own);
    }
    let mut device: c_int = 0;
    // SAFETY: `device` is valid for writes.
    if unsafe { driver::cuDeviceGet(&raw mut device, 0) } != SUCCESS {
        return None;
    }
    let mut uuid = [0_u8; 16];
    // SAFETY: the driver writes sixteen bytes, the buffer's size.
    if unsafe { driver::cuDeviceGetUuid_v2(uuid.as_mut_ptr(), device) } != SUCCESS {
        return None;
    }
    let hex = uuid.iter().map(|byte| format!("{byte:02x}"));
    Some(OWN.get_or_init(|| hex.collect::<String>().into_bytes()))
}

/// Returns NVML's `nvmlDeviceGetUUID`, from the library that contains a wrapped function; `None` if it cannot be found.
fn name_function() -> Option<unsafe extern "C" fn(Device, *mut c_char, c_uint) -> Return> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        let known = super::any_real()?;
        let mut place = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: any address may be queried, and `place` is valid for writes.
        if unsafe { libc::dladdr(known, place.as_mut_ptr()) } == 0 {
            return None;
        }
        // SAFETY: written, since the call succeeded.
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
        FOUND.store(found, Ordering::Release);
    }
    // SAFETY: NVML's function with this name has this signature.
    Some(unsafe {
        std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(Device, *mut c_char, c_uint) -> Return,
        >(found)
    })
}

/// Returns whether a device is the pod's.
pub(super) fn is_own(device: Device) -> bool {
    let (Some(own), Some(name)) = (own_digits(), name_function()) else {
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
    digits(&text) == own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_identified_by_its_digits() {
        let gpu = b"GPU-12345678-9ABC-def0-1234-56789abcdef0";
        assert_eq!(digits(gpu), b"123456789abcdef0123456789abcdef0");
        assert_eq!(
            digits(b"MIG-12345678-9abc-def0-1234-56789abcdef0"),
            digits(gpu)
        );
        assert!(digits(b"").is_empty());
    }
}
