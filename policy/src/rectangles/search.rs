//! Finds the best free rectangle of all slots without looking at all of them.
//!
//! The free rectangles of all slots stand in one order: by area, then width, so that equal shapes stand
//! together, then as ties are decided. The first one that is large enough and on a slot with memory is the
//! best. Runs of shapes that are not are passed over in O(log n) each, mostly several at once.

use super::ordered::{Ordered, Summary};
use super::settings::Settings;
use super::shape::{FunctionId, Pod, Rectangle, SlotId};
use super::slot::Slot;

/// Left rectangles of a pod's function and shape that are tried before the others.
const REUSE_TRIES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct FreeKey {
    area: u64,
    width: u32,
    tie: Tie,
}

/// The fuller slot, the lowest, the leftmost, the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Tie {
    free_area: u64,
    y: u32,
    x: u32,
    slot: SlotId,
}

#[derive(Clone, Copy, Debug)]
struct Room {
    width: u32,
    height: u32,
    memory: u64,
}

impl Summary for Room {
    fn join(self, other: Self) -> Self {
        Self {
            width: self.width.max(other.width),
            height: self.height.max(other.height),
            memory: self.memory.max(other.memory),
        }
    }
}

/// A slot that holds the weights of a function, by how much memory it has left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct HolderKey {
    function: FunctionId,
    memory: u64,
    slot: SlotId,
}

/// A rectangle that a pod left. The latest first: its slot most likely still has the weights.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct LeftKey {
    function: FunctionId,
    width: u32,
    height: u32,
    number: std::cmp::Reverse<u64>,
    slot: SlotId,
    x: u32,
    y: u32,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    free: Ordered<FreeKey, Room>,
    holders: Ordered<HolderKey, ()>,
    left: Ordered<LeftKey, ()>,
}

impl Index {
    /// The slot can be found. O(f log n) for its f free and remembered rectangles and functions.
    pub(super) fn list(&mut self, id: SlotId, slot: &Slot, settings: &Settings) {
        let memory = slot.memory.free();
        if !slot.is_full(settings) {
            for rectangle in slot.free.all() {
                let room = Room {
                    width: rectangle.width,
                    height: rectangle.height,
                    memory,
                };
                self.free.insert(key(id, slot, rectangle), room);
            }
            for holder in slot.memory.holders() {
                if holder.storage > 0 {
                    self.holders.insert(
                        HolderKey {
                            function: holder.function,
                            memory,
                            slot: id,
                        },
                        (),
                    );
                }
            }
        }
        for left in &slot.remembered {
            self.left.insert(left_key(id, left), ());
        }
    }

    /// The opposite, before the slot changes.
    pub(super) fn unlist(&mut self, id: SlotId, slot: &Slot, settings: &Settings) {
        let memory = slot.memory.free();
        if !slot.is_full(settings) {
            for rectangle in slot.free.all() {
                self.free.remove(&key(id, slot, rectangle));
            }
            for holder in slot.memory.holders() {
                if holder.storage > 0 {
                    self.holders.remove(&HolderKey {
                        function: holder.function,
                        memory,
                        slot: id,
                    });
                }
            }
        }
        for left in &slot.remembered {
            self.left.remove(&left_key(id, left));
        }
    }

    /// The latest rectangle of just this shape that a pod of this function left, on a slot with memory.
    pub(super) fn reusable(
        &self,
        pod: &Pod,
        (width, height): (u32, u32),
        slots: &[Option<Slot>],
        settings: &Settings,
    ) -> Option<(SlotId, Rectangle)> {
        let mut from = LeftKey {
            function: pod.function,
            width,
            height,
            number: std::cmp::Reverse(u64::MAX),
            slot: SlotId(0),
            x: 0,
            y: 0,
        };
        for _ in 0..REUSE_TRIES {
            let found = *self.left.first(&from, |()| true)?;
            if (found.function, found.width, found.height) != (pod.function, width, height) {
                return None;
            }
            let slot = slots.get(found.slot.0 as usize)?.as_ref()?;
            if slot.takes(pod, settings) {
                let rectangle = Rectangle {
                    x: found.x,
                    y: found.y,
                    width,
                    height,
                };
                return Some((found.slot, rectangle));
            }
            // Numbers are told apart over all slots.
            from.number = std::cmp::Reverse(found.number.0.checked_sub(1)?);
        }
        None
    }

    /// The free rectangle that leaves the least area, on a slot with memory, as its lower left part.
    pub(super) fn best(
        &self,
        pod: &Pod,
        (width, height): (u32, u32),
        slots: &[Option<Slot>],
        settings: &Settings,
    ) -> Option<(SlotId, Rectangle)> {
        let footprint = &pod.footprint;
        let all = footprint.storage.saturating_add(footprint.pod);
        let mut best = self.best_with(width, height, all);
        // Slots that have the weights need less memory. Those with enough for weights and pod were seen.
        if footprint.storage > 0 {
            let mut from = HolderKey {
                function: pod.function,
                memory: footprint.pod,
                slot: SlotId(0),
            };
            while let Some(&found) = self.holders.first(&from, |()| true) {
                if found.function != pod.function || found.memory >= all {
                    break;
                }
                if let Some(Some(slot)) = slots.get(found.slot.0 as usize)
                    && slot.takes(pod, settings)
                    && let Some(rectangle) = slot.free.best(width, height)
                {
                    let key = key(found.slot, slot, rectangle);
                    if best.is_none_or(|best| (key.area, key.tie) < (best.area, best.tie)) {
                        best = Some(key);
                    }
                }
                from = found;
                from.slot.0 += 1;
            }
        }
        best.map(|FreeKey { tie, .. }| {
            let rectangle = Rectangle {
                x: tie.x,
                y: tie.y,
                width,
                height,
            };
            (tie.slot, rectangle)
        })
    }

    /// Whether any slot has a free rectangle that is large enough, whatever its memory.
    pub(super) fn has_area(&self, width: u32, height: u32) -> bool {
        self.best_with(width, height, 0).is_some()
    }

    fn best_with(&self, width: u32, height: u32, memory: u64) -> Option<FreeKey> {
        let admits =
            |room: &Room| room.width >= width && room.height >= height && room.memory >= memory;
        let mut from = FreeKey {
            area: u64::from(width) * u64::from(height),
            width,
            tie: Tie::default(),
        };
        let mut best = *self.free.first(&from, admits)?;
        // Other shapes of the same area come after it, and may be before it in the order of ties.
        from = best;
        loop {
            from.width += 1;
            from.tie = Tie::default();
            match self.free.first(&from, admits) {
                Some(other) if other.area == best.area => {
                    if other.tie < best.tie {
                        best = *other;
                    }
                    from = *other;
                }
                _ => return Some(best),
            }
        }
    }
}

fn key(id: SlotId, slot: &Slot, rectangle: &Rectangle) -> FreeKey {
    FreeKey {
        area: rectangle.area(),
        width: rectangle.width,
        tie: Tie {
            free_area: slot.free_area,
            y: rectangle.y,
            x: rectangle.x,
            slot: id,
        },
    }
}

fn left_key(id: SlotId, left: &super::slot::Remembered) -> LeftKey {
    let Rectangle {
        x,
        y,
        width,
        height,
    } = left.rectangle;
    LeftKey {
        function: left.function,
        width,
        height,
        number: std::cmp::Reverse(left.number),
        slot: id,
        x,
        y,
    }
}
