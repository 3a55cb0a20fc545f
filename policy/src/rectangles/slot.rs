//! One slot: its pods, the area that they leave free, and how they are placed anew (M4.13).

use super::free::FreeRectangles;
use super::settings::{FreedRule, Restructuring, Settings};
use super::shape::{FunctionId, InstanceId, Pod, Rectangle};
use crate::footprint::{Footprint, Memory};
use crate::tokens::SHARE_WHOLE;

/// Number of freed rectangles that a slot remembers; the oldest is forgotten for another one.
const REMEMBERED_MAX: usize = 16;

/// Pod that is placed on the slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedPod {
    pub(super) instance: InstanceId,
    pub(super) function: FunctionId,
    pub(super) footprint: Footprint,
    pub(super) rectangle: Rectangle,
}

/// Rectangle that a pod left and of which no other pod has taken a part since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RememberedRectangle {
    pub(super) function: FunctionId,
    pub(super) rectangle: Rectangle,
    /// Sequence number of the removal over all slots.
    pub(super) number: u64,
}

/// Buffers that are kept between calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    parts: Vec<Rectangle>,
    order: Vec<u32>,
    layout: Vec<Rectangle>,
    free: FreeRectangles,
}

#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) memory: Memory,
    pub(super) free: FreeRectangles,
    pub(super) free_area: u64,
    pub(super) pods: Vec<PlacedPod>,
    pub(super) remembered: Vec<RememberedRectangle>,
    whole: Rectangle,
}

impl Slot {
    pub(super) fn new(settings: &Settings, memory: u64) -> Self {
        let whole = Rectangle {
            x: 0,
            y: 0,
            width: settings.width.parts_per_million(),
            height: settings.sm_limit,
        };
        let mut free = FreeRectangles::default();
        free.reset(whole);
        Self {
            memory: Memory::new(memory),
            free,
            free_area: whole.area(),
            pods: Vec::new(),
            remembered: Vec::new(),
            whole,
        }
    }

    /// Returns whether another pod can be placed here, as far as memory and the number of clients are concerned.
    pub(super) fn takes(&self, pod: &Pod, settings: &Settings) -> bool {
        !self.is_full(settings)
            && self.memory.needs(pod.function, &pod.footprint) <= self.memory.free()
    }

    pub(super) fn is_full(&self, settings: &Settings) -> bool {
        self.pods.len() >= settings.pods_max as usize
    }

    /// Gives a free rectangle to a pod. The caller has checked the memory.
    pub(super) fn put(
        &mut self,
        instance: InstanceId,
        pod: &Pod,
        rectangle: Rectangle,
        scratch: &mut Scratch,
    ) {
        let admitted = self.memory.admit(pod.function, &pod.footprint);
        debug_assert!(admitted, "memory must be checked before a pod is placed");
        self.free.take(&rectangle, &mut scratch.parts);
        self.remembered
            .retain(|left| !left.rectangle.overlaps(&rectangle));
        self.free_area -= rectangle.area();
        self.pods.push(PlacedPod {
            instance,
            function: pod.function,
            footprint: pod.footprint,
            rectangle,
        });
    }

    /// Removes a pod and returns whether the others were placed anew.
    pub(super) fn take_out(
        &mut self,
        instance: InstanceId,
        settings: &Settings,
        number: u64,
        scratch: &mut Scratch,
    ) -> bool {
        let Some(at) = (self.pods.iter()).position(|placed| placed.instance == instance) else {
            return false;
        };
        // Keeps the order of placement, on which restructuring relies.
        let gone = self.pods.remove(at);
        self.memory.release(gone.function, &gone.footprint);
        self.free_area += gone.rectangle.area();
        if self.pods.is_empty() {
            // The slot equals a new one and is not preferred to it: it is opened only if no other slot has room.
            self.free.reset(self.whole);
            self.remembered.clear();
            return false;
        }
        match settings.freed {
            FreedRule::Kept => self.free.give_back(gone.rectangle),
            FreedRule::Joined => {
                self.measure_free(scratch);
                if self.remembered.len() == REMEMBERED_MAX {
                    self.remembered.remove(0);
                }
                self.remembered.push(RememberedRectangle {
                    function: gone.function,
                    rectangle: gone.rectangle,
                    number,
                });
            }
        }
        self.is_fragmented(&settings.restructuring)
            && self.restructure(settings.restructuring.only_if_better, scratch)
    }

