//! Memory that the program creates and maps itself (`cuMemCreate`, `cuMemMap`). It counts from its creation
//! until neither a handle nor a mapping of it remains. Imported memory counts in the process that created it.

use std::collections::BTreeMap;

use crate::Address;

/// Physical memory, with the number of its handles and mappings.
#[derive(Debug)]
struct Physical {
    /// Bytes counted for the memory; 0 if it was imported.
    bytes: u64,
    handles: u32,
    mappings: u32,
}

/// Memory created and mapped by the program. Its lock is held over the driver's calls, which are short and which the driver
/// serialises itself, so that a reused handle or address is never mistaken for the previous one.
#[derive(Debug, Default)]
pub struct Program {
    physical: BTreeMap<u64, Physical>,
    /// Memory of each handle, and the number of times it has to be released. 0 is a valid handle.
    handles: BTreeMap<u64, (u64, u32)>,
    /// Size in bytes and memory of each mapping, by its first address.
    mappings: BTreeMap<Address, (u64, u64)>,
    next: u64,
}

impl Program {
    /// Records a created or imported handle, which counts for `bytes`.
    pub fn created(&mut self, handle: u64, bytes: u64) {
        if let Some((physical, times)) = self.handles.get_mut(&handle) {
            // The driver has returned an existing handle.
            *times += 1;
            if let Some(physical) = self.physical.get_mut(physical) {
                physical.handles += 1;
                physical.bytes = physical.bytes.saturating_add(bytes);
            }
            return;
        }
        self.next += 1;
        let physical = Physical {
            bytes,
            handles: 1,
            mappings: 0,
        };
        self.physical.insert(self.next, physical);
        self.handles.insert(handle, (self.next, 1));
    }

    /// Returns the memory mapped at an address.
    fn at(&self, address: Address) -> Option<u64> {
        let (&at, &(bytes, physical)) = self.mappings.range(..=address).next_back()?;
        (address - at < bytes).then_some(physical)
    }

    /// Records a handle retained for the memory at an address.
    pub fn retained(&mut self, handle: u64, address: Address) {
        let Some(id) = self.at(address) else {
            return;
        };
        self.handles.entry(handle).or_insert((id, 0)).1 += 1;
        if let Some(physical) = self.physical.get_mut(&id) {
            physical.handles += 1;
        }
    }

    /// Records the release of a handle. Returns the bytes that are freed by it.
    pub fn released(&mut self, handle: u64) -> u64 {
        let Some((id, times)) = self.handles.get_mut(&handle) else {
            return 0;
        };
        let id = *id;
        *times -= 1;
        if *times == 0 {
            self.handles.remove(&handle);
        }
        self.decrement(id, |physical| &mut physical.handles)
    }

    /// Records a mapping of a handle's memory.
    pub fn mapped(&mut self, at: Address, bytes: u64, handle: u64) {
        let Some(&(id, _)) = self.handles.get(&handle) else {
            return;
        };
        if let Some(physical) = self.physical.get_mut(&id) {
            physical.mappings += 1;
            self.mappings.insert(at, (bytes, id));
        }
    }

    /// Records that all mappings in a range are gone. Returns the bytes that are freed by it.
    pub fn unmapped(&mut self, at: Address, bytes: u64) -> u64 {
        let stretch = at..at.saturating_add(bytes);
        let gone: Vec<_> = self.mappings.extract_if(stretch, |_, _| true).collect();
        let gone = gone.into_iter();
        gone.map(|(_, (_, id))| self.decrement(id, |physical| &mut physical.mappings))
            .sum()
    }

    /// Decrements one of a memory's counts. Returns the bytes that are freed if none remain.
    fn decrement(&mut self, id: u64, which: impl FnOnce(&mut Physical) -> &mut u32) -> u64 {
        let Some(physical) = self.physical.get_mut(&id) else {
            return 0;
        };
        let count = which(physical);
        *count = count.saturating_sub(1);
        if physical.handles > 0 || physical.mappings > 0 {
            return 0;
        }
        let bytes = physical.bytes;
        self.physical.remove(&id);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_keeps_memory_whose_handle_is_released() {
        let mut program = Program::default();
        program.created(0, 100);
        program.mapped(1_000, 100, 0);
        assert_eq!(program.released(0), 0);
        // The handle is unknown now.
        assert_eq!(program.released(0), 0);
        program.retained(0, 1_050);
        assert_eq!(program.unmapped(1_000, 100), 0);
        assert_eq!(program.released(0), 100);
        assert!(program.physical.is_empty() && program.handles.is_empty());
    }

    #[test]
    fn one_unmap_may_remove_several_mappings() {
        let mut program = Program::default();
        for handle in 1..=3 {
            program.created(handle, 10);
            program.mapped(handle * 10, 10, handle);
            assert_eq!(program.released(handle), 0);
        }
        assert_eq!(program.unmapped(10, 20), 20);
        assert_eq!(program.unmapped(10, 20), 0);
        assert_eq!(program.unmapped(30, 10), 10);
    }

    #[test]
    fn aliases_count_once_and_imports_never() {
        let mut program = Program::default();
        program.created(5, 64);
        program.mapped(1_000, 64, 5);
        program.mapped(2_000, 64, 5);
        program.retained(6, 2_001);
        assert_eq!(program.released(5), 0);
        assert_eq!(program.unmapped(1_000, 64), 0);
        assert_eq!(program.unmapped(2_000, 64), 0);
        assert_eq!(program.released(6), 64);
        program.created(7, 0);
        program.mapped(1_000, 64, 7);
        assert_eq!(program.released(7), 0);
        assert_eq!(program.unmapped(1_000, 64), 0);
        assert!(program.physical.is_empty());
        // Unknown handles and addresses count for nothing.
        program.mapped(1, 1, 99);
        program.retained(1, 99);
        assert_eq!(program.released(1) + program.unmapped(0, 10_000), 0);
    }
}
