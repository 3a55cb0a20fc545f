use agent_core::{MoveOrder, OrderAnswer, PodOrder};
use protocol::message::{MoveRefusal, MoveReport, Transfer};

use super::*;

const TRANSFER: Transfer = Transfer {
    bytes: 10,
    copied_bytes: 4,
    drain_ns: 1,
    hash_ns: 2,
    copy_ns: 3,
    unmap_ns: 4,
    map_ns: 0,
    total_ns: 5 * MS,
};

impl Node {
    fn order(&mut self, pod: u32, order: PodOrder, number: u64, waits: bool) {
        let order = MoveOrder {
            number,
            order,
            drain_ms: 700,
            waits,
        };
        let pod = PodKey(pod);
        self.on(Event::Ordered { pod, order });
    }

    pub(super) fn evict(&mut self, number: u64) {
        self.order(0, PodOrder::Evict, number, true);
    }

    fn restore(&mut self, number: u64) {
        self.order(0, PodOrder::Restore, number, true);
    }

    /// Returns the answers to an order.
    fn answers(&self, number: u64) -> Vec<OrderAnswer> {
        let all = self.actions.iter().filter_map(|action| match action {
            Action::Answer { number: to, answer } if *to == number => Some(*answer),
            _ => None,
        });
        all.collect()
    }

    /// Returns the order in the page of a process: its number, and the place.
    fn wanted(&self, process: ProcessId) -> (u32, Option<Residency>) {
        let pages = self.pages(process);
        let wanted = pages.orders.residency_wanted.load(Ordering::Relaxed);
        let seq = pages.orders.order_seq.load(Ordering::Relaxed);
        (seq, Residency::from_number(wanted))
    }

    fn moves(&mut self, process: ProcessId, refusal: Option<MoveRefusal>) {
        let (seq, wanted) = self.wanted(process);
        let stays = match wanted {
            Some(Residency::Host) => Residency::Resident,
            _ => Residency::Host,
        };
        self.send(
            process,
            FromProcess::Moved(MoveReport {
                seq,
                residency: if refusal.is_some() {
                    stays
                } else {
                    wanted.unwrap()
                },
                refusal,
                transfer: if refusal.is_some() {
                    Transfer::default()
                } else {
                    TRANSFER
                },
            }),
        );
    }

    /// Sends the answer to an order: where the memory is.
    fn report(&mut self, process: ProcessId, seq: u32, residency: Residency) {
        let report = MoveReport {
            seq,
            residency,
            refusal: None,
            transfer: TRANSFER,
        };
        self.send(process, FromProcess::Moved(report));
    }

    fn events(&self, kind: EventKind) -> usize {
        self.count(|action| matches!(action, Action::Record { kind: own, .. } if *own == kind))
    }
}

