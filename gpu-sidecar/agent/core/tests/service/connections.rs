//! Greetings, pages, and connections which end, overlap or misbehave.

use super::*;

#[test]
fn a_process_greets_gets_pages_and_a_token() {
    let mut node = Node::new(&[pod(0, 50)]);
    let process = node.connect(1).unwrap();
    node.hello(process, false, 0);
    let welcome = node.messages(process)[0];
    assert!(matches!(
        welcome,
        FromAgent::Welcome {
            memory_limit: 1_000,
            active_thread_hundredths: 5_000,
            ..
        }
    ));
    node.attach(process, 0);
    assert!(!node.is_open(process));
    node.ask(process);
    assert!(node.is_open(process));
    node.close(process);
    assert!(!node.is_open(process));
    let figures = node.figures();
    assert_eq!((figures.slots[0].grants, figures.slots[0].holders), (1, 0));
}

#[test]
fn a_report_on_former_pages_does_not_return_the_new_token() {
    let mut node = Node::new(&[pod(0, 40)]);
    let first = node.attached(1);
    node.ask(first);
    let stale = node.epoch(first);
    node.on(Event::Disconnected(first));
    node.now += MS;
    let second = node.connect(1).unwrap();
    node.hello(second, true, 0);
    node.attach(second, 0);
    assert!(node.is_open(second));
    assert!(node.epoch(second) > stale);
    // A thread of the process has drained the former gate meanwhile.
    node.send(second, FromProcess::Closed { epoch: stale });
    assert!(node.is_open(second));
    assert_eq!(node.figures().slots[0].held_hundredths, 4_000);
}

#[test]
fn of_work_in_flight_when_an_agent_greets_its_process_only_the_rest_is_charged() {
    let mut node = Node::new(&[pod(0, 100)]);
    let process = node.connect(1).unwrap();
    node.hello(process, true, 0);
    node.attach(process, 0);
    let attached = node.now;
    assert!(node.is_open(process));
    // A kernel of 50 ms, launched 40 ms before, has ended, and the next one is in flight.
    node.work(process);
    let facts = &node.pages(process).facts;
    facts
        .busy_since
        .store(attached - 40 * MS, Ordering::Relaxed);
    node.pass(5 * MS);
    assert_eq!(node.figures().pods[0].counters.used_wall_ns, 0);
    let ended = attached + 10 * MS;
    facts.busy_ns.store(50 * MS, Ordering::Relaxed);
    facts.busy_since.store(ended, Ordering::Relaxed);
    node.pass(30 * MS);
    assert_eq!(node.figures().pods[0].counters.used_wall_ns, 10 * MS);
    facts.busy_ns.store(70 * MS, Ordering::Relaxed);
    facts.busy_since.store(0, Ordering::Relaxed);
    facts.inflight_us.store(0, Ordering::Relaxed);
    node.pass(30 * MS);
    assert_eq!(node.figures().pods[0].counters.used_wall_ns, 30 * MS);
    // At its death what is in flight is charged.
    node.work(process);
    node.pass(20 * MS);
    node.on(Event::Ended(process));
    let charged = node.figures().pods[0].counters.charged_ns;
    assert_eq!(charged, 50 * MS);
}

#[test]
fn a_process_that_states_work_since_ever_is_charged_for_nothing_before_it_came() {
    let mut node = Node::new(&[pod(0, 100)]);
    let process = node.connect(1).unwrap();
    node.hello(process, true, 0);
    node.attach(process, u64::MAX);
    node.work(process);
    let facts = &node.pages(process).facts;
    facts.busy_since.store(1, Ordering::Relaxed);
    facts.busy_ns.store(u64::MAX, Ordering::Relaxed);
    node.pass(20 * MS);
    assert_eq!(node.figures().pods[0].counters.used_wall_ns, 0);
    node.on(Event::Ended(process));
    let charged = node.figures().pods[0].counters.charged_ns;
    assert!(charged <= 20 * MS, "{charged}");
}

#[test]
fn kernel_time_published_between_attach_and_new_pages_is_charged_once() {
    let mut node = Node::new(&[pod(0, 100)]);
    let first = node.attached(1);
    node.ask(first);
    node.pass(20 * MS);
    let former = node.pages(first);
    former.facts.busy_ns.store(5 * MS, Ordering::Relaxed);
    node.on(Event::Disconnected(first));
    let second = node.connect(1).unwrap();
    node.hello(second, true, 5 * MS);
    // Sent with 5 ms; by the time it is read the process has published 8 ms in its former page.
    former.facts.busy_ns.store(8 * MS, Ordering::Relaxed);
    node.attach(second, 5 * MS);
    node.pages(second)
        .facts
        .busy_ns
        .store(9 * MS, Ordering::Relaxed);
    node.pass(20 * MS);
    assert_eq!(node.figures().pods[0].counters.used_wall_ns, 9 * MS);
}

