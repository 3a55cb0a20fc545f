//! Re-entrancy guard for threads that are loading or calling the core.
//!
//! The core may look up driver functions itself meanwhile, or cause an allocator to do so; such a look-up gets the loader's
//! result. A thread-local variable would serve the same purpose, but the loader may allocate at its first use.

use std::sync::atomic::{AtomicU64, Ordering};

/// Process and thread ids of the guarded threads. Entries of a parent process are free. More than 64 threads at a time are
/// unguarded.
static THREADS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Marks the calling thread as being in the core until [`Guard::leave`]. It has no destructor: that would add an unwinding path,
/// which the library otherwise lacks, and a dependency on the unwinder's library.
#[derive(Debug)]
pub(crate) struct Guard(Option<&'static AtomicU64>);

impl Guard {
    /// Guards the calling thread. Returns `None` if it is guarded already.
    pub(crate) fn new() -> Option<Self> {
        let (process, thread) = ids();
        let own = process << 32 | thread;
        let is_guarded = |slot: &AtomicU64| slot.load(Ordering::Relaxed) == own;
        if THREADS.iter().any(is_guarded) {
            return None;
        }
        let slot = THREADS.iter().find(|slot| {
            let old = slot.load(Ordering::Relaxed);
            (old == 0 || old >> 32 != process)
                && slot
                    .compare_exchange(old, own, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        });
        Some(Self(slot))
    }

    /// Ends the guard of the calling thread.
    pub(crate) fn leave(self) {
        if let Some(slot) = self.0 {
            slot.store(0, Ordering::Relaxed);
        }
    }
}

/// Returns the process and thread ids, from the kernel: values cached by a library are wrong after some kinds of `fork`.
fn ids() -> (u64, u64) {
    // SAFETY: the call takes no arguments and cannot fail.
    let process = unsafe { libc::syscall(libc::SYS_getpid) };
    // SAFETY: as above.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    (process.cast_unsigned(), thread.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_guarded_once_and_independently_of_others() {
        let guard = Guard::new();
        assert!(guard.is_some());
        assert!(Guard::new().is_none());
        let other = std::thread::spawn(|| Guard::new().is_some());
        assert!(other.join().unwrap());
        guard.unwrap().leave();
        assert!(Guard::new().is_some());
    }
}
