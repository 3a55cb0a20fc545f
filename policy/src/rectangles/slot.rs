//! One slot: its pods, what they leave free, and how they are placed anew (M4.13).

use super::free::Free;
use super::settings::{Freed, Restructuring, Settings};
use super::shape::{FunctionId, InstanceId, Pod, Rectangle};
use crate::footprint::{Footprint, Memory};
use crate::tokens::SHARE_WHOLE;

/// Freed rectangles that a slot remembers; the oldest is forgotten for one more.
const REMEMBERED_MAX: usize = 16;

/// A pod of the slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) instance: InstanceId,
    pub(super) function: FunctionId,
    pub(super) footprint: Footprint,
    pub(super) rectangle: Rectangle,
}

/// A rectangle that a pod left and nobody has had a part of since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Remembered {
    pub(super) function: FunctionId,
    pub(super) rectangle: Rectangle,
    /// Counts over all slots.
    pub(super) number: u64,
}

/// Vectors that are kept between calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    parts: Vec<Rectangle>,
    order: Vec<u32>,
    layout: Vec<Rectangle>,
    free: Free,
}

#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) memory: Memory,
    pub(super) free: Free,
    pub(super) free_area: u64,
    pub(super) pods: Vec<Placed>,
    pub(super) remembered: Vec<Remembered>,
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
        let mut free = Free::default();
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

    /// Whether a pod more can be here, as far as memory and clients go.
    pub(super) fn takes(&self, pod: &Pod, settings: &Settings) -> bool {
        !self.is_full(settings)
            && self.memory.needs(pod.function, &pod.footprint) <= self.memory.free()
    }

    pub(super) fn is_full(&self, settings: &Settings) -> bool {
        self.pods.len() >= settings.pods_max as usize
    }

    /// A pod gets a rectangle that is free. Its memory has been checked.
    pub(super) fn put(
        &mut self,
        instance: InstanceId,
        pod: &Pod,
        rectangle: Rectangle,
        scratch: &mut Scratch,
    ) {
        let admitted = self.memory.admit(pod.function, &pod.footprint);
        debug_assert!(admitted, "memory is checked before a pod is put");
        self.free.take(&rectangle, &mut scratch.parts);
        self.remembered
            .retain(|left| !left.rectangle.overlaps(&rectangle));
        self.free_area -= rectangle.area();
        self.pods.push(Placed {
            instance,
            function: pod.function,
            footprint: pod.footprint,
            rectangle,
        });
    }

    /// A pod goes. Answers whether the others were placed anew.
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
        // In the order they came, on which restructuring builds.
        let gone = self.pods.remove(at);
        self.memory.release(gone.function, &gone.footprint);
        self.free_area += gone.rectangle.area();
        if self.pods.is_empty() {
            // As a new one, which is no better for having been used: it is opened when no other has room.
            self.free.reset(self.whole);
            self.remembered.clear();
            return false;
        }
        match settings.freed {
            Freed::Kept => self.free.give_back(gone.rectangle),
            Freed::Joined => {
                self.measure_free(scratch);
                if self.remembered.len() == REMEMBERED_MAX {
                    self.remembered.remove(0);
                }
                self.remembered.push(Remembered {
                    function: gone.function,
                    rectangle: gone.rectangle,
                    number,
                });
            }
        }
        self.is_fragmented(&settings.restructuring)
            && self.restructure(settings.restructuring.only_if_better, scratch)
    }

    /// All maximal free rectangles of the layout as it is.
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

    /// Places all pods again, the largest area first. Answers whether there is another layout now.
    fn restructure(&mut self, only_if_better: bool, scratch: &mut Scratch) -> bool {
        let found = self.lay_out(None, scratch).is_some();
        let (largest, count) = (self.free.largest(), self.free.all().len());
        let (new_largest, new_count) = (scratch.free.largest(), scratch.free.all().len());
        let better = new_largest > largest || (new_largest == largest && new_count < count);
        let adopt = found && (better || !only_if_better);
        if adopt {
            self.adopt(scratch);
        } else if !only_if_better {
            // Fragments that were kept would pile up without end.
            self.measure_free(scratch);
        }
        adopt
    }

    /// Makes room for a shape by placing all pods again together with it. Answers where it is to be put then,
    /// which is not among what is free any more; without an answer nothing has changed.
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

    /// Tries a layout of all pods, and of one shape more, by descending area into `scratch`. Answers where
    /// the shape is, or the last pod.
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
        // What lay elsewhere before lies nowhere now.
        self.remembered.clear();
    }
}
