//! Admission to the user container: `policy::gate` with futures.
//!
//! A request awaits [`Admission::acquire`]. Dropping that future removes the request from the queue;
//! dropping the [`Permit`] releases the slot at the user container to the next request. The lock is held for a few
//! hundred nanoseconds and never across an await.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use policy::class;
use policy::gate::{self, Action, Arrival, DispatchReason, Gate, Late, RefuseReason, Settings};
use policy::profile::{ClassId, Profile};
use policy::queue::Ticket;
use policy::slo::{Deadline, StartMargin};
use policy::{RequestId, Span, Time};
use tokio::sync::Notify;

use protocol::queue::{FromQueue, ToQueue, TraceContext};
use proxy::clock::Clock;
use proxy::lease_wait::LeaseWait;
use proxy::waiters::{WaiterId, Waiters};

use crate::drain::Drain;
use crate::inbox::Inbox;
use crate::lease::{HeadOf, Lease, Sibling, Spent};

/// Properties of a request that requests admission.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// Time of arrival in the process.
    pub arrival: Time,
    /// Time by which the request must be answered, and its objective.
    pub deadline: Deadline,
    /// Class of the request, for the estimate of its execution time.
    pub class: ClassId,
    /// Whether it may be forwarded to another instance.
    pub may_move: bool,
    /// Its trace if it is sampled, zero otherwise.
    pub trace: TraceContext,
    /// Key with which it has waited before, if it is back from another instance.
    pub back: Option<Time>,
}

/// How a request gets on.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// It has a slot at the user container.
    Start(Permit),
    /// It is to be forwarded to another instance.
    Forward(Forwarding),
}

/// A request on its way to another instance, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Forwarding {
    admission: Arc<Admission>,
    /// Instance to which it goes.
    pub sibling: Box<Sibling>,
    /// Key with which it has waited.
    pub key: Time,
    /// Whether the sibling does not serve it, and has refused it.
    returned: Option<bool>,
}

/// The refusal of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Reason of the refusal.
    pub reason: RefuseReason,
    /// Time after which a retry may succeed: the estimated time until the requests ahead are done.
    pub retry_after: Span,
    /// Estimated execution time of the request.
    pub execution: Span,
}

/// Admission control of a pod. See the [module](self).
#[derive(Debug)]
pub(crate) struct Admission {
    state: Mutex<State>,
    clock: Clock,
    /// Notified when a request that may become late has joined the queue.
    joined: Notify,
    /// Notified when the agent may have to learn of a change.
    changed: Notify,
    inbox: Inbox,
    sheds: bool,
}

struct State {
    gate: Gate,
    profile: Profile,
    /// Whether the profile has times of requests whose model was there when they started: those of others do not count any more.
    is_profiled: bool,
    waiters: Waiters<Outcome>,
    actions: Vec<Action>,
    next_id: u64,
    /// Number of dispatches, indexed by [`DispatchReason`].
    dispatches: [u64; DispatchReason::ALL.len()],
    /// Lease of the pod's slot; `None` where requests need none.
    lease: Option<Lease>,
    /// Claim of each waiting request, by [`Ticket::slot`]; only where requests need a lease.
    claims: Vec<Claim>,
}

/// Outcome of a request that waited.
enum Outcome {
    /// With what it has spent on the lease, if it has waited for one.
    Granted(Option<Spent>),
    Forwarded(Box<Sibling>),
    Refused(RefuseReason),
}

/// A slot at the user container, released when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<Admission>,
    class: ClassId,
    /// Time of the grant.
    pub since: Time,
    /// Time by which the grant preceded or followed the latest start time; `None` without an objective.
    pub margin: Option<StartMargin>,
    /// Wait for the lease of the slot; `None` if the pod held it.
    pub lease_wait: Option<LeaseWait>,
    completed: bool,
    /// Whether the answer states that it has failed, or may state so after its head.
    may_have_failed: bool,
    /// Whether its connection was upgraded, so that it holds no lease.
    is_upgraded: bool,
    /// Expected time of the load if the model was on its way when it started, so that its execution time is not that of others.
    load: Option<Span>,
}

/// The future of [`Admission::acquire`].
#[derive(Debug)]
pub(crate) struct Acquire {
    admission: Arc<Admission>,
    claim: Claim,
    /// Latest start time, as estimated on arrival.
    latest_start: Time,
    /// Ticket and waiter of the request while it is in the queue.
    waiting: Option<(Ticket, WaiterId)>,
}

