//! Requests on their way through admission: the future that waits, and what ends when it, a permit or a forwarded request is dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use policy::gate::{self, Arrival};
use policy::slo::StartMargin;
use policy::{RequestId, Span, Time};

use super::{Acquire, Admitted, Forwarding, Outcome, Permit, Refusal};
use crate::lease::Spent;

impl Acquire {
    fn permit(&self, since: Time, spent: Option<Spent>, load: Option<Span>) -> Permit {
        Permit {
            admission: Arc::clone(&self.admission),
            class: self.claim.class,
            since,
            margin: self
                .claim
                .deadline
                .objective
                .map(|_| StartMargin::new(self.latest_start, since)),
            lease_wait: spent.map(|spent| self.admission.measured(spent)),
            completed: false,
            may_have_failed: false,
            is_upgraded: false,
            load,
        }
    }

    fn arrive(&mut self, waker: &Waker) -> Poll<Result<Admitted, Refusal>> {
        let now = self.admission.clock.now();
        let mut state = self.admission.lock();
        let id = RequestId(state.next_id);
        state.next_id += 1;
        let execution = state.profile.estimate(self.claim.class);
        let deadline = self.claim.deadline;
        let latest_start = || deadline.latest_start(execution, Span::ZERO);
        self.latest_start = self.claim.back.unwrap_or_else(latest_start);
        let arrival = Arrival {
            id,
            at: self.claim.arrival,
            key: self.latest_start,
            objective: self.claim.deadline.objective.unwrap_or_default(),
            kept: false,
        };
        let is_back = self.claim.back.is_some();
        let outcome = state.step(|gate, actions| match is_back {
            true => gate.put_back(now, arrival, actions),
            false => gate.arrive(now, arrival, actions),
        });
        match outcome {
            gate::Admission::Dispatch(reason) => {
                state.dispatches[reason as usize] += 1;
                let (is_due, load) = (state.is_message_due(), state.load(now));
                // One that is back from a sibling may have waited before.
                let lease = state.lease.as_ref().filter(|_| is_back);
                let spent = lease.and_then(|lease| lease.spent(self.claim.arrival, now));
                drop(state);
                if is_due {
                    self.admission.changed.notify_one();
                }
                Poll::Ready(Ok(Admitted::Start(self.permit(now, spent, load))))
            }
            gate::Admission::Refuse(reason) => {
                Poll::Ready(Err(state.refused(reason, self.claim.class)))
            }
            gate::Admission::Wait(ticket) => {
                let waiter = state.waiters.join(ticket, waker);
                if state.lease.is_some() {
                    state.note_claim(ticket, &self.claim);
                }
                let is_due = state.is_message_due();
                drop(state);
                self.waiting = Some((ticket, waiter));
                if is_due {
                    self.admission.changed.notify_one();
                }
                if self.admission.sheds {
                    self.admission.joined.notify_one();
                }
                Poll::Pending
            }
        }
    }

    /// Lets the request be forwarded from now on, which waits and could not be so far.
    pub(crate) fn allow_move(&mut self) {
        self.claim.may_move = true;
        let Some((ticket, _)) = self.waiting else {
            return;
        };
        let mut state = self.admission.lock();
        if state.lease.is_none() {
            return;
        }
        state.note_claim(ticket, &self.claim);
        let is_due = state.is_message_due();
        drop(state);
        if is_due {
            self.admission.changed.notify_one();
        }
    }
}

impl Future for Acquire {
    type Output = Result<Admitted, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((_, waiter)) = self.waiting else {
            return self.arrive(cx.waker());
        };
        let admission = Arc::clone(&self.admission);
        let mut state = admission.lock();
        let outcome = ready!(state.waiters.poll(waiter, cx));
        self.waiting = None;
        match outcome {
            Outcome::Refused(reason) => Poll::Ready(Err(state.refused(reason, self.claim.class))),
            Outcome::Granted(spent) => {
                let now = admission.clock.now();
                let load = state.load(now);
                drop(state);
                let permit = self.permit(now, spent, load);
                Poll::Ready(Ok(Admitted::Start(permit)))
            }
            Outcome::Forwarded(sibling) => {
                drop(state);
                Poll::Ready(Ok(Admitted::Forward(Forwarding {
                    admission,
                    sibling,
                    key: self.latest_start,
                    returned: None,
                })))
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some((ticket, waiter)) = self.waiting else {
            return;
        };
        let now = self.admission.clock.now();
        let mut state = self.admission.lock();
        match state.waiters.leave(waiter) {
            None => {
                state.gate.cancel(ticket);
            }
            // The slot was granted just before the client left, so it passes to the next request.
            Some(Outcome::Granted(_)) => state.step(|gate, actions| gate.depart(now, actions)),
            Some(Outcome::Forwarded(sibling)) => state.end_forwarding(Some((sibling.seq, false))),
            Some(Outcome::Refused(_)) => {}
        }
        let is_due = state.is_message_due();
        drop(state);
        if is_due {
            self.admission.changed.notify_one();
        }
    }
}

impl Forwarding {
    /// Notes that the sibling does not serve the request. `is_refused`: nothing more is to be forwarded to it for a while.
    pub(crate) const fn note_returned(&mut self, is_refused: bool) {
        self.returned = Some(is_refused);
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let returned = self
            .returned
            .map(|is_refused| (self.sibling.seq, is_refused));
        self.admission.lock().end_forwarding(returned);
        self.admission.changed.notify_one();
    }
}

impl Permit {
    /// Notes that the connection was upgraded: from then on the request holds its place, and no lease. What the process computes for it is work of
    /// its own.
    pub(crate) fn upgrade(&mut self) {
        if std::mem::replace(&mut self.is_upgraded, true) {
            return;
        }
        let mut state = self.admission.lock();
        if let Some(lease) = &mut state.lease {
            lease.add_upgraded();
        }
        let is_due = state.is_message_due();
        drop(state);
        if is_due {
            self.admission.changed.notify_one();
        }
    }

    /// Notes that the user container has failed the request, or may yet: the agent may have recalled the lease before, since a process of the pod computes
    /// nothing more.
    pub(crate) const fn note_failure(&mut self) {
        self.may_have_failed = true;
    }

    /// Notes that the request was answered in full, so that its execution time is added to the profile.
    pub(crate) const fn complete(&mut self) {
        self.completed = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.may_have_failed || !self.completed {
            self.admission.catch_up();
        }
        let execution = self
            .completed
            .then(|| self.admission.clock.now().since(self.since));
        self.admission.release(self, execution);
    }
}
