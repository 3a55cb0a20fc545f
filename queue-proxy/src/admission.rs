//! The gate in front of the user container: `policy::gate` joined to futures.
//!
//! A request awaits [`Admission::acquire`]. Dropping that future gives the place in the queue back;
//! dropping the [`Permit`] gives the place at the user container to the next. The lock is held for a few
//! hundred nanoseconds and never across an await.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};

use policy::class;
use policy::gate::{self, Action, Arrival, DispatchReason, Gate, Late, RefuseReason, Settings};
use policy::profile::{ClassId, Profile};
use policy::queue::Ticket;
use policy::slo::{Deadline, StartMargin};
use policy::{RequestId, Span, Time};
use tokio::sync::Notify;

use proxy::clock::Clock;
use proxy::waiters::{WaiterId, Waiters};

/// What a request brings to the gate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// When it came to the process.
    pub arrival: Time,
    /// Until when it must be answered.
    pub deadline: Deadline,
    /// Its class, for the estimate.
    pub class: ClassId,
}

/// A request gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Why.
    pub reason: RefuseReason,
    /// When it may be worth another try: the estimated time until those before it are done.
    pub retry_after: Span,
    /// How long it would have run, by estimate.
    pub execution: Span,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Admission {
    state: Mutex<State>,
    clock: Clock,
    /// RequestDeadline when a request that may become late has joined.
    joined: Notify,
    sheds: bool,
}

struct State {
    gate: Gate,
    profile: Profile,
    waiters: Waiters<Outcome>,
    actions: Vec<Action>,
    next_id: u64,
    /// By [`DispatchReason`].
    dispatches: [u64; DispatchReason::ALL.len()],
}

/// What becomes of a request that waited.
enum Outcome {
    Granted,
    Refused(RefuseReason),
}

/// A place at the user container.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    class: ClassId,
    /// When the request got the place.
    pub since: Time,
    /// How long that was before or after its latest start time; `None` without an objective.
    pub margin: Option<StartMargin>,
    completed: bool,
}

/// The future of [`Admission::acquire`].
#[derive(Debug)]
pub(crate) struct Acquire {
    admission: Arc<Admission>,
    claim: Claim,
    /// As estimated on arrival.
    latest_start: Time,
    /// While it waits: its ticket, and where its waiter stands.
    waiting: Option<(Ticket, WaiterId)>,
}

impl Admission {
    /// A gate with every place free.
    #[must_use]
    pub(crate) fn new(settings: Settings, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            sheds: settings.late == Late::Shed,
            state: Mutex::new(State {
                gate: Gate::new(settings),
                // Nothing known, nothing assumed: until the first sample nobody is late before the
                // deadline itself.
                profile: Profile::new(class::COUNT, Span::ZERO),
                waiters: Waiters::default(),
                actions: Vec::new(),
                next_id: 0,
                dispatches: [0; DispatchReason::ALL.len()],
            }),
            clock,
            joined: Notify::new(),
        })
    }

    /// Waits for a place.
    #[must_use]
    pub(crate) const fn acquire(self: Arc<Self>, claim: Claim) -> Acquire {
        Acquire {
            admission: self,
            claim,
            latest_start: Time::NEVER,
            waiting: None,
        }
    }

    /// Requests at the user container, and requests waiting.
    pub(crate) fn load(&self) -> (u32, usize) {
        let state = self.lock();
        (state.gate.running(), state.gate.waiting())
    }

    /// How many requests were dispatched since the start, by why it was their turn.
    pub(crate) fn dispatches(&self) -> [(DispatchReason, u64); DispatchReason::ALL.len()] {
        let counts = self.lock().dispatches;
        DispatchReason::ALL.map(|reason| (reason, counts[reason as usize]))
    }

    /// Sheds requests at the moment they become late, for ever. Returns at once where none are shed.
    pub(crate) async fn run_shedding(self: Arc<Self>) {
        if !self.sheds {
            return;
        }
        loop {
            let joined = self.joined.notified();
            let next = self.lock().gate.next_wake();
            match next {
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(self.clock.instant(at)) => {}
                        () = joined => continue,
                    }
                    let mut state = self.lock();
                    let now = self.clock.now();
                    state.step(|gate, actions| gate.wake(now, actions));
                }
                None => joined.await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means a bug that has been logged already; the state itself is whole, since
        // every step leaves it so before anything can panic.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn release(&self, class: ClassId, execution: Option<Span>) {
        let now = self.clock.now();
        let mut state = self.lock();
        if let Some(execution) = execution {
            state.profile.observe(class, execution);
        }
        state.step(|gate, actions| gate.depart(now, actions));
    }
}