impl Admission {
    /// Creates the admission control with all slots free.
    #[must_use]
    pub(crate) fn new(settings: Settings, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            sheds: settings.late == Late::Shed,
            state: Mutex::new(State {
                gate: Gate::new(settings),
                profile: new_profile(),
                is_profiled: false,
                waiters: Waiters::default(),
                actions: Vec::new(),
                next_id: 0,
                dispatches: [0; DispatchReason::ALL.len()],
                lease: None,
                claims: Vec::new(),
            }),
            clock,
            joined: Notify::new(),
            changed: Notify::new(),
            inbox: Inbox::default(),
        })
    }

    /// Makes requests wait for the lease of the pod's slot from now on. `address`: where other instances reach this one, if requests may be
    /// forwarded, which they are not during a drain.
    pub(crate) fn require_lease(&self, address: Option<SocketAddr>, drain: Arc<Drain>) {
        let now = self.clock.now();
        let mut state = self.lock();
        state.lease = Some(Lease::new(now, address, drain));
        state.step(|gate, actions| gate.set_shut(now, true, actions));
    }

    /// Returns whether the model of the pod is in host memory, as the agent states it.
    pub(crate) fn is_model_away(&self) -> bool {
        let state = self.lock();
        state.lease.as_ref().is_some_and(Lease::is_model_away)
    }

    /// Returns whether a pod UID is that of this pod.
    pub(crate) fn is_own(&self, uid: &[u8]) -> bool {
        let state = self.lock();
        let own = state.lease.as_ref().and_then(Lease::uid);
        own.is_some_and(|own| own.as_bytes() == uid)
    }

    /// Returns whether the pod takes turns on its slot, so that requests may have to wait for its lease.
    pub(crate) fn takes_turns(&self) -> bool {
        self.lock().lease.is_some()
    }

    /// Returns whether requests wait for the lease of the pod's slot.
    pub(crate) fn lacks_lease(&self) -> bool {
        let state = self.lock();
        state.lease.as_ref().is_some_and(|lease| !lease.may_start())
    }

    /// Returns how long a request that arrived at `arrival` has waited for the lease of the pod's slot; `None` if it has not.
    pub(crate) fn lease_wait(&self, arrival: Time) -> Option<LeaseWait> {
        let spent = self.lock().lease.as_ref()?.spent(arrival, self.clock.now());
        Some(self.measured(spent?))
    }

    fn measured(&self, spent: Spent) -> LeaseWait {
        let load = spent.load.map(|(begun, duration, source)| {
            let begun = self.clock.instant(begun);
            (begun, Duration::from_nanos(duration.0), source.name())
        });
        LeaseWait {
            since: self.clock.instant(spent.since),
            duration: Duration::from_nanos(spent.lease.0),
            load,
        }
    }

    /// Waits until the agent may have to learn of a change.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the first message on a new connection to the agent.
    pub(crate) fn greet(&self, again: bool) -> Option<FromQueue> {
        let mut state = self.lock();
        let State { lease, gate, .. } = &mut *state;
        Some(lease.as_mut()?.greet(again, gate))
    }

    /// Returns the next message that the agent is to get, if any. `outcomes`: counts of requests and of those in time, over the window of M2.13.
    pub(crate) fn next_message(&self, outcomes: (u64, u64)) -> Option<FromQueue> {
        let now = self.clock.now();
        let mut state = self.lock();
        let State {
            lease,
            gate,
            profile,
            claims,
            ..
        } = &mut *state;
        let lease = lease.as_mut()?;
        let may_forward = lease.may_forward(gate.settings().concurrency);
        let running = HeadOf {
            deadline: u64::MAX,
            // Of a head that waits only: recalled by that of what it runs, a holder with little to do gives way sooner, and fewer functions keep their
            // objectives (111 and 113 instead of 121 and 126 of the 128 of `weir demo --scenario swap`).
            estimate: Span::ZERO,
            outcomes,
            may_move: false,
            trace: TraceContext::default(),
        };
        lease.next_message(gate, now, running, |ticket| {
            let claim = claims.get(ticket.slot()).copied();
            let deadline = claim.map_or(Time::NEVER, |claim| claim.deadline.at);
            let class = claim.map_or(ClassId(0), |claim| claim.class);
            HeadOf {
                may_move: may_forward && claim.is_some_and(|claim| claim.may_move),
                trace: claim.map(|claim| claim.trace).unwrap_or_default(),
                // Both clocks count nanoseconds of the same clock of the system.
                deadline: self.clock.monotonic(deadline),
                estimate: profile.estimate(class),
                outcomes,
            }
        })
    }

    /// Returns where the messages of the agent come in.
    pub(crate) const fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Handles the messages of the agent that are there.
    ///
    /// # Errors
    /// Those of [`Inbox::read`].
    pub(crate) fn read_messages(&self) -> io::Result<()> {
        self.inbox.read(|message| self.receive(message))
    }

    /// Handles what the agent has sent by now, so that nothing starts under a lease that it has recalled.
    fn catch_up(&self) {
        if self.takes_turns()
            && let Err(error) = self.read_messages()
            && error.kind() != io::ErrorKind::WouldBlock
        {
            // The link ends the connection.
            self.changed.notify_one();
        }
    }

    /// Handles a message of the agent.
    pub(crate) fn receive(&self, message: &ToQueue) {
        let now = self.clock.now();
        let mut state = self.lock();
        if let ToQueue::Sibling { .. } = message {
            state.forward(message);
            drop(state);
            return self.changed.notify_one();
        }
        let Some(lease) = &mut state.lease else {
            return;
        };
        lease.receive(now, message, |at| self.clock.of_monotonic(at));
        let (is_shut, ahead) = (!lease.may_start(), lease.load());
        state.step(|gate, actions| {
            gate.set_ahead(now, ahead);
            gate.set_shut(now, is_shut, actions);
        });
        drop(state);
        self.changed.notify_one();
    }

    /// Returns a future that waits for a slot. Its output is the permit, or the refusal.
    #[must_use]
    pub(crate) const fn acquire(self: Arc<Self>, claim: Claim) -> Acquire {
        Acquire {
            admission: self,
            claim,
            latest_start: Time::NEVER,
            waiting: None,
        }
    }

    /// Returns the number of requests at the user container, and the number of waiting requests.
    pub(crate) fn load(&self) -> (u32, usize) {
        let state = self.lock();
        (state.gate.running(), state.gate.waiting())
    }

    /// Returns the number of dispatched requests since the start, by reason.
    pub(crate) fn dispatches(&self) -> [(DispatchReason, u64); DispatchReason::ALL.len()] {
        let counts = self.lock().dispatches;
        DispatchReason::ALL.map(|reason| (reason, counts[reason as usize]))
    }

    /// Sheds requests as soon as they become late. Never returns, unless late requests are not shed, when it returns at
    /// once.
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
        // A poisoned lock means a bug that has been logged already. The state itself is consistent, since every step
        // completes its changes before anything can panic.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn release(&self, permit: &Permit, execution: Option<Span>) {
        let now = self.clock.now();
        let mut state = self.lock();
        if permit.is_upgraded
            && let Some(lease) = &mut state.lease
        {
            lease.remove_upgraded();
        }
        if let Some(execution) = execution {
            state.observe(permit, execution);
        }
        state.step(|gate, actions| gate.depart(now, actions));
        let is_due = state.is_message_due();
        drop(state);
        if is_due {
            self.changed.notify_one();
        }
    }
}

