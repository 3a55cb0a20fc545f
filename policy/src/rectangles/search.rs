//! Finds the best free rectangle of all slots without examining all of them.
//!
//! The free rectangles of all slots are in one order: by area, then by width, so that equal shapes are adjacent, and
//! then by the tie-breaks. The first one that is large enough and on a slot with the memory is the best. Runs of shapes
//! that are not are skipped in O(log n) each, mostly several at once.

use super::ordered::{OrderedSet, Summary};
use super::settings::Settings;
use super::shape::{FunctionId, Pod, Rectangle, SlotId};
use super::slot::Slot;

/// Number of rectangles left by pods of the same function and shape that are tried before all others.
const REUSE_TRIES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct FreeKey {
    area: u64,
    width: u32,
    tie: Tie,
}

/// Tie-breaks: the fuller slot, the lowest, the leftmost, the first.
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

/// Slot that holds the weights of a function, ordered by its free memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct HolderKey {
    function: FunctionId,
    memory: u64,
    slot: SlotId,
}

/// Rectangle that a pod left. The latest comes first, since its slot most likely still has the weights.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct FreedKey {
    function: FunctionId,
    width: u32,
    height: u32,
    number: std::cmp::Reverse<u64>,
    slot: SlotId,
    x: u32,
    y: u32,
}

/// Index over the slots; see the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    free: OrderedSet<FreeKey, Room>,
    holders: OrderedSet<HolderKey, ()>,
    freed: OrderedSet<FreedKey, ()>,
}

impl Index {
    /// Adds a slot to the index. O(f log n) for its f free and remembered rectangles and functions.
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
            self.freed.insert(freed_key(id, left), ());
        }
    }

    /// Removes a slot from the index, before the slot changes.
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
            self.freed.remove(&freed_key(id, left));
        }
    }

    /// Returns the latest rectangle of exactly this shape that a pod of this function left, on a slot with the memory.
    pub(super) fn reusable(
        &self,
        pod: &Pod,
        (width, height): (u32, u32),
        slots: &[Option<Slot>],
        settings: &Settings,
    ) -> Option<(SlotId, Rectangle)> {
        let mut from = FreedKey {
            function: pod.function,
            width,
            height,
            number: std::cmp::Reverse(u64::MAX),
            slot: SlotId(0),
            x: 0,
            y: 0,
        };
        for _ in 0..REUSE_TRIES {
            let found = *self.freed.first(&from, |()| true)?;
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
            // Numbers are unique over all slots.
            from.number = std::cmp::Reverse(found.number.0.checked_sub(1)?);
        }
        None
    }

    /// Returns the lower left part of the free rectangle that leaves the least area, on a slot with the memory.
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
        // Slots that have the weights need less memory. Those with enough for weights and pod were considered above.
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

    /// Returns whether any slot has a free rectangle that is large enough, regardless of its memory.
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
        // Other shapes of the same area come later, but may win the tie-break.
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

fn freed_key(id: SlotId, left: &super::slot::RememberedRectangle) -> FreedKey {
    let Rectangle {
        x,
        y,
        width,
        height,
    } = left.rectangle;
    FreedKey {
        function: left.function,
        width,
        height,
        number: std::cmp::Reverse(left.number),
        slot: id,
        x,
        y,
    }
}
