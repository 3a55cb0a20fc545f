//! Heads that go to another instance of their function.

use super::*;

/// Slots 0 and 1; pods 0 and 1 on the first, 2 and 3 on the second. Pods 0 and 2 are instances of one function, whose queues reach each other.
fn two_slots() -> Node {
    let mut node = Node {
        agent: LocalAgent::new(Settings::default()).with_memory(MEMORY),
        now: SECOND,
        actions: Vec::new(),
    };
    for key in [0, 1] {
        node.on(Event::SlotAdded(Arc::new(Slot {
            key: SlotKey(key),
            name: key.to_string(),
            uuid: format!("GPU-00000000-0000-0000-0000-00000000000{key}"),
            host_path: key,
            models_memory: Some(100 * MIB),
            ..slot(SlotKind::Exclusive)
        })));
    }
    for (key, function) in [(0, "shared"), (1, "one"), (2, "shared"), (3, "other")] {
        let mut pod = unlimited(key);
        pod.slot = SlotKey(key / 2);
        pod.function = function.to_owned();
        pod.revision = format!("{function}-00001");
        pod.uid = Some(format!("uid-{key}"));
        pod.settings.isolation = Isolation::Tenant;
        node.on(Event::PodAdded {
            pod: Arc::new(pod),
            survivors: Vec::new(),
        });
    }
    node.pass(400 * MS);
    for key in 0..4 {
        node.queue_connects_at(key, &format!("10.0.0.{key}"), 8012);
    }
    node
}

impl Node {
    fn queue_connects_at(&mut self, pod: u32, address: &str, port: u32) {
        self.on(Event::QueueConnected {
            pod: PodKey(pod),
            is_of_pod: true,
        });
        let hello = FromQueue::Hello {
            again: false,
            epoch: 0,
            running: 0,
            waiting: 0,
            address: address.to_owned(),
            port,
        };
        self.queue(pod, hello);
    }

    /// States a head with a number, due after `after_ms`.
    fn states(&mut self, pod: u32, number: u64, after_ms: u64, moves: bool) {
        let mut stated = head(self, 1, after_ms);
        if let FromQueue::Head { seq, may_move, .. } = &mut stated {
            (*seq, *may_move) = (number, moves);
        }
        self.queue(pod, stated);
    }

    /// Returns the heads for which a queue was sent siblings, with their UIDs.
    fn siblings(&self, pod: u32) -> Vec<(u64, &str)> {
        let named = self.queue_messages(pod).into_iter();
        let named = named.filter_map(|message| match message {
            ToQueue::Sibling { seq, uid, .. } => Some((*seq, &**uid)),
            _ => None,
        });
        named.collect()
    }
}

#[test]
fn a_head_goes_to_the_instance_whose_slot_is_free() {
    let mut node = two_slots();
    node.wants(1, 80);
    assert!(node.lease(1).is_some());
    node.states(0, 7, 80, true);
    assert_eq!(node.siblings(0), [(7, "uid-2")]);
    let sent = node.queue_messages(0);
    assert_eq!(
        sent.last(),
        Some(&&ToQueue::Sibling {
            seq: 7,
            uid: "uid-2".to_owned(),
            address: "10.0.0.2".to_owned(),
            port: 8012,
            revision: "shared-00001".to_owned(),
        })
    );
    assert!(node.lease(2).is_some(), "the lease goes out with the name");
    assert_eq!(node.lease(0), None);
    let figures = node.figures();
    let own = figures.pods.iter().find(|own| own.pod.key.0 == 0);
    assert_eq!(own.unwrap().lease.siblings_named, 1);
}

/// Returns a node on which pod 2 holds a lease of this epoch for the head of pod 0, which has not come yet, while a head of pod 3 waits for the slot.
fn reserved() -> (Node, u64) {
    let mut node = two_slots();
    node.wants(1, 80);
    node.states(0, 1, 500, true);
    let epoch = node.lease(2).unwrap();
    node.idle(2, epoch);
    node.wants(3, 80);
    (node, epoch)
}

#[test]
fn a_lease_whose_forwarded_request_does_not_come_ends_after_20_ms() {
    let (mut node, epoch) = reserved();
    node.pass(19 * MS);
    assert_eq!(node.recalled(2), None, "it is held for it");
    node.pass(2 * MS);
    assert_eq!(node.recalled(2), Some(epoch));
}

#[test]
fn a_head_that_its_sibling_refused_is_served_at_home_and_the_lease_is_free_at_once() {
    let (mut node, epoch) = reserved();
    assert_eq!(node.recalled(2), None);
    node.queue(
        0,
        FromQueue::Returned {
            seq: 1,
            is_refused: true,
        },
    );
    assert_eq!(node.recalled(2), Some(epoch), "nothing comes any more");
    node.idle(2, epoch);
    assert!(node.lease(3).is_some());
    let other = node.lease(3).unwrap();
    node.idle(3, other);
    node.states(0, 2, 500, true);
    assert_eq!(node.siblings(0).len(), 1, "it is left out");
    let own = node.lease(1).unwrap();
    node.idle(1, own);
    assert_eq!(node.recalled(1), Some(own));
    node.idle(1, own);
    assert!(node.lease(0).is_some());
    let figures = node.figures();
    let own = figures.pods.iter().find(|own| own.pod.key.0 == 0);
    assert_eq!(own.unwrap().lease.siblings_returned, 1);
}

