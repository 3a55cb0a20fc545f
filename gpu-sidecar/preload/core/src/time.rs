//! The monotonic clock, and futex waits.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Returns `CLOCK_MONOTONIC` in nanoseconds. All processes of a node share this clock.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a pointer to a structure of this stack, which the function writes; the clock exists on every Linux.
    let _always = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Blocks until the word's waiters are woken or `at_most` has passed; returns at once if the word is not `expected`. May also
/// return early. The word may be in read-only shared memory.
pub(crate) fn wait(word: &AtomicU32, expected: u32, at_most: Duration) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(at_most.subsec_nanos().cast_signed()),
    };
    // SAFETY: the kernel reads the word and the time, which are borrowed for the call; it writes neither.
    let _any = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const time,
        )
    };
}

/// Wakes all threads that wait on the word.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the word's address alone, which is borrowed for the call.
    let _any = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Blocks for this time.
pub(crate) fn pause(span: Duration) {
    // Nothing wakes a word that no other thread knows.
    wait(&AtomicU32::new(0), 0, span);
}
