//! Two models of which a slot holds one, and whose loads take long, under requests that alternate between them: how often they load.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the figures")]

use std::collections::{BTreeSet, VecDeque};

use policy::pool::leases::{Action, Class, Demand, Instance, InstanceId, Leases, Location, Rule};
use policy::pool::{FunctionId, Percentile, SlotId};
use policy::{Span, Time};

const MS: u64 = 1_000_000;
const SLOT: SlotId = SlotId(0);
const LOAD: u64 = 2_000 * MS;
const EXECUTION: u64 = 20 * MS;
/// Time of a message, and of a model to leave.
const MESSAGE: u64 = MS / 5;
const EVICTION: u64 = 5 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    Ends(usize),
    Idle(usize),
    Closed(usize),
    Sealed(usize),
    Evicted(usize),
    Restored(usize),
    Wake,
}

/// Queue before an instance.
#[derive(Debug, Default)]
struct Queue {
    /// Deadlines of what waits.
    waiting: VecDeque<u64>,
    running: Option<u64>,
    has_lease: bool,
    is_recalled: bool,
    head: Option<u64>,
}

struct World {
    leases: Leases,
    queues: [Queue; 2],
    events: BTreeSet<(u64, Event)>,
    now: u64,
    loads: u32,
    served: u32,
    in_time: u32,
    /// Longest time from a request's arrival to its end, in ns.
    longest: u64,
    objective: u64,
}

impl World {
    fn new(rule: Rule, objective: u64) -> Self {
        let mut leases = Leases::new(rule.settings(false));
        leases.set_slot(SLOT, 100);
        leases.set_usable(SLOT, true);
        for number in 0..2 {
            let id = InstanceId(number);
            let about = Instance {
                function: FunctionId(number),
                slot: SLOT,
                percentile: Percentile::default(),
                objective: Span(objective),
                class: Class::Tenant { namespace: 0 },
                may_leave: true,
            };
            leases.add(Time(0), id, &about).unwrap();
            leases.connect(Time(0), id, None);
            leases.holds(Time(0), id, 60);
            leases.located(Time(0), id, Location::Host);
        }
        Self {
            leases,
            queues: Default::default(),
            events: BTreeSet::new(),
            now: 0,
            loads: 0,
            served: 0,
            in_time: 0,
            longest: 0,
            objective,
        }
    }

    /// Serves one request each `interval`, which alternate between the models, for this time.
    fn run(mut self, interval: u64, span: u64) -> Self {
        let count = span / interval;
        for number in 0..count {
            let which = usize::from(number % 2 == 1);
            self.events
                .insert((number * interval, Event::Arrival(which)));
        }
        let mut actions = Vec::new();
        while let Some((at, event)) = self.events.pop_first() {
            self.now = at;
            self.happen(event);
            loop {
                self.leases.decide(Time(at), &mut actions);
                if actions.is_empty() {
                    break;
                }
                for action in std::mem::take(&mut actions) {
                    self.execute(action);
                }
            }
            if let Some(wake) = self.leases.next_wake()
                && u64::from(self.served) < count
            {
                self.events.insert((wake.0.max(at + 1), Event::Wake));
            }
        }
        assert_eq!(u64::from(self.served), count, "every request is served");
        self
    }

    fn after(&mut self, span: u64, event: Event) {
        self.events.insert((self.now + span, event));
    }

    fn happen(&mut self, event: Event) {
        let now = Time(self.now);
        let id = |own: usize| InstanceId(u32::try_from(own).unwrap());
        match event {
            Event::Arrival(own) => {
                self.queues[own]
                    .waiting
                    .push_back(self.now + self.objective);
                self.settle(own);
            }
            Event::Ends(own) => {
                let deadline = self.queues[own].running.take().unwrap();
                self.served += 1;
                self.in_time += u32::from(self.now <= deadline);
                let took = self.now + self.objective - deadline;
                self.longest = self.longest.max(took);
                if self.queues[own].is_recalled {
                    self.after(MESSAGE, Event::Idle(own));
                } else {
                    self.settle(own);
                    if self.queues[own].running.is_none() {
                        self.leases.idle(now, id(own), false);
                    }
                }
            }
            Event::Idle(own) => self.leases.idle(now, id(own), true),
            Event::Closed(own) => self.leases.closed(now, id(own)),
            Event::Sealed(own) => {
                let is_sealed = self.queues[own].running.is_none();
                self.leases.sealed(now, id(own), is_sealed);
            }
            Event::Evicted(own) => self.leases.evicted(now, id(own), true),
            Event::Restored(own) => self.leases.restored(now, id(own), true),
            Event::Wake => {}
        }
    }

    /// Lets a queue start what it may, and state its head.
    fn settle(&mut self, own: usize) {
        let (now, id) = (self.now, InstanceId(u32::try_from(own).unwrap()));
        let queue = &mut self.queues[own];
        if queue.has_lease && !queue.is_recalled {
            if queue.running.is_none()
                && let Some(deadline) = queue.waiting.pop_front()
            {
                queue.running = Some(deadline);
                self.leases.busy(Time(now), id);
                self.after(EXECUTION, Event::Ends(own));
            }
            return;
        }
        let head = queue.waiting.front().copied();
        if head != std::mem::replace(&mut queue.head, head) {
            let demand = Demand {
                deadline: Time(head.unwrap_or(0)),
                estimate: Span(EXECUTION),
                waiting: u32::try_from(queue.waiting.len()).unwrap(),
                may_move: false,
            };
            self.leases.head(Time(now), id, demand);
        }
    }

    fn execute(&mut self, action: Action) {
        let own = |id: InstanceId| id.0 as usize;
        match action {
            Action::Lease(id) => {
                let queue = &mut self.queues[own(id)];
                (queue.has_lease, queue.is_recalled, queue.head) = (true, false, None);
                self.settle(own(id));
                if self.queues[own(id)].running.is_none() {
                    self.leases.idle(Time(self.now), id, false);
                }
            }
            Action::Recall(id) => {
                let queue = &mut self.queues[own(id)];
                (queue.is_recalled, queue.head) = (true, None);
                if queue.running.is_none() {
                    self.after(MESSAGE, Event::Idle(own(id)));
                }
                self.settle(own(id));
            }
            Action::Close(id) => {
                let queue = &mut self.queues[own(id)];
                assert_eq!(queue.running, None);
                queue.has_lease = false;
                self.after(MESSAGE, Event::Closed(own(id)));
            }
            Action::Seal(id) => self.after(EVICTION, Event::Sealed(own(id))),
            Action::Evict { instance, .. } => self.after(EVICTION, Event::Evicted(own(instance))),
            Action::Restore(id) => {
                self.loads += 1;
                self.after(LOAD, Event::Restored(own(id)));
            }
            Action::Open(_) => {}
            Action::Sibling { .. } | Action::Claim { .. } => panic!("{action:?}"),
        }
    }
}

#[test]
fn models_with_loads_of_two_seconds_do_not_swap_at_each_of_the_requests_that_alternate() {
    const OBJECTIVE: u64 = 10_000 * MS;
    for rule in [Rule::Weir, Rule::Paper] {
        for (interval, requests_of_load) in [(250, 8), (50, 60)] {
            let world = World::new(rule, OBJECTIVE).run(interval * MS, 120_000 * MS);
            println!(
                "{}, a request each {interval} ms: {} loads for {} requests, the longest took {} ms",
                rule.name(),
                world.loads,
                world.served,
                world.longest / MS
            );
            assert!(world.loads * requests_of_load <= world.served);
            assert_eq!(world.in_time, world.served);
        }
    }
}