#[test]
fn an_instance_is_left_out_for_ten_seconds() {
    let mut node = two_slots();
    node.wants(1, 80);
    node.states(0, 1, 60_000, true);
    node.queue(
        0,
        FromQueue::Returned {
            seq: 1,
            is_refused: true,
        },
    );
    // The slot at home is taken for as long as its holder does not answer.
    node.states(0, 2, 60_000, true);
    node.pass(9_900 * MS);
    node.states(0, 3, 60_000, true);
    assert_eq!(node.siblings(0), [(1, "uid-2")]);
    node.pass(200 * MS);
    node.states(0, 4, 60_000, true);
    assert_eq!(node.siblings(0).last(), Some(&(4, "uid-2")));
}

#[test]
fn a_head_that_must_stay_waits_at_home_and_holds_up_no_other_instance() {
    let mut node = two_slots();
    node.wants(1, 80);
    node.states(0, 1, 500, false);
    assert_eq!(node.siblings(0), []);
    assert_eq!((node.lease(0), node.lease(2)), (None, None));
    node.states(2, 1, 900, true);
    assert!(node.lease(2).is_some(), "its own slot is free");
}

#[test]
fn a_head_that_is_withdrawn_while_its_sibling_gets_ready_is_not_forwarded() {
    let mut node = two_slots();
    node.wants(1, 80);
    node.wants(3, 80);
    node.states(0, 1, 500, true);
    let busy = node.lease(3).unwrap();
    node.idle(3, busy);
    let recalled = node.recalled(3);
    if recalled.is_some() {
        // Its client leaves while the holder of the other slot ends.
        node.queue(0, head(&node, 0, 500));
        node.idle(3, busy);
    }
    assert!(recalled.is_some());
    assert_eq!(node.siblings(0), []);
}

#[test]
fn an_instance_without_an_address_is_never_named() {
    let mut node = two_slots();
    node.on(Event::QueueDisconnected(PodKey(2)));
    node.queue_connects(2);
    node.wants(1, 80);
    node.states(0, 1, 500, true);
    assert_eq!(node.siblings(0), []);
}

#[test]
fn a_statement_about_a_head_that_was_never_named_changes_nothing() {
    let mut node = two_slots();
    node.wants(1, 80);
    for seq in [0, 5, u64::MAX] {
        node.queue(
            0,
            FromQueue::Returned {
                seq,
                is_refused: true,
            },
        );
    }
    node.states(0, 6, 80, true);
    assert_eq!(node.siblings(0), [(6, "uid-2")]);
}

#[test]
fn two_pods_of_a_function_on_one_slot_wait_for_each_other_alone() {
    let mut node = two_slots();
    let mut twin = unlimited(4);
    (twin.function, twin.uid) = ("shared".to_owned(), Some("uid-4".to_owned()));
    twin.settings.isolation = Isolation::Tenant;
    node.on(Event::PodAdded {
        pod: Arc::new(twin),
        survivors: Vec::new(),
    });
    node.queue_connects_at(4, "10.0.0.4", 8012);
    node.wants(1, 80);
    node.states(4, 1, 500, true);
    assert_eq!(node.siblings(4), [], "it is a function of its own");
    node.states(0, 1, 500, true);
    assert_eq!(node.siblings(0), [(1, "uid-2")]);
}

/// Returns a node on which the head of pod 0 is promised to pod 2, whose slot is still held by pod 3; pod 1 holds the slot at home.
fn promised() -> Node {
    let mut node = two_slots();
    node.wants(1, 80);
    node.wants(3, 80);
    let held = node.lease(3).unwrap();
    node.idle(3, held);
    node.states(0, 1, 60_000, true);
    assert_eq!(node.recalled(3), Some(held), "the slot passes to pod 2");
    node
}

/// Ends the lease of the pod that holds the slot at home.
fn end_at_home(node: &mut Node) {
    let own = node.lease(1).unwrap();
    node.idle(1, own);
    assert_eq!(node.recalled(1), Some(own));
    node.idle(1, own);
}

#[test]
fn a_head_whose_sibling_loses_its_queue_is_served_at_home() {
    let mut node = promised();
    node.on(Event::QueueDisconnected(PodKey(2)));
    let held = node.recalled(3).unwrap();
    node.idle(3, held);
    assert_eq!(node.siblings(0), []);
    end_at_home(&mut node);
    assert!(node.lease(0).is_some());
}

#[test]
fn a_head_whose_sibling_loses_its_slot_is_served_at_home() {
    let mut node = promised();
    node.on(Event::SlotLost {
        slot: SlotKey(1),
        reason: "by the test".to_owned(),
    });
    end_at_home(&mut node);
    assert!(node.lease(0).is_some());
    assert_eq!(node.siblings(0), []);
}

#[test]
fn a_queue_whose_slot_is_lost_is_served_by_a_sibling_while_what_runs_learns_from_the_driver() {
    let mut node = two_slots();
    let (process, neighbour) = (node.attached(1), node.attached(101));
    node.states(0, 1, 80, true);
    let epoch = node.lease(0).unwrap();
    node.ask(process);
    node.ask(neighbour);
    assert!(node.is_open(process) && !node.is_open(neighbour));
    node.on(Event::SlotLost {
        slot: SlotKey(0),
        reason: "by the test".to_owned(),
    });
    assert_eq!(node.recalled(0), Some(epoch));
    assert!(node.is_open(process), "its request ends with an error");
    node.states(0, 2, 80, true);
    assert_eq!(node.siblings(0), [(2, "uid-2")]);
    assert!(node.lease(2).is_some());
    node.idle(0, epoch);
    node.pass(MS);
    assert!(!node.is_open(process) && !node.is_open(neighbour));
    node.wants(1, 80);
    assert_eq!(node.lease(1), None, "it has no sibling, and waits");
}
