//! Compares the solver with full enumeration on small cases, and checks its bounds on cases that are
//! too large to finish.

use experiments::optimum::plan::check;
use experiments::optimum::{
    Case, CaseError, Function, Objective, PlanError, Request, Score, Step, solve,
};
use policy::{Span, Time};
use simulator::statistics::Percentile;
use testing::Random;

/// Returns a case with functions that displace each other, some of them too large, and with deadlines that few can meet.
fn random_case(random: &mut Random, slots: usize, requests_max: u64) -> Case {
    let memory = 10;
    let functions: Vec<Function> = (0..1 + random.below(4))
        .map(|_| {
            let execution = 1 + random.below(8);
            let bytes_max = if random.below(8) == 0 { 11 } else { 6 };
            Function {
                bytes: 1 + random.below(bytes_max),
                execution: Span(execution),
                swapped: Span(execution + random.below(14)),
            }
        })
        .collect();
    let horizon = 1 + random.below(60);
    let tight = 1 + random.below(25);
    let mut requests: Vec<Request> = (0..1 + random.below(requests_max))
        .map(|_| {
            let arrival = Time(random.below(horizon));
            Request {
                function: usize::try_from(random.below(functions.len() as u64))
                    .expect("an index fits"),
                arrival,
                // Some requests cannot be in time at all.
                deadline: arrival.after(Span(random.below(10 + tight))),
            }
        })
        .collect();
    requests.sort_by_key(|request| request.arrival);
    Case::new(slots, memory, functions, requests).expect("the case is valid")
}

/// Enumerates all plans: slot after slot, any request next, any models kept, late or not.
struct Enumeration<'a> {
    case: &'a Case,
    objective: Objective,
    best: u32,
    score: Score,
}

impl Enumeration<'_> {
    fn best(case: &Case, objective: Objective) -> u32 {
        let score = Score {
            in_time: 0,
            by_function: vec![0; case.functions().len()],
        };
        let mut all = Enumeration {
            case,
            objective,
            best: 0,
            score,
        };
        all.go(0, 0, 0, 0);
        all.best
    }

    fn go(&mut self, ran: u64, slot: usize, free: u64, resident: u32) {
        self.best = self.best.max(self.score.value(self.case, self.objective));
        if slot + 1 < self.case.slots() {
            self.go(ran, slot + 1, 0, 0);
        }
        let case = self.case;
        for (at, request) in case.requests().iter().enumerate() {
            if ran >> at & 1 == 1 {
                continue;
            }
            let function = case.functions()[request.function];
            let own = 1_u32 << request.function;
            let from = free.max(request.arrival.0);
            let mut end = |to: u64, resident: u32| {
                let in_time = u32::from(to <= request.deadline.0);
                self.score.in_time += in_time;
                self.score.by_function[request.function] += in_time;
                self.go(ran | 1 << at, slot, to, resident);
                self.score.in_time -= in_time;
                self.score.by_function[request.function] -= in_time;
            };
            if resident & own != 0 {
                end(from + function.execution.0, resident);
                continue;
            }
            let mut keeps = resident;
            loop {
                let after = keeps | own;
                let bytes: u64 = (0..case.functions().len())
                    .filter(|function| after >> function & 1 == 1)
                    .map(|function| case.functions()[function].bytes)
                    .sum();
                if bytes <= case.memory() {
                    end(from + function.swapped.0, after);
                }
                if keeps == 0 {
                    break;
                }
                keeps = (keeps - 1) & resident;
            }
        }
    }
}

fn objectives() -> [Objective; 3] {
    [
        Objective::RequestsInTime,
        Objective::FunctionsCompliant(Percentile::P50),
        Objective::FunctionsCompliant(Percentile::P98),
    ]
}

#[test]
fn the_solver_agrees_with_full_enumeration() {
    let (mut cases, mut partly) = (0, 0);
    for (slots, requests_max, seeds) in
        [(1, 6, 150), (2, 5, 120), (2, 6, 8), (3, 4, 60), (4, 3, 30)]
    {
        for seed in 0..seeds {
            let seed = seed + 1_000 * slots as u64;
            let case = random_case(&mut Random(seed), slots, requests_max);
            for objective in objectives() {
                let best = Enumeration::best(&case, objective);
                let answer = solve(&case, objective, u64::MAX);
                assert!(answer.is_exact(), "seed {seed}");
                assert_eq!(answer.value, best, "seed {seed}: {objective:?} of {case:?}");
                let score = check(&case, &answer.plan).unwrap();
                assert_eq!(score.value(&case, objective), best, "seed {seed}");
                cases += 1;
                let all = Score {
                    in_time: u32::try_from(case.requests().len()).unwrap(),
                    by_function: vec![u32::MAX; case.functions().len()],
                };
                partly += u32::from(best > 0 && best < all.value(&case, objective));
            }
        }
    }
    // The cases are meaningful: in many of them some but not all requests can be in time.
    assert!(partly * 3 > cases, "{partly} of {cases}");
}

#[test]
fn a_limited_search_encloses_the_best() {
    let mut open = 0;
    for seed in 0..60 {
        let case = random_case(&mut Random(seed), 2, 9);
        for objective in objectives() {
            let best = solve(&case, objective, u64::MAX).value;
            for states_max in [0, 1, 3, 10, 30] {
                let answer = solve(&case, objective, states_max);
                assert!(answer.states <= states_max);
                assert!(answer.value <= best && best <= answer.bound, "seed {seed}");
                let score = check(&case, &answer.plan).unwrap();
                assert_eq!(score.value(&case, objective), answer.value, "seed {seed}");
                open += u32::from(!answer.is_exact());
            }
        }
    }
    assert!(open > 100, "{open}");
}

