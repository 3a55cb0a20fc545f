//! Leases that begin late: others compute on a slot while a model takes long to return there.

use policy::pool::SlotId;
use policy::pool::leases::{
    Action, Claim, Class, Demand, Instance, InstanceId, Leases, Location, Settings,
};
use policy::{Span, Time};

use super::{MS, ONE, OTHER, SLOT, decide, demand, evict, head, instance, leases, resident};

const THIRD: InstanceId = InstanceId(2);
/// Bytes that are expected to load in 1 ms.
const OF_MS: u64 = 10_000_000;

/// Returns leases of a slot that holds models which take 100 ms to load: [`ONE`]'s model takes 40 and is away, [`OTHER`]'s takes 30 and is there, and
/// [`THIRD`]'s takes `third_ms` and is away. Requests take 5 ms.
fn slot(streams: bool, third_ms: u64) -> Leases {
    let settings = Settings {
        streams,
        ..Settings::default()
    };
    slot_with(settings, third_ms)
}

/// As [`slot`], with these settings.
fn slot_with(settings: Settings, third_ms: u64) -> Leases {
    let mut leases = leases(settings, &[40 * OF_MS, 0, third_ms * OF_MS]);
    leases.set_slot(SLOT, 100 * OF_MS);
    resident(&mut leases, OTHER, 30 * OF_MS);
    leases
}

const fn granted(id: InstanceId) -> [Action; 2] {
    [Action::Open(id), Action::Lease(id)]
}

/// Ends the lease of an instance that is idle at `ms`, for another.
fn end(leases: &mut Leases, ms: u64, id: InstanceId) {
    leases.idle(Time(ms * MS), id, false);
    let mut actions = decide(leases, ms);
    if actions.contains(&Action::Seal(id)) {
        leases.sealed(Time(ms * MS), id, true);
        actions.append(&mut decide(leases, ms));
    }
    assert!(actions.contains(&Action::Recall(id)), "{actions:?}");
    leases.idle(Time(ms * MS), id, true);
    assert_eq!(decide(leases, ms), [Action::Close(id)]);
    leases.closed(Time(ms * MS), id);
}

#[test]
fn others_compute_while_a_model_returns_and_its_lease_begins_when_it_is_there() {
    let mut leases = slot(false, 0);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    head(&mut leases, 105, OTHER);
    assert_eq!(decide(&mut leases, 105), granted(OTHER));
    leases.idle(Time(110 * MS), OTHER, false);
    assert_eq!(decide(&mut leases, 110), []);
    leases.restored(Time(140 * MS), ONE, true);
    end(&mut leases, 140, OTHER);
    assert_eq!(decide(&mut leases, 140), granted(ONE));
}

#[test]
fn a_lease_begins_when_its_model_is_there_although_its_load_was_expected_to_take_longer() {
    let mut leases = slot(false, 0);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    leases.restored(Time(120 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 120), granted(ONE));
}

#[test]
fn a_model_that_was_not_loaded_yet_is_expected_to_load_at_the_rate_of_others() {
    let mut leases = slot(true, 20);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    assert_eq!(decide(&mut leases, 133), granted(ONE));
    // 80 ms instead of 40.
    leases.restored(Time(180 * MS), ONE, true);
    leases.idle(Time(180 * MS), ONE, false);
    decide(&mut leases, 180);
    leases.sealed(Time(185 * MS), ONE, true);
    head(&mut leases, 200, THIRD);
    assert_eq!(decide(&mut leases, 200), [Action::Restore(THIRD)]);
    assert_eq!(leases.next_wake(), Some(Time(232_500_000)));
    assert_eq!(decide(&mut leases, 233), [Action::Recall(ONE)]);
}

#[test]
fn a_lease_begins_one_and_a_half_executions_before_the_end_of_a_load_that_is_streamed() {
    let mut leases = slot(true, 0);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    assert_eq!(decide(&mut leases, 132), []);
    assert_eq!(leases.next_wake(), Some(Time(132_500_000)));
    assert_eq!(decide(&mut leases, 133), granted(ONE));
}

#[test]
fn estimates_of_a_queue_decide_once_when_a_lease_begins() {
    let mut leases = slot(true, 0);
    // Few requests have computed, which counts only where nothing is estimated.
    leases.executed(ONE, Span::from_millis(1));
    let long = Demand {
        estimate: Span::from_millis(10),
        ..demand(100)
    };
    leases.head(Time(100 * MS), ONE, long);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    assert_eq!(leases.next_wake(), Some(Time(125 * MS)));
    assert_eq!(decide(&mut leases, 125), granted(ONE));
}

