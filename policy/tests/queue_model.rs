//! The queue and the gate compared with naive models that sort a vector at every step.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::gate::{
    AGING_OBJECTIVES, AGING_PERIOD, Action, Admission, Arrival, DispatchReason, Gate, KEPT_PERIOD,
    Late, Order, RefuseReason, Settings,
};
use policy::queue::{DeadlineQueue, Full, Ticket, Waiting};
use policy::{RequestId, Span, Time};
use proptest::prelude::*;
use testing::Random;

/// The naive queue: a vector that is sorted at every query.
#[derive(Default)]
struct SortedVector {
    waiting: Vec<(Ticket, Waiting)>,
}

impl SortedVector {
    fn sort(&mut self, now: Time) {
        self.waiting.sort_by_key(|(_, w)| {
            let late = w.key < now;
            (late, if late { Time::ZERO } else { w.key }, w.arrival, w.id)
        });
    }

    fn pop(&mut self, now: Time) -> Option<RequestId> {
        self.sort(now);
        (!self.waiting.is_empty()).then(|| self.waiting.remove(0).1.id)
    }

    fn pop_displaceable(&mut self, now: Time) -> Option<RequestId> {
        let (at, _) = self
            .waiting
            .iter()
            .enumerate()
            .filter(|(_, (_, w))| w.key < now && !w.kept)
            .max_by_key(|(_, (_, w))| (w.arrival, w.id))?;
        Some(self.waiting.remove(at).1.id)
    }

    fn cancel(&mut self, ticket: Ticket) -> Option<RequestId> {
        let at = self.waiting.iter().position(|(t, _)| *t == ticket)?;
        Some(self.waiting.remove(at).1.id)
    }
}

#[test]
fn waiting_requests_are_counted_by_the_time_to_their_latest_start_times() {
    let mut queue = DeadlineQueue::new(16);
    let now = Time(1_000_000_000);
    let millis = Span::from_millis;
    let keys = [
        (now.before(Span(1)), 0),
        (now, 1),
        (now.after(millis(99)), 1),
        (now.after(millis(100)), 2),
        (now.after(millis(999)), 2),
        (now.after(millis(1_000)), 3),
        (now.after(millis(10_000)), 4),
        (Time::NEVER, 4),
    ];
    let mut expected = [0; 5];
    for (id, (key, at)) in (0..).map(RequestId).zip(keys) {
        expected[at] += 1;
        let waiting = Waiting {
            id,
            arrival: now,
            key,
            objective: Span::ZERO,
            kept: false,
        };
        queue.push(now, waiting).unwrap();
        assert_eq!(queue.by_slack(now), expected);
    }
    // A clock that steps back makes none of them timely again.
    assert_eq!(queue.by_slack(Time::ZERO), expected);
    assert_eq!(queue.by_slack(now.after(Span(1)))[0], 2);
}

fn random_operations(seed: u64, capacity: usize, steps: u64) {
    let mut random = Random(seed);
    let mut queue = DeadlineQueue::new(capacity);
    let mut model = SortedVector::default();
    let mut now = Time(1_000);
    let mut tickets = Vec::new();
    for step in 0..steps {
        let context = || format!("seed {seed}, capacity {capacity}, step {step}");
        // Time mostly stays or advances slightly, so that both ties and lateness occur.
        now = now.after(Span(random.below(4)));
        match random.below(100) {
            0..48 => {
                let key = match random.below(10) {
                    0 => Time::NEVER,
                    1 => now.before(Span(random.below(50))),
                    _ => now.after(Span(random.below(200))),
                };
                let waiting = Waiting {
                    id: RequestId(step),
                    arrival: now.before(Span(random.below(3))),
                    key,
                    objective: Span(random.below(50)),
                    kept: random.below(10) == 0,
                };
                match queue.push(now, waiting) {
                    Ok(ticket) => {
                        assert!(model.waiting.len() < capacity, "{}", context());
                        model.waiting.push((ticket, waiting));
                        tickets.push(ticket);
                    }
                    Err(Full) => assert_eq!(model.waiting.len(), capacity, "{}", context()),
                }
            }
            48..80 => {
                let popped = queue.pop(now);
                if let Some(left) = &popped {
                    assert_eq!(left.late, left.waiting.key < now, "{}", context());
                }
                assert_eq!(
                    popped.map(|l| l.waiting.id),
                    model.pop(now),
                    "{}",
                    context()
                );
            }
            80..92 if !tickets.is_empty() => {
                let at = usize::try_from(random.below(tickets.len() as u64)).unwrap();
                // Half of them are kept in the list, so that void tickets are used as well.
                let ticket = if random.below(2) == 0 {
                    tickets[at]
                } else {
                    tickets.swap_remove(at)
                };
                let left = queue.cancel(ticket).map(|l| l.waiting.id);
                assert_eq!(left, model.cancel(ticket), "{}", context());
            }
            92..97 => {
                let left = queue.pop_displaceable(now).map(|l| l.waiting.id);
                assert_eq!(left, model.pop_displaceable(now), "{}", context());
            }
            97 => {
                let shift = Span(random.below(100));
                let rekeyed = |w: &Waiting| {
                    if w.id.0.is_multiple_of(2) {
                        w.key.before(shift)
                    } else {
                        w.key.after(shift)
                    }
                };
                queue.rekey(now, rekeyed);
                for (_, waiting) in &mut model.waiting {
                    waiting.key = rekeyed(waiting);
                }
            }
            _ => now = now.after(Span(random.below(100))),
        }
        assert_eq!(queue.len(), model.waiting.len(), "{}", context());
        let by_slack = queue.by_slack(now);
        let late = model.waiting.iter().filter(|(_, w)| w.key < now).count();
        assert_eq!(by_slack[0], late, "{}", context());
        assert_eq!(by_slack.iter().sum::<usize>(), queue.len(), "{}", context());
        let next_late = model
            .waiting
            .iter()
            .map(|(_, w)| w.key)
            .filter(|k| *k >= now && *k != Time::NEVER)
            .min();
        if queue.next_late_at().is_some_and(|at| at > now) {
            assert_eq!(
                queue.next_late_at(),
                next_late.map(|key| key.after(Span(1))),
                "{}",
                context()
            );
        }
        if tickets.len() > 4 * capacity {
            tickets.drain(..2 * capacity);
        }
    }
}

