//! The memory of one GPU or slice, by who holds it. Bytes alone: where they lie is the business of whoever maps them.

use std::collections::BTreeMap;

use crate::Time;
use crate::ledger::{Entry, Held, Ledger, ProcessId};

/// Memory cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// There is not as much left.
    #[error("{asked} bytes asked for, {free} of {capacity} free")]
    Full {
        /// What was asked for.
        asked: u64,
        /// What is left.
        free: u64,
        /// What there is in all.
        capacity: u64,
    },
    /// The process's own limit is in the way.
    #[error("{asked} bytes asked for, {held} held, {limit} allowed")]
    Limit {
        /// What was asked for.
        asked: u64,
        /// What the process holds, its context's residue included.
        held: u64,
        /// What it may hold.
        limit: u64,
    },
    /// The process has no context here, or gives back more than it holds.
    #[error("the process holds {held} bytes")]
    NotHeld {
        /// What it holds without its context's residue.
        held: u64,
    },
    /// The process is suspended: what it holds is not on the device.
    #[error("the process is suspended, and its {held} bytes are not on the device")]
    Suspended {
        /// What it holds without its context's residue.
        held: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    /// Kept by the context itself, until the process is gone.
    residue: u64,
    allocated: u64,
    limit: u64,
    is_suspended: bool,
    since: Time,
}

impl Holder {
    /// On the device.
    const fn held(&self) -> u64 {
        if self.is_suspended {
            return 0;
        }
        self.residue + self.allocated
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Memory {
    unit: u32,
    capacity: u64,
    free: u64,
    holders: BTreeMap<ProcessId, Holder>,
}

impl Memory {
    /// Empty memory; `unit` is its number in the ledger.
    #[must_use]
    pub const fn new(unit: u32, capacity: u64) -> Self {
        Self {
            unit,
            capacity,
            free: capacity,
            holders: BTreeMap::new(),
        }
    }

    /// Bytes there are.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that nobody holds.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.free
    }

    /// Bytes that a process holds, its context's residue included.
    #[must_use]
    pub fn held(&self, process: ProcessId) -> u64 {
        self.holders.get(&process).map_or(0, Holder::held)
    }

    /// Bytes that a process has allocated, whether they are on the device or, while it is suspended, are not.
    #[must_use]
    pub fn allocated(&self, process: ProcessId) -> u64 {
        self.holders
            .get(&process)
            .map_or(0, |holder| holder.allocated)
    }

    /// A context is made, which keeps `residue` bytes; all it holds may come to `limit`.
    ///
    /// # Errors
    /// There is no room for it: nothing has changed.
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

    /// A process takes memory.
    ///
    /// # Errors
    /// There is none for it: nothing has changed.
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

    /// A process gives memory back.
    ///
    /// # Errors
    /// It does not hold as much: nothing has changed.
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

    /// All that a process holds, its context's residue included, leaves the device. Returns the bytes it has allocated.
    ///
    /// # Errors
    /// It has left already, or there is no such process.
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

    /// All that a suspended process holds comes back; one that is not suspended stays as it is.
    ///
    /// # Errors
    /// There is no room for it, or no such process: nothing has changed.
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

    /// A process is gone, and all it held is free.
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

    /// Writes down what is held at this moment, up to it.
    pub fn write_all(&mut self, now: Time, ledger: &mut Ledger) {
        for (&process, holder) in &mut self.holders {
            write(self.unit, now, process, holder, ledger);
            holder.since = now;
        }
    }

    fn check(&self, held: u64, asked: u64, limit: u64) -> Result<(), MemoryError> {
        if held.saturating_add(asked) > limit {
            return Err(MemoryError::Limit { asked, held, limit });
        }
        let free = self.free;
        if asked > free {
            let capacity = self.capacity;
            return Err(MemoryError::Full {
                asked,
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
        how: impl FnOnce(&mut Holder),
    ) {
        self.write(now, process, ledger);
        if let Some(holder) = self.holders.get_mut(&process) {
            self.free += holder.held();
            how(holder);
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

/// Writes down what a process has held until now.
fn write(unit: u32, now: Time, process: ProcessId, holder: &Holder, ledger: &mut Ledger) {
    ledger.add(Entry {
        held: Held::Memory { unit },
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
    fn memory_is_given_within_the_limit_and_comes_back() {
        let mut ledger = Ledger::default();
        let mut memory = Memory::new(0, 1_000);
        let (one, two) = (ProcessId(1), ProcessId(2));
        memory.admit(Time(0), one, 100, Some(500)).unwrap();
        memory.admit(Time(0), two, 100, None).unwrap();
        memory.allocate(Time(5), one, 400, &mut ledger).unwrap();
        assert_eq!(
            memory.allocate(Time(5), one, 1, &mut ledger),
            Err(MemoryError::Limit {
                asked: 1,
                held: 500,
                limit: 500
            })
        );
        assert_eq!(
            memory.allocate(Time(5), two, 401, &mut ledger),
            Err(MemoryError::Full {
                asked: 401,
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
            "901 bytes asked for, 900 of 1000 free"
        );
        let amounts: Vec<_> = ledger
            .take()
            .iter()
            .map(|entry| (entry.amount, entry.from.0, entry.to.0))
            .collect();
        assert_eq!(amounts, [(100, 0, 5), (500, 5, 7), (350, 7, 9)]);
    }

    #[test]
    fn what_is_suspended_leaves_room_and_comes_back_if_there_is_any() {
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
            asked: 600,
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
