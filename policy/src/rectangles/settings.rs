//! How pods are packed, and why settings may be refused.

use std::fmt;

use crate::tokens::{SM_WHOLE, Share};

/// What pods may share of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// SMs and time: a pod is a rectangle of quota × SMs (M4.12).
    SpaceAndTime,
    /// Time alone: every pod has all SMs while it runs (M4.17).
    TimeOnly,
    /// Nothing: one pod a slot (M4.17).
    Exclusive,
}

/// In which order the pods of a batch are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The largest area first, then by arrival.
    AreaDescending,
    /// As they come.
    Arrival,
}

/// What becomes of the rectangle of a pod that has gone (M4.13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freed {
    /// It is joined with what is free around it, so that the free rectangles are always all the maximal
    /// ones; and it is remembered, so that the next pod of its function and shape gets it again.
    Joined,
    /// It becomes a free rectangle of its own, which the next pod of its shape fits best, and is joined with
    /// others only when the slot is restructured.
    Kept,
}

/// When the pods of a slot are placed anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restructuring {
    /// When more free rectangles than this are there after a pod has gone.
    pub rectangles_above: usize,
    /// When the largest free rectangle is less than this part of what is free.
    pub largest_below: Share,
    /// Whether the new layout is taken only if its largest free rectangle is larger, or as large and of
    /// fewer rectangles. Otherwise whenever all pods fit.
    pub only_if_better: bool,
}

/// See each field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// What pods may share.
    pub sharing: Sharing,
    /// The part of the window that is given away. A pod that asks for more has all of this, so nobody
    /// shares its SMs.
    pub width: Share,
    /// The SMs that are given away, in hundredths of a percent (M4.9). More than
    /// [`SM_WHOLE`] only for tests of oversubscription.
    pub sm_limit: u32,
    /// The order within a batch.
    pub order: Order,
    /// What becomes of freed rectangles.
    pub freed: Freed,
    /// When a slot is restructured.
    pub restructuring: Restructuring,
    /// Pods a slot can have: clients of an MPS server. It bounds what a decision costs.
    pub pods_max: u32,
}

/// Why settings are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingsError {
    /// What must not be zero is.
    Zero {
        /// The setting's name.
        setting: &'static str,
    },
    /// More SMs than can be counted.
    SmLimitTooLarge {
        /// The most, in hundredths of a percent.
        max: u32,
    },
}

/// The largest [`Settings::sm_limit`]: a hundred times a GPU.
pub const SM_LIMIT_MAX: u32 = 100 * SM_WHOLE;

impl Default for Settings {
    /// A tenth of the window stays free and batches are sorted (papers 4.2, 4.4).
    fn default() -> Self {
        Self {
            sharing: Sharing::SpaceAndTime,
            width: Share::from_percent(90),
            sm_limit: SM_WHOLE,
            order: Order::AreaDescending,
            freed: Freed::Joined,
            restructuring: Restructuring {
                rectangles_above: 32,
                largest_below: Share::from_percent(50),
                only_if_better: true,
            },
            pods_max: 48,
        }
    }
}

impl Settings {
    /// Algorithm 2 and keep-restructure as printed: the whole window, arrival order, freed rectangles kept,
    /// restructuring by count alone.
    #[must_use]
    pub const fn paper() -> Self {
        Self {
            sharing: Sharing::SpaceAndTime,
            width: Share::WHOLE,
            sm_limit: SM_WHOLE,
            order: Order::Arrival,
            freed: Freed::Kept,
            restructuring: Restructuring {
                rectangles_above: 32,
                largest_below: Share::NONE,
                only_if_better: false,
            },
            pods_max: 48,
        }
    }

    /// Whether they can be packed by.
    ///
    /// # Errors
    /// The first reason found why not.
    pub fn validate(&self) -> Result<(), SettingsError> {
        for (setting, zero) in [
            ("width", self.width.is_none()),
            ("sm_limit", self.sm_limit == 0),
            ("pods_max", self.pods_max == 0),
        ] {
            if zero {
                return Err(SettingsError::Zero { setting });
            }
        }
        if self.sm_limit > SM_LIMIT_MAX {
            return Err(SettingsError::SmLimitTooLarge { max: SM_LIMIT_MAX });
        }
        Ok(())
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { setting } => write!(f, "{setting} must not be zero"),
            Self::SmLimitTooLarge { max } => {
                write!(f, "sm_limit is at most {max} hundredths of a percent")
            }
        }
    }
}

impl std::error::Error for SettingsError {}
