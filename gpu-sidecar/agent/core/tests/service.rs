//! The service without sockets: what it does with events, one at a time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_core::local::{LocalAgent, SharedPages};
use agent_core::{
    Action, AgentFigures, Event, EventKind, Figures, Order, Peer, Pod, PodKey, PodSettings,
    ProcessRecord, Slot, SlotKey, SlotKind,
};
use annotations::{Evict, Isolation};
use policy::tokens::{ProcessId, Settings};
use protocol::message::{FromAgent, FromProcess, Refusal};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A service under test, with its time and everything it has done.
struct Node {
    agent: LocalAgent,
    now: u64,
    actions: Vec<Action>,
}

fn slot(kind: SlotKind) -> Slot {
    Slot {
        key: SlotKey(0),
        name: "0".to_owned(),
        uuid: "GPU-00000000-0000-0000-0000-000000000000".to_owned(),
        product: "H100".to_owned(),
        kind,
        sms: Some(132),
        memory_bytes: 80 << 30,
        compute_capability: Some((9, 0)),
        client_limit: 3,
        seats: 48,
        context_residue: None,
        mps_pipe: Some(PathBuf::from("/run/weir/mps/0/pipe")),
        mig: None,
    }
}

fn pod(key: u32, sm_percent: u32) -> Pod {
    Pod {
        key: PodKey(key),
        serial: u64::from(key) + 1,
        name: format!("pod-{key}"),
        namespace: "default".to_owned(),
        function: "function".to_owned(),
        revision: "revision".to_owned(),
        uid: None,
        cgroup: None,
        pod_name: None,
        mps_mount: None,
        settings: PodSettings {
            isolation: Isolation::Shared,
            sm_hundredths: sm_percent * 100,
            quota_request_ppm: 100_000,
            quota_limit_ppm: 1_000_000,
            gpu_memory: Some(1_000),
            evict: Evict::Host,
            slo: None,
            is_pipeline: false,
        },
        slot: SlotKey(0),
        folder: PathBuf::from("/run/weir/pods"),
    }
}

impl Node {
    /// A slot with a running MPS daemon and these pods, after the time in which others may be found.
    fn new(pods: &[Pod]) -> Self {
        let mut node = Self::starting(pods, &[]);
        node.pass(400 * MS);
        node
    }

    fn starting(pods: &[Pod], survivors: &[ProcessRecord]) -> Self {
        let mut node = Self {
            agent: LocalAgent::new(Settings::default()),
            now: SECOND,
            actions: Vec::new(),
        };
        node.on(Event::SlotAdded(Arc::new(slot(SlotKind::Mps))));
        node.mps(true);
        for pod in pods {
            let of_pod = |record: &&ProcessRecord| record.pid / 100 == pod.key.0;
            node.on(Event::PodAdded {
                pod: Arc::new(pod.clone()),
                survivors: survivors.iter().filter(of_pod).copied().collect(),
            });
        }
        node
    }

    fn mps(&mut self, is_up: bool) {
        self.on(Event::MpsState {
            slot: SlotKey(0),
            is_up,
            text: "by the test".to_owned(),
        });
    }

    /// Passes an event, and returns what follows.
    fn on(&mut self, event: Event) -> &[Action] {
        let from = self.actions.len();
        self.agent.handle(self.now, &event, &mut self.actions);
        &self.actions[from..]
    }

