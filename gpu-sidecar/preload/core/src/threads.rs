//! Threads of this library in somebody else's process: their signals are the program's, so none is delivered to them.

use std::mem::MaybeUninit;

/// Enough for the driver's calls.
const STACK_BYTES: usize = 512 << 10;

/// Starts a thread that is never joined. `false`: there is no room for one.
pub(crate) fn start(name: &str, body: fn()) -> bool {
    let mut every = MaybeUninit::uninit();
    // SAFETY: a place to write to.
    let _always = unsafe { libc::sigfillset(every.as_mut_ptr()) };
    let mut before = MaybeUninit::uninit();
    // SAFETY: a set that was filled, and a place to write to.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr()) };
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(body);
    if blocked == 0 {
        // SAFETY: the set that was there before.
        let _always = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut())
        };
    }
    thread.is_ok()
}
