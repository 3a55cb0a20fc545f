//! Launches and touches in progress, each marked in a word of its own thread. The words also count: whoever finds the same sum later knows
//! that nothing was launched or touched in between.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, compiler_fence, fence};

/// Number of threads with words of their own; further threads share one of each kind.
pub const THREADS: usize = 512;

/// Words of one thread, in a cache line of their own.
#[derive(Debug)]
#[repr(align(64))]
pub struct Thread {
    /// Odd while the thread's launch is in progress; incremented at its begin and end.
    launching: AtomicU32,
    /// Odd while the thread's touch is in progress; incremented at its begin and end.
    touching: AtomicU32,
    /// Thread id; 0 if the entry is free.
    id: AtomicI32,
}

impl Thread {
    const fn new() -> Self {
        Self {
            launching: AtomicU32::new(0),
            touching: AtomicU32::new(0),
            id: AtomicI32::new(0),
        }
    }

    /// Returns whether the thread's launch is in progress. Exact in the thread itself.
    #[inline]
    #[must_use]
    pub fn is_launching(&self) -> bool {
        is_marked(self.launching.load(Ordering::Relaxed))
    }

    /// Returns whether the thread's touch is in progress. Exact in the thread itself.
    #[must_use]
    pub fn is_touching(&self) -> bool {
        is_marked(self.touching.load(Ordering::Relaxed))
    }

    /// Ends the mark of a touch of the calling thread before its guard is dropped, which then does nothing unless another touch has begun.
    pub fn end_touch(&self) {
        unmark(&self.touching);
    }