fn done(answer: OrderAnswer) -> (u64, Residency, Transfer) {
    match answer {
        OrderAnswer::Done {
            seq,
            residency,
            transfer,
        } => (seq, residency, transfer),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_model_leaves_and_returns_by_order() {
    let mut node = Node::new(&[pod(0, 50)]);
    let process = node.attached(1);
    node.evict(1);
    assert_eq!(node.wanted(process), (1, Some(Residency::Host)));
    let drain = node.pages(process).orders.drain_ms.load(Ordering::Relaxed);
    assert_eq!(drain, 700);
    assert!(node.answers(1).is_empty(), "it is not over");
    node.moves(process, None);
    let (seq, residency, transfer) = done(node.answers(1)[0]);
    assert_eq!((seq, residency, transfer), (1, Residency::Host, TRANSFER));
    node.restore(2);
    assert_eq!(node.wanted(process), (2, Some(Residency::Resident)));
    node.moves(process, None);
    assert_eq!(done(node.answers(2)[0]).1, Residency::Resident);
    let figures = node.figures();
    let moves = &figures.pods[0].counters.moves;
    assert_eq!((moves.evictions, moves.restores), (1, 1));
    assert_eq!(moves.evicted_copied_bytes, 4);
    assert_eq!(moves.evicted_clean_bytes, 6);
    assert_eq!(moves.restored_bytes, 4);
    assert_eq!(moves.evict_times.count(), 1);
    let kinds = [EventKind::Evicted, EventKind::Restored];
    assert_eq!(kinds.map(|kind| node.events(kind)), [1, 1]);
}

#[test]
fn an_order_without_a_wait_is_answered_at_its_beginning() {
    let mut node = Node::new(&[pod(0, 50)]);
    let process = node.attached(1);
    node.order(0, PodOrder::Evict, 1, false);
    assert_eq!(node.answers(1), [OrderAnswer::Accepted { seq: 1 }]);
    // A second one joins the first.
    node.evict(2);
    node.order(0, PodOrder::Evict, 3, false);
    assert_eq!(node.answers(3), [OrderAnswer::Accepted { seq: 1 }]);
    node.moves(process, None);
    assert_eq!(done(node.answers(2)[0]).0, 1);
    assert_eq!(node.answers(1).len(), 1);
}

#[test]
fn the_same_order_twice_does_nothing() {
    let mut node = Node::new(&[pod(0, 50)]);
    let process = node.attached(1);
    node.restore(1);
    let nothing = (0, Residency::Resident, Transfer::default());
    assert_eq!(done(node.answers(1)[0]), nothing);
    node.evict(2);
    node.moves(process, None);
    node.evict(3);
    let nothing = (1, Residency::Host, Transfer::default());
    assert_eq!(done(node.answers(3)[0]), nothing);
    assert_eq!(node.wanted(process).0, 1);
}

#[test]
fn the_opposite_order_meanwhile_is_refused() {
    let mut node = Node::new(&[pod(0, 50)]);
    let process = node.attached(1);
    node.evict(1);
    node.restore(2);
    let refused = [OrderAnswer::Refused(MoveRefusal::Draining)];
    assert_eq!(node.answers(2), refused);
    node.moves(process, None);
    assert_eq!(node.answers(1).len(), 1);
}

#[test]
fn refusals_name_their_reason() {
    let mut stays = pod(1, 10);
    stays.settings.evict = Evict::Never;
    let mut node = Node::new(&[pod(0, 10), stays]);
    let refused = |node: &mut Node, pod, number, reason| {
        node.order(pod, PodOrder::Evict, number, true);
        assert_eq!(node.answers(number), [OrderAnswer::Refused(reason)]);
    };
    refused(&mut node, 0, 1, MoveRefusal::NoProcess);
    refused(&mut node, 7, 2, MoveRefusal::NoProcess);
    let _process = node.attached(101);
    refused(&mut node, 1, 3, MoveRefusal::Never);
    let old = node.connect(1).unwrap();
    let hello = FromProcess::Hello {
        version: 1,
        pid: 1,
        again: false,
        open: false,
        busy_ns: 0,
        ungated_ns: 0,
        bytes_used: 0,
        program: String::new(),
        residency: Residency::None,
        host_bytes: 0,
        pinned_bytes: 0,
    };
    node.send(old, hello);
    node.attach(old, 0);
    refused(&mut node, 0, 4, MoveRefusal::Protocol);
    node.on(Event::SlotLost {
        slot: SlotKey(0),
        reason: "test".to_owned(),
    });
    refused(&mut node, 0, 5, MoveRefusal::SlotLost);
    // One that is away is to find out from the driver.
    node.restore(6);
    assert_ne!(
        node.answers(6),
        [OrderAnswer::Refused(MoveRefusal::SlotLost)]
    );
    let figures = node.figures();
    assert_eq!(figures.pods[0].counters.moves.refused["protocol"], 1);
    assert_eq!(figures.pods[1].counters.moves.refused["never"], 1);
}

#[test]
fn all_processes_of_a_pod_leave_or_none() {
    let mut node = Node::new(&[pod(0, 10)]);
    let (one, two) = (node.attached(1), node.attached(2));
    node.evict(1);
    node.moves(one, None);
    node.moves(two, Some(MoveRefusal::Capturing));
    assert!(node.answers(1).is_empty());
    // The one that has left returns.
    assert_eq!(node.wanted(one), (2, Some(Residency::Resident)));
    assert_eq!(node.wanted(two), (1, Some(Residency::Host)));
    // Meanwhile nothing else begins.
    node.evict(2);
    let refused = OrderAnswer::Refused(MoveRefusal::Draining);
    assert_eq!(node.answers(2), [refused]);
    node.moves(one, None);
    let refused = OrderAnswer::Refused(MoveRefusal::Capturing);
    assert_eq!(node.answers(1), [refused]);
    let moves = node.figures().pods[0].counters.moves.clone();
    assert_eq!((moves.evictions, moves.restores), (0, 0));
    assert_eq!(moves.refused["capturing"], 1);
    // Both can leave now.
    node.evict(3);
    node.moves(one, None);
    node.moves(two, None);
    let (_, _, transfer) = done(node.answers(3)[0]);
    assert_eq!((transfer.bytes, transfer.total_ns), (20, 5 * MS));
}

#[test]
fn a_process_that_ends_meanwhile_is_not_waited_for() {
    let mut node = Node::new(&[pod(0, 10)]);
    let (one, two) = (node.attached(1), node.attached(2));
    node.evict(1);
    node.on(Event::Ended(two));
    assert!(node.answers(1).is_empty());
    node.moves(one, None);
    node.moves(one, None);
    let refused = [OrderAnswer::Refused(MoveRefusal::NoProcess)];
    assert_eq!(node.answers(1), refused);
    node.evict(2);
    node.on(Event::Disconnected(one));
    assert_eq!(node.answers(2), refused);
}

#[test]
fn nothing_is_undone_of_a_process_that_has_ended() {
    let mut node = Node::new(&[pod(0, 10)]);
    let (one, two) = (node.attached(1), node.attached(2));
    node.evict(1);
    node.moves(one, None);
    node.on(Event::Ended(one));
    node.moves(two, Some(MoveRefusal::Capturing));
    let refused = [OrderAnswer::Refused(MoveRefusal::Capturing)];
    assert_eq!(node.answers(1), refused);
}

#[test]
fn a_removed_pod_answers_its_orders() {
    let mut node = Node::new(&[pod(0, 10)]);
    let _processes = (node.attached(1), node.attached(2));
    node.evict(1);
    node.on(Event::PodRemoved(PodKey(0)));
    let refused = [OrderAnswer::Refused(MoveRefusal::NoProcess)];
    assert_eq!(node.answers(1), refused);
}

#[test]
fn a_process_that_does_not_answer_counts_as_refusing() {
    let mut node = Node::new(&[pod(0, 10)]);
    let process = node.attached(1);
    node.evict(1);
    node.pass(120 * SECOND);
    assert!(node.answers(1).is_empty());
    node.pass(SECOND);
    let refused = [OrderAnswer::Refused(MoveRefusal::Draining)];
    assert_eq!(node.answers(1), refused);
    assert_eq!(node.answers(1).len(), 1);
    // It leaves late. It is believed about where the memory is, and returns.
    assert_eq!(node.wanted(process), (2, Some(Residency::Resident)));
    node.report(process, 1, Residency::Host);
    // As long as it may be on its way, the next order is not fulfilled.
    node.evict(2);
    assert_eq!(node.wanted(process), (3, Some(Residency::Host)));
    assert!(node.answers(2).is_empty());
    node.report(process, 2, Residency::Resident);
    node.report(process, 3, Residency::Host);
    assert_eq!(done(node.answers(2)[0]).1, Residency::Host);
    node.restore(3);
    node.report(process, 4, Residency::Resident);
    assert_eq!(done(node.answers(3)[0]).1, Residency::Resident);
}

#[test]
fn a_late_eviction_is_undone_like_those_of_the_pods_other_processes() {
    let mut node = Node::new(&[pod(0, 10)]);
    let (one, two) = (node.attached(1), node.attached(2));
    node.evict(1);
    node.moves(one, None);
    node.pass(121 * SECOND);
    assert_eq!(node.wanted(one), (2, Some(Residency::Resident)));
    assert_eq!(node.wanted(two), (2, Some(Residency::Resident)));
    node.moves(one, None);
    let refused = [OrderAnswer::Refused(MoveRefusal::Draining)];
    assert_eq!(node.answers(1), refused);
}

#[test]
fn memory_on_its_way_is_not_where_an_order_wants_it() {
    let mut node = Node::new(&[pod(0, 10)]);
    let process = node.attached(1);
    let place = |node: &Node, place: Residency| {
        let residency = &node.pages(process).facts.residency;
        residency.store(place as u32, Ordering::Relaxed);
    };
    for on_its_way in [
        Residency::Closing,
        Residency::Evicting,
        Residency::Restoring,
    ] {
        place(&node, on_its_way);
        for order in [PodOrder::Evict, PodOrder::Restore] {
            node.pass(SECOND);
            let (before, _) = node.wanted(process);
            node.order(0, order, 1, true);
            let (seq, wanted) = node.wanted(process);
            assert_eq!(seq, before + 1, "{on_its_way:?} {order:?}");
            node.report(process, seq, wanted.unwrap());
            place(&node, on_its_way);
        }
    }
}

#[test]
fn pages_state_when_a_process_copies_ahead() {
    let mut node = Node::new(&[pod(0, 10)]);
    let process = node.attached(1);
    let after = &node.pages(process).orders.seal_after_ms;
    assert_eq!(after.load(Ordering::Relaxed), 700);
    let streams = &node.pages(process).orders.streams_restores;
    assert_eq!(streams.load(Ordering::Relaxed), 2);
    let sealed = |node: &mut Node| node.figures().pods[0].processes[0].is_sealed;
    assert!(!sealed(&mut node));
    let facts = &node.pages(process).facts;
    facts
        .residency
        .store(Residency::Resident as u32, Ordering::Relaxed);
    facts.sealed.store(1, Ordering::Relaxed);
    node.pass(SECOND);
    assert!(sealed(&mut node));
}

#[test]
fn an_answer_to_an_earlier_order_ends_nothing() {
    let mut node = Node::new(&[pod(0, 10)]);
    let process = node.attached(1);
    node.evict(1);
    let report = MoveReport {
        seq: 7,
        residency: Residency::Resident,
        refusal: None,
        transfer: TRANSFER,
    };
    node.send(process, FromProcess::Moved(report));
    assert!(node.answers(1).is_empty());
}

#[test]
fn a_thread_that_waits_brings_the_model_back() {
    let mut node = Node::new(&[pod(0, 10)]);
    let process = node.attached(1);
    node.send(process, FromProcess::MemoryWanted);
    assert_eq!(node.wanted(process).0, 0, "it is there");
    node.evict(1);
    node.moves(process, None);
    node.send(process, FromProcess::MemoryWanted);
    node.send(process, FromProcess::MemoryWanted);
    assert_eq!(node.wanted(process), (2, Some(Residency::Resident)));
    node.moves(process, Some(MoveRefusal::NoMemory));
    // It is tried again for as long as the thread waits, each second.
    node.send(process, FromProcess::MemoryWanted);
    assert_eq!(node.wanted(process).0, 2);
    for _ in 0..20 {
        node.pass(50 * MS);
        node.send(process, FromProcess::MemoryWanted);
    }
    assert_eq!(node.wanted(process), (3, Some(Residency::Resident)));
    node.moves(process, None);
    let moves = node.figures().pods[0].counters.moves.clone();
    assert_eq!((moves.restores, moves.restores_on_demand), (1, 1));
    // The notices of one wait are repeated.
    assert_eq!((moves.restores_failed, moves.demand_waits), (1, 1));
}

#[test]
fn a_process_that_waits_for_its_memory_sees_a_heartbeat() {
    let mut node = Node::new(&[pod(0, 10)]);
    let process = node.attached(1);
    node.evict(1);
    let beats = |node: &Node| node.pages(process).orders.heartbeat.load(Ordering::Relaxed);
    node.pass(SECOND);
    assert_eq!(beats(&node), 0, "nobody waits");
    for _ in 0..20 {
        node.send(process, FromProcess::MemoryWanted);
        node.pass(50 * MS);
    }
    assert!((19..=21).contains(&beats(&node)), "{}", beats(&node));
    let after = beats(&node);
    node.pass(2 * SECOND);
    assert!(beats(&node) <= after + 12, "it ends");
}

#[test]
fn where_only_an_order_restores_a_waiting_thread_waits() {
    let mut node = Node::new(&[pod(0, 10)]);
    let agent = LocalAgent::new(Settings::default());
    node.agent = agent.with_memory(MemorySettings {
        restores_on_demand: false,
        ..MEMORY
    });
    node.on(Event::SlotAdded(Arc::new(slot(SlotKind::Mps))));
    node.mps(true);
    node.on(Event::PodAdded {
        pod: Arc::new(pod(0, 10)),
        survivors: Vec::new(),
    });
    let process = node.attached(1);
    node.evict(1);
    node.moves(process, None);
    node.send(process, FromProcess::MemoryWanted);
    assert_eq!(node.wanted(process).0, 1);
    assert_eq!(node.figures().pods[0].counters.moves.demand_waits, 1);
}

#[test]
fn notices_about_memory_do_not_disturb_a_greeting() {
    let mut node = Node::new(&[pod(0, 10)]);
    let process = node.connect(1).unwrap();
    node.hello(process, false, 0);
    node.send(process, FromProcess::MemoryWanted);
    node.send(process, FromProcess::WindowsWanted { bytes: MIB });
    node.attach(process, 0);
    assert!(node.agent.pages(process).is_some());
    assert!(node.windows(process).is_empty());
    node.evict(1);
    node.moves(process, None);
    assert_eq!(node.answers(1).len(), 1);
}

#[test]
fn a_restarted_agent_learns_where_the_memory_is() {
    let mut node = Node::new(&[unlimited(0)]);
    let process = node.connect(1).unwrap();
    node.returned(process, Residency::Host, 90 * MIB, 10 * MIB);
    node.evict(1);
    assert_eq!(done(node.answers(1)[0]).1, Residency::Host);
    node.restore(2);
    assert_eq!(node.wanted(process), (1, Some(Residency::Resident)));
    // What an earlier agent has given it counts.
    assert_eq!(node.figures().pods[0].processes[0].host_bytes, 90 * MIB);
    let other = node.attached(2);
    node.send(other, FromProcess::WindowsWanted { bytes: 20 * MIB });
    assert!(node.windows(other).is_empty());
    node.send(other, FromProcess::WindowsWanted { bytes: 10 * MIB });
    assert_eq!(node.windows(other), [(10, true)]);
    // One that has restored itself for want of an agent says so.
    let report = MoveReport {
        seq: 0,
        residency: Residency::Resident,
        refusal: None,
        transfer: TRANSFER,
    };
    node.send(process, FromProcess::Moved(report));
    assert_eq!(node.events(EventKind::Restored), 1);
}

#[test]
fn no_model_leaves_while_a_process_of_its_pod_is_connecting_again() {
    let mut node = Node::new(&[pod(0, 20)]);
    let (one, two) = (node.attached(1), node.attached(2));
    let refused = |node: &mut Node, number| {
        node.evict(number);
        let refused = [OrderAnswer::Refused(MoveRefusal::Draining)];
        assert_eq!(node.answers(number), refused);
    };
    node.on(Event::Disconnected(two));
    refused(&mut node, 1);
    // Without a daemon it is not answered.
    node.mps(false);
    let again = node.connect(2).unwrap();
    node.hello_again(again, false);
    refused(&mut node, 2);
    node.mps(true);
    node.pass(SECOND);
    node.attach(again, 0);
    // One which has not been connected before has no memory yet.
    let new = node.connect(3).unwrap();
    node.hello(new, false, 0);
    node.evict(3);
    assert!(node.answers(3).is_empty());
    node.moves(one, None);
    node.moves(again, None);
    assert_eq!(done(node.answers(3)[0]).1, Residency::Host);
}

#[test]
fn a_process_that_could_not_return_with_its_pod_returns_once_it_is_connected() {
    let mut node = Node::new(&[pod(0, 20)]);
    let (one, two) = (node.attached(1), node.attached(2));
    node.evict(1);
    node.moves(one, None);
    node.moves(two, None);
    node.on(Event::Disconnected(two));
    node.restore(2);
    node.moves(one, None);
    assert_eq!(done(node.answers(2)[0]).1, Residency::Resident);
    let again = node.connect(2).unwrap();
    node.returned(again, Residency::Host, 0, 0);
    assert_eq!(node.wanted(again), (1, Some(Residency::Resident)));
}

/// What a random run knows of a process.
#[derive(Debug, Clone, Copy)]
struct Member {
    id: ProcessId,
    pid: u32,
    /// Whether its memory is on the host.
    is_away: bool,
    /// Number of the last order that it has answered.
    answered: u32,
}

/// Random orders, answers, refusals, ends and waits: every order is answered once, host memory stays within its budget, and no process is left
/// behind when others of its pod have refused.
#[test]
fn random_moves_are_answered_once_and_leave_no_pod_torn() {
    for seed in 1..=60 {
        random_moves(seed);
    }
}

fn random_moves(seed: u64) {
    let mut random = testing::Random(seed);
    let mut node = Node::new(&[unlimited(0), unlimited(1)]);
    let mut members: Vec<Member> = Vec::new();
    let (mut number, mut next_pid) = (0, [0, 0]);
    let mut given: std::collections::BTreeMap<ProcessId, u64> = std::collections::BTreeMap::new();
    for _ in 0..400 {
        let pod = u32::try_from(random.below(2)).unwrap();
        let from = node.actions.len();
        match random.below(12) {
            0 if members.len() < 3 => {
                let index = usize::try_from(pod).unwrap();
                next_pid[index] += 1;
                let pid = pod * 100 + next_pid[index] % 99 + 1;
                if members.iter().all(|member| member.pid != pid) {
                    let id = node.attached(pid);
                    members.push(Member {
                        id,
                        pid,
                        is_away: false,
                        answered: 0,
                    });
                }
            }
            1 if !members.is_empty() => {
                let member = members.swap_remove(random.index(members.len()));
                node.on(Event::Ended(member.id));
                given.remove(&member.id);
            }
            2..=4 => {
                number += 1;
                let order = if random.below(2) == 0 {
                    PodOrder::Evict
                } else {
                    PodOrder::Restore
                };
                node.order(pod, order, number, random.below(2) == 0);
            }
            5..=8 if !members.is_empty() => {
                let index = random.index(members.len());
                let (seq, wanted) = node.wanted(members[index].id);
                if seq == members[index].answered {
                    continue;
                }
                members[index].answered = seq;
                let refuses = random.below(4) == 0;
                node.moves(members[index].id, refuses.then_some(MoveRefusal::Capturing));
                if !refuses {
                    members[index].is_away = wanted == Some(Residency::Host);
                }
            }
            9 if !members.is_empty() => {
                let index = random.index(members.len());
                node.send(members[index].id, FromProcess::MemoryWanted);
            }
            10 if !members.is_empty() => {
                let index = random.index(members.len());
                let bytes = random.below(60) * MIB;
                node.send(members[index].id, FromProcess::WindowsWanted { bytes });
            }
            _ => node.pass(random.below(SECOND)),
        }
        for action in &node.actions[from..] {
            if let Action::SendWindow { process, bytes, .. } = action {
                *given.entry(*process).or_default() += bytes;
            }
        }
        let sum: u64 = given.values().sum();
        assert!(sum <= MEMORY.host_bytes, "seed {seed}: {sum} bytes given");
    }
    // All answer what they were ordered last, until nothing is ordered any more.
    for _ in 0..10 {
        for member in &mut members {
            let (seq, wanted) = node.wanted(member.id);
            if seq != member.answered {
                member.answered = seq;
                node.moves(member.id, None);
                member.is_away = wanted == Some(Residency::Host);
            }
        }
    }
    node.pass(200 * SECOND);
    for number in 1..=number {
        let answers = node.answers(number);
        assert_eq!(answers.len(), 1, "seed {seed}, order {number}: {answers:?}");
    }
    // An order moves all of a pod.
    for pod in [0, 1] {
        number += 1;
        node.order(pod, PodOrder::Evict, number, true);
        let own = |member: &&mut Member| member.pid / 100 == pod;
        for member in members.iter_mut().filter(own) {
            let (seq, _) = node.wanted(member.id);
            if seq != member.answered {
                member.answered = seq;
                node.moves(member.id, None);
                member.is_away = true;
            }
        }
        let mut of_pod = members.iter().filter(|member| member.pid / 100 == pod);
        if of_pod.clone().next().is_some() {
            assert_eq!(done(node.answers(number)[0]).1, Residency::Host, "{seed}");
            assert!(of_pod.all(|member| member.is_away), "seed {seed}");
        }
    }
}

#[test]
fn pinned_host_memory_goes_from_a_model_that_never_returns_to_one_that_does() {
    let mut node = Node::new(&[unlimited(0), unlimited(1)]);
    let (one, other) = (node.attached(1), node.attached(101));
    for process in [one, other] {
        node.send(process, FromProcess::WindowsWanted { bytes: 30 * MIB });
    }
    let limits = |node: &Node| {
        let limit = |process| {
            node.pages(process)
                .orders
                .pinned_max
                .load(Ordering::Relaxed)
        };
        [limit(one), limit(other)]
    };
    assert_eq!(limits(&node), [34 * MIB + 1, 1]);
    let keeps = |node: &mut Node, process| {
        let pages = node.pages(process);
        let limit = pages.orders.pinned_max.load(Ordering::Relaxed);
        pages.facts.pinned_max.store(limit, Ordering::Relaxed);
        node.pass(2 * SECOND);
        node.figures()
    };
    for process in [one, other] {
        keeps(&mut node, process);
    }
    // What is free it gets at once.
    for (turn, free) in (0..).zip([0, 16]) {
        assert_eq!(limits(&node), [34 * MIB + 1, free * MIB + 1]);
        for order in [PodOrder::Evict, PodOrder::Restore] {
            node.order(1, order, 2 * turn, true);
            node.moves(other, None);
        }
    }
    let waits = [1, 16 * MIB + 1];
    assert_eq!(limits(&node), waits, "until the first one has released it");
    let figures = keeps(&mut node, one);
    assert_eq!(limits(&node), [1, 34 * MIB + 1]);
    let pinned = figures.pods.iter().map(|pod| pod.processes[0].pinned_bytes);
    assert_eq!(pinned.sum::<u64>(), 34 * MIB);
}
