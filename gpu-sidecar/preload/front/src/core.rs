//! The library that does the work, `libweir_preload_core.so`: loaded once, at the first need.
//!
//! A thread that comes while another is loading it neither waits nor goes without: it loads it as well. The loader puts both in
//! order by its own lock, which a thread may hold already when it comes here, and gives both the same library. With a wait of our
//! own a thread could hold the loader's lock, in a constructor, and wait for one that needs the lock to go on; and to go without
//! would let the calls of a program escape that starts its threads all at once.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use preload_table::abi::{ABI_VERSION, Core, Entry, Front};

use crate::entrance::real_dlsym;
use crate::guard::Guard;
use crate::original::real_at;
use crate::provider::{forget_failure, info, own_address};
use crate::stubs::own;

const FILE: &[u8] = b"libweir_preload_core.so";
/// [`preload_table::abi::CORE_ENTRY`], which is no C string.
const ENTRY: &CStr = c"weir_preload_core";
/// Names another file as the core.
const VARIABLE: &CStr = c"WEIR_PRELOAD_CORE";
const PATH_BYTES: usize = 4096;

/// Null: not tried. [`UNUSABLE`]: tried in vain.
static CORE: AtomicPtr<Core> = AtomicPtr::new(std::ptr::null_mut());
const UNUSABLE: *mut Core = std::ptr::without_provenance_mut(1);

/// The folder of this library. Every thread that writes it writes the same.
static FOLDER: [AtomicU8; PATH_BYTES] = [const { AtomicU8::new(0) }; PATH_BYTES];

struct Shared(Front);

// SAFETY: nothing in it is written to but the folder, by atomics and before it is lent.
unsafe impl Sync for Shared {}

static FRONT: Shared = Shared(Front {
    abi_version: ABI_VERSION,
    real_dlsym,
    folder: (&raw const FOLDER).cast(),
    own,
});

/// Asks the core; `None`: this thread is about to do so already, and there is nothing to remember of the answer. Without a core
/// the answer is what there was.
pub(crate) fn ask(
    question: impl FnOnce(&Core) -> *mut c_void,
    without: *mut c_void,
) -> Option<*mut c_void> {
    let guard = Guard::new()?;
    let saved = errno();
    let answer = core().map_or(without, question);
    set_errno(saved);
    guard.leave();
    Some(if answer.is_null() { without } else { answer })
}

/// Tells a core that is loaded.
pub(crate) fn tell(message: impl FnOnce(&Core)) {
    let core = CORE.load(Ordering::Acquire);
    if core.is_null() || core == UNUSABLE {
        return;
    }
    let saved = errno();
    // SAFETY: the core's static.
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
            (Ok(_), Err(trouble)) => {
                trouble.say();
                UNUSABLE
            }
            (Ok(_), Ok(found)) => found,
            (Err(known), _) => known,
        };
    }
    // SAFETY: the core's static.
    (core != UNUSABLE).then(|| unsafe { &*core })
}

/// Why there is no core.
#[derive(Clone, Copy)]
enum Trouble {
    /// The loader's message, which stays while this thread asks it for nothing else.
    NotLoaded(*const c_char),
    NoEntry,
    Refused,
    OtherVersion,
    LongPath,
}

impl Trouble {
    /// One line on standard error.
    fn say(self) {
        let what = match self {
            Self::NotLoaded(message) if !message.is_null() => {
                // SAFETY: a text that ends, of the loader's.
                unsafe { CStr::from_ptr(message) }.to_bytes()
            }
            Self::NotLoaded(_) => b"libweir_preload_core.so is not loaded",
            Self::NoEntry => b"libweir_preload_core.so is not what it should be",
            Self::Refused => b"libweir_preload_core.so cannot work here",
            Self::OtherVersion => b"libweir_preload_core.so is of another version",
            Self::LongPath => b"the library's path is too long",
        };
        let parts = [
            b"libweir_preload.so: ",
            what,
            b": calls pass to the driver unchanged\n",
        ]
        .map(|part: &[u8]| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        let count = 3;
        // SAFETY: three texts with their lengths. A line that cannot be written is lost.
        unsafe { libc::writev(libc::STDERR_FILENO, parts.as_ptr(), count) };
    }
}

fn load() -> Result<*mut Core, Trouble> {
    let mut path = [0_u8; PATH_BYTES];
    let folder = folder();
    for (to, from) in FOLDER.iter().zip(folder) {
        to.store(*from, Ordering::Relaxed);
    }
    // SAFETY: a text that ends. It gives nothing to a program with more rights than its user.
    let named = unsafe { secure_getenv(VARIABLE.as_ptr()) };
    let named: *const c_char = if named.is_null() {
        let parts = [folder, b"/", FILE];
        if parts
            .iter()
            .map(|part| part.len())
            .fold(1, usize::wrapping_add)
            > PATH_BYTES
        {
            return Err(Trouble::LongPath);
        }
        let bytes = parts.iter().flat_map(|part| part.iter());
        // The rest stays zero, and ends it.
        for (to, from) in path.iter_mut().zip(bytes) {
            *to = *from;
        }
        path.as_ptr().cast()
    } else {
        named
    };
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: a text that ends. What the core does as it is loaded is its own affair.
    let handle = unsafe { libc::dlopen(named, flags) };
    if handle.is_null() {
        // SAFETY: it takes nothing.
        return Err(Trouble::NotLoaded(unsafe { libc::dlerror() }));
    }
    let entry = real_at(handle, ENTRY.as_ptr());
    if entry.is_null() {
        forget_failure();
        return Err(Trouble::NoEntry);
    }
    // SAFETY: by its name it is the core's entry.
    let entry = unsafe { std::mem::transmute::<*mut c_void, Entry>(entry) };
    let core = entry(&raw const FRONT.0);
    // SAFETY: null, or the core's static, whose first field is the same in every version.
    match unsafe { core.cast::<u32>().as_ref() } {
        None => Err(Trouble::Refused),
        Some(&ABI_VERSION) => Ok(core.cast_mut()),
        Some(_) => Err(Trouble::OtherVersion),
    }
}

/// Where this library lies, without a slash at the end.
fn folder() -> &'static [u8] {
    let Some(info) = info(own_address()) else {
        return b".";
    };
    if info.dli_fname.is_null() {
        return b".";
    }
    // SAFETY: the loader's name of this library, which stays loaded.
    let path: &'static [u8] = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => path.get(..at).unwrap_or_default(),
        None => b".",
    }
}

/// Where this thread's error number is.
fn errno_place() -> *mut c_int {
    // SAFETY: it takes nothing.
    unsafe { libc::__errno_location() }
}

fn errno() -> c_int {
    // SAFETY: this thread's own, which is always there.
    unsafe { errno_place().read() }
}

fn set_errno(number: c_int) {
    // SAFETY: as above.
    unsafe { errno_place().write(number) };
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
