//! Settings of an arena, and the reasons why they may be refused.

use std::fmt;

use super::partition::{HALF, UNITS};

/// Rule by which blocks are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The whole memory is reserved and cut into partitions: slabs for common sizes, buddies for other sizes, and runs
    /// of whole partitions for the largest. The blocks of a model stay together (M2.10, mechanisms §2.5).
    Partitions,
    /// Released blocks are kept in one list and serve requests of the same size or smaller. If none is large enough,
    /// blocks are given back to the device until there is room for a new one (M2.21, `Block`).
    FreeList,
}

/// Settings of one slot's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Size of the arena in bytes, rounded down to whole partitions of 64 units; see [`arena_of`].
    pub arena: u64,
    /// Size of a unit in bytes: blocks are whole units. Divided by the byte scale where sizes are scaled.
    pub unit: u64,
    /// Smallest buddy block, in units; a power of two up to 64. With 1, no block wastes more than half of itself (mechanisms
    /// §2.5); with 8, that is 16 MiB, a block of less than half of that would.
    pub buddy_min: u32,
    /// Rule by which blocks are placed.
    pub rule: Rule,
}

/// Reason why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// A unit has no bytes.
    NoUnit,
    /// The arena is smaller than one partition.
    ArenaTooSmall {
        /// Size of a partition, in bytes.
        partition: u64,
    },
    /// The arena has more units than 32 bits can count.
    ArenaTooLarge,
    /// The smallest buddy is not a power of two up to 64.
    BuddyMin {
        /// Value of [`Settings::buddy_min`], in units.
        units: u32,
    },
}

/// Size of a unit in bytes: what the driver maps at once.
pub const UNIT: u64 = 2 << 20;

/// Memory that the CUDA runtime keeps for itself, in bytes.
const RUNTIME: u64 = 3 << 29;

/// Returns the arena of a slot with `memory` bytes: the memory less 1.5 GiB for the runtime and 5 % (mechanisms §2.5).
#[must_use]
pub const fn arena_of(memory: u64) -> u64 {
    memory.saturating_sub(RUNTIME).saturating_sub(memory / 20)
}

impl Settings {
    /// Returns the default settings for an arena of `arena` bytes: units of 2 MiB, so partitions of 128 MiB, and
    /// buddies of 2 MiB and more.
    #[must_use]
    pub const fn new(arena: u64) -> Self {
        Self {
            arena,
            unit: UNIT,
            buddy_min: 1,
            rule: Rule::Partitions,
        }
    }

    /// Returns the number of partitions.
    ///
    /// # Errors
    /// Returns the first reason found why an arena cannot work with these settings.
    pub fn partitions(&self) -> Result<u32, SettingsError> {
        if self.unit == 0 {
            return Err(SettingsError::NoUnit);
        }
        if !self.buddy_min.is_power_of_two() || self.buddy_min > UNITS {
            return Err(SettingsError::BuddyMin {
                units: self.buddy_min,
            });
        }
        let partition = self.unit.saturating_mul(u64::from(UNITS));
        match u32::try_from(self.arena / partition) {
            Ok(0) => Err(SettingsError::ArenaTooSmall { partition }),
            Ok(partitions) if partitions < u32::MAX / (2 * HALF) => Ok(partitions),
            _ => Err(SettingsError::ArenaTooLarge),
        }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUnit => f.write_str("unit must be at least 1 byte"),
            Self::ArenaTooSmall { partition } => {
                write!(
                    f,
                    "arena must be at least one partition of {partition} bytes"
                )
            }
            Self::ArenaTooLarge => f.write_str("arena must have fewer than 2^32 units"),
            Self::BuddyMin { units } => write!(
                f,
                "buddy_min must be a power of two from 1 to {UNITS} units, not {units}"
            ),
        }
    }
}

impl std::error::Error for SettingsError {}
