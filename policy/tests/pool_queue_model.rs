//! The queue of a pool compared with sorted lists that are recomputed at every query.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the seed of a failure")]

use policy::pool::queue::{
    Adaptation, Admission, CountedMisses, Head, LateRule, LowRule, Order, Queue, Settings,
    SpareRule, Turn,
};
use policy::pool::{FunctionId, Percentile};
use policy::{RequestId, Span, Time};
use testing::Random;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    id: u64,
    arrival: u64,
    deadline: u64,
}

struct Function {
    p: i128,
    objective: u64,
    estimate: u64,
    held: bool,
    high: bool,
    admitted: bool,
    behind: i128,
    required: i128,
    outcomes: Vec<(u64, bool)>,
    waiting: Vec<Request>,
    arrivals: u64,
    arrivals_mean: u64,
    /// Dispatched requests that had waited until they were late, less the misses counted for them.
    waited: u64,
}

impl Function {
    fn latest(&self, request: &Request) -> u64 {
        match request.deadline {
            u64::MAX => u64::MAX,
            deadline => deadline.saturating_sub(self.estimate),
        }
    }

    /// Returns n and m by the rule of the window's documentation: all outcomes are divided into buckets from the first
    /// on, and old buckets are dropped at each outcome.
    fn counts(&self, now: u64) -> (i128, i128) {
        let mut buckets: Vec<(u64, u64, i128, i128)> = Vec::new();
        let forget = |buckets: &mut Vec<(u64, u64, i128, i128)>, now: u64| {
            while let Some(&(_, newest, n, _)) = buckets.first() {
                let all: i128 = buckets.iter().map(|bucket| bucket.2).sum();
                if now - newest <= 600 * SECOND || all - n < 1_000 {
                    break;
                }
                buckets.remove(0);
            }
        };
        for &(at, in_time) in &self.outcomes {
            forget(&mut buckets, at);
            match buckets.last_mut() {
                Some((began, newest, n, m)) if *n < 100 || at - *began < 60 * SECOND => {
                    *newest = at;
                    *n += 1;
                    *m += i128::from(in_time);
                }
                _ => buckets.push((at, at, 1, i128::from(in_time))),
            }
        }
        forget(&mut buckets, now);
        let sum = |of: fn(&(u64, u64, i128, i128)) -> i128| buckets.iter().map(of).sum();
        (sum(|bucket| bucket.2), sum(|bucket| bucket.3))
    }
}

struct Model {
    settings: Settings,
    now: u64,
    functions: Vec<Option<Function>>,
    theta: i128,
    seen: (u64, u64, u64),
    next_step: Option<u64>,
    dispatched: u32,
}

