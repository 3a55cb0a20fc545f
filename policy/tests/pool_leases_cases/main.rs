//! What leases do in cases which have failed once, as small as they could be made.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod deferred;
mod recall;

use policy::pool::leases::{
    Action, Claim, Class, Demand, Instance, InstanceId, Leases, Location, RESTART_MAX, RETRY,
    RETRY_SOON, Settings,
};
use policy::pool::slots::EvictReason;
use policy::pool::{FunctionId, Percentile, SlotId};
use policy::{Span, Time};

const SLOT: SlotId = SlotId(0);
const MS: u64 = 1_000_000;

/// A slot of 100 bytes with instances whose models take these, and are away.
fn leases(settings: Settings, models: &[u64]) -> Leases {
    let mut leases = Leases::new(settings);
    leases.set_slot(SLOT, 100);
    leases.set_usable(SLOT, true);
    for (number, bytes) in (0..).zip(models) {
        let (id, at) = (InstanceId(number), Time(0));
        let about = instance(number, SLOT);
        leases.add(at, id, &about).unwrap();
        leases.connect(at, id, None);
        if *bytes > 0 {
            leases.holds(at, id, *bytes);
            leases.located(at, id, Location::Host);
        }
    }
    leases
}

fn instance(function: u32, slot: SlotId) -> Instance {
    Instance {
        function: FunctionId(function),
        slot,
        percentile: Percentile::default(),
        objective: Span::from_millis(80),
        class: Class::Tenant { namespace: 0 },
        may_leave: true,
    }
}

fn decide(leases: &mut Leases, ms: u64) -> Vec<Action> {
    let mut actions = Vec::new();
    leases.decide(Time(ms * MS), &mut actions);
    actions
}

/// Returns a request of `ms`.
const fn demand(ms: u64) -> Demand {
    Demand {
        deadline: Time((ms + 80) * MS),
        estimate: Span::from_millis(5),
        waiting: 1,
        may_move: false,
    }
}

fn head(leases: &mut Leases, ms: u64, id: InstanceId) {
    leases.head(Time(ms * MS), id, demand(ms));
}

const ONE: InstanceId = InstanceId(0);
const OTHER: InstanceId = InstanceId(1);

#[test]
fn a_model_that_could_not_return_is_tried_again_for_what_runs_although_the_lease_is_recalled() {
    let streams = Settings {
        streams: true,
        ..Settings::default()
    };
    let mut leases = leases(streams, &[60, 60]);
    head(&mut leases, 1, ONE);
    let granted = [Action::Restore(ONE), Action::Open(ONE), Action::Lease(ONE)];
    assert_eq!(decide(&mut leases, 1), granted);
    head(&mut leases, 2, OTHER);
    let recalled = decide(&mut leases, 90);
    assert!(recalled.contains(&Action::Recall(ONE)), "{recalled:?}");
    leases.restored(Time(91 * MS), ONE, false);
    assert_eq!(decide(&mut leases, 91), []);
    let again = 91 + RETRY.0 / MS;
    assert_eq!(decide(&mut leases, again), [Action::Restore(ONE)]);
}

#[test]
fn a_queue_that_begins_amid_a_recall_does_not_hold_the_slot() {
    let mut leases = leases(Settings::default(), &[0, 0]);
    head(&mut leases, 1, ONE);
    assert_eq!(
        decide(&mut leases, 1),
        [Action::Open(ONE), Action::Lease(ONE)]
    );
    head(&mut leases, 2, OTHER);
    let recalled = decide(&mut leases, 90);
    assert_eq!(recalled, [Action::Recall(ONE)]);
    // What the earlier one ran has ended with it.
    leases.disconnect(Time(91 * MS), ONE);
    leases.connect(Time(91 * MS), ONE, None);
    assert_eq!(decide(&mut leases, 91), [Action::Close(ONE)]);
    leases.closed(Time(92 * MS), ONE);
    assert_eq!(
        decide(&mut leases, 92),
        [Action::Open(OTHER), Action::Lease(OTHER)]
    );
}