#[test]
fn a_lease_begins_with_the_load_if_that_takes_hardly_longer_than_the_request() {
    for (ms, begins_late) in [(12, false), (13, true)] {
        let mut leases = slot(true, ms);
        head(&mut leases, 100, THIRD);
        let actions = decide(&mut leases, 100);
        assert_eq!(actions[0], Action::Restore(THIRD));
        assert_eq!(actions[1..].is_empty(), begins_late, "{ms}: {actions:?}");
    }
}

#[test]
fn a_lease_begins_with_the_load_where_settings_have_it_so() {
    for setting in [
        Settings {
            begins_late: false,
            ..Settings::default()
        },
        Settings {
            loads_ahead: false,
            ..Settings::default()
        },
    ] {
        let streams = true;
        let mut leases = leases(Settings { streams, ..setting }, &[40 * OF_MS]);
        leases.set_slot(SLOT, 100 * OF_MS);
        head(&mut leases, 100, ONE);
        let [open, lease] = granted(ONE);
        assert_eq!(
            decide(&mut leases, 100),
            [Action::Restore(ONE), open, lease]
        );
    }
}

#[test]
fn a_model_that_has_returned_leaves_for_no_other_before_its_request_is_served() {
    // There is no room for both.
    let mut leases = slot(false, 80);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    leases.restored(Time(140 * MS), ONE, true);
    // It must begin before the other.
    let urgent = Demand {
        deadline: Time(230 * MS),
        ..demand(140)
    };
    leases.head(Time(140 * MS), THIRD, urgent);
    let actions = decide(&mut leases, 140);
    assert!(actions.starts_with(&granted(ONE)), "{actions:?}");
    // Then it does.
    leases.idle(Time(145 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 145), [Action::Seal(ONE)]);
    leases.sealed(Time(145 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 145), [Action::Close(ONE)]);
    leases.closed(Time(145 * MS), ONE);
    let actions = decide(&mut leases, 145);
    assert!(
        actions
            .iter()
            .any(|one| matches!(one, Action::Evict { .. })),
        "{actions:?}"
    );
}

#[test]
fn a_model_whose_request_is_withdrawn_may_leave_for_others() {
    let mut leases = slot(false, 80);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    let none = Demand {
        waiting: 0,
        ..demand(110)
    };
    leases.head(Time(110 * MS), ONE, none);
    leases.restored(Time(140 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 140), []);
    head(&mut leases, 141, THIRD);
    assert_eq!(decide(&mut leases, 141), [evict(OTHER)]);
    leases.evicted(Time(142 * MS), OTHER, true);
    assert_eq!(decide(&mut leases, 142), [evict(ONE)]);
}

#[test]
fn a_model_that_has_returned_leaves_for_memory_that_what_runs_waits_for() {
    let mut leases = slot(false, 0);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    head(&mut leases, 105, OTHER);
    assert_eq!(decide(&mut leases, 105), granted(OTHER));
    leases.restored(Time(140 * MS), ONE, true);
    assert_eq!(
        leases.claim(Time(141 * MS), OTHER, 70 * OF_MS),
        Claim::Waits
    );
    let actions = decide(&mut leases, 141);
    assert!(actions.contains(&evict(ONE)), "{actions:?}");
    leases.evicted(Time(142 * MS), ONE, true);
    assert!(decide(&mut leases, 142).contains(&Action::Claim {
        instance: OTHER,
        granted: true
    }));
}

#[test]
fn a_model_whose_process_has_failed_since_it_returned_leaves_for_others() {
    let mut leases = slot(false, 80);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    head(&mut leases, 135, OTHER);
    assert_eq!(decide(&mut leases, 135), granted(OTHER));
    leases.restored(Time(140 * MS), ONE, true);
    leases.set_failed(Time(141 * MS), ONE, true);
    head(&mut leases, 142, THIRD);
    end(&mut leases, 142, OTHER);
    let mut leaving = decide(&mut leases, 142);
    leases.evicted(Time(143 * MS), OTHER, true);
    leaving.append(&mut decide(&mut leases, 143));
    let gone = leaving.iter().map(|action| match action {
        Action::Evict { instance, .. } => *instance,
        other => panic!("{other:?}"),
    });
    assert_eq!(gone.collect::<Vec<_>>(), [OTHER, ONE]);
}

