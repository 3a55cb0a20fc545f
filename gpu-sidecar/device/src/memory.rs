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
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    /// Kept by the context itself, until the process is gone.
    residue: u64,
    allocated: u64,
    limit: u64,
    since: Time,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Memory {
    unit: u32,
    capacity: u64,
    holders: BTreeMap<ProcessId, Holder>,
}

impl Memory {
    /// Empty memory; `unit` is its number in the ledger.
    #[must_use]
    pub const fn new(unit: u32, capacity: u64) -> Self {
        Self {
            unit,
            capacity,
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
    pub fn free(&self) -> u64 {
        let held: u64 = self
            .holders
            .values()
            .map(|holder| holder.residue + holder.allocated)
            .sum();
        self.capacity - held
    }

    /// Bytes that a process holds, its context's residue included.
    #[must_use]
    pub fn held(&self, process: ProcessId) -> u64 {
        self.holders
            .get(&process)
            .map_or(0, |holder| holder.residue + holder.allocated)
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
            since: now,
        };
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
        let Some(holder) = self.holders.get(&process).copied() else {
            return Err(MemoryError::NotHeld { held: 0 });
        };
        self.check(holder.residue + holder.allocated, bytes, holder.limit)?;
        self.set(now, process, holder.allocated + bytes, ledger);
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
        let held = self
            .holders
            .get(&process)
            .map_or(0, |holder| holder.allocated);
        let left = held
            .checked_sub(bytes)
            .ok_or(MemoryError::NotHeld { held })?;
        self.set(now, process, left, ledger);
        Ok(())
    }

    /// A process is gone, and all it held is free.
    pub fn dismiss(&mut self, now: Time, process: ProcessId, ledger: &mut Ledger) {
        self.write(now, process, ledger);
        self.holders.remove(&process);
    }

    /// Writes down what is held at this moment, up to it.
    pub fn write_all(&mut self, now: Time, ledger: &mut Ledger) {
        let holders: Vec<_> = self.holders.keys().copied().collect();
        for process in holders {
            self.write(now, process, ledger);
            if let Some(holder) = self.holders.get_mut(&process) {
                holder.since = now;
            }
        }
    }

    fn check(&self, held: u64, asked: u64, limit: u64) -> Result<(), MemoryError> {
        if held.saturating_add(asked) > limit {
            return Err(MemoryError::Limit { asked, held, limit });
        }
        let free = self.free();
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

    fn set(&mut self, now: Time, process: ProcessId, allocated: u64, ledger: &mut Ledger) {
        self.write(now, process, ledger);
        if let Some(holder) = self.holders.get_mut(&process) {
            holder.allocated = allocated;
            holder.since = now;
        }
    }

    fn write(&self, now: Time, process: ProcessId, ledger: &mut Ledger) {
        if let Some(holder) = self.holders.get(&process) {
            ledger.add(Entry {
                held: Held::Memory { unit: self.unit },
                process,
                work: None,
                amount: holder.residue + holder.allocated,
                from: holder.since,
                to: now,
            });
        }
    }
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
}
