//! Clients that state less time than they have: their gain, and how long they can delay a late request, for each
//! setting of `trust-budget`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use std::collections::BTreeMap;

use policy::gate::{
    AGING_OBJECTIVES, AGING_PERIOD, Action, Admission, Arrival, DispatchReason, Gate, Late, Order,
    Settings,
};
use policy::slo::{Signals, Trust};
use policy::{RequestId, Span, Time};
use proptest::prelude::*;
use testing::Random;

const TRUSTS: [Trust; 3] = [Trust::All, Trust::Floor, Trust::None];
const SLO: Span = Span::from_millis(200);
const REVISION_TIMEOUT: Span = Span::from_secs(300);

fn signals(trust: Trust, budget: Option<Span>) -> Signals {
    Signals {
        budget,
        slo: Some(SLO),
        revision_timeout: REVISION_TIMEOUT,
        trust,
        ..Signals::default()
    }
}

/// Returns the objective by contracts §1 and §2, case by case, in milliseconds.
fn naive_objective(
    trust: Trust,
    budget: Option<u64>,
    grpc_timeout: Option<u64>,
    gateway: Option<u64>,
    slo: Option<u64>,
    timeout: u64,
) -> Option<u64> {
    if trust == Trust::None {
        return Some(slo?.min(timeout));
    }
    let mut stated = [budget, grpc_timeout, gateway];
    if let (Trust::Floor, Some(slo)) = (trust, slo) {
        for stated in stated.iter_mut().flatten() {
            // It would be exact in half milliseconds; the slo is even here.
            if *stated < slo / 2 {
                *stated = slo / 2;
            }
        }
    }
    let [budget, grpc_timeout, gateway] = stated;
    let mut objective = match (budget, grpc_timeout, slo) {
        (Some(budget), ..) => budget,
        (None, Some(grpc), Some(slo)) => grpc.min(slo),
        (None, Some(only), None) | (None, None, Some(only)) => only,
        (None, None, None) => return None,
    };
    for limit in [gateway, Some(timeout)].into_iter().flatten() {
        objective = objective.min(limit);
    }
    Some(objective)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn objectives_agree_with_the_rules_case_by_case(
        trust in 0_usize..3,
        budget in prop::option::of(1_u64..500),
        grpc_timeout in prop::option::of(1_u64..500),
        gateway in prop::option::of(1_u64..500),
        half_slo in prop::option::of(1_u64..200),
        timeout in 50_u64..500,
    ) {
        let slo = half_slo.map(|half| 2 * half);
        let span = |ms: Option<u64>| ms.map(Span::from_millis);
        let deadline = Signals {
            budget: span(budget),
            grpc_timeout: span(grpc_timeout),
            gateway_limit: span(gateway),
            slo: span(slo),
            revision_timeout: Span::from_millis(timeout),
            trust: TRUSTS[trust],
        }
        .deadline(Time::ZERO);
        let naive = naive_objective(TRUSTS[trust], budget, grpc_timeout, gateway, slo, timeout);
        prop_assert_eq!(deadline.objective.map(Span::as_millis), naive);
        prop_assert_eq!(deadline.at, Time::ZERO.after(Span::from_millis(naive.unwrap_or(timeout))));
    }
}

/// A waiting request in the naive account of waits.
struct Account {
    arrival: Time,
    key: Time,
    objective: Span,
    /// Number of dispatches that may still precede it, once it is late and has waited [`AGING_OBJECTIVES`] times its
    /// objective; `None` before.
    patience: Option<u64>,
}

/// Every waiting request by id, which is also the order of arrival.
#[derive(Default)]
struct Accounts {
    waiting: BTreeMap<RequestId, Account>,
    /// Number of requests that have aged.
    aged: u64,
}

impl Accounts {
    fn is_aged(account: &Account, now: Time) -> bool {
        account.key < now && now.since(account.arrival).0 >= AGING_OBJECTIVES * account.objective.0
    }

    /// Opens the account of aged requests: twenty dispatches for each that arrived before them, and for itself.
    fn age(&mut self, now: Time) {
        for (before, account) in (0_u64..).zip(self.waiting.values_mut()) {
            if account.patience.is_none() && Self::is_aged(account, now) {
                account.patience = Some(AGING_PERIOD * (before + 1));
                self.aged += 1;
            }
        }
    }

    /// Records the start of a request.
    fn dispatch(&mut self, id: RequestId, reason: DispatchReason, now: Time, context: &str) {
        let first_aged = self
            .waiting
            .iter()
            .find(|(_, account)| Self::is_aged(account, now))
            .map(|(id, _)| *id);
        if reason == DispatchReason::Aging {
            assert_eq!(Some(id), first_aged, "the oldest that has aged, {context}");
        }
        self.waiting.remove(&id).unwrap();
        for (id, account) in &mut self.waiting {
            if let Some(patience) = &mut account.patience {
                assert!(*patience > 1, "{id:?} has waited too long, {context}");
                *patience -= 1;
            }
        }
    }
}