#[test]
fn a_million_random_operations_agree_with_a_sorted_vector() {
    for (seed, capacity) in [(1, 1), (2, 4), (3, 16), (4, 40), (5, 120)] {
        random_operations(seed, capacity, 200_000);
    }
}

/// The naive gate: the rules of contracts §1 without a heap.
struct NaiveGate {
    settings: Settings,
    running: u32,
    waiting: Vec<(Ticket, Waiting)>,
    dispatches: u64,
    last_kept: Option<Time>,
    /// The request kept last.
    kept: Option<RequestId>,
    is_shut: bool,
    ahead: Span,
}

impl NaiveGate {
    fn late(&self, waiting: &Waiting, now: Time) -> bool {
        self.settings.order == Order::Deadline && waiting.key < now
    }

    fn depth(&self) -> usize {
        let free = self.settings.concurrency - self.running;
        self.settings.depth + if self.is_shut { free as usize } else { 0 }
    }

    /// Starts what may.
    fn start(&mut self, now: Time, dispatched: &mut Vec<(RequestId, DispatchReason)>) {
        while !self.is_shut && self.running < self.settings.concurrency {
            let Some(next) = self.next(now) else {
                return;
            };
            self.running += 1;
            self.dispatches += 1;
            dispatched.push(next);
        }
    }

    fn kept_waits(&self) -> bool {
        self.waiting
            .iter()
            .any(|(_, waiting)| Some(waiting.id) == self.kept)
    }

    fn may_keep(&mut self, now: Time, kept_waits: bool) -> bool {
        let may = !kept_waits
            && self
                .last_kept
                .is_none_or(|last| now.since(last) >= KEPT_PERIOD);
        if may {
            self.last_kept = Some(now);
        }
        may
    }

    /// Sheds late requests in the order of their keys.
    fn wake(&mut self, now: Time, refused: &mut Vec<(RequestId, RefuseReason)>) {
        if self.settings.late == Late::Serve {
            return;
        }
        let mut kept_waits = self.kept_waits();
        self.waiting.sort_by_key(|(_, w)| (w.key, w.arrival, w.id));
        for mut entry in std::mem::take(&mut self.waiting) {
            if !self.late(&entry.1, now) || entry.1.kept {
                self.waiting.push(entry);
            } else if self.may_keep(now, kept_waits) {
                entry.1.kept = true;
                self.kept = Some(entry.1.id);
                kept_waits = true;
                self.waiting.push(entry);
            } else {
                refused.push((entry.1.id, RefuseReason::Late));
            }
        }
    }

