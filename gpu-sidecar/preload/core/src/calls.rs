//! The driver, as the operations see it.
//!
//! Every call passes handles that the program passes in the call being handled, or that the driver has returned to this library and
//! that are not destroyed: [`preload_ops::Driver`] requires it of the operations. Results are written to variables of this thread's stack.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_uint};

use preload_ops::Driver;

use crate::driver::{self, Code, Handle, SUCCESS};
use crate::host::Host;

const fn check(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

/// Returns the value that a call writes.
fn written<T: Default>(call: impl FnOnce(*mut T) -> Code) -> Result<T, Code> {
    let mut value = T::default();
    check(call(&raw mut value)).map(|()| value)
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
        let kernel = named(|name| {
            // SAFETY: a handle that the program launches, and a valid pointer to a pointer.
            unsafe { driver::cuKernelGetName(name, function) }
        });
        kernel.or_else(|| {
            // SAFETY: as above. It is no kernel, so the program, which launches it, guarantees that it is a function.
            named(|name| unsafe { driver::cuFuncGetName(name, function) })
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
