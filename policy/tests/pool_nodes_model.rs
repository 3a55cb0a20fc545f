//! Placement over nodes compared with sums that are recomputed at every query.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the seed of a failure")]

use std::collections::BTreeMap;

use policy::Span;
use policy::pool::FunctionId;
use policy::pool::nodes::{Change, LoadPerSecond, NodeId, Nodes, PlaceError};
use testing::Random;

const SECOND: u64 = 1_000_000_000;

/// One node: slots, memory, whether it is closed, and the work of requests in flight to it.
struct Node {
    slots: u64,
    memory: u64,
    closed: bool,
    outstanding: Vec<u64>,
}

/// A function's placement: bytes, load, nodes.
type Placed = (u64, u64, Vec<u32>);

fn load(placed: &BTreeMap<u32, Placed>, node: u32) -> u64 {
    let on = placed.values().filter(|placed| placed.2.contains(&node));
    on.map(|(_, load, nodes)| load / nodes.len() as u64).sum()
}

fn memory_free(placed: &BTreeMap<u32, Placed>, nodes: &[Node], node: u32) -> u64 {
    let on = placed.values().filter(|placed| placed.2.contains(&node));
    nodes[node as usize].memory - on.map(|placed| placed.0).sum::<u64>()
}

/// Returns the least loaded open node with the memory, except `but`. Slots are 2, 4 or 8, so loads per slot are
/// compared in eighths.
fn best(
    placed: &BTreeMap<u32, Placed>,
    nodes: &[Node],
    bytes: u64,
    but: Option<u32>,
) -> Option<u32> {
    (0..u32::try_from(nodes.len()).unwrap())
        .filter(|&node| Some(node) != but && !nodes[node as usize].closed)
        .filter(|&node| memory_free(placed, nodes, node) >= bytes)
        .min_by_key(|&node| (load(placed, node) * (8 / nodes[node as usize].slots), node))
}

#[test]
fn functions_go_to_the_least_loaded_nodes_with_the_memory() {
    for seed in 0..10 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut real = Nodes::default();
        let mut nodes = Vec::new();
        for n in 0..6 {
            let (slots, memory) = ([2, 4, 8][random.index(3)], 500 + random.below(500));
            let id = real.add_node(u32::try_from(slots).unwrap(), memory);
            assert_eq!(id, NodeId(n));
            nodes.push(Node {
                slots,
                memory,
                closed: false,
                outstanding: Vec::new(),
            });
        }
        let mut placed: BTreeMap<u32, Placed> = BTreeMap::new();
        let (mut full, mut added, mut dropped) = (0, 0, 0);
        for _ in 0..5_000 {
            let id = u32::try_from(random.below(30)).unwrap();
            let function = FunctionId(id);
            let of_load = random.below(SECOND);
            match random.below(20) {
                0..=5 => {
                    let bytes = random.below(200);
                    let found = real.place(function, bytes, LoadPerSecond(Span(of_load)));
                    if placed.contains_key(&id) {
                        assert_eq!(found, Err(PlaceError::AlreadyPlaced));
                        continue;
                    }
                    let Some(first) = best(&placed, &nodes, bytes, None) else {
                        assert_eq!(found, Err(PlaceError::NoHostMemory));
                        full += 1;
                        continue;
                    };
                    let mut on = vec![first];
                    if of_load * 10 > nodes[first as usize].slots * SECOND {
                        on.extend(best(&placed, &nodes, bytes, Some(first)));
                    }
                    assert_eq!(
                        found,
                        Ok((NodeId(first), on.get(1).map(|&node| NodeId(node))))
                    );
                    placed.insert(id, (bytes, of_load, on));
                }
                6 => {
                    real.remove(function);
                    placed.remove(&id);
                }
                7..=11 => {
                    let change = real.set_load(function, LoadPerSecond(Span(of_load)));
                    let Some((bytes, _, mut on)) = placed.remove(&id) else {
                        assert_eq!(change, None);
                        continue;
                    };
                    let full = nodes[on[0] as usize].slots * SECOND;
                    let mut expected = None;
                    if on.len() == 1 && of_load * 100 > 10 * full {
                        on.extend(best(&placed, &nodes, bytes, Some(on[0])));
                        expected = on.get(1).map(|&node| Change::Added(NodeId(node)));
                        added += u32::from(expected.is_some());
                    } else if on.len() == 2 && of_load * 100 <= 8 * full {
                        expected = on.pop().map(|node| Change::Dropped(NodeId(node)));
                        dropped += 1;
                    }
                    assert_eq!(change, expected);
                    placed.insert(id, (bytes, of_load, on));
                }
                12 => {
                    let node = random.index(nodes.len());
                    nodes[node].closed = !nodes[node].closed;
                    real.set_closed(NodeId(u32::try_from(node).unwrap()), nodes[node].closed);
                }
                13..=16 => {
                    let work = random.below(SECOND);
                    let node = real.route(function, Span(work));
                    let least = placed.get(&id).map(|(_, _, on)| {
                        let waits = |&&node: &&u32| {
                            let node = &nodes[node as usize];
                            node.outstanding.iter().sum::<u64>() * (8 / node.slots)
                        };
                        // Of equal nodes the first, since it is the function's first node.
                        *on.iter().min_by_key(waits).unwrap()
                    });
                    assert_eq!(node, least.map(NodeId));
                    if let Some(node) = least {
                        nodes[node as usize].outstanding.push(work);
                    }
                }
                _ => {
                    let node = random.index(nodes.len());
                    if !nodes[node].outstanding.is_empty() {
                        let at = random.index(nodes[node].outstanding.len());
                        let work = nodes[node].outstanding.swap_remove(at);
                        real.done(NodeId(u32::try_from(node).unwrap()), Span(work));
                    }
                }
            }
            for node in 0..u32::try_from(nodes.len()).unwrap() {
                let (of_load, free) = (load(&placed, node), memory_free(&placed, &nodes, node));
                assert_eq!(real.load(NodeId(node)), Some(LoadPerSecond(Span(of_load))));
                assert_eq!(real.memory_free(NodeId(node)), Some(free));
            }
        }
        assert!(
            full > 0 && added > 0 && dropped > 0,
            "{full} {added} {dropped}"
        );
    }
}
