//! Processes that compute no more.

use protocol::message::Report;

use super::*;

/// Two pods on an exclusive slot. The process of the first has the lease and has begun work; 20 of its requests of 5 ms have ended before.
fn working() -> (Node, ProcessId) {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    for _request in 0..20 {
        node.wants(0, 80);
    }
    let process = node.attached(1);
    node.ask(process);
    assert!(node.lease(0).is_some() && node.is_open(process));
    node.work(process);
    (node, process)
}

impl Node {
    fn kills(&self, process: ProcessId) -> usize {
        self.count(|action| *action == Action::Kill(process))
    }

    /// Passes time in steps in which the agent looks at its processes.
    fn pass_by(&mut self, steps: u32, step: u64) {
        for _step in 0..steps {
            self.pass(step);
        }
    }

    fn faulted(&self) -> Vec<&str> {
        let events = self.actions.iter().filter_map(|action| match action {
            Action::Record {
                kind: Kind::ProcessFaulted,
                text,
                ..
            } => Some(&**text),
            _ => None,
        });
        events.collect()
    }
}

#[test]
fn a_process_whose_work_does_not_progress_is_killed_and_the_slot_passes_on() {
    let (mut node, process) = working();
    node.wants(1, 100);
    node.pass(200 * MS);
    let epoch = node.recalled(0).unwrap();
    assert_eq!(node.lease(1), None);
    node.pass(9_700 * MS);
    assert_eq!(node.kills(process), 0, "10 s at least");
    node.pass(400 * MS);
    assert_eq!(node.kills(process), 1);
    let [text] = node.faulted()[..] else {
        panic!("{:?}", node.faulted());
    };
    assert!(
        text.starts_with("process 1 killed (no-progress): "),
        "{text}"
    );
    assert_eq!(node.figures().pods[0].counters.faults["no-progress"], 1);
    node.pass(SECOND);
    assert_eq!(node.kills(process), 1, "once");
    // What it ran was answered 502.
    node.on(Event::Ended(process));
    node.idle(0, epoch);
    assert!(node.lease(1).is_some());
}

