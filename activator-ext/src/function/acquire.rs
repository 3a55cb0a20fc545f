//! A request's wait for a place at an instance, and the place itself.

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

/// The properties of a request by which it is routed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// Time at which the request arrived in this process.
    pub(crate) arrival: Time,
    /// Deadline of the answer to the request, with the objective.
    pub(crate) deadline: Deadline,
    /// Class of the request, for the estimate of its execution time.
    pub(crate) class: ClassId,
    /// Whether the request was bound before and the connection to the instance failed.
    pub(crate) is_again: bool,
}

/// A refusal of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The reason of the refusal.
    pub(crate) reason: RefuseReason,
    /// Time after which a retry may succeed.
    pub(crate) retry_after: Span,
    /// Estimate of the time that the request would have run.
    pub(crate) execution: Span,
}

/// The reason why a request gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcquireError {
    /// The function refuses the request.
    Refused(Refusal),
    /// The function is closed: its revision may belong to another function now.
    Closed,
}

/// The future returned by [`Function::acquire`].
#[derive(Debug)]
pub(crate) struct Acquire {
    function: Arc<Function>,
    claim: Claim,
    /// Ticket in the queue and waiter, while the request waits.
    waiting: Option<(Ticket, WaiterId)>,
}

/// A place at an instance, which is freed when dropped.
#[derive(Debug)]
pub(crate) struct InstanceSlot {
    function: Arc<Function>,
    binding: BindingId,
    /// The instance of the place.
    pub(crate) instance: Arc<Instance>,
    /// The completion reported when the place is dropped.
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

    fn bound(&self, binding: BindingId, instance: Arc<Instance>) -> InstanceSlot {
        instance.begin(self.function.clock.now());
        InstanceSlot {
            function: Arc::clone(&self.function),
            binding,
            instance,
            completion: Completion::Cancelled,
        }
    }

    fn arrive(&mut self, waker: &Waker) -> Poll<Result<InstanceSlot, AcquireError>> {
        let function = Arc::clone(&self.function);
        let claim = self.claim;
        let outcome = function.step(|state, now| {
            if state.is_closed {
                return Poll::Ready(Err(AcquireError::Closed));
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
                    Poll::Ready(Err(AcquireError::Refused(refusal)))
                }
                Decision::Waits(ticket) => {
                    // The others are settled first: a request that has just left the queue may have had the same slot
                    // as this ticket.
                    let own = state.actions.iter().position(
                        |action| matches!(action, Action::Bind { ticket: of, .. } if *of == ticket),
                    );
                    let own = own.map(|own| state.actions.remove(own));
                    state.settle(now);
                    let waiter = state.waiters.join(ticket, waker);
                    self.waiting = Some((ticket, waiter));
                    // If the request itself is bound already, settling it now wakes it.
                    state.actions.extend(own);
                    Poll::Pending
                }
            }
        });
        outcome.map_ok(|(binding, instance)| self.bound(binding, instance))
    }
}

impl Future for Acquire {
    type Output = Result<InstanceSlot, AcquireError>;

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
                Poll::Ready(Err(AcquireError::Refused(refusal)))
            }
            Outcome::Closed => Poll::Ready(Err(AcquireError::Closed)),
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
            // The request was bound just before it was dropped: its place goes to the next.
            Some(Outcome::Bound { binding, .. }) => {
                drop(state);
                self.function.complete(binding, Completion::Cancelled);
            }
            Some(Outcome::Refused(_) | Outcome::Closed) => {}
        }
    }
}

impl InstanceSlot {
    /// Records that the head of the answer has arrived.
    pub(crate) const fn answered(&mut self) {
        self.completion = Completion::Answered { learn: false };
    }

    /// Records that the answer is complete, so that its duration is a sample for the estimate.
    pub(crate) const fn complete(&mut self) {
        self.completion = Completion::Answered { learn: true };
    }
}

impl Drop for InstanceSlot {
    fn drop(&mut self) {
        self.instance.end(self.function.clock.now());
        // An answer that was cut or late may be the fault of the client or of the pod.
        if self.completion != (Completion::Answered { learn: true }) {
            self.instance.suspect();
        }
        self.function.complete(self.binding, self.completion);
    }
}

/// Returns a random number for rules that need one: SplitMix64 of the request's number.
const fn random(id: u64) -> u64 {
    let z = id.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
