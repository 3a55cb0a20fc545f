//! The clock, and waiting on words in memory.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a node share.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place to write to; the clock exists on every Linux.
    let _always = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Waits until somebody wakes the word's waiters, or the time is over; returns at once if the word is not `expected`. The
/// word may lie in memory that is shared and read-only.
pub(crate) fn wait(word: &AtomicU32, expected: u32, at_most: Duration) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(at_most.subsec_nanos().cast_signed()),
    };
    // SAFETY: the word outlives the call, and so does the time.
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

/// Wakes all who wait on the word.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call; waking needs no right to write to it.
    let _any = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
