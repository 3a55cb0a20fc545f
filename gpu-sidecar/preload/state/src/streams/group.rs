//! Launches that are measured together.

use crate::functions::{FunctionInfo, Part};

/// Largest number of launches between two marks.
pub const LAUNCHES: u32 = 16;
/// Largest expected run time between two marks, in nanoseconds.
pub const WORK_NS: u64 = 1_000_000;
/// Up to [`LAUNCHES`] launches that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchGroup {
    launches: u32,
    estimate_ns: u64,
    /// Number of these launches whose functions have no measurement.
    unmeasured: u32,
    parts: [Part; LAUNCHES as usize],
}

impl LaunchGroup {
    /// Group without a launch in it.
    pub const EMPTY: Self = Self {
        launches: 0,
        estimate_ns: 0,
        unmeasured: 0,
        parts: [(0, 0); LAUNCHES as usize],
    };

    /// Creates a group of one launch.
    #[must_use]
    pub fn of(info: FunctionInfo) -> Self {
        let mut group = Self::EMPTY;
        group.add(info);
        group
    }

    /// Adds a launch at the end.
    #[inline]
    pub fn add(&mut self, info: FunctionInfo) {
        if let Some(part) = self.parts.get_mut(self.launches as usize) {
            *part = (info.slot, info.estimate_ns);
        }
        self.launches += 1;
        self.unmeasured += u32::from(info.is_new);
        self.estimate_ns = self.estimate_ns.saturating_add(info.estimate_ns);
    }

    /// Returns the functions of the launches and what was expected of each.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        let count = self.launches.min(LAUNCHES) as usize;
        self.parts.get(..count).unwrap_or(&[])
    }

    /// Returns the number of launches.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.launches
    }

    /// Returns whether there is no launch.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.launches == 0
    }

    /// Returns the number of launches whose functions have no measurement.
    #[must_use]
    pub const fn unmeasured(&self) -> u32 {
        self.unmeasured
    }

    /// Returns the expected run time of all launches, in nanoseconds.
    #[must_use]
    pub const fn estimate_ns(&self) -> u64 {
        self.estimate_ns
    }
}