#[test]
fn a_claim_of_an_instance_whose_model_is_away_waits() {
    let mut leases = leases(Settings::default(), &[60, 60]);
    // It may be that of a process which has begun since, whose memory would be on the device at once.
    assert_eq!(leases.claim(Time(MS), ONE, 70), Claim::Waits);
    assert_eq!(leases.claim(Time(MS), OTHER, 50), Claim::Granted);
    assert_eq!(leases.claim(Time(MS), OTHER, 101), Claim::Refused);
}

#[test]
fn a_process_that_ends_while_its_model_returns_ahead_keeps_no_other_from_it() {
    let mut leases = leases(Settings::default(), &[40, 30, 30]);
    let third = InstanceId(2);
    head(&mut leases, 1, ONE);
    assert_eq!(decide(&mut leases, 1), [Action::Restore(ONE)]);
    leases.restored(Time(2 * MS), ONE, true);
    assert_eq!(
        decide(&mut leases, 2),
        [Action::Open(ONE), Action::Lease(ONE)]
    );
    head(&mut leases, 3, OTHER);
    assert_eq!(decide(&mut leases, 3), [Action::Restore(OTHER)]);
    leases.idle(Time(4 * MS), ONE, false);
    assert_eq!(decide(&mut leases, 4), [Action::Recall(ONE)]);
    leases.lost(Time(5 * MS), OTHER);
    leases.idle(Time(6 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 6), [Action::Close(ONE)]);
    leases.closed(Time(7 * MS), ONE);
    let granted = [Action::Open(OTHER), Action::Lease(OTHER)];
    assert_eq!(decide(&mut leases, 7), granted);
    head(&mut leases, 8, third);
    assert_eq!(decide(&mut leases, 8), [Action::Restore(third)]);
}

/// Has the model of an instance return for a head of its own at `ms`, for `load` ms, and its request end then.
fn load(leases: &mut Leases, ms: u64, id: InstanceId, load: u64) {
    head(leases, ms, id);
    let actions = decide(leases, ms);
    assert!(actions.contains(&Action::Restore(id)), "{actions:?}");
    leases.restored(Time((ms + load) * MS), id, true);
    let granted = decide(leases, ms + load);
    assert!(granted.contains(&Action::Lease(id)), "{granted:?}");
    leases.idle(Time((ms + load) * MS), id, false);
}

/// Has the model of an instance that is idle leave for a head of [`OTHER`], from `ms` on for 3 ms.
fn leave(leases: &mut Leases, ms: u64, id: InstanceId) {
    head(leases, ms, OTHER);
    assert_eq!(decide(leases, ms), [Action::Recall(id)]);
    leases.idle(Time((ms + 1) * MS), id, true);
    assert_eq!(decide(leases, ms + 1), [Action::Close(id)]);
    leases.closed(Time((ms + 2) * MS), id);
    decide(leases, ms + 2);
    leases.located(Time((ms + 3) * MS), id, Location::Host);
    leases.idle(Time((ms + 3) * MS), OTHER, false);
}

#[test]
fn the_load_of_a_part_of_a_model_counts_in_proportion_until_more_has_been_loaded() {
    let mut leases = leases(Settings::default(), &[40, 0]);
    let load_of = |leases: &Leases| leases.view(ONE).unwrap().load;
    load(&mut leases, 1, ONE, 20);
    assert_eq!(load_of(&leases), Span::from_millis(20));
    for (bytes, ms) in [(44, 20), (60, 30), (80, 40), (82, 0)] {
        // Of less than half nothing is concluded.
        leases.holds(Time(30 * MS), ONE, bytes);
        assert_eq!(load_of(&leases), Span::from_millis(ms), "{bytes}");
    }
    leases.holds(Time(30 * MS), ONE, 80);
    leave(&mut leases, 31, ONE);
    // The whole replaces the part.
    head(&mut leases, 35, ONE);
    assert_eq!(decide(&mut leases, 35), [Action::Restore(ONE)]);
    // What the process creates meanwhile was not loaded.
    leases.holds(Time(60 * MS), ONE, 100);
    leases.restored(Time(85 * MS), ONE, true);
    assert_eq!(load_of(&leases), Span(62_500_000), "50 ms for 80 of 100");
}

