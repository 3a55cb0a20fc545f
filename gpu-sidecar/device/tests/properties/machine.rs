//! Invariants of a whole node under random commands.

use std::collections::{BTreeMap, BTreeSet};

use device::ledger::{Entry, Resource, WorkId};
use device::machine::{Completion, StreamId};
use device::node::Scale;
use device::{Span, Time};
use proptest::prelude::*;

use crate::driver::{ExpectedWork, RunRecord, run, steps};

const UNSCALED: Scale = Scale { time: 1, bytes: 1 };

fn scale() -> impl Strategy<Value = Scale> {
    prop_oneof![
        3 => Just(UNSCALED),
        1 => (1..=8_u32, 1..=512_u32).prop_map(|(time, bytes)| Scale { time, bytes }),
    ]
}

/// Calls `visit` with the resources held in every period without a change, by the index of their entry.
fn stretches<'a>(ledger: &'a [Entry], mut visit: impl FnMut(&BTreeMap<usize, &'a Entry>)) {
    let mut edges: BTreeMap<Time, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (at, entry) in ledger.iter().enumerate() {
        assert!(entry.from < entry.to && entry.amount > 0, "{entry:?}");
        edges.entry(entry.from).or_default().0.push(at);
        edges.entry(entry.to).or_default().1.push(at);
    }
    let mut held = BTreeMap::new();
    for (begin, end) in edges.into_values() {
        for at in end {
            held.remove(&at);
        }
        for at in begin {
            held.insert(at, &ledger[at]);
        }
        visit(&held);
    }
}

/// Returns the sums of the amounts held, by `key`.
fn sums<'a, K: Ord>(
    held: &BTreeMap<usize, &'a Entry>,
    key: impl Fn(&'a Entry) -> K,
) -> BTreeMap<K, u64> {
    let mut sums = BTreeMap::new();
    for &entry in held.values() {
        *sums.entry(key(entry)).or_default() += entry.amount;
    }
    sums
}

/// Returns the ledger sorted, with adjacent entries merged.
fn joined(ledger: &[Entry]) -> Vec<Entry> {
    let mut sorted = ledger.to_vec();
    sorted.sort_by_key(|entry| (entry.resource, entry.process, entry.work, entry.from));
    let mut joined: Vec<Entry> = Vec::new();
    for entry in sorted {
        match joined.last_mut() {
            Some(last) => match last.joined(&entry) {
                Some(whole) => *last = whole,
                None => joined.push(entry),
            },
            None => joined.push(entry),
        }
    }
    joined
}

fn no_resource_is_overcommitted(record: &RunRecord) {
    stretches(&record.ledger, |held| {
        for (resource, sum) in sums(held, |entry| entry.resource) {
            let most = match resource {
                Resource::Sms { unit } => u64::from(record.sms[unit as usize]) * 1_000,
                Resource::Link { link } => record.links[link as usize],
                Resource::Memory { unit } => record.memory[unit as usize],
            };
            assert!(sum <= most, "{resource:?}: {sum} of {most}");
        }
        for ((resource, process), sum) in sums(held, |entry| (entry.resource, entry.process)) {
            let known = &record.known[&process];
            let most = match resource {
                Resource::Sms { unit } => {
                    assert_eq!(unit, known.unit);
                    u64::from(known.sms) * 1_000
                }
                Resource::Link { .. } => continue,
                Resource::Memory { unit } => {
                    assert_eq!(unit, known.unit);
                    known.memory_limit
                }
            };
            assert!(sum <= most, "{resource:?}: {process:?} has {sum} of {most}");
        }
    });
}

fn one_participant_runs_at_a_time(record: &RunRecord) {
    stretches(&record.ledger, |held| {
        let mut on = BTreeMap::new();
        for entry in held.values() {
            if let Resource::Sms { unit } = entry.resource {
                let participant = record.known[&entry.process].participant;
                assert_eq!(*on.entry(unit).or_insert(participant), participant);
            }
        }
    });
}