/// Returns a profile without samples: the estimate is zero, so that the latest start time is the deadline itself.
fn new_profile() -> Profile {
    Profile::new(class::COUNT, Span::ZERO)
}

impl State {
    /// Adds an execution time to the profile.
    fn observe(&mut self, permit: &Permit, execution: Span) {
        let execution = match (permit.load, self.is_profiled) {
            (Some(_), true) => return,
            // Some of it was beside the load: so much at least, until one is known whose model was there.
            (Some(load), false) => Span(execution.0.saturating_sub(load.0).max(execution.0 / 8)),
            (None, false) => {
                self.profile = new_profile();
                self.is_profiled = true;
                execution
            }
            (None, true) => execution,
        };
        self.profile.observe(permit.class, execution);
    }

    /// Returns the expected time of the load that a request which starts now computes beside.
    fn load(&self) -> Option<Span> {
        self.lease.as_ref().and_then(Lease::load_beside)
    }

    /// Returns whether the agent may have to learn of a change.
    fn is_message_due(&self) -> bool {
        let lease = self.lease.as_ref();
        lease.is_some_and(|lease| lease.is_message_due(&self.gate))
    }

    /// Runs one step of the gate, and wakes the requests that it dispatches or refuses.
    fn step<T>(&mut self, run: impl FnOnce(&mut Gate, &mut Vec<Action>) -> T) -> T {
        let mut actions = std::mem::take(&mut self.actions);
        let outcome = run(&mut self.gate, &mut actions);
        for action in actions.drain(..) {
            let (ticket, outcome) = match action {
                Action::Dispatch { ticket, reason, .. } => {
                    self.dispatches[reason as usize] += 1;
                    let spent = self.lease.as_ref().and_then(|lease| {
                        let claim = self.claims.get(ticket.slot())?;
                        // It starts under the lease, whatever the time.
                        lease.spent(claim.arrival, Time::ZERO)
                    });
                    (ticket, Outcome::Granted(spent))
                }
                Action::Refuse { ticket, reason, .. } => (ticket, Outcome::Refused(reason)),
            };
            self.waiters.settle(ticket, outcome);
        }
        self.actions = actions;
        outcome
    }

