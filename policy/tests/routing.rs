//! The decisions of each routing rule, case by case.

use policy::gate::{Late, Order};
use policy::profile::ClassId;
use policy::queue::Ticket;
use policy::routing::{
    Action, BindingId, Completion, Decision, EjectReason, InstanceId, Places, RefuseReason,
    Request, RouteReason, Router, Rule, Settings, Shape, Share,
};
use policy::{RequestId, Span, Time};

const MS: u64 = 1_000_000;
const SECOND: Span = Span::from_secs(1);

fn settings(rule: Rule) -> Settings {
    Settings {
        rule,
        order: Order::Deadline,
        late: Late::Serve,
        depth: 10,
        waiting_min: 100,
        waiting_max: 10_000,
        margin_percent: 0,
        hand_over: Span(MS / 2),
        execution: Span(10 * MS),
        classes: 1,
        slo: Some(Span(100 * MS)),
    }
}

struct World {
    router: Router,
    now: Time,
    next: u64,
    actions: Vec<Action>,
}

impl World {
    fn of(settings: Settings, shapes: &[Shape]) -> Self {
        let mut world = Self {
            router: Router::new(settings),
            now: Time(1_000_000 * MS),
            next: 0,
            actions: Vec::new(),
        };
        for &shape in shapes {
            world.router.add(world.now, shape, &mut world.actions);
        }
        // The slow starts are over.
        world.advance(10_000 * MS);
        world
    }

    fn with(rule: Rule, shapes: &[Shape]) -> Self {
        Self::of(settings(rule), shapes)
    }

    fn advance(&mut self, nanos: u64) {
        self.now = self.now.after(Span(nanos));
        self.router.wake(self.now, &mut self.actions);
    }

    fn request(&mut self, objective_ms: u64, execution_ms: u64) -> Request {
        self.next += 1;
        Request {
            id: RequestId(self.next),
            at: self.now,
            deadline: self.now.after(Span(objective_ms * MS)),
            objective: Some(Span(objective_ms * MS)),
            class: ClassId(0),
            execution: Some(Span(execution_ms * MS)),
        }
    }

    fn arrive(&mut self, objective_ms: u64, execution_ms: u64, random: u64) -> Decision {
        let request = self.request(objective_ms, execution_ms);
        self.router
            .arrive(self.now, &request, random, &mut self.actions)
    }

    /// Returns the instance to which a request is bound at once.
    fn bound(&mut self, random: u64) -> (u32, BindingId) {
        match self.arrive(100, 10, random) {
            Decision::Bound {
                instance, binding, ..
            } => (instance.0, binding),
            other => panic!("{other:?}"),
        }
    }