impl Model {
    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        let Order::RequiredRequests(admission) = self.settings.order else {
            return;
        };
        let Some(due) = self.next_step else {
            self.next_step = Some(self.now + 5 * SECOND);
            return;
        };
        if self.now < due {
            return;
        }
        let passed = (self.now - due) / (5 * SECOND) + 1;
        self.next_step = Some(due + passed * 5 * SECOND);
        let (completed, in_time, wanted) = self.seen;
        match admission {
            Admission::AdaptiveThreshold(adaptation) if completed >= 50 => {
                let (highest, rise) = match adaptation {
                    Adaptation::FromOneMiss => (10_000_000, 40_000),
                    Adaptation::FromTwentyMisses => (20_000_000, 40_000 + self.theta * 3 / 100),
                };
                self.theta = if in_time * 1_000_000 < wanted {
                    self.theta * 9 / 10
                } else {
                    (self.theta + rise).min(highest)
                };
                self.seen = (0, 0, 0);
            }
            Admission::LeastWork { capacity, horizon } => {
                let mut needed = Vec::new();
                let now = self.now;
                for (id, function) in self.functions.iter_mut().enumerate() {
                    let Some(function) = function else { continue };
                    let recent = function.arrivals * 1_000 / passed;
                    function.arrivals_mean = (7 * function.arrivals_mean + recent) / 8;
                    function.arrivals = 0;
                    let steps_thousandths = i128::from(function.arrivals_mean)
                        * i128::from(horizon.0)
                        / i128::from(5 * SECOND);
                    let (n, m) = function.counts(now);
                    let short =
                        function.p * (n * 1_000 + steps_thousandths) - m * 1_000 * 1_000_000;
                    let work = short.max(0) * i128::from(function.estimate) / 1_000_000_000;
                    needed.push((work, id));
                }
                needed.sort_unstable();
                let mut sum = 0;
                for (work, id) in needed {
                    sum += work;
                    self.functions[id].as_mut().unwrap().admitted = sum <= i128::from(capacity.0);
                }
            }
            Admission::AdaptiveThreshold(_) | Admission::FixedThreshold(_) => {}
        }
        for id in 0..self.functions.len() {
            self.judge(id);
        }
    }

    fn judge(&mut self, id: usize) {
        let Order::RequiredRequests(admission) = self.settings.order else {
            return;
        };
        let Some(function) = &mut self.functions[id] else {
            return;
        };
        let (n, m) = function.counts(self.now);
        let behind = function.p * n - 1_000_000 * m;
        function.behind = behind;
        let allowance = 1_000_000 - function.p;
        function.required = (behind * 1_000_000).div_euclid(allowance);
        let theta = match admission {
            Admission::AdaptiveThreshold(_) => self.theta,
            Admission::FixedThreshold(required) => i128::from(required) * allowance,
            Admission::LeastWork { .. } => {
                function.high = function.admitted;
                return;
            }
        };
        function.high = behind <= theta || (function.high && behind <= theta + allowance);
    }

    /// Returns a function's requests in the order of its queue.
    fn line(&self, function: &Function) -> Vec<Request> {
        let mut line = function.waiting.clone();
        let by_arrival = self.settings.order == Order::Arrival;
        line.sort_by_key(|request| {
            let rank = if by_arrival { 0 } else { request.deadline };
            (rank, request.arrival, request.id)
        });
        line
    }

    fn next(&self) -> Option<(usize, Request, Turn)> {
        let (mut aged, mut high, mut low, mut late) = (vec![], vec![], vec![], vec![]);
        let among = self.settings.low == LowRule::AmongHighGroup;
        for (id, function) in self.functions.iter().enumerate() {
            let Some(function) = function else { continue };
            if function.held || function.waiting.is_empty() {
                continue;
            }
            let line = self.line(function);
            let moves = self.settings.order != Order::Arrival
                && match self.settings.late {
                    LateRule::InPlace => false,
                    LateRule::BehindAll => true,
                    LateRule::BehindLowGroup => function.high || among,
                };
            let is_late = |request: &Request| moves && function.latest(request) < self.now;
            let mut low_or_late = false;
            if let Some(&head) = line.iter().find(|request| !is_late(request)) {
                let has_spare = function.behind + function.p <= 0;
                let fifths = match self.settings.order {
                    Order::RequiredRequests(_) if !function.high => 2 * u64::from(among),
                    Order::RequiredRequests(_) => {
                        u64::from(has_spare && self.settings.spare == SpareRule::GivesWay)
                    }
                    _ => 0,
                };
                let way = function.objective / 5 * fifths;
                let key = match self.settings.order {
                    Order::Arrival => head.arrival,
                    _ => function.latest(&head).saturating_add(way),
                };
                if function.high || among {
                    high.push((0, key, head.arrival, head.id, id, head));
                } else {
                    low.push((function.required, key, head.arrival, head.id, id, head));
                }
                low_or_late = !function.high;
            }
            if let Some(&head) = line.iter().find(|request| is_late(request)) {
                late.push((0, 0, head.arrival, head.id, id, head));
                low_or_late = true;
            }
            let waited = self.now - line[0].arrival;
            if low_or_late && function.objective > 0 && waited >= 10 * function.objective {
                aged.push((0, 0, line[0].arrival, line[0].id, id, line[0]));
            }
        }
        let every = self.settings.aging_every;
        let age = every > 0 && self.dispatched % every == every - 1;
        let first = |list: &Vec<(i128, u64, u64, u64, usize, Request)>, turn| {
            let least = list.iter().min_by_key(|x| (x.0, x.1, x.2, x.3))?;
            Some((least.4, least.5, turn))
        };
        if age && let Some(found) = first(&aged, Turn::Aged) {
            return Some(found);
        }
        if let Some((id, head, turn)) = first(&high, Turn::High) {
            let entry = |id: usize| self.functions[id].as_ref();
            let limit = entry(id)?.latest(&head);
            let earliest = low.iter().min_by_key(|x| (x.1, x.2, x.3));
            if self.settings.low == LowRule::FirstWhereHarmless
                && let Some(&(_, latest, _, _, low, low_head)) = earliest
                && latest < limit
                && self.now + entry(low)?.estimate <= limit
            {
                return Some((low, low_head, Turn::Low));
            }
            let turn = if entry(id)?.high { turn } else { Turn::Low };
            return Some((id, head, turn));
        }
        first(&low, Turn::Low).or_else(|| first(&late, Turn::Late))
    }
}

