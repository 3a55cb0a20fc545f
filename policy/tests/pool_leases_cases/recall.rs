//! When leases are recalled, and to which heads recalled functions yield their slots.

use policy::pool::leases::{Action, Demand, InstanceId, Leases, Settings};
use policy::{Span, Time};

use super::{MS, ONE, OTHER, decide, demand, head, leases, load};

/// Has the lease of [`ONE`], which has requests all the time, recalled for a head of [`OTHER`] of `ms`, and ends it `drain` ms later. Returns the time of the
/// recall in ms.
fn recall(leases: &mut Leases, ms: u64, drain: u64) -> u64 {
    head(leases, ms, ONE);
    head(leases, ms, OTHER);
    assert_eq!(decide(leases, ms), []);
    let at = leases.next_wake().unwrap().0.div_ceil(MS);
    assert_eq!(decide(leases, at), [Action::Recall(ONE)]);
    head(leases, at, ONE);
    leases.idle(Time((at + drain) * MS), ONE, true);
    assert_eq!(decide(leases, at + drain), [Action::Close(ONE)]);
    leases.closed(Time((at + drain) * MS), ONE);
    at
}

/// Returns leases of instances without models, of which [`ONE`] has had its lease recalled for a head of [`OTHER`] of 10 ms, with the time of the recall in ms. It
/// has ended `drain` ms later, when nothing is decided yet.
fn drained(settings: Settings, instances: usize, drain: u64) -> (Leases, u64) {
    let mut leases = leases(settings, &vec![0; instances]);
    head(&mut leases, 1, ONE);
    decide(&mut leases, 1);
    let at = recall(&mut leases, 10, drain);
    (leases, at)
}

/// Ends the lease of an instance that is idle at `ms`.
fn end(leases: &mut Leases, ms: u64, id: InstanceId) {
    leases.idle(Time(ms * MS), id, false);
    assert_eq!(decide(leases, ms), [Action::Recall(id)]);
    leases.idle(Time(ms * MS), id, true);
    assert_eq!(decide(leases, ms), [Action::Close(id)]);
    leases.closed(Time(ms * MS), id);
}

#[test]
fn a_lease_is_recalled_by_the_time_that_the_ends_of_earlier_ones_took() {
    let mut leases = leases(Settings::default(), &[0, 0]);
    let granted = |id| [Action::Open(id), Action::Lease(id)];
    head(&mut leases, 1, ONE);
    assert_eq!(decide(&mut leases, 1), granted(ONE));
    let mut after = Vec::new();
    for turn in 1..32 {
        let ms = 1_000 * turn;
        let at = recall(&mut leases, ms, 20);
        after.push(at - ms);
        assert_eq!(decide(&mut leases, at + 20), granted(OTHER));
        end(&mut leases, at + 25, OTHER);
        assert_eq!(decide(&mut leases, at + 25), granted(ONE));
    }
    // Of an objective of 80 ms, 5 are for the request that waits and as many for the one that runs. Then it is what was measured, with a margin that shrinks
    // as it repeats.
    assert_eq!((after[0], after[1]), (70, 35), "{after:?}");
    assert!(after[1..].is_sorted(), "{after:?}");
    assert_eq!(after.last(), Some(&55), "{after:?}");
}

#[test]
fn a_head_that_became_late_while_a_lease_ended_goes_before_requests_of_the_holder_that_can_wait() {
    for (yields, next) in [(true, OTHER), (false, ONE)] {
        let settings = Settings {
            yields,
            ..Settings::default()
        };
        let (mut leases, at) = drained(settings, 2, 30);
        let granted = [Action::Open(next), Action::Lease(next)];
        assert_eq!(decide(&mut leases, at + 30), granted);
    }
}

#[test]
fn a_function_does_not_yield_its_slot_where_its_request_would_be_late() {
    let (mut leases, at) = drained(Settings::default(), 2, 68);
    // 12 of 80 ms are left to it, and two requests take 10.
    let mut later = leases.clone();
    assert!(decide(&mut leases, at + 70).contains(&Action::Lease(OTHER)));
    assert!(decide(&mut later, at + 71).contains(&Action::Lease(ONE)));
}

#[test]
fn a_function_does_not_yield_its_slot_where_requests_behind_its_head_would_be_late() {
    for (waiting, next) in [(9, OTHER), (10, ONE)] {
        let (mut leases, at) = drained(Settings::default(), 2, 30);
        let burst = Demand {
            waiting,
            ..demand(at)
        };
        // Within 50 ms there is time for ten requests.
        leases.head(Time((at + 30) * MS), ONE, burst);
        let actions = decide(&mut leases, at + 30);
        assert!(
            actions.contains(&Action::Lease(next)),
            "{waiting}: {actions:?}"
        );
    }
}