/// Honest and lying clients arrive, leave and are served at random, with more work than capacity.
fn random_operations(seed: u64, trust: Trust, late: Late, depth: usize, concurrency: u32) -> u64 {
    let mut random = Random(seed);
    let mut gate = Gate::new(Settings {
        concurrency,
        depth,
        order: Order::Deadline,
        late,
    });
    let mut accounts = Accounts::default();
    let mut tickets = BTreeMap::new();
    let mut actions = Vec::new();
    let mut now = Time(1_000_000_000);
    for step in 0..12_000 {
        let context = format!("seed {seed}, {trust:?}, {late:?}, depth {depth}, step {step}");
        now = now.after(Span(random.below(3_000_000)));
        accounts.age(now);
        actions.clear();
        match random.below(100) {
            0..58 => {
                let id = RequestId(step);
                // One in three states any time.
                let budget = (random.below(3) == 0)
                    .then(|| Span::from_millis(1 + random.below(2 * SLO.as_millis())));
                let deadline = signals(trust, budget).deadline(now);
                let estimate = Span::from_millis(random.below(120));
                let arrival = Arrival {
                    id,
                    at: now,
                    key: deadline.latest_start(estimate, Span::ZERO),
                    objective: deadline.objective.unwrap(),
                    kept: random.below(50) == 0,
                };
                if let Admission::Wait(ticket) = gate.arrive(now, arrival, &mut actions) {
                    tickets.insert(id, ticket);
                    let account = Account {
                        arrival: now,
                        key: arrival.key,
                        objective: arrival.objective,
                        patience: None,
                    };
                    accounts.waiting.insert(id, account);
                }
            }
            58..97 if gate.running() > 0 => gate.depart(now, &mut actions),
            97 => {
                let ids: Vec<_> = accounts.waiting.keys().copied().collect();
                if !ids.is_empty() {
                    let id = ids[random.index(ids.len())];
                    assert!(gate.cancel(tickets[&id]), "{context}");
                    accounts.waiting.remove(&id);
                }
            }
            _ => gate.wake(now, &mut actions),
        }
        for action in &actions {
            match *action {
                Action::Dispatch { id, reason, .. } => accounts.dispatch(id, reason, now, &context),
                Action::Refuse { id, .. } => {
                    accounts.waiting.remove(&id).unwrap();
                }
            }
        }
        assert_eq!(gate.waiting(), accounts.waiting.len(), "{context}");
    }
    accounts.aged
}

#[test]
fn an_aged_request_waits_for_twenty_dispatches_for_each_earlier_one() {
    for trust in TRUSTS {
        let mut aged = 0;
        for (seed, depth, concurrency) in [(1, 10, 1), (2, 60, 1), (3, 120, 4)] {
            aged += random_operations(seed, trust, Late::Serve, depth, concurrency);
            aged += random_operations(seed, trust, Late::Shed, depth, concurrency);
        }
        assert!(aged > 200, "{trust:?}: only {aged} requests aged");
    }
}

/// Time at the user container of each request of the attack.
const SERVICE: Span = Span::from_millis(10);
/// Number of connections that send the next request when the last is answered.
const GREEDY: u64 = 8;
const ATTACK: Span = Span::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Figures {
    others: u64,
    others_in_time: u64,
    /// Longest wait of a request that started late, and the bound on it: both of other clients.
    wait: Span,
    bound: Span,
}

