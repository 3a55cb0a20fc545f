//! Loading and calling `libweir_preload_core.so`, once a program first uses the driver.
//!
//! A thread that arrives while another one is loading the core loads it as well. The loader's own lock, which the thread may
//! already hold, serialises the two and gives both the same library. Waiting on a lock of the front's own could deadlock: a
//! thread in a constructor holds the loader's lock and would wait for a thread that needs it. Skipping the core instead would let
//! calls of a program that starts its threads all at once escape.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use preload_table::abi::{ABI_VERSION, Core, Entry, Front};

use crate::entrance::real_dlsym;
use crate::guard::Guard;
use crate::original::real_at;
use crate::provider::{forget_failure, info, own_address};
use crate::stubs::own;

const FILE: &[u8] = b"libweir_preload_core.so";
/// [`preload_table::abi::CORE_ENTRY`] as a C string.
const ENTRY: &CStr = c"weir_preload_core";
/// Environment variable with the path of another core.
const VARIABLE: &CStr = c"WEIR_PRELOAD_CORE";
const PATH_BYTES: usize = 4096;

/// Address of the core's static: null until the first attempt to load it, [`UNUSABLE`] after a failed one.
static CORE: AtomicPtr<Core> = AtomicPtr::new(std::ptr::null_mut());
const UNUSABLE: *mut Core = std::ptr::without_provenance_mut(1);

/// Folder of this library, NUL-terminated. All threads write the same bytes.
static FOLDER: [AtomicU8; PATH_BYTES] = [const { AtomicU8::new(0) }; PATH_BYTES];

struct Shared(Front);

// SAFETY: only the folder's bytes are written, as atomics and before the structure is shared.
unsafe impl Sync for Shared {}

static FRONT: Shared = Shared(Front {
    abi_version: ABI_VERSION,
    real_dlsym,
    folder: (&raw const FOLDER).cast(),
    own,
});

/// Calls the core and returns its result, or `without` if there is no core. Returns `None` if this thread is already in the core,
/// in which case the result must not be cached. Preserves `errno`.
pub(crate) fn query(
    call: impl FnOnce(&Core) -> *mut c_void,
    without: *mut c_void,
) -> Option<*mut c_void> {
    let guard = Guard::new()?;
    let saved = errno();
    let answer = core().map_or(without, call);
    set_errno(saved);
    guard.leave();
    Some(if answer.is_null() { without } else { answer })
}

/// Notifies the core of something, if it is loaded. Preserves `errno`.
pub(crate) fn notify(message: impl FnOnce(&Core)) {
    let core = CORE.load(Ordering::Acquire);
    if core.is_null() || core == UNUSABLE {
        return;
    }
    let saved = errno();
    // SAFETY: the address of the core's static, which is never unloaded.
    message(unsafe { &*core });
    set_errno(saved);
}

fn core() -> Option<&'static Core> {
    let mut core = CORE.load(Ordering::Acquire);
    if core.is_null() {
        let found = load();
        let known = CORE.compare_exchange(
            std::ptr::null_mut(),
            found.unwrap_or(UNUSABLE),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        core = match (known, found) {
            (Ok(_), Err(error)) => {
                error.report();
                UNUSABLE
            }
            (Ok(_), Ok(found)) => found,
            (Err(known), _) => known,
        };
    }
    // SAFETY: the address of the core's static, which is never unloaded.
    (core != UNUSABLE).then(|| unsafe { &*core })
}

/// Reason for which the core could not be loaded.
#[derive(Clone, Copy)]
enum LoadError {
    /// Message of `dlerror`, valid until this thread's next call of the loader.
    NotLoaded(*const c_char),
    NoEntry,
    Refused,
    OtherVersion,
    LongPath,
}

