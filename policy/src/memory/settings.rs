//! An arena's settings and why they may be refused.

use std::fmt;

use super::partition::{HALF, UNITS};

/// How blocks are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The whole memory is reserved and cut into partitions: slabs of common sizes, buddies for the others, runs
    /// of whole partitions for the largest. A model's blocks stay together (M2.10, papers 2.5).
    Partitions,
    /// One list of released blocks, taken by whoever asks for no more than they have; where none is large
    /// enough, blocks are given back to the device until there is room for a new one (M2.21, `Block`).
    FreeList,
}

/// The settings of one slot's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes for blocks; rounded down to whole partitions of 64 units. See [`arena_of`].
    pub arena: u64,
    /// Bytes of a unit: blocks are whole units. Divided by the byte scale where sizes are scaled.
    pub unit: u64,
    /// The smallest buddy block, in units; a power of two up to 64. Papers 2.5 has 16 MiB, of which a block of less
    /// than 8 wastes more than half; with 1 no block wastes more than half, as is also asked there.
    pub buddy_min: u32,
    /// How blocks are placed.
    pub rule: Rule,
}

/// Why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// A unit of no bytes.
    NoUnit,
    /// Less than one partition.
    ArenaTooSmall {
        /// Bytes of a partition.
        partition: u64,
    },
    /// Units are counted in 32 bits.
    ArenaTooLarge,
    /// Not a power of two up to 64.
    BuddyMin {
        /// What was given, in units.
        units: u32,
    },
}

/// Bytes of a unit: what the driver maps at once.
pub const UNIT: u64 = 2 << 20;

/// What the CUDA runtime keeps for itself, in bytes.
const RUNTIME: u64 = 3 << 29;

/// The arena of a slot with so many bytes of memory: less 1.5 GiB for the runtime and 5 % (papers 2.5).
#[must_use]
pub const fn arena_of(memory: u64) -> u64 {
    memory.saturating_sub(RUNTIME).saturating_sub(memory / 20)
}

impl Settings {
    /// The defaults for an arena of so many bytes: units of 2 MiB, so partitions of 128 MiB, buddies of 2 MiB
    /// and more.
    #[must_use]
    pub const fn new(arena: u64) -> Self {
        Self {
            arena,
            unit: UNIT,
            buddy_min: 1,
            rule: Rule::Partitions,
        }
    }

    /// How many partitions there are.
    ///
    /// # Errors
    /// The first reason found why an arena cannot work with these settings.
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
            Self::NoUnit => f.write_str("a unit must have at least one byte"),
            Self::ArenaTooSmall { partition } => {
                write!(
                    f,
                    "an arena needs at least one partition of {partition} bytes"
                )
            }
            Self::ArenaTooLarge => f.write_str("an arena has less than 2^32 units"),
            Self::BuddyMin { units } => write!(
                f,
                "the smallest buddy is a power of two from 1 to {UNITS} units, not {units}"
            ),
        }
    }
}

impl std::error::Error for SettingsError {}