/// Runs other clients at random with a load of one half and without stated times, beside greedy ones that are absent,
/// or state a budget or nothing.
fn attack(trust: Trust, greedy: Option<Option<Span>>, depth: usize) -> Figures {
    let mut random = Random(7);
    let mut gate = Gate::new(Settings {
        concurrency: 1,
        depth,
        order: Order::Deadline,
        late: Late::Serve,
    });
    let mut figures = Figures {
        others: 0,
        others_in_time: 0,
        wait: Span::ZERO,
        bound: Span::ZERO,
    };
    // Future arrivals by time: whether greedy.
    let mut arrivals = BTreeMap::new();
    let mut at = Time::ZERO;
    let mut next_id = 0;
    while at < Time::ZERO.after(ATTACK) {
        // From zero to twice the mean.
        at = at.after(Span(random.below(4 * SERVICE.0)));
        arrivals.insert((at, next_id), false);
        next_id += 1;
    }
    if greedy.is_some() {
        for n in 0..GREEDY {
            arrivals.insert((Time(n), next_id), true);
            next_id += 1;
        }
    }
    // Waiting and running requests: arrival, and whether greedy.
    let mut known = BTreeMap::new();
    let mut running = None;
    let mut actions = Vec::new();
    loop {
        let arrival = arrivals.first_key_value().map(|((at, _), _)| *at);
        let departure = running.map(|(_, ends)| ends);
        let now = match (arrival, departure) {
            (None, None) => return figures,
            (Some(a), Some(d)) => a.min(d),
            (a, d) => a.or(d).unwrap(),
        };
        actions.clear();
        let mut started = None;
        let mut answered = None;
        if departure == Some(now) {
            answered = running.take();
            gate.depart(now, &mut actions);
        } else {
            let ((at, id), is_greedy) = arrivals.pop_first().unwrap();
            let budget = greedy.filter(|_| is_greedy).flatten();
            let deadline = signals(trust, budget).deadline(at);
            let arrival = Arrival {
                id: RequestId(id),
                at,
                key: deadline.latest_start(SERVICE, Span::ZERO),
                objective: deadline.objective.unwrap(),
                kept: false,
            };
            figures.others += u64::from(!is_greedy);
            match gate.arrive(now, arrival, &mut actions) {
                Admission::Dispatch(_) => started = Some(RequestId(id)),
                Admission::Wait(_) => {}
                // A refused client retries at the time at which it would have been answered.
                Admission::Refuse(_) if is_greedy => {
                    arrivals.insert((now.after(SERVICE), next_id), true);
                    next_id += 1;
                    continue;
                }
                Admission::Refuse(_) => continue,
            }
            known.insert(RequestId(id), (at, is_greedy));
            if !is_greedy {
                // Ten objectives, then twenty services for each waiting request, including itself, and the running one.
                let dispatches = AGING_PERIOD * gate.waiting() as u64 + 1;
                let bound = Span(AGING_OBJECTIVES * SLO.0 + dispatches * SERVICE.0);
                figures.bound = figures.bound.max(bound);
            }
        }
        for action in &actions {
            match *action {
                Action::Dispatch { id, reason, .. } => {
                    let (at, is_greedy) = known[&id];
                    let is_late =
                        matches!(reason, DispatchReason::Aging | DispatchReason::LateTurn);
                    if is_late && !is_greedy {
                        figures.wait = figures.wait.max(now.since(at));
                    }
                    started = Some(id);
                }
                Action::Refuse { id, .. } => {
                    if known.remove(&id).unwrap().1 {
                        arrivals.insert((now.after(SERVICE), next_id), true);
                        next_id += 1;
                    }
                }
            }
        }
        if let Some(id) = started {
            running = Some((id, now.after(SERVICE)));
        }
        if let Some((id, _)) = answered {
            let (at, is_greedy) = known.remove(&id).unwrap();
            if !is_greedy && now.since(at) <= SLO {
                figures.others_in_time += 1;
            }
            if is_greedy && now < Time::ZERO.after(ATTACK) {
                arrivals.insert((now, next_id), true);
                next_id += 1;
            }
        }
    }
}

#[test]
fn a_lie_gains_only_as_much_as_the_owner_allows() {
    let honest = |depth| attack(Trust::All, Some(None), depth);
    let lie = |trust, ms, depth| attack(trust, Some(Some(Span::from_millis(ms))), depth);
    println!(
        "| depth | eight connections state | trust | in time, others | lost | longest late wait | bound |"
    );
    println!("|---:|---|---|---:|---:|---:|---:|");
    for depth in [10, 1_000] {
        let alone = attack(Trust::All, None, depth);
        let print = |states: &str, trust: &str, figures: Figures| {
            let share = |part: u64| 100.0 * part as f64 / figures.others as f64;
            println!(
                "| {depth} | {states} | {trust} | {:.1} % | {:.1} % | {:.2} s | {:.2} s |",
                share(figures.others_in_time),
                share(alone.others_in_time - figures.others_in_time.min(alone.others_in_time)),
                figures.wait.as_secs_f64(),
                figures.bound.as_secs_f64(),
            );
            assert!(
                figures.wait <= figures.bound,
                "{depth} {states} {trust}: {figures:?}"
            );
        };
        print("– (absent)", "all", alone);
        print("nothing", "all", honest(depth));
        for ms in [100, 50, 20, 1] {
            for trust in TRUSTS {
                let figures = lie(trust, ms, depth);
                let name = format!("{trust:?}").to_lowercase();
                print(&format!("{ms} ms"), &name, figures);
            }
            assert_eq!(
                lie(Trust::Floor, ms, depth),
                lie(Trust::All, 100.max(ms), depth)
            );
            assert_eq!(lie(Trust::None, ms, depth), honest(depth));
        }
        // A lie pays where it is believed, and the attack is effective there.
        assert!(lie(Trust::All, 50, depth).others_in_time < honest(depth).others_in_time);
        assert!(
            lie(Trust::None, 50, depth).others_in_time > lie(Trust::All, 50, depth).others_in_time
        );
    }
}
