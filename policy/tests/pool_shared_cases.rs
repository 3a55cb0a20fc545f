//! Leases of shared slots, rule by rule.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::pool::leases::{
    Action, Claim, Class, Demand, Instance, InstanceId, Location, PARKED_CREDIT_MAX, PARKED_SHARE,
    RECALL_QUIET_MAX, RESTART_MAX, RETRY,
};
use policy::pool::shared::SharedLeases;
use policy::pool::{FunctionId, Percentile, SlotId, queue};
use policy::{Span, Time};

const MS: u64 = 1_000_000;

/// A slot of 100 bytes and its instances, whose queues are connected.
struct Case {
    leases: SharedLeases,
    now: u64,
}

impl Case {
    fn new(instances: u32) -> Self {
        Self::of(instances, false, |_| {})
    }

    fn of(instances: u32, streams: bool, change: impl Fn(&mut Instance)) -> Self {
        let mut leases = SharedLeases::new(queue::Settings::default(), streams);
        leases.set_slot(SlotId(0), 100);
        leases.set_usable(SlotId(0), true);
        for id in 0..instances {
            let mut about = Instance {
                function: FunctionId(id),
                slot: SlotId(0),
                percentile: Percentile::default(),
                objective: Span::from_millis(100),
                class: Class::Tenant { namespace: 0 },
                may_leave: true,
            };
            if id == 0 {
                change(&mut about);
            }
            leases.add(Time(0), InstanceId(id), &about).unwrap();
            leases.connect(Time(0), InstanceId(id), false);
        }
        let mut case = Self { leases, now: 1 };
        case.decide();
        case
    }

    fn decide(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.leases.decide(Time(self.now), &mut actions);
        actions
    }

    fn pass(&mut self, ms: u64) -> Vec<Action> {
        self.now += ms * MS;
        self.decide()
    }

    fn claim(&mut self, id: u32, bytes: u64) -> Claim {
        self.leases.claim(Time(self.now), InstanceId(id), bytes)
    }

    fn idle(&mut self, id: u32) {
        self.leases.idle(Time(self.now), InstanceId(id), false);
    }

    fn ends(&mut self, id: u32) -> Vec<Action> {
        self.leases.idle(Time(self.now), InstanceId(id), true);
        self.decide()
    }

    fn head(&mut self, id: u32, within_ms: u64) -> Vec<Action> {
        let demand = Demand {
            deadline: Time(self.now + within_ms * MS),
            estimate: Span::from_millis(5),
            waiting: 1,
            may_move: true,
        };
        self.leases.head(Time(self.now), InstanceId(id), demand);
        self.decide()
    }

    fn evicted(&mut self, id: u32, has_left: bool) -> Vec<Action> {
        self.leases
            .evicted(Time(self.now), InstanceId(id), has_left);
        self.decide()
    }

    fn restored(&mut self, id: u32) -> Vec<Action> {
        self.leases.restored(Time(self.now), InstanceId(id), true);
        self.decide()
    }

    fn is_holder(&self, id: u32) -> bool {
        self.leases.view(InstanceId(id)).unwrap().is_holder
    }
}

const fn recall(id: u32) -> Action {
    Action::Recall(InstanceId(id))
}

fn evicts(actions: &[Action]) -> Vec<u32> {
    let evicted = actions.iter().filter_map(|action| match action {
        Action::Evict {
            instance: InstanceId(id),
            ..
        } => Some(*id),
        _ => None,
    });
    evicted.collect()
}

/// Three instances with 30 bytes each, of which the first has been without work for longest, and a fourth of 30 bytes that is away.
fn one_of_four_away() -> Case {
    one_of_four_away_of(|_| {})
}

/// As [`one_of_four_away`], with the first instance as `change` has it.
fn one_of_four_away_of(change: impl Fn(&mut Instance)) -> Case {
    let mut case = Case::of(4, false, change);
    assert_eq!(case.claim(3, 30), Claim::Granted);
    case.idle(3);
    case.leases
        .located(Time(case.now), InstanceId(3), Location::Host);
    assert_eq!(case.decide(), [recall(3)], "nothing of it is there");
    assert_eq!(case.ends(3), []);
    for id in 0..3 {
        assert_eq!(case.claim(id, 30), Claim::Granted);
        case.now += MS;
        case.idle(id);
    }
    assert_eq!(case.decide(), []);
    case
}