impl State {
    /// Runs one step of the gate and tells those whom it concerns.
    fn step<T>(&mut self, run: impl FnOnce(&mut Gate, &mut Vec<Action>) -> T) -> T {
        let mut actions = std::mem::take(&mut self.actions);
        let outcome = run(&mut self.gate, &mut actions);
        for action in actions.drain(..) {
            let (ticket, outcome) = match action {
                Action::Dispatch { ticket, reason, .. } => {
                    self.dispatches[reason as usize] += 1;
                    (ticket, Outcome::Granted)
                }
                Action::Refuse { ticket, reason, .. } => (ticket, Outcome::Refused(reason)),
            };
            self.waiters.settle(ticket, outcome);
        }
        self.actions = actions;
        outcome
    }

    fn refused(&self, reason: RefuseReason, class: ClassId) -> Refusal {
        let execution = self.profile.estimate(class);
        Refusal {
            reason,
            retry_after: self.gate.retry_after(execution),
            execution,
        }
    }
}

impl Acquire {
    fn permit(&self, since: Time) -> Permit {
        Permit {
            admission: Arc::clone(&self.admission),
            class: self.claim.class,
            since,
            margin: self
                .claim
                .deadline
                .objective
                .map(|_| StartMargin::new(self.latest_start, since)),
            completed: false,
        }
    }

    fn arrive(&mut self, waker: &Waker) -> Poll<Result<Permit, Refusal>> {
        let now = self.admission.clock.now();
        let mut state = self.admission.lock();
        let id = RequestId(state.next_id);
        state.next_id += 1;
        let execution = state.profile.estimate(self.claim.class);
        self.latest_start = self.claim.deadline.latest_start(execution, Span::ZERO);
        let arrival = Arrival {
            id,
            at: self.claim.arrival,
            key: self.latest_start,
            objective: self.claim.deadline.objective.unwrap_or_default(),
            kept: false,
        };
        let outcome = state.step(|gate, actions| gate.arrive(now, arrival, actions));
        match outcome {
            gate::Admission::Dispatch(reason) => {
                state.dispatches[reason as usize] += 1;
                drop(state);
                Poll::Ready(Ok(self.permit(now)))
            }
            gate::Admission::Refuse(reason) => {
                Poll::Ready(Err(state.refused(reason, self.claim.class)))
            }
            gate::Admission::Wait(ticket) => {
                let waiter = state.waiters.join(ticket, waker);
                drop(state);
                self.waiting = Some((ticket, waiter));
                if self.admission.sheds {
                    self.admission.joined.notify_one();
                }
                Poll::Pending
            }
        }
    }
}

impl Future for Acquire {
    type Output = Result<Permit, Refusal>;

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
            Outcome::Granted => {
                drop(state);
                Poll::Ready(Ok(self.permit(admission.clock.now())))
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
            // The place came at the moment the client left: it goes to the next.
            Some(Outcome::Granted) => state.step(|gate, actions| gate.depart(now, actions)),
            Some(Outcome::Refused(_)) => {}
        }
    }
}

