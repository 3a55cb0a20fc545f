//! A warm router allocates nothing per request, as counted by this test's own allocator.

use policy::gate::{Late, Order};
use policy::profile::ClassId;
use policy::routing::{
    Action, BindingId, Completion, Decision, Places, Request, Router, Rule, Settings, Shape,
};
use policy::{RequestId, Span, Time};
use testing::Random;

const MS: u64 = 1_000_000;

struct Function {
    router: Router,
    now: Time,
    next: u64,
    bound: Vec<BindingId>,
    actions: Vec<Action>,
}

/// Sends `count` requests, with at most `bound_max` at instances at a time. Returns the number of bound ones.
fn work(function: &mut Function, random: &mut Random, count: u32, bound_max: usize) -> u32 {
    let mut bound = 0;
    for _ in 0..count {
        function.now = function.now.after(Span(random.below(2 * MS)));
        function.next += 1;
        let objective = Span(50 * MS);
        let request = Request {
            id: RequestId(function.next),
            at: function.now,
            deadline: function.now.after(objective),
            objective: Some(objective),
            class: ClassId(u16::try_from(random.below(2)).expect("below two")),
            execution: None,
        };
        let draw = random.next();
        let now = function.now;
        if let Decision::Bound { binding, .. } =
            function
                .router
                .arrive(now, &request, draw, &mut function.actions)
        {
            function.bound.push(binding);
        }
        // Slightly more than eight instances can serve.
        while function.bound.len() > bound_max
            || (random.below(100) < 48 && !function.bound.is_empty())
        {
            let at = random.index(function.bound.len());
            let binding = function.bound.swap_remove(at);
            let completion = Completion::Answered { learn: true };
            function
                .router
                .complete(now, binding, completion, &mut function.actions);
        }
        for action in function.actions.drain(..) {
            if let Action::Bind { binding, .. } = action {
                function.bound.push(binding);
                bound += 1;
            }
        }
        std::hint::black_box(function.router.next_wake(now));
    }
    bound
}

#[test]
fn nothing_is_allocated_per_request_once_warm() {
    for rule in Rule::ALL {
        let mut random = Random(7);
        let mut function = Function {
            router: Router::new(Settings {
                rule,
                order: Order::Deadline,
                late: Late::Shed,
                depth: 10,
                waiting_min: 100,
                waiting_max: 10_000,
                margin_percent: 25,
                hand_over: Span(MS / 2),
                execution: Span(10 * MS),
                classes: 2,
                slo: Some(Span(50 * MS)),
            }),
            now: Time::ZERO,
            next: 0,
            bound: Vec::new(),
            actions: Vec::new(),
        };
        for ordinal in 0..8 {
            let shape = Shape::monolith(Places::Fixed(1), ordinal);
            let now = function.now;
            function.router.add(now, shape, &mut function.actions);
        }
        work(&mut function, &mut random, 200_000, 200);
        let mut bound = 0;
        let info = allocation_counter::measure(|| {
            bound = work(&mut function, &mut random, 50_000, 20);
        });
        assert_eq!(info.count_total, 0, "{rule:?}");
        let waits = matches!(rule, Rule::LateBinding | Rule::Knative);
        assert_eq!(bound > 1_000, waits, "{rule:?}: {bound}");
    }
}