#[test]
fn models_that_fit_together_are_never_recalled() {
    let mut case = Case::new(3);
    for id in 0..3 {
        assert_eq!(case.claim(id, 33), Claim::Granted);
    }
    for id in [0, 1, 2, 0] {
        assert_eq!(case.head(id, 1), []);
        assert_eq!(case.pass(1_000), []);
        case.idle(id);
    }
    assert!((0..3).all(|id| case.is_holder(id)));
}

#[test]
fn the_model_that_was_without_work_for_longest_leaves_first() {
    let mut case = one_of_four_away();
    assert_eq!(case.head(0, 100), [], "it has work again");
    case.idle(0);
    assert_eq!(case.head(3, 100), [recall(1)]);
    assert_eq!(evicts(&case.ends(1)), [1]);
    assert_eq!(case.evicted(1, true), [Action::Restore(InstanceId(3))]);
    assert!(!case.is_holder(3));
    assert_eq!(case.restored(3), [Action::Lease(InstanceId(3))]);
}

#[test]
fn a_model_without_which_requests_could_hardly_be_in_time_leaves_last() {
    // Each takes 16 ms to load, as far as is known: most of the objective of the first alone, which has been idle for longest.
    let mut case = one_of_four_away_of(|about| about.objective = Span::from_millis(20));
    let id = InstanceId(0);
    case.leases.located(Time(case.now), id, Location::Host);
    case.decide();
    case.ends(0);
    assert_eq!(case.head(0, 100), [Action::Restore(id)]);
    case.now += 16 * MS;
    assert_eq!(case.restored(0), [Action::Lease(id)]);
    case.idle(0);
    for other in [1, 2] {
        case.now += MS;
        case.head(other, 100);
        case.idle(other);
    }
    assert_eq!(case.head(3, 100), [recall(1)]);
}

#[test]
fn no_more_models_leave_than_are_needed() {
    let mut case = Case::new(4);
    for (id, bytes) in [(0, 10), (1, 20), (2, 60)] {
        assert_eq!(case.claim(id, bytes), Claim::Granted);
        case.now += MS;
        case.idle(id);
    }
    // 40 more are needed: those of 10 and 20 would not do, and that of 60 does alone.
    assert_eq!(case.claim(3, 50), Claim::Waits);
    assert_eq!(case.decide(), [recall(2)]);
}

/// Two instances with 60 bytes each: the first has work, and the other is away.
fn one_with_work_and_one_away() -> Case {
    let mut case = Case::new(2);
    assert_eq!(case.claim(1, 60), Claim::Granted);
    case.leases
        .located(Time(case.now), InstanceId(1), Location::Host);
    assert_eq!(case.claim(0, 60), Claim::Granted);
    case.head(0, 100);
    case.idle(1);
    case.decide();
    case.ends(1);
    case
}

#[test]
fn an_instance_with_work_is_recalled_when_a_head_could_miss() {
    let mut case = one_with_work_and_one_away();
    assert_eq!(case.head(1, 200), []);
    let wake = case.leases.next_wake().unwrap();
    // Its own 5 ms, and 5 ms that the other may still compute; a load of 60 bytes takes nothing.
    let due = 200 - 5 - 5;
    assert!(wake.0 > case.now + (due - 1) * MS && wake.0 <= case.now + due * MS);
    assert_eq!(case.pass(due - 1), []);
    assert_eq!(case.pass(1), [recall(0)]);
}

#[test]
fn an_instance_with_work_is_recalled_earlier_if_the_last_recall_took_longer() {
    let mut case = one_with_work_and_one_away();
    assert_eq!(case.head(1, 200), []);
    assert_eq!(case.pass(190), [recall(0)]);
    case.now += 20 * MS;
    assert_eq!(evicts(&case.ends(0)), [0]);
    assert_eq!(case.evicted(0, true), [Action::Restore(InstanceId(1))]);
    assert_eq!(case.restored(1), [Action::Lease(InstanceId(1))]);
    case.idle(1);
    // And back.
    assert_eq!(case.head(0, 100), [recall(1)]);
    assert_eq!(evicts(&case.ends(1)), [1]);
    assert_eq!(case.evicted(1, true), [Action::Restore(InstanceId(0))]);
    assert_eq!(case.restored(0), [Action::Lease(InstanceId(0))]);
    assert_eq!(case.head(1, 200), []);
    // Its own 5 ms, and 40 after a single drain of 20.
    assert_eq!(case.pass(200 - 5 - 40 - 1), []);
    assert_eq!(case.pass(1), [recall(0)]);
}

