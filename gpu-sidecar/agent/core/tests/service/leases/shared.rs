//! Leases of a slot on which several pods compute at once: there they decide whose model is in its memory.

use super::*;

/// Pods on a shared slot whose memory holds 100 MiB of models, and their queues.
fn shared(pods: u32) -> Node {
    let mut node = Node {
        agent: LocalAgent::new(Settings::default()).with_memory(MemorySettings {
            streaming: Streaming::Off,
            ..MEMORY
        }),
        now: SECOND,
        actions: Vec::new(),
    };
    node.on(Event::SlotAdded(Arc::new(Slot {
        models_memory: Some(100 * MIB),
        ..slot(SlotKind::Mps)
    })));
    node.on(Event::MpsState {
        slot: SlotKey(0),
        is_up: true,
        text: String::new(),
    });
    for key in 0..pods {
        let mut pod = pod(key, 10);
        pod.settings.gpu_memory = Some(8 << 30);
        pod.function = format!("function-{key}");
        node.on(Event::PodAdded {
            pod: Arc::new(pod),
            survivors: Vec::new(),
        });
    }
    node.pass(400 * MS);
    for key in 0..pods {
        node.queue_connects(key);
    }
    node
}

/// States that the queue of a pod has nothing to do under the lease that it has.
fn rests(node: &mut Node, pod: u32) {
    let epoch = node.lease(pod).unwrap();
    node.queue(pod, FromQueue::Idle { epoch, ends: false });
}

/// Answers the recall of a pod's lease.
fn ends(node: &mut Node, pod: u32) {
    let epoch = node.recalled(pod).unwrap();
    node.queue(pod, FromQueue::Idle { epoch, ends: true });
}

/// Two pods, of whose models one has left for the other, in this order.
fn one_away() -> (Node, ProcessId, ProcessId) {
    let mut node = shared(2);
    let away = node.with_memory(1, 1, 70 * MIB);
    rests(&mut node, 0);
    let there = node.with_memory(101, 1, 60 * MIB);
    ends(&mut node, 0);
    node.has_moved(away);
    assert_eq!(node.claimed(there), 60 * MIB);
    (node, away, there)
}

#[test]
fn models_that_fit_together_hold_leases_without_end() {
    let mut node = shared(2);
    let one = node.with_memory(1, 1, 50 * MIB);
    let other = node.with_memory(101, 1, 50 * MIB);
    for pod in [0, 1, 0, 1] {
        node.wants(pod, 1);
        node.pass(SECOND);
        rests(&mut node, pod);
    }
    assert!(node.lease(0).is_some() && node.lease(1).is_some());
    node.ask(one);
    node.ask(other);
    assert!(node.is_open(one) && node.is_open(other), "both compute");
}

#[test]
fn an_idle_model_leaves_for_the_claim_of_another_once_its_queue_has_ended() {
    let mut node = shared(2);
    let one = node.with_memory(1, 1, 70 * MIB);
    rests(&mut node, 0);
    let other = node.with_memory(101, 1, 60 * MIB);
    assert_eq!(node.claimed(other), 0);
    assert_eq!(node.wanted_place(one).1, Residency::Resident);
    ends(&mut node, 0);
    assert_eq!(node.wanted_place(one).1, Residency::Host);
    assert_eq!(node.claimed(other), 0);
    node.has_moved(one);
    assert_eq!(node.claimed(other), 60 * MIB);
    assert_eq!(node.lease(0), None);
}

#[test]
fn a_head_gets_its_model_back_and_then_the_lease() {
    let (mut node, away, there) = one_away();
    rests(&mut node, 1);
    node.wants(0, 500);
    ends(&mut node, 1);
    assert_eq!(node.wanted_place(there).1, Residency::Host);
    node.has_moved(there);
    assert_eq!(node.wanted_place(away).1, Residency::Resident);
    assert_eq!(node.lease(0), None);
    let begun = node.now;
    node.pass(40 * MS);
    node.has_moved(away);
    assert!(node.lease(0).is_some());
    assert_eq!(node.spent(0), Some((begun, 40 * MS)));
}

#[test]
fn a_model_with_work_leaves_when_a_head_could_miss() {
    let (mut node, away, _there) = one_away();
    // It is busy.
    node.wants(0, 200);
    node.pass(150 * MS);
    assert_eq!(node.recalled(1), None);
    node.pass(50 * MS);
    assert!(node.recalled(1).is_some());
    assert_eq!(node.wanted_place(away).1, Residency::Host);
}