/// Max-min fairness: every transfer crosses a saturated link on which no other transfer has a higher rate.
fn every_transfer_is_limited_by_a_saturated_link(record: &RunRecord) {
    stretches(&record.ledger, |held| {
        let mut routes: BTreeMap<WorkId, (u64, Vec<usize>)> = BTreeMap::new();
        let mut links: BTreeMap<usize, (u64, u64, u64)> = BTreeMap::new();
        for entry in held.values() {
            if let Resource::Link { link } = entry.resource {
                let link = link as usize;
                let route = routes.entry(entry.work.unwrap()).or_default();
                assert!(
                    route.0 == 0 || route.0 == entry.amount,
                    "one rate on all links"
                );
                route.0 = entry.amount;
                route.1.push(link);
                let (sum, most, users) = links.entry(link).or_default();
                *sum += entry.amount;
                *most = entry.amount.max(*most);
                *users += 1;
            }
        }
        for (work, (rate, route)) in routes {
            let is_reason = |link: &usize| {
                let (sum, most, users) = links[link];
                record.links[*link] - sum < users && rate == most
            };
            assert!(
                route.iter().any(is_reason),
                "{work:?} at {rate} over {route:?}"
            );
        }
    });
}

fn work_is_conserved(record: &RunRecord) {
    let mut of_work: BTreeMap<u64, Vec<&Entry>> = BTreeMap::new();
    for entry in &record.ledger {
        if let Some(work) = entry.work {
            assert_eq!(record.submitted[&work.command].process, entry.process);
            of_work.entry(work.command).or_default().push(entry);
        }
    }
    for (command, submitted) in &record.submitted {
        let lines = of_work.get(command).map_or(&[][..], Vec::as_slice);
        let product = |entry: &Entry| u128::from(entry.amount) * u128::from(entry.span().0);
        let held: u128 = lines.iter().map(|entry| product(entry)).sum();
        // Dropped commands may have used less.
        let least = |all: u128| if submitted.dropped.is_some() { 0 } else { all };
        match submitted.expected {
            ExpectedWork::Other => assert_eq!(held, 0),
            ExpectedWork::Kernels(work) => {
                // Rounding loses at most a thousandth of an SM, the last nanosecond is partly used, and a share of the SMs is a
                // 32-bit fraction of time.
                let lost: u128 = lines.iter().map(|entry| u128::from(entry.span().0)).sum();
                let begun: u128 = lines.iter().map(|entry| 4 * u128::from(entry.amount)).sum();
                let all = work * 1_000;
                assert!(
                    held + lost + begun >= least(all),
                    "{command}: {held} of {all}"
                );
                assert!(
                    held <= all + begun + all / 1_000_000_000,
                    "{command}: {held} of {all}"
                );
            }
            ExpectedWork::Bytes(bytes, links) => {
                let crossed: BTreeSet<_> = lines.iter().map(|entry| entry.resource).collect();
                assert!(crossed.len() == links || held == 0, "{crossed:?}");
                for link in crossed {
                    let own = lines.iter().filter(|entry| entry.resource == link);
                    let sent: u128 = own.clone().map(|entry| product(entry)).sum();
                    let all = bytes * 1_000_000_000;
                    let begun = own.map(|entry| entry.amount).next_back().unwrap_or(0);
                    assert!(sent >= least(all), "{command}: {sent} of {all}");
                    assert!(sent < all + u128::from(begun), "{command}: {sent} of {all}");
                }
                assert!(held > 0 || least(bytes) == 0, "{command}");
            }
        }
    }
}

fn memory_is_held_as_allocated(record: &RunRecord) {
    let mut held = BTreeMap::new();
    for entry in &record.ledger {
        if let Resource::Memory { .. } = entry.resource {
            let bytes = u128::from(entry.amount) * u128::from(entry.span().0);
            *held.entry(entry.process).or_insert(0) += bytes;
        }
    }
    for (process, known) in &record.known {
        let held = held.get(process).copied().unwrap_or(0);
        assert_eq!(held, known.byte_nanos, "{process:?}");
    }
}