impl LoadError {
    /// Writes one line to standard error.
    fn report(self) {
        let reason = match self {
            Self::NotLoaded(message) if !message.is_null() => {
                // SAFETY: the loader's NUL-terminated message.
                unsafe { CStr::from_ptr(message) }.to_bytes()
            }
            Self::NotLoaded(_) => b"libweir_preload_core.so is not loaded",
            Self::NoEntry => b"libweir_preload_core.so has no entry weir_preload_core",
            Self::Refused => b"libweir_preload_core.so cannot be used in this process",
            Self::OtherVersion => b"libweir_preload_core.so has another interface version",
            Self::LongPath => b"the path of libweir_preload_core.so is longer than 4095 bytes",
        };
        let parts = [
            b"libweir_preload.so: ",
            reason,
            b": calls pass to the driver unchanged\n",
        ]
        .map(|part: &[u8]| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        let count = 3;
        // SAFETY: three buffers with their lengths. A failed write is ignored.
        unsafe { libc::writev(libc::STDERR_FILENO, parts.as_ptr(), count) };
    }
}

fn load() -> Result<*mut Core, LoadError> {
    let mut path = [0_u8; PATH_BYTES];
    let folder = folder();
    for (to, from) in FOLDER.iter().zip(folder) {
        to.store(*from, Ordering::Relaxed);
    }
    // SAFETY: a NUL-terminated string. Returns null in set-user-ID and set-group-ID programs.
    let named = unsafe { secure_getenv(VARIABLE.as_ptr()) };
    let named: *const c_char = if named.is_null() {
        let parts = [folder, b"/", FILE];
        if parts
            .iter()
            .map(|part| part.len())
            .fold(1, usize::wrapping_add)
            > PATH_BYTES
        {
            return Err(LoadError::LongPath);
        }
        let bytes = parts.iter().flat_map(|part| part.iter());
        // The remaining bytes stay zero and terminate the path.
        for (to, from) in path.iter_mut().zip(bytes) {
            *to = *from;
        }
        path.as_ptr().cast()
    } else {
        named
    };
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: a NUL-terminated path. The core's initialisers have no preconditions.
    let handle = unsafe { libc::dlopen(named, flags) };
    if handle.is_null() {
        // SAFETY: the call takes no arguments.
        return Err(LoadError::NotLoaded(unsafe { libc::dlerror() }));
    }
    let entry = real_at(handle, ENTRY.as_ptr());
    if entry.is_null() {
        forget_failure();
        return Err(LoadError::NoEntry);
    }
    // SAFETY: the symbol is the core's entry, which has this type.
    let entry = unsafe { std::mem::transmute::<*mut c_void, Entry>(entry) };
    let core = entry(&raw const FRONT.0);
    // SAFETY: null or the address of the core's static, whose first field is the version in every version of the interface.
    match unsafe { core.cast::<u32>().as_ref() } {
        None => Err(LoadError::Refused),
        Some(&ABI_VERSION) => Ok(core.cast_mut()),
        Some(_) => Err(LoadError::OtherVersion),
    }
}

/// Returns the folder of this library, without a trailing slash; `.` if the loader's name for it has none.
fn folder() -> &'static [u8] {
    let Some(info) = info(own_address()) else {
        return b".";
    };
    if info.dli_fname.is_null() {
        return b".";
    }
    // SAFETY: the loader's NUL-terminated name of this library, which is never unloaded.
    let path: &'static [u8] = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => path.get(..at).unwrap_or_default(),
        None => b".",
    }
}

/// Returns the address of this thread's `errno`.
fn errno_address() -> *mut c_int {
    // SAFETY: the call takes no arguments.
    unsafe { libc::__errno_location() }
}

fn errno() -> c_int {
    // SAFETY: this thread's own `errno`, always valid.
    unsafe { errno_address().read() }
}

fn set_errno(number: c_int) {
    // SAFETY: as above.
    unsafe { errno_address().write(number) };
}

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entrys_name_is_the_one_agreed_on() {
        assert_eq!(ENTRY.to_str(), Ok(preload_table::abi::CORE_ENTRY));
    }
}