#[test]
fn the_load_of_a_part_does_not_count_once_the_whole_has_been_loaded() {
    let mut leases = leases(Settings::default(), &[80, 0]);
    load(&mut leases, 1, ONE, 40);
    let load_of = |leases: &Leases| leases.view(ONE).unwrap().load;
    leases.holds(Time(42 * MS), ONE, 20);
    leave(&mut leases, 43, ONE);
    // Another instance of the function has all of it.
    let sibling = InstanceId(2);
    let elsewhere = SlotId(1);
    leases.set_slot(elsewhere, 100);
    let about = instance(0, elsewhere);
    leases.add(Time(46 * MS), sibling, &about).unwrap();
    leases.holds(Time(46 * MS), sibling, 80);
    head(&mut leases, 47, ONE);
    let actions = decide(&mut leases, 47);
    assert!(actions.contains(&Action::Restore(ONE)), "{actions:?}");
    leases.restored(Time(52 * MS), ONE, true);
    assert_eq!(load_of(&leases), Span::from_millis(40));
}

#[test]
fn a_request_of_which_a_load_takes_most_of_the_objective_waits_for_the_slot_that_has_its_model() {
    // Load and execution, of 5 ms, take more than three quarters of the objective of 80 ms, or less.
    for (load_ms, waits) in [(60, true), (50, false)] {
        let mut leases = leases(Settings::default(), &[40, 40]);
        let sibling = InstanceId(2);
        let elsewhere = SlotId(1);
        leases.set_slot(elsewhere, 100);
        leases.set_usable(elsewhere, true);
        let about = instance(0, elsewhere);
        leases.add(Time(0), sibling, &about).unwrap();
        leases.connect(Time(0), sibling, None);
        leases.holds(Time(0), sibling, 40);
        leases.located(Time(0), sibling, Location::Host);
        for id in [ONE, sibling] {
            leases.set_reachable(id, true);
        }
        load(&mut leases, 1, ONE, load_ms);
        // The slot of its model is in use, for 75 ms by the estimate of what computes there.
        let demand = |estimate, may_move| Demand {
            deadline: Time(280 * MS),
            estimate: Span::from_millis(estimate),
            waiting: 1,
            may_move,
        };
        leases.head(Time(200 * MS), OTHER, demand(75, false));
        let actions = decide(&mut leases, 200);
        assert!(actions.contains(&Action::Restore(OTHER)), "{actions:?}");
        leases.restored(Time(200 * MS), OTHER, true);
        decide(&mut leases, 200);
        leases.idle(Time(200 * MS), ONE, true);
        decide(&mut leases, 200);
        leases.closed(Time(200 * MS), ONE);
        decide(&mut leases, 200);
        assert_eq!(leases.holder(SLOT), Some(OTHER));
        leases.head(Time(200 * MS), ONE, demand(5, true));
        let actions = decide(&mut leases, 200);
        assert_eq!(
            !actions.contains(&Action::Restore(sibling)),
            waits,
            "{actions:?}"
        );
    }
}

/// Has the model of an instance on the slot, with this size.
fn resident(leases: &mut Leases, id: InstanceId, bytes: u64) {
    leases.holds(Time(0), id, bytes);
    leases.located(Time(0), id, Location::Device);
}

/// Three instances with models on the slot. The first has the lease, and is recalled for the second just as it has begun to run a request.
fn recalled(models: [u64; 3]) -> Leases {
    let mut leases = leases(Settings::default(), &[0; 3]);
    for (number, bytes) in (0..).zip(models) {
        if bytes > 0 {
            resident(&mut leases, InstanceId(number), bytes);
        }
    }
    head(&mut leases, 1, ONE);
    let granted = [Action::Open(ONE), Action::Lease(ONE)];
    assert_eq!(decide(&mut leases, 1), granted);
    leases.idle(Time(2 * MS), ONE, false);
    head(&mut leases, 3, OTHER);
    assert_eq!(decide(&mut leases, 3), [Action::Recall(ONE)]);
    leases
}

