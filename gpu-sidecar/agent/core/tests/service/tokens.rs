//! Grants, returns and revocations of tokens.

use super::*;

#[test]
fn a_lost_slot_grants_nothing_to_pods_that_are_stopped_next() {
    let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
    let (holder, waiter) = (node.attached(1), node.attached(101));
    node.ask(holder);
    node.ask(waiter);
    node.on(Event::SlotLost {
        slot: SlotKey(0),
        reason: "by the test".to_owned(),
    });
    node.close(holder);
    node.pass(SECOND);
    assert!(!node.is_open(waiter) && !node.is_open(holder));
    node.on(Event::SlotAdded(Arc::new(slot(SlotKind::Mps))));
    node.pass(MS);
    assert!(node.is_open(waiter));
}

#[test]
fn an_idle_holder_loses_its_token_to_a_waiting_process() {
    let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
    let (holder, waiter) = (node.attached(1), node.attached(101));
    node.ask(holder);
    node.ask(waiter);
    assert!(node.is_open(holder) && !node.is_open(waiter));
    node.pass(50 * MS);
    assert!(!node.is_open(holder) && node.is_open(waiter));
    assert_eq!(node.figures().pods[0].counters.revoked_idle, 1);
}

#[test]
fn a_process_that_a_probe_does_not_reach_is_probed_again() {
    let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
    let (doubted, other) = (node.attached(1), node.attached(101));
    // It lets a token pass unused, and has to answer before it gets another.
    node.ask(doubted);
    node.ask(other);
    node.pass(50 * MS);
    node.work(other);
    node.ask(doubted);
    node.pass(300 * MS);
    let probes = |node: &Node| {
        let messages = node.messages(doubted);
        messages
            .iter()
            .filter(|own| ***own == FromAgent::Probe)
            .count()
    };
    let before = probes(&node);
    assert!(before > 0, "it is probed");
    node.on(Event::NotSent {
        process: doubted,
        is_probe: true,
    });
    node.pass(100 * MS);
    assert!(probes(&node) > before, "and again");
    node.send(doubted, FromProcess::Present);
    node.close(other);
    node.pass(100 * MS);
    assert!(node.is_open(doubted));
}

#[test]
fn a_process_that_answers_no_order_to_close_and_is_idle_loses_its_token() {
    let mut changed = pod(0, 100);
    changed.settings.quota_limit_ppm = 100_000;
    let mut node = Node::new(&[changed]);
    let process = node.attached(1);
    node.ask(process);
    // It uses its limit, is closed and does not answer.
    let facts = node.pages(process);
    for _turn in 0..20 {
        facts.facts.busy_ns.fetch_add(100 * MS, Ordering::Relaxed);
        facts.facts.launches.0.fetch_add(1, Ordering::Relaxed);
        node.pass(100 * MS);
    }
    assert!(!node.is_open(process));
    node.pass(3 * SECOND);
    let reported = |action: &Action| matches!(action, Action::Record { kind: EventKind::ProcessReport, text, .. } if text.contains("does not answer"));
    assert_eq!(node.count(reported), 1);
    assert!(!node.figures().pods[0].has_token);
}

#[test]
fn a_stopped_process_is_examined_and_loses_its_token() {
    let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
    let (stopped, waiter) = (node.attached(1), node.attached(101));
    node.ask(stopped);
    let pages = node.pages(stopped);
    pages.facts.inflight_us.store(1_000, Ordering::Relaxed);
    pages.facts.busy_since.store(node.now, Ordering::Relaxed);
    pages.facts.launches.0.store(1, Ordering::Relaxed);
    node.ask(waiter);
    node.pass(3 * MS);
    assert!(node.count(|action| *action == Action::Examine(stopped)) > 0);
    node.on(Event::Stopped(stopped));
    node.pass(5 * MS);
    assert!(node.is_open(waiter));
    assert_eq!(node.figures().pods[0].counters.revoked_unresponsive, 1);
}

#[test]
fn a_holder_with_a_full_socket_loses_its_token_after_eight_probes() {
    let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
    let (deaf, waiter) = (node.attached(1), node.attached(101));
    node.ask(deaf);
    let pages = node.pages(deaf);
    pages.facts.inflight_us.store(1_000, Ordering::Relaxed);
    pages.facts.busy_since.store(node.now, Ordering::Relaxed);
    pages.facts.launches.0.store(1, Ordering::Relaxed);
    node.ask(waiter);
    let mut unsent = 0;
    for _ in 0..200 {
        node.pass(MS);
        let messages = node.messages(deaf);
        let probes = messages.iter().filter(|own| ***own == FromAgent::Probe);
        let probes = probes.count();
        if node.is_open(waiter) {
            assert_eq!(unsent, 9);
            return;
        }
        for _ in unsent..probes {
            node.on(Event::NotSent {
                process: deaf,
                is_probe: true,
            });
        }
        unsent = probes;
    }
    panic!("the token is kept after {unsent} probes");
}

#[test]
fn a_pod_is_charged_no_more_than_the_time_that_has_passed() {
    let mut node = Node::new(&[pod(0, 50)]);
    let both = [node.attached(1), node.attached(2)];
    let begin = node.now;
    for process in both {
        node.ask(process);
    }
    for turn in 1..200_u64 {
        for (at, process) in both.iter().enumerate() {
            let facts = node.pages(*process);
            facts.facts.busy_ns.store(u64::MAX, Ordering::Relaxed);
            let lie = begin.saturating_sub(turn * MS * (at as u64 + 1));
            facts.facts.push(lie, u64::MAX);
            facts.facts.push(node.now - MS, node.now);
        }
        node.pass(MS);
    }
    let used = node.figures().pods[0].counters.used_wall_ns;
    assert!(used <= node.now - SECOND, "{used}");
}

#[test]
fn a_holder_sees_that_others_wait() {
    let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
    let (holder, waiter) = (node.attached(1), node.attached(101));
    node.ask(holder);
    node.work(holder);
    let contended = |node: &Node| node.pages(holder).orders.contended.load(Ordering::Relaxed);
    assert_eq!(contended(&node), 0);
    node.ask(waiter);
    assert_eq!(contended(&node), 1);
    let order = node.actions.iter().any(|action| {
        matches!(action, Action::Order { process, order: Order::Contended { contended: true, .. } } if *process == holder)
    });
    assert!(order);
}