/// Counts of the cases reached, so that a run without one of them is noticed.
#[derive(Debug, Default)]
struct Coverage {
    high: u64,
    low: u64,
    late: u64,
    aged: u64,
    /// Requests of the low group that are next while one of the high group waits.
    ahead: u64,
    /// Completions of a function with outcomes older than its window.
    forgot: u64,
}

fn run(seed: u64, settings: Settings, operations: u32, mixed: bool) -> Coverage {
    println!("seed {seed}, {settings:?}, mixed {mixed}");
    let mut random = Random(seed);
    let mut queue = Queue::new(settings);
    let mut model = Model {
        settings,
        now: 0,
        functions: Vec::new(),
        theta: match settings.order {
            Order::RequiredRequests(Admission::AdaptiveThreshold(Adaptation::FromTwentyMisses)) => {
                20_000_000
            }
            _ => 1_000_000,
        },
        seen: (0, 0, 0),
        next_step: None,
        dispatched: 0,
    };
    model.functions.resize_with(12, || None);
    let mut now = 86_400 * SECOND;
    let mut tickets = Vec::new();
    let mut met = Coverage::default();
    let mut left = Vec::new();
    // Fast stretches build queues, slow ones let windows and steps pass.
    let mut gap = 10 * MS;
    for n in 0..u64::from(operations) {
        if n % 500 == 0 {
            gap = [2 * MS, 30 * MS, 200 * MS, 3 * SECOND][random.index(4)];
        }
        // Times are on a grid, so that events coincide with the moments at which requests turn late or are aged.
        now += random.below(2 * gap) / MS * MS;
        let asked = if random.below(50) == 0 {
            now - 5 * MS
        } else {
            now
        };
        let id = random.index(12);
        let function = FunctionId(u32::try_from(id).unwrap());
        let operation = random.below(100);
        // Every operation advances time, including one without effect.
        match operation {
            0 if model.functions[id].is_some() => {
                model.advance(asked);
                let before = model.functions[id].take().unwrap();
                left.clear();
                queue.remove(Time(asked), function, &mut left);
                let expected: Vec<u64> = model.line(&before).iter().map(|r| r.id).collect();
                assert_eq!(
                    left.iter().map(|h| h.request.0).collect::<Vec<_>>(),
                    expected
                );
            }
            0..=2 => {
                model.advance(asked);
                let p = if mixed {
                    [500_000, 900_000, 999_999][random.index(3)]
                } else {
                    980_000
                };
                let objective = [0, 80, 200][random.index(3)] * MS;
                let percentile = Percentile::from_parts_per_million(p);
                let added = queue.add(Time(asked), function, percentile, Span(objective));
                assert_eq!(added.is_ok(), model.functions[id].is_none());
                model.functions[id].get_or_insert_with(|| Function {
                    p: i128::from(p.min(999_000)),
                    objective,
                    estimate: 0,
                    held: false,
                    high: true,
                    admitted: true,
                    behind: 0,
                    required: 0,
                    outcomes: Vec::new(),
                    waiting: Vec::new(),
                    arrivals: 0,
                    arrivals_mean: 0,
                    waited: 0,
                });
            }
            3..=39 => {
                model.advance(asked);
                let deadline = match random.below(10) {
                    0 => u64::MAX,
                    1 => model.now + random.below(300) * MS,
                    _ => model.now + 80 * MS,
                };
                let ticket = queue.arrive(Time(asked), function, RequestId(n), Time(deadline));
                if let Some(entry) = &mut model.functions[id] {
                    let arrival = model.now;
                    entry.waiting.push(Request {
                        id: n,
                        arrival,
                        deadline,
                    });
                    entry.arrivals += 1;
                    model.judge(id);
                    tickets.push((id, n, ticket.unwrap()));
                } else {
                    assert!(ticket.is_err());
                }
            }
            40..=64 => {
                model.advance(asked);
                let Some((head, _)) = queue.next(Time(asked)) else {
                    continue;
                };
                assert_eq!(queue.take(Time(asked), head.ticket), Some(head));
                assert_eq!(queue.take(Time(asked), head.ticket), None, "taken twice");
                let now = model.now;
                let entry = model.functions[head.function.0 as usize].as_mut().unwrap();
                let at = entry
                    .waiting
                    .iter()
                    .position(|own| own.id == head.request.0);
                let request = entry.waiting.remove(at.unwrap());
                let latest = entry.latest(&request);
                entry.waited += u64::from((request.arrival..now).contains(&latest));
                model.dispatched += 1;
            }
            65..=69 if !tickets.is_empty() => {
                model.advance(asked);
                let at = random.index(tickets.len());
                let (owner, id, ticket) = tickets.swap_remove(at);
                let found = queue.cancel(Time(asked), ticket);
                let expected = model.functions[owner].as_mut().is_some_and(|entry| {
                    let before = entry.waiting.len();
                    entry.waiting.retain(|request| request.id != id);
                    before != entry.waiting.len()
                });
                assert_eq!(found.map(|head| head.request.0), expected.then_some(id));
            }
            65..=90 => {
                model.advance(asked);
                // Occasionally enough outcomes for one function that old ones leave its window.
                let many = if id == 0 && random.below(2) == 0 {
                    200
                } else {
                    1
                };
                for _ in 0..many {
                    let in_time = random.below(100) < if id < 6 { 97 } else { 60 };
                    queue.completed(Time(asked), function, in_time);
                    if let Some(entry) = &mut model.functions[id] {
                        let has_waited = !in_time && entry.waited > 0;
                        entry.waited -= u64::from(has_waited);
                        let is_missed =
                            !in_time && (has_waited || settings.misses == CountedMisses::All);
                        if entry.high {
                            model.seen.0 += 1;
                            model.seen.1 += u64::from(!is_missed);
                            model.seen.2 += u64::try_from(entry.p).unwrap();
                        }
                        entry.outcomes.push((model.now, in_time));
                        model.judge(id);
                    }
                }
                if let Some(entry) = &model.functions[id] {
                    let (n, m) = entry.counts(model.now);
                    let counts = queue.counts(function).unwrap();
                    assert_eq!((i128::from(counts.0), i128::from(counts.1)), (n, m));
                    met.forgot += u64::from(n < entry.outcomes.len() as i128);
                }
            }
            91..=94 => {
                model.advance(asked);
                let estimate = random.below(100) * MS;
                queue.set_estimate(Time(asked), function, Span(estimate));
                if let Some(entry) = &mut model.functions[id] {
                    entry.estimate = estimate;
                }
            }
            _ => {
                model.advance(asked);
                let held = random.below(3) == 0;
                if held {
                    queue.hold(Time(asked), function);
                } else {
                    queue.release(Time(asked), function);
                }
                if let Some(entry) = &mut model.functions[id] {
                    entry.held = held;
                }
            }
        }
        let next = queue.next(Time(asked));
        let expected = model.next();
        assert_eq!(
            next.map(
                |(
                    Head {
                        function, request, ..
                    },
                    turn,
                )| (function.0, request.0, turn)
            ),
            expected.map(|(id, request, turn)| (u32::try_from(id).unwrap(), request.id, turn)),
            "operation {n}"
        );
        if let (Some((head, turn)), Some((id, request, _))) = (next, expected) {
            let entry = model.functions[id].as_ref().unwrap();
            assert_eq!(head.latest_start.0, entry.latest(&request));
            assert_eq!(head.late, entry.latest(&request) < model.now);
            assert_eq!(
                (head.arrival.0, head.deadline.0),
                (request.arrival, request.deadline)
            );
            match turn {
                Turn::High => met.high += 1,
                Turn::Low => {
                    met.low += 1;
                    let waits = |own: &Function| own.high && !own.held && !own.waiting.is_empty();
                    met.ahead += u64::from(model.functions.iter().flatten().any(waits));
                }
                Turn::Late => met.late += 1,
                Turn::Aged => met.aged += 1,
            }
        }
        let waiting = model
            .functions
            .iter()
            .flatten()
            .map(|entry| entry.waiting.len());
        assert_eq!(queue.len(), waiting.sum::<usize>());
        assert_eq!(i128::from(queue.threshold()), model.theta);
        for (id, entry) in model.functions.iter().enumerate() {
            let function = FunctionId(u32::try_from(id).unwrap());
            assert_eq!(queue.required(function).is_some(), entry.is_some());
            if let Some(entry) = entry {
                assert_eq!(
                    queue.required(function).map(i128::from),
                    Some(entry.required)
                );
                assert_eq!(queue.is_high(function), entry.high, "operation {n}");
                assert_eq!(queue.waiting(function) as usize, entry.waiting.len());
            }
        }
    }
    println!("{met:?}, threshold {}", queue.threshold());
    met
}