#[test]
fn a_claim_waits_until_a_lease_has_lasted_for_twice_the_load() {
    let mut case = Case::new(2);
    // Loads take 50 ms.
    assert_eq!(case.claim(0, 60), Claim::Granted);
    let id = InstanceId(0);
    case.idle(0);
    case.leases.located(Time(case.now), id, Location::Host);
    case.decide();
    case.ends(0);
    case.head(0, 100);
    assert_eq!(case.claim(1, 60), Claim::Waits, "it is on its way");
    case.now += 50 * MS;
    case.restored(0);
    assert_eq!(case.decide(), []);
    assert_eq!(case.pass(99), []);
    assert_eq!(case.pass(1), [recall(0)]);
}

#[test]
fn a_recalled_instance_that_ends_leaves_although_it_has_a_head_again() {
    let mut case = one_of_four_away();
    assert_eq!(case.head(3, 100), [recall(0)]);
    assert_eq!(case.head(0, 1), []);
    assert_eq!(evicts(&case.ends(0)), [0]);
}

#[test]
fn a_lease_that_was_recalled_for_nothing_begins_again() {
    let mut case = one_of_four_away();
    assert_eq!(case.head(3, 100), [recall(0)]);
    let withdrawn = Demand {
        deadline: Time(0),
        estimate: Span::ZERO,
        waiting: 0,
        may_move: true,
    };
    case.leases.head(Time(case.now), InstanceId(3), withdrawn);
    assert_eq!(case.ends(0), [Action::Lease(InstanceId(0))]);
}

#[test]
fn of_two_that_wait_for_memory_amid_requests_the_later_leaves() {
    let mut case = Case::new(2);
    assert_eq!(case.claim(0, 50), Claim::Granted);
    assert_eq!(case.claim(1, 50), Claim::Granted);
    assert_eq!(case.claim(0, 60), Claim::Waits);
    case.decide();
    assert_eq!(case.claim(1, 60), Claim::Waits);
    let actions = case.pass(10);
    assert_eq!(evicts(&actions), [1], "{actions:?}");
    let granted = Action::Claim {
        instance: InstanceId(0),
        granted: true,
    };
    assert!(case.evicted(1, true).contains(&granted));
    // The other goes on once the first has nothing to do.
    case.idle(0);
    case.decide();
    let actions = case.ends(0);
    assert_eq!(evicts(&actions), [0], "{actions:?}");
    assert_eq!(case.evicted(0, true), [Action::Restore(InstanceId(1))]);
    let granted = Action::Claim {
        instance: InstanceId(1),
        granted: true,
    };
    assert!(case.restored(1).contains(&granted));
}

#[test]
fn claims_that_can_never_fit_are_refused() {
    let mut case = Case::of(2, false, |first| first.may_leave = false);
    assert_eq!(case.claim(1, 101), Claim::Refused);
    assert_eq!(case.claim(0, 60), Claim::Granted);
    assert_eq!(case.claim(1, 41), Claim::Refused, "the other never leaves");
    assert_eq!(case.claim(1, 40), Claim::Granted);
}

#[test]
fn a_model_that_refuses_to_leave_stays_for_a_second() {
    let mut case = one_of_four_away();
    assert_eq!(case.head(3, 100), [recall(0)]);
    case.ends(0);
    // Another one makes the room, and the first has its lease back.
    let actions = case.evicted(0, false);
    assert!(actions.contains(&recall(1)), "{actions:?}");
    assert!(actions.contains(&Action::Lease(InstanceId(0))));
    assert_eq!(evicts(&case.ends(1)), [1]);
    case.evicted(1, false);
    case.ends(2);
    assert_eq!(evicts(&case.evicted(2, false)), []);
    case.idle(0);
    assert_eq!(case.pass(RETRY.0 / MS), [recall(0)]);
}

#[test]
fn a_queue_that_answers_no_recall_is_waited_for_while_its_processes_compute() {
    let mut case = one_of_four_away();
    assert_eq!(case.head(3, 100), [recall(0)]);
    let quiet = RECALL_QUIET_MAX.0 / MS;
    assert_eq!(evicts(&case.pass(2 * quiet)), []);
    let since = Time(case.now);
    case.leases
        .quiet(Time(case.now), InstanceId(0), Some(since));
    assert_eq!(evicts(&case.pass(quiet - 1)), []);
    assert_eq!(evicts(&case.pass(1)), [0]);
}

