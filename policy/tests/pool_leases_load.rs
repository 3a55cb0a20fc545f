//! Leases under the load of Torpor's models on four GPUs, in time: how often models load, and what share of the requests is in time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the figures")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};

use policy::pool::leases::{
    Action, Claim, Class, Demand, Instance, InstanceId, Leases, Location, Settings,
};
use policy::pool::slots::{self, Eviction};
use policy::pool::{FunctionId, Percentile, SlotId};
use policy::{Span, Time};
use testing::Random;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const GPUS: u32 = 4;
/// Memory of each GPU for models, and the rates of its link and of the path that two GPUs share, in bytes a second.
const MEMORY: u64 = 7 << 30;
const RATE: u64 = 9_460_000_000;
const PATH: u64 = 11_825_000_000;
/// Time of a message, of a move or seal apart from its bytes, and of a hash, in ns.
const MESSAGE: u64 = 200 * US;
const MOVE: u64 = 2 * MS;
/// Time of the release of memory.
const RELEASE: u64 = MS;
/// Size in kB, execution time in ms and objective in ms of Torpor's eight models (Table 4).
const MODELS: [(u64, u64, u64); 8] = [
    (56_600, 25, 80),
    (80_000, 28, 80),
    (108_600, 14, 80),
    (21_200, 12, 80),
    (102_200, 9, 80),
    (178_200, 14, 80),
    (240_800, 17, 80),
    (1_340_000, 43, 200),
];

/// Number of functions, seconds of requests, and seeds of a case.
const FUNCTIONS: usize = 128;
const SECONDS: u64 = 40;
const SEEDS: u64 = 6;

/// What is run.
#[derive(Clone, Copy, Debug)]
struct Case {
    instances: usize,
    /// Requests a second.
    per_second: u64,
    loads_ahead: bool,
    begins_late: bool,
    eviction: Eviction,
    path: PathUse,
}

/// How loads use a path to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathUse {
    /// In equal parts.
    Shared,
    /// One after the other, by the latest start of their requests, late ones last; a load gives way to one that comes first.
    ByLatestStart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    Ends(u32),
    Idle(u32),
    Closed(u32),
    Sealed(u32),
    Evicted(u32),
    /// What was left of a load at the change of its rate with this number has been copied, unless it has changed since.
    Restored(u64),
    Forwarded {
        from: u32,
        to: u32,
        deadline: u64,
    },
    Wake,
}

#[derive(Debug, Clone, Default)]
struct Queue {
    function: usize,
    slot: u32,
    /// Deadline of each waiting request, and whether it may be forwarded.
    waiting: VecDeque<(u64, bool)>,
    running: Option<u64>,
    has_lease: bool,
    is_recalled: bool,
    /// Since when a request runs whose model is still on its way.
    runs_since: u64,
    /// Whether its model is on its way.
    is_loading: bool,
    knows_head: Option<(u64, bool)>,
}

/// Load of a model from the host.
#[derive(Debug, Clone, Copy)]
struct Load {
    id: u32,
    slot: u32,
    /// Bytes that are left.
    left: u64,
    /// When these were left, which is after the preparation of the load at first.
    at: u64,
    /// Number of the last change of its rate.
    change: u64,
}

struct World {
    leases: Leases,
    path: PathUse,
    /// Loads that go on.
    loads_now: Vec<Load>,
    /// Number of changes of the loads' rates.
    changes: u64,
    now: u64,
    events: BTreeSet<(u64, u64, Event)>,
    number: u64,
    wakes: BTreeSet<u64>,
    queues: Vec<Queue>,
    arrivals: Vec<(u64, usize, usize)>,
    instances: usize,
    loads: u64,
    siblings: u64,
    in_time: u64,
    served: u64,
}