fn evict(instance: InstanceId) -> Action {
    Action::Evict {
        instance,
        reason: EvictReason::Heavy,
        is_sealed: false,
    }
}

const GRANTED: Action = Action::Claim {
    instance: ONE,
    granted: true,
};

#[test]
fn the_request_of_a_recalled_holder_gets_memory_before_the_model_of_the_next_turn() {
    let mut leases = recalled([10, 60, 0]);
    assert_eq!(leases.claim(Time(4 * MS), ONE, 60), Claim::Waits);
    assert_eq!(decide(&mut leases, 4), [evict(OTHER)]);
    leases.evicted(Time(5 * MS), OTHER, true);
    assert_eq!(decide(&mut leases, 5), [GRANTED]);
    // The turn comes after that.
    leases.idle(Time(6 * MS), ONE, true);
    let ended = decide(&mut leases, 6);
    assert_eq!(ended, [Action::Seal(ONE)]);
    leases.sealed(Time(7 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 7), [Action::Close(ONE)]);
    leases.closed(Time(8 * MS), ONE);
    assert!(leases.view(OTHER).is_some_and(|view| !view.has_turn));
    let _evicts = decide(&mut leases, 8);
    assert!(leases.view(OTHER).is_some_and(|view| view.has_turn));
}

#[test]
fn the_request_of_a_recalled_holder_gets_memory_although_its_own_turn_comes_next() {
    let third = InstanceId(2);
    let mut leases = recalled([10, 20, 60]);
    leases.remove(Time(4 * MS), OTHER);
    head(&mut leases, 4, ONE);
    assert_eq!(decide(&mut leases, 4), []);
    assert!(leases.view(ONE).is_some_and(|view| view.has_turn));
    assert_eq!(leases.claim(Time(5 * MS), ONE, 60), Claim::Waits);
    assert_eq!(decide(&mut leases, 5), [evict(third)]);
    leases.evicted(Time(6 * MS), third, true);
    assert_eq!(decide(&mut leases, 6), [GRANTED]);
}

#[test]
fn the_model_of_an_instance_that_becomes_the_holder_does_not_leave_for_claims_from_before() {
    let mut leases = leases(Settings::default(), &[0, 0]);
    leases.set_usable(SLOT, false);
    resident(&mut leases, ONE, 30);
    resident(&mut leases, OTHER, 60);
    // Its queue has not greeted yet, as after a restart of the agent.
    leases.disconnect(Time(1), ONE);
    assert_eq!(leases.claim(Time(MS), OTHER, 90), Claim::Waits);
    leases.connect(Time(2 * MS), ONE, Some(Time(0)));
    assert_eq!(leases.holder(SLOT), Some(ONE));
    assert_eq!(leases.claim(Time(3 * MS), ONE, 40), Claim::Granted);
}

/// [`leases`] with an instance of the function of [`ONE`] on another slot, which is returned. Both can forward, and have their models on their slots.
fn with_sibling() -> (Leases, InstanceId) {
    let mut leases = leases(Settings::default(), &[0, 0]);
    let (elsewhere, sibling) = (SlotId(1), InstanceId(7));
    leases.set_slot(elsewhere, 100);
    leases.set_usable(elsewhere, true);
    let on_other = instance(0, elsewhere);
    leases.add(Time(0), sibling, &on_other).unwrap();
    leases.connect(Time(0), sibling, None);
    for id in [ONE, sibling] {
        leases.set_reachable(id, true);
    }
    resident(&mut leases, ONE, 40);
    resident(&mut leases, OTHER, 40);
    (leases, sibling)
}

/// Reports a head of [`ONE`] that may be forwarded.
fn movable_head(leases: &mut Leases, ms: u64) {
    let demand = Demand {
        deadline: Time((ms + 80) * MS),
        estimate: Span::from_millis(5),
        waiting: 3,
        may_move: true,
    };
    leases.head(Time(ms * MS), ONE, demand);
}

const fn forwarded(sibling: InstanceId) -> [Action; 3] {
    [
        Action::Open(sibling),
        Action::Lease(sibling),
        Action::Sibling {
            from: ONE,
            to: sibling,
        },
    ]
}

