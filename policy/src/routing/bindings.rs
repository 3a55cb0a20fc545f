//! Requests that are bound to instances.

use super::instance::InstanceId;
use crate::profile::ClassId;
use crate::{Span, Time};

/// Handle of a request at an instance. It becomes void for ever once the request has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindingId {
    slot: u32,
    generation: u32,
}

/// State of a request at an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) instance: InstanceId,
    pub(super) class: ClassId,
    /// Time at which the request was bound.
    pub(super) at: Time,
    /// Actual or expected start; `None` while the request waits for another one at the instance.
    pub(super) started: Option<Time>,
    /// Estimated execution time on this instance.
    pub(super) execution: Span,
    /// Expected end of the request.
    pub(super) end: Time,
}

/// All bindings of a function.
#[derive(Clone, Debug, Default)]
pub(super) struct Bindings {
    slots: Vec<(u32, Option<Binding>)>,
    free: Vec<u32>,
}

impl Bindings {
    pub(super) fn insert(&mut self, bound: Binding) -> BindingId {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = u32::try_from(self.slots.len()).expect("fewer requests than 2^32");
            self.slots.push((0, None));
            slot
        });
        let (generation, place) = &mut self.slots[slot as usize];
        *place = Some(bound);
        BindingId {
            slot,
            generation: *generation,
        }
    }

    pub(super) fn remove(&mut self, id: BindingId) -> Option<Binding> {
        let (generation, place) = self.slots.get_mut(id.slot as usize)?;
        if *generation != id.generation {
            return None;
        }
        let bound = place.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(bound)
    }

    pub(super) fn get(&self, id: BindingId) -> Option<&Binding> {
        let (generation, bound) = self.slots.get(id.slot as usize)?;
        bound.as_ref().filter(|_| *generation == id.generation)
    }

    pub(super) fn get_mut(&mut self, id: BindingId) -> Option<&mut Binding> {
        let (generation, bound) = self.slots.get_mut(id.slot as usize)?;
        bound.as_mut().filter(|_| *generation == id.generation)
    }
}