impl World {
    fn new(case: &Case, seed: u64) -> Self {
        let Case {
            instances,
            per_second,
            ..
        } = *case;
        let (functions, seconds) = (FUNCTIONS, SECONDS);
        let mut leases = Leases::new(Settings {
            streams: true,
            loads_ahead: case.loads_ahead,
            begins_late: case.begins_late,
            slots: slots::Settings {
                eviction: case.eviction,
                ..slots::Settings::default()
            },
            ..Settings::default()
        });
        for slot in 0..GPUS {
            leases.set_slot(SlotId(slot), MEMORY);
            leases.set_host_path(SlotId(slot), slot / 2);
            leases.set_usable(SlotId(slot), true);
        }
        let mut random = Random(seed);
        let count = per_second * seconds;
        let arrivals = (0..count).map(|number| {
            let at = random.below(seconds * 1_000_000 * US);
            let function = usize::try_from(number).unwrap() % functions;
            (at, function)
        });
        let mut arrivals: Vec<_> = arrivals.collect();
        arrivals.sort_unstable();
        let mut turns = vec![0; functions];
        let arrivals = arrivals.into_iter().map(|(at, function)| {
            turns[function] += 1;
            (at + 5_000 * MS, function, turns[function] % instances)
        });
        let mut world = Self {
            leases,
            path: case.path,
            loads_now: Vec::new(),
            changes: 0,
            now: 0,
            events: BTreeSet::new(),
            number: 0,
            wakes: BTreeSet::new(),
            queues: Vec::new(),
            arrivals: arrivals.collect(),
            instances,
            loads: 0,
            siblings: 0,
            in_time: 0,
            served: 0,
        };
        for function in 0..functions {
            for instance in 0..instances {
                world.add(function, instance);
            }
        }
        for at in 0..world.arrivals.len() {
            world.after(world.arrivals[at].0, Event::Arrival(at));
        }
        world
    }

    fn add(&mut self, function: usize, instance: usize) {
        let number = u32::try_from(self.queues.len()).unwrap();
        let id = InstanceId(number);
        let of = u32::try_from(function).unwrap();
        let first = (of + of / 8) % GPUS;
        let slot = (first + u32::try_from(instance).unwrap() * GPUS / 2) % GPUS;
        let (kilobytes, _, objective) = MODELS[function % 8];
        let about = Instance {
            function: FunctionId(of),
            slot: SlotId(slot),
            percentile: Percentile::default(),
            objective: Span::from_millis(objective),
            class: Class::Tenant { namespace: 0 },
            may_leave: true,
        };
        self.leases.add(Time(0), id, &about).unwrap();
        self.leases.connect(Time(0), id, None);
        self.leases.set_reachable(id, true);
        self.queues.push(Queue {
            function,
            slot,
            ..Queue::default()
        });
        // It begins with its model on the host.
        assert_eq!(self.leases.claim(Time(0), id, 1), Claim::Granted);
        self.leases.located(Time(0), id, Location::Host);
        let bytes = kilobytes * 1_000;
        self.leases.holds(Time(0), id, bytes);
    }

    fn after(&mut self, at: u64, event: Event) {
        self.number += 1;
        self.events.insert((at, self.number, event));
    }

    fn model(&self, id: u32) -> (u64, u64, u64) {
        MODELS[self.queues[id as usize].function % 8]
    }

    /// Returns the time of the hash of a model's memory.
    fn hash(&self, id: u32) -> u64 {
        self.model(id).0 * MS / 700_000
    }

    /// Returns the bytes a second of a load that goes on.
    fn rate(&self, load: &Load) -> u64 {
        let on_path = |slot: u32| {
            let own = self.loads_now.iter();
            own.filter(move |other| other.slot / 2 == slot / 2)
        };
        if self.path == PathUse::ByLatestStart {
            let first = on_path(load.slot).map(|other| self.place(other)).min();
            // The others wait.
            return if first == Some(self.place(load)) {
                RATE
            } else {
                1_000_000
            };
        }
        let beside = on_path(load.slot).filter(|other| other.slot == load.slot);
        let is_shared = on_path(load.slot).any(|other| other.slot != load.slot);
        let rate = if is_shared { RATE.min(PATH / 2) } else { RATE };
        rate / (beside.count() as u64).max(1)
    }