    fn waits(&mut self, objective_ms: u64, execution_ms: u64) -> Ticket {
        match self.arrive(objective_ms, execution_ms, 0) {
            Decision::Waits(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, binding: BindingId, completion: Completion) {
        self.router
            .complete(self.now, binding, completion, &mut self.actions);
    }

    fn answered(&mut self, binding: BindingId) {
        self.end(binding, Completion::Answered { learn: true });
    }

    /// Returns the requests bound since the last call, with instance and reason.
    fn turns(&mut self) -> Vec<(u64, u32, RouteReason)> {
        let turn = |action: Action| match action {
            Action::Bind {
                id,
                instance,
                reason,
                ..
            } => Some((id.0, instance.0, reason)),
            _ => None,
        };
        self.actions.drain(..).filter_map(turn).collect()
    }
}

fn single(ordinal: u32) -> Shape {
    Shape::monolith(Places::Fixed(1), ordinal)
}

fn at_speed(per_cent: u32) -> Shape {
    Shape {
        speed_ppm: per_cent * 10_000,
        ..single(0)
    }
}

#[test]
fn no_request_is_bound_before_there_is_a_place() {
    let mut world = World::with(Rule::LateBinding, &[single(0), single(1)]);
    let (_, first) = world.bound(0);
    let (_, _second) = world.bound(0);
    world.waits(300, 10);
    let urgent = world.waits(100, 10);
    assert!(world.turns().is_empty());
    world.advance(3 * MS);
    world.answered(first);
    assert_eq!(world.turns(), [(4, 0, RouteReason::Turn)]);
    assert!(!world.router.cancel(urgent));
}

#[test]
fn only_one_request_is_bound_ahead_within_the_time_of_a_hand_over() {
    let mut world = World::with(Rule::LateBinding, &[single(0)]);
    world.bound(0);
    world.waits(300, 10);
    world.waits(300, 10);
    // It starts half a millisecond after it was bound, and takes ten.
    let wake = world.router.next_wake(world.now);
    assert_eq!(wake, Some(world.now.after(Span(10 * MS))));
    world.advance(10 * MS);
    assert_eq!(world.turns().len(), 1);
    world.advance(MS / 10);
    assert!(world.turns().is_empty());
}

#[test]
fn an_overdue_estimate_binds_no_request_ahead() {
    let mut world = World::with(Rule::LateBinding, &[single(0)]);
    world.bound(0);
    world.advance(12 * MS);
    world.waits(300, 10);
    assert!(world.turns().is_empty());
}

#[test]
fn ties_go_to_monoliths() {
    let pipeline = Shape {
        stages: 3,
        ..single(0)
    };
    let mut world = World::with(Rule::LateBinding, &[pipeline, single(1)]);
    assert_eq!(world.bound(0).0, 1);
}

#[test]
fn a_request_late_at_a_free_place_waits_for_one_that_is_in_time() {
    let mut world = World::with(Rule::LateBinding, &[at_speed(100), at_speed(40)]);
    let (fast, binding) = world.bound(0);
    assert_eq!(fast, 0);
    // On the slow instance it takes 50 ms, on the fast one 20 ms from the time that is free.
    world.waits(40, 20);
    // The next is in time on the slow one, and does not wait behind the first.
    let routed = world.arrive(100, 20, 0);
    assert!(matches!(routed, Decision::Waits(_)));
    assert_eq!(world.turns(), [(3, 1, RouteReason::Turn)]);
    world.advance(5 * MS);
    world.answered(binding);
    assert_eq!(world.turns(), [(2, 0, RouteReason::Turn)]);
}

#[test]
fn without_a_limit_nothing_waits_and_the_least_loaded_serves() {
    let unlimited = Shape::monolith(Places::Unlimited, 0);
    let mut world = World::with(Rule::LateBinding, &[unlimited; 3]);
    let order: Vec<u32> = (0..7).map(|_| world.bound(0).0).collect();
    assert_eq!(order, [0, 1, 2, 0, 1, 2, 0]);
    assert_eq!(world.router.waiting(), 0);
}

#[test]
fn a_new_instance_starts_slowly() {
    let shape = Shape::monolith(Places::Fixed(8), 0);
    let mut world = World::of(settings(Rule::LateBinding), &[]);
    let now = world.now;
    world.router.add(now, shape, &mut world.actions);
    let (_, first) = world.bound(0);
    world.waits(100, 10);
    world.answered(first);
    // One answer, two places.
    assert_eq!(world.turns().len(), 1);
    world.bound(0);
    world.waits(100, 10);
    assert!(world.turns().is_empty());
    // After ten seconds it is treated as any other.
    world.advance(10_000 * MS);
    assert_eq!(world.turns().len(), 1);
}

#[test]
fn three_failures_to_connect_eject_but_never_the_last_one() {
    let mut world = World::with(Rule::LateBinding, &[single(0), single(1)]);
    let fail = |world: &mut World, instance: u32| {
        loop {
            let (at, binding) = world.bound(0);
            if at == instance {
                world.end(binding, Completion::NotConnected);
                return;
            }
            world.answered(binding);
        }
    };
    for _ in 0..2 {
        fail(&mut world, 0);
    }
    assert_eq!(world.router.ready(), 2);
    world.actions.clear();
    fail(&mut world, 0);
    let until = world.now.after(SECOND);
    let ejected = Action::Eject {
        instance: InstanceId(0),
        reason: EjectReason::Connect,
        until,
    };
    assert_eq!(world.actions, [ejected]);
    assert_eq!((world.router.ready(), world.router.ejected()), (1, 1));
    for _ in 0..9 {
        fail(&mut world, 1);
    }
    assert_eq!(world.router.ready(), 1);
    assert_eq!(world.router.next_wake(world.now), Some(until));
    world.actions.clear();
    world.advance(SECOND.0);
    let back = Action::Return {
        instance: InstanceId(0),
    };
    assert_eq!(world.actions, [back]);
    assert_eq!(world.router.ready(), 2);
}

#[test]
fn an_instance_removed_while_ejected_never_returns() {
    let mut world = World::with(Rule::LateBinding, &[single(0), single(1)]);
    let eight = Shape::monolith(Places::Fixed(8), 2);
    let now = world.now;
    let leaves = world.router.add(now, eight, &mut world.actions);
    world.advance(10_000 * MS);
    let mut at_it = Vec::new();
    while at_it.len() < 4 {
        let (instance, binding) = world.bound(0);
        if instance == leaves.0 {
            at_it.push(binding);
        } else {
            world.answered(binding);
        }
    }
    for binding in at_it.drain(..3) {
        world.end(binding, Completion::NotConnected);
    }
    assert_eq!(world.router.ejected(), 1);
    let now = world.now;
    world.router.remove(now, leaves, &mut world.actions);
    world.actions.clear();
    // One request is still there when its time is over, and so is that of another instance.
    for _ in 0..3 {
        let binding = loop {
            let (instance, binding) = world.bound(0);
            if instance == 0 {
                break binding;
            }
            world.answered(binding);
        };
        world.end(binding, Completion::NotConnected);
    }
    let now = world.now;
    world.router.probed(now, leaves, true, &mut world.actions);
    world.advance(100 * SECOND.0);
    let returned = world.actions.iter().filter_map(|action| match action {
        Action::Return { instance } => Some(instance.0),
        _ => None,
    });
    assert_eq!(returned.collect::<Vec<_>>(), [0]);
    world.answered(at_it[0]);
    assert_eq!(world.router.instance_of(at_it[0]), None);
}

#[test]
fn a_missed_probe_ejects_until_one_is_answered() {
    let mut world = World::with(Rule::LateBinding, &[single(0), single(1)]);
    let now = world.now;
    world
        .router
        .probed(now, InstanceId(1), false, &mut world.actions);
    assert_eq!(world.router.ready(), 1);
    world.advance(100 * SECOND.0);
    assert_eq!(world.router.ready(), 1);
    assert_eq!(world.router.next_wake(world.now), None);
    let now = world.now;
    world
        .router
        .probed(now, InstanceId(1), true, &mut world.actions);
    assert_eq!(world.router.ready(), 2);
    // The last instance is kept.
    for instance in [InstanceId(0), InstanceId(1)] {
        world
            .router
            .probed(now, instance, false, &mut world.actions);
    }
    assert_eq!(world.router.ready(), 1);
}

#[test]
fn the_last_instance_that_missed_a_probe_is_ejected_when_another_is_added() {
    let mut world = World::with(Rule::LateBinding, &[single(0)]);
    let now = world.now;
    world
        .router
        .probed(now, InstanceId(0), false, &mut world.actions);
    assert_eq!((world.router.ready(), world.router.ejected()), (1, 0));
    let comes = world.router.add(now, single(1), &mut world.actions);
    assert_eq!((world.router.ready(), world.router.ejected()), (1, 1));
    assert_eq!(world.bound(0).0, comes.0);
    // The same if both are unresponsive and the one that was ejected first is the first to answer again.
    world.router.probed(now, comes, false, &mut world.actions);
    assert_eq!((world.router.ready(), world.router.ejected()), (1, 1));
    world
        .router
        .probed(now, InstanceId(0), true, &mut world.actions);
    assert_eq!((world.router.ready(), world.router.ejected()), (1, 1));
    assert_eq!(world.bound(0).0, 0);
    // An instance that answers again counts as any other.
    world.router.probed(now, comes, true, &mut world.actions);
    assert_eq!((world.router.ready(), world.router.ejected()), (2, 0));
}

#[test]
fn an_instance_without_connections_and_probes_returns_only_when_it_answers_a_probe() {
    let mut world = World::with(Rule::LateBinding, &[single(0), single(1)]);
    let mut failures = 0;
    while failures < 3 {
        let (at, binding) = world.bound(0);
        if at == 1 {
            world.end(binding, Completion::NotConnected);
            failures += 1;
        } else {
            world.answered(binding);
        }
    }
    assert_eq!((world.router.ready(), world.router.ejected()), (1, 1));
    let now = world.now;
    world
        .router
        .probed(now, InstanceId(1), false, &mut world.actions);
    assert_eq!(world.router.next_wake(now), None);
    world.advance(100 * SECOND.0);
    assert_eq!((world.router.ready(), world.router.ejected()), (1, 1));
    let now = world.now;
    world
        .router
        .probed(now, InstanceId(1), true, &mut world.actions);
    assert_eq!((world.router.ready(), world.router.ejected()), (2, 0));
}

#[test]
fn a_request_whose_connection_failed_is_retried_in_its_old_order() {
    let mut world = World::with(Rule::LateBinding, &[single(0), single(1)]);
    let first = world.request(100, 10);
    let now = world.now;
    let routed = world.router.arrive(now, &first, 0, &mut world.actions);
    let Decision::Bound { binding, .. } = routed else {
        panic!("{routed:?}");
    };
    let (_, other) = world.bound(0);
    world.waits(200, 10);
    world.end(binding, Completion::NotConnected);
    // The request that waited has its place now.
    assert_eq!(world.turns(), [(3, 0, RouteReason::Turn)]);
    let now = world.now;
    let again = world
        .router
        .arrive_again(now, &first, 0, &mut world.actions);
    assert!(matches!(again, Decision::Waits(_)));
    world.waits(90, 10);
    world.waits(150, 10);
    world.answered(other);
    assert_eq!(world.turns(), [(4, 1, RouteReason::Turn)]);
}

#[test]
fn the_first_request_held_for_a_cold_start_is_kept_and_others_are_shed_at_their_deadlines() {
    let late = Late::Shed;
    let mut world = World::of(
        Settings {
            late,
            ..settings(Rule::LateBinding)
        },
        &[],
    );
    world.waits(100, 60);
    world.waits(100, 60);
    world.waits(300, 60);
    world.advance(99 * MS);
    assert!(world.actions.is_empty());
    world.advance(2 * MS);
    // One late request a second is kept as well; a third that turns late is shed.
    world.advance(200 * MS);
    let shed = world.actions.drain(..).map(|action| match action {
        Action::Refuse { id, reason, .. } => (id.0, reason),
        other => panic!("{other:?}"),
    });
    assert_eq!(shed.collect::<Vec<_>>(), [(3, RefuseReason::Late)]);
    let now = world.now;
    world.router.add(now, single(0), &mut world.actions);
    assert_eq!(world.turns(), [(1, 0, RouteReason::LateTurn)]);
}

#[test]
fn as_many_wait_as_instances_allow_within_bounds() {
    let mut world = World::with(Rule::LateBinding, &[]);
    assert_eq!(world.router.waiting_max(), 10_000);
    let now = world.now;
    let first = world.router.add(now, single(0), &mut world.actions);
    assert_eq!(world.router.waiting_max(), 100);
    world.router.remove(now, first, &mut world.actions);
    for n in 0..30 {
        let now = world.now;
        world.router.add(now, single(n), &mut world.actions);
    }
    assert_eq!(world.router.waiting_max(), 300);
    let waiting_max = 50;
    let few = Settings {
        waiting_max,
        ..settings(Rule::LateBinding)
    };
    assert_eq!(Router::new(few).waiting_max(), 50);
}

#[test]
fn owners_divide_places_and_an_owner_without_any_borrows_those_of_one_instance() {
    let mut world = World::with(Rule::LateBinding, &[single(0), single(1)]);
    let now = world.now;
    let half = Share { index: 1, of: 2 };
    world.router.set_share(now, half, &mut world.actions);
    assert_eq!(world.bound(0).0, 1);
    world.waits(100, 10);
    let mut alone = World::with(Rule::LateBinding, &[single(0)]);
    let now = alone.now;
    alone.router.set_share(now, half, &mut alone.actions);
    assert_eq!(alone.bound(0).0, 0);
}

#[test]
fn knatives_rule_for_few_places_chooses_the_first_free_instance() {
    let three = Shape::monolith(Places::Fixed(3), 0);
    let mut world = World::with(Rule::Knative, &[three; 2]);
    let bound: Vec<_> = (0..6).map(|_| world.bound(0)).collect();
    let order: Vec<u32> = bound.iter().map(|&(instance, _)| instance).collect();
    assert_eq!(order, [0, 0, 0, 1, 1, 1]);
    // In order of arrival, independent of deadlines.
    world.waits(500, 10);
    world.waits(50, 10);
    world.answered(bound[0].1);
    assert_eq!(world.turns(), [(7, 0, RouteReason::Turn)]);
}

#[test]
fn knatives_rule_for_more_places_takes_turns_among_free_instances() {
    let four = Shape::monolith(Places::Fixed(4), 0);
    let mut world = World::with(Rule::Knative, &[four; 2]);
    let order: Vec<u32> = (0..8).map(|_| world.bound(0).0).collect();
    assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1]);
    world.waits(100, 10);
}

