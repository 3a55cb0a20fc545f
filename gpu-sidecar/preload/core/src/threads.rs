//! Threads of this library in the program's process. All signals are blocked in them, since handlers belong to the program.

use std::mem::MaybeUninit;

/// Stack size in bytes; sufficient for calls of the driver.
const STACK_BYTES: usize = 512 << 10;

/// Starts a detached thread with all signals blocked. Returns `false` if the thread cannot be created.
pub(crate) fn start(name: &str, body: fn()) -> bool {
    let mut every = MaybeUninit::uninit();
    // SAFETY: a pointer to a set of this stack, which the function writes.
    let _always = unsafe { libc::sigfillset(every.as_mut_ptr()) };
    let mut before = MaybeUninit::uninit();
    // SAFETY: `sigfillset` has initialised `every`, and `before` is a set of this stack to write.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr()) };
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(body);
    if blocked == 0 {
        // SAFETY: `before` was written by the call above, which succeeded.
        let _always = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut())
        };
    }
    thread.is_ok()
}