/// Has [`ONE`] hold the lease until `fails`, which recalls it, and its next head served by its sibling while it still drains. Its lease has ended then.
fn replaced_by_sibling(fails: impl Fn(&mut Leases, Time)) -> Leases {
    let (mut leases, sibling) = with_sibling();
    head(&mut leases, 1, ONE);
    let granted = [Action::Open(ONE), Action::Lease(ONE)];
    assert_eq!(decide(&mut leases, 1), granted);
    fails(&mut leases, Time(2 * MS));
    assert_eq!(decide(&mut leases, 2), [Action::Recall(ONE)]);
    movable_head(&mut leases, 3);
    assert_eq!(decide(&mut leases, 3), forwarded(sibling));
    leases.idle(Time(4 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 4), [Action::Close(ONE)]);
    leases.closed(Time(5 * MS), ONE);
    leases
}

#[test]
fn a_holder_whose_device_is_lost_is_recalled_and_its_requests_go_to_a_sibling() {
    let mut leases = replaced_by_sibling(|leases, now| {
        leases.set_lost(now, SLOT, true);
        assert_eq!(leases.claim(now, ONE, 90), Claim::Granted);
    });
    head(&mut leases, 5, OTHER);
    assert_eq!(decide(&mut leases, 5), [], "nothing is granted there");
    leases.set_lost(Time(6 * MS), SLOT, false);
    let granted = [Action::Open(OTHER), Action::Lease(OTHER)];
    assert_eq!(decide(&mut leases, 6), granted);
}

#[test]
fn a_holder_whose_process_has_failed_is_recalled_and_its_requests_go_to_a_sibling() {
    let mut leases = replaced_by_sibling(|leases, now| leases.set_failed(now, ONE, true));
    // The slot serves its other instances.
    head(&mut leases, 5, OTHER);
    let granted = [Action::Open(OTHER), Action::Lease(OTHER)];
    assert_eq!(decide(&mut leases, 5), granted);
}

#[test]
fn an_instance_whose_process_has_failed_waits_for_the_next_one_for_a_while() {
    let ended = 1_000;
    let waiting = || {
        let mut leases = leases(Settings::default(), &[0]);
        resident(&mut leases, ONE, 40);
        leases.set_failed(Time(MS), ONE, true);
        head(&mut leases, 1, ONE);
        assert_eq!(decide(&mut leases, 1), []);
        assert!(leases.view(ONE).is_some_and(|view| view.has_failed));
        leases.lost(Time(ended * MS), ONE);
        assert_eq!(decide(&mut leases, ended), [], "its server is gone");
        leases
    };
    let granted = [Action::Open(ONE), Action::Lease(ONE)];
    let mut leases = waiting();
    leases.set_failed(Time((ended + 700) * MS), ONE, false);
    assert_eq!(decide(&mut leases, ended + 700), granted);
    let mut leases = waiting();
    let last = ended + RESTART_MAX.0 / MS;
    assert_eq!(leases.next_wake(), Some(Time(last * MS)));
    assert_eq!(decide(&mut leases, last - 1), []);
    assert_eq!(decide(&mut leases, last), granted);
}

#[test]
fn a_head_that_is_withdrawn_does_not_come_back_with_the_turn_it_had() {
    let mut leases = recalled([10, 20, 20]);
    assert!(leases.view(OTHER).is_some_and(|view| view.has_turn));
    let gone = Demand {
        deadline: Time(0),
        estimate: Span::ZERO,
        waiting: 0,
        may_move: false,
    };
    leases.head(Time(4 * MS), OTHER, gone);
    // What it was to wait for fails.
    leases.set_lost(Time(5 * MS), SLOT, true);
    assert!(leases.view(OTHER).is_some_and(|view| !view.has_turn));
    leases.set_lost(Time(6 * MS), SLOT, false);
    leases.idle(Time(7 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 7), [Action::Close(ONE)]);
    leases.closed(Time(8 * MS), ONE);
    assert_eq!(decide(&mut leases, 8), [], "nothing waits");
}

