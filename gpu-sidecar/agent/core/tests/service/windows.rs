use super::*;

impl Node {
    pub(super) fn windows(&self, process: ProcessId) -> Vec<(u64, bool)> {
        let all = self.actions.iter().filter_map(|action| match action {
            Action::SendWindow {
                process: to,
                bytes,
                is_pinned,
                ..
            } if *to == process => Some((bytes / MIB, *is_pinned)),
            _ => None,
        });
        all.collect()
    }
}

#[test]
fn a_window_that_could_not_be_made_is_free_again() {
    let mut node = Node::new(&[unlimited(0)]);
    let process = node.attached(1);
    node.send(process, FromProcess::WindowsWanted { bytes: 80 * MIB });
    assert_eq!(node.windows(process), [(90, false)]);
    node.on(Event::WindowFailed {
        process,
        bytes: 90 * MIB,
        is_pinned: false,
    });
    assert_eq!(node.figures().pods[0].processes[0].host_bytes, 0);
    node.send(process, FromProcess::WindowsWanted { bytes: 80 * MIB });
    assert_eq!(node.windows(process).len(), 2);
    node.on(Event::Ended(process));
    // One that fails after the end of its process was returned with it.
    node.on(Event::WindowFailed {
        process,
        bytes: 90 * MIB,
        is_pinned: false,
    });
    let next = node.attached(2);
    node.send(next, FromProcess::WindowsWanted { bytes: 100 * MIB });
    assert_eq!(node.windows(next), [(100, false)]);
}

#[test]
fn a_process_gets_a_bounded_number_of_windows() {
    let mut node = Node::new(&[unlimited(0)]);
    let agent = LocalAgent::new(Settings::default());
    node.agent = agent.with_memory(MemorySettings {
        host_bytes: 1 << 40,
        ..MEMORY
    });
    node.on(Event::SlotAdded(Arc::new(slot(SlotKind::Mps))));
    node.mps(true);
    node.on(Event::PodAdded {
        pod: Arc::new(unlimited(0)),
        survivors: Vec::new(),
    });
    let process = node.attached(1);
    let mut bytes = MIB;
    for _ in 0..400 {
        node.send(process, FromProcess::WindowsWanted { bytes });
        bytes = node.figures().pods[0].processes[0].host_bytes + 1;
    }
    assert!(node.windows(process).len() <= 256);
}

#[test]
fn a_process_gets_no_more_host_memory_than_it_can_have_on_the_device() {
    let mut small = pod(0, 10);
    small.settings.gpu_memory = Some(10 * MIB);
    let mut node = Node::new(&[small]);
    let (one, two) = (node.attached(1), node.attached(2));
    node.send(one, FromProcess::WindowsWanted { bytes: 6 * MIB });
    assert_eq!(node.windows(one), [(8, true)]);
    node.send(two, FromProcess::WindowsWanted { bytes: u64::MAX });
    assert_eq!(node.windows(two), [(4, true)]);
    // Another connection of the process has what the first one was given, whatever it states.
    let again = node.connect(1).unwrap();
    node.hello_again(again, false);
    node.attach(again, 0);
    node.send(again, FromProcess::WindowsWanted { bytes: 6 * MIB });
    assert!(node.windows(again).is_empty());
}

#[test]
fn host_memory_that_was_lost_on_its_way_is_given_again_within_bounds() {
    let mut small = pod(0, 10);
    small.settings.gpu_memory = Some(10 * MIB);
    let mut node = Node::new(&[small, unlimited(1)]);
    let wants = |node: &mut Node, process, mib| {
        node.send(process, FromProcess::WindowsWanted { bytes: mib * MIB });
    };
    let mut process = node.attached(1);
    let mut given = Vec::new();
    for _connection in 0..4 {
        wants(&mut node, process, 6);
        given.push(node.windows(process).len());
        node.on(Event::Disconnected(process));
        process = node.connect(1).unwrap();
        // It states to have none.
        node.hello_again(process, false);
        node.attach(process, 0);
    }
    assert_eq!(given, [1, 1, 0, 0], "twice what it can need");
    assert_eq!(node.figures().pods[0].processes[0].host_bytes, 0);
    // It may have kept what it denies to have, until it ends.
    let other = node.attached(101);
    wants(&mut node, other, 85);
    assert!(node.windows(other).is_empty());
    node.on(Event::Ended(process));
    wants(&mut node, other, 85);
    assert_eq!(node.windows(other).len(), 1);
}

#[test]
fn stated_host_memory_is_bounded() {
    let mut small = pod(0, 10);
    small.settings.gpu_memory = Some(10 * MIB);
    let mut node = Node::new(&[small, unlimited(1)]);
    let liar = node.connect(1).unwrap();
    node.returned(liar, Residency::Resident, u64::MAX, u64::MAX);
    let other = node.attached(101);
    node.send(other, FromProcess::WindowsWanted { bytes: 80 * MIB });
    assert_eq!(node.windows(other), [(90, false)]);
    node.on(Event::Ended(liar));
    let last = node.attached(102);
    node.send(last, FromProcess::WindowsWanted { bytes: 60 * MIB });
    assert!(node.windows(last).is_empty(), "the budget is what it was");
}

#[test]
fn host_memory_is_given_within_the_nodes_budget_and_returned_at_the_end() {
    let mut stays = pod(1, 10);
    stays.settings.evict = Evict::Never;
    let mut node = Node::new(&[unlimited(0), stays]);
    let (one, two) = (node.attached(1), node.attached(2));
    let never = node.attached(101);
    let wants = |node: &mut Node, process, mib| {
        node.send(process, FromProcess::WindowsWanted { bytes: mib * MIB });
    };
    wants(&mut node, never, 10);
    assert!(node.windows(never).is_empty());
    wants(&mut node, one, 40);
    wants(&mut node, one, 40);
    assert_eq!(node.windows(one), [(46, true)]);
    wants(&mut node, two, 40);
    assert_eq!(node.windows(two), [(46, false)]);
    wants(&mut node, one, 80);
    assert_eq!(node.windows(one).len(), 1, "no room");
    let figures = node.figures();
    let processes = &figures.pods[0].processes;
    assert_eq!(processes[0].host_bytes, 46 * MIB);
    assert_eq!(
        (processes[0].pinned_bytes, processes[1].pinned_bytes),
        (46 * MIB, 0)
    );
    node.on(Event::Ended(two));
    wants(&mut node, one, 80);
    assert_eq!(node.windows(one).len(), 2);
}

#[test]
fn windows_are_made_on_the_nodes_of_the_gpu() {
    let mut node = Node::new(&[]);
    node.agent = LocalAgent::new(Settings::default()).with_memory(MEMORY);
    let near = Slot {
        numa_nodes: vec![1, 2],
        ..slot(SlotKind::Mps)
    };
    node.on(Event::SlotAdded(Arc::new(near)));
    node.mps(true);
    node.on(Event::PodAdded {
        pod: Arc::new(unlimited(0)),
        survivors: Vec::new(),
    });
    let process = node.attached(1);
    node.send(process, FromProcess::WindowsWanted { bytes: MIB });
    let sent = node.actions.iter().find_map(|action| match action {
        Action::SendWindow { nodes, .. } => Some(nodes.clone()),
        _ => None,
    });
    assert_eq!(sent, Some(vec![1, 2]));
}