#[test]
fn knatives_rule_without_a_limit_chooses_the_less_loaded_of_two() {
    let unlimited = Shape::monolith(Places::Unlimited, 0);
    let mut world = World::with(Rule::Knative, &[unlimited; 2]);
    assert_eq!(world.bound(0).0, 0);
    // The second is less loaded, whichever was drawn first.
    assert_eq!(world.bound(0).0, 1);
    assert_eq!(world.bound(1).0, 1);
    assert_eq!(world.bound(1).0, 0);
}

#[test]
fn rules_that_bind_at_arrival_queue_no_request() {
    for rule in [
        Rule::Paper,
        Rule::RoundRobin,
        Rule::LeastRequest,
        Rule::PeakEwma,
        Rule::Random,
    ] {
        let mut world = World::with(rule, &[single(0), single(1), single(2)]);
        let mut counts = [0; 3];
        for n in 0..99_u64 {
            let random = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            counts[world.bound(random).0 as usize] += 1;
        }
        assert_eq!(world.router.waiting(), 0);
        assert!(
            counts.iter().all(|&count| count > 15),
            "{rule:?} {counts:?}"
        );
    }
}

#[test]
fn the_paper_fills_the_fastest_up_to_its_serving_capacity() {
    let mut world = World::with(Rule::Paper, &[at_speed(40), at_speed(100)]);
    // 100 ms remain: ten requests of 10 ms on the fast instance, four of 25 on the slow one.
    let order: Vec<u32> = (0..14).map(|_| world.bound(0).0).collect();
    assert_eq!(order[..10], [1; 10]);
    assert_eq!(order[10..], [0; 4]);
    // None is in time: the one that ends first is chosen.
    assert_eq!(world.bound(0).0, 1);
}

