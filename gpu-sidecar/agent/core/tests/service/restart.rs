//! An agent that finds the processes of an earlier one.

use super::*;

#[test]
fn nothing_is_granted_before_survivors_have_greeted_or_died() {
    let survivors = [record(1, 5_000), record(2, 5_000)];
    let mut node = Node::starting(&[pod(0, 50), pod(1, 50)], &survivors);
    let newcomer = node.attached(101);
    node.ask(newcomer);
    node.pass(SECOND);
    assert!(!node.is_open(newcomer));
    let first = node.connect(1).unwrap();
    node.hello(first, true, 0);
    node.attach(first, 0);
    assert!(!node.is_open(newcomer), "the other one is silent");
    // The caller was asked to look after it.
    let examined = |action: &Action| matches!(action, Action::ExamineSurvivor { record, .. } if record.pid == 2);
    assert!(node.count(examined) > 0);
    node.on(Event::SurvivorEnded {
        pod: PodKey(0),
        record: survivors[1],
    });
    node.pass(MS);
    assert!(node.is_open(newcomer));
}

#[test]
fn a_silent_survivor_counts_as_a_holder_after_two_seconds() {
    let mut node = Node::starting(&[pod(0, 60), pod(1, 60)], &[record(1, 6_000)]);
    let newcomer = node.attached(101);
    node.ask(newcomer);
    node.pass(3 * SECOND);
    assert!(!node.is_open(newcomer), "60 % and 60 % do not fit");
    assert_eq!(node.figures().slots[0].held_hundredths, 6_000);
    node.on(Event::SurvivorEnded {
        pod: PodKey(0),
        record: record(1, 6_000),
    });
    assert!(node.is_open(newcomer));
}

#[test]
fn a_greeting_ends_all_records_of_a_process() {
    let former = ProcessRecord {
        start: 77,
        ..record(1, 6_000)
    };
    let records = [former, record(1, 6_000), record(1, 6_000)];
    let mut node = Node::starting(&[pod(0, 60), pod(1, 60)], &records);
    let newcomer = node.attached(101);
    node.ask(newcomer);
    node.pass(3 * SECOND);
    let late = node.connect(1).unwrap();
    node.hello(late, false, 0);
    node.attach(late, 0);
    assert_eq!(node.figures().pods[0].silent_processes, 0);
    assert!(node.is_open(newcomer));
}

#[test]
fn nothing_is_granted_within_the_first_moment_of_an_agent() {
    let mut node = Node::starting(&[pod(0, 50)], &[]);
    let process = node.attached(1);
    node.ask(process);
    node.pass(299 * MS);
    assert!(!node.is_open(process));
    node.pass(2 * MS);
    assert!(node.is_open(process));
}

#[test]
fn the_roster_has_the_processes_with_pages() {
    let mut node = Node::new(&[pod(0, 50)]);
    let process = node.attached(1);
    let last = |node: &Node| {
        let rosters = node.actions.iter().rev().find_map(|action| match action {
            Action::Roster { records, .. } => Some(records.clone()),
            _ => None,
        });
        rosters.unwrap()
    };
    assert_eq!(last(&node), [record(1, 5_000)]);
    node.on(Event::Ended(process));
    assert_eq!(last(&node), []);
}
