use agent_core::EventKind as Kind;
use protocol::message::{MoveReport, Transfer};
use protocol::page::{FIXED_CONTEXT, SEALED};
use protocol::queue::{FromQueue, ToQueue, TraceContext};

mod faults;
mod shared;
mod siblings;

use super::*;

/// Pods on an exclusive slot whose memory holds 100 MiB of models, without an agent's streaming of restores.
fn exclusive(pods: u32) -> Node {
    let settings = MemorySettings {
        streaming: Streaming::Off,
        ..MEMORY
    };
    of_settings(pods, settings)
}

fn of_settings(pods: u32, settings: MemorySettings) -> Node {
    let mut node = Node {
        agent: LocalAgent::new(Settings::default()).with_memory(settings),
        now: SECOND,
        actions: Vec::new(),
    };
    node.on(Event::SlotAdded(Arc::new(Slot {
        models_memory: Some(100 * MIB),
        ..slot(SlotKind::Exclusive)
    })));
    for key in 0..pods {
        let mut pod = unlimited(key);
        pod.function = format!("function-{key}");
        pod.settings.isolation = Isolation::Tenant;
        node.on(Event::PodAdded {
            pod: Arc::new(pod),
            survivors: Vec::new(),
        });
    }
    node.pass(400 * MS);
    node
}

fn head(node: &Node, waiting: u32, after_ms: u64) -> FromQueue {
    FromQueue::Head {
        seq: 1,
        deadline: node.now + after_ms * MS,
        estimate: 5 * MS,
        requests: 0,
        in_time: 0,
        waiting,
        trace: TraceContext::default(),
        may_move: true,
    }
}

impl Node {
    fn queue(&mut self, pod: u32, message: FromQueue) {
        let pod = PodKey(pod);
        self.on(Event::QueueMessage { pod, message });
    }

    fn queue_connects(&mut self, pod: u32) {
        self.queue_returns(pod, 0);
    }

    fn queue_returns(&mut self, pod: u32, epoch: u64) {
        self.on(Event::QueueConnected {
            pod: PodKey(pod),
            is_of_pod: true,
        });
        self.queue(
            pod,
            FromQueue::Hello {
                again: epoch != 0,
                epoch,
                running: 0,
                waiting: 0,
                address: String::new(),
                port: 0,
            },
        );
    }

    fn wants(&mut self, pod: u32, after_ms: u64) {
        let head = head(self, 1, after_ms);
        self.queue(pod, head);
    }

    /// Returns the messages that a pod's queue was sent.
    fn queue_messages(&self, pod: u32) -> Vec<&ToQueue> {
        let sent = self.actions.iter().filter_map(|action| match action {
            Action::SendQueue {
                pod: PodKey(to),
                message,
            } if *to == pod => Some(message),
            _ => None,
        });
        sent.collect()
    }

    /// Returns the epoch of a pod's lease; `None` if it has none or is recalled.
    fn lease(&self, pod: u32) -> Option<u64> {
        let mut lease = None;
        for message in self.queue_messages(pod) {
            match message {
                ToQueue::Lease { epoch } => lease = Some(*epoch),
                ToQueue::Recall { .. } => lease = None,
                _ => {}
            }
        }
        lease
    }

    /// Returns begin and duration of the last load which a pod's queue has learnt of.
    fn spent(&self, pod: u32) -> Option<(u64, u64)> {
        let all = self.queue_messages(pod);
        all.into_iter().rev().find_map(|message| match message {
            ToQueue::Spent { begun, load, .. } => Some((*begun, *load)),
            _ => None,
        })
    }

    fn recalled(&self, pod: u32) -> Option<u64> {
        match self
            .queue_messages(pod)
            .into_iter()
            .rev()
            .find(|message| matches!(message, ToQueue::Recall { .. } | ToQueue::Lease { .. }))
        {
            Some(ToQueue::Recall { epoch }) => Some(*epoch),
            _ => None,
        }
    }

    /// States that nothing runs; that ends the lease if it is recalled.
    fn idle(&mut self, pod: u32, epoch: u64) {
        let ends = self.recalled(pod) == Some(epoch);
        self.queue(pod, FromQueue::Idle { epoch, ends });
    }