    /// Lets the head be forwarded to the instance that a message names.
    fn forward(&mut self, message: &ToQueue) {
        let ToQueue::Sibling {
            seq,
            uid,
            address,
            port,
            revision,
        } = message
        else {
            return;
        };
        let Some(lease) = &mut self.lease else {
            return;
        };
        let port = u16::try_from(*port).unwrap_or(0);
        let Ok(address) = address.parse() else {
            tracing::warn!(address, "the agent names a sibling without an IP address");
            return;
        };
        let sibling = Sibling {
            seq: *seq,
            uid: uid.clone(),
            address: SocketAddr::new(address, port),
            revision: revision.clone(),
        };
        let concurrency = self.gate.settings().concurrency;
        let Some(ticket) = lease.head_for(&sibling, concurrency) else {
            return;
        };
        if self.gate.cancel(ticket) {
            lease.begin_forwarded();
            let outcome = Outcome::Forwarded(Box::new(sibling));
            self.waiters.settle(ticket, outcome);
        } else {
            lease.note_gone(sibling.seq);
        }
    }

    /// Ends the forwarding of a request.
    fn end_forwarding(&mut self, returned: Option<(u64, bool)>) {
        if let Some(lease) = &mut self.lease {
            lease.end_forwarded(returned);
        }
    }

    /// Keeps what the agent is to learn of a waiting request.
    fn note_claim(&mut self, ticket: Ticket, claim: &Claim) {
        let at = ticket.slot();
        if self.claims.len() <= at {
            self.claims.resize(at + 1, *claim);
        }
        self.claims[at] = *claim;
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
                let (is_due, load) = (state.is_message_due(), state.load());
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
}

impl Acquire {
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
                let load = state.load();
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
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
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
            may_move: true,
            trace: TraceContext::default(),
            back: None,
        }
    }

    async fn pending(future: &mut Acquire) {
        tokio::select! {
            biased;
            _ = future => panic!("granted while the slot is taken"),
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
        let permit = urgent.await.unwrap();
        pending(&mut relaxed).await;
        drop(permit);
        relaxed.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_beside_a_load_stands_for_its_execution_less_the_load_until_one_ran_without()
    {
        let (gate, clock) = admission(1, Order::Arrival, Late::Serve);
        let started = Arc::clone(&gate).acquire(claim(clock, 1_000)).await;
        let Ok(Admitted::Start(mut permit)) = started else {
            panic!("it starts at once");
        };
        let ms = Span::from_millis;
        let mut observed = |load, execution| {
            permit.load = load;
            let mut state = gate.lock();
            state.observe(&permit, execution);
            state.profile.estimate(ClassId(0))
        };
        assert_eq!(observed(Some(ms(150)), ms(210)), ms(60));
        assert_eq!(observed(None, ms(40)), ms(40));
        // It is known now.
        assert_eq!(observed(Some(ms(150)), ms(210)), ms(40));
    }

    #[tokio::test(start_paused = true)]
    async fn leaving_the_queue_frees_its_entry() {
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
    async fn a_slot_granted_to_a_cancelled_request_passes_to_the_next() {
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
    async fn a_displaced_request_is_notified_although_its_queue_entry_is_reused() {
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
    async fn late_requests_are_shed_at_once_except_for_one_a_second() {
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

    /// Returns whether the next request starts although the agent has sent a recall, which is not read yet, before the one that runs ends.
    async fn starts_after(end: impl FnOnce(&mut Permit)) -> bool {
        let (gate, clock) = admission(10, Order::Arrival, Late::Serve);
        gate.require_lease(None, Drain::new(Duration::from_secs(30)));
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let (here, agent) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        gate.inbox().set(Some(Arc::new(here)));
        gate.receive(&ToQueue::Lease { epoch: 1 });
        let running = Arc::clone(&gate).acquire(claim(clock, 1_000)).await;
        let Ok(Admitted::Start(mut permit)) = running else {
            panic!("it starts at once");
        };
        let mut waiting = Arc::clone(&gate).acquire(claim(clock, 1_000));
        pending(&mut waiting).await;
        let recall = ToQueue::Recall { epoch: 1 };
        send(&agent, recall.write().finish(), SendFlags::empty()).unwrap();
        end(&mut permit);
        drop(permit);
        tokio::select! {
            biased;
            _ = &mut waiting => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_has_failed_lets_none_start_under_a_lease_that_is_recalled() {
        assert!(
            !starts_after(|permit| {
                permit.note_failure();
                permit.complete();
            })
            .await
        );
        // Its answer has broken off.
        assert!(!starts_after(|_| {}).await);
        // Of one that was answered nothing is known, and no message is read for it.
        assert!(starts_after(Permit::complete).await);
    }
}
