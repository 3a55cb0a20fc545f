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
    /// Number of threads, without the mover's.
    threads: AtomicU32,
    /// Number of threads that there should be with the mover's; 0 until it is known.
    wanted: AtomicU32,
    copies: [Copy; STAGING_PIECES],
}

impl Copiers {
    pub(crate) const fn new() -> Self {
        Self {
            begun: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
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
        time::wake(&self.begun);
        while self.threads.load(Ordering::Relaxed) + 1 < self.wanted() {
            self.threads.fetch_add(1, Ordering::Relaxed);
            if !start() {
                self.threads.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Returns the number of threads that there should be with the mover's: as many as CPUs, by its affinity and the quota of its group.
    fn wanted(&self) -> u32 {
        let known = self.wanted.load(Ordering::Relaxed);
        if known > 0 {
            return known;
        }
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = u32::try_from(all.min(THREADS_MAX)).unwrap_or(1);
        self.wanted.store(wanted, Ordering::Relaxed);
        wanted
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

    /// Copies pieces until each was copied several times, and compares them. `wait`: waits for the copy of a piece.
    fn copy_all(copiers: &Copiers, body: Option<fn()>, wait: impl Fn(usize)) {
        let from: Vec<Vec<u8>> = (0..STAGING_PIECES)
            .map(|piece| vec![u8::try_from(piece).unwrap() + 1; 100_000 + piece])
            .collect();
        let mut to: Vec<Vec<u8>> = from.iter().map(|from| vec![0; from.len()]).collect();
        for _ in 0..20 {
            for (piece, (to, from)) in to.iter_mut().zip(&from).enumerate() {
                to.fill(0);
                let _exposed = to.as_mut_ptr().expose_provenance();
                copiers.begin(piece, span(to), span(from), || {
                    body.is_some_and(|body| crate::threads::start("copy", body))
                });
            }
            for piece in (0..STAGING_PIECES).rev() {
                wait(piece);
                assert!(copiers.is_over(piece));
            }
            assert_eq!(to, from);
        }
    }

    #[test]
    fn threads_copy_what_nobody_waits_for_and_end_when_nothing_comes() {
        static COPIERS: Copiers = Copiers::new();
        let until = |what: &str, is_so: &dyn Fn() -> bool| {
            for _ in 0..30_000 {
                if is_so() {
                    return;
                }
                time::pause(Duration::from_millis(1));
            }
            panic!("not within 30 s: {what}");
        };
        for _ in 0..2 {
            COPIERS.wanted.store(3, Ordering::Relaxed);
            copy_all(&COPIERS, Some(|| COPIERS.run()), |piece| {
                until("the piece is copied", &|| COPIERS.is_over(piece));
            });
            assert!(COPIERS.threads.load(Ordering::Relaxed) <= 2);
            until("the threads end", &|| {
                COPIERS.threads.load(Ordering::Relaxed) == 0
            });
        }
    }

    #[test]
    fn without_threads_the_one_that_waits_copies() {
        let copiers = Copiers::new();
        copy_all(&copiers, None, |piece| copiers.end(piece));
    }

    #[test]
    fn the_child_of_a_fork_forgets_the_copies_and_threads_of_its_parent() {
        let copiers = Copiers::new();
        let bytes = [0_u8; 8];
        copiers.wanted.store(2, Ordering::Relaxed);
        copiers.begin(0, span(&bytes), span(&bytes), || true);
        assert!(!copiers.is_over(0));
        copiers.fork();
        assert!(copiers.is_over(0));
        assert_eq!(copiers.threads.load(Ordering::Relaxed), 0);
    }
}
