//! Device memory of one GPU or slice, by the processes that hold it. Only amounts are modelled; addresses are assigned by the
//! user of this crate.

use std::collections::BTreeMap;

use crate::Time;
use crate::ledger::{Entry, Ledger, ProcessId, Resource};

/// Reason for which memory cannot be allocated, freed or moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The device has not enough free memory.
    #[error("{requested} bytes requested, {free} of {capacity} free")]
    Full {
        /// Number of bytes requested.
        requested: u64,
        /// Number of free bytes.
        free: u64,
        /// Size of the memory in bytes.
        capacity: u64,
    },
    /// The process would exceed its own limit.
    #[error("{requested} bytes requested, {held} held, {limit} allowed")]
    Limit {
        /// Number of bytes requested.
        requested: u64,
        /// Bytes that the process holds, its context's residue included.
        held: u64,
        /// Limit of the process in bytes.
        limit: u64,
    },
    /// The process has no context here, or frees more than it holds.
    #[error("the process holds only {held} bytes")]
    NotHeld {
        /// Bytes that the process holds, without its context's residue.
        held: u64,
    },
    /// The process is suspended, so its memory is not on the device.
    #[error("the process is suspended, and its {held} bytes are not on the device")]
    Suspended {
        /// Bytes that the process holds, without its context's residue.
        held: u64,
    },
}

/// Memory of one process.
#[derive(Clone, Copy, Debug)]
struct Holder {
    /// Bytes that the context occupies by itself until the process ends.
    residue: u64,
    allocated: u64,
    limit: u64,
    is_suspended: bool,
    since: Time,
}

impl Holder {
    /// Returns the bytes held on the device.
    const fn held(&self) -> u64 {
        if self.is_suspended {
            return 0;
        }
        self.residue + self.allocated
    }
}

/// Device memory of one GPU or slice, by process; see the [module](self).
#[derive(Clone, Debug)]
pub struct Memory {
    unit: u32,
    capacity: u64,
    free: u64,
    holders: BTreeMap<ProcessId, Holder>,
}

impl Memory {
    /// Creates empty memory with a capacity in bytes; `unit` is its number in the ledger.
    #[must_use]
    pub const fn new(unit: u32, capacity: u64) -> Self {
        Self {
            unit,
            capacity,
            free: capacity,
            holders: BTreeMap::new(),
        }
    }

    /// Returns the size of the memory in bytes.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the number of free bytes.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.free
    }

    /// Returns the bytes that a process holds on the device, its context's residue included.
    #[must_use]
    pub fn held(&self, process: ProcessId) -> u64 {
        self.holders.get(&process).map_or(0, Holder::held)
    }

    /// Returns the bytes that a process has allocated, on the device or, while it is suspended, elsewhere.
    #[must_use]
    pub fn allocated(&self, process: ProcessId) -> u64 {
        self.holders
            .get(&process)
            .map_or(0, |holder| holder.allocated)
    }

    /// Creates a context which occupies `residue` bytes. All memory of the process is bounded by `limit`.
    ///
    /// # Errors
    ///
    /// Returns an error, without effect, if there is no room.
    pub fn admit(
        &mut self,
        now: Time,
        process: ProcessId,
        residue: u64,
        limit: Option<u64>,
    ) -> Result<(), MemoryError> {
        let limit = limit.unwrap_or(self.capacity);
        self.check(0, residue, limit)?;
        let holder = Holder {
            residue,
            allocated: 0,
            limit,
            is_suspended: false,
            since: now,
        };
        self.free -= residue;
        self.holders.insert(process, holder);
        Ok(())
    }

    /// Allocates memory for a process.
    ///
    /// # Errors
    ///
    /// Returns an error, without effect, if there is no room or the process is suspended or unknown.
    pub fn allocate(
        &mut self,
        now: Time,
        process: ProcessId,
        bytes: u64,
        ledger: &mut Ledger,
    ) -> Result<(), MemoryError> {
        let holder = self.on_device(process)?;
        self.check(holder.held(), bytes, holder.limit)?;
        let allocated = holder.allocated + bytes;
        self.change(now, process, ledger, |holder| holder.allocated = allocated);
        Ok(())
    }

    /// Frees memory of a process.
    ///
    /// # Errors
    ///
    /// Returns an error, without effect, if the process holds less, is suspended or unknown.
    pub fn release(
        &mut self,
        now: Time,
        process: ProcessId,
        bytes: u64,
        ledger: &mut Ledger,
    ) -> Result<(), MemoryError> {
        let held = self.on_device(process)?.allocated;
        let left = held
            .checked_sub(bytes)
            .ok_or(MemoryError::NotHeld { held })?;
        self.change(now, process, ledger, |holder| holder.allocated = left);
        Ok(())
    }

    /// Moves all memory of a process off the device, its context's residue included. Returns the bytes that it has allocated.
    ///
    /// # Errors
    ///
    /// Returns an error if the process is already suspended or unknown.
    pub fn suspend(
        &mut self,
        now: Time,
        process: ProcessId,
        ledger: &mut Ledger,
    ) -> Result<u64, MemoryError> {
        let allocated = self.on_device(process)?.allocated;
        self.change(now, process, ledger, |holder| holder.is_suspended = true);
        Ok(allocated)
    }

    /// Moves all memory of a suspended process back to the device. Does nothing if the process is not suspended.
    ///
    /// # Errors
    ///
    /// Returns an error, without effect, if there is no room or the process is unknown.
    pub fn resume(
        &mut self,
        now: Time,
        process: ProcessId,
        ledger: &mut Ledger,
    ) -> Result<(), MemoryError> {
        let Some(holder) = self.holders.get(&process).copied() else {
            return Err(MemoryError::NotHeld { held: 0 });
        };
        if holder.is_suspended {
            self.check(0, holder.residue + holder.allocated, holder.limit)?;
            self.change(now, process, ledger, |holder| holder.is_suspended = false);
        }
        Ok(())
    }

    /// Removes a process and frees all its memory.
    pub fn dismiss(&mut self, now: Time, process: ProcessId, ledger: &mut Ledger) {
        self.write(now, process, ledger);
        if let Some(holder) = self.holders.remove(&process) {
            self.free += holder.held();
        }
    }

    fn on_device(&self, process: ProcessId) -> Result<Holder, MemoryError> {
        match self.holders.get(&process) {
            None => Err(MemoryError::NotHeld { held: 0 }),
            Some(holder) if holder.is_suspended => Err(MemoryError::Suspended {
                held: holder.allocated,
            }),
            Some(holder) => Ok(*holder),
        }
    }

    /// Adds ledger entries for all memory held now, ending now.
    pub fn write_all(&mut self, now: Time, ledger: &mut Ledger) {
        for (&process, holder) in &mut self.holders {
            write(self.unit, now, process, holder, ledger);
            holder.since = now;
        }
    }

    fn check(&self, held: u64, requested: u64, limit: u64) -> Result<(), MemoryError> {
        if held.saturating_add(requested) > limit {
            return Err(MemoryError::Limit {
                requested,
                held,
                limit,
            });
        }
        let free = self.free;
        if requested > free {
            let capacity = self.capacity;
            return Err(MemoryError::Full {
                requested,
                free,
                capacity,
            });
        }
        Ok(())
    }

    fn change(
        &mut self,
        now: Time,
        process: ProcessId,
        ledger: &mut Ledger,
        f: impl FnOnce(&mut Holder),
    ) {
        self.write(now, process, ledger);
        if let Some(holder) = self.holders.get_mut(&process) {
            self.free += holder.held();
            f(holder);
            self.free -= holder.held();
            holder.since = now;
        }
    }

    fn write(&self, now: Time, process: ProcessId, ledger: &mut Ledger) {
        if let Some(holder) = self.holders.get(&process) {
            write(self.unit, now, process, holder, ledger);
        }
    }
}