#[test]
fn a_lease_that_began_to_end_on_a_lost_device_is_not_opened_once_it_is_back() {
    let mut leases = leases(Settings::default(), &[0, 0]);
    resident(&mut leases, ONE, 40);
    leases.set_lost(Time(MS), SLOT, true);
    // It computed when leases became needed.
    leases.adopt_holder(ONE, Time(MS), true);
    assert_eq!(decide(&mut leases, 1), [Action::Close(ONE)]);
    leases.set_lost(Time(2 * MS), SLOT, false);
    head(&mut leases, 2, OTHER);
    assert_eq!(decide(&mut leases, 2), [], "its gate closes");
    leases.closed(Time(3 * MS), ONE);
    let granted = [Action::Open(OTHER), Action::Lease(OTHER)];
    assert_eq!(decide(&mut leases, 3), granted);
}

#[test]
fn a_head_of_a_holder_whose_queue_does_not_know_of_the_lease_outlives_it() {
    let mut leases = leases(Settings::default(), &[0]);
    resident(&mut leases, ONE, 40);
    // As after a restart of the agent: its process computes, and its queue greets.
    leases.set_usable(SLOT, false);
    leases.disconnect(Time(MS), ONE);
    leases.adopt_holder(ONE, Time(MS), true);
    leases.connect(Time(2 * MS), ONE, None);
    head(&mut leases, 2, ONE);
    assert_eq!(decide(&mut leases, 2), []);
    leases.set_lost(Time(3 * MS), SLOT, true);
    leases.set_usable(SLOT, true);
    assert_eq!(decide(&mut leases, 3), [Action::Close(ONE)]);
    leases.closed(Time(4 * MS), ONE);
    leases.set_lost(Time(5 * MS), SLOT, false);
    let granted = [Action::Open(ONE), Action::Lease(ONE)];
    assert_eq!(decide(&mut leases, 5), granted);
    assert_eq!(decide(&mut leases, 6), []);
}

#[test]
fn a_turn_on_a_device_that_is_lost_goes_to_another_instance() {
    let mut leases = recalled([10, 20, 20]);
    let (elsewhere, sibling) = (SlotId(1), InstanceId(7));
    leases.set_slot(elsewhere, 100);
    leases.set_usable(elsewhere, true);
    let on_other = instance(1, elsewhere);
    leases.add(Time(0), sibling, &on_other).unwrap();
    assert!(leases.view(OTHER).is_some_and(|view| view.has_turn));
    leases.set_lost(Time(4 * MS), SLOT, true);
    assert!(leases.view(OTHER).is_some_and(|view| !view.has_turn));
    assert_eq!(decide(&mut leases, 4), [], "its head may not move");
}

#[test]
fn a_queue_that_does_not_answer_a_recall_holds_the_slot_only_while_its_processes_compute() {
    let silent = |quiet_since: Option<u64>| {
        let mut leases = leases(Settings::default(), &[0, 0]);
        head(&mut leases, 1, ONE);
        let granted = [Action::Open(ONE), Action::Lease(ONE)];
        assert_eq!(decide(&mut leases, 1), granted);
        head(&mut leases, 2, OTHER);
        assert_eq!(decide(&mut leases, 90), [Action::Recall(ONE)]);
        let since = quiet_since.map(|ms| Time(ms * MS));
        leases.quiet(Time(100 * MS), ONE, since);
        leases
    };
    // Quiet before the recall or since then: ten seconds from when both were.
    for (quiet_since, closed) in [(Some(10), 10_090), (Some(500), 10_500)] {
        let mut leases = silent(quiet_since);
        assert_eq!(decide(&mut leases, closed - 1), []);
        assert_eq!(leases.next_wake(), Some(Time(closed * MS)));
        assert_eq!(decide(&mut leases, closed), [Action::Close(ONE)]);
    }
    // One that computes may take as long as its revision allows.
    let mut leases = silent(None);
    assert_eq!(decide(&mut leases, 90 + 599_999), []);
    assert_eq!(decide(&mut leases, 90 + 600_000), [Action::Close(ONE)]);
    // One that has begun again since is not quiet.
    let mut leases = silent(Some(10));
    assert_eq!(decide(&mut leases, 10_089), []);
    leases.quiet(Time(10_089 * MS), ONE, None);
    assert_eq!(decide(&mut leases, 10_091), []);
}