#[test]
fn a_process_without_its_pages_counts_until_it_returns() {
    let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
    let waiter = node.attached(101);
    let first = node.connect(1).unwrap();
    node.hello(first, true, 0);
    node.attach(first, 0);
    let text = "the connection has ended".to_owned();
    node.on(Event::PagesFailed {
        process: first,
        text,
    });
    node.ask(waiter);
    node.pass(500 * MS);
    assert!(!node.is_open(waiter), "the process may still compute");
    let second = node.connect(1).unwrap();
    node.hello(second, false, 0);
    node.attach(second, 0);
    node.pass(MS);
    assert!(node.is_open(waiter));
}

#[test]
fn a_former_connection_that_is_read_after_the_present_one_leaves_nothing() {
    let mut node = Node::new(&[pod(0, 100)]);
    let (former, present) = (node.connect(1).unwrap(), node.connect(1).unwrap());
    node.hello(present, true, 0);
    node.attach(present, 0);
    node.hello(former, true, 0);
    node.attach(former, 0);
    let text = "the connection has ended".to_owned();
    node.on(Event::PagesFailed {
        process: former,
        text,
    });
    assert_eq!(node.count(|action| *action == Action::Forget(former)), 1);
    let slot = node.figures().slots[0].clone();
    assert_eq!((slot.processes, slot.held_hundredths), (1, 10_000));
    node.pass(20 * SECOND);
    let killed = |action: &Action| matches!(action, Action::Kill(_));
    assert_eq!(node.count(killed), 0);
}

/// A grant in the former page is noticed after the new connection's `Hello` was written.
#[test]
fn a_process_that_launched_by_a_former_grant_holds_its_sms() {
    for is_lost in [false, true] {
        let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
        let (former, waiter) = (node.attached(1), node.attached(101));
        let present = node.connect(1).unwrap();
        node.hello_again(present, false);
        node.ask(former);
        assert!(node.is_open(former));
        node.pages(former)
            .facts
            .inflight_us
            .store(900, Ordering::Relaxed);
        if is_lost {
            node.on(Event::Disconnected(former));
        }
        node.ask(waiter);
        node.attach(present, 0);
        node.on(Event::Disconnected(former));
        assert!(!node.is_open(waiter), "the process may still compute");
        // It returns the token of its new page.
        node.close(present);
        node.pass(MS);
        assert!(node.is_open(waiter));
    }
}

/// The agent has not read the end of the former connection. The process goes on in its page until it has the next.
#[test]
fn kernel_time_in_two_pages_of_a_process_is_charged_once() {
    let mut node = Node::new(&[pod(0, 100)]);
    let former = node.attached(1);
    let publish = |node: &Node, process: ProcessId, from: u64, to: u64, total: u64| {
        let facts = &node.pages(process).facts;
        facts.push(from, to);
        facts.busy_ns.store(total, Ordering::Release);
    };
    let used = |node: &mut Node| {
        node.on(Event::FiguresWanted);
        node.figures().pods[0].counters.used_wall_ns
    };
    let begin = node.now;
    node.pass(30 * MS);
    publish(&node, former, begin, begin + 30 * MS, 30 * MS);
    let present = node.connect(1).unwrap();
    node.hello_again(present, true);
    node.attach(present, 30 * MS);
    node.pass(40 * MS);
    publish(&node, former, begin + 30 * MS, begin + 70 * MS, 70 * MS);
    node.on(Event::Disconnected(former));
    assert_eq!(used(&mut node), 70 * MS);
    node.pass(50 * MS);
    publish(&node, present, begin + 70 * MS, begin + 120 * MS, 120 * MS);
    assert_eq!(used(&mut node), 120 * MS);
}

#[test]
fn a_lost_process_keeps_its_token_until_it_ends_and_is_killed_after_ten_seconds() {
    let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
    let (lost, waiter) = (node.attached(1), node.attached(101));
    node.ask(lost);
    node.work(lost);
    node.on(Event::Disconnected(lost));
    assert!(!node.is_open(lost), "its gate is shut");
    node.ask(waiter);
    node.pass(9 * SECOND);
    assert!(!node.is_open(waiter));
    let killed = |node: &Node| node.count(|action| *action == Action::Kill(lost));
    assert_eq!(killed(&node), 0);
    node.pass(2 * SECOND);
    assert_eq!(killed(&node), 1);
    node.on(Event::Ended(lost));
    node.pass(MS);
    assert!(node.is_open(waiter));
}

