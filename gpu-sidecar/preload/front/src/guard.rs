//! Which threads are about to load the core, or to ask it.
//!
//! What the core does there may look up functions of the driver itself, or make an allocator do so; it gets what the loader
//! finds. A thread-local variable would say as much, and the loader may allocate when one is used for the first time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Threads with their processes: what is left here of a parent's is nobody's. More than these at a time go unnoticed.
static THREADS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// A thread that is here, until it says that it leaves. With a destructor in place of that the library would have a way to
/// unwind, which nothing in it does, and would need the library for it.
#[derive(Debug)]
pub(crate) struct Guard(Option<&'static AtomicU64>);

impl Guard {
    /// `None`: this thread has one.
    pub(crate) fn new() -> Option<Self> {
        let (process, thread) = ids();
        let own = process << 32 | thread;
        let is_here = |slot: &AtomicU64| slot.load(Ordering::Relaxed) == own;
        if THREADS.iter().any(is_here) {
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

    /// The thread is here no more.
    pub(crate) fn leave(self) {
        if let Some(slot) = self.0 {
            slot.store(0, Ordering::Relaxed);
        }
    }
}

/// Process and thread, asked of the kernel: what a library remembers is wrong after a `fork` of some kinds.
fn ids() -> (u64, u64) {
    // SAFETY: it takes nothing and always works.
    let process = unsafe { libc::syscall(libc::SYS_getpid) };
    // SAFETY: as above.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    (process.cast_unsigned(), thread.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_here_once_and_others_do_not_matter() {
        let here = Guard::new();
        assert!(here.is_some());
        assert!(Guard::new().is_none());
        let other = std::thread::spawn(|| Guard::new().is_some());
        assert!(other.join().unwrap());
        here.unwrap().leave();
        assert!(Guard::new().is_some());
    }
}