    /// Lets time pass, with all wake-ups in it.
    fn pass(&mut self, ns: u64) {
        let until = self.now + ns;
        while let Some(at) = self.agent.agent().next_wake().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            let before = self.agent.agent().next_wake();
            self.on(Event::Wake);
            let after = self.agent.agent().next_wake();
            assert!(after.is_none() || after > before, "the same wake-up again");
        }
        self.now = until;
    }

    /// Connects a process. Its ID is that of its pod times 100, plus a number.
    fn connect(&mut self, pid: u32) -> Option<ProcessId> {
        let event = Event::Connected {
            pod: PodKey(pid / 100),
            peer: Some(Peer {
                pid,
                start: Some(7),
                is_watched: true,
                is_of_pod: true,
            }),
        };
        let actions = self.on(event);
        actions.iter().find_map(|action| match action {
            Action::Admit(id) => Some(*id),
            _ => None,
        })
    }

    fn send(&mut self, process: ProcessId, message: FromProcess) -> &[Action] {
        self.on(Event::Message { process, message })
    }

    fn hello(&mut self, process: ProcessId, open: bool, busy_ns: u64) -> &[Action] {
        self.greet(process, false, open, busy_ns)
    }

    /// Sends `Hello` of a process which was connected before.
    fn hello_again(&mut self, process: ProcessId, open: bool) {
        self.greet(process, true, open, 0);
    }

    fn greet(&mut self, process: ProcessId, again: bool, open: bool, busy_ns: u64) -> &[Action] {
        self.send(
            process,
            FromProcess::Hello {
                pid: 1,
                again,
                open,
                busy_ns,
                ungated_ns: 0,
                bytes_used: 0,
                program: "test".to_owned(),
            },
        )
    }

    fn attach(&mut self, process: ProcessId, busy_ns: u64) -> &[Action] {
        self.send(
            process,
            FromProcess::Attach {
                uuid: [0; 16],
                multiprocessors: 1,
                mps: true,
                context_bytes: 0,
                busy_ns,
            },
        )
    }

    fn attached(&mut self, pid: u32) -> ProcessId {
        let process = self.connect(pid).unwrap();
        self.hello(process, false, 0);
        self.attach(process, 0);
        process
    }

    fn pages(&self, process: ProcessId) -> Arc<SharedPages> {
        Arc::clone(self.agent.pages(process).unwrap())
    }

    fn epoch(&self, process: ProcessId) -> u64 {
        self.pages(process).orders.gate.epoch()
    }

    fn is_open(&self, process: ProcessId) -> bool {
        self.epoch(process) & 1 == 0
    }

    fn ask(&mut self, process: ProcessId) {
        let epoch = self.epoch(process);
        self.send(process, FromProcess::Ask { epoch });
    }

    fn close(&mut self, process: ProcessId) {
        let epoch = self.epoch(process) & !1;
        self.send(process, FromProcess::Closed { epoch });
    }

    /// Publishes that work has been in flight since now.
    fn work(&self, process: ProcessId) {
        let pages = self.pages(process);
        pages.facts.inflight_us.store(1_000_000, Ordering::Relaxed);
        pages.facts.busy_since.store(self.now, Ordering::Relaxed);
        pages.facts.launches.0.fetch_add(1, Ordering::Relaxed);
    }

    fn figures(&mut self) -> Figures {
        self.on(Event::FiguresWanted);
        let agent = self.agent.agent();
        agent.figures(&std::collections::BTreeMap::new(), AgentFigures::default())
    }

    fn messages(&self, process: ProcessId) -> Vec<&FromAgent> {
        let sent = self.actions.iter().filter_map(|action| match action {
            Action::Send {
                process: to,
                message,
            } if *to == process => Some(message),
            _ => None,
        });
        sent.collect()
    }

    fn count(&self, is: impl Fn(&Action) -> bool) -> usize {
        self.actions.iter().filter(|action| is(action)).count()
    }
}

fn record(pid: u32, sm_hundredths: u32) -> ProcessRecord {
    ProcessRecord {
        pid,
        start: 7,
        sm_hundredths,
    }
}

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
fn orders_are_declined_by_their_number() {
    let mut node = Node::new(&[pod(0, 100)]);
    let actions = node.on(Event::Ordered {
        number: 9,
        pod: PodKey(0),
        order: agent_core::PodOrder::Evict,
    });
    assert!(matches!(actions[0], Action::Decline { number: 9, .. }));
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
