//! Models on a shared slot whose loads take longer than their requests: each is served again and again, and a model that loads beside them gets there.

use std::collections::VecDeque;

use policy::pool::leases::{Action, Claim, Class, Demand, Instance, InstanceId, Location, QUIET};
use policy::pool::shared::SharedLeases;
use policy::pool::{FunctionId, Percentile, SlotId, queue};
use policy::{Span, Time};

const MS: u64 = 1_000_000;
/// Time of a request, in milliseconds.
const TAKES: u64 = 5;

/// A pod with one request at a time, with times in milliseconds. A byte of its model takes a millisecond to move.
#[derive(Default, Clone)]
struct Pod {
    bytes: u64,
    has_lease: bool,
    is_recalled: bool,
    is_idle_known: bool,
    head: Option<u64>,
    /// Arrival of what runs, and when it ends.
    runs: Option<(u64, u64)>,
    /// Arrivals of the requests that wait.
    waiting: VecDeque<u64>,
    /// Whether its model leaves, and when the move ends.
    moves: Option<(bool, u64)>,
    is_away: bool,
    served: u64,
    in_time: u64,
    longest: u64,
}

impl Pod {
    fn is_there(&self) -> bool {
        !self.is_away && self.moves.is_none()
    }
}

struct World {
    leases: SharedLeases,
    objective: u64,
    pods: Vec<Pod>,
    granted: Vec<u32>,
}

impl World {
    fn new(slot: u64, objective: u64, pods: u32) -> Self {
        let mut leases = SharedLeases::new(queue::Settings::default(), false);
        leases.set_slot(SlotId(0), slot);
        leases.set_usable(SlotId(0), true);
        for id in 0..pods {
            let about = Instance {
                function: FunctionId(id),
                slot: SlotId(0),
                percentile: Percentile::default(),
                objective: Span::from_millis(objective),
                class: Class::Tenant { namespace: 0 },
                may_leave: true,
            };
            assert!(leases.add(Time(0), InstanceId(id), &about).is_ok());
            leases.connect(Time(0), InstanceId(id), false);
        }
        Self {
            leases,
            objective,
            pods: (0..pods).map(|_| Pod::default()).collect(),
            granted: Vec::new(),
        }
    }

    fn set_away(&mut self, id: u32, bytes: u64) {
        self.leases.holds(Time(0), InstanceId(id), bytes);
        self.leases.located(Time(0), InstanceId(id), Location::Host);
        (self.pods[id as usize].bytes, self.pods[id as usize].is_away) = (bytes, true);
    }

    fn step(&mut self, t: u64) {
        let now = Time(t * MS);
        for (number, pod) in (0..).zip(&mut self.pods) {
            let id = InstanceId(number);
            if let Some((leaves, _)) = pod.moves.take_if(|(_, until)| *until <= t) {
                pod.is_away = leaves;
                if leaves {
                    self.leases.evicted(now, id, true);
                } else {
                    self.leases.restored(now, id, true);
                }
            }
            if let Some((since, _)) = pod.runs.take_if(|(_, ends)| *ends <= t) {
                pod.served += 1;
                pod.in_time += u64::from(t - since <= self.objective);
                pod.longest = pod.longest.max(t - since);
            }
            let may_start = pod.has_lease && !pod.is_recalled;
            if may_start && pod.is_there() && pod.runs.is_none() {
                pod.runs = pod.waiting.pop_front().map(|since| (since, t + TAKES));
            }
            let demand = |since: Option<&u64>, waiting: usize| Demand {
                deadline: Time(since.map_or(u64::MAX, |since| (since + self.objective) * MS)),
                estimate: Span::from_millis(since.map_or(0, |_| TAKES)),
                waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
                may_move: true,
            };
            if may_start {
                let is_idle = pod.runs.is_none() && pod.waiting.is_empty();
                if std::mem::replace(&mut pod.is_idle_known, is_idle) != is_idle {
                    if is_idle {
                        self.leases.idle(now, id, false);
                    } else {
                        self.leases.head(now, id, demand(None, 1));
                    }
                }
                continue;
            }
            let head = pod.waiting.front().copied();
            if std::mem::replace(&mut pod.head, head) != head {
                let demand = demand(pod.waiting.front(), pod.waiting.len());
                self.leases.head(now, id, demand);
            }
            if pod.is_recalled && pod.runs.is_none() {
                (pod.has_lease, pod.is_recalled) = (false, false);
                self.leases.idle(now, id, true);
            }
        }
        let mut actions = Vec::new();
        self.leases.decide(now, &mut actions);
        for action in actions {
            self.carry_out(t, action);
        }
    }

