//! The lease of the slot on which the pod's GPU processes compute (contracts §7): what the agent learns, and when requests may start.
//!
//! Without a lease the gate of [`crate::admission`] is shut: requests wait, and the agent learns which would start first. While it holds the lease
//! a request waits for no message. The agent learns, with some delay, when nothing runs and when something runs again.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use policy::gate::Gate;
use policy::queue::Ticket;
use policy::{Span, Time};
use protocol::page::Residency;
use protocol::queue::{FromQueue, LoadSource, ToQueue, TraceContext};
use proxy::traces::TraceIds;

use crate::drain::Drain;

/// What the agent learns of a head beside its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadOf {
    /// Deadline, in nanoseconds of `CLOCK_MONOTONIC`.
    pub deadline: u64,
    /// Execution time as estimated from its class.
    pub estimate: Span,
    /// Number of requests in the window of M2.13, and of those in time.
    pub outcomes: (u64, u64),
    /// Whether it may be forwarded to another instance.
    pub may_move: bool,
    /// Its trace if it is sampled, zero otherwise.
    pub trace: TraceContext,
}

/// Returns the context of a request's trace as the agent learns it: zero if the trace is not sampled.
pub(crate) fn trace_context(ids: Option<TraceIds>) -> TraceContext {
    let sampled = ids.and_then(TraceIds::sampled);
    sampled.map_or_else(TraceContext::default, |(trace, span, flags)| TraceContext {
        trace,
        span,
        flags: u32::from(flags),
    })
}

/// Another instance, to which the agent wants the head forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sibling {
    /// Number of the head.
    pub seq: u64,
    /// UID of its pod.
    pub uid: String,
    /// Address of its queue-proxy.
    pub address: SocketAddr,
    /// Name of its revision.
    pub revision: String,
}

/// What a request has spent until it could start, besides the wait for its turn in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Begin of the wait for the lease.
    pub since: Time,
    /// Time from there until the lease came, or until now without one.
    pub lease: Span,
    /// Load of the model in that time: its begin, duration and source.
    pub load: Option<(Time, Span, LoadSource)>,
}

/// Load of the model for a lease, as the agent states it.
#[derive(Debug, Clone, Copy)]
struct Load {
    begun: Time,
    ended: Time,
    source: LoadSource,
}

/// State of the lease.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// Epoch of the lease; 0: none.
    epoch: u64,
    is_recalled: bool,
    /// Since when requests have waited for the lease, or had to before it came.
    shut_since: Time,
    /// When the lease came.
    opened: Time,
    /// Load of the model for this lease, or for the one that comes next.
    loaded: Option<Load>,
    /// Whether the agent knows that nothing runs.
    is_idle_known: bool,
    /// Whether the agent has learnt of work under the lease, which it takes for a head if the lease ends meanwhile.
    is_work_known: bool,
    /// Number of the last head.
    seq: u64,
    /// Head that the agent knows, and whether it may be forwarded.
    known_head: Option<(Ticket, bool)>,
    residency: Option<Residency>,
    load: Span,
    /// Last time of a load as the agent expected it, before it began; zero: not known.
    expected_load: Span,
    /// Number of requests whose connections were upgraded, which hold no lease.
    upgraded: u32,
    /// UID of the pod, as the agent states it; empty: not known.
    uid: String,
    /// Address at which siblings reach this queue; `None`: not at all.
    address: Option<SocketAddr>,
    /// During a drain nothing is forwarded.
    drain: Option<Arc<Drain>>,
    /// Number of requests that are forwarded to siblings.
    forwarded: u32,
    /// Heads that no sibling serves although the agent has named one: number, and whether the sibling refused.
    returned: VecDeque<(u64, bool)>,
}

impl Lease {
    /// Creates the state without a lease. `address`: where siblings reach this queue, if requests may be forwarded.
    pub(crate) fn new(now: Time, address: Option<SocketAddr>, drain: Arc<Drain>) -> Self {
        Self {
            shut_since: now,
            address,
            drain: Some(drain),
            ..Self::default()
        }
    }