impl Permit {
    /// The request was answered in full: how long it took is learned.
    pub(crate) const fn complete(&mut self) {
        self.completed = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let execution = self
            .completed
            .then(|| self.admission.clock.now().since(self.since));
        self.admission.release(self.class, execution);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::gate::Order;
    use policy::slo::Signals;
    use std::time::Duration;

    fn admission(depth: usize, order: Order, late: Late) -> (Arc<Admission>, Clock) {
        let clock = Clock::start();
        (
            Admission::new(
                Settings {
                    concurrency: 1,
                    depth,
                    order,
                    late,
                },
                clock,
            ),
            clock,
        )
    }

    fn claim(clock: Clock, objective_ms: u64) -> Claim {
        let arrival = clock.now();
        let signals = Signals {
            slo: Some(Span::from_millis(objective_ms)),
            revision_timeout: Span::from_secs(300),
            ..Signals::default()
        };
        Claim {
            arrival,
            deadline: signals.deadline(arrival),
            class: ClassId(0),
        }
    }

    async fn pending(future: &mut Acquire) {
        tokio::select! {
            biased;
            _ = future => panic!("granted while the place is taken"),
            () = std::future::ready(()) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_most_urgent_starts_first() {
        let (gate, clock) = admission(10, Order::Deadline, Late::Serve);
        let held = Arc::clone(&gate)
            .acquire(claim(clock, 1_000))
            .await
            .unwrap();
        let mut relaxed = Arc::clone(&gate).acquire(claim(clock, 900));
        let mut urgent = Arc::clone(&gate).acquire(claim(clock, 100));
        pending(&mut relaxed).await;
        pending(&mut urgent).await;
        drop(held);
        let place = urgent.await.unwrap();
        pending(&mut relaxed).await;
        drop(place);
        relaxed.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn leaving_the_queue_gives_the_place_back() {
        let (gate, clock) = admission(1, Order::Arrival, Late::Serve);
        let held = Arc::clone(&gate)
            .acquire(claim(clock, 1_000))
            .await
            .unwrap();
        let mut waiting = Arc::clone(&gate).acquire(claim(clock, 1_000));
        pending(&mut waiting).await;
        let refused = Arc::clone(&gate)
            .acquire(claim(clock, 1_000))
            .await
            .unwrap_err();
        assert_eq!(refused.reason, RefuseReason::Full);
        drop(waiting);
        assert_eq!(gate.load(), (1, 0));
        drop(held);
        assert_eq!(gate.load(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_granted_to_somebody_who_left_goes_to_the_next() {
        let (gate, clock) = admission(2, Order::Arrival, Late::Serve);
        let held = Arc::clone(&gate)
            .acquire(claim(clock, 1_000))
            .await
            .unwrap();
        let mut first = Arc::clone(&gate).acquire(claim(clock, 1_000));
        let mut second = Arc::clone(&gate).acquire(claim(clock, 1_000));
        pending(&mut first).await;
        pending(&mut second).await;
        drop(held);
        drop(first);
        second.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_displaced_request_hears_of_it_although_its_slot_is_used_again() {
        let (gate, clock) = admission(1, Order::Deadline, Late::Serve);
        let held = Arc::clone(&gate)
            .acquire(claim(clock, 1_000))
            .await
            .unwrap();
        let mut late = Arc::clone(&gate).acquire(claim(clock, 10));
        pending(&mut late).await;
        tokio::time::advance(Duration::from_millis(20)).await;
        let mut newcomer = Arc::clone(&gate).acquire(claim(clock, 1_000));
        pending(&mut newcomer).await;
        assert_eq!(late.await.unwrap_err().reason, RefuseReason::Displaced);
        pending(&mut newcomer).await;
        drop(held);
        newcomer.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn late_requests_are_shed_at_that_moment_but_for_one_a_second() {
        let (gate, clock) = admission(10, Order::Deadline, Late::Shed);
        tokio::spawn(Arc::clone(&gate).run_shedding());
        let held = Arc::clone(&gate)
            .acquire(claim(clock, 10_000))
            .await
            .unwrap();
        let mut kept = Arc::clone(&gate).acquire(claim(clock, 40));
        pending(&mut kept).await;
        let shed = Arc::clone(&gate).acquire(claim(clock, 50));
        let begin = tokio::time::Instant::now();
        let refused = shed.await.unwrap_err();
        assert_eq!(refused.reason, RefuseReason::Late);
        assert!(
            begin.elapsed() >= Duration::from_millis(50),
            "{:?}",
            begin.elapsed()
        );
        assert!(
            begin.elapsed() < Duration::from_millis(55),
            "{:?}",
            begin.elapsed()
        );
        pending(&mut kept).await;
        drop(held);
        kept.await.unwrap();
    }
}
