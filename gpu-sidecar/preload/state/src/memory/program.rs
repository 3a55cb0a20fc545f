//! Memory that the program creates and maps itself (`cuMemCreate`, `cuMemMap`). It counts from its creation until neither a handle nor a
//! mapping of it remains. Imported memory counts in the process that created it.
//!
//! The program's handles are the driver's as long as its memory has not moved. Memory that has left the device and returned has another handle of
//! the driver; the program keeps the one it knows, which is a name only from then on. A name that the driver returns for other memory
//! meanwhile is not passed on: the program gets a number of this library's.

use std::collections::BTreeMap;
use std::ffi::c_int;

use super::physical::{Access, ON_DEVICE, Properties};
use crate::{Address, Handle};

/// First handle of this library's, for a handle of the driver whose number is a name already.
const FIRST_NAME: u64 = 0x5765_6972_0000_0000;

/// Physical memory, with the number of its handles and mappings.
#[derive(Debug)]
struct Physical {
    /// Bytes counted for the memory; 0 if it was imported.
    bytes: u64,
    handles: u32,
    mappings: u32,
    /// Properties by which it was created; `None` if it was imported, so that it cannot move.
    properties: Option<Properties>,
    /// Context that was current at its creation; 0 without one.
    context: Handle,
    is_exported: bool,
    /// Whether the program's handles are names: it has moved.
    is_named: bool,
    /// The driver's handle behind the names, while there are any and the memory is on the device.
    real: Option<u64>,
    is_away: bool,
}

/// Mapping of physical memory.
#[derive(Debug, Clone)]
struct Mapping {
    bytes: u64,
    id: u64,
    /// Access of each device, as set last.
    access: Vec<Access>,
}

/// A mapping to be made or ended: first address, size in bytes, and access of devices.
pub type MappingPlan = (Address, u64, Vec<Access>);

/// Physical memory of the program's that can move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramBlock {
    /// Number of the memory in this record.
    pub id: u64,
    /// Address of its first mapping.
    pub at: Address,
    /// Size of the memory in bytes.
    pub bytes: u64,
    /// Ordinal of its device.
    pub device: c_int,
    /// Context that was current at its creation; 0 without one.
    pub context: Handle,
}

/// What the program's memory leaves behind: bytes that no longer count, and memory that is gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Bytes that no longer count.
    pub bytes: u64,
    /// Numbers of the memory that is gone.
    pub gone: Vec<u64>,
}

/// Memory created and mapped by the program. Its lock is held over the driver's calls, which are short and which the driver
/// serialises itself, so that a reused handle or address is never mistaken for the previous one.
#[derive(Debug, Default)]
pub struct Program {
    physical: BTreeMap<u64, Physical>,
    /// Memory of each handle, and the number of times it has to be released. 0 is a valid handle.
    handles: BTreeMap<u64, (u64, u32)>,
    /// Mappings by their first address.
    mappings: BTreeMap<Address, Mapping>,
    next: u64,
    next_name: u64,
}

impl Program {
    /// Records a created or imported handle of the driver, which counts for `bytes`, and returns the handle for the program. `properties`: those by
    /// which it was created, with the current context; `None` if it was imported.
    pub fn created(
        &mut self,
        handle: u64,
        bytes: u64,
        properties: Option<(Properties, Handle)>,
    ) -> u64 {
        let known = self.handles.get(&handle).map(|(id, _)| *id);
        let is_name = known.is_some_and(|id| self.is_named(id));
        if let Some(id) = known
            && !is_name
        {
            // The driver has returned an existing handle.
            if let Some((_, times)) = self.handles.get_mut(&handle) {
                *times += 1;
            }
            if let Some(physical) = self.physical.get_mut(&id) {
                physical.handles += 1;
                physical.bytes = physical.bytes.saturating_add(bytes);
            }
            return handle;
        }
        self.next += 1;
        let own = if is_name { self.name() } else { handle };
        let physical = Physical {
            bytes,
            handles: 1,
            mappings: 0,
            properties: properties.map(|(properties, _)| properties),
            context: properties.map_or(0, |(_, context)| context),
            is_exported: false,
            is_named: is_name,
            real: is_name.then_some(handle),
            is_away: false,
        };
        self.physical.insert(self.next, physical);
        self.handles.insert(own, (self.next, 1));
        own
    }

    /// Returns a number that is no handle of the program's.
    fn name(&mut self) -> u64 {
        loop {
            let name = FIRST_NAME + self.next_name;
            self.next_name += 1;
            if !self.handles.contains_key(&name) {
                return name;
            }
        }
    }

    fn is_named(&self, id: u64) -> bool {
        self.physical.get(&id).is_some_and(|own| own.is_named)
    }

    fn of(&self, handle: u64) -> Option<&Physical> {
        self.physical.get(&self.handles.get(&handle)?.0)
    }

    /// Returns whether a handle of the program's is a name, which the driver does not know.
    #[must_use]
    pub fn is_name(&self, handle: u64) -> bool {
        self.of(handle).is_some_and(|own| own.is_named)
    }

