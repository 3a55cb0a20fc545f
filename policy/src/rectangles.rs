//! Packs pods onto GPUs that are shared in space and time, by deciding which pod goes to which slot (M4.11–M4.13,
//! M4.17, mechanisms §4.4).
//!
//! A slot is a plane, its window × its SMs, and a pod is a rectangle in it, quota × SMs. Each slot knows its maximal
//! free rectangles. A pod is placed in the one that leaves the least area, on a slot that has the memory
//! ([`crate::footprint`]); ties are broken by the fuller slot, the lowest, the leftmost, and the first. The pod takes
//! the lower left part. Its position in the plane is bookkeeping only: what matters is that rectangles which do not
//! overlap promise no more time and SMs than there are, and the token scheduler ([`crate::tokens`]) gives these out as
//! it can.
//!
//! All slots of one instance of this type have the same GPU model, since a share of SMs means something else on another
//! model; they may differ in memory. An empty slot has the largest free rectangle there is, so it is opened only if no
//! other slot has room.
//!
//! **Cost.** Let there be n free rectangles of d different shapes on all slots, f of them on the chosen slot. Finding a
//! place is O(d log n), mostly O(log n), as shapes that are too small are skipped together; taking it is O(f log n). f
//! depends on the pods of one slot, of which there are at most [`Settings::pods_max`], and not on the number of slots.
//! Slots that hold the function's weights, and have memory for a pod but not for the weights again, are examined one by
//! one. Restructuring is O(pods × f) of one slot. Nothing is allocated once warm.
//!
//! # Examples
//!
//! ```
//! use policy::footprint::Footprint;
//! use policy::rectangles::{FunctionId, InstanceId, Pod, Rectangles, Settings, SlotId};
//! use policy::tokens::Share;
//!
//! let mut packer = Rectangles::new(Settings::default()).unwrap();
//! packer.add_slot(SlotId(0), 16 << 30).unwrap();
//! let pod = Pod {
//!     function: FunctionId(0),
//!     quota: Share::from_percent(40),
//!     sm: 5_000,
//!     footprint: Footprint::unshared(2 << 30),
//! };
//! let placement = packer.place(InstanceId(0), &pod).unwrap();
//! assert_eq!(placement.slot, SlotId(0));
//! assert_eq!(placement.rectangle.area(), 400_000 * 5_000);
//! assert!(packer.remove(InstanceId(0)).is_some());
//! ```

mod action;
mod free;
mod ordered;
mod search;
mod settings;
mod shape;
mod slot;

pub use action::{Action, PlaceReason, Placement, Refusal, Removal};
pub use settings::{
    FreedRule, Order, Restructuring, SM_LIMIT_MAX, Settings, SettingsError, Sharing,
};
pub use shape::{FunctionId, InstanceId, Pod, Rectangle, SlotId};

use crate::footprint::Memory;
use search::Index;
use slot::{Scratch, Slot};

/// Exclusive upper bound of slot ids.
pub const SLOTS_MAX: u32 = 1 << 16;
/// Exclusive upper bound of instance ids.
pub const INSTANCES_MAX: u32 = 1 << 22;

/// Packer of pods; see the [module](self).
#[derive(Clone, Debug)]
pub struct Rectangles {
    settings: Settings,
    slots: Vec<Option<Slot>>,
    /// Slot of each instance, by instance id.
    places: Vec<Option<SlotId>>,
    index: Index,
    removals: u64,
    scratch: Scratch,
    /// Indices of a batch, kept between calls to avoid allocation.
    batch: Vec<u32>,
}

impl Rectangles {
    /// Creates a packer without slots.
    ///
    /// # Errors
    /// Returns the error of [`Settings::validate`].
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

    /// Returns the settings of this packer.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Adds a slot with `memory` bytes of memory.
    ///
    /// # Errors
    /// Returns [`Refusal::IdTooLarge`] or [`Refusal::SlotTaken`].
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

    /// Removes a slot with its pods. One [`Action::Lost`] is appended for each pod, in order of placement.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchSlot`].
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

    /// Finds a place for a pod and takes it.
    ///
    /// # Errors
    /// Returns [`Refusal::NoArea`] or [`Refusal::NoMemory`] if there is no place; [`Refusal::IdTooLarge`],
    /// [`Refusal::InstanceTaken`], [`Refusal::NoQuota`], or [`Refusal::SmOutOfRange`].
    pub fn place(&mut self, instance: InstanceId, pod: &Pod) -> Result<Placement, Refusal> {
        self.check_new(instance)?;
        let placement = self.find(pod)?;
        self.put(instance, pod, placement.slot, placement.rectangle);
        Ok(placement)
    }

    /// Returns where [`Rectangles::place`] would place the pod now.
    ///
    /// # Errors
    /// Returns [`Refusal::NoArea`], [`Refusal::NoMemory`], [`Refusal::NoQuota`], or [`Refusal::SmOutOfRange`].
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

    /// Places a batch of pods in the order of [`Settings::order`], and appends one [`Action::Place`] or
    /// [`Action::Refuse`] for each.
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

    /// Records that a pod is on this slot, as the caller knows after a restart. If the rectangles of the pods recorded
    /// before leave no room, all of them are placed anew together with it.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchSlot`], [`Refusal::NoArea`], [`Refusal::NoMemory`], [`Refusal::IdTooLarge`],
    /// [`Refusal::InstanceTaken`], [`Refusal::NoQuota`], or [`Refusal::SmOutOfRange`].
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
            reason: PlaceReason::Reported,
        })
    }

    /// Removes a pod, or returns `None` if it was not placed. [`Settings::freed`] determines what becomes of its
    /// rectangle, and the slot may be restructured.
    pub fn remove(&mut self, instance: InstanceId) -> Option<Removal> {
        let id = (self.places.get_mut(instance.0 as usize)).and_then(Option::take)?;
        let slot = self.slots.get_mut(id.0 as usize)?.as_mut()?;
        self.removals += 1;
        self.index.unlist(id, slot, &self.settings);
        let restructured =
            slot.take_out(instance, &self.settings, self.removals, &mut self.scratch);
        self.index.list(id, slot, &self.settings);
        Some(Removal {
            slot: id,
            restructured,
        })
    }

    /// Returns where a pod is, or `None` if it is not placed. O(pods of the slot).
    #[must_use]
    pub fn place_of(&self, instance: InstanceId) -> Option<(SlotId, Rectangle)> {
        let id = (*self.places.get(instance.0 as usize)?)?;
        let slot = self.slot(id)?;
        let placed = (slot.pods.iter()).find(|placed| placed.instance == instance)?;
        Some((id, placed.rectangle))
    }

    /// Iterates over the pods of a slot, in order of placement.
    pub fn pods(&self, id: SlotId) -> impl Iterator<Item = (InstanceId, Rectangle)> {
        self.slot(id)
            .map_or(&[][..], |slot| &slot.pods)
            .iter()
            .map(|placed| (placed.instance, placed.rectangle))
    }

    /// Returns the free rectangles of a slot, in no order; empty if there is no such slot.
    #[must_use]
    pub fn free(&self, id: SlotId) -> &[Rectangle] {
        self.slot(id).map_or(&[], |slot| slot.free.all())
    }

    /// Returns the memory of a slot, or `None` if there is no such slot.
    #[must_use]
    pub fn memory(&self, id: SlotId) -> Option<&Memory> {
        self.slot(id).map(|slot| &slot.memory)
    }

    /// Returns the width and height of the rectangle that a pod needs.
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