    /// Returns the place of a load among those on its path: whether its request is late, its latest start, and which it is.
    fn place(&self, load: &Load) -> (bool, u64, u32) {
        let own = &self.queues[load.id as usize];
        let siblings = self.queues.iter();
        let waiting = siblings.filter(|queue| queue.function == own.function);
        let waiting = waiting.filter_map(|queue| queue.waiting.front().map(|head| head.0));
        let deadline = own.running.or_else(|| waiting.min()).unwrap_or(u64::MAX);
        let latest = deadline.saturating_sub(self.model(load.id).1 * MS);
        let ends = self.now + load.left * 1_000 / (RATE / 1_000_000);
        (latest < ends, latest, load.id)
    }

    /// Counts what the loads on a slot's path have copied.
    fn settle_path(&mut self, slot: u32) {
        for at in 0..self.loads_now.len() {
            let rate = self.rate(&self.loads_now[at]);
            let load = &mut self.loads_now[at];
            if load.slot / 2 == slot / 2 {
                let copied = self.now.saturating_sub(load.at) * (rate / 1_000_000) / 1_000;
                load.left = load.left.saturating_sub(copied);
                load.at = load.at.max(self.now);
            }
        }
    }

    /// Expects the ends of the loads on a slot's path at the rates that they have now.
    fn expect_path(&mut self, slot: u32) {
        for at in 0..self.loads_now.len() {
            let rate = self.rate(&self.loads_now[at]);
            let load = &mut self.loads_now[at];
            if load.slot / 2 == slot / 2 {
                self.changes += 1;
                load.change = self.changes;
                let ends = load.at + load.left * 1_000 / (rate / 1_000_000) + 1;
                self.after(ends, Event::Restored(self.changes));
            }
        }
    }

    /// Ends the load whose rate has changed last with this number.
    fn copied(&mut self, change: u64) {
        let own = self.loads_now.iter().position(|load| load.change == change);
        let Some(at) = own else {
            return;
        };
        let Load { id, slot, .. } = self.loads_now[at];
        self.settle_path(slot);
        self.loads_now.remove(at);
        self.expect_path(slot);
        let execution = self.model(id).1 * MS;
        let now = self.now;
        let queue = &mut self.queues[id as usize];
        queue.is_loading = false;
        if queue.running.is_some() {
            let ends = (queue.runs_since + execution).max(now + execution / 8);
            self.after(ends, Event::Ends(id));
        }
        self.leases.restored(Time(now), InstanceId(id), true);
    }

    /// Lets a queue start what it may, and state its head.
    fn settle(&mut self, id: u32) {
        let now = self.now;
        let execution = self.model(id).1 * MS;
        let queue = &mut self.queues[id as usize];
        if queue.has_lease && !queue.is_recalled {
            if queue.running.is_none()
                && let Some((deadline, _)) = queue.waiting.pop_front()
            {
                queue.running = Some(deadline);
                queue.runs_since = now;
                let is_loading = queue.is_loading;
                self.leases.busy(Time(now), InstanceId(id));
                if !is_loading {
                    self.after(now + execution, Event::Ends(id));
                }
            }
            return;
        }
        let head = queue.waiting.front().copied();
        if head == queue.knows_head {
            return;
        }
        queue.knows_head = head;
        let (deadline, may_move) = head.unwrap_or((0, false));
        let demand = Demand {
            deadline: Time(deadline),
            estimate: Span(execution),
            waiting: u32::try_from(queue.waiting.len()).unwrap(),
            may_move,
        };
        self.leases.head(Time(now), InstanceId(id), demand);
    }