    /// Attaches a process with this device memory.
    fn with_memory(&mut self, pid: u32, seq: u32, bytes: u64) -> ProcessId {
        let process = self.attached(pid);
        self.send(process, FromProcess::Claim { seq, bytes });
        process
    }

    fn claimed(&self, process: ProcessId) -> u64 {
        self.pages(process)
            .orders
            .memory_claim
            .load(Ordering::Relaxed)
    }

    /// Answers the last order about a process's memory.
    fn has_moved(&mut self, process: ProcessId) {
        let (seq, wanted) = self.wanted_place(process);
        let facts = &self.pages(process).facts;
        facts.done_seq.store(seq, Ordering::Relaxed);
        let is_sealed = self.is_to_seal(process) || wanted == Residency::Host;
        let facts = &self.pages(process).facts;
        facts.sealed.store(u32::from(is_sealed), Ordering::Relaxed);
        self.send(
            process,
            FromProcess::Moved(MoveReport {
                seq,
                residency: wanted,
                refusal: None,
                transfer: Transfer::default(),
            }),
        );
    }

    fn wanted_place(&self, process: ProcessId) -> (u32, Residency) {
        let pages = self.pages(process);
        let wanted = pages.orders.residency_wanted.load(Ordering::Relaxed);
        let seq = pages.orders.order_seq.load(Ordering::Relaxed);
        // What is to be sealed stays.
        let wanted = Residency::from_number(wanted).unwrap_or(Residency::Resident);
        (seq, wanted)
    }

    fn is_to_seal(&self, process: ProcessId) -> bool {
        let orders = &self.pages(process).orders;
        orders.residency_wanted.load(Ordering::Relaxed) == SEALED
    }
}

#[test]
fn a_head_gets_the_lease_of_a_free_slot_at_once() {
    let mut node = exclusive(2);
    node.queue_connects(0);
    assert_eq!(node.lease(0), None);
    node.wants(0, 80);
    assert!(node.lease(0).is_some());
    let process = node.attached(1);
    node.ask(process);
    assert!(node.is_open(process));
}

#[test]
fn a_pod_without_the_lease_gets_no_token() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    let (one, other) = (node.attached(1), node.attached(101));
    node.wants(0, 80);
    node.ask(one);
    node.wants(1, 500);
    node.ask(other);
    assert!(node.is_open(one) && !node.is_open(other));
    // The other starts in time if the holder ends first.
    let epoch = node.lease(0).unwrap();
    node.idle(0, epoch);
    assert_eq!(node.recalled(0), Some(epoch));
    assert_eq!(node.lease(1), None, "the holder may still compute");
    node.idle(0, epoch);
    assert_eq!(node.lease(1), None, "its gate is closing");
    node.close(one);
    assert!(node.lease(1).is_some());
    assert!(!node.is_open(one) && node.is_open(other));
}

#[test]
fn a_busy_holder_is_recalled_when_a_head_could_miss() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    node.wants(0, 80);
    node.wants(1, 200);
    node.pass(180 * MS);
    assert_eq!(node.recalled(0), None);
    node.pass(20 * MS);
    assert!(node.recalled(0).is_some());
}

#[test]
fn models_leave_for_a_claim_and_return_with_the_lease() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    let one = node.with_memory(1, 1, 70 * MIB);
    assert_eq!(node.claimed(one), 70 * MIB);
    let other = node.with_memory(101, 1, 60 * MIB);
    assert_eq!(node.claimed(other), 0, "the first leaves before");
    assert_eq!(node.wanted_place(one).1, Residency::Host);
    node.has_moved(one);
    assert_eq!(node.claimed(other), 60 * MIB);
    // A request of the first: the second leaves, the first returns, and only then computes.
    node.queue(0, head(&node, 1, 80));
    let epoch = node.lease(1);
    if let Some(epoch) = epoch {
        node.idle(1, epoch);
    }
    node.pass(200 * MS);
    if let Some(epoch) = node.recalled(1) {
        node.idle(1, epoch);
    }
    assert_eq!(node.wanted_place(other).1, Residency::Host);
    assert_eq!(node.lease(0), None);
    node.has_moved(other);
    assert_eq!(node.wanted_place(one).1, Residency::Resident);
    assert_eq!(node.lease(0), None);
    let begun = node.now;
    node.pass(40 * MS);
    node.has_moved(one);
    assert!(node.lease(0).is_some());
    assert_eq!(node.spent(0), Some((begun, 40 * MS)));
    assert_eq!(
        node.count(|action| matches!(
            action,
            Action::Record {
                kind: Kind::Evicted,
                ..
            }
        )),
        2
    );
}

