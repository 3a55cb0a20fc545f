//! Threads that wait on words of the agent's page.
//!
//! The agent wakes the waiters of the page that it has provided last. A thread that has read its page, and waits on it after the process
//! has changed to another one, would be woken by nobody. So a thread counts itself before it checks that its page is the current one,
//! and a change of page wakes the waiters of the old page until none is left.

use std::sync::atomic::{AtomicU32, Ordering};

/// Largest number of times that the waiters of an old page are woken: a thread may be stopped by a debugger, or may have left by a jump of
/// the program's signal handler.
pub const WAKES_MAX: u32 = 1_000;

/// Threads that wait on words of the agent's page.
///
/// All orderings are sequentially consistent: either the thread that waits sees the new generation, and thereby the new page, or the
/// thread that changes the page sees it counted. Neither is on the path of a launch.
#[derive(Debug, Default)]
pub struct Waiters {
    /// Number of changes of page.
    generation: AtomicU32,
    /// Number of waiting threads, for even and odd generations.
    waiting: [AtomicU32; 2],
}

impl Waiters {
    /// Creates the record of a process without waiting threads.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            generation: AtomicU32::new(0),
            waiting: [AtomicU32::new(0), AtomicU32::new(0)],
        }
    }

    fn waiting(&self, generation: u32) -> &AtomicU32 {
        let [even, odd] = &self.waiting;
        if generation.is_multiple_of(2) {
            even
        } else {
            odd
        }
    }

    /// Runs `wait`, which waits on a word of a page, unless `is_current` returns `false` because another page is in use.
    pub fn wait(&self, is_current: impl FnOnce() -> bool, wait: impl FnOnce()) {
        let generation = self.generation.load(Ordering::SeqCst);
        let waiting = self.waiting(generation);
        waiting.fetch_add(1, Ordering::SeqCst);
        if is_current() && self.generation.load(Ordering::SeqCst) == generation {
            wait();
        }
        waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Changes the page with `change`, and calls `wake`, which wakes the waiters of the old one, until none of them waits, at most
    /// [`WAKES_MAX`] times. One thread at a time may call it.
    pub fn change(&self, change: impl FnOnce(), mut wake: impl FnMut()) {
        change();
        let before = self.generation.fetch_add(1, Ordering::SeqCst);
        for _ in 0..WAKES_MAX {
            if self.waiting(before).load(Ordering::SeqCst) == 0 {
                break;
            }
            wake();
        }
    }

    /// Forgets the waiting threads, which do not exist in the child of a fork.
    pub fn fork(&self) {
        for waiting in &self.waiting {
            waiting.store(0, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn nothing_waits_on_a_page_that_is_not_current() {
        let waiters = Waiters::new();
        waiters.wait(|| false, || panic!("the page is not current"));
        waiters.change(|| {}, || panic!("nothing waits"));
    }

    #[test]
    fn a_change_during_the_check_is_noticed() {
        let waiters = Waiters::new();
        let is_current = || {
            waiters.generation.fetch_add(1, Ordering::SeqCst);
            true
        };
        waiters.wait(is_current, || panic!("the page has changed"));
    }

    #[test]
    fn waiters_that_do_not_exist_in_a_child_are_not_woken() {
        let waiters = Waiters::new();
        let child = || {
            waiters.fork();
            waiters.change(|| {}, || panic!("nothing waits"));
            waiters.waiting(0).store(1, Ordering::SeqCst);
        };
        waiters.wait(|| true, child);
    }

    #[test]
    fn a_waiter_that_never_leaves_is_given_up() {
        let waiters = Waiters::new();
        waiters.waiting(0).store(1, Ordering::SeqCst);
        let mut wakes = 0;
        waiters.change(|| {}, || wakes += 1);
        assert_eq!(wakes, WAKES_MAX);
        // The next change does not wait for it.
        waiters.change(|| {}, || panic!("nothing waits"));
    }

    /// Threads wait for ever on the page that they have read, and a change of page has them all go on, whatever the order.
    #[test]
    fn a_change_of_page_reaches_every_waiting_thread() {
        const CHANGES: usize = 2_000;
        let (waiters, page) = (Waiters::new(), AtomicUsize::new(0));
        let woken = [const { AtomicUsize::new(0) }; CHANGES];
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let read = page.load(Ordering::SeqCst);
                        if read == CHANGES {
                            return;
                        }
                        let is_current = || page.load(Ordering::SeqCst) == read;
                        waiters.wait(is_current, || {
                            // No other thread wakes this page.
                            while woken[read].load(Ordering::SeqCst) == 0 {
                                thread::yield_now();
                            }
                        });
                    }
                });
            }
            for (old, woken) in woken.iter().enumerate() {
                let wake = || {
                    woken.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                };
                waiters.change(|| page.store(old + 1, Ordering::SeqCst), wake);
            }
        });
    }
}