    /// Returns the driver's handle for one of the program's; `None` for a name of memory that is on the host.
    #[must_use]
    pub fn real(&self, handle: u64) -> Option<u64> {
        match self.of(handle) {
            Some(own) if own.is_named => own.real,
            _ => Some(handle),
        }
    }

    /// Returns the properties by which the memory of a handle was created.
    #[must_use]
    pub fn properties(&self, handle: u64) -> Option<Properties> {
        self.of(handle)?.properties
    }

    /// Notes that other processes may have the memory of a handle: it cannot move as long as it exists.
    pub fn exported(&mut self, handle: u64) {
        if let Some((id, _)) = self.handles.get(&handle)
            && let Some(physical) = self.physical.get_mut(id)
        {
            physical.is_exported = true;
        }
    }

    /// Returns whether other processes may have some of the memory.
    #[must_use]
    pub fn has_exported(&self) -> bool {
        self.physical.values().any(|own| own.is_exported)
    }

    /// Returns whether some memory was imported from other processes.
    #[must_use]
    pub fn has_imported(&self) -> bool {
        self.physical.values().any(|own| own.properties.is_none())
    }

    /// Returns the memory mapped at an address.
    fn at(&self, address: Address) -> Option<u64> {
        let (&at, mapping) = self.mappings.range(..=address).next_back()?;
        (address - at < mapping.bytes).then_some(mapping.id)
    }

    /// Returns whether a handle retained for the memory at an address is a name.
    #[must_use]
    pub fn is_named_at(&self, address: Address) -> bool {
        self.at(address).is_some_and(|id| self.is_named(id))
    }

    /// Records a handle retained for the memory at an address, and returns the handle for the program. `real`: the driver's.
    pub fn retained(&mut self, real: u64, address: Address) -> u64 {
        let Some(id) = self.at(address) else {
            return real;
        };
        let mut handle = real;
        let names = self.handles.iter();
        let known = names
            .filter(|(_, (of, _))| *of == id)
            .map(|(name, _)| *name)
            .next();
        if self.is_named(id) {
            handle = match known {
                Some(name) => name,
                None => self.name(),
            };
        } else if self
            .handles
            .get(&real)
            .is_some_and(|(of, _)| *of != id && self.is_named(*of))
        {
            handle = self.name();
            if let Some(physical) = self.physical.get_mut(&id) {
                physical.is_named = true;
            }
        }
        self.handles.entry(handle).or_insert((id, 0)).1 += 1;
        if let Some(physical) = self.physical.get_mut(&id) {
            physical.handles += 1;
            if physical.is_named && physical.real.is_none() {
                physical.real = Some(real);
            }
        }
        handle
    }

    /// Returns whether the names of the memory at an address have a handle of the driver's, so that a further one is surplus.
    #[must_use]
    pub fn has_real_at(&self, address: Address) -> bool {
        let id = self.at(address);
        id.and_then(|id| self.physical.get(&id)?.real).is_some()
    }

    /// Records the release of a handle. Returns what is freed by it, and the driver's handle that is to be released, where the released one was a
    /// name and the last.
    pub fn released(&mut self, handle: u64) -> (Freed, Option<u64>) {
        let Some((id, times)) = self.handles.get_mut(&handle) else {
            return (Freed::default(), None);
        };
        let id = *id;
        *times -= 1;
        if *times == 0 {
            self.handles.remove(&handle);
        }
        let last = self.physical.get_mut(&id).and_then(|physical| {
            let is_last = physical.handles == 1;
            is_last.then(|| physical.real.take()).flatten()
        });
        let mut freed = Freed::default();
        self.decrement(id, |physical| &mut physical.handles, &mut freed);
        (freed, last)
    }

    /// Records a mapping of a handle's memory.
    pub fn mapped(&mut self, at: Address, bytes: u64, handle: u64) {
        let Some(&(id, _)) = self.handles.get(&handle) else {
            return;
        };
        if let Some(physical) = self.physical.get_mut(&id) {
            physical.mappings += 1;
            let mapping = Mapping {
                bytes,
                id,
                access: Vec::new(),
            };
            self.mappings.insert(at, mapping);
        }
    }

    /// Records the access to all mappings in a range.
    pub fn set_access(&mut self, at: Address, bytes: u64, access: &[Access]) {
        for (_, mapping) in self.mappings.range_mut(at..at.saturating_add(bytes)) {
            for one in access {
                mapping.access.retain(|own| !own.is_of_same(one));
                mapping.access.push(*one);
            }
        }
    }

    /// Returns the mappings in a range, and whether the memory of each is on the host.
    #[must_use]
    pub fn in_range(&self, at: Address, bytes: u64) -> Vec<(Address, u64, bool)> {
        let own = self.mappings.range(at..at.saturating_add(bytes));
        own.map(|(&at, mapping)| {
            let is_away = self.physical.get(&mapping.id).is_some_and(|of| of.is_away);
            (at, mapping.bytes, is_away)
        })
        .collect()
    }