#[test]
fn a_claim_that_comes_twice_while_it_waits_counts_as_granted_on_no_connection() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    let _one = node.with_memory(1, 1, 70 * MIB);
    let other = node.with_memory(101, 1, 60 * MIB);
    let claim = FromProcess::Claim {
        seq: 1,
        bytes: 60 * MIB,
    };
    node.send(other, claim);
    assert_eq!(node.claimed(other), 0, "the first has not left");
    // It connects again before the agent knows of the end of its connection.
    let again = node.connect(101).unwrap();
    node.hello_again(again, false);
    node.attach(again, 0);
    assert_eq!(node.claimed(again), 0);
}

/// Returns a node with three pods and their processes: the models of the first two are on the slot and sealed, that of the third has left for them.
fn two_sealed_beside_one_away() -> (Node, [(u32, ProcessId); 3]) {
    let mut node = exclusive(3);
    for pod in [0, 1, 2] {
        node.queue_connects(pod);
    }
    let [one, other, third] =
        [1, 101, 201].map(|pid| node.with_memory(pid, 1, if pid == 201 { 50 } else { 40 } * MIB));
    let all = [(0, one), (1, other), (2, third)];
    settle(&mut node, &all);
    for pod in [2, 0, 1] {
        node.wants(pod, 80);
        settle(&mut node, &all);
    }
    (node, all)
}

#[test]
fn a_sealed_model_leaves_while_the_holder_still_has_the_slot() {
    let (mut node, all) = two_sealed_beside_one_away();
    let [one, other, third] = all.map(|(_, process)| process);
    assert_eq!(node.wanted_place(third).1, Residency::Host);
    // Each was sealed as soon as it had nothing to do.
    assert!(node.is_to_seal(one) && node.is_to_seal(other));
    node.wants(2, 80);
    assert!(node.recalled(1).is_some());
    let places = [one, other].map(|process| node.wanted_place(process).1);
    assert_eq!(places, [Residency::Host, Residency::Resident]);
    assert_eq!(node.lease(2), None, "the holder has not ended");
}

#[test]
fn a_load_for_a_sampled_request_is_recorded_with_its_trace() {
    let (mut node, all) = two_sealed_beside_one_away();
    let restored = |node: &Node| {
        let texts = node.actions.iter().filter_map(|action| match action {
            Action::Record {
                kind: Kind::Restored,
                text,
                ..
            } => Some(text.clone()),
            _ => None,
        });
        texts.collect::<Vec<_>>()
    };
    let before = restored(&node).len();
    let mut sampled = head(&node, 1, 80);
    if let FromQueue::Head { trace, .. } = &mut sampled {
        trace.trace[15] = 0x2a;
    }
    node.queue(2, sampled);
    settle(&mut node, &all);
    let loads = restored(&node);
    assert_eq!(loads.len(), before + 1);
    let ending = ", for trace 0000000000000000000000000000002a";
    assert!(loads[before].ends_with(ending), "{loads:?}");
    // One that is not sampled.
    node.wants(0, 80);
    settle(&mut node, &all);
    let loads = restored(&node);
    assert_eq!(loads.len(), before + 2);
    assert!(!loads[before + 1].contains("trace"), "{loads:?}");
}

#[test]
fn a_model_that_was_touched_since_it_was_sealed_does_not_leave_beside_the_holder() {
    let (mut node, all) = two_sealed_beside_one_away();
    let [one, other, _] = all.map(|(_, process)| process);
    let facts = &node.pages(one).facts;
    facts.sealed.store(0, Ordering::Relaxed);
    node.wants(2, 80);
    let places = [one, other].map(|process| node.wanted_place(process).1);
    assert_eq!(places, [Residency::Resident; 2]);
    // Once the holder has ended there is room all the same.
    settle(&mut node, &all);
    assert!(node.lease(2).is_some());
}

