//! One function: its instances, and the requests that wait for them. It connects `policy::routing` to futures.
//!
//! A request awaits [`Function::acquire`]. Dropping that future removes the request from the queue; dropping the
//! [`InstanceSlot`] frees the place at the instance for the next request. The lock is held for a few microseconds and
//! never across an await.

mod acquire;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use policy::Time;
use policy::profile::ClassId;
use policy::queue::SLACK_BOUNDS;
use policy::routing::{
    Action, BindingId, Completion, EjectReason, InstanceId, RefuseReason, RouteReason, Router,
    Settings, Shape,
};
use proxy::clock::Clock;
use proxy::waiters::Waiters;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::instance::Instance;
use crate::view::FunctionName;

pub(crate) use acquire::{Acquire, AcquireError, Claim, InstanceSlot, Refusal};

/// One function: its instances, and the requests that wait for them.
#[derive(Debug)]
pub(crate) struct Function {
    /// The function's namespace, name and version.
    pub(crate) name: FunctionName,
    /// The routing settings, fixed for the function's life.
    pub(crate) settings: Settings,
    clock: Clock,
    state: Mutex<State>,
    /// Time of the next wake of the router in nanoseconds; `u64::MAX` if there is none.
    timer_at: AtomicU64,
    /// Notified when `timer_at` is set to an earlier time.
    earlier: Notify,
    /// Number of instances that serve.
    ready: AtomicUsize,
}

struct State {
    router: Router,
    /// Instances by the router's number; `None` where one was removed.
    instances: Vec<Option<Arc<Instance>>>,
    waiters: Waiters<Outcome>,
    actions: Vec<Action>,
    next_id: u64,
    counts: Counts,
    /// Whether the function takes no more requests.
    is_closed: bool,
}

/// Decisions since the last call of [`Function::take_counts`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Numbers of bound requests by [`RouteReason`].
    pub(crate) decisions: [u64; RouteReason::ALL.len()],
    /// Numbers of ejections by [`EjectReason`].
    pub(crate) ejections: [u64; EjectReason::ALL.len()],
}

/// The state of a function at one time.
#[derive(Debug, Clone)]
pub(crate) struct FunctionStatus {
    /// Number of waiting requests.
    pub(crate) waiting: usize,
    /// Number of waiting requests by their slack.
    pub(crate) by_slack: [usize; SLACK_BOUNDS.len() + 2],
    /// Largest number of waiting requests.
    pub(crate) waiting_max: usize,
    /// Number of ejected instances.
    pub(crate) ejected: usize,
    pub(crate) instances: Vec<InstanceStatus>,
}

/// The state of an instance at one time.
#[derive(Debug, Clone)]
pub(crate) struct InstanceStatus {
    pub(crate) instance: Arc<Instance>,
    /// Number of requests at the instance.
    pub(crate) requests: u32,
    /// Whether the instance is ejected: it temporarily gets no requests.
    pub(crate) is_ejected: bool,
}

/// The end of a request's wait.
enum Outcome {
    Bound {
        binding: BindingId,
        instance: Arc<Instance>,
        at: Time,
    },
    Refused(RefuseReason),
    Closed,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("waiting", &self.router.waiting())
            .field("ready", &self.router.ready())
            .finish_non_exhaustive()
    }
}