#[test]
fn an_instance_whose_process_has_failed_gets_no_lease_until_the_next() {
    let mut case = Case::new(1);
    let id = InstanceId(0);
    case.claim(0, 10);
    case.leases.set_failed(Time(case.now), id, true);
    assert_eq!(case.decide(), [recall(0)]);
    assert_eq!(case.ends(0), []);
    case.leases.lost(Time(case.now), id);
    assert_eq!(case.pass(RESTART_MAX.0 / MS - 1), []);
    assert_eq!(case.pass(1), [Action::Lease(id)]);
}

#[test]
fn on_a_lost_device_each_queue_has_a_lease_and_nothing_moves() {
    let mut case = one_of_four_away();
    case.leases.set_lost(Time(case.now), SlotId(0), true);
    assert_eq!(case.head(3, 100), [Action::Lease(InstanceId(3))]);
    assert_eq!(case.claim(3, 1_000), Claim::Granted);
}

#[test]
fn with_streams_the_lease_comes_as_the_model_begins_to_return() {
    let mut case = Case::of(1, true, |_| {});
    let id = InstanceId(0);
    case.claim(0, 10);
    case.idle(0);
    case.leases.located(Time(case.now), id, Location::Host);
    case.decide();
    case.ends(0);
    assert_eq!(case.head(0, 100), [Action::Restore(id), Action::Lease(id)]);
}

#[test]
fn one_model_at_a_time_returns_on_a_path() {
    let mut leases = SharedLeases::new(queue::Settings::default(), false);
    let mut actions = Vec::new();
    for slot in 0..3 {
        leases.set_slot(SlotId(slot), 100);
        leases.set_host_path(SlotId(slot), slot / 2);
        leases.set_usable(SlotId(slot), true);
        let id = InstanceId(slot);
        let about = Instance {
            function: FunctionId(slot),
            slot: SlotId(slot),
            percentile: Percentile::default(),
            objective: Span::ZERO,
            class: Class::Tenant { namespace: 0 },
            may_leave: true,
        };
        leases.add(Time(1), id, &about).unwrap();
        leases.connect(Time(1), id, false);
        leases.claim(Time(1), id, 10);
        leases.located(Time(1), id, Location::Host);
        leases.park(Time(1), id, Time(2));
    }
    leases.decide(Time(3), &mut actions);
    let restores = |actions: &[Action]| {
        let all = actions.iter().filter_map(|action| match action {
            Action::Restore(InstanceId(id)) => Some(*id),
            _ => None,
        });
        all.collect::<Vec<_>>()
    };
    assert_eq!(restores(&actions), [0, 2]);
    actions.clear();
    leases.restored(Time(4), InstanceId(0), true);
    leases.decide(Time(4), &mut actions);
    assert_eq!(restores(&actions), [1]);
}

#[test]
fn a_failed_instance_whose_queue_states_a_lease_gets_none() {
    let mut case = Case::new(1);
    let id = InstanceId(0);
    case.claim(0, 10);
    case.leases.disconnect(Time(case.now), id);
    case.leases.set_failed(Time(case.now), id, true);
    case.leases.connect(Time(case.now), id, true);
    assert_eq!(case.decide(), []);
    assert!(!case.is_holder(0));
}

#[test]
fn a_claim_that_waits_is_granted_once_the_device_is_lost_or_no_queue_is_left() {
    for is_lost in [true, false] {
        let mut case = Case::new(2);
        assert_eq!(case.claim(0, 60), Claim::Granted);
        assert_eq!(case.claim(1, 10), Claim::Granted);
        let id = InstanceId(1);
        case.leases.located(Time(case.now), id, Location::Host);
        assert_eq!(case.claim(1, 60), Claim::Waits);
        case.decide();
        if is_lost {
            case.leases.set_lost(Time(case.now), SlotId(0), true);
        } else {
            for id in 0..2 {
                case.leases.disconnect(Time(case.now), InstanceId(id));
            }
        }
        let granted = Action::Claim {
            instance: id,
            granted: true,
        };
        assert!(case.decide().contains(&granted), "lost {is_lost}");
    }
}

#[test]
fn a_claim_that_waits_is_refused_once_it_can_never_be_granted() {
    let mut case = Case::new(2);
    assert_eq!(case.claim(0, 50), Claim::Granted);
    assert_eq!(case.claim(1, 80), Claim::Waits);
    case.leases.set_slot(SlotId(0), 80);
    let refused = Action::Claim {
        instance: InstanceId(1),
        granted: false,
    };
    assert!(!case.decide().contains(&refused));
    case.leases.set_slot(SlotId(0), 70);
    assert!(case.decide().contains(&refused));
    assert!(!case.leases.has_claims());
}

