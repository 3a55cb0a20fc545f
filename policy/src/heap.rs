//! A binary heap from which items can be removed by their slot.
//!
//! The smallest key comes first. Push, pop, and removal are O(log n). Nothing is allocated once the vectors have grown
//! to the largest number of slots in use, which a `BTreeMap` does not guarantee.

const ABSENT: u32 = u32::MAX;
/// Largest number of items that [`IndexedHeap::smallest`] returns.
pub(crate) const SMALLEST_MAX: usize = 8;

#[derive(Debug, Clone)]
pub(crate) struct IndexedHeap<K> {
    items: Vec<(K, u32)>,
    /// Index in `items` of each slot's item, or `ABSENT` if the slot has none.
    position: Vec<u32>,
}

impl<K: Ord + Copy> IndexedHeap<K> {
    pub(crate) const fn new() -> Self {
        Self {
            items: Vec::new(),
            position: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.position
            .get(slot as usize)
            .is_some_and(|&at| at != ABSENT)
    }

    /// Iterates over all items, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, u32)> {
        self.items.iter().copied()
    }

    /// Writes the slots of the `n` smallest items into `slots`, smallest first. O(n²), regardless of the heap's size.
    pub(crate) fn smallest(&self, n: usize, slots: &mut Vec<u32>) {
        slots.clear();
        // Indices in `items` of the candidates: items with a parent that is already taken. The smallest of them is
        // next.
        let mut next = [0_usize; 2 * SMALLEST_MAX + 1];
        let mut open = usize::from(!self.items.is_empty());
        while slots.len() < n.min(SMALLEST_MAX) && open > 0 {
            let least = (0..open).min_by_key(|&at| self.items[next[at]].0);
            let Some(least) = least else { break };
            let at = next[least];
            open -= 1;
            next[least] = next[open];
            slots.push(self.items[at].1);
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.items.len() {
                    next[open] = child;
                    open += 1;
                }
            }
        }
    }

    pub(crate) fn peek(&self) -> Option<(K, u32)> {
        self.items.first().copied()
    }

    /// Adds the item of `slot`, which must have none.
    pub(crate) fn push(&mut self, slot: u32, key: K) {
        debug_assert!(!self.contains(slot), "slot {slot} is already in the heap");
        if self.position.len() <= slot as usize {
            self.position.resize(slot as usize + 1, ABSENT);
        }
        self.items.push((key, slot));
        self.sift_up(self.items.len() - 1);
    }

    pub(crate) fn pop(&mut self) -> Option<(K, u32)> {
        let top = self.peek()?;
        self.remove_at(0);
        Some(top)
    }

    /// Removes the item of `slot` and returns whether it had one.
    pub(crate) fn remove(&mut self, slot: u32) -> bool {
        match self.position.get(slot as usize) {
            Some(&at) if at != ABSENT => {
                self.remove_at(at as usize);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn clear(&mut self) {
        for (_, slot) in self.items.drain(..) {
            self.position[slot as usize] = ABSENT;
        }
    }

    fn remove_at(&mut self, at: usize) {
        let (_, slot) = self.items.swap_remove(at);
        self.position[slot as usize] = ABSENT;
        if at < self.items.len() {
            // The item moved here may belong further up or further down.
            self.sift_down(at);
            self.sift_up(at);
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "slots are u32, so there are no more items"
    )]
    fn place(&mut self, at: usize, item: (K, u32)) {
        self.items[at] = item;
        self.position[item.1 as usize] = at as u32;
    }

    fn sift_up(&mut self, mut at: usize) {
        let item = self.items[at];
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.items[parent].0 <= item.0 {
                break;
            }
            self.place(at, self.items[parent]);
            at = parent;
        }
        self.place(at, item);
    }

    fn sift_down(&mut self, mut at: usize) {
        let item = self.items[at];
        loop {
            let left = 2 * at + 1;
            if left >= self.items.len() {
                break;
            }
            let right = left + 1;
            let child = if right < self.items.len() && self.items[right].0 < self.items[left].0 {
                right
            } else {
                left
            };
            if item.0 <= self.items[child].0 {
                break;
            }
            self.place(at, self.items[child]);
            at = child;
        }
        self.place(at, item);
    }
}