#[test]
fn a_slot_is_yielded_to_the_first_late_head_that_is_over_in_time() {
    let third = InstanceId(2);
    for (estimate, next) in [(5, OTHER), (600_000, third)] {
        let (mut leases, at) = drained(Settings::default(), 3, 30);
        let large = Demand {
            estimate: Span::from_millis(estimate),
            deadline: Time((at + 30) * MS),
            ..demand(at)
        };
        leases.head(Time((at + 30) * MS), OTHER, large);
        let late = Demand {
            deadline: Time((at + 31) * MS),
            ..demand(at)
        };
        leases.head(Time((at + 30) * MS), third, late);
        let actions = decide(&mut leases, at + 30);
        assert!(
            actions.contains(&Action::Lease(next)),
            "{estimate}: {actions:?}"
        );
    }
}

#[test]
fn a_slot_is_yielded_to_none_while_another_function_waits_that_is_not_late() {
    for (third, next) in [(false, OTHER), (true, ONE)] {
        let (mut leases, at) = drained(Settings::default(), 3, 30);
        if third {
            head(&mut leases, at + 30, InstanceId(2));
        }
        let actions = decide(&mut leases, at + 30);
        assert!(
            actions.contains(&Action::Lease(next)),
            "{third}: {actions:?}"
        );
    }
}

#[test]
fn a_slot_is_not_yielded_where_the_return_of_the_model_would_be_late() {
    for (load_ms, next) in [(10, OTHER), (60, ONE)] {
        let mut leases = leases(Settings::default(), &[60, 60]);
        load(&mut leases, 1, ONE, load_ms);
        let ms = 1 + load_ms;
        head(&mut leases, ms, ONE);
        head(&mut leases, ms, OTHER);
        decide(&mut leases, ms);
        let mut at = ms;
        while !decide(&mut leases, at).contains(&Action::Recall(ONE)) {
            at = leases.next_wake().unwrap().0.div_ceil(MS);
        }
        let late = at + 85;
        head(&mut leases, late - 10, ONE);
        leases.idle(Time(late * MS), ONE, true);
        assert_eq!(decide(&mut leases, late), [Action::Seal(ONE)]);
        leases.sealed(Time(late * MS), ONE, true);
        assert_eq!(decide(&mut leases, late), [Action::Close(ONE)]);
        leases.closed(Time(late * MS), ONE);
        decide(&mut leases, late);
        let view = leases.view(next).unwrap();
        assert!(view.is_holder || view.has_turn, "{load_ms}");
    }
}

#[test]
fn a_late_head_has_a_slot_that_is_yielded_only_until_what_waits_there_must_begin() {
    let (mut leases, at) = drained(Settings::default(), 2, 30);
    let burst = Demand {
        waiting: 8,
        ..demand(at)
    };
    leases.head(Time((at + 30) * MS), ONE, burst);
    assert!(decide(&mut leases, at + 30).contains(&Action::Lease(OTHER)));
    // 40 of 80 ms are for the burst, and 5 for what OTHER runs then. The head alone could wait for 40 ms more.
    assert_eq!(decide(&mut leases, at + 34), []);
    assert_eq!(decide(&mut leases, at + 35), [Action::Recall(OTHER)]);
}

#[test]
fn the_end_of_a_lease_for_background_work_is_no_drain() {
    let mut leases = leases(Settings::default(), &[0, 0]);
    leases.park(Time(MS), ONE, Time(MS));
    assert!(decide(&mut leases, 1).contains(&Action::Lease(ONE)));
    head(&mut leases, 2, OTHER);
    // Once its credit is used up.
    let mut at = 2;
    while !decide(&mut leases, at).contains(&Action::Recall(ONE)) {
        at = leases.next_wake().unwrap().0.div_ceil(MS);
    }
    leases.idle(Time((at + 40) * MS), ONE, true);
    decide(&mut leases, at + 40);
    leases.closed(Time((at + 40) * MS), ONE);
    assert!(decide(&mut leases, at + 40).contains(&Action::Lease(OTHER)));
    leases.unpark(Time((at + 41) * MS), ONE);
    head(&mut leases, at + 41, ONE);
    end(&mut leases, at + 41, OTHER);
    assert!(decide(&mut leases, at + 41).contains(&Action::Lease(ONE)));
    // As at first.
    let ms = at + 100;
    assert_eq!(recall(&mut leases, ms, 1), ms + 70);
}

#[test]
fn a_function_yields_its_slot_to_no_head_that_is_gone() {
    let (mut leases, at) = drained(Settings::default(), 2, 30);
    let none = Demand {
        waiting: 0,
        ..demand(at)
    };
    leases.head(Time((at + 30) * MS), OTHER, none);
    let granted = [Action::Open(ONE), Action::Lease(ONE)];
    assert_eq!(decide(&mut leases, at + 30), granted);
}
