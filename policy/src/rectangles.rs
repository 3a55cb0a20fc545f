//! Packs pods of GPUs that are shared in space and time: which pod goes to which slot (M4.11–M4.13, M4.17,
//! papers 4.4).
//!
//! A slot is a plane, its window × its SMs, and a pod a rectangle of it, quota × SMs. Each slot knows the
//! maximal rectangles that are free. A pod goes to the one that leaves the least area, on a slot that has
//! the memory ([`crate::footprint`]); ties: the fuller slot, the lowest, the leftmost, the first. It takes
//! the lower left part. Where in the plane a pod lies is bookkeeping: what counts is that rectangles that do
//! not overlap promise no more time and SMs than there are, and the token scheduler
//! ([`crate::tokens`]) gives them out as it can.
//!
//! Slots of one instance of this type have the same GPU model, as a share of SMs means something else on
//! another; they may differ in memory. An empty slot has the largest free rectangle there is, so it is
//! opened only when no other has room.
//!
//! **Cost.** For n free rectangles of d different shapes on all slots, f of them on the slot that is taken:
//! O(d log n) to find, mostly O(log n), as shapes that are too small are passed over together; O(f log n) to
//! take. f depends on the pods of one slot, at most [`Settings::pods_max`], and not on the number of slots.
//! Slots that hold the function's weights, and have memory for a pod but not for the weights again, are
//! looked at one by one. Restructuring is O(pods × f) of one slot. Nothing is allocated once warm.

mod action;
mod free;
mod ordered;
mod search;
mod settings;
mod shape;
mod slot;

pub use action::{Action, PlaceReason, Placement, Refusal, Removed};
pub use settings::{Freed, Order, Restructuring, SM_LIMIT_MAX, Settings, SettingsError, Sharing};
pub use shape::{FunctionId, InstanceId, Pod, Rectangle, SlotId};

use crate::footprint::Memory;
use search::Index;
use slot::{Scratch, Slot};

/// Slot ids have to be below this.
pub const SLOTS_MAX: u32 = 1 << 16;
/// Instance ids have to be below this.
pub const INSTANCES_MAX: u32 = 1 << 22;

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Rectangles {
    settings: Settings,
    slots: Vec<Option<Slot>>,
    /// By instance: where it is.
    places: Vec<Option<SlotId>>,
    index: Index,
    removals: u64,
    scratch: Scratch,
    /// Indices of a batch, kept between calls.
    batch: Vec<u32>,
}