#[test]
fn a_message_out_of_turn_ends_only_its_connection() {
    let mut node = Node::new(&[pod(0, 50)]);
    let other = node.attached(2);
    for message in [
        FromProcess::Ask { epoch: 1 },
        FromProcess::Present,
        FromProcess::Claim { seq: 1, bytes: 1 },
    ] {
        let process = node.connect(1).unwrap();
        let text = node.send(process, message).to_vec();
        assert!(matches!(
            text[0],
            Action::Send {
                message: FromAgent::Refused {
                    reason: Refusal::Protocol,
                    ..
                },
                ..
            }
        ));
        assert!(text.contains(&Action::Forget(process)));
    }
    node.ask(other);
    assert!(node.is_open(other));
    let refused = &node.figures().pods[0].counters.refused_connections;
    assert_eq!(refused.get("protocol"), Some(&3));
}

#[test]
fn connections_beyond_256_a_second_wait() {
    let mut node = Node::new(&[pod(0, 50)]);
    for number in 0..256 {
        let process = node.connect(number % 50).unwrap();
        node.on(Event::Ended(process));
    }
    let accepts = |accepts| Action::Accept {
        pod: PodKey(0),
        accepts,
    };
    assert_eq!(node.count(|action| *action == accepts(false)), 1);
    node.pass(SECOND);
    assert_eq!(node.count(|action| *action == accepts(true)), 1);
    node.on(Event::AcceptFailed(PodKey(0)));
    assert_eq!(node.count(|action| *action == accepts(false)), 2);
    node.pass(101 * MS);
    assert_eq!(node.count(|action| *action == accepts(true)), 2);
}

#[test]
fn a_greeting_waits_for_the_mps_daemon() {
    let mut node = Node::new(&[pod(0, 50), pod(1, 100)]);
    node.mps(false);
    let (part, whole) = (node.connect(1).unwrap(), node.connect(101).unwrap());
    node.hello(part, false, 0);
    node.hello(whole, false, 0);
    assert!(node.messages(part).is_empty());
    node.pass(1_600 * MS);
    // A part of the SMs needs MPS; all of them do not.
    assert!(matches!(
        node.messages(part)[..],
        [FromAgent::Refused {
            reason: Refusal::NoMps,
            ..
        }]
    ));
    assert!(matches!(
        node.messages(whole)[..],
        [FromAgent::Welcome { .. }]
    ));
    let later = node.connect(2).unwrap();
    node.hello(later, false, 0);
    node.mps(true);
    assert!(matches!(
        node.messages(later)[..],
        [FromAgent::Welcome { .. }]
    ));
}

#[test]
fn more_clients_than_mps_takes_are_refused_with_the_number() {
    let mut node = Node::new(&[pod(0, 10)]);
    for number in 1..=3 {
        node.attached(number);
    }
    let process = node.connect(4).unwrap();
    node.hello(process, false, 0);
    let [FromAgent::Refused { reason, text }] = node.messages(process)[..] else {
        panic!("it is refused");
    };
    assert_eq!(*reason, Refusal::TooMany);
    assert!(text.contains("the slot has 3, and 3 are allowed"), "{text}");
}

/// The end of a long queue of kernels is noticed at once, and by then the process may be in its third connection.
#[test]
fn kernel_time_of_former_connections_is_charged_when_it_is_stated() {
    let mut node = Node::new(&[pod(0, 100)]);
    let mut process = node.attached(1);
    node.ask(process);
    node.work(process);
    for _ in 0..2 {
        node.pass(100 * MS);
        node.on(Event::Disconnected(process));
        process = node.connect(1).unwrap();
        node.hello_again(process, true);
        node.attach(process, 0);
        node.work(process);
    }
    node.pass(10 * MS);
    let facts = &node.pages(process).facts;
    facts.busy_ns.store(210 * MS, Ordering::Release);
    assert_eq!(node.figures().pods[0].counters.used_wall_ns, 210 * MS);
    // More than has passed is not believed.
    facts.busy_ns.store(900 * MS, Ordering::Release);
    node.pass(20 * MS);
    assert_eq!(node.figures().pods[0].counters.used_wall_ns, 230 * MS);
}