    /// Recomputes all maximal free rectangles of the current layout.
    fn measure_free(&mut self, scratch: &mut Scratch) {
        self.free.reset(self.whole);
        for placed in &self.pods {
            self.free.take(&placed.rectangle, &mut scratch.parts);
        }
    }

    fn is_fragmented(&self, when: &Restructuring) -> bool {
        let largest = u128::from(self.free.largest()) * u128::from(SHARE_WHOLE);
        let least = u128::from(self.free_area) * u128::from(when.largest_below.parts_per_million());
        self.free.all().len() > when.rectangles_above || largest < least
    }

    /// Places all pods again, the largest area first, and returns whether the layout has changed.
    fn restructure(&mut self, only_if_better: bool, scratch: &mut Scratch) -> bool {
        let found = self.lay_out(None, scratch).is_some();
        let (largest, count) = (self.free.largest(), self.free.all().len());
        let (new_largest, new_count) = (scratch.free.largest(), scratch.free.all().len());
        let better = new_largest > largest || (new_largest == largest && new_count < count);
        let adopt = found && (better || !only_if_better);
        if adopt {
            self.adopt(scratch);
        } else if !only_if_better {
            // Fragments that are kept would accumulate without limit.
            self.measure_free(scratch);
        }
        adopt
    }

    /// Makes room for a shape by placing all pods again together with it. Returns the rectangle reserved for the shape,
    /// which is no longer free, or `None` if nothing has changed.
    pub(super) fn make_room(
        &mut self,
        width: u32,
        height: u32,
        scratch: &mut Scratch,
    ) -> Option<Rectangle> {
        let room = self.lay_out(Some((width, height)), scratch)?;
        self.adopt(scratch);
        Some(room)
    }

    /// Lays out all pods, and one more shape if given, by descending area into `scratch`. Returns the rectangle of that
    /// shape, or of the last pod, or `None` if not all fit.
    fn lay_out(&self, more: Option<(u32, u32)>, scratch: &mut Scratch) -> Option<Rectangle> {
        let Scratch {
            parts,
            order,
            layout,
            free,
        } = scratch;
        let count = self.pods.len() + usize::from(more.is_some());
        let shape = |at: u32| {
            (self.pods.get(at as usize).map(|placed| {
                let Rectangle { width, height, .. } = placed.rectangle;
                (width, height)
            }))
            .or(more)
            .unwrap_or_default()
        };
        let area = |at: u32| {
            let (width, height) = shape(at);
            u64::from(width) * u64::from(height)
        };
        order.clear();
        order.extend(0..u32::try_from(count).unwrap_or(u32::MAX));
        order.sort_unstable_by_key(|&at| (std::cmp::Reverse(area(at)), at));
        layout.clear();
        layout.resize(count, Rectangle::default());
        free.reset(self.whole);
        for &at in order.iter() {
            let (width, height) = shape(at);
            let &Rectangle { x, y, .. } = free.best(width, height)?;
            let rectangle = Rectangle {
                x,
                y,
                width,
                height,
            };
            free.take(&rectangle, parts);
            layout[at as usize] = rectangle;
        }
        layout.last().copied()
    }

    fn adopt(&mut self, scratch: &Scratch) {
        for (placed, rectangle) in self.pods.iter_mut().zip(&scratch.layout) {
            placed.rectangle = *rectangle;
        }
        self.free.copy_from(&scratch.free);
        // Rectangles of the old layout have no meaning in the new one.
        self.remembered.clear();
    }
}