    /// Returns whether requests may start.
    pub(crate) const fn may_start(&self) -> bool {
        self.epoch != 0 && !self.is_recalled
    }

    /// Returns what a request has spent that arrived at `arrival`; `None` if it came while the lease was held.
    pub(crate) fn spent(&self, arrival: Time, now: Time) -> Option<Spent> {
        let until = if self.may_start() { self.opened } else { now };
        let since = arrival.max(self.shut_since);
        if since >= until {
            return None;
        }
        let loaded = self.loaded.filter(|_| self.may_start());
        let load = loaded.and_then(|load| {
            let begun = load.begun.max(since);
            let duration = load.ended.min(until).since(begun);
            (duration > Span::ZERO).then_some((begun, duration, load.source))
        });
        Some(Spent {
            since,
            lease: until.since(since),
            load,
        })
    }

    /// Returns the time that a request needs besides its execution.
    pub(crate) const fn load(&self) -> Span {
        self.load
    }

    /// Returns the expected time for which the load of its model goes on beside a request which starts now, zero if that is not known; `None` if its model is
    /// there.
    pub(crate) fn load_beside(&self, now: Time) -> Option<Span> {
        let begun = self.loaded.map_or(now, |load| load.begun);
        let left = self.expected_load.0.saturating_sub(now.since(begun).0);
        self.is_model_away().then_some(Span(left))
    }

    /// Returns whether the model is in host memory.
    pub(crate) const fn is_model_away(&self) -> bool {
        matches!(self.residency, Some(Residency::Host))
    }

    /// Returns the first message on a new connection. The agent at its other end knows nothing.
    pub(crate) fn greet(&mut self, again: bool, gate: &Gate) -> FromQueue {
        (self.known_head, self.is_idle_known) = (None, false);
        self.is_work_known = false;
        self.returned.clear();
        FromQueue::Hello {
            again,
            epoch: self.epoch,
            running: self.running(gate),
            waiting: u32::try_from(gate.waiting()).unwrap_or(u32::MAX),
            address: self
                .address
                .map_or_else(String::new, |address| address.ip().to_string()),
            port: self.address.map_or(0, |address| address.port().into()),
        }
    }

    /// Returns the UID of the pod, if it is known.
    pub(crate) fn uid(&self) -> Option<&str> {
        Some(&*self.uid).filter(|uid| !uid.is_empty())
    }

    /// Returns whether one more request may be forwarded, of `concurrency` at a time.
    pub(crate) fn may_forward(&self, concurrency: u32) -> bool {
        let is_draining = self.drain.as_ref().is_some_and(|drain| drain.is_draining());
        self.address.is_some() && self.forwarded < concurrency && !is_draining
    }

    /// Returns the head which a sibling is to serve, if it is still the one that the agent knows. Otherwise the agent is to learn that it is not
    /// forwarded.
    pub(crate) fn head_for(&mut self, sibling: &Sibling, concurrency: u32) -> Option<Ticket> {
        let may = !self.may_start() && self.may_forward(concurrency);
        let known = self.known_head.filter(|_| may);
        match known {
            Some((ticket, true)) if sibling.seq == self.seq => Some(ticket),
            _ => {
                self.note_gone(sibling.seq);
                None
            }
        }
    }

    /// Notes that a head is gone for which the agent has named a sibling.
    pub(crate) fn note_gone(&mut self, seq: u64) {
        self.returned.push_back((seq, false));
    }

    /// Counts a request as forwarded, until [`Lease::end_forwarded`].
    pub(crate) const fn begin_forwarded(&mut self) {
        self.forwarded += 1;
        self.known_head = None;
    }

    /// Records the end of a forwarded request. `returned`: the number of the head, if the sibling has not served it, and whether it has refused.
    pub(crate) fn end_forwarded(&mut self, returned: Option<(u64, bool)>) {
        self.forwarded = self.forwarded.saturating_sub(1);
        self.returned.extend(returned);
    }

