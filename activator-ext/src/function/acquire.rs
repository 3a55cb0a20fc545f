//! A request's wait for a place, and its stay there.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use policy::profile::ClassId;
use policy::queue::Ticket;
use policy::routing::{Action, BindingId, Completion, Decision, RefuseReason, Request};
use policy::slo::Deadline;
use policy::{RequestId, Span, Time};
use proxy::waiters::WaiterId;

use super::{Function, Outcome};
use crate::instance::Instance;

/// What a request brings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// When it came to the process.
    pub(crate) arrival: Time,
    /// Until when it must be answered.
    pub(crate) deadline: Deadline,
    /// Its class, for the estimate.
    pub(crate) class: ClassId,
    /// It was bound before, and found no connection.
    pub(crate) is_again: bool,
}

/// A request gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Why.
    pub(crate) reason: RefuseReason,
    /// When it may be worth another try.
    pub(crate) retry_after: Span,
    /// How long it would have run, by estimate.
    pub(crate) execution: Span,
}

/// Why a request gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The function refuses it.
    Refused(Refusal),
    /// The function is no more: the revision may have another one now.
    Closed,
}

/// The future of [`Function::acquire`].
#[derive(Debug)]
pub(crate) struct Acquire {
    function: Arc<Function>,
    claim: Claim,
    /// While it waits: its ticket, and where its waiter stands.
    waiting: Option<(Ticket, WaiterId)>,
}

/// A place at an instance.
#[derive(Debug)]
pub(crate) struct InstancePlace {
    function: Arc<Function>,
    binding: BindingId,
    /// Where.
    pub(crate) instance: Arc<Instance>,
    /// How its stay ends, if it ended now.
    pub(crate) completion: Completion,
}

impl Acquire {
    pub(super) const fn new(function: Arc<Function>, claim: Claim) -> Self {
        Self {
            function,
            claim,
            waiting: None,
        }
    }

    fn bound(&self, binding: BindingId, instance: Arc<Instance>) -> InstancePlace {
        instance.begin(self.function.clock.now());
        InstancePlace {
            function: Arc::clone(&self.function),
            binding,
            instance,
            completion: Completion::Cancelled,
        }
    }

    fn arrive(&mut self, waker: &Waker) -> Poll<Result<InstancePlace, NoPlace>> {
        let function = Arc::clone(&self.function);
        let claim = self.claim;
        let outcome = function.step(|state, now| {
            if state.is_closed {
                return Poll::Ready(Err(NoPlace::Closed));
            }
            let id = RequestId(state.next_id);
            state.next_id += 1;
            let request = Request {
                id,
                at: claim.arrival,
                deadline: claim.deadline.at,
                objective: claim.deadline.objective,
                class: claim.class,
                execution: None,
            };
            let (random, actions) = (random(id.0), &mut state.actions);
            let routed = if claim.is_again {
                state.router.arrive_again(now, &request, random, actions)
            } else {
                state.router.arrive(now, &request, random, actions)
            };
            match routed {
                Decision::Bound {
                    binding,
                    instance,
                    reason,
                } => {
                    state.counts.decisions[reason as usize] += 1;
                    Poll::Ready(Ok((binding, state.instance(instance))))
                }
                Decision::Refused(reason) => {
                    let refusal = state.refused(reason, claim.class);
                    Poll::Ready(Err(NoPlace::Refused(refusal)))
                }
                Decision::Waits(ticket) => {
                    // The others first: one that has just left the queue may have had this ticket's slot.
                    let own = state.actions.iter().position(
                        |action| matches!(action, Action::Bind { ticket: of, .. } if *of == ticket),
                    );
                    let own = own.map(|own| state.actions.remove(own));
                    state.settle(now);
                    let waiter = state.waiters.join(ticket, waker);
                    self.waiting = Some((ticket, waiter));
                    // It was its own turn: its waker is called.
                    state.actions.extend(own);
                    Poll::Pending
                }
            }
        });
        outcome.map_ok(|(binding, instance)| self.bound(binding, instance))
    }
}

impl Future for Acquire {
    type Output = Result<InstancePlace, NoPlace>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((_, waiter)) = self.waiting else {
            return self.arrive(cx.waker());
        };
        let function = Arc::clone(&self.function);
        let mut state = function.lock();
        let outcome = ready!(state.waiters.poll(waiter, cx));
        self.waiting = None;
        match outcome {
            Outcome::Refused(reason) => {
                let refusal = state.refused(reason, self.claim.class);
                Poll::Ready(Err(NoPlace::Refused(refusal)))
            }
            Outcome::Closed => Poll::Ready(Err(NoPlace::Closed)),
            Outcome::Bound {
                binding,
                instance,
                at,
            } => {
                let took = function.clock.now().since(at);
                state.router.observe_hand_over(took);
                drop(state);
                Poll::Ready(Ok(self.bound(binding, instance)))
            }
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some((ticket, waiter)) = self.waiting else {
            return;
        };
        let mut state = self.function.lock();
        match state.waiters.leave(waiter) {
            None => {
                state.router.cancel(ticket);
            }
            // The place came at the moment the client left: it goes to the next.
            Some(Outcome::Bound { binding, .. }) => {
                drop(state);
                self.function.complete(binding, Completion::Cancelled);
            }
            Some(Outcome::Refused(_) | Outcome::Closed) => {}
        }
    }
}

impl InstancePlace {
    /// The head of an answer has come.
    pub(crate) const fn answered(&mut self) {
        self.completion = Completion::Answered { learn: false };
    }

    /// The answer has come whole: how long it took is a sample for the estimate.
    pub(crate) const fn complete(&mut self) {
        self.completion = Completion::Answered { learn: true };
    }
}

impl Drop for InstancePlace {
    fn drop(&mut self) {
        self.instance.end(self.function.clock.now());
        // An answer that broke off, or did not come in time, may be the client's doing or the pod's.
        if self.completion != (Completion::Answered { learn: true }) {
            self.instance.suspect();
        }
        self.function.complete(self.binding, self.completion);
    }
}

/// A number for rules that draw: SplitMix64 of the request's.
const fn random(id: u64) -> u64 {
    let z = id.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