#[test]
fn a_peak_of_latency_raises_the_estimate_at_once_and_decays_slowly() {
    let mut world = World::with(Rule::PeakEwma, &[single(0), single(1)]);
    let (first, binding) = world.bound(0);
    let (second, other) = world.bound(1);
    assert_eq!((first, second), (0, 1));
    world.advance(10 * MS);
    world.answered(other);
    world.advance(90 * MS);
    world.answered(binding);
    // 100 ms against 10.
    for random in [0, 1] {
        let (instance, binding) = world.bound(random);
        assert_eq!(instance, 1);
        world.answered(binding);
    }
}

#[test]
fn estimates_are_learned_for_each_instance_from_start_to_end() {
    let mut world = World::with(Rule::LateBinding, &[single(0), single(1)]);
    let run = |world: &mut World| {
        let request = Request {
            execution: None,
            ..world.request(1_000, 0)
        };
        let now = world.now;
        match world.router.arrive(now, &request, 0, &mut world.actions) {
            Decision::Bound {
                instance, binding, ..
            } => (instance.0, binding),
            other => panic!("{other:?}"),
        }
    };
    for _ in 0..5 {
        let pair = [run(&mut world), run(&mut world)];
        world.advance(20 * MS);
        for (instance, binding) in pair {
            if instance == 0 {
                world.answered(binding);
            }
        }
        world.advance(60 * MS);
        for (instance, binding) in pair {
            if instance == 1 {
                world.answered(binding);
            }
        }
    }
    // Both are free: the one that was quick is chosen every time.
    for _ in 0..3 {
        let (instance, binding) = run(&mut world);
        assert_eq!(instance, 0);
        world.advance(20 * MS);
        world.answered(binding);
    }
}
