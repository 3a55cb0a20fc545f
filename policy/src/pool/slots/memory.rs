//! The memory of one slot, counted in bytes.
//!
//! The decisions only need to know whether `bytes` are free and how many more would have to be freed, so an allocator
//! of blocks can take the place of this count.

#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    capacity: u64,
    /// Bytes taken by models.
    used: u64,
    /// Bytes taken permanently by context residues.
    residue: u64,
}

impl Memory {
    pub(super) const fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            residue: 0,
        }
    }

    /// Changes the capacity. If more is taken, nothing is free until it has left.
    pub(super) const fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    pub(super) const fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used + self.residue)
    }

    pub(super) const fn used(&self) -> u64 {
        self.used
    }

    pub(super) const fn residue(&self) -> u64 {
        self.residue
    }

    /// Returns how many bytes have to be freed to make room for `bytes`.
    pub(super) const fn need(&self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        (self.used + self.residue)
            .saturating_add(bytes)
            .saturating_sub(self.capacity)
    }

    /// Returns whether `bytes` fit while no model is on the slot.
    pub(super) const fn holds(&self, bytes: u64) -> bool {
        bytes <= self.capacity.saturating_sub(self.residue)
    }

    pub(super) const fn take(&mut self, bytes: u64) {
        self.used += bytes;
    }

    pub(super) const fn give(&mut self, bytes: u64) {
        self.used -= bytes;
    }

    pub(super) const fn take_for_good(&mut self, bytes: u64) {
        self.residue += bytes;
    }

    pub(super) const fn give_residue(&mut self, bytes: u64) {
        self.residue -= bytes;
    }
}

/// Recent busy time, which is halved at every half-life.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    level: u64,
    period: u64,
}

impl Load {
    pub(super) const fn new() -> Self {
        Self {
            level: 0,
            period: 0,
        }
    }

    pub(super) const fn at(&self, period: u64) -> u64 {
        let passed = period.saturating_sub(self.period);
        if passed < 64 { self.level >> passed } else { 0 }
    }

    pub(super) const fn add(&mut self, period: u64, busy: u64) {
        self.level = self.at(period).saturating_add(busy);
        if period > self.period {
            self.period = period;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_need_is_what_exceeds_the_free_memory() {
        let mut memory = Memory::new(100);
        memory.take_for_good(10);
        memory.take(60);
        assert_eq!(
            (memory.free(), memory.need(20), memory.need(50)),
            (30, 0, 20)
        );
        assert!(memory.holds(90) && !memory.holds(91));
        memory.give(60);
        assert_eq!(memory.need(90), 0);
    }

    #[test]
    fn past_load_is_halved_at_each_half_life() {
        let mut load = Load::new();
        load.add(0, 800);
        assert_eq!(
            [load.at(0), load.at(1), load.at(3), load.at(100)],
            [800, 400, 100, 0]
        );
        load.add(1, 10);
        assert_eq!(load.at(2), 205);
    }
}
