//! An ordered set that finds the first key with given properties in few steps: a balanced tree (AVL) in one array, in
//! which every node knows the best value of each property below it. The standard library's set can keep neither those
//! values nor its nodes.

use std::cmp::Ordering;

const NONE: u32 = u32::MAX;

/// Properties of a key besides its position, or of all keys of a subtree: for each property the best value of any of
/// them.
pub(super) trait Summary: Copy {
    fn join(self, other: Self) -> Self;
}

impl Summary for () {
    fn join(self, (): Self) -> Self {}
}

#[derive(Clone, Copy, Debug)]
struct Node<K, S> {
    key: K,
    own: S,
    below: S,
    left: u32,
    right: u32,
    height: u32,
}

/// Ordered set of keys with summaries; see the [module](self).
#[derive(Clone, Debug)]
pub(super) struct OrderedSet<K, S> {
    nodes: Vec<Node<K, S>>,
    unused: Vec<u32>,
    root: u32,
}

impl<K, S> Default for OrderedSet<K, S> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            unused: Vec::new(),
            root: NONE,
        }
    }
}

impl<K: Ord + Copy, S: Summary> OrderedSet<K, S> {
    /// Adds a key, which must not be in the set. O(log n).
    pub(super) fn insert(&mut self, key: K, own: S) {
        let node = Node {
            key,
            own,
            below: own,
            left: NONE,
            right: NONE,
            height: 1,
        };
        let at = if let Some(at) = self.unused.pop() {
            self.nodes[at as usize] = node;
            at
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        };
        self.root = self.insert_below(self.root, at);
    }

    /// Removes a key and returns whether it was in the set. O(log n).
    pub(super) fn remove(&mut self, key: &K) -> bool {
        let mut removed = NONE;
        self.root = self.remove_below(self.root, key, &mut removed);
        if removed != NONE {
            self.unused.push(removed);
        }
        removed != NONE
    }

    /// Returns the first key not before `from` with properties that `admits` accepts. `admits` must accept the join of
    /// properties that it accepts. O(log n) if it never accepts a join of properties that it rejects.
    pub(super) fn first(&self, from: &K, admits: impl Fn(&S) -> bool) -> Option<&K> {
        let found = self.first_below(self.root, from, &admits);
        (found != NONE).then(|| &self.node(found).key)
    }

    fn node(&self, at: u32) -> &Node<K, S> {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node<K, S> {
        &mut self.nodes[at as usize]
    }

    fn first_below(&self, at: u32, from: &K, admits: &impl Fn(&S) -> bool) -> u32 {
        if at == NONE || !admits(&self.node(at).below) {
            return NONE;
        }
        let node = self.node(at);
        if node.key >= *from {
            let found = self.first_below(node.left, from, admits);
            if found != NONE {
                return found;
            }
            if admits(&node.own) {
                return at;
            }
        }
        self.first_below(node.right, from, admits)
    }

    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        if self.node(new).key < self.node(at).key {
            let left = self.insert_below(self.node(at).left, new);
            self.node_mut(at).left = left;
        } else {
            let right = self.insert_below(self.node(at).right, new);
            self.node_mut(at).right = right;
        }
        self.balance(at)
    }

    fn remove_below(&mut self, at: u32, key: &K, removed: &mut u32) -> u32 {
        if at == NONE {
            return NONE;
        }
        match key.cmp(&self.node(at).key) {
            Ordering::Less => {
                let left = self.remove_below(self.node(at).left, key, removed);
                self.node_mut(at).left = left;
            }
            Ordering::Greater => {
                let right = self.remove_below(self.node(at).right, key, removed);
                self.node_mut(at).right = right;
            }
            Ordering::Equal => {
                *removed = at;
                let Node { left, right, .. } = *self.node(at);
                if right == NONE {
                    return left;
                }
                let mut next = NONE;
                let right = self.take_first(right, &mut next);
                let node = self.node_mut(next);
                node.left = left;
                node.right = right;
                return self.balance(next);
            }
        }
        self.balance(at)
    }

