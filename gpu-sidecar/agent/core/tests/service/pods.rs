//! Memory claims, heartbeats, limits and orders.

use super::*;

#[test]
fn two_processes_are_not_asked_for_memory_without_end() {
    let mut node = Node::new(&[pod(0, 50)]);
    let both = [node.attached(1), node.attached(2)];
    for (seq, process) in [(1, both[0]), (1, both[1])] {
        node.send(process, FromProcess::Claim { seq, bytes: 500 });
    }
    // Each uses more than it was granted, and answers every request with what it uses.
    let mut asked = 0;
    for turn in 0..1_000 {
        let process = both[turn % 2];
        let seq = 2 + u32::try_from(turn).unwrap();
        let answers = node.send(process, FromProcess::Claim { seq, bytes: 900 });
        let relinquish = FromAgent::Relinquish;
        let is_request = |action: &&Action| matches!(action, Action::Send { message, .. } if *message == relinquish);
        asked += answers.iter().filter(is_request).count();
        node.now += 10_000;
    }
    assert!(asked <= 2, "{asked} requests in 10 ms");
}

#[test]
fn a_claim_waits_for_others_and_is_answered_in_time() {
    let mut node = Node::new(&[pod(0, 50)]);
    let (first, second) = (node.attached(1), node.attached(2));
    let claim = |seq, bytes| FromProcess::Claim { seq, bytes };
    node.send(first, claim(1, 800));
    node.send(second, claim(1, 400));
    assert_eq!(node.messages(first).last(), Some(&&FromAgent::Relinquish));
    node.send(first, claim(2, 600));
    let granted = node
        .pages(second)
        .orders
        .memory_claim
        .load(Ordering::Relaxed);
    assert_eq!(granted, 400);
    node.send(second, claim(2, 500));
    node.pass(199 * MS);
    let answered = |node: &Node| {
        node.pages(second)
            .orders
            .claim_answered
            .load(Ordering::Relaxed)
    };
    assert_eq!(answered(&node), 1);
    node.pass(2 * MS);
    assert_eq!(answered(&node), 2, "refused after 200 ms");
    let held = node
        .pages(second)
        .orders
        .memory_claim
        .load(Ordering::Relaxed);
    assert_eq!(held, 400);
}

#[test]
fn waiting_processes_see_a_heartbeat_each_50_ms() {
    let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
    let (holder, waiter) = (node.attached(1), node.attached(101));
    node.ask(holder);
    node.work(holder);
    let beats = |node: &Node| node.pages(waiter).orders.heartbeat.load(Ordering::Relaxed);
    node.pass(SECOND);
    assert_eq!(beats(&node), 0, "nobody waits");
    node.work(holder);
    node.ask(waiter);
    node.pass(SECOND);
    assert!((19..=21).contains(&beats(&node)), "{}", beats(&node));
}

#[test]
fn a_removed_pod_leaves_nothing() {
    let mut node = Node::new(&[pod(0, 100), pod(1, 100)]);
    let (holder, waiter) = (node.attached(1), node.attached(101));
    node.ask(holder);
    node.ask(waiter);
    node.on(Event::PodRemoved(PodKey(0)));
    assert!(node.is_open(waiter));
    assert_eq!(node.count(|action| *action == Action::Forget(holder)), 1);
    assert!(node.agent.pages(holder).is_none());
    let figures = node.figures();
    assert_eq!(figures.pods.len(), 1);
    assert_eq!(node.connect(1), None, "its socket is gone");
}

#[test]
fn a_changed_limit_reaches_the_pages() {
    let mut node = Node::new(&[pod(0, 50)]);
    let process = node.attached(1);
    let mut changed = pod(0, 50);
    changed.settings.gpu_memory = Some(2_000);
    changed.settings.quota_limit_ppm = 500_000;
    node.on(Event::PodChanged(Arc::new(changed)));
    let pages = node.pages(process);
    assert_eq!(pages.orders.memory_limit.load(Ordering::Relaxed), 2_000);
    assert_eq!(pages.orders.inflight_us_max.load(Ordering::Relaxed), 2_000);
}