#[test]
fn a_thread_that_waits_for_its_memory_gets_it_without_a_request() {
    let (mut node, away, there) = one_away();
    rests(&mut node, 1);
    node.send(away, FromProcess::MemoryWanted);
    assert_eq!(node.recalled(1), None, "its process may still load");
    node.pass(SECOND);
    ends(&mut node, 1);
    node.has_moved(there);
    assert_eq!(node.wanted_place(away).1, Residency::Resident);
}

#[test]
fn a_model_that_loads_without_a_request_stays_beside_waiting_heads() {
    let (mut node, away, there) = one_away();
    rests(&mut node, 1);
    for step in 1..=5 {
        // Each part comes before the last one counts as all.
        node.pass(150 * MS);
        assert_eq!(node.recalled(1), None, "part {step}");
        let bytes = (60 + u64::from(step)) * MIB;
        node.send(
            there,
            FromProcess::Claim {
                seq: 1 + step,
                bytes,
            },
        );
        assert_eq!(node.claimed(there), bytes);
        if step == 1 {
            node.wants(0, 1);
        }
    }
    node.pass(SECOND);
    ends(&mut node, 1);
    node.has_moved(there);
    assert_eq!(node.wanted_place(away).1, Residency::Resident);
}

#[test]
fn a_claim_that_the_slot_can_never_hold_is_refused_there_too() {
    let mut node = shared(1);
    let one = node.with_memory(1, 1, 120 * MIB);
    assert_eq!(node.claimed(one), 0);
    let refused = |action: &Action| matches!(action, Action::Record { text, .. } if text.contains("slots.memory"));
    assert_eq!(node.count(refused), 1);
}

#[test]
fn memory_of_a_pod_without_a_limit_counts_as_its_processes_state_it() {
    let mut node = shared(2);
    node.on(Event::PodAdded {
        pod: Arc::new(unlimited(2)),
        survivors: Vec::new(),
    });
    node.queue_connects(2);
    let process = node.attached(201);
    let facts = &node.pages(process).facts;
    facts.bytes_used.store(80 * MIB, Ordering::Relaxed);
    node.pass(200 * MS);
    node.ask(process);
    rests(&mut node, 2);
    node.pass(200 * MS);
    let other = node.with_memory(101, 1, 60 * MIB);
    assert_eq!(node.claimed(other), 0);
    ends(&mut node, 2);
    assert_eq!(node.wanted_place(process).1, Residency::Host);
}

#[test]
fn without_queues_claims_are_granted_as_before() {
    let mut node = shared(2);
    let one = node.with_memory(1, 1, 70 * MIB);
    let other = node.with_memory(101, 1, 60 * MIB);
    assert_eq!(node.claimed(other), 0);
    for pod in [0, 1] {
        node.on(Event::QueueDisconnected(PodKey(pod)));
    }
    assert_eq!(node.claimed(other), 60 * MIB);
    assert_eq!(node.wanted_place(one).1, Residency::Resident);
}

#[test]
fn a_queue_that_states_a_lease_of_an_earlier_agent_gets_another_at_once() {
    let mut node = shared(1);
    node.on(Event::QueueDisconnected(PodKey(0)));
    node.queue_returns(0, 77);
    assert!(node.lease(0).unwrap() > 77);
}

#[test]
fn a_model_that_an_operator_has_ordered_away_returns_for_the_next_request() {
    let mut node = shared(1);
    let one = node.with_memory(1, 1, 50 * MIB);
    rests(&mut node, 0);
    node.evict(1);
    node.has_moved(one);
    ends(&mut node, 0);
    assert_eq!(node.lease(0), None);
    node.wants(0, 80);
    assert_eq!(node.wanted_place(one).1, Residency::Resident);
    node.has_moved(one);
    assert!(node.lease(0).is_some());
}

#[test]
fn the_first_queue_of_a_slot_finds_what_other_pods_have() {
    let mut node = shared(2);
    for pod in [0, 1] {
        node.on(Event::QueueDisconnected(PodKey(pod)));
    }
    let there = node.with_memory(1, 1, 70 * MIB);
    node.queue_connects(1);
    let other = node.with_memory(101, 1, 60 * MIB);
    assert_eq!(node.claimed(other), 0);
    // It has no queue: whether it computes is seen by looking.
    node.pass(SECOND);
    assert_eq!(node.wanted_place(there).1, Residency::Host);
}