#[test]
fn a_model_that_was_touched_unseen_since_it_was_sealed_gets_a_token_for_its_hashes() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    let [one, other] = [1, 101].map(|pid| node.with_memory(pid, 1, 60 * MIB));
    let all = [(0, one), (1, other)];
    settle(&mut node, &all);
    node.wants(0, 80);
    settle(&mut node, &all);
    assert!(node.is_to_seal(one), "its page states it as sealed");
    node.wants(1, 80);
    let epoch = node.recalled(0).unwrap();
    node.idle(0, epoch);
    assert_eq!(node.wanted_place(one).1, Residency::Host);
    assert!(!node.is_open(one) && !node.is_open(other));
    // Its process knows better, and waits at the gate with the kernel of the hashes.
    node.ask(one);
    assert!(node.is_open(one));
    node.ask(other);
    assert!(!node.is_open(other));
    node.has_moved(one);
    let gate = node.pages(one).orders.gate.epoch();
    node.send(one, FromProcess::Closed { epoch: gate - 1 });
    assert!(!node.is_open(one));
    assert_eq!(node.wanted_place(other).1, Residency::Resident);
}

#[test]
fn a_claim_that_the_slot_can_never_hold_is_refused() {
    let mut node = exclusive(1);
    node.queue_connects(0);
    let process = node.with_memory(1, 1, 40 * MIB);
    node.send(
        process,
        FromProcess::Claim {
            seq: 2,
            bytes: 101 * MIB,
        },
    );
    assert_eq!(node.claimed(process), 40 * MIB);
    let named = |action: &Action| match action {
        Action::Record {
            kind: Kind::ProcessReport,
            text,
            ..
        } => {
            text == "process 1: the pod's model would take 105906176 bytes, and models may take 104857600 of the slot (slots.memory)"
        }
        _ => false,
    };
    assert_eq!(node.count(named), 1);
}

#[test]
fn a_queue_that_ends_gives_its_lease_back() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    node.wants(0, 80);
    node.wants(1, 500);
    assert_eq!(node.lease(1), None);
    node.on(Event::QueueDisconnected(PodKey(0)));
    // What its process computes by itself would end like the work of any parked process; there is nothing.
    node.pass(200 * MS);
    assert!(node.lease(1).is_some());
}

#[test]
fn a_holder_keeps_its_lease_across_agents_and_a_second_one_is_recalled() {
    let mut node = exclusive(2);
    node.queue_returns(0, 77);
    let epoch = node.lease(0).expect("the holder keeps the slot");
    assert!(epoch > 77);
    node.queue_returns(1, 66);
    assert_eq!((node.lease(1), node.recalled(1)), (None, Some(66)));
}

#[test]
fn a_holder_that_returns_after_another_queue_computes_on() {
    let mut node = exclusive(2);
    let (one, other) = (node.attached(1), node.attached(101));
    // With the first queue the slot has leases, and nothing computes without one.
    node.queue_returns(1, 0);
    node.queue_returns(0, 77);
    assert!(node.lease(0).is_some());
    node.ask(one);
    node.ask(other);
    assert!(node.is_open(one) && !node.is_open(other));
}

#[test]
fn messages_that_are_not_to_be_believed_change_nothing() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    node.wants(0, 80);
    let epoch = node.lease(0).unwrap();
    // Of one that holds nothing, of an earlier lease, and impossible counts and deadlines.
    node.idle(1, epoch);
    node.idle(0, epoch - 1);
    node.wants(1, 400);
    assert_eq!(node.recalled(0), None);
    for (requests, in_time, deadline) in [(1, 2, 0), (u64::MAX, 1, u64::MAX), (0, 0, 1)] {
        node.queue(
            1,
            FromQueue::Head {
                seq: u64::MAX,
                deadline,
                estimate: u64::MAX,
                requests,
                in_time,
                waiting: u32::MAX,
                trace: TraceContext::default(),
                may_move: true,
            },
        );
    }
    node.pass(SECOND);
    let second = Event::QueueConnected {
        pod: PodKey(1),
        is_of_pod: true,
    };
    let actions = node.on(second);
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::AdmitQueue(_)))
    );
    // A second greeting ends the connection.
    node.queue(
        1,
        FromQueue::Hello {
            again: false,
            epoch: 0,
            running: 0,
            waiting: 0,
            address: "nowhere".to_owned(),
            port: 70_000,
        },
    );
    assert!(matches!(
        node.queue_messages(1).last(),
        Some(ToQueue::Refused { .. })
    ));
}