#[test]
fn long_estimates_of_a_queue_do_not_stretch_its_lease() {
    let mut leases = leases(Settings::default(), &[0, 0]);
    let estimate = Span::from_secs(600);
    let demand = Demand {
        deadline: Time(80 * MS),
        estimate,
        waiting: 1,
        may_move: false,
    };
    leases.head(Time(MS), ONE, demand);
    decide(&mut leases, 1);
    leases.quiet(Time(MS), ONE, Some(Time(MS)));
    head(&mut leases, 2, OTHER);
    let recalled = (2..2_000).find(|ms| decide(&mut leases, *ms) == [Action::Recall(ONE)]);
    let recalled = recalled.unwrap();
    assert_eq!(decide(&mut leases, recalled + 9_999), []);
    assert_eq!(decide(&mut leases, recalled + 10_000), [Action::Close(ONE)]);
}

#[test]
fn the_model_of_a_holder_returns_into_room_that_others_have_left() {
    let mut leases = leases(Settings::default(), &[0, 0]);
    resident(&mut leases, ONE, 60);
    head(&mut leases, 1, ONE);
    decide(&mut leases, 1);
    leases.idle(Time(2 * MS), ONE, false);
    // By an operator's order, while it still holds the lease.
    leases.located(Time(3 * MS), ONE, Location::Host);
    assert_eq!(leases.claim(Time(4 * MS), OTHER, 70), Claim::Granted);
    head(&mut leases, 5, ONE);
    assert_eq!(decide(&mut leases, 5), [evict(OTHER)]);
    assert_eq!(decide(&mut leases, 6), []);
    leases.evicted(Time(7 * MS), OTHER, true);
    assert_eq!(decide(&mut leases, 7), [Action::Restore(ONE)]);
    leases.restored(Time(8 * MS), ONE, true);
    assert_eq!(decide(&mut leases, 8), []);
    // And it is counted there.
    leases.idle(Time(9 * MS), ONE, false);
    head(&mut leases, 10, OTHER);
    let recalled = decide(&mut leases, 10);
    assert!(recalled.contains(&Action::Recall(ONE)), "{recalled:?}");
    leases.idle(Time(11 * MS), ONE, true);
    let mut orders = Vec::new();
    for ms in 12..18 {
        leases.sealed(Time(ms * MS), ONE, false);
        leases.closed(Time(ms * MS), ONE);
        orders.append(&mut decide(&mut leases, ms));
    }
    let leaves =
        |order: &Action| matches!(order, Action::Evict { instance, .. } if *instance == ONE);
    assert!(orders.iter().any(leaves), "{orders:?}");
    assert!(!orders.contains(&Action::Restore(OTHER)), "{orders:?}");
}

#[test]
fn the_model_of_a_holder_whose_next_turn_is_anothers_returns_before_that() {
    let mut leases = leases(Settings::default(), &[0, 60]);
    resident(&mut leases, ONE, 60);
    head(&mut leases, 1, ONE);
    decide(&mut leases, 1);
    leases.idle(Time(2 * MS), ONE, false);
    // Another's model, which has no room beside it, is to come next; an operator moves that of the holder away, which runs a request.
    head(&mut leases, 3, OTHER);
    let mut orders = (3..200).flat_map(|ms| decide(&mut leases, ms));
    assert!(orders.any(|order| order == Action::Recall(ONE)));
    leases.located(Time(200 * MS), ONE, Location::Host);
    let returns = (200..210).flat_map(|ms| decide(&mut leases, ms));
    assert_eq!(returns.collect::<Vec<_>>(), [Action::Restore(ONE)]);
}

