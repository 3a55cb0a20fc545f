//! Copies between pieces of staging memory and windows of host memory: by threads of this library, and by the mover thread where none has begun one yet.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use preload_ops::residency::STAGING_PIECES;
use preload_state::memory::HostSpan;

use crate::time;

/// Most threads that copy, with the mover thread: together they read and write as fast as the link of any known GPU, at a rate of 10 GB/s each.
const THREADS_MAX: usize = 6;
/// Time without copies after which a thread ends.
const IDLE: Duration = Duration::from_secs(1);

/// No copy, or one that is over.
const OVER: u32 = 0;
/// No thread has begun it.
const READY: u32 = 1;
/// A thread copies.
const COPYING: u32 = 2;

/// Copy of one piece.
#[derive(Debug)]
struct Copy {
    /// A futex word.
    state: AtomicU32,
    to: AtomicU64,
    from: AtomicU64,
    bytes: AtomicU64,
}

impl Copy {
    /// Copies, if no other thread has begun to. Returns whether it did.
    fn try_run(&self) -> bool {
        let taken =
            self.state
                .compare_exchange(READY, COPYING, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            return false;
        }
        let [to, from, bytes] =
            [&self.to, &self.from, &self.bytes].map(|own| own.load(Ordering::Relaxed));
        let [to, from, bytes] = [to, from, bytes].map(|value| usize::try_from(value).unwrap_or(0));
        let from: *const u8 = ptr::with_exposed_provenance(from);
        // SAFETY: `Copiers::begin` was called with two ranges that this library has mapped, of which no other copy uses either before this one is over.
        unsafe { ptr::copy_nonoverlapping(from, ptr::with_exposed_provenance_mut(to), bytes) };
        self.state.store(OVER, Ordering::Release);
        time::wake(&self.state);
        true
    }
}

/// Copies in progress, and the threads which make them.
#[derive(Debug)]
pub(crate) struct Copiers {
    /// Number of copies so far. A futex word.
    begun: AtomicU32,
    /// Number of threads.
    threads: AtomicU32,
    copies: [Copy; STAGING_PIECES],
}

impl Copiers {
    pub(crate) const fn new() -> Self {
        Self {
            begun: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            copies: [const {
                Copy {
                    state: AtomicU32::new(OVER),
                    to: AtomicU64::new(0),
                    from: AtomicU64::new(0),
                    bytes: AtomicU64::new(0),
                }
            }; STAGING_PIECES],
        }
    }

    /// Forgets the threads of the parent of a fork, and what they copy there.
    pub(crate) fn fork(&self) {
        self.threads.store(0, Ordering::Relaxed);
        for copy in &self.copies {
            copy.state.store(OVER, Ordering::Relaxed);
        }
    }

    /// Begins a copy of as many bytes as `to` has. The last one of this piece is over. `start` starts a thread which calls [`Self::run`], and returns whether it could.
    pub(crate) fn begin(
        &self,
        piece: usize,
        to: HostSpan,
        from: HostSpan,
        start: impl Fn() -> bool,
    ) {
        let copy = &self.copies[piece];
        copy.to.store(to.at, Ordering::Relaxed);
        copy.from.store(from.at, Ordering::Relaxed);
        copy.bytes.store(to.bytes, Ordering::Relaxed);
        copy.state.store(READY, Ordering::Release);
        self.begun.fetch_add(1, Ordering::Release);
        if self.threads.load(Ordering::Relaxed) == 0 {
            // The mover thread copies too. Its own affinity and the quota of its group count.
            let all = std::thread::available_parallelism().map_or(1, usize::from);
            for _ in 1..all.min(THREADS_MAX) {
                self.threads.fetch_add(1, Ordering::Relaxed);
                if !start() {
                    self.threads.fetch_sub(1, Ordering::Relaxed);
                }
            }
        } else {
            time::wake(&self.begun);
        }
    }

    /// Returns whether the last copy of a piece is over.
    pub(crate) fn is_over(&self, piece: usize) -> bool {
        self.copies[piece].state.load(Ordering::Acquire) == OVER
    }

    /// Blocks until the last copy of a piece is over.
    pub(crate) fn end(&self, piece: usize) {
        let copy = &self.copies[piece];
        while !copy.try_run() && !self.is_over(piece) {
            time::wait(&copy.state, COPYING, IDLE);
        }
    }

    /// Copies until there was nothing to copy for a while. Body of a thread.
    pub(crate) fn run(&self) {
        loop {
            let begun = self.begun.load(Ordering::Acquire);
            if self.copies.iter().any(Copy::try_run) {
                continue;
            }
            time::wait(&self.begun, begun, IDLE);
            if self.begun.load(Ordering::Relaxed) == begun {
                self.threads.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// Maps memory of this process alone, which children of a fork do not have: pages that a device reads stay those of this process. Returns its address; `None` if there is none.
pub(crate) fn map(bytes: usize) -> Option<u64> {
    // SAFETY: a new mapping, at an address which the kernel chooses.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return None;
    }
    for advice in [libc::MADV_DONTFORK, libc::MADV_HUGEPAGE] {
        // SAFETY: the mapping made above.
        let _advised = unsafe { libc::madvise(at, bytes, advice) };
    }
    Some(at.expose_provenance() as u64)
}

/// Unmaps memory that [`map`] has returned, and that nothing uses.
pub(crate) fn unmap(at: u64, bytes: usize) {
    let at = usize::try_from(at).unwrap_or(0);
    // SAFETY: the caller has the mapping from `map`, and nothing refers to it any more.
    let _unmapped = unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(memory: &[u8]) -> HostSpan {
        HostSpan {
            at: memory.as_ptr().expose_provenance() as u64,
            bytes: memory.len() as u64,
        }
    }

    /// Copies pieces until each was copied several times, with this many threads, and compares them.
    fn copy_all(threads: usize) {
        static COPIERS: [Copiers; 2] = [const { Copiers::new() }; 2];
        let copiers = &COPIERS[threads.min(1)];
        let bodies: [fn(); 2] = [|| COPIERS[0].run(), || COPIERS[1].run()];
        let from: Vec<Vec<u8>> = (0..STAGING_PIECES)
            .map(|piece| vec![u8::try_from(piece).unwrap() + 1; 100_000 + piece])
            .collect();
        let mut to: Vec<Vec<u8>> = from.iter().map(|from| vec![0; from.len()]).collect();
        for _ in 0..20 {
            for (piece, (to, from)) in to.iter_mut().zip(&from).enumerate() {
                to.fill(0);
                let _exposed = to.as_mut_ptr().expose_provenance();
                copiers.begin(piece, span(to), span(from), || {
                    threads > 0 && crate::threads::start("copy", bodies[threads.min(1)])
                });
            }
            for piece in (0..STAGING_PIECES).rev() {
                copiers.end(piece);
                assert!(copiers.is_over(piece));
            }
            assert_eq!(to, from);
        }
    }

    #[test]
    fn pieces_are_copied_by_threads_and_the_one_that_waits() {
        copy_all(1);
    }

    #[test]
    fn without_threads_the_one_that_waits_copies() {
        copy_all(0);
    }
}
