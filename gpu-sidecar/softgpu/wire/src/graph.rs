//! Encoding of a graph's nodes in the file sent with [`crate::message::Kind::Graph`]. For each node: its record (64
//! bytes), the number of its predecessors (8 bytes), and their indices (8 bytes each). Predecessors always precede the
//! node.

use crate::record::{Record, WORDS};

/// Largest number of nodes in a graph.
pub const NODES_MAX: usize = 1 << 20;
/// Largest number of edges in a graph, over all nodes.
pub const EDGES_MAX: usize = 1 << 22;

/// A node of a graph: a command and its predecessors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphNode {
    /// A kernel, copy, memset, host function, or empty command. Its stamp, stream and token are ignored.
    pub record: Record,
    /// Indices of the predecessors, all below the index of this node.
    pub after: Vec<usize>,
}

/// Encodes nodes in the format of the [module](self).
#[must_use]
pub fn encode(nodes: &[GraphNode]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(nodes.len() * (WORDS + 2) * 8);
    for node in nodes {
        for word in node.record.encode() {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend((node.after.len() as u64).to_le_bytes());
        for place in &node.after {
            bytes.extend((*place as u64).to_le_bytes());
        }
    }
    bytes
}

/// Decodes nodes; returns `None` for a malformed encoding.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<GraphNode>> {
    let mut words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(std::array::from_fn(|byte| word[byte])));
    let mut nodes = Vec::new();
    let mut edges = 0;
    while let Some(first) = words.next() {
        if nodes.len() == NODES_MAX {
            return None;
        }
        let mut record = [first; WORDS];
        for word in &mut record[1..] {
            *word = words.next()?;
        }
        let count = usize::try_from(words.next()?).ok()?;
        edges += count;
        if count > nodes.len() || edges > EDGES_MAX {
            return None;
        }
        let place = |word: u64| usize::try_from(word).ok().filter(|at| *at < nodes.len());
        let after: Option<Vec<_>> = (0..count).map(|_| words.next().and_then(place)).collect();
        nodes.push(GraphNode {
            record: Record::decode(&record)?,
            after: after?,
        });
    }
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use device::Time;

    use super::*;
    use crate::record::{Command, StreamSlot};

    #[test]
    fn nodes_round_trip_and_malformed_ones_are_refused() {
        let node = |bytes, after: &[usize]| GraphNode {
            record: Record {
                stamp: Time(0),
                stream: StreamSlot(0),
                token: None,
                command: Command::Set { bytes },
            },
            after: after.to_vec(),
        };
        let nodes = [node(1, &[]), node(2, &[0]), node(3, &[0, 1])];
        let bytes = encode(&nodes);
        assert_eq!(decode(&bytes).unwrap(), nodes);
        assert_eq!(decode(&[]), Some(Vec::new()));
        for end in (8..bytes.len()).step_by(8) {
            let whole = decode(&bytes[..end]);
            assert!(whole.is_none_or(|nodes| nodes.len() < 3), "{end}");
        }
        assert_eq!(decode(&encode(&[node(1, &[0])])), None);
    }
}
