//! Admission to the user container: `policy::gate` with futures.
//!
//! A request awaits [`Admission::acquire`]. Dropping that future removes the request from the queue;
//! dropping the [`Permit`] releases the slot at the user container to the next request. The lock is held for a few
//! hundred nanoseconds and never across an await.

mod acquire;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use policy::class;
use policy::gate::{Action, DispatchReason, Gate, Late, RefuseReason, Settings};
use policy::profile::{ClassId, Profile};
use policy::queue::Ticket;
use policy::slo::{Deadline, StartMargin};
use policy::{Span, Time};
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
    /// Expected time that was left of the load if the model was on its way when it started, so that its execution time is not that of others.
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
            // It computed after what was left of the load, or beside it as far as the model was there: until one is known whose model was there it counts as
            // what was after the load, or a quarter of it if that is more.
            (Some(load), false) => Span(execution.0.saturating_sub(load.0).max(execution.0 / 4)),
            (None, false) => {
                self.profile = new_profile();
                self.is_profiled = true;
                execution
            }
            (None, true) => execution,
        };
        self.profile.observe(permit.class, execution);
    }

    /// Returns the expected time for which the load of its model goes on beside a request which starts now.
    fn load(&self, now: Time) -> Option<Span> {
        self.lease.as_ref()?.load_beside(now)
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

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