impl Rectangles {
    /// A packer without slots.
    ///
    /// # Errors
    /// What [`Settings::validate`] finds.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        settings.validate()?;
        Ok(Self {
            settings,
            slots: Vec::new(),
            places: Vec::new(),
            index: Index::default(),
            removals: 0,
            scratch: Scratch::default(),
            batch: Vec::new(),
        })
    }

    /// Its settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A slot with `memory` bytes has come.
    ///
    /// # Errors
    /// [`Refusal::IdTooLarge`], [`Refusal::SlotTaken`].
    pub fn add_slot(&mut self, id: SlotId, memory: u64) -> Result<(), Refusal> {
        if id.0 >= SLOTS_MAX {
            return Err(Refusal::IdTooLarge { bound: SLOTS_MAX });
        }
        let at = id.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        if self.slots[at].is_some() {
            return Err(Refusal::SlotTaken);
        }
        let slot = Slot::new(&self.settings, memory);
        self.index.list(id, &slot, &self.settings);
        self.slots[at] = Some(slot);
        Ok(())
    }

    /// A slot has gone, and its pods with it: one [`Action::Lost`] each, in the order they came.
    ///
    /// # Errors
    /// [`Refusal::NoSuchSlot`].
    pub fn remove_slot(&mut self, id: SlotId, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let slot = (self.slots.get_mut(id.0 as usize))
            .and_then(Option::take)
            .ok_or(Refusal::NoSuchSlot)?;
        self.index.unlist(id, &slot, &self.settings);
        for placed in &slot.pods {
            self.places[placed.instance.0 as usize] = None;
            actions.push(Action::Lost {
                instance: placed.instance,
            });
        }
        Ok(())
    }

    /// Finds a pod its place and takes it.
    ///
    /// # Errors
    /// [`Refusal::NoArea`], [`Refusal::NoMemory`] if there is none; [`Refusal::IdTooLarge`],
    /// [`Refusal::InstanceTaken`], [`Refusal::NoQuota`], [`Refusal::SmOutOfRange`].
    pub fn place(&mut self, instance: InstanceId, pod: &Pod) -> Result<Placement, Refusal> {
        self.check_new(instance)?;
        let placement = self.find(pod)?;
        self.put(instance, pod, placement.slot, placement.rectangle);
        Ok(placement)
    }

    /// Where [`Rectangles::place`] would put the pod now.
    ///
    /// # Errors
    /// [`Refusal::NoArea`], [`Refusal::NoMemory`], [`Refusal::NoQuota`], [`Refusal::SmOutOfRange`].
    pub fn find(&self, pod: &Pod) -> Result<Placement, Refusal> {
        let shape = self.shape(pod)?;
        let (slots, settings) = (self.slots.as_slice(), &self.settings);
        let reused = || {
            (self.index.reusable(pod, shape, slots, settings)).map(|at| (at, PlaceReason::Reused))
        };
        let best =
            || (self.index.best(pod, shape, slots, settings)).map(|at| (at, PlaceReason::BestArea));
        match reused().or_else(best) {
            Some(((slot, rectangle), reason)) => Ok(Placement {
                slot,
                rectangle,
                reason,
            }),
            None if self.index.has_area(shape.0, shape.1) => Err(Refusal::NoMemory),
            None => Err(Refusal::NoArea),
        }
    }

    /// Places a batch of pods in the order of [`Settings::order`]: one [`Action::Place`] or
    /// [`Action::Refuse`] each.
    pub fn place_all(&mut self, pods: &[(InstanceId, Pod)], actions: &mut Vec<Action>) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        batch.extend((0_u32..).take(pods.len()));
        if self.settings.order == Order::AreaDescending {
            let area = |at: u32| {
                let (width, height) = self.shape(&pods[at as usize].1).unwrap_or_default();
                u64::from(width) * u64::from(height)
            };
            batch.sort_unstable_by_key(|&at| (std::cmp::Reverse(area(at)), at));
        }
        for &at in &batch {
            let (instance, pod) = &pods[at as usize];
            let instance = *instance;
            actions.push(match self.place(instance, pod) {
                Ok(placement) => Action::Place {
                    instance,
                    placement,
                },
                Err(reason) => Action::Refuse { instance, reason },
            });
        }
        self.batch = batch;
    }

    /// A pod is on this slot, as the caller knows after a restart. If the rectangles of those that were told
    /// before leave no room, all of them are placed anew together with it.
    ///
    /// # Errors
    /// [`Refusal::NoSuchSlot`], [`Refusal::NoArea`], [`Refusal::NoMemory`], [`Refusal::IdTooLarge`],
    /// [`Refusal::InstanceTaken`], [`Refusal::NoQuota`], [`Refusal::SmOutOfRange`].
    pub fn place_on(
        &mut self,
        id: SlotId,
        instance: InstanceId,
        pod: &Pod,
    ) -> Result<Placement, Refusal> {
        self.check_new(instance)?;
        let (width, height) = self.shape(pod)?;
        let slot = (self.slots.get_mut(id.0 as usize))
            .and_then(Option::as_mut)
            .ok_or(Refusal::NoSuchSlot)?;
        if slot.is_full(&self.settings) {
            return Err(Refusal::NoArea);
        }
        if !slot.takes(pod, &self.settings) {
            return Err(Refusal::NoMemory);
        }
        let rectangle = if let Some(&Rectangle { x, y, .. }) = slot.free.best(width, height) {
            Rectangle {
                x,
                y,
                width,
                height,
            }
        } else {
            self.index.unlist(id, slot, &self.settings);
            let room = slot.make_room(width, height, &mut self.scratch);
            self.index.list(id, slot, &self.settings);
            room.ok_or(Refusal::NoArea)?
        };
        self.put(instance, pod, id, rectangle);
        Ok(Placement {
            slot: id,
            rectangle,
            reason: PlaceReason::Told,
        })
    }

    /// A pod has gone; `None` if it was not placed. What it leaves is as [`Settings::freed`] says, and the slot
    /// may be restructured.
    pub fn remove(&mut self, instance: InstanceId) -> Option<Removed> {
        let id = (self.places.get_mut(instance.0 as usize)).and_then(Option::take)?;
        let slot = self.slots.get_mut(id.0 as usize)?.as_mut()?;
        self.removals += 1;
        self.index.unlist(id, slot, &self.settings);
        let restructured =
            slot.take_out(instance, &self.settings, self.removals, &mut self.scratch);
        self.index.list(id, slot, &self.settings);
        Some(Removed {
            slot: id,
            restructured,
        })
    }

    /// Where a pod is; `None` if it is not placed. O(pods of the slot).
    #[must_use]
    pub fn place_of(&self, instance: InstanceId) -> Option<(SlotId, Rectangle)> {
        let id = (*self.places.get(instance.0 as usize)?)?;
        let slot = self.slot(id)?;
        let placed = (slot.pods.iter()).find(|placed| placed.instance == instance)?;
        Some((id, placed.rectangle))
    }

    /// The pods of a slot, in the order they came.
    pub fn pods(&self, id: SlotId) -> impl Iterator<Item = (InstanceId, Rectangle)> {
        self.slot(id)
            .map_or(&[][..], |slot| &slot.pods)
            .iter()
            .map(|placed| (placed.instance, placed.rectangle))
    }

    /// The free rectangles of a slot, in no order; empty if there is no such slot.
    #[must_use]
    pub fn free(&self, id: SlotId) -> &[Rectangle] {
        self.slot(id).map_or(&[], |slot| slot.free.all())
    }

    /// The memory of a slot.
    #[must_use]
    pub fn memory(&self, id: SlotId) -> Option<&Memory> {
        self.slot(id).map(|slot| &slot.memory)
    }

    /// The width and height that a pod takes.
    fn shape(&self, pod: &Pod) -> Result<(u32, u32), Refusal> {
        let (width, limit) = (self.settings.width, self.settings.sm_limit);
        if pod.quota.is_none() {
            return Err(Refusal::NoQuota);
        }
        if pod.sm == 0 || pod.sm > limit {
            return Err(Refusal::SmOutOfRange { limit });
        }
        let quota = pod.quota.min(width).parts_per_million();
        Ok(match self.settings.sharing {
            Sharing::SpaceAndTime => (quota, pod.sm),
            Sharing::TimeOnly => (quota, limit),
            Sharing::Exclusive => (width.parts_per_million(), limit),
        })
    }

    fn check_new(&self, instance: InstanceId) -> Result<(), Refusal> {
        if instance.0 >= INSTANCES_MAX {
            return Err(Refusal::IdTooLarge {
                bound: INSTANCES_MAX,
            });
        }
        match self.places.get(instance.0 as usize) {
            Some(Some(_)) => Err(Refusal::InstanceTaken),
            _ => Ok(()),
        }
    }

    fn put(&mut self, instance: InstanceId, pod: &Pod, id: SlotId, rectangle: Rectangle) {
        let at = instance.0 as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        if let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) {
            self.places[at] = Some(id);
            self.index.unlist(id, slot, &self.settings);
            slot.put(instance, pod, rectangle, &mut self.scratch);
            self.index.list(id, slot, &self.settings);
        }
    }

    fn slot(&self, id: SlotId) -> Option<&Slot> {
        self.slots.get(id.0 as usize)?.as_ref()
    }
}
