use std::sync::atomic::Ordering;

use super::*;
use crate::cuda::INVALID_VALUE;
use crate::fake::Fake;

const GRAPH: Handle = 0x100;
const CHILD: Handle = 0x200;
const EXECUTABLE: Handle = 0x300;

fn fake() -> &'static Fake {
    let fake = Fake::new();
    fake.orders.streams_restores.store(1, Ordering::Relaxed);
    fake
}

fn add(fake: &Fake, graph: Handle, nodes: &[(Handle, NodeUse)]) {
    let handles = nodes.iter().map(|(node, _)| *node).collect();
    fake.graphs.borrow_mut().insert(graph, handles);
    fake.nodes.borrow_mut().extend(nodes.iter().cloned());
}

/// First address.
const AT: u64 = 0x7f00_0000_0000;

fn words(offsets: &[u64]) -> NodeUse {
    NodeUse::Words(offsets.iter().map(|offset| AT + offset).collect())
}

fn instantiated(fake: &'static Fake) -> Option<Vec<u64>> {
    let made = instantiate(fake, &|| SUCCESS, || Some(EXECUTABLE), GRAPH, 0);
    assert_eq!(made, Outcome::Done(SUCCESS));
    let words = fake.process.graphs.words(EXECUTABLE)?;
    Some(words.iter().map(|word| word - AT).collect())
}

#[test]
fn a_graph_uses_what_its_nodes_and_those_of_its_children_use() {
    let fake = fake();
    add(
        fake,
        GRAPH,
        &[(1, words(&[7, 9])), (2, NodeUse::Child(CHILD))],
    );
    add(fake, CHILD, &[(3, words(&[9, 4])), (4, words(&[]))]);
    assert_eq!(instantiated(fake), Some(vec![4, 7, 9]));
}

#[test]
fn a_node_with_a_function_of_the_program_counts_as_one_in_a_stream() {
    let fake = fake();
    add(fake, GRAPH, &[(1, words(&[7])), (2, NodeUse::HostFunction)]);
    assert!(!fake.process.has_host_functions());
    assert_eq!(instantiated(fake), Some(vec![7]));
    assert!(fake.process.has_host_functions());
}

#[test]
fn one_node_of_which_nothing_is_known_makes_the_graph_unknown() {
    let fake = fake();
    add(fake, GRAPH, &[(1, words(&[7])), (2, NodeUse::Child(CHILD))]);
    assert_eq!(
        instantiated(fake),
        None,
        "the driver does not list the child"
    );
    add(fake, CHILD, &[(3, NodeUse::Unknown)]);
    assert_eq!(instantiated(fake), None);
    let many: Vec<_> = (10..)
        .map(|node| (node, words(&[])))
        .take(NODES_MAX)
        .collect();
    add(fake, CHILD, &many[..NODES_MAX - 2]);
    assert_eq!(instantiated(fake), Some(vec![7]));
    add(fake, CHILD, &many[..NODES_MAX - 1]);
    assert_eq!(instantiated(fake), None, "too large");
}

#[test]
fn nothing_is_read_where_restores_are_not_streamed() {
    let fake = fake();
    add(fake, GRAPH, &[(1, words(&[7]))]);
    fake.orders.streams_restores.store(0, Ordering::Relaxed);
    assert_eq!(instantiated(fake), None);
    assert_eq!(fake.graph_reads.get(), 0);
}

#[test]
fn a_graph_that_is_changed_or_destroyed_is_not_known() {
    let fake = fake();
    add(fake, GRAPH, &[(1, words(&[7]))]);
    assert!(instantiated(fake).is_some());
    forget(fake, EXECUTABLE);
    assert_eq!(fake.process.graphs.words(EXECUTABLE), None);
}

#[test]
fn a_failed_instantiation_leaves_what_is_known() {
    let fake = fake();
    add(fake, GRAPH, &[(1, words(&[7]))]);
    assert!(instantiated(fake).is_some());
    let made = instantiate(fake, &|| INVALID_VALUE, || Some(EXECUTABLE), CHILD, 0);
    assert_eq!(made, Outcome::Done(INVALID_VALUE));
    let words = fake.process.graphs.words(EXECUTABLE);
    assert_eq!(words, Some(vec![AT + 7]));
}

#[test]
fn graphs_for_launches_by_kernels_make_all_unknown() {
    let fake = fake();
    add(fake, GRAPH, &[(1, words(&[7]))]);
    assert!(instantiated(fake).is_some());
    let made = instantiate(fake, &|| SUCCESS, || Some(CHILD), GRAPH, 5);
    assert_eq!(made, Outcome::Done(SUCCESS));
    assert_eq!(fake.process.graphs.words(CHILD), None);
    assert_eq!(instantiated(fake), None);
}