    fn carry_out(&mut self, t: u64, action: Action) {
        match action {
            Action::Lease(InstanceId(id)) => {
                let pod = &mut self.pods[id as usize];
                (pod.has_lease, pod.is_recalled) = (true, false);
                (pod.is_idle_known, pod.head) = (false, None);
            }
            Action::Recall(InstanceId(id)) => {
                let pod = &mut self.pods[id as usize];
                (pod.is_recalled, pod.head) = (true, None);
            }
            Action::Evict {
                instance: InstanceId(id),
                ..
            } => {
                let pod = &mut self.pods[id as usize];
                pod.moves = Some((true, t + pod.bytes));
            }
            Action::Restore(InstanceId(id)) => {
                let pod = &mut self.pods[id as usize];
                pod.moves = Some((false, t + pod.bytes));
            }
            Action::Claim {
                instance: InstanceId(id),
                granted: true,
            } => self.granted.push(id),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the longest wait of a request of a large model and of three small ones under constant demand, within two minutes, in milliseconds.
fn longest_waits(objective: u64) -> Vec<u64> {
    let mut world = World::new(100, objective, 4);
    for (id, bytes) in (0..).zip([100, 50, 50, 50]) {
        world.set_away(id, bytes);
    }
    for t in 1..120_000 {
        for pod in &mut world.pods {
            if pod.runs.is_none() && pod.waiting.is_empty() {
                pod.waiting.push_back(t);
            }
        }
        world.step(t);
    }
    let longest = world.pods.iter().map(|pod| {
        let waits = pod.waiting.front().map_or(0, |since| 120_000 - since);
        pod.longest.max(waits)
    });
    longest.collect()
}

#[test]
fn no_model_waits_much_longer_than_ten_objectives() {
    for objective in [200, 1_000, 5_000] {
        let longest = longest_waits(objective);
        let most = longest.iter().max();
        assert!(
            most <= Some(&(10 * objective + 1_000)),
            "{longest:?} at {objective}"
        );
    }
}

/// Model that loads in parts without a request, each of which computes for 20 ms after its claim.
#[derive(Debug, Clone)]
struct Loader {
    id: u32,
    bytes: u64,
    parts: u64,
    got: u64,
    /// Milliseconds of work that are left of the last part.
    work: u64,
    active_at: u64,
    is_claiming: bool,
    is_parked: bool,
    done_at: Option<u64>,
}

impl Loader {
    const BEGINS: u64 = 1_000;

    fn new(id: u32, bytes: u64, parts: u64) -> Self {
        Self {
            id,
            bytes,
            parts,
            got: 0,
            work: 0,
            active_at: 0,
            is_claiming: false,
            is_parked: false,
            done_at: None,
        }
    }

    fn has_got(&mut self, pod: &mut Pod) {
        self.got += 1;
        (self.is_claiming, self.work) = (false, 20);
        pod.bytes = self.bytes * self.got / self.parts;
    }

    fn step(&mut self, t: u64, world: &mut World) {
        let (now, id) = (Time(t * MS), InstanceId(self.id));
        let pod = &mut world.pods[self.id as usize];
        let is_there = pod.is_there();
        let is_waiting = self.work > 0 && !is_there;
        let mut is_seen = is_waiting != self.is_parked;
        if is_waiting && !self.is_parked {
            world.leases.park(now, id, Time((t + 1_000) * MS));
        } else if !is_waiting {
            world.leases.unpark(now, id);
        }
        self.is_parked = is_waiting;
        if self.work > 0 && is_there {
            (self.work, self.active_at) = (self.work - 1, t);
        } else if t > Self::BEGINS && self.work == 0 && !self.is_claiming && self.got < self.parts {
            (self.active_at, is_seen) = (t, true);
            let bytes = self.bytes * (self.got + 1) / self.parts;
            match world.leases.claim(now, id, bytes) {
                Claim::Granted => self.has_got(pod),
                Claim::Waits => self.is_claiming = true,
                Claim::Refused => panic!("{bytes} bytes can be had"),
            }
        }
        // Whether it computes is looked at after its own events, and while it matters.
        if is_seen || world.leases.watched().any(|watched| watched == id) {
            let is_quiet = !is_waiting && !self.is_claiming && t - self.active_at >= QUIET.0 / MS;
            let since = is_quiet.then_some(Time(self.active_at * MS));
            world.leases.quiet(now, id, since);
        }
    }

    fn is_granted(&mut self, world: &mut World) {
        let granted = world.granted.iter().position(|id| *id == self.id);
        if let Some(at) = granted {
            world.granted.remove(at);
            self.has_got(&mut world.pods[self.id as usize]);
        }
    }
}

/// Lets models load beside pods with a request each so many milliseconds, all of `bytes` bytes on a slot that has room for one and a half, until all are loaded. Returns how
/// long each took, in milliseconds, and which part of the others' requests was in time, in percent.
fn load(bytes: u64, parts: &[u64], every: &[u64], objective: u64) -> (Vec<u64>, u64) {
    let loaders = u32::try_from(parts.len()).unwrap_or(0);
    let others = u32::try_from(every.len()).unwrap_or(0);
    let mut world = World::new(bytes * 3 / 2, objective, loaders + others);
    for id in loaders..loaders + others {
        world.set_away(id, bytes);
    }
    let loaders = (0..).zip(parts);
    let mut loaders: Vec<Loader> = loaders
        .map(|(id, parts)| Loader::new(id, bytes, *parts))
        .collect();
    for t in 1..600_000 {
        for (at, every) in every.iter().enumerate() {
            if t % every == 0 {
                world.pods[parts.len() + at].waiting.push_back(t);
            }
        }
        for loader in &mut loaders {
            loader.step(t, &mut world);
        }
        world.step(t);
        for loader in &mut loaders {
            loader.is_granted(&mut world);
            if loader.got == loader.parts && loader.work == 0 {
                loader.done_at.get_or_insert(t);
            }
        }
        if loaders.iter().all(|loader| loader.done_at.is_some()) {
            break;
        }
    }
    let others = &world.pods[parts.len()..];
    let (in_time, served) = others.iter().fold((0, 0), |sums, pod| {
        (sums.0 + pod.in_time, sums.1 + pod.served)
    });
    let took = loaders.iter().map(|loader| {
        let done = loader.done_at.unwrap_or(u64::MAX);
        done.saturating_sub(Loader::BEGINS)
    });
    (took.collect(), in_time * 100 / served.max(1))
}

#[test]
fn a_model_loads_beside_one_whose_requests_never_cease() {
    for (parts, every, most) in [
        (6, 50, 2_000),
        (60, 50, 60_000),
        (6, 500, 2_000),
        (60, 500, 60_000),
    ] {
        let (took, in_time) = load(500, &[parts], &[every], 1_000);
        assert!(
            took[0] <= most && in_time >= 90,
            "{parts} parts beside a request each {every} ms: {took:?} ms, {in_time} % in time"
        );
    }
}

#[test]
fn a_model_that_loads_for_longer_than_its_turn_and_moves_for_longer_gets_there() {
    let (took, in_time) = load(1_600, &[100], &[100], 10_000);
    assert!(took[0] <= 120_000 && in_time >= 90, "{took:?} {in_time}");
}

#[test]
fn models_that_load_beside_each_other_get_there_one_after_the_other() {
    let (took, in_time) = load(500, &[60, 60, 60], &[50], 1_000);
    let last = took.iter().max();
    assert!(
        last <= Some(&180_000) && in_time >= 80,
        "{took:?} {in_time}"
    );
}

#[test]
fn a_turn_that_delays_no_head_uses_no_credit() {
    // Two take turns for their requests, and beside them one without a request grows all the time in what room there is.
    let mut world = World::new(110, 1_000, 4);
    world.set_away(0, 60);
    world.set_away(1, 60);
    let (grows, loads) = (InstanceId(2), InstanceId(3));
    let mut loader = Loader::new(3, 60, 3);
    for t in 1..60_000 {
        let now = Time(t * MS);
        for pod in &mut world.pods[..2] {
            if t % 60 == 0 {
                pod.waiting.push_back(t);
            }
        }
        if t % 100 == 0 {
            let bytes = 1 + t / 100 % 8;
            assert_eq!(world.leases.claim(now, grows, bytes), Claim::Granted);
            world.leases.quiet(now, grows, None);
        }
        loader.step(t, &mut world);
        world.step(t);
        loader.is_granted(&mut world);
        if t == 50_000 {
            // From here on the loader has none of it.
            world.leases.holds(now, loads, 0);
            (loader.got, loader.work, world.pods[3].bytes) = (0, 0, 0);
        }
        if t > 50_000 && loader.got == loader.parts && loader.work == 0 {
            return;
        }
    }
    panic!("it got {} of {}", loader.got, loader.parts);
}
