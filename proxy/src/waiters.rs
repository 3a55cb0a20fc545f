//! Registry of the futures that wait in one of policy's queues, by ticket.
//!
//! A queue reuses the slot of a ticket as soon as its request has left; a waiter stays until its future has taken the
//! outcome. So the outcomes of one step must be [settled](Waiters::settle) before a request of the same step
//! [joins](Waiters::join), except for that request's own outcome.

use std::task::{Context, Poll, Waker};

use policy::queue::Ticket;

/// Registry of waiting futures. `T` is the outcome of a request that waited. See the [module](self).
#[derive(Debug)]
pub struct Waiters<T> {
    waiters: Vec<Waiter<T>>,
    free: Vec<usize>,
    /// Index of a ticket's waiter, by the ticket's slot.
    of_slot: Vec<usize>,
}

#[derive(Debug)]
enum Waiter<T> {
    Absent,
    Waiting(Waker),
    Settled(T),
}

/// Index of a waiter, which is reused once the waiter has left.
#[derive(Debug, Clone, Copy)]
pub struct WaiterId(usize);

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self {
            waiters: Vec::new(),
            free: Vec::new(),
            of_slot: Vec::new(),
        }
    }
}

impl<T> Waiters<T> {
    /// Adds the waiter of a request that has just joined the queue.
    pub fn join(&mut self, ticket: Ticket, waker: &Waker) -> WaiterId {
        let waiter = Waiter::Waiting(waker.clone());
        let at = match self.free.pop() {
            Some(at) => {
                self.waiters[at] = waiter;
                at
            }
            None => {
                self.waiters.push(waiter);
                self.waiters.len() - 1
            }
        };
        let slot = ticket.slot();
        if self.of_slot.len() <= slot {
            self.of_slot.resize(slot + 1, 0);
        }
        self.of_slot[slot] = at;
        WaiterId(at)
    }

    /// Stores the outcome of a request that has left the queue, and wakes its future.
    pub fn settle(&mut self, ticket: Ticket, outcome: T) {
        let at = self.of_slot[ticket.slot()];
        let settled = Waiter::Settled(outcome);
        if let Waiter::Waiting(waker) = std::mem::replace(&mut self.waiters[at], settled) {
            waker.wake();
        }
    }

    /// Settles all waiting requests, and wakes their futures. The caller must discard later outcomes from the queue.
    pub fn settle_all(&mut self, outcome: impl Fn() -> T) {
        for waiter in &mut self.waiters {
            if let Waiter::Waiting(waker) = waiter {
                waker.wake_by_ref();
                *waiter = Waiter::Settled(outcome());
            }
        }
    }

    /// Returns the outcome of a request and removes its waiter; pending while the request waits.
    ///
    /// # Panics
    /// Panics if the waiter has already left.
    pub fn poll(&mut self, id: WaiterId, cx: &Context<'_>) -> Poll<T> {
        if let Waiter::Waiting(waker) = &mut self.waiters[id.0] {
            waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        let outcome = self.leave(id);
        Poll::Ready(outcome.expect("a waiter is either waiting or settled"))
    }

    /// Removes a waiter. Returns the outcome of its request, or `None` if the request still waits in the queue.
    pub fn leave(&mut self, id: WaiterId) -> Option<T> {
        self.free.push(id.0);
        match std::mem::replace(&mut self.waiters[id.0], Waiter::Absent) {
            Waiter::Settled(outcome) => Some(outcome),
            Waiter::Waiting(_) | Waiter::Absent => None,
        }
    }
}