    fn next(&mut self, now: Time) -> Option<(RequestId, DispatchReason)> {
        let order = self.settings.order;
        let key = |w: &Waiting| {
            if order == Order::Arrival {
                Time::NEVER
            } else {
                w.key
            }
        };
        let mut sorted: Vec<usize> = (0..self.waiting.len()).collect();
        sorted.sort_by_key(|&at| {
            let w = &self.waiting[at].1;
            let late = self.late(w, now);
            (
                late,
                if late { Time::ZERO } else { key(w) },
                w.arrival,
                w.id,
            )
        });
        let aged = sorted.iter().copied().find(|&at| {
            let w = &self.waiting[at].1;
            self.late(w, now)
                && w.objective > Span::ZERO
                && now.since(w.arrival).0 / AGING_OBJECTIVES >= w.objective.0
                && self.dispatches % AGING_PERIOD == AGING_PERIOD - 1
        });
        let (at, reason) = match aged {
            Some(at) => (at, DispatchReason::Aging),
            None => {
                let at = *sorted.first()?;
                let late = self.late(&self.waiting[at].1, now);
                (
                    at,
                    if late {
                        DispatchReason::LateTurn
                    } else {
                        DispatchReason::Turn
                    },
                )
            }
        };
        Some((self.waiting.remove(at).1.id, reason))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Arrive {
        key_in: i64,
        objective: u64,
        kept: bool,
    },
    Depart,
    Cancel {
        nth: usize,
    },
    Pass {
        span: u64,
    },
    Shut {
        is_shut: bool,
    },
    Ahead {
        span: u64,
    },
    /// The nth waiting request leaves for another gate.
    Leave {
        nth: usize,
    },
    /// One that had left returns.
    PutBack,
}

fn step() -> impl Strategy<Value = Step> {
    // Milliseconds; sometimes a second passes, so that the kept request of each second occurs.
    prop_oneof![
        6 => (-20_i64..400, 0_u64..60, prop::bool::weighted(0.05))
            .prop_map(|(key_in, objective, kept)| Step::Arrive { key_in, objective, kept }),
        4 => Just(Step::Depart),
        1 => (0_usize..12).prop_map(|nth| Step::Cancel { nth }),
        3 => (0_u64..120).prop_map(|span| Step::Pass { span }),
        1 => any::<bool>().prop_map(|is_shut| Step::Shut { is_shut }),
        1 => (0_u64..60).prop_map(|span| Step::Ahead { span }),
        1 => (0_usize..12).prop_map(|nth| Step::Leave { nth }),
        1 => Just(Step::PutBack),
    ]
}

fn at_millis(ms: i64) -> Time {
    Time(u64::try_from(ms.max(0)).unwrap() * 1_000_000)
}

fn check_gate(settings: Settings, steps: &[Step]) {
    let mut gate = Gate::new(settings);
    let mut naive = NaiveGate {
        settings,
        running: 0,
        waiting: Vec::new(),
        dispatches: 0,
        last_kept: None,
        kept: None,
        is_shut: false,
        ahead: Span::ZERO,
    };
    let mut actions = Vec::new();
    // Requests that have left for another gate, with their keys, and how many have waited again since regardless of the depth.
    let mut away: Vec<(Time, Waiting)> = Vec::new();
    let mut beyond = 0;
    let mut now_ms = 1_000_i64;
    for (n, step) in steps.iter().enumerate() {
        let now = at_millis(now_ms);
        actions.clear();
        let mut refused = Vec::new();
        let mut dispatched = Vec::new();
        match *step {
            Step::Arrive {
                key_in,
                objective,
                kept,
            } => {
                let id = RequestId(n as u64);
                let key = at_millis(now_ms + key_in);
                let objective = Span::from_millis(objective);
                let got = gate.arrive(
                    now,
                    Arrival {
                        id,
                        at: now,
                        key,
                        objective,
                        kept,
                    },
                    &mut actions,
                );
                naive.wake(now, &mut refused);
                let mut waiting = Waiting {
                    id,
                    arrival: now,
                    key: key.before(naive.ahead),
                    objective,
                    kept,
                };
                let late = naive.late(&waiting, now);
                let full = naive.waiting.len() >= naive.depth();
                if naive.running < settings.concurrency && !naive.is_shut {
                    naive.running += 1;
                    naive.dispatches += 1;
                    assert_eq!(got, Admission::Dispatch(DispatchReason::Free));
                } else if late
                    && !kept
                    && settings.late == Late::Shed
                    && (full || !naive.may_keep(now, naive.kept_waits()))
                {
                    assert_eq!(got, Admission::Refuse(RefuseReason::Late));
                } else {
                    if late && settings.late == Late::Shed && !kept {
                        waiting.kept = true;
                        naive.kept = Some(id);
                    }
                    let victim = naive
                        .waiting
                        .iter()
                        .filter(|(_, w)| full && !late && naive.late(w, now) && !w.kept)
                        .max_by_key(|(_, w)| (w.arrival, w.id))
                        .map(|(t, w)| (*t, w.id));
                    if let Some((ticket, victim)) = victim {
                        naive.waiting.retain(|(t, _)| *t != ticket);
                        refused.push((victim, RefuseReason::Displaced));
                    }
                    match got {
                        Admission::Wait(ticket) => {
                            assert!(!full || victim.is_some());
                            naive.waiting.push((ticket, waiting));
                        }
                        other => {
                            assert_eq!(other, Admission::Refuse(RefuseReason::Full));
                            assert!(full && victim.is_none());
                        }
                    }
                }
            }
            Step::Depart if naive.running > 0 => {
                gate.depart(now, &mut actions);
                naive.wake(now, &mut refused);
                naive.running -= 1;
                naive.start(now, &mut dispatched);
            }
            Step::Shut { is_shut } => {
                gate.set_shut(now, is_shut, &mut actions);
                naive.is_shut = is_shut;
                naive.wake(now, &mut refused);
                naive.start(now, &mut dispatched);
            }
            Step::Ahead { span } => {
                let ahead = Span::from_millis(span);
                gate.set_ahead(now, ahead);
                for (_, waiting) in &mut naive.waiting {
                    waiting.key = waiting.key.after(naive.ahead).before(ahead);
                }
                naive.ahead = ahead;
            }
            Step::Leave { nth } if nth < naive.waiting.len() => {
                let (ticket, waiting) = naive.waiting.remove(nth);
                assert!(gate.cancel(ticket));
                away.push((waiting.key.after(naive.ahead), waiting));
            }
            Step::PutBack => {
                let Some((key, mut before)) = away.pop() else {
                    continue;
                };
                before.kept = false;
                let arrival = Arrival {
                    id: before.id,
                    at: before.arrival,
                    key,
                    objective: before.objective,
                    kept: before.kept,
                };
                naive.wake(now, &mut refused);
                let mut waiting = Waiting {
                    key: key.before(naive.ahead),
                    ..before
                };
                let starts = naive.running < settings.concurrency && !naive.is_shut;
                let late = naive.late(&waiting, now) && settings.late == Late::Shed;
                let mut is_shed = false;
                if !starts && late && !waiting.kept {
                    is_shed = !naive.may_keep(now, naive.kept_waits());
                    waiting.kept = true;
                    if !is_shed {
                        naive.kept = Some(waiting.id);
                    }
                }
                match gate.put_back(now, arrival, &mut actions) {
                    Admission::Dispatch(reason) => {
                        assert_eq!(reason, DispatchReason::Free);
                        assert!(starts);
                        naive.running += 1;
                        naive.dispatches += 1;
                    }
                    Admission::Wait(ticket) => {
                        assert!(!starts && !is_shed);
                        naive.waiting.push((ticket, waiting));
                        beyond += 1;
                    }
                    Admission::Refuse(reason) => {
                        assert_eq!(reason, RefuseReason::Late);
                        assert!(!starts && is_shed);
                    }
                }
            }
            Step::Cancel { nth } if nth < naive.waiting.len() => {
                let (ticket, _) = naive.waiting.remove(nth);
                assert!(gate.cancel(ticket));
                assert!(!gate.cancel(ticket), "a ticket is void once used");
            }
            Step::Pass { span } => {
                now_ms += i64::try_from(span).unwrap();
                gate.wake(at_millis(now_ms), &mut actions);
                naive.wake(at_millis(now_ms), &mut refused);
            }
            Step::Depart | Step::Cancel { .. } | Step::Leave { .. } => {}
        }
        let mut got_refused = Vec::new();
        let mut got_dispatched = Vec::new();
        for action in &actions {
            match *action {
                Action::Refuse { id, reason, .. } => got_refused.push((id, reason)),
                Action::Dispatch { id, reason, .. } => got_dispatched.push((id, reason)),
            }
        }
        assert_eq!(got_refused, refused, "step {n}: {step:?}");
        assert_eq!(got_dispatched, dispatched, "step {n}: {step:?}");
        assert_eq!(gate.running(), naive.running);
        assert_eq!(gate.waiting(), naive.waiting.len());
        assert!(
            gate.waiting() == 0 || gate.running() == settings.concurrency || gate.is_shut(),
            "work-conserving"
        );
        assert!(gate.running() <= settings.concurrency);
        assert!(gate.waiting() <= naive.depth() + beyond);
        if naive.settings.late == Late::Serve {
            let head = gate.head(now).map(|(_, waiting)| waiting.id);
            let mut copy = naive.waiting.clone();
            copy.retain(|(_, waiting)| Some(waiting.id) == head);
            assert_eq!(copy.is_empty(), naive.waiting.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_gate_agrees_with_a_naive_implementation_of_its_rules(
        steps in prop::collection::vec(step(), 1..200),
        concurrency in 1_u32..4,
        depth in 0_usize..12,
        deadline in any::<bool>(),
        shed in any::<bool>(),
    ) {
        let settings = Settings {
            concurrency,
            depth,
            order: if deadline { Order::Deadline } else { Order::Arrival },
            late: if shed { Late::Shed } else { Late::Serve },
        };
        // Without deadline order no request is late, in the naive gate as well.
        check_gate(settings, &steps);
    }
}
