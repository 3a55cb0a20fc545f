//! Results of functions, and the guard that keeps panics from unwinding into the caller.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Result code, numbered as `nvmlReturn_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Return(pub(crate) u32);

/// Result of an operation: a value, or a result code other than success.
pub(crate) type Answer<T = ()> = Result<T, Return>;

macro_rules! returns {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Return {
            $(pub(crate) const $name: Self = Self($number);)*

            /// Returns the description of the code.
            pub(crate) const fn text(self) -> &'static CStr {
                match self {
                    $(Self::$name => $text,)*
                    _ => c"Unknown Error",
                }
            }
        }
    };
}

returns! {
    SUCCESS = 0, c"Success";
    UNINITIALIZED = 1, c"Uninitialized";
    INVALID_ARGUMENT = 2, c"Invalid Argument";
    NOT_SUPPORTED = 3, c"Not Supported";
    NO_PERMISSION = 4, c"Insufficient Permissions";
    ALREADY_INITIALIZED = 5, c"Already Initialized";
    NOT_FOUND = 6, c"Not Found";
    INSUFFICIENT_SIZE = 7, c"Insufficient Size";
    INSUFFICIENT_POWER = 8, c"Insufficient External Power";
    DRIVER_NOT_LOADED = 9, c"Driver Not Loaded";
    TIMEOUT = 10, c"Timeout";
    IRQ_ISSUE = 11, c"Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12, c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13, c"Function Not Found";
    CORRUPTED_INFOROM = 14, c"Corrupted infoROM";
    GPU_IS_LOST = 15, c"GPU is lost";
    RESET_REQUIRED = 16, c"GPU requires reset";
    OPERATING_SYSTEM = 17, c"GPU access blocked by the operating system";
    LIB_RM_VERSION_MISMATCH = 18, c"Driver/library version mismatch";
    IN_USE = 19, c"In use by another client";
    MEMORY = 20, c"Insufficient Memory";
    NO_DATA = 21, c"No data";
    VGPU_ECC_NOT_SUPPORTED = 22, c"ECC is not supported by vGPU";
    INSUFFICIENT_RESOURCES = 23, c"Insufficient Resources";
    FREQ_NOT_SUPPORTED = 24, c"Frequency not supported";
    ARGUMENT_VERSION_MISMATCH = 25, c"Argument version mismatch";
    DEPRECATED = 26, c"Deprecated";
    NOT_READY = 27, c"Not ready";
    GPU_NOT_FOUND = 28, c"GPU not found";
    INVALID_STATE = 29, c"Invalid state";
    RESET_TYPE_NOT_SUPPORTED = 30, c"Reset type not supported";
    UNKNOWN = 999, c"Unknown Error";
}

/// Runs a function's body and returns its result code; a panic becomes UNKNOWN.
pub(crate) fn guard(body: impl FnOnce() -> Answer) -> Return {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Return::SUCCESS,
        Ok(Err(why)) => why,
        Err(_) => Return::UNKNOWN,
    }
}

/// Declares exported functions with C's calling convention. A function returns the result of its body.
macro_rules! export {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[allow(unsafe_code, non_snake_case, reason = "it is called by this name")]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> $crate::answer::Return {
            $crate::answer::guard(|| $body)
        }
    )*};
}
pub(crate) use export;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(guard(|| Ok(())), Return::SUCCESS);
        assert_eq!(guard(|| Err(Return::NOT_FOUND)), Return::NOT_FOUND);
        assert_eq!(guard(|| panic!("on purpose")), Return::UNKNOWN);
        assert_eq!(Return::GPU_IS_LOST.text(), c"GPU is lost");
        assert_eq!(Return(777).text(), c"Unknown Error");
    }
}