#[test]
fn room_for_the_model_of_a_holder_is_made_anew_after_another_has_refused_to_leave() {
    let mut leases = leases(Settings::default(), &[0, 0]);
    resident(&mut leases, ONE, 60);
    head(&mut leases, 1, ONE);
    decide(&mut leases, 1);
    leases.idle(Time(2 * MS), ONE, false);
    leases.located(Time(3 * MS), ONE, Location::Host);
    assert_eq!(leases.claim(Time(4 * MS), OTHER, 70), Claim::Granted);
    head(&mut leases, 5, ONE);
    assert_eq!(decide(&mut leases, 5), [evict(OTHER)]);
    leases.evicted(Time(6 * MS), OTHER, false);
    assert_eq!(decide(&mut leases, 6), [], "there is no room");
    let again = 6 + RETRY.0 / MS;
    assert_eq!(decide(&mut leases, again), [evict(OTHER)]);
    leases.evicted(Time((again + 1) * MS), OTHER, true);
    assert_eq!(decide(&mut leases, again + 1), [Action::Restore(ONE)]);
}

#[test]
fn a_queue_that_greets_with_a_lease_from_before_its_model_left_has_room_made_for_it() {
    let mut leases = leases(Settings::default(), &[60, 0]);
    resident(&mut leases, OTHER, 60);
    leases.disconnect(Time(MS), ONE);
    leases.connect(Time(2 * MS), ONE, Some(Time(MS)));
    let adopted = [Action::Open(ONE), Action::Lease(ONE), evict(OTHER)];
    assert_eq!(decide(&mut leases, 2), adopted);
    leases.evicted(Time(3 * MS), OTHER, true);
    assert_eq!(decide(&mut leases, 3), [Action::Restore(ONE)]);
}

#[test]
fn a_parked_process_uses_its_credit_only_while_heads_wait() {
    let mut leases = leases(Settings::default(), &[0, 0]);
    leases.park(Time(0), OTHER, Time(MS));
    let granted = [Action::Open(OTHER), Action::Lease(OTHER)];
    assert_eq!(decide(&mut leases, 0), granted);
    // Nothing else wants the slot for two seconds, of which a twentieth is saved up.
    leases.park(Time(2_000 * MS), OTHER, Time(2_000 * MS));
    assert_eq!(decide(&mut leases, 2_000), []);
    head(&mut leases, 2_000, ONE);
    assert_eq!(decide(&mut leases, 2_000), []);
    assert_eq!(decide(&mut leases, 2_090), [], "a twentieth of two seconds");
    assert_eq!(decide(&mut leases, 2_110), [Action::Recall(OTHER)]);
}

#[test]
fn a_model_that_refused_to_leave_is_tried_again_soon_once_what_it_lacked_has_come() {
    for (comes, tried) in [(false, 4 + RETRY.0 / MS), (true, 10 + RETRY_SOON.0 / MS)] {
        let mut leases = leases(Settings::default(), &[0, 0]);
        resident(&mut leases, OTHER, 60);
        assert_eq!(leases.claim(Time(3 * MS), ONE, 60), Claim::Waits);
        assert_eq!(decide(&mut leases, 3), [evict(OTHER)]);
        leases.evicted(Time(4 * MS), OTHER, false);
        assert_eq!(decide(&mut leases, 4), []);
        if comes {
            leases.hasten(Time(10 * MS), OTHER);
        }
        assert_eq!(decide(&mut leases, 10), []);
        assert_eq!(leases.next_wake(), Some(Time(tried * MS)));
        assert_eq!(decide(&mut leases, tried), [evict(OTHER)]);
    }
}

#[test]
fn a_parked_process_that_has_failed_recalls_no_other_lease() {
    let mut leases = leases(Settings::default(), &[0, 0]);
    leases.set_failed(Time(0), OTHER, true);
    leases.park(Time(0), OTHER, Time(MS));
    head(&mut leases, 5, ONE);
    let granted = [Action::Open(ONE), Action::Lease(ONE)];
    assert_eq!(decide(&mut leases, 5), granted);
    // It could not have the slot.
    assert_eq!(decide(&mut leases, 6), []);
    leases.set_failed(Time(7 * MS), OTHER, false);
    assert_eq!(decide(&mut leases, 7), [Action::Recall(ONE)]);
}