const ADMISSIONS: [Admission; 5] = [
    Admission::AdaptiveThreshold(Adaptation::FromOneMiss),
    Admission::AdaptiveThreshold(Adaptation::FromTwentyMisses),
    Admission::FixedThreshold(0),
    Admission::FixedThreshold(50),
    Admission::LeastWork {
        capacity: Span(2 * SECOND),
        horizon: Span(60 * SECOND),
    },
];

#[test]
fn groups_are_served_in_the_order_of_recomputed_lists() {
    let mut forgot = 0;
    for (n, admission) in (0..).zip(ADMISSIONS) {
        for (at, late) in (0..).zip([
            LateRule::BehindAll,
            LateRule::BehindLowGroup,
            LateRule::InPlace,
        ]) {
            let settings = Settings {
                order: Order::RequiredRequests(admission),
                late,
                ..Settings::as_printed()
            };
            let met = run(100 * n + at, settings, 6_000, n % 2 == at % 2);
            assert!(met.high > 0 && met.low > 0 && met.aged > 0, "{met:?}");
            forgot += met.forgot;
            assert_eq!(met.late > 0, late != LateRule::InPlace, "{met:?}");
        }
    }
    assert!(forgot > 100, "windows forgot only {forgot} times");
}

#[test]
fn each_position_of_the_low_group_and_of_spare_misses_is_that_of_recomputed_lists() {
    let (mut number, mut ahead) = (4_000, [0; 2]);
    for admission in ADMISSIONS {
        for low in [
            LowRule::BehindHighGroup,
            LowRule::FirstWhereHarmless,
            LowRule::AmongHighGroup,
        ] {
            for (late, misses, spare) in [
                (LateRule::BehindAll, CountedMisses::All, SpareRule::GivesWay),
                (LateRule::BehindAll, CountedMisses::Waited, SpareRule::Equal),
                (
                    LateRule::BehindLowGroup,
                    CountedMisses::Waited,
                    SpareRule::GivesWay,
                ),
                (LateRule::InPlace, CountedMisses::All, SpareRule::GivesWay),
            ] {
                let settings = Settings {
                    order: Order::RequiredRequests(admission),
                    late,
                    low,
                    spare,
                    misses,
                    ..Settings::default()
                };
                let met = run(number, settings, 3_000, number % 2 == 0);
                if late == LateRule::InPlace {
                    // A late request of the high group does not wait behind the low group.
                    let at = usize::from(low != LowRule::BehindHighGroup);
                    ahead[at] += met.ahead;
                }
                number += 1;
            }
        }
    }
    assert!(ahead[0] == 0 && ahead[1] > 100, "{ahead:?}");
}

#[test]
fn one_group_is_served_by_latest_start_and_by_arrival() {
    for (n, late) in (0..).zip([LateRule::BehindAll, LateRule::InPlace]) {
        let settings = Settings {
            order: Order::LatestStart,
            late,
            aging_every: 7,
            ..Settings::default()
        };
        let met = run(1_000 + n, settings, 6_000, true);
        assert_eq!(
            (met.low, met.late > 0),
            (0, late == LateRule::BehindAll),
            "{met:?}"
        );
    }
    let settings = Settings {
        order: Order::Arrival,
        ..Settings::default()
    };
    let met = run(2_000, settings, 6_000, true);
    assert_eq!((met.low, met.late, met.aged), (0, 0, 0), "{met:?}");
}

#[test]
fn without_aging_no_request_is_aged() {
    let settings = Settings {
        aging_every: 0,
        ..Settings::default()
    };
    assert_eq!(run(3_000, settings, 6_000, false).aged, 0);
}