    /// Records that all mappings in a range are gone. Returns what is freed by it.
    pub fn unmapped(&mut self, at: Address, bytes: u64) -> Freed {
        let stretch = at..at.saturating_add(bytes);
        let gone: Vec<_> = self.mappings.extract_if(stretch, |_, _| true).collect();
        let mut freed = Freed::default();
        for (_, mapping) in gone {
            self.decrement(mapping.id, |physical| &mut physical.mappings, &mut freed);
        }
        freed
    }

    /// Decrements one of a memory's counts, and adds what is freed if none remain.
    fn decrement(
        &mut self,
        id: u64,
        which: impl FnOnce(&mut Physical) -> &mut u32,
        freed: &mut Freed,
    ) {
        let Some(physical) = self.physical.get_mut(&id) else {
            return;
        };
        let count = which(physical);
        *count = count.saturating_sub(1);
        if physical.handles > 0 || physical.mappings > 0 {
            return;
        }
        freed.bytes += physical.bytes;
        freed.gone.push(id);
        self.physical.remove(&id);
    }

    /// Returns the memory that is mapped on a device and can move, and which is on the host (`is_away`) or not, by address. Memory on the device
    /// can move if its device has full access to one of its mappings, the address of which is returned: its contents are read there.
    #[must_use]
    pub fn blocks(&self, is_away: bool) -> Vec<ProgramBlock> {
        let mut first: BTreeMap<u64, Address> = BTreeMap::new();
        for (&at, mapping) in &self.mappings {
            if is_away || self.is_readable(mapping) {
                first.entry(mapping.id).or_insert(at);
            }
        }
        let blocks = first.into_iter().filter_map(|(id, at)| {
            let own = self.physical.get(&id)?;
            let location = own.properties?.location;
            let is_meant = own.is_away == is_away && location.kind == ON_DEVICE;
            is_meant.then_some(ProgramBlock {
                id,
                at,
                bytes: own.bytes,
                device: location.id,
                context: own.context,
            })
        });
        let mut blocks: Vec<_> = blocks.collect();
        blocks.sort_unstable_by_key(|block| block.at);
        blocks
    }

    /// Returns whether the memory's own device has full access to a mapping.
    fn is_readable(&self, mapping: &Mapping) -> bool {
        let physical = self.physical.get(&mapping.id);
        let device = physical.and_then(|own| Some(own.properties?.location.id));
        device.is_some_and(|device| mapping.access.contains(&Access::full(device)))
    }

    /// Returns whether an unmapping of this range takes the last mapping of memory that is on the host and has handles: its contents could not
    /// return.
    #[must_use]
    pub fn would_strand(&self, at: Address, bytes: u64) -> bool {
        let range = at..at.saturating_add(bytes);
        self.mappings.range(range.clone()).any(|(_, mapping)| {
            let own = self.physical.get(&mapping.id);
            let is_kept = own.is_some_and(|own| own.is_away && own.handles > 0);
            let mut all = self.mappings.iter();
            is_kept && !all.any(|(at, other)| other.id == mapping.id && !range.contains(at))
        })
    }

    /// Returns the mappings of memory, as they were set by the program.
    #[must_use]
    pub fn mappings_of(&self, id: u64) -> Vec<MappingPlan> {
        let own = self.mappings.iter().filter(|(_, mapping)| mapping.id == id);
        own.map(|(&at, mapping)| (at, mapping.bytes, mapping.access.clone()))
            .collect()
    }

    /// Records that memory has left the device. Returns the driver's handles that are to be released, each as often as it is listed.
    pub fn left(&mut self, id: u64) -> Vec<u64> {
        let Some(physical) = self.physical.get_mut(&id).filter(|own| !own.is_away) else {
            return Vec::new();
        };
        physical.is_away = true;
        let was_named = std::mem::replace(&mut physical.is_named, true);
        let real = physical.real.take();
        if was_named {
            return real.into_iter().collect();
        }
        let own = self.handles.iter().filter(|(_, (of, _))| *of == id);
        own.flat_map(|(handle, (_, times))| {
            std::iter::repeat_n(*handle, usize::try_from(*times).unwrap_or(0))
        })
        .collect()
    }

    /// Returns the properties and the size of memory that is on the host; `None` if it is not.
    #[must_use]
    pub fn to_create(&self, id: u64) -> Option<(Properties, u64)> {
        let own = self.physical.get(&id).filter(|own| own.is_away)?;
        Some((own.properties?, own.bytes))
    }

    /// Records that memory is on the device again, with this handle of the driver's. Returns the handle if it is to be released, since only the
    /// mappings keep the memory.
    pub fn returned(&mut self, id: u64, real: u64) -> Option<u64> {
        let Some(physical) = self.physical.get_mut(&id) else {
            return Some(real);
        };
        physical.is_away = false;
        if physical.handles == 0 {
            return Some(real);
        }
        physical.real = Some(real);
        None
    }
}

#[cfg(test)]
mod tests;