    /// Handles a message of the agent, apart from [`ToQueue::Sibling`]. `time_of` returns a point in time of `CLOCK_MONOTONIC`.
    pub(crate) fn receive(&mut self, now: Time, message: &ToQueue, time_of: impl Fn(u64) -> Time) {
        match message {
            ToQueue::Welcome { uid } => self.uid.clone_from(uid),
            ToQueue::Spent {
                begun,
                load,
                source,
                ..
            } => {
                self.loaded = Some(Load {
                    begun: time_of(*begun),
                    ended: time_of(begun.saturating_add(*load)),
                    source: *source,
                });
            }
            ToQueue::Lease { epoch } => {
                if !self.may_start() {
                    self.opened = now;
                }
                self.epoch = *epoch;
                (self.is_recalled, self.is_idle_known) = (false, false);
                // A head that was stated before the lease may arrive after its end.
                self.is_work_known = self.known_head.take().is_some();
                // What is not there yet is on its way.
                self.load = Span::ZERO;
            }
            ToQueue::Recall { epoch } if *epoch == self.epoch && self.epoch != 0 => {
                if !std::mem::replace(&mut self.is_recalled, true) {
                    (self.shut_since, self.loaded) = (now, None);
                }
                self.known_head = None;
            }
            ToQueue::State { residency, load } => {
                // A load from before the model left is not that of the next one.
                if *residency == Residency::Host && !self.is_model_away() {
                    self.loaded = None;
                }
                self.residency = Some(*residency);
                self.load = Span(*load);
                // Once the load has been decided on, the agent states none.
                if *load > 0 {
                    self.expected_load = self.load;
                }
            }
            ToQueue::Recall { .. } | ToQueue::Sibling { .. } | ToQueue::Refused { .. } => {}
        }
    }

    /// Counts a request whose connection was upgraded, until [`Lease::remove_upgraded`].
    pub(crate) const fn add_upgraded(&mut self) {
        self.upgraded += 1;
    }

    /// Records the end of a request whose connection was upgraded.
    pub(crate) const fn remove_upgraded(&mut self) {
        self.upgraded = self.upgraded.saturating_sub(1);
    }

    /// Returns the number of requests that run under the lease.
    const fn running(&self, gate: &Gate) -> u32 {
        gate.running().saturating_sub(self.upgraded)
    }

    fn is_idle(&self, gate: &Gate) -> bool {
        self.running(gate) == 0 && gate.waiting() == 0
    }

    /// Returns whether [`Lease::next_message`] may return a message.
    pub(crate) fn is_message_due(&self, gate: &Gate) -> bool {
        if self.may_start() && self.returned.is_empty() {
            return self.is_idle(gate) != self.is_idle_known;
        }
        true
    }

    /// Returns the next message that the agent is to get, if any. `head_of` returns what the agent learns of a head, and `running` is what it learns while
    /// none waits.
    pub(crate) fn next_message(
        &mut self,
        gate: &mut Gate,
        now: Time,
        running: HeadOf,
        head_of: impl Fn(Ticket) -> HeadOf,
    ) -> Option<FromQueue> {
        if let Some((seq, is_refused)) = self.returned.pop_front() {
            return Some(FromQueue::Returned { seq, is_refused });
        }
        let head = gate.head(now).map(|(ticket, _)| ticket);
        if self.may_start() {
            let is_idle = self.is_idle(gate);
            if is_idle == self.is_idle_known {
                return None;
            }
            (self.is_idle_known, self.is_work_known) = (is_idle, !is_idle);
            return Some(if is_idle {
                FromQueue::Idle {
                    epoch: self.epoch,
                    ends: false,
                }
            } else {
                self.head(gate, head.map_or(running, head_of))
            });
        }
        let of = head.map(head_of);
        let head = head.zip(of.map(|of| of.may_move));
        let is_stale = std::mem::take(&mut self.is_work_known) && head.is_none();
        if head != self.known_head || is_stale {
            self.known_head = head;
            return Some(self.head(gate, of.unwrap_or(running)));
        }
        if self.is_recalled && self.running(gate) == 0 {
            self.is_recalled = false;
            let epoch = std::mem::take(&mut self.epoch);
            return Some(FromQueue::Idle { epoch, ends: true });
        }
        None
    }

