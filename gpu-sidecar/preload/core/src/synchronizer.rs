//! Bounded waits for all work of contexts. The driver's own wait has no bound, so a thread of its own makes it.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use preload_ops::cuda::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_VALUE};

use crate::driver::{self, Code, Handle, SUCCESS};
use crate::time;

const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const OVER: u32 = 2;

/// Time without a wait after which the thread ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// One wait at a time, of the mover thread.
#[derive(Debug)]
pub(crate) struct Synchronizer {
    /// State of the wait: a futex word.
    state: AtomicU32,
    input: Mutex<Input>,
    /// First error of the driver.
    code: AtomicI32,
}

#[derive(Debug)]
struct Input {
    contexts: Vec<Handle>,
    /// Whether a thread is there, which looks at the state before it ends.
    has_thread: bool,
}

impl Synchronizer {
    pub(crate) const fn new() -> Self {
        let input = Input {
            contexts: Vec::new(),
            has_thread: false,
        };
        Self {
            state: AtomicU32::new(IDLE),
            input: Mutex::new(input),
            code: AtomicI32::new(SUCCESS),
        }
    }

    /// Forgets the thread of the parent of a fork, and what it waits for there. If the mover of the parent held the lock just then, that of the
    /// child stops at its first wait, as with the other locks of the parent's threads.
    pub(crate) fn fork(&self) {
        self.state.store(IDLE, Ordering::Relaxed);
        if let Ok(mut input) = self.input.try_lock() {
            input.has_thread = false;
        }
    }

    fn input(&self) -> MutexGuard<'_, Input> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until all work of the contexts has ended, for at most `at_most`. Returns the first error; `None` if work has not ended, or that which an
    /// earlier call has waited for. `start` starts a thread which calls [`Self::run`], and returns whether it could.
    pub(crate) fn within(
        &self,
        contexts: &[Handle],
        at_most: Duration,
        start: impl FnOnce() -> bool,
    ) -> Option<Result<(), Code>> {
        let begin = time::now();
        if !self.is_over_within(begin, at_most) {
            return None;
        }
        let has_thread = {
            let mut input = self.input();
            contexts.clone_into(&mut input.contexts);
            self.state.store(RUNNING, Ordering::Release);
            std::mem::replace(&mut input.has_thread, true)
        };
        if has_thread {
            time::wake(&self.state);
        } else if !start() {
            self.input().has_thread = false;
            self.state.store(IDLE, Ordering::Release);
            return None;
        }
        if !self.is_over_within(begin, at_most) {
            return None;
        }
        self.state.store(IDLE, Ordering::Relaxed);
        match self.code.load(Ordering::Relaxed) {
            SUCCESS => Some(Ok(())),
            code => Some(Err(code)),
        }
    }

    /// Blocks while a wait is in progress, at most until `at_most` after `begin`. Returns whether there is none.
    fn is_over_within(&self, begin: u64, at_most: Duration) -> bool {
        while self.state.load(Ordering::Acquire) == RUNNING {
            let passed = Duration::from_nanos(time::now().saturating_sub(begin));
            let left = at_most.saturating_sub(passed);
            if left.is_zero() {
                return false;
            }
            time::wait(&self.state, RUNNING, left);
        }
        true
    }

    /// Waits for the work of the contexts, whenever it is to, until there was nothing to wait for in a while. Body of the thread.
    pub(crate) fn run(&self) {
        while let Some(contexts) = self.next() {
            let is_any = !contexts.is_empty();
            let codes = contexts.into_iter().map(synchronize);
            let code = codes.fold(
                SUCCESS,
                |first, code| if first == SUCCESS { code } else { first },
            );
            if is_any {
                // The program may destroy them.
                // SAFETY: no context may always be current.
                let _never = unsafe { driver::cuCtxSetCurrent(0) };
            }
            self.code.store(code, Ordering::Relaxed);
            self.state.store(OVER, Ordering::Release);
            time::wake(&self.state);
        }
    }

    /// Blocks until there is something to wait for, and returns the contexts; `None` if there was nothing for [`IDLE_MAX`]: then the thread counts as gone.
    fn next(&self) -> Option<Vec<Handle>> {
        let begin = time::now();
        loop {
            let state = self.state.load(Ordering::Acquire);
            let idle = Duration::from_nanos(time::now().saturating_sub(begin));
            if state == RUNNING || idle >= IDLE_MAX {
                let mut input = self.input();
                // The lock is not held over the driver's wait.
                if self.state.load(Ordering::Acquire) == RUNNING {
                    return Some(input.contexts.clone());
                }
                input.has_thread = false;
                return None;
            }
            time::wait(&self.state, state, IDLE_MAX.saturating_sub(idle));
        }
    }
}

/// Waits for the work of a context. One that the program has destroyed has none.
fn synchronize(of: Handle) -> Code {
    // SAFETY: the driver checks the handle.
    let code = unsafe { driver::cuCtxSetCurrent(of) };
    match code {
        // SAFETY: the call takes no arguments.
        SUCCESS => unsafe { driver::cuCtxSynchronize() },
        INVALID_VALUE | INVALID_CONTEXT | CONTEXT_IS_DESTROYED => SUCCESS,
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    static SYNCHRONIZER: Synchronizer = Synchronizer::new();

    #[test]
    fn one_thread_makes_waits_that_follow_each_other() {
        let starts = AtomicUsize::new(0);
        let start = || {
            starts.fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(|| SYNCHRONIZER.run());
            true
        };
        // Contexts would need a driver.
        for _ in 0..1_000 {
            let waited = SYNCHRONIZER.within(&[], Duration::from_secs(60), start);
            assert_eq!(waited, Some(Ok(())));
        }
        assert_eq!(starts.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_child_of_a_fork_starts_a_thread_of_its_own() {
        static SYNCHRONIZER: Synchronizer = Synchronizer::new();
        SYNCHRONIZER.input().has_thread = true;
        SYNCHRONIZER.state.store(RUNNING, Ordering::Relaxed);
        SYNCHRONIZER.fork();
        let start = || {
            std::thread::spawn(|| SYNCHRONIZER.run());
            true
        };
        let waited = SYNCHRONIZER.within(&[], Duration::from_secs(60), start);
        assert_eq!(waited, Some(Ok(())));
    }

    #[test]
    fn without_a_thread_nothing_counts_as_over() {
        let synchronizer = Synchronizer::new();
        for _ in 0..2 {
            assert_eq!(
                synchronizer.within(&[], Duration::from_secs(60), || false),
                None
            );
        }
    }
}
