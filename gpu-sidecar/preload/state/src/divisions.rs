//! Requests of threads that the mover thread divides physical memory which blocks share.

use std::sync::atomic::{AtomicU32, Ordering};

/// Requests, and those that are done.
#[derive(Debug, Default)]
pub struct Divisions {
    requested: AtomicU32,
    done: AtomicU32,
    /// Last request that was given up.
    given_up: AtomicU32,
}

impl Divisions {
    /// Creates the state without a request.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            requested: AtomicU32::new(0),
            done: AtomicU32::new(0),
            given_up: AtomicU32::new(0),
        }
    }

    /// Adds a request, and returns its number.
    pub fn request(&self) -> u32 {
        self.requested
            .fetch_add(1, Ordering::AcqRel)
            .wrapping_add(1)
    }

    /// Returns the number of the last request; `None` if all are done.
    #[must_use]
    pub fn requested(&self) -> Option<u32> {
        let requested = self.requested.load(Ordering::Acquire);
        (requested != self.done.load(Ordering::Relaxed)).then_some(requested)
    }

    /// Notes that all requests up to this one are done. Threads which wait at [`Self::word`] are to be woken.
    pub fn complete(&self, number: u32) {
        self.done.store(number, Ordering::Release);
    }

    /// As [`Self::complete`], of requests that could not be carried out.
    pub fn give_up(&self, number: u32) {
        self.given_up.store(number, Ordering::Relaxed);
        self.complete(number);
    }

    /// Returns whether a request is done and was carried out.
    #[must_use]
    pub fn is_carried_out(&self, number: u32) -> bool {
        let is_awaited = self.is_awaited(number).is_some();
        let given_up = self.given_up.load(Ordering::Relaxed);
        // Those up to it were given up with it; one that was carried out before another was given up is looked at long before that.
        !is_awaited && given_up.wrapping_sub(number) >= u32::MAX / 2
    }

    /// Returns the futex word that changes as requests are done.
    pub const fn word(&self) -> &AtomicU32 {
        &self.done
    }

    /// Returns the word to wait at, and its value, while a request is not done; `None` once it is.
    #[must_use]
    pub fn is_awaited(&self, number: u32) -> Option<(&AtomicU32, u32)> {
        let done = self.done.load(Ordering::Acquire);
        // Numbers begin again after the largest one.
        let is_open = number.wrapping_sub(done).wrapping_sub(1) < u32::MAX / 2;
        is_open.then_some((&self.done, done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_awaited_until_it_or_a_later_one_is_done() {
        for first in [0, u32::MAX - 1] {
            let divisions = Divisions::new();
            divisions.requested.store(first, Ordering::Relaxed);
            divisions.given_up.store(first, Ordering::Relaxed);
            divisions.complete(first);
            assert_eq!(divisions.requested(), None);
            let numbers = [divisions.request(), divisions.request()];
            assert_eq!(divisions.requested(), Some(numbers[1]));
            assert!(numbers.iter().all(|it| divisions.is_awaited(*it).is_some()));
            divisions.complete(numbers[1]);
            assert!(numbers.iter().all(|it| divisions.is_carried_out(*it)));
            assert_eq!(divisions.requested(), None);
            let next = divisions.request();
            let (word, value) = divisions.is_awaited(next).unwrap();
            assert_eq!(word.load(Ordering::Relaxed), value);
            assert!(!divisions.is_carried_out(next));
            let last = divisions.request();
            divisions.give_up(last);
            for number in [next, last] {
                assert!(divisions.is_awaited(number).is_none());
                assert!(!divisions.is_carried_out(number));
            }
        }
    }
}