#[test]
fn a_queue_on_a_shared_slot_holds_a_lease_without_end() {
    let mut node = Node::new(&[pod(0, 50), pod(1, 50)]);
    for pod in [0, 1] {
        node.queue_connects(pod);
        assert!(node.lease(pod).is_some());
    }
    let process = node.attached(1);
    node.ask(process);
    assert!(node.is_open(process), "tokens are granted as before");
}

#[test]
fn without_queues_the_slot_belongs_to_the_pod_that_came_first() {
    let mut node = exclusive(2);
    let (one, other) = (node.attached(1), node.attached(101));
    node.ask(other);
    node.ask(one);
    assert!(node.is_open(one) && !node.is_open(other));
}

/// Answers recalls and orders of moves until there are no more, as queues without requests and idle processes do.
fn settle(node: &mut Node, processes: &[(u32, ProcessId)]) {
    settle_for(20, node, processes);
}

/// Does so in rounds of 30 ms.
fn settle_for(rounds: u32, node: &mut Node, processes: &[(u32, ProcessId)]) {
    for _round in 0..rounds {
        for &(pod, process) in processes {
            if let Some(epoch) = node.recalled(pod) {
                node.idle(pod, epoch);
            }
            let (seq, wanted) = node.wanted_place(process);
            let done = node.pages(process).facts.done_seq.load(Ordering::Relaxed);
            let answered = done == seq;
            if !answered && wanted != Residency::None && seq > 0 {
                node.has_moved(process);
            }
            if let Some(epoch) = node.lease(pod) {
                node.idle(pod, epoch);
            }
        }
        node.pass(30 * MS);
    }
}

#[test]
fn a_pod_whose_process_was_started_again_is_served() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    let one = node.with_memory(1, 1, 70 * MIB);
    let other = node.with_memory(101, 1, 60 * MIB);
    settle(&mut node, &[(0, one), (1, other)]);
    assert_eq!(node.claimed(other), 60 * MIB);
    node.wants(0, 80);
    settle(&mut node, &[(0, one), (1, other)]);
    assert!(node.lease(0).is_some());
    node.on(Event::Ended(one));
    node.wants(1, 80);
    settle(&mut node, &[(1, other)]);
    let epoch = node.recalled(0).unwrap();
    node.idle(0, epoch);
    settle(&mut node, &[(1, other)]);
    assert!(node.lease(1).is_some());
    let one = node.with_memory(2, 1, 70 * MIB);
    settle(&mut node, &[(0, one), (1, other)]);
    assert_eq!(node.claimed(one), 70 * MIB);
    let before = node.queue_messages(0).len();
    node.wants(0, 80);
    settle(&mut node, &[(0, one), (1, other)]);
    let sent = &node.queue_messages(0)[before..];
    assert!(node.lease(0).is_some(), "{sent:?}");
}

#[test]
fn a_slot_that_is_back_lets_only_its_holder_compute() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    let (first, holder) = (node.attached(1), node.attached(101));
    node.wants(1, 80);
    assert!(node.lease(1).is_some());
    let slot = Slot {
        models_memory: Some(100 * MIB),
        ..slot(SlotKind::Exclusive)
    };
    node.on(Event::SlotLost {
        slot: slot.key,
        reason: "by the test".to_owned(),
    });
    node.on(Event::SlotAdded(Arc::new(slot)));
    node.ask(first);
    node.ask(holder);
    assert!(!node.is_open(first) && node.is_open(holder));
}

#[test]
fn a_holder_whose_model_was_ordered_away_gets_it_back_for_its_requests() {
    let mut node = exclusive(1);
    node.queue_connects(0);
    let process = node.with_memory(1, 1, 40 * MIB);
    node.wants(0, 80);
    let epoch = node.lease(0).unwrap();
    node.idle(0, epoch);
    node.evict(1);
    node.has_moved(process);
    assert_eq!(
        node.wanted_place(process).1,
        Residency::Host,
        "nothing needs it"
    );
    // It dispatches by itself, and the agent learns that it has work.
    node.wants(0, 80);
    assert_eq!(node.wanted_place(process).1, Residency::Resident);
    node.has_moved(process);
    assert_eq!(node.lease(0), Some(epoch));
}