    fn take(&self, free: i32, id: i32) -> bool {
        let is_taken = self
            .id
            .compare_exchange(free, id, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if is_taken {
            // A thread may have ended within a call.
            for word in [&self.launching, &self.touching] {
                unmark(word);
            }
        }
        is_taken
    }
}

/// Returns whether a word with this value marks a call in progress.
const fn is_marked(value: u32) -> bool {
    value & 1 == 1
}

/// Ends the mark of the calling thread's word. Release: the changes of the launch or touch come before the end of the mark.
#[inline]
fn unmark(word: &AtomicU32) {
    let value = word.load(Ordering::Relaxed);
    if is_marked(value) {
        word.store(value.wrapping_add(1), Ordering::Release);
    }
}

/// Words of all threads that launch or touch memory. Both are marked without a lock and without a fence.
#[derive(Debug)]
pub struct Threads {
    /// Entries, created when the first thread registers: a process that launches nothing needs none.
    table: OnceLock<Box<[Thread]>>,
    /// Number of launches in progress in threads without an entry in the table.
    shared: AtomicU32,
    /// Number of touches in progress in threads without an entry in the table.
    shared_touches: AtomicU32,
    /// Number of launches and touches that such threads have begun, and ended.
    shared_calls: AtomicU32,
    /// Whether the kernel lacks `membarrier`, so that each launch and touch executes a fence.
    is_fenced: AtomicBool,
}

impl Default for Threads {
    fn default() -> Self {
        Self::new()
    }
}

impl Threads {
    /// Creates a table without threads, in which each launch and touch executes a fence.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            table: OnceLock::new(),
            shared: AtomicU32::new(0),
            shared_touches: AtomicU32::new(0),
            shared_calls: AtomicU32::new(0),
            is_fenced: AtomicBool::new(true),
        }
    }

    /// Sets whether each launch and touch executes a fence, because there is no barrier over all threads. To be called before the first one.
    pub fn set_fenced(&self, is_fenced: bool) {
        self.is_fenced.store(is_fenced, Ordering::Release);
    }

    /// Returns whether each launch and touch executes a fence.
    #[inline]
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Relaxed)
    }

    /// Returns an entry for the thread `id`, to be kept by that thread; `None` if the table is full. Entries of threads that have ended,
    /// for which `is_gone` returns `true`, are reused: threads end without notice.
    pub fn register(&self, id: i32, is_gone: impl Fn(i32) -> bool) -> Option<&Thread> {
        let table = self
            .table
            .get_or_init(|| (0..THREADS).map(|_| Thread::new()).collect());
        let free = table.iter().find(|thread| thread.take(0, id));
        free.or_else(|| {
            table.iter().find(|thread| {
                let other = thread.id.load(Ordering::Relaxed);
                is_gone(other) && thread.take(other, id)
            })
        })
    }

    /// Marks a launch of the calling thread as in progress, until the returned guard is dropped. `own` is the thread's entry.
    ///
    /// The mark is a relaxed store, ordered before the launch's reads of the gate for the compiler only. Against the processor it is
    /// ordered by the barrier over all threads of whoever closes the gate: before the barrier the launch has read the gate and its
    /// mark is visible after it, or it reads the gate after the barrier and finds it closed.
    #[inline]
    pub fn begin<'a>(&'a self, own: Option<&'a Thread>) -> LaunchGuard<'a> {
        self.mark(own.map(|own| &own.launching), &self.shared)
    }

    /// Marks a touch of the calling thread as in progress, until the returned guard is dropped. It is ordered as in [`Self::begin`], against
    /// the thread that moves memory. A touch does not count as a launch: a copy that blocks for long does not keep the token.
    #[inline]
    pub fn begin_touch<'a>(&'a self, own: Option<&'a Thread>) -> LaunchGuard<'a> {
        self.mark(own.map(|own| &own.touching), &self.shared_touches)
    }

    #[inline]
    fn mark<'a>(&'a self, own: Option<&'a AtomicU32>, shared: &'a AtomicU32) -> LaunchGuard<'a> {
        match own {
            Some(own) => {
                let value = own.load(Ordering::Relaxed);
                own.store(value.wrapping_add(1) | 1, Ordering::Relaxed);
            }
            None => {
                shared.fetch_add(1, Ordering::SeqCst);
                self.shared_calls.fetch_add(1, Ordering::SeqCst);
            }
        }
        if self.is_fenced() {
            // The other half is the fence of the thread that closes the gate: one of both sees the other's store.
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        LaunchGuard {
            own,
            shared,
            calls: &self.shared_calls,
        }
    }

    /// Returns whether some thread is between the gate and the end of its launch. Exact only after a barrier over all threads.
    ///
    /// Acquire: pairs with the release at the end of a launch, so that its changes of the work in flight are visible. A table that is
    /// not there yet has no mark either: a thread creates it before its first mark, so the barrier makes both visible or neither.
    #[must_use]
    pub fn any_launching(&self) -> bool {
        let mut threads = self.table.get().into_iter().flatten();
        self.shared.load(Ordering::SeqCst) != 0
            || threads.any(|thread| is_marked(thread.launching.load(Ordering::Acquire)))
    }

    /// Returns whether some thread is in a touch; as [`Self::any_launching`].
    #[must_use]
    pub fn any_touching(&self) -> bool {
        let mut threads = self.table.get().into_iter().flatten();
        self.shared_touches.load(Ordering::SeqCst) != 0
            || threads.any(|thread| is_marked(thread.touching.load(Ordering::Acquire)))
    }

    /// Returns a number which changes with every launch and touch, except those of the thread with the entry `except`. Exact only after a
    /// barrier over all threads; calls which wait, and withdraw their mark, count as well.
    #[must_use]
    pub fn calls(&self, except: Option<&Thread>) -> u32 {
        let threads = self.table.get().into_iter().flatten();
        let others = threads.filter(|thread| !except.is_some_and(|own| std::ptr::eq(own, *thread)));
        others.fold(self.shared_calls.load(Ordering::SeqCst), |sum, thread| {
            sum.wrapping_add(thread.launching.load(Ordering::Acquire))
                .wrapping_add(thread.touching.load(Ordering::Acquire))
        })
    }
}