fn commands_complete_once_and_in_order(record: &RunRecord) {
    let mut last: BTreeMap<StreamId, Completion> = BTreeMap::new();
    let mut done = BTreeMap::new();
    let mut now = Time::ZERO;
    for one in &record.done {
        assert!(one.started <= one.ended && now <= one.ended, "{one:?}");
        now = one.ended;
        assert_eq!(record.submitted[&one.command].stream, one.stream);
        assert!(done.insert(one.command, *one).is_none(), "{one:?}");
        if let Some(before) = last.insert(one.stream, *one) {
            assert!(before.command < one.command && before.ended <= one.started);
        }
    }
    for (command, submitted) in &record.submitted {
        match done.get(command) {
            None => assert!(submitted.dropped.is_some(), "{command} has not completed"),
            Some(done) => {
                assert_eq!(submitted.dropped, None, "{done:?}");
                assert!(
                    submitted.earliest_end <= done.ended,
                    "{done:?} {submitted:?}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_under_random_commands(steps in steps(), scale in scale()) {
        let record = run(&steps, scale, None);
        no_resource_is_overcommitted(&record);
        one_participant_runs_at_a_time(&record);
        every_transfer_is_limited_by_a_saturated_link(&record);
        work_is_conserved(&record);
        memory_is_held_as_allocated(&record);
        commands_complete_once_and_in_order(&record);
    }

    #[test]
    fn the_ledger_does_not_depend_on_the_steps_in_which_time_advances(
        steps in steps(),
        stride in 50_000..2_000_000_u64,
    ) {
        let (one, same) = (run(&steps, UNSCALED, None), run(&steps, UNSCALED, None));
        prop_assert_eq!(&one.done, &same.done);
        prop_assert_eq!(&one.ledger, &same.ledger);
        let other = run(&steps, UNSCALED, Some(stride));
        prop_assert_eq!(&one.done, &other.done);
        prop_assert_eq!(joined(&one.ledger), joined(&other.ledger));
    }
}

/// The random steps exercise what the properties are about, which would otherwise hold vacuously.
#[test]
fn random_steps_exercise_every_property() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let mut reached = BTreeMap::new();
    for _ in 0..100 {
        let record = run(
            &steps().new_tree(&mut runner).unwrap().current(),
            UNSCALED,
            None,
        );
        let mut reach = |what: &'static str, many: usize| *reached.entry(what).or_insert(0) += many;
        reach("commands", record.submitted.len());
        reach("done", record.done.len());
        let dropped = record
            .submitted
            .values()
            .filter(|one| one.dropped.is_some());
        reach("dropped", dropped.count());
        let (mut beside, mut slowed) = (0, 0);
        stretches(&record.ledger, |held| {
            let mut users = BTreeMap::new();
            for entry in held.values() {
                users
                    .entry(entry.resource)
                    .or_insert_with(BTreeSet::new)
                    .insert(entry.process);
            }
            let several = |held: fn(&Resource) -> bool| {
                users
                    .iter()
                    .filter(|(key, users)| held(key) && users.len() > 1)
                    .count()
            };
            beside += several(|held| matches!(held, Resource::Sms { .. }));
            slowed += several(|held| matches!(held, Resource::Link { .. }));
        });
        reach("concurrent processes", beside);
        reach("links shared", slowed);
        let waits = record
            .done
            .windows(2)
            .filter(|two| two[0].ended < two[1].ended);
        reach("distinct ends", waits.count());
        let late = |done: &&Completion| record.submitted[&done.command].earliest_end < done.ended;
        reach("delayed", record.done.iter().filter(late).count());
        let long = |done: &&Completion| done.ended.since(done.started) > Span::from_millis(2);
        reach(
            "longer than a turn",
            record.done.iter().filter(long).count(),
        );
    }
    for (what, least) in [
        ("commands", 2_000),
        ("done", 1_500),
        ("dropped", 50),
        ("concurrent processes", 50),
        ("links shared", 50),
        ("distinct ends", 500),
        ("delayed", 200),
        ("longer than a turn", 100),
    ] {
        assert!(reached[what] >= least, "{what}: {}", reached[what]);
    }
}