    fn take_first(&mut self, at: u32, first: &mut u32) -> u32 {
        let left = self.node(at).left;
        if left == NONE {
            *first = at;
            return self.node(at).right;
        }
        let left = self.take_first(left, first);
        self.node_mut(at).left = left;
        self.balance(at)
    }

    fn height(&self, at: u32) -> u32 {
        if at == NONE { 0 } else { self.node(at).height }
    }

    fn update(&mut self, at: u32) {
        let Node {
            own, left, right, ..
        } = *self.node(at);
        let mut below = own;
        for child in [left, right] {
            if child != NONE {
                below = below.join(self.node(child).below);
            }
        }
        let height = self.height(left).max(self.height(right)) + 1;
        let node = self.node_mut(at);
        node.below = below;
        node.height = height;
    }

    fn balance(&mut self, at: u32) -> u32 {
        let Node { left, right, .. } = *self.node(at);
        let (on_left, on_right) = (self.height(left), self.height(right));
        if on_left > on_right + 1 {
            let Node {
                left: outer,
                right: inner,
                ..
            } = *self.node(left);
            if self.height(inner) > self.height(outer) {
                let raised = self.rotate_left(left);
                self.node_mut(at).left = raised;
            }
            return self.rotate_right(at);
        }
        if on_right > on_left + 1 {
            let Node {
                left: inner,
                right: outer,
                ..
            } = *self.node(right);
            if self.height(inner) > self.height(outer) {
                let raised = self.rotate_right(right);
                self.node_mut(at).right = raised;
            }
            return self.rotate_left(at);
        }
        self.update(at);
        at
    }

    fn rotate_right(&mut self, at: u32) -> u32 {
        let raised = self.node(at).left;
        self.node_mut(at).left = self.node(raised).right;
        self.node_mut(raised).right = at;
        self.update(at);
        self.update(raised);
        raised
    }

    fn rotate_left(&mut self, at: u32) -> u32 {
        let raised = self.node(at).right;
        self.node_mut(at).right = self.node(raised).left;
        self.node_mut(raised).left = at;
        self.update(at);
        self.update(raised);
        raised
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Most(u64);

    impl Summary for Most {
        fn join(self, other: Self) -> Self {
            Self(self.0.max(other.0))
        }
    }

    fn check(tree: &OrderedSet<u64, Most>, at: u32) -> (u32, Option<Most>, usize) {
        if at == NONE {
            return (0, None, 0);
        }
        let node = tree.node(at);
        let (left, left_most, left_count) = check(tree, node.left);
        let (right, right_most, right_count) = check(tree, node.right);
        assert!(left.abs_diff(right) <= 1);
        assert_eq!(node.height, left.max(right) + 1);
        let most = [left_most, right_most]
            .into_iter()
            .flatten()
            .fold(node.own, Most::join);
        assert_eq!(node.below, most);
        (node.height, Some(most), left_count + right_count + 1)
    }

    #[test]
    fn set_agrees_with_a_map_and_stays_balanced() {
        let mut tree = OrderedSet::default();
        let mut model = BTreeMap::new();
        let mut state = 7_u64;
        let mut random = |bound| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        for step in 0..20_000 {
            let key = random(if step < 10_000 { 500 } else { 60 });
            if random(2) == 0 {
                let value = random(1_000);
                if model.insert(key, value).is_some() {
                    assert!(tree.remove(&key));
                }
                tree.insert(key, Most(value));
            } else {
                assert_eq!(tree.remove(&key), model.remove(&key).is_some());
            }
            if step % 16 == 0 {
                assert_eq!(check(&tree, tree.root).2, model.len());
            }
            let (from, least) = (random(500), random(1_000));
            let expected = model.range(from..).find(|&(_, &value)| value >= least);
            let found = tree.first(&from, |most| most.0 >= least);
            assert_eq!(found, expected.map(|(key, _)| key));
        }
        assert!(tree.nodes.len() <= 500);
    }
}