    /// Returns a message about the head, and about what runs, which stands for one if none waits.
    fn head(&mut self, gate: &Gate, of: HeadOf) -> FromQueue {
        self.seq += 1;
        let running = if self.may_start() {
            self.running(gate)
        } else {
            0
        };
        let waiting = u32::try_from(gate.waiting()).unwrap_or(u32::MAX);
        FromQueue::Head {
            seq: self.seq,
            deadline: of.deadline,
            estimate: of.estimate.0,
            requests: of.outcomes.0,
            in_time: of.outcomes.1,
            waiting: waiting.saturating_add(running),
            trace: of.trace,
            may_move: of.may_move,
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::RequestId;
    use policy::gate::{Action, Admission, Arrival, Late, Order, Settings};

    use super::*;

    struct Queue {
        lease: Lease,
        gate: Gate,
        actions: Vec<Action>,
        next: u64,
    }

    impl Queue {
        fn new() -> Self {
            let mut gate = Gate::new(Settings {
                concurrency: 1,
                depth: 10,
                order: Order::Deadline,
                late: Late::Serve,
            });
            let mut actions = Vec::new();
            gate.set_shut(Time(0), true, &mut actions);
            Self {
                lease: Lease::default(),
                gate,
                actions,
                next: 0,
            }
        }

        fn arrive(&mut self, key: u64) -> Option<Ticket> {
            self.next += 1;
            let arrival = Arrival {
                id: RequestId(self.next),
                at: Time(1),
                key: Time(key),
                objective: Span(100),
                kept: false,
            };
            match self.gate.arrive(Time(1), arrival, &mut self.actions) {
                Admission::Wait(ticket) => Some(ticket),
                _ => None,
            }
        }

        fn receive(&mut self, message: &ToQueue) {
            self.lease.receive(Time(1), message, Time);
            let is_shut = !self.lease.may_start();
            self.gate.set_shut(Time(1), is_shut, &mut self.actions);
        }

        fn messages(&mut self) -> Vec<FromQueue> {
            let mut all = Vec::new();
            let of = |deadline, estimate, may_move| HeadOf {
                deadline,
                estimate: Span(estimate),
                outcomes: (8, 7),
                may_move,
                trace: TraceContext::default(),
            };
            let running = of(u64::MAX, 0, false);
            let (lease, gate) = (&mut self.lease, &mut self.gate);
            while let Some(message) = lease.next_message(gate, Time(1), running, |_| of(5, 6, true))
            {
                all.push(message);
                assert!(all.len() < 10, "{all:?}");
            }
            assert!(!lease.may_start() || !lease.is_message_due(gate));
            all
        }
    }

    const IDLE: FromQueue = FromQueue::Idle {
        epoch: 3,
        ends: false,
    };
    const ENDS: FromQueue = FromQueue::Idle {
        epoch: 3,
        ends: true,
    };

    fn waiting(messages: &[FromQueue]) -> Vec<u32> {
        let of = |message: &FromQueue| match message {
            FromQueue::Head { waiting, .. } => Some(*waiting),
            _ => None,
        };
        messages.iter().filter_map(of).collect()
    }

    #[test]
    fn without_a_lease_nothing_starts_and_the_agent_learns_the_head_once() {
        let mut queue = Queue::new();
        assert_eq!(queue.messages(), []);
        let first = queue.arrive(50).unwrap();
        assert!(matches!(
            queue.messages()[..],
            [FromQueue::Head {
                seq: 1,
                deadline: 5,
                estimate: 6,
                requests: 8,
                in_time: 7,
                waiting: 1,
                ..
            }]
        ));
        queue.arrive(60);
        assert_eq!(queue.messages(), [], "the head is the same");
        queue.arrive(40);
        assert_eq!(waiting(&queue.messages()), [3], "a more urgent one");
        assert!(queue.gate.cancel(first));
        assert_eq!(queue.messages(), []);
        assert_eq!(queue.gate.running(), 0);
    }

    #[test]
    fn a_request_has_waited_since_the_recall_before_the_lease_or_since_its_arrival() {
        let mut lease = Lease::default();
        let spent = |since, lease, load: Option<(u64, u64)>| {
            Some(Spent {
                since: Time(since),
                lease: Span(lease),
                load: load.map(|(begun, load)| (Time(begun), Span(load), LoadSource::Host)),
            })
        };
        lease.receive(Time(100), &ToQueue::Lease { epoch: 1 }, Time);
        assert_eq!(lease.spent(Time(40), Time::ZERO), spent(40, 60, None));
        assert_eq!(lease.spent(Time(100), Time::ZERO), None, "it was held");
        for _twice in 0..2 {
            lease.receive(Time(200), &ToQueue::Recall { epoch: 1 }, Time);
        }
        assert_eq!(lease.spent(Time(150), Time(230)), spent(200, 30, None));
        let load = ToQueue::Spent {
            seq: 1,
            begun: 190,
            load: 40,
            source: LoadSource::Host,
        };
        lease.receive(Time(240), &load, Time);
        lease.receive(Time(250), &ToQueue::Lease { epoch: 2 }, Time);
        for (arrival, expected) in [
            (150, spent(200, 50, Some((200, 30)))),
            (220, spent(220, 30, Some((220, 10)))),
            (235, spent(235, 15, None)),
            (250, None),
        ] {
            assert_eq!(lease.spent(Time(arrival), Time::ZERO), expected);
        }
        // The next agent's lease follows without a recall, and nothing has waited.
        lease.receive(Time(300), &ToQueue::Lease { epoch: 3 }, Time);
        assert_eq!(lease.spent(Time(290), Time::ZERO), None);
        lease.receive(Time(310), &ToQueue::Recall { epoch: 3 }, Time);
        lease.receive(Time(320), &ToQueue::Lease { epoch: 4 }, Time);
        assert_eq!(
            lease.spent(Time(150), Time::ZERO),
            spent(310, 10, None),
            "the load was for the lease before"
        );
    }

    #[test]
    fn the_load_beside_a_request_is_what_is_left_of_what_the_agent_expected_before_it_began() {
        let mut lease = Lease::default();
        let state = |residency, load| ToQueue::State { residency, load };
        assert_eq!(lease.load_beside(Time(1)), None);
        lease.receive(Time(1), &state(Residency::Host, 150), Time);
        // The turn has come, and other models leave for it first.
        lease.receive(Time(2), &state(Residency::Host, 0), Time);
        lease.receive(Time(3), &ToQueue::Lease { epoch: 1 }, Time);
        assert_eq!(
            (lease.load(), lease.load_beside(Time(3))),
            (Span::ZERO, Some(Span(150)))
        );
        lease.receive(Time(4), &state(Residency::Resident, 0), Time);
        assert_eq!(lease.load_beside(Time(4)), None);
        // Another time it has begun long before the lease.
        lease.receive(Time(5), &ToQueue::Recall { epoch: 1 }, Time);
        lease.receive(Time(6), &state(Residency::Host, 150), Time);
        let load = ToQueue::Spent {
            seq: 1,
            begun: 10,
            load: 100,
            source: LoadSource::Host,
        };
        lease.receive(Time(110), &load, Time);
        lease.receive(Time(110), &ToQueue::Lease { epoch: 2 }, Time);
        for (now, left) in [(110, 50), (150, 10), (170, 0)] {
            assert_eq!(lease.load_beside(Time(now)), Some(Span(left)));
        }
    }

    #[test]
    fn a_withdrawn_head_is_stated_once() {
        let mut queue = Queue::new();
        let only = queue.arrive(50).unwrap();
        assert_eq!(waiting(&queue.messages()), [1]);
        assert!(queue.gate.cancel(only));
        assert_eq!(waiting(&queue.messages()), [0]);
        assert_eq!(queue.messages(), []);
    }

    #[test]
    fn under_a_lease_requests_start_at_once_and_the_agent_learns_of_idleness() {
        let mut queue = Queue::new();
        queue.receive(&ToQueue::Lease { epoch: 3 });
        assert_eq!(queue.messages(), [IDLE]);
        assert!(queue.arrive(50).is_none(), "it starts");
        let busy = queue.messages();
        assert_eq!(waiting(&busy), [1], "it has work again");
        // The agent learns how many of its requests are in time although none waits.
        let FromQueue::Head {
            estimate,
            requests,
            in_time,
            may_move,
            ..
        } = busy[0]
        else {
            panic!("{busy:?}");
        };
        assert_eq!((estimate, requests, in_time, may_move), (0, 8, 7, false));
        queue.arrive(60);
        assert_eq!(queue.messages(), []);
        queue.gate.depart(Time(2), &mut queue.actions);
        assert_eq!(queue.messages(), [], "the next one runs");
        queue.gate.depart(Time(3), &mut queue.actions);
        assert_eq!(queue.messages(), [IDLE]);
    }

    #[test]
    fn a_recall_ends_with_what_runs_and_states_what_waits() {
        let mut queue = Queue::new();
        queue.receive(&ToQueue::Lease { epoch: 3 });
        assert!(queue.arrive(50).is_none());
        queue.arrive(60);
        queue.messages();
        queue.receive(&ToQueue::Recall { epoch: 2 });
        assert!(queue.lease.may_start(), "of an earlier lease");
        queue.receive(&ToQueue::Recall { epoch: 3 });
        assert_eq!(waiting(&queue.messages()), [1]);
        queue.gate.depart(Time(2), &mut queue.actions);
        assert_eq!(queue.messages(), [ENDS]);
        assert_eq!((queue.gate.running(), queue.gate.waiting()), (0, 1));
        queue.receive(&ToQueue::Lease { epoch: 4 });
        assert_eq!(queue.gate.running(), 1);
    }

    #[test]
    fn work_that_was_stated_as_the_lease_was_recalled_is_withdrawn() {
        let mut queue = Queue::new();
        queue.receive(&ToQueue::Lease { epoch: 3 });
        assert_eq!(queue.messages(), [IDLE]);
        assert!(queue.arrive(50).is_none());
        assert_eq!(waiting(&queue.messages()), [1], "it crosses the recall");
        queue.receive(&ToQueue::Recall { epoch: 3 });
        assert_eq!(waiting(&queue.messages()), [0]);
        queue.gate.depart(Time(2), &mut queue.actions);
        assert_eq!(queue.messages(), [ENDS]);
    }

    #[test]
    fn a_holder_states_its_lease_to_the_next_agent() {
        let mut queue = Queue::new();
        queue.receive(&ToQueue::Lease { epoch: 3 });
        assert!(queue.arrive(50).is_none());
        queue.messages();
        let FromQueue::Hello { epoch, .. } = queue.lease.greet(true, &queue.gate) else {
            panic!("the first message is a greeting");
        };
        assert_eq!(epoch, 3);
        // The next agent has given the slot to another.
        queue.receive(&ToQueue::Recall { epoch: 3 });
        queue.gate.depart(Time(2), &mut queue.actions);
        assert_eq!(queue.messages(), [ENDS]);
        let FromQueue::Hello { epoch, .. } = queue.lease.greet(true, &queue.gate) else {
            panic!("the first message is a greeting");
        };
        assert_eq!(epoch, 0);
    }

    #[test]
    fn an_upgraded_connection_holds_no_lease() {
        let mut queue = Queue::new();
        queue.receive(&ToQueue::Lease { epoch: 3 });
        assert!(queue.arrive(50).is_none());
        queue.messages();
        queue.lease.add_upgraded();
        assert_eq!(queue.messages().len(), 1, "nothing runs under the lease");
        queue.receive(&ToQueue::Recall { epoch: 3 });
        assert_eq!(queue.messages(), [ENDS]);
        queue.gate.depart(Time(2), &mut queue.actions);
        queue.lease.remove_upgraded();
        assert_eq!(queue.messages(), []);
    }
}