/// Adds a ledger entry for the memory that a process has held until now.
fn write(unit: u32, now: Time, process: ProcessId, holder: &Holder, ledger: &mut Ledger) {
    ledger.add(Entry {
        resource: Resource::Memory { unit },
        process,
        work: None,
        amount: holder.held(),
        from: holder.since,
        to: now,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_allocated_within_the_limit_and_freed() {
        let mut ledger = Ledger::default();
        let mut memory = Memory::new(0, 1_000);
        let (one, two) = (ProcessId(1), ProcessId(2));
        memory.admit(Time(0), one, 100, Some(500)).unwrap();
        memory.admit(Time(0), two, 100, None).unwrap();
        memory.allocate(Time(5), one, 400, &mut ledger).unwrap();
        assert_eq!(
            memory.allocate(Time(5), one, 1, &mut ledger),
            Err(MemoryError::Limit {
                requested: 1,
                held: 500,
                limit: 500
            })
        );
        assert_eq!(
            memory.allocate(Time(5), two, 401, &mut ledger),
            Err(MemoryError::Full {
                requested: 401,
                free: 400,
                capacity: 1_000
            })
        );
        memory.release(Time(7), one, 150, &mut ledger).unwrap();
        assert_eq!(
            memory.release(Time(7), one, 251, &mut ledger),
            Err(MemoryError::NotHeld { held: 250 })
        );
        memory.dismiss(Time(9), one, &mut ledger);
        assert_eq!((memory.held(one), memory.free()), (0, 900));
        assert_eq!(
            memory
                .admit(Time(9), ProcessId(3), 901, None)
                .unwrap_err()
                .to_string(),
            "901 bytes requested, 900 of 1000 free"
        );
        let amounts: Vec<_> = ledger
            .take()
            .iter()
            .map(|entry| (entry.amount, entry.from.0, entry.to.0))
            .collect();
        assert_eq!(amounts, [(100, 0, 5), (500, 5, 7), (350, 7, 9)]);
    }

    #[test]
    fn a_suspended_process_frees_its_room_and_resumes_if_there_is_room() {
        let mut ledger = Ledger::default();
        let mut memory = Memory::new(0, 1_000);
        let (one, two) = (ProcessId(1), ProcessId(2));
        memory.admit(Time(0), one, 100, None).unwrap();
        memory.allocate(Time(0), one, 500, &mut ledger).unwrap();
        assert_eq!(memory.suspend(Time(2), one, &mut ledger), Ok(500));
        assert_eq!((memory.held(one), memory.allocated(one)), (0, 500));
        let away = Err(MemoryError::Suspended { held: 500 });
        assert_eq!(memory.allocate(Time(3), one, 1, &mut ledger), away);
        assert_eq!(memory.release(Time(3), one, 1, &mut ledger), away);
        memory.admit(Time(3), two, 401, None).unwrap();
        let full = MemoryError::Full {
            requested: 600,
            free: 599,
            capacity: 1_000,
        };
        assert_eq!(memory.resume(Time(4), one, &mut ledger), Err(full));
        memory.dismiss(Time(5), two, &mut ledger);
        memory.resume(Time(5), one, &mut ledger).unwrap();
        assert_eq!((memory.held(one), memory.free()), (600, 400));
        memory.dismiss(Time(7), one, &mut ledger);
        let amounts: Vec<_> = ledger
            .take()
            .iter()
            .map(|entry| (entry.amount, entry.from.0, entry.to.0))
            .collect();
        assert_eq!(amounts, [(600, 0, 2), (401, 3, 5), (600, 5, 7)]);
    }
}