/// Launch or touch in progress. Dropped at its end.
#[derive(Debug)]
pub struct LaunchGuard<'a> {
    own: Option<&'a AtomicU32>,
    shared: &'a AtomicU32,
    calls: &'a AtomicU32,
}

impl Drop for LaunchGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.own {
            Some(own) => unmark(own),
            None => {
                // As in an entry, the end counts too: what a call has done after it was counted is not taken for earlier.
                self.calls.fetch_add(1, Ordering::SeqCst);
                self.shared.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;

    use super::*;

    #[test]
    fn a_launch_is_in_progress_until_its_guard_is_dropped() {
        let threads = Threads::new();
        let own = threads.register(7, |_| false).unwrap();
        assert!(!threads.any_launching());
        let guard = threads.begin(Some(own));
        assert!(threads.any_launching() && own.is_launching());
        drop(guard);
        assert!(!threads.any_launching() && !own.is_launching());
    }

    #[test]
    fn the_begin_and_the_end_of_a_call_change_the_number_of_calls() {
        let threads = Threads::new();
        let own = threads.register(7, |_| false).unwrap();
        for own in [Some(own), None] {
            let before = threads.calls(None);
            let guard = threads.begin_touch(own);
            let amid = threads.calls(None);
            drop(guard);
            let after = threads.calls(None);
            assert!(before != amid && amid != after && before != after);
        }
    }

    #[test]
    fn a_touch_is_no_launch() {
        let threads = Threads::new();
        let own = threads.register(7, |_| false).unwrap();
        for own in [Some(own), None] {
            let touch = threads.begin_touch(own);
            assert!(threads.any_touching() && !threads.any_launching());
            let launch = threads.begin(own);
            drop(touch);
            assert!(!threads.any_touching() && threads.any_launching());
            drop(launch);
            assert!(!threads.any_touching() && !threads.any_launching());
        }
    }

    #[test]
    fn every_call_of_another_thread_changes_the_number_of_calls() {
        let threads = Threads::new();
        let mover = threads.register(1, |_| false);
        let own = threads.register(7, |_| false);
        let mut seen = vec![threads.calls(mover)];
        for entry in [own, None] {
            let guards = [threads.begin(entry), threads.begin_touch(entry)];
            drop(guards);
            let now = threads.calls(mover);
            assert!(!seen.contains(&now));
            seen.push(now);
            drop(threads.begin(mover));
            assert_eq!(threads.calls(mover), now);
        }
    }

    #[test]
    fn the_entry_of_a_thread_that_ended_within_a_call_is_free_of_its_marks() {
        let threads = Threads::new();
        for id in 1..=512 {
            assert!(threads.register(id, |_| false).is_some());
        }
        let dead = threads.register(600, |id| id == 300);
        let _never_dropped =
            [threads.begin(dead), threads.begin_touch(dead)].map(ManuallyDrop::new);
        assert!(threads.any_launching() && threads.any_touching());
        let next = threads.register(601, |id| id == 600);
        assert!(!threads.any_launching() && !threads.any_touching());
        drop(threads.begin(next));
        assert!(!threads.any_launching());
    }

    #[test]
    fn threads_without_an_entry_share_a_count() {
        let threads = Threads::new();
        threads.set_fenced(false);
        let (first, second) = (threads.begin(None), threads.begin(None));
        drop(first);
        assert!(threads.any_launching());
        drop(second);
        assert!(!threads.any_launching());
    }

    #[test]
    fn a_full_table_has_no_entry_but_those_of_ended_threads() {
        let threads = Threads::new();
        for id in 1..=512 {
            assert!(threads.register(id, |_| false).is_some());
        }
        assert!(threads.register(1_000, |_| false).is_none());
        let reused = threads.register(1_000, |id| id == 300).unwrap();
        assert_eq!(reused.id.load(Ordering::Relaxed), 1_000);
        assert!(threads.register(1_001, |id| id == 300).is_none());
    }
}