/// Instance 1 loads without a request, on a slot that is full, beside instance 0, which has had no work for long.
fn one_that_loads() -> Case {
    let mut case = Case::of(2, false, |first| {
        first.objective = Span::from_millis(10_000);
    });
    assert_eq!(case.claim(0, 50), Claim::Granted);
    (0..2).for_each(|id| case.idle(id));
    case.pass(1_000);
    assert_eq!(case.claim(1, 30), Claim::Granted);
    assert_eq!(case.claim(1, 60), Claim::Waits);
    assert_eq!(case.decide(), [recall(0)]);
    assert_eq!(evicts(&case.ends(0)), [0]);
    let granted = Action::Claim {
        instance: InstanceId(1),
        granted: true,
    };
    assert!(case.evicted(0, true).contains(&granted));
    case
}

#[test]
fn a_model_that_loads_stays_for_its_credit_while_heads_wait() {
    let mut case = one_that_loads();
    let busy = |case: &mut Case| {
        let (now, id) = (Time(case.now), InstanceId(1));
        case.leases.quiet(now, id, None);
        case.decide()
    };
    busy(&mut case);
    assert_eq!(case.head(0, 100), [], "it loads");
    assert_eq!(case.pass(PARKED_CREDIT_MAX.0 / MS - 1), []);
    assert_eq!(case.pass(1), [recall(1)]);
    assert_eq!(evicts(&case.ends(1)), [1]);
    assert_eq!(case.evicted(1, true), [Action::Restore(InstanceId(0))]);
    case.now += 20 * MS;
    case.restored(0);
    case.idle(0);
    // It begins again once all of its credit has come back.
    let (now, id) = (Time(case.now), InstanceId(1));
    case.leases.park(now, id, now);
    let gained = PARKED_CREDIT_MAX.0 * PARKED_SHARE / MS;
    let mut busy_for = 0;
    while busy_for < gained - 100 {
        // The other is never without work for long.
        case.leases.quiet(Time(case.now), id, None);
        case.head(0, 100);
        case.idle(0);
        assert_eq!(case.pass(9), [], "after {busy_for} ms");
        busy_for += 9;
    }
    assert_eq!(case.pass(100), [recall(0)]);
}

#[test]
fn a_model_that_has_loaded_leaves_for_a_head() {
    let mut case = one_that_loads();
    let now = Time(case.now);
    case.leases.quiet(now, InstanceId(1), Some(now));
    assert_eq!(case.head(0, 100), [], "it may go on");
    assert_eq!(case.pass(199), []);
    assert_eq!(case.pass(1), [recall(1)]);
}

#[test]
fn a_thread_that_waits_has_no_model_leave_that_was_just_used() {
    let mut case = Case::of(2, false, |first| first.objective = Span::ZERO);
    assert_eq!(case.claim(0, 60), Claim::Granted);
    let id = InstanceId(0);
    case.leases.located(Time(case.now), id, Location::Host);
    case.idle(0);
    case.decide();
    case.ends(0);
    assert_eq!(case.claim(1, 60), Claim::Granted);
    // Its loads take 50 ms.
    case.leases
        .located(Time(case.now), InstanceId(1), Location::Host);
    case.idle(1);
    case.decide();
    case.ends(1);
    assert_eq!(case.head(1, 1_000), [Action::Restore(InstanceId(1))]);
    case.now += 50 * MS;
    case.restored(1);
    case.idle(1);
    let by = Time(case.now + 10_000 * MS);
    case.leases.park(Time(case.now), id, by);
    assert_eq!(case.decide(), []);
    assert_eq!(case.pass(99), []);
    assert_eq!(case.pass(1), [recall(1)]);
}

#[test]
fn a_request_that_waits_for_memory_outlasts_no_turn_by_more_than_its_credit() {
    let mut case = Case::of(3, false, |first| first.may_leave = true);
    assert_eq!(case.claim(0, 30), Claim::Granted);
    (0..3).for_each(|id| case.idle(id));
    case.decide();
    // The second one loads, and goes on.
    assert_eq!(case.claim(1, 60), Claim::Granted);
    let busy = |case: &mut Case| {
        let (now, id) = (Time(case.now), InstanceId(1));
        case.leases.quiet(now, id, None);
        case.decide()
    };
    busy(&mut case);
    // What the first one runs grows beyond what there is.
    case.head(0, 10_000);
    assert_eq!(case.claim(0, 50), Claim::Waits);
    assert_eq!(busy(&mut case), []);
    assert_eq!(case.pass(PARKED_CREDIT_MAX.0 / MS - 1), []);
    assert_eq!(case.pass(1), [recall(1)]);
}