#[test]
fn a_process_that_progresses_is_not_killed_however_long_its_request_takes() {
    let (mut node, process) = working();
    for _launch in 0..100 {
        node.pass(9_900 * MS);
        let facts = &node.pages(process).facts;
        facts.launches.0.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(node.kills(process), 0);
    // Nor one that has nothing in flight.
    let facts = &node.pages(process).facts;
    facts.busy_since.store(0, Ordering::Relaxed);
    facts.inflight_us.store(0, Ordering::Relaxed);
    node.pass_by(100, SECOND);
    assert_eq!(node.kills(process), 0);
}

#[test]
fn a_stopped_process_is_examined_and_not_killed() {
    let (mut node, process) = working();
    let examined = |node: &Node| node.count(|action| *action == Action::Examine(process));
    for round in 1..=3 {
        while examined(&node) < round {
            node.pass(100 * MS);
        }
        node.on(Event::Stopped(process));
    }
    assert_eq!(node.kills(process), 0);
    // It goes on, and hangs all the same.
    node.pass_by(102, 100 * MS);
    assert_eq!(node.kills(process), 1);
}

#[test]
fn before_enough_requests_have_ended_a_minute_is_allowed() {
    let mut node = exclusive(1);
    node.queue_connects(0);
    node.wants(0, 80);
    let process = node.attached(1);
    node.ask(process);
    node.work(process);
    node.pass_by(590, 100 * MS);
    assert_eq!(node.kills(process), 0);
    node.pass_by(13, 100 * MS);
    assert_eq!(node.kills(process), 1);
}

#[test]
fn a_process_with_a_sticky_error_has_a_second_to_end_by_itself() {
    let (mut node, holder) = working();
    // Whether it computes or not.
    let other = node.attached(101);
    node.send(other, FromProcess::Report(Report::Fatal(700)));
    node.pass(900 * MS);
    assert_eq!(node.kills(other), 0);
    node.pass(300 * MS);
    assert_eq!((node.kills(other), node.kills(holder)), (1, 0));
    assert_eq!(node.figures().pods[1].counters.faults["sticky-error"], 1);
    // One that had its error before it connected again states it in its page.
    let third = node.attached(2);
    node.ask(third);
    let facts = &node.pages(third).facts;
    facts.last_error.store(719, Ordering::Relaxed);
    node.pass(1_200 * MS);
    assert_eq!(node.kills(third), 1);
}

#[test]
fn without_leases_and_where_the_operator_wants_it_nothing_is_killed() {
    let mut unleased = exclusive(1);
    let process = unleased.attached(1);
    unleased.ask(process);
    unleased.work(process);
    unleased.send(process, FromProcess::Report(Report::Fatal(700)));
    unleased.pass_by(100, SECOND);
    assert_eq!(unleased.kills(process), 0);
    let mut node = of_settings(
        1,
        MemorySettings {
            ends_faulted: false,
            ..MEMORY
        },
    );
    node.queue_connects(0);
    node.wants(0, 80);
    let process = node.attached(1);
    node.ask(process);
    node.work(process);
    node.send(process, FromProcess::Report(Report::Fatal(700)));
    node.pass_by(100, SECOND);
    assert_eq!(node.kills(process), 0);
}

#[test]
fn the_lease_of_a_process_with_a_sticky_error_is_recalled_before_its_program_learns_of_it() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    let process = node.attached(1);
    node.wants(0, 80);
    let epoch = node.lease(0).unwrap();
    let noted = |node: &Node| {
        node.pages(process)
            .orders
            .error_noted
            .load(Ordering::Relaxed)
    };
    assert_eq!(noted(&node), 0);
    node.actions.clear();
    node.send(process, FromProcess::Report(Report::Fatal(700)));
    assert_eq!((node.recalled(0), noted(&node)), (Some(epoch), 700));
    let at = |wanted: &dyn Fn(&Action) -> bool| node.actions.iter().position(wanted);
    let recalled = at(&|action| {
        matches!(
            action,
            Action::SendQueue {
                message: ToQueue::Recall { .. },
                ..
            }
        )
    });
    let answered = at(&|action| {
        matches!(
            action,
            Action::Order {
                order: Order::NoteError { .. },
                ..
            }
        )
    });
    assert!(recalled.unwrap() < answered.unwrap());
    let faulted = ToQueue::State {
        residency: Residency::Faulted,
        load: 0,
    };
    assert!(node.queue_messages(0).contains(&&faulted));
    assert_eq!(node.figures().pods[0].processes[0].residency, "faulted");
    node.idle(0, epoch);
    // Another has the slot meanwhile; what waits for the process waits for its successor.
    node.wants(1, 80);
    let other = node.lease(1).unwrap();
    node.wants(0, 80);
    node.idle(1, other);
    node.actions.clear();
    node.on(Event::Ended(process));
    node.pass(SECOND);
    assert_eq!(node.recalled(1), None);
    let _next = node.attached(2);
    assert_eq!(node.recalled(1), Some(other));
    node.idle(1, other);
    assert!(node.lease(0).is_some());
}

#[test]
fn a_process_with_a_sticky_error_stays_failed_when_it_connects_again() {
    for agent_starts_again in [false, true] {
        let (mut node, process) = working();
        let facts = &node.pages(process).facts;
        facts.last_error.store(700, Ordering::Relaxed);
        node.send(process, FromProcess::Report(Report::Fatal(700)));
        let epoch = node.recalled(0).unwrap();
        node.idle(0, epoch);
        if agent_starts_again {
            node = exclusive(2);
            node.queue_connects(0);
        }
        // It states its error in its new page.
        let again = node.connect(1).unwrap();
        node.hello_again(again, false);
        node.attach(again, 0);
        let facts = &node.pages(again).facts;
        facts.last_error.store(700, Ordering::Relaxed);
        node.actions.clear();
        node.send(again, FromProcess::MemoryWanted);
        node.wants(0, 80);
        assert_eq!(node.lease(0), None, "{agent_starts_again}");
        assert_eq!(node.figures().pods[0].processes[0].residency, "faulted");
        node.pass_by(12, 100 * MS);
        assert_eq!(node.kills(again), 1, "{agent_starts_again}");
    }
}