impl Function {
    /// Returns a function without instances, whose counts start at `counts`.
    #[must_use]
    pub(crate) fn new(
        name: FunctionName,
        settings: Settings,
        clock: Clock,
        counts: Counts,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            settings,
            clock,
            state: Mutex::new(State {
                router: Router::new(settings),
                instances: Vec::new(),
                waiters: Waiters::default(),
                actions: Vec::new(),
                next_id: 0,
                counts,
                is_closed: false,
            }),
            timer_at: AtomicU64::new(u64::MAX),
            earlier: Notify::new(),
            ready: AtomicUsize::new(0),
        })
    }

    /// Returns a future of a place at an instance.
    #[must_use]
    pub(crate) const fn acquire(self: Arc<Self>, claim: Claim) -> Acquire {
        Acquire::new(self, claim)
    }

    /// Adds a ready instance. Returns its number for [`Function::remove`] and [`Function::probed`].
    pub(crate) fn add(&self, instance: &Arc<Instance>, shape: Shape) -> InstanceId {
        self.step(|state, now| {
            let id = state.router.add(now, shape, &mut state.actions);
            let at = id.0 as usize;
            if state.instances.len() <= at {
                state.instances.resize(at + 1, None);
            }
            state.instances[at] = Some(Arc::clone(instance));
            id
        })
    }

    /// Removes an instance, which gets no more requests.
    pub(crate) fn remove(&self, id: InstanceId) {
        self.step(|state, now| {
            state.router.remove(now, id, &mut state.actions);
            // Requests at the instance hold it themselves. The entry is cleared in this same step, since the router may
            // reuse the number in the next.
            if let Some(place) = state.instances.get_mut(id.0 as usize) {
                *place = None;
            }
        });
    }

    /// Records the result of a probe: `is_answered` is false if there was no answer in time.
    pub(crate) fn probed(&self, id: InstanceId, is_answered: bool) {
        self.step(|state, now| {
            state
                .router
                .probed(now, id, is_answered, &mut state.actions)
        });
    }

    /// Closes the function: waiting and later requests get [`AcquireError::Closed`]. Requests at instances continue.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.waiters.settle_all(|| Outcome::Closed);
    }

    /// Returns the number of instances that serve.
    pub(crate) fn ready(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
    }

    /// Returns the decisions since the last call.
    pub(crate) fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.lock().counts)
    }

    /// Returns the current state of the function.
    pub(crate) fn status(&self) -> FunctionStatus {
        let state = self.lock();
        let numbered = (0..).map(InstanceId).zip(&state.instances);
        let instances = numbered.filter_map(|(id, instance)| {
            let instance = instance.as_ref()?;
            Some(InstanceStatus {
                instance: Arc::clone(instance),
                requests: state.router.load_of(id),
                is_ejected: state.router.is_ejected(id),
            })
        });
        FunctionStatus {
            waiting: state.router.waiting(),
            by_slack: state.router.waiting_by_slack(self.clock.now()),
            waiting_max: state.router.waiting_max(),
            ejected: state.router.ejected(),
            instances: instances.collect(),
        }
    }

    /// Wakes the router at the times it requests; never returns.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let earlier = self.earlier.notified();
            let at = Time(self.timer_at.load(Ordering::Relaxed));
            if at == Time::NEVER {
                earlier.await;
                continue;
            }
            let at: Instant = self.clock.instant(at);
            tokio::select! {
                () = tokio::time::sleep_until(at) => {
                    self.timer_at.store(u64::MAX, Ordering::Relaxed);
                    self.step(|state, now| state.router.wake(now, &mut state.actions));
                }
                () = earlier => {}
            }
        }
    }

    fn complete(&self, binding: BindingId, completion: Completion) {
        self.step(|state, now| {
            let actions = &mut state.actions;
            state.router.complete(now, binding, completion, actions);
        });
    }

    /// Runs one step of the router, and carries out its decisions.
    fn step<T>(&self, run: impl FnOnce(&mut State, Time) -> T) -> T {
        let now = self.clock.now();
        let mut state = self.lock();
        let outcome = run(&mut state, now);
        state.settle(now);
        self.ready.store(state.router.ready(), Ordering::Relaxed);
        self.set_timer(&state, now);
        outcome
    }

    /// Moves the timer to an earlier time if the router requests it.
    fn set_timer(&self, state: &State, now: Time) {
        if let Some(at) = state.router.next_wake(now)
            && at.0 < self.timer_at.load(Ordering::Relaxed)
        {
            self.timer_at.store(at.0, Ordering::Relaxed);
            self.earlier.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means a bug that has been logged already. The state is consistent, since every step completes
        // its changes before it can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Carries out the router's decisions.
    fn settle(&mut self, now: Time) {
        if self.is_closed {
            // The waiting requests have been settled by `close`.
            self.actions.clear();
            return;
        }
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            let (ticket, outcome) = match action {
                Action::Bind {
                    ticket,
                    binding,
                    instance,
                    reason,
                    ..
                } => {
                    self.counts.decisions[reason as usize] += 1;
                    let bound = Outcome::Bound {
                        binding,
                        instance: self.instance(instance),
                        at: now,
                    };
                    (ticket, bound)
                }
                Action::Refuse { ticket, reason, .. } => (ticket, Outcome::Refused(reason)),
                Action::Eject {
                    instance, reason, ..
                } => {
                    self.counts.ejections[reason as usize] += 1;
                    let instance = self.instance(instance);
                    tracing::warn!(
                        instance = %instance.address,
                        revision = %instance.revision,
                        reason = reason.name(),
                        "ejected an instance: it gets no requests until it answers"
                    );
                    instance.suspect();
                    continue;
                }
                Action::Return { instance } => {
                    let instance = self.instance(instance);
                    tracing::info!(instance = %instance.address, "an instance serves again");
                    continue;
                }
            };
            self.waiters.settle(ticket, outcome);
        }
        self.actions = actions;
    }

    fn instance(&self, id: InstanceId) -> Arc<Instance> {
        let instance = self.instances.get(id.0 as usize).and_then(Option::as_ref);
        Arc::clone(instance.expect("the router knows only instances that were added"))
    }

    fn refused(&self, reason: RefuseReason, class: ClassId) -> Refusal {
        Refusal {
            reason,
            retry_after: self.router.retry_after(class),
            execution: self.router.estimate(class),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;
    use policy::gate::{Late, Order};
    use policy::routing::{MARGIN_PERCENT, Places, Rule};
    use policy::slo::Deadline;
    use policy::{Span, class};
    use proxy::buffered::Buffered;
    use proxy::limits::Limits;
    use proxy::upstream::{self, DIAL_ATTEMPTS, Upstream};

    use super::*;
    use crate::view::RevisionName;

    fn function(clock: Clock) -> Arc<Function> {
        let name = FunctionName {
            namespace: "default".to_owned(),
            name: "f".to_owned(),
            version: None,
        };
        let settings = Settings {
            rule: Rule::LateBinding,
            order: Order::Deadline,
            late: Late::Serve,
            depth: 10,
            waiting_min: 100,
            waiting_max: 100,
            margin_percent: MARGIN_PERCENT,
            hand_over: Span(300_000),
            execution: Span::ZERO,
            classes: class::COUNT,
            slo: None,
        };
        Function::new(name, settings, clock, Counts::default())
    }

    fn instance() -> Arc<Instance> {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
        let settings = upstream::Settings {
            address,
            peer: "the pod",
            idle_max: 1,
            dial_attempts: DIAL_ATTEMPTS,
            dial_max: None,
            resends: false,
            tls: None,
        };
        let upstream = Upstream::new(settings, Buffered::new(Limits::default().buffered_bytes));
        let revision = RevisionName {
            namespace: "default".to_owned(),
            name: "f".to_owned(),
        };
        Instance::new(address, revision, upstream)
    }

    fn claim(clock: Clock, objective_ms: u64) -> Claim {
        let arrival = clock.now();
        let objective = Span::from_millis(objective_ms);
        Claim {
            arrival,
            deadline: Deadline {
                at: arrival.after(objective),
                objective: Some(objective),
            },
            class: ClassId(0),
            is_again: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_joins_while_another_is_bound_does_not_take_its_place() {
        let clock = Clock::start();
        let function = function(clock);
        let shape = Shape::monolith(Places::Fixed(1), 0);
        function.add(&instance(), shape);
        let acquire = |ms| Arc::clone(&function).acquire(claim(clock, ms));
        // Five samples of 10 ms set the estimate.
        for _ in 0..5 {
            let mut bound = acquire(1_000).await.unwrap();
            tokio::time::advance(std::time::Duration::from_millis(10)).await;
            bound.complete();
        }
        let _running = acquire(1_000).await.unwrap();
        let mut first = pin!(acquire(1_000));
        assert!(poll!(&mut first).is_pending());
        // The execution is about to end: the arrival of the second binds the first ahead, and reuses its slot in the
        // queue.
        tokio::time::advance(std::time::Duration::from_millis(10)).await;
        let mut second = pin!(acquire(1_000));
        assert!(poll!(&mut second).is_pending());
        let bound = poll!(&mut first);
        assert!(bound.is_ready());
        assert!(poll!(&mut second).is_pending());
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_granted_as_its_request_leaves_goes_to_the_next_request() {
        let clock = Clock::start();
        let function = function(clock);
        function.add(&instance(), Shape::monolith(Places::Fixed(1), 0));
        let acquire = || Arc::clone(&function).acquire(claim(clock, 1_000));
        let running = acquire().await.unwrap();
        let mut leaves = Box::pin(acquire());
        let mut stays = pin!(acquire());
        assert!(poll!(&mut leaves).is_pending());
        assert!(poll!(&mut stays).is_pending());
        drop(running);
        drop(leaves);
        assert!(poll!(&mut stays).is_ready());
        assert_eq!(function.status().waiting, 0);
    }
}
