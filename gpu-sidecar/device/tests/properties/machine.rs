//! A whole node under random commands.

use std::collections::{BTreeMap, BTreeSet};

use device::ledger::{Entry, Held, WorkId};
use device::machine::{Done, StreamId};
use device::node::Scale;
use device::{Span, Time};
use proptest::prelude::*;

use crate::driver::{Does, Ran, run, steps};

const LIFE: Scale = Scale { time: 1, bytes: 1 };

fn scale() -> impl Strategy<Value = Scale> {
    prop_oneof![
        3 => Just(LIFE),
        1 => (1..=8_u32, 1..=512_u32).prop_map(|(time, bytes)| Scale { time, bytes }),
    ]
}

/// Tells of every stretch of time in which nothing changes what is held then.
fn stretches<'a>(ledger: &'a [Entry], mut tell: impl FnMut(&BTreeMap<usize, &'a Entry>)) {
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
        tell(&held);
    }
}

/// The sums of what is held, by `key`.
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

/// The ledger in an order of its own, with what was cut joined.
fn joined(ledger: &[Entry]) -> Vec<Entry> {
    let mut sorted = ledger.to_vec();
    sorted.sort_by_key(|entry| (entry.held, entry.process, entry.work, entry.from));
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

fn nothing_is_used_twice(ran: &Ran) {
    stretches(&ran.ledger, |held| {
        for (what, sum) in sums(held, |entry| entry.held) {
            let most = match what {
                Held::Sms { unit } => u64::from(ran.sms[unit as usize]) * 1_000,
                Held::Link { link } => ran.links[link as usize],
                Held::Memory { unit } => ran.memory[unit as usize],
            };
            assert!(sum <= most, "{what:?}: {sum} of {most}");
        }
        for ((what, process), sum) in sums(held, |entry| (entry.held, entry.process)) {
            let known = &ran.known[&process];
            let most = match what {
                Held::Sms { unit } => {
                    assert_eq!(unit, known.unit);
                    u64::from(known.sms) * 1_000
                }
                Held::Link { .. } => continue,
                Held::Memory { unit } => {
                    assert_eq!(unit, known.unit);
                    known.memory_limit
                }
            };
            assert!(sum <= most, "{what:?}: {process:?} has {sum} of {most}");
        }
    });
}

fn one_participant_runs_at_a_time(ran: &Ran) {
    stretches(&ran.ledger, |held| {
        let mut on = BTreeMap::new();
        for entry in held.values() {
            if let Held::Sms { unit } = entry.held {
                let participant = ran.known[&entry.process].participant;
                assert_eq!(*on.entry(unit).or_insert(participant), participant);
            }
        }
    });
}

/// Max-min fairness: every transfer crosses a link that is full and on which nobody has more.
fn every_transfer_has_a_reason_for_its_rate(ran: &Ran) {
    stretches(&ran.ledger, |held| {
        let mut ways: BTreeMap<WorkId, (u64, Vec<usize>)> = BTreeMap::new();
        let mut links: BTreeMap<usize, (u64, u64, u64)> = BTreeMap::new();
        for entry in held.values() {
            if let Held::Link { link } = entry.held {
                let link = link as usize;
                let way = ways.entry(entry.work.unwrap()).or_default();
                assert!(way.0 == 0 || way.0 == entry.amount, "one rate on all links");
                way.0 = entry.amount;
                way.1.push(link);
                let (sum, most, users) = links.entry(link).or_default();
                *sum += entry.amount;
                *most = entry.amount.max(*most);
                *users += 1;
            }
        }
        for (work, (rate, way)) in ways {
            let is_reason = |link: &usize| {
                let (sum, most, users) = links[link];
                ran.links[*link] - sum < users && rate == most
            };
            assert!(way.iter().any(is_reason), "{work:?} at {rate} over {way:?}");
        }
    });
}

fn work_is_conserved(ran: &Ran) {
    let mut of_work: BTreeMap<u64, Vec<&Entry>> = BTreeMap::new();
    for entry in &ran.ledger {
        if let Some(work) = entry.work {
            assert_eq!(ran.submitted[&work.command].process, entry.process);
            of_work.entry(work.command).or_default().push(entry);
        }
    }
    for (command, submitted) in &ran.submitted {
        let lines = of_work.get(command).map_or(&[][..], Vec::as_slice);
        let product = |entry: &Entry| u128::from(entry.amount) * u128::from(entry.span().0);
        let held: u128 = lines.iter().map(|entry| product(entry)).sum();
        // What was dropped had at most as much.
        let least = |all: u128| if submitted.dropped.is_some() { 0 } else { all };
        match submitted.does {
            Does::Other => assert_eq!(held, 0),
            Does::Kernels(work) => {
                // A thousandth of an SM is lost to rounding at most, and the last nanosecond is begun; a share of the SMs
                // is a 32-bit fraction of time.
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
            Does::Bytes(bytes, links) => {
                let crossed: BTreeSet<_> = lines.iter().map(|entry| entry.held).collect();
                assert!(crossed.len() == links || held == 0, "{crossed:?}");
                for link in crossed {
                    let own = lines.iter().filter(|entry| entry.held == link);
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

fn memory_is_held_as_it_was_given(ran: &Ran) {
    let mut held = BTreeMap::new();
    for entry in &ran.ledger {
        if let Held::Memory { .. } = entry.held {
            let bytes = u128::from(entry.amount) * u128::from(entry.span().0);
            *held.entry(entry.process).or_insert(0) += bytes;
        }
    }
    for (process, known) in &ran.known {
        let held = held.get(process).copied().unwrap_or(0);
        assert_eq!(held, known.byte_nanos, "{process:?}");
    }
}

fn every_command_is_done_once_in_its_order(ran: &Ran) {
    let mut last: BTreeMap<StreamId, Done> = BTreeMap::new();
    let mut done = BTreeMap::new();
    let mut now = Time::ZERO;
    for one in &ran.done {
        assert!(one.started <= one.ended && now <= one.ended, "{one:?}");
        now = one.ended;
        assert_eq!(ran.submitted[&one.command].stream, one.stream);
        assert!(done.insert(one.command, *one).is_none(), "{one:?}");
        if let Some(before) = last.insert(one.stream, *one) {
            assert!(before.command < one.command && before.ended <= one.started);
        }
    }
    for (command, submitted) in &ran.submitted {
        match done.get(command) {
            None => assert!(submitted.dropped.is_some(), "{command} is not done"),
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
    fn what_always_holds(steps in steps(), scale in scale()) {
        let ran = run(&steps, scale, None);
        nothing_is_used_twice(&ran);
        one_participant_runs_at_a_time(&ran);
        every_transfer_has_a_reason_for_its_rate(&ran);
        work_is_conserved(&ran);
        memory_is_held_as_it_was_given(&ran);
        every_command_is_done_once_in_its_order(&ran);
    }

    #[test]
    fn the_same_commands_give_the_same_ledger_in_whatever_pieces_time_passes(
        steps in steps(),
        stride in 50_000..2_000_000_u64,
    ) {
        let (one, same) = (run(&steps, LIFE, None), run(&steps, LIFE, None));
        prop_assert_eq!(&one.done, &same.done);
        prop_assert_eq!(&one.ledger, &same.ledger);
        let other = run(&steps, LIFE, Some(stride));
        prop_assert_eq!(&one.done, &other.done);
        prop_assert_eq!(joined(&one.ledger), joined(&other.ledger));
    }
}

/// Random steps reach what the properties speak of; otherwise they would hold of nothing.
#[test]
fn random_steps_reach_everything() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let mut reached = BTreeMap::new();
    for _ in 0..100 {
        let ran = run(
            &steps().new_tree(&mut runner).unwrap().current(),
            LIFE,
            None,
        );
        let mut reach = |what: &'static str, many: usize| *reached.entry(what).or_insert(0) += many;
        reach("commands", ran.submitted.len());
        reach("done", ran.done.len());
        let dropped = ran.submitted.values().filter(|one| one.dropped.is_some());
        reach("dropped", dropped.count());
        let (mut beside, mut slowed) = (0, 0);
        stretches(&ran.ledger, |held| {
            let mut users = BTreeMap::new();
            for entry in held.values() {
                users
                    .entry(entry.held)
                    .or_insert_with(BTreeSet::new)
                    .insert(entry.process);
            }
            let several = |held: fn(&Held) -> bool| {
                users
                    .iter()
                    .filter(|(key, users)| held(key) && users.len() > 1)
                    .count()
            };
            beside += several(|held| matches!(held, Held::Sms { .. }));
            slowed += several(|held| matches!(held, Held::Link { .. }));
        });
        reach("processes side by side", beside);
        reach("links shared", slowed);
        let waits = ran
            .done
            .windows(2)
            .filter(|two| two[0].ended < two[1].ended);
        reach("ends apart", waits.count());
        let late = |done: &&Done| ran.submitted[&done.command].earliest_end < done.ended;
        reach("held up", ran.done.iter().filter(late).count());
        let long = |done: &&Done| done.ended.since(done.started) > Span::from_millis(2);
        reach("longer than a turn", ran.done.iter().filter(long).count());
    }
    for (what, least) in [
        ("commands", 2_000),
        ("done", 1_500),
        ("dropped", 50),
        ("processes side by side", 50),
        ("links shared", 50),
        ("ends apart", 500),
        ("held up", 200),
        ("longer than a turn", 100),
    ] {
        assert!(reached[what] >= least, "{what}: {}", reached[what]);
    }
}