    fn happen(&mut self, event: Event) {
        let now = Time(self.now);
        match event {
            Event::Arrival(at) => {
                let (_, function, instance) = self.arrivals[at];
                let id = u32::try_from(function * self.instances + instance).unwrap();
                let deadline = self.now + self.model(id).2 * MS;
                let queue = &mut self.queues[id as usize];
                queue.waiting.push_back((deadline, true));
                self.settle(id);
            }
            Event::Ends(id) => {
                let queue = &mut self.queues[id as usize];
                let deadline = queue.running.take().unwrap();
                self.served += 1;
                self.in_time += u64::from(self.now <= deadline);
                if queue.is_recalled {
                    self.after(self.now + MESSAGE, Event::Idle(id));
                } else {
                    self.settle(id);
                    if self.queues[id as usize].running.is_none() {
                        self.leases.idle(now, InstanceId(id), false);
                    }
                }
            }
            Event::Idle(id) => self.leases.idle(now, InstanceId(id), true),
            Event::Closed(id) => self.leases.closed(now, InstanceId(id)),
            Event::Sealed(id) => {
                let is_sealed = self.queues[id as usize].running.is_none();
                self.leases.sealed(now, InstanceId(id), is_sealed);
            }
            Event::Evicted(id) => self.leases.evicted(now, InstanceId(id), true),
            Event::Restored(change) => self.copied(change),
            Event::Forwarded { to, deadline, .. } => {
                self.queues[to as usize]
                    .waiting
                    .push_back((deadline, false));
                self.settle(to);
            }
            Event::Wake => {}
        }
    }

    fn execute(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Open(_) => {}
            Action::Close(InstanceId(id)) => {
                let queue = &mut self.queues[id as usize];
                assert_eq!(queue.running, None);
                (queue.has_lease, queue.is_recalled) = (false, false);
                self.after(now + MESSAGE, Event::Closed(id));
            }
            Action::Lease(InstanceId(id)) => {
                let queue = &mut self.queues[id as usize];
                (queue.has_lease, queue.knows_head) = (true, None);
                self.settle(id);
                if self.queues[id as usize].running.is_none() {
                    self.leases.idle(Time(now), InstanceId(id), false);
                }
            }
            Action::Recall(InstanceId(id)) => {
                let queue = &mut self.queues[id as usize];
                (queue.is_recalled, queue.knows_head) = (true, None);
                if queue.running.is_none() {
                    self.after(now + MESSAGE, Event::Idle(id));
                }
                self.settle(id);
            }
            Action::Sibling {
                from: InstanceId(from),
                to: InstanceId(to),
            } => {
                self.siblings += 1;
                let sender = &mut self.queues[from as usize];
                let (deadline, _) = sender.waiting.pop_front().unwrap();
                sender.knows_head = None;
                self.settle(from);
                let event = Event::Forwarded { from, to, deadline };
                self.after(now + 2 * MESSAGE, event);
            }
            Action::Seal(InstanceId(id)) => {
                self.after(now + MOVE + self.hash(id), Event::Sealed(id));
            }
            Action::Evict {
                instance,
                is_sealed,
                ..
            } => {
                let compared = if is_sealed {
                    RELEASE
                } else {
                    MOVE + self.hash(instance.0)
                };
                self.after(now + compared, Event::Evicted(instance.0));
            }
            Action::Restore(InstanceId(id)) => {
                self.loads += 1;
                let left = self.model(id).0 * 1_000;
                let queue = &mut self.queues[id as usize];
                queue.is_loading = true;
                let slot = queue.slot;
                let at = now + MOVE;
                self.settle_path(slot);
                let change = 0;
                self.loads_now.push(Load {
                    id,
                    slot,
                    left,
                    at,
                    change,
                });
                self.expect_path(slot);
            }
            Action::Claim { .. } => panic!("nobody claims"),
        }
    }

    fn run(&mut self) {
        let mut actions = Vec::new();
        while let Some((at, _, event)) = self.events.pop_first() {
            self.now = at;
            self.happen(event);
            loop {
                self.leases.decide(Time(self.now), &mut actions);
                if actions.is_empty() {
                    break;
                }
                for action in std::mem::take(&mut actions) {
                    self.execute(action);
                }
            }
            if let Some(wake) = self.leases.next_wake()
                && self.served < self.arrivals.len() as u64
            {
                let at = wake.0.max(self.now + 1);
                // One is enough for a time.
                if self.wakes.insert(at) {
                    self.after(at, Event::Wake);
                }
            }
        }
    }
}

