//! Cost of a routing decision. Target (docs/spec/targets.md): 2 µs at 100 instances and 10,000 waiting requests.

use divan::{Bencher, black_box};
use policy::gate::{Late, Order};
use policy::profile::ClassId;
use policy::routing::{
    Action, BindingId, Completion, Decision, Places, Request, Router, Rule, Settings, Shape,
};
use policy::{RequestId, Span, Time};

const MS: u64 = 1_000_000;

fn main() {
    divan::main();
}

struct Function {
    router: Router,
    bound: Vec<BindingId>,
    actions: Vec<Action>,
    now: Time,
    next: u64,
}

fn request(n: u64, now: Time) -> Request {
    // Deadlines spread by a multiplicative hash, from one second to four hours.
    let objective = Span((1_000 + (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40)) * MS);
    Request {
        id: RequestId(n),
        at: now,
        deadline: now.after(objective),
        objective: Some(objective),
        class: ClassId(0),
        execution: None,
    }
}

/// Returns a function with all instances busy, and `waiting` requests. One of four instances has another speed.
fn function(rule: Rule, instances: u32, waiting: u64) -> Function {
    let mut function = Function {
        router: Router::new(Settings {
            rule,
            order: Order::Deadline,
            late: Late::Serve,
            depth: 200,
            waiting_min: 100,
            waiting_max: 20_000,
            margin_percent: 25,
            hand_over: Span(MS / 2),
            execution: Span(10 * MS),
            classes: 1,
            slo: None,
        }),
        bound: Vec::new(),
        actions: Vec::new(),
        now: Time::ZERO,
        next: 0,
    };
    for ordinal in 0..instances {
        let shape = Shape {
            speed_ppm: if ordinal % 4 == 3 { 400_000 } else { 1_000_000 },
            ..Shape::monolith(Places::Fixed(1), ordinal)
        };
        function
            .router
            .add(Time::ZERO, shape, &mut function.actions);
    }
    function.now = Time(20_000 * MS);
    for _ in 0..u64::from(instances) + waiting {
        arrive(&mut function);
    }
    function
}

fn arrive(function: &mut Function) {
    function.next += 1;
    let request = request(function.next, function.now);
    let now = function.now;
    let routed = function
        .router
        .arrive(now, &request, function.next, &mut function.actions);
    if let Decision::Bound { binding, .. } = routed {
        function.bound.push(binding);
    }
    function.actions.clear();
}

/// One request arrives and waits, one that was served ends and its place is filled; then the next wake-up is queried.
#[divan::bench(args = [(4, 100), (100, 100), (100, 10_000)])]
fn arrive_and_complete(bencher: Bencher<'_, '_>, (instances, waiting): (u32, u64)) {
    let mut function = function(Rule::LateBinding, instances, waiting);
    let mut turn = 0;
    bencher.bench_local(|| {
        function.now = function.now.after(Span(1_000));
        arrive(&mut function);
        turn = (turn + 1) % function.bound.len();
        let binding = function.bound[turn];
        let completion = Completion::Answered { learn: true };
        let now = function.now;
        function
            .router
            .complete(now, binding, completion, &mut function.actions);
        for action in function.actions.drain(..) {
            if let Action::Bind { binding, .. } = action {
                function.bound[turn] = binding;
            }
        }
        black_box(function.router.next_wake(now))
    });
}

/// One request arrives at instances of which half are free, and ends.
#[divan::bench(args = [4, 100])]
fn arrive_where_places_are_free(bencher: Bencher<'_, '_>, instances: u32) {
    let mut function = function(Rule::LateBinding, instances, 0);
    let mut random = 0_usize;
    for binding in function.bound.drain(..).step_by(2) {
        let completion = Completion::Answered { learn: true };
        let now = function.now;
        function
            .router
            .complete(now, binding, completion, &mut function.actions);
        random += 1;
    }
    black_box(random);
    bencher.bench_local(|| {
        function.now = function.now.after(Span(1_000));
        arrive(&mut function);
        if let Some(binding) = function.bound.pop() {
            let completion = Completion::Answered { learn: true };
            let now = function.now;
            function
                .router
                .complete(now, binding, completion, &mut function.actions);
        }
        function.actions.clear();
    });
}