/// One more request or one more slot never lowers the best value.
#[test]
fn more_requests_and_slots_are_never_worse() {
    let mut more = 0;
    for seed in 0..100 {
        let case = random_case(&mut Random(seed), 2, 9);
        let of = |slots: usize, requests: &[Request]| {
            let functions = case.functions().to_vec();
            let case = Case::new(slots, case.memory(), functions, requests.to_vec()).unwrap();
            solve(&case, Objective::RequestsInTime, u64::MAX).value
        };
        let requests = case.requests();
        let all = of(2, requests);
        let fewer = of(2, &requests[..requests.len() - 1]);
        assert!(fewer <= all && all <= fewer + 1, "seed {seed}");
        let (one, three) = (of(1, requests), of(3, requests));
        assert!(one <= all && all <= three, "seed {seed}");
        more += u32::from(one < three);
    }
    assert!(more > 20, "{more}");
}

fn three_of_one_model() -> Case {
    let function = Function {
        bytes: 1,
        execution: Span(2),
        swapped: Span(10),
    };
    let request = |arrival, deadline| Request {
        function: 0,
        arrival: Time(arrival),
        deadline: Time(deadline),
    };
    let requests = vec![request(0, 5), request(11, 13), request(12, 15)];
    Case::new(1, 1, vec![function], requests).expect("the case is valid")
}

/// The first request cannot be in time, but without it no other can: it loads the model.
#[test]
fn a_late_request_runs_where_it_loads_a_model_for_others() {
    let answer = solve(&three_of_one_model(), Objective::RequestsInTime, u64::MAX);
    assert_eq!((answer.value, answer.bound), (2, 2));
    let ran: Vec<_> = answer.plan.iter().map(|step| step.request).collect();
    assert_eq!(ran, [0, 1, 2]);
}

#[test]
fn infeasible_plans_are_refused() {
    let case = three_of_one_model();
    let step = |request, from, to, loads| Step {
        request,
        slot: 0,
        from: Time(from),
        to: Time(to),
        loads,
        keeps: 0,
    };
    let first = step(0, 0, 10, true);
    assert_eq!(check(&case, &[first]).unwrap().in_time, 0);
    assert_eq!(
        check(&case, &[first, step(1, 11, 13, false)])
            .unwrap()
            .in_time,
        1
    );
    for (plan, error) in [
        (vec![step(3, 0, 10, true)], PlanError::Nothing(0)),
        (vec![Step { slot: 1, ..first }], PlanError::Nothing(0)),
        (vec![first, step(0, 10, 12, false)], PlanError::Twice(1)),
        (vec![first, step(1, 10, 12, false)], PlanError::Early(1)),
        (vec![first, step(1, 11, 21, true)], PlanError::Resident(1)),
        (vec![step(0, 0, 2, false)], PlanError::Resident(0)),
        (vec![Step { keeps: 2, ..first }], PlanError::Resident(0)),
        (
            vec![step(0, 0, 9, true)],
            PlanError::Length(0, Span(9), Span(10)),
        ),
        (
            vec![first, step(1, 11, 13, false), step(2, 12, 14, false)],
            PlanError::Early(2),
        ),
    ] {
        assert_eq!(check(&case, &plan), Err(error), "{plan:?}");
    }
}

#[test]
fn invalid_cases_are_refused() {
    let function = Function {
        bytes: 1,
        execution: Span(2),
        swapped: Span(3),
    };
    let request = |function, arrival| Request {
        function,
        arrival: Time(arrival),
        deadline: Time::NEVER,
    };
    let quick = Function {
        swapped: Span(1),
        ..function
    };
    let long = Function {
        swapped: Span(1 << 48),
        ..function
    };
    for (slots, functions, requests, error) in [
        (0, vec![function], vec![], CaseError::Slots(0)),
        (5, vec![function], vec![], CaseError::Slots(5)),
        (1, vec![function; 33], vec![], CaseError::Functions(33)),
        (
            1,
            vec![function],
            vec![request(0, 0); 65],
            CaseError::Requests(65),
        ),
        (
            1,
            vec![function, quick],
            vec![],
            CaseError::SwappedBelowExecution(1),
        ),
        (1, vec![function, long], vec![], CaseError::Long(1)),
        (
            1,
            vec![function],
            vec![request(0, 1 << 62)],
            CaseError::Late(0),
        ),
        (
            1,
            vec![function],
            vec![request(0, 2), request(0, 1)],
            CaseError::Order(1),
        ),
        (
            1,
            vec![function],
            vec![request(1, 0)],
            CaseError::NoFunction {
                request: 0,
                function: 1,
            },
        ),
    ] {
        assert_eq!(Case::new(slots, 1, functions, requests), Err(error));
    }
    // The largest possible case, without effective deadlines: every request is in time, and no sum overflows.
    let last = vec![request(0, (1 << 62) - 1); 64];
    let case = Case::new(4, 1, vec![function], last).unwrap();
    assert_eq!(solve(&case, Objective::RequestsInTime, 100_000).value, 64);
}