#[test]
fn a_pod_whose_queue_states_a_lease_amid_its_eviction_computes_once_its_model_is_back() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    let [one, other] = [1, 101].map(|pid| node.with_memory(pid, 1, 60 * MIB));
    let all = [(0, one), (1, other)];
    settle(&mut node, &all);
    node.wants(0, 80);
    settle(&mut node, &all);
    // The model leaves for a head, whose queue ends; and a request of its own runs since an earlier connection of its queue.
    node.wants(1, 80);
    node.pass(30 * MS);
    if let Some(epoch) = node.recalled(0) {
        node.idle(0, epoch);
    }
    assert_eq!(node.wanted_place(one).1, Residency::Host);
    node.on(Event::QueueDisconnected(PodKey(1)));
    node.on(Event::QueueDisconnected(PodKey(0)));
    let epoch = node.now;
    node.queue_returns(0, epoch);
    assert!(node.lease(0).is_some());
    node.has_moved(one);
    assert_eq!(node.wanted_place(one).1, Residency::Resident);
    node.has_moved(one);
    node.ask(one);
    assert!(node.is_open(one));
}

#[test]
fn an_idle_notice_from_before_a_recall_does_not_end_the_lease() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    node.wants(0, 80);
    let epoch = node.lease(0).unwrap();
    node.wants(1, 20);
    node.pass(30 * MS);
    assert_eq!(node.recalled(0), Some(epoch));
    let ends = false;
    node.queue(0, FromQueue::Idle { epoch, ends });
    assert_eq!(node.lease(1), None, "a request may have begun since");
    node.idle(0, epoch);
    assert!(node.lease(1).is_some());
}

#[test]
fn memory_from_before_a_restart_of_the_agent_counts() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    let process = node.connect(1).unwrap();
    node.send(
        process,
        FromProcess::Hello {
            version: protocol::VERSION,
            residency: Residency::Resident,
            host_bytes: 0,
            pinned_bytes: 0,
            pid: 1,
            again: true,
            open: false,
            busy_ns: 0,
            ungated_ns: 0,
            bytes_used: 70 * MIB,
            program: "test".to_owned(),
        },
    );
    node.attach(process, 0);
    let other = node.with_memory(101, 1, 60 * MIB);
    assert_eq!(node.claimed(other), 0, "the first is still there");
    assert_eq!(node.wanted_place(process).1, Residency::Host);
}

#[test]
fn a_process_that_leaves_late_by_an_order_from_before_it_connected_again_returns() {
    let mut node = exclusive(1);
    node.queue_connects(0);
    let (stays, before) = (
        node.with_memory(1, 1, 20 * MIB),
        node.with_memory(2, 1, 20 * MIB),
    );
    node.wants(0, 80);
    assert!(node.lease(0).is_some());
    node.evict(1);
    let (order, place) = node.wanted_place(before);
    assert_eq!(place, Residency::Host);
    node.on(Event::Disconnected(before));
    for _away_and_back in 0..2 {
        node.has_moved(stays);
    }
    let again = node.connect(2).unwrap();
    node.returned(again, Residency::Resident, 20 * MIB, 0);
    // It reads the order in its former page only now.
    let report = MoveReport {
        seq: order,
        residency: Residency::Host,
        refusal: None,
        transfer: Transfer::default(),
    };
    node.send(again, FromProcess::Moved(report));
    assert_eq!(node.wanted_place(again).0, 0);
    node.send(again, FromProcess::MemoryWanted);
    assert_eq!(node.wanted_place(again), (1, Residency::Resident));
}

#[test]
fn a_pod_without_a_queue_computes_again_when_the_last_queue_is_gone() {
    let mut node = exclusive(2);
    let first = node.with_memory(1, 1, 70 * MIB);
    node.queue_connects(1);
    let other = node.with_memory(101, 1, 60 * MIB);
    assert_eq!(node.wanted_place(first).1, Residency::Host);
    node.on(Event::PodRemoved(PodKey(1)));
    node.has_moved(first);
    let _gone = other;
    node.ask(first);
    assert!(node.is_open(first));
}