#[test]
fn a_request_that_is_late_when_its_model_has_returned_waits_for_no_other() {
    let yields = false;
    let settings = Settings {
        yields,
        ..Settings::default()
    };
    let mut leases = slot_with(settings, 0);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    head(&mut leases, 135, OTHER);
    assert_eq!(decide(&mut leases, 135), granted(OTHER));
    leases.restored(Time(150 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 170), [Action::Recall(OTHER)]);
    // What runs takes longer than expected, and more has come.
    head(&mut leases, 185, OTHER);
    leases.idle(Time(185 * MS), OTHER, true);
    assert_eq!(decide(&mut leases, 185), [Action::Close(OTHER)]);
    leases.closed(Time(185 * MS), OTHER);
    assert_eq!(decide(&mut leases, 185), granted(ONE));
}

#[test]
fn a_load_that_could_make_another_request_late_waits_for_its_model() {
    // Of 80 ms, 35 are left to the first: it may be delayed by as much as the other takes alone.
    for (ms, begins) in [(35, true), (45, false)] {
        let mut leases = slot(false, ms);
        head(&mut leases, 100, ONE);
        assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
        head(&mut leases, 105, THIRD);
        let actions = decide(&mut leases, 105);
        assert_eq!(actions == [evict(OTHER)], begins, "{ms}: {actions:?}");
        leases.restored(Time(140 * MS), ONE, true);
        let actions = decide(&mut leases, 140);
        assert_eq!(actions.starts_with(&granted(ONE)), !begins, "{actions:?}");
    }
}

#[test]
fn a_load_over_the_same_path_waits_for_a_model_unless_its_request_is_late_anyway() {
    for (deadline, begins) in [(180, false), (110, true)] {
        let mut leases = slot(false, 0);
        let (beside, other) = (SlotId(1), InstanceId(3));
        leases.set_slot(beside, 100 * OF_MS);
        leases.set_usable(beside, true);
        for slot in [SLOT, beside] {
            leases.set_host_path(slot, 0);
        }
        leases.add(Time(0), other, &instance(3, beside)).unwrap();
        leases.connect(Time(0), other, None);
        leases.holds(Time(0), other, 45 * OF_MS);
        leases.located(Time(0), other, Location::Host);
        let first = Demand {
            deadline: Time(deadline * MS),
            ..demand(100)
        };
        leases.head(Time(100 * MS), ONE, first);
        assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
        head(&mut leases, 105, other);
        let actions = decide(&mut leases, 105);
        assert_eq!(actions == [Action::Restore(other)], begins, "{actions:?}");
    }
}

#[test]
fn work_that_would_not_be_over_in_time_does_not_take_a_slot_to_which_a_model_returns() {
    for (estimate, begins) in [(69, true), (71, false)] {
        let mut leases = slot(false, 0);
        head(&mut leases, 100, ONE);
        assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
        let long = Demand {
            estimate: Span::from_millis(estimate),
            deadline: Time(500 * MS),
            ..demand(105)
        };
        leases.head(Time(105 * MS), OTHER, long);
        let actions = decide(&mut leases, 105);
        assert_eq!(actions == granted(OTHER), begins, "{actions:?}");
    }
    // Nor does what runs without a request.
    let mut leases = slot(false, 0);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    leases.park(Time(105 * MS), OTHER, Time(400 * MS));
    assert_eq!(decide(&mut leases, 105), []);
}

#[test]
fn the_queue_of_a_model_that_returns_for_its_head_has_the_next_turn() {
    let mut leases = slot(false, 0);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    assert!(leases.view(ONE).unwrap().has_turn);
}

#[test]
fn a_lease_begins_with_the_load_on_a_slot_that_no_other_may_use() {
    let mut leases = Leases::new(Settings::default());
    leases.set_slot(SLOT, 100 * OF_MS);
    leases.set_usable(SLOT, true);
    let strict = Instance {
        class: Class::Strict,
        ..instance(0, SLOT)
    };
    leases.add(Time(0), ONE, &strict).unwrap();
    leases.add(Time(0), OTHER, &instance(1, SLOT)).unwrap();
    leases.connect(Time(0), ONE, None);
    leases.holds(Time(0), ONE, 40 * OF_MS);
    leases.located(Time(0), ONE, Location::Host);
    head(&mut leases, 100, ONE);
    assert_eq!(decide(&mut leases, 100), [Action::Restore(ONE)]);
    leases.restored(Time(120 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 120), granted(ONE));
}
