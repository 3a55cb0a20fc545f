//! How requests give way in the queue of a pool: by a bounded time, and only to others that can still be in time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::pool::queue::{
    Admission, CountedMisses, LowRule, Order, Queue, Settings, SpareRule, Turn,
};
use policy::pool::{FunctionId, Percentile};
use policy::{RequestId, Span, Time};

const OBJECTIVE: Span = Span(100);
const LOW: FunctionId = FunctionId(0);
const HIGH: FunctionId = FunctionId(1);
const NEW: FunctionId = FunctionId(2);

/// Returns a queue with one function that has missed a request and one that has not; both must be in time for 98 %.
fn queue(low: LowRule, spare: SpareRule) -> Queue {
    let mut queue = Queue::new(Settings {
        order: Order::RequiredRequests(Admission::FixedThreshold(10)),
        low,
        spare,
        ..Settings::default()
    });
    for function in [LOW, HIGH] {
        let added = queue.add(Time(0), function, Percentile::default(), OBJECTIVE);
        assert_eq!(added, Ok(()));
        queue.set_estimate(Time(0), function, Span(10));
    }
    queue.completed(Time(0), LOW, false);
    assert!(!queue.is_high(LOW) && queue.is_high(HIGH));
    queue
}

fn arrive(queue: &mut Queue, now: u64, function: FunctionId, deadline: u64) {
    let request = RequestId(deadline);
    queue
        .arrive(Time(now), function, request, Time(deadline))
        .unwrap();
}

fn next(queue: &mut Queue, now: u64) -> Option<(FunctionId, Turn)> {
    queue
        .next(Time(now))
        .map(|(head, turn)| (head.function, turn))
}

#[test]
fn a_function_that_has_fallen_behind_gives_way_by_two_fifths_of_its_objective() {
    for (deadline, first) in [(139, HIGH), (141, LOW)] {
        let mut queue = queue(LowRule::AmongHighGroup, SpareRule::Equal);
        arrive(&mut queue, 1, LOW, 100);
        arrive(&mut queue, 1, HIGH, deadline);
        assert_eq!(next(&mut queue, 1).unwrap().0, first, "{deadline}");
    }
}

#[test]
fn a_request_that_gives_way_is_still_served_before_a_late_one() {
    let mut queue = queue(LowRule::AmongHighGroup, SpareRule::Equal);
    arrive(&mut queue, 1, HIGH, 50);
    arrive(&mut queue, 1, LOW, 100);
    assert_eq!(next(&mut queue, 40), Some((HIGH, Turn::High)));
    assert_eq!(next(&mut queue, 41), Some((LOW, Turn::Low)));
    // Late by its own latest start, not by that with which it is ordered.
    assert_eq!(next(&mut queue, 91), Some((HIGH, Turn::Late)));
}

#[test]
fn a_low_request_goes_first_only_where_the_first_of_the_high_group_can_start_after_it() {
    for (deadline, first) in [(119, HIGH), (120, LOW)] {
        let mut queue = queue(LowRule::FirstWhereHarmless, SpareRule::Equal);
        arrive(&mut queue, 1, LOW, 118);
        arrive(&mut queue, 1, HIGH, deadline);
        assert_eq!(next(&mut queue, 100).unwrap().0, first, "{deadline}");
    }
}

#[test]
fn a_function_with_a_miss_to_spare_gives_way_by_a_fifth_of_its_objective() {
    // At 98 %, 49 requests in time make up for one miss.
    for (in_time, deadline, first) in [(48, 119, HIGH), (49, 119, NEW), (49, 121, HIGH)] {
        let mut queue = queue(LowRule::AmongHighGroup, SpareRule::GivesWay);
        let added = queue.add(Time(0), NEW, Percentile::default(), OBJECTIVE);
        assert_eq!(added, Ok(()));
        queue.set_estimate(Time(0), NEW, Span(10));
        for _ in 0..in_time {
            queue.completed(Time(0), HIGH, true);
        }
        arrive(&mut queue, 1, HIGH, 100);
        arrive(&mut queue, 1, NEW, deadline);
        let (function, _) = next(&mut queue, 1).unwrap();
        assert_eq!(function, first, "{in_time}, {deadline}");
    }
}

#[test]
fn only_misses_after_waiting_lower_the_threshold_where_only_those_count() {
    for (waits, falls) in [(5, false), (95, true)] {
        let mut queue = Queue::new(Settings {
            misses: CountedMisses::Waited,
            ..Settings::as_printed()
        });
        let added = queue.add(Time(0), HIGH, Percentile::default(), OBJECTIVE);
        assert_eq!(added, Ok(()));
        queue.set_estimate(Time(0), HIGH, Span(10));
        let before = queue.threshold();
        for n in 0..50 {
            let now = 200 * n;
            let ticket = queue
                .arrive(Time(now), HIGH, RequestId(n), Time(now + 100))
                .unwrap();
            queue.take(Time(now + waits), ticket).unwrap();
            queue.completed(Time(now + 150), HIGH, n < 48);
        }
        queue.next(Time(0).after(Span::from_secs(6)));
        assert_eq!(queue.threshold() < before, falls, "{waits}");
    }
}