#[test]
fn a_queue_on_a_slot_beyond_those_with_leases_holds_one_without_end() {
    let mut node = exclusive(0);
    let key = SlotKey(64);
    node.on(Event::SlotAdded(Arc::new(Slot {
        key,
        ..slot(SlotKind::Exclusive)
    })));
    let mut pod = unlimited(3);
    pod.slot = key;
    node.on(Event::PodAdded {
        pod: Arc::new(pod),
        survivors: Vec::new(),
    });
    node.queue_connects(3);
    assert!(node.lease(3).is_some());
}

#[test]
fn a_process_that_has_waited_for_its_memory_gets_no_lease_for_that_once_it_is_back() {
    let mut node = exclusive(2);
    for pod in [0, 1] {
        node.queue_connects(pod);
    }
    let one = node.with_memory(1, 1, 70 * MIB);
    let other = node.with_memory(101, 1, 60 * MIB);
    settle(&mut node, &[(0, one), (1, other)]);
    // A thread of each uses memory which is away, and notices count for 500 ms.
    for process in [one, other] {
        assert_eq!(node.wanted_place(process).1, Residency::Host);
        node.send(process, FromProcess::MemoryWanted);
        settle_for(5, &mut node, &[(0, one), (1, other)]);
        assert_eq!(node.wanted_place(process).1, Residency::Resident);
    }
    let moves = |node: &mut Node| {
        let figures = node.figures();
        let own = figures.pods.iter().map(|own| &own.counters.moves);
        own.map(|own| own.evictions + own.restores).sum::<u64>()
    };
    let before = moves(&mut node);
    settle_for(5, &mut node, &[(0, one), (1, other)]);
    assert_eq!(moves(&mut node), before, "nobody waits any more");
}

#[test]
fn a_contexts_memory_is_what_the_driver_lists_beyond_what_a_process_counts() {
    let mut node = exclusive(2);
    let process = node.connect(1).unwrap();
    node.returned(process, Residency::Resident, 0, 0);
    let pages = node.pages(process);
    let published = || pages.orders.context_residue.load(Ordering::Relaxed);
    let listed = |node: &mut Node, pid: u32, mib: u64| {
        node.on(Event::DeviceMemory {
            slot: SlotKey(0),
            processes: vec![(pid, mib * MIB), (99, 7 * MIB)],
        });
    };
    pages.facts.bytes_used.store(10 * MIB, Ordering::Relaxed);
    listed(&mut node, 1, 250);
    assert_eq!(published(), 0, "it may be amid an allocation");
    pages.facts.bytes_used.store(30 * MIB, Ordering::Relaxed);
    listed(&mut node, 1, 330);
    assert_eq!(published(), 0, "both figures have changed");
    listed(&mut node, 1, 330);
    assert_eq!(published(), 300 * MIB);
    assert_eq!(node.figures().slots[0].context_residue, Some(300 * MIB));
    // Once it counts its context itself, nothing is measured twice.
    pages.facts.bytes_used.store(330 * MIB, Ordering::Relaxed);
    pages.facts.fixed[FIXED_CONTEXT].store(300 * MIB, Ordering::Relaxed);
    for _ in 0..2 {
        listed(&mut node, 1, 330);
    }
    assert_eq!(published(), 300 * MIB);
    // What a process overstates does not make the others count nothing.
    pages.facts.bytes_used.store(629 * MIB, Ordering::Relaxed);
    for _ in 0..2 {
        listed(&mut node, 1, 330);
    }
    assert_eq!(published(), 300 * MIB);
    let next = node.connect(101).unwrap();
    let welcomed = node.hello(next, false, 0).iter().any(|action| {
        matches!(action, Action::Send { message: FromAgent::Welcome { context_residue, .. }, .. } if *context_residue == 300 * MIB)
    });
    assert!(welcomed);
}

#[test]
fn the_default_limit_has_room_for_a_context_of_which_nothing_is_known_yet() {
    let mut node = exclusive(1);
    let process = node.connect(1).unwrap();
    let limits = node
        .hello(process, false, 0)
        .iter()
        .filter_map(|action| match action {
            Action::Send {
                message: FromAgent::Welcome { memory_limit, .. },
                ..
            } => Some(*memory_limit),
            _ => None,
        });
    let most = 100 * MIB + (80 << 30) / 32;
    assert_eq!(limits.collect::<Vec<_>>(), [most]);
}