type Figures = Arc<OnceLock<(f64, f64)>>;

/// Figures of the cases that tests share, by their text.
static RUNS: Mutex<BTreeMap<String, Figures>> = Mutex::new(BTreeMap::new());

/// Returns the share of requests in time and the number of loads for each request, over some seeds.
fn run(case: &Case) -> (f64, f64) {
    let figures = Arc::clone(RUNS.lock().unwrap().entry(format!("{case:?}")).or_default());
    *figures.get_or_init(|| simulate(case))
}

fn simulate(case: &Case) -> (f64, f64) {
    let (mut in_time, mut loads, mut served, mut siblings) = (0, 0, 0, 0);
    for seed in 1..=SEEDS {
        let mut world = World::new(case, seed);
        world.run();
        assert_eq!(world.served, world.arrivals.len() as u64);
        assert_eq!(world.siblings > 0, case.instances > 1);
        in_time += world.in_time;
        loads += world.loads;
        served += world.served;
        siblings += world.siblings;
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    let share = |part: u64| part as f64 / served as f64;
    let (in_time, loads) = (share(in_time), share(loads));
    println!(
        "{case:?}: {:.2} % in time, {:.1} % loads, {siblings} forwarded",
        100.0 * in_time,
        100.0 * loads,
    );
    (in_time, loads)
}

/// Returns a case of two instances with this number of requests a second, with the paper's classes of evictions.
fn by_class(per_second: u64) -> Case {
    Case {
        instances: 2,
        per_second,
        loads_ahead: true,
        begins_late: true,
        eviction: Eviction::Classes,
        path: PathUse::Shared,
    }
}

#[test]
fn two_instances_of_each_function_serve_more_requests_in_time_than_one() {
    for (per_second, at_least) in [(40, 0.99), (80, 0.98)] {
        let two = Case {
            eviction: Eviction::Objectives,
            ..by_class(per_second)
        };
        let (of_one, _) = run(&Case {
            instances: 1,
            ..two
        });
        let (in_time, _) = run(&two);
        assert!(
            in_time >= at_least && in_time > of_one,
            "{in_time} {of_one}"
        );
        // Without waiting for slots that have the model it is more.
        let (_, loads) = run(&by_class(per_second));
        assert!(loads < 0.43, "{loads}");
    }
}

#[test]
fn more_requests_are_in_time_with_loads_ahead_the_more_so_the_higher_the_load() {
    let gain = |per_second| {
        let ahead = by_class(per_second);
        let without = Case {
            loads_ahead: false,
            ..ahead
        };
        run(&ahead).0 - run(&without).0
    };
    let gains = [80, 120].map(gain);
    assert!(gains[0] > 0.005 && gains[1] > 0.02, "{gains:?}");
}

#[test]
fn more_requests_are_in_time_if_models_that_could_hardly_return_in_time_leave_last() {
    for (per_second, more) in [(80, 0.002), (120, 0.005)] {
        let by_class = by_class(per_second);
        let last = Case {
            eviction: Eviction::Objectives,
            ..by_class
        };
        let gain = run(&last).0 - run(&by_class).0;
        assert!(gain > more, "{gain}");
    }
}

#[test]
fn more_requests_are_in_time_if_others_compute_while_models_return_for_long() {
    for (per_second, more) in [(40, 0.0005), (80, 0.001), (120, 0.002)] {
        let late = Case {
            eviction: Eviction::Objectives,
            ..by_class(per_second)
        };
        let at_once = Case {
            begins_late: false,
            ..late
        };
        let gain = run(&late).0 - run(&at_once).0;
        assert!(gain > more, "{per_second}: {gain}");
    }
}

#[test]
fn loads_that_share_a_path_serve_more_requests_in_time_than_one_after_the_other() {
    let shared = Case {
        eviction: Eviction::Objectives,
        ..by_class(120)
    };
    let in_turn = Case {
        path: PathUse::ByLatestStart,
        ..shared
    };
    let gain = run(&shared).0 - run(&in_turn).0;
    assert!(gain > 0.002, "{gain}");
}
