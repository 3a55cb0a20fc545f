//! Bounded waits for all work of contexts. The driver's own wait has no bound, so a thread of its own makes it.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use preload_ops::cuda::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_VALUE};

use crate::driver::{self, Code, Handle, SUCCESS};
use crate::time;

const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const OVER: u32 = 2;

/// One wait at a time, of the mover thread.
#[derive(Debug)]
pub(crate) struct Synchronizer {
    /// State of the wait: a futex word.
    state: AtomicU32,
    contexts: Mutex<Vec<Handle>>,
    /// First error of the driver.
    code: AtomicI32,
}

impl Synchronizer {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU32::new(IDLE),
            contexts: Mutex::new(Vec::new()),
            code: AtomicI32::new(SUCCESS),
        }
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
        contexts.clone_into(&mut self.contexts.lock().unwrap_or_else(PoisonError::into_inner));
        self.state.store(RUNNING, Ordering::Release);
        if !start() {
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

    /// Waits for the work of the contexts. Body of the thread.
    pub(crate) fn run(&self) {
        // The lock is not held over the driver's wait.
        let contexts = {
            let contexts = self.contexts.lock();
            contexts.unwrap_or_else(PoisonError::into_inner).clone()
        };
        let codes = contexts.into_iter().map(synchronize);
        let code = codes.fold(
            SUCCESS,
            |first, code| if first == SUCCESS { code } else { first },
        );
        self.code.store(code, Ordering::Relaxed);
        self.state.store(OVER, Ordering::Release);
        time::wake(&self.state);
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
