//! Settings of the packer, and the reasons why they may be refused.

use std::fmt;

use crate::tokens::{SM_WHOLE, Share};

/// Resources of a slot that pods may share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Pods share SMs and time: a pod is a rectangle of quota × SMs (M4.12).
    SpaceAndTime,
    /// Pods share time alone: every pod has all SMs while it runs (M4.17).
    TimeOnly,
    /// Pods share nothing: one pod per slot (M4.17).
    Exclusive,
}

/// Order in which the pods of a batch are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Descending area, then arrival.
    AreaDescending,
    /// Order in which the batch lists them.
    Arrival,
}

/// What becomes of the rectangle of a removed pod (M4.13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreedRule {
    /// The rectangle is joined with the free area around it, so that the free rectangles are always exactly the maximal
    /// ones. It is also remembered, so that the next pod of its function and shape gets it again.
    Joined,
    /// The rectangle becomes a free rectangle of its own, which is the best fit for the next pod of its shape. It is
    /// joined with others only when the slot is restructured.
    Kept,
}

/// Conditions under which the pods of a slot are placed anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restructuring {
    /// Number of free rectangles after a removal above which a slot is restructured.
    pub rectangles_above: usize,
    /// Share of the free area below which the largest free rectangle causes a restructuring.
    pub largest_below: Share,
    /// Whether a new layout is adopted only if its largest free rectangle is larger, or equally large with fewer
    /// rectangles. Otherwise it is adopted whenever all pods fit.
    pub only_if_better: bool,
}

/// Settings of a packer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Resources that pods may share.
    pub sharing: Sharing,
    /// Part of the window that is given to pods. A pod that requests more gets all of it, so that no other pod shares
    /// its SMs.
    pub width: Share,
    /// SMs that are given to pods, in hundredths of a percent (M4.9). More than [`SM_WHOLE`] only for tests of
    /// oversubscription.
    pub sm_limit: u32,
    /// Order in which the pods of a batch are placed.
    pub order: Order,
    /// What becomes of the rectangles of removed pods.
    pub freed: FreedRule,
    /// Conditions under which a slot is restructured.
    pub restructuring: Restructuring,
    /// Largest number of pods of a slot, which is that of the clients of an MPS server. It bounds the cost of a
    /// decision.
    pub pods_max: u32,
}

/// Reason why settings are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingsError {
    /// A setting that must not be zero is zero.
    Zero {
        /// Name of the setting.
        setting: &'static str,
    },
    /// The SM limit is larger than can be counted.
    SmLimitTooLarge {
        /// Largest limit, in hundredths of a percent.
        max: u32,
    },
}

/// Largest value of [`Settings::sm_limit`]: a hundred GPUs.
pub const SM_LIMIT_MAX: u32 = 100 * SM_WHOLE;

impl Default for Settings {
    /// Returns settings that leave a tenth of the window free and sort batches (mechanisms §4.2, §4.4).
    fn default() -> Self {
        Self {
            sharing: Sharing::SpaceAndTime,
            width: Share::from_percent(90),
            sm_limit: SM_WHOLE,
            order: Order::AreaDescending,
            freed: FreedRule::Joined,
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
    /// Returns the settings of Algorithm 2 and keep-restructure as printed: the whole window, arrival order, freed
    /// rectangles kept, and restructuring by count alone.
    #[must_use]
    pub const fn paper() -> Self {
        Self {
            sharing: Sharing::SpaceAndTime,
            width: Share::WHOLE,
            sm_limit: SM_WHOLE,
            order: Order::Arrival,
            freed: FreedRule::Kept,
            restructuring: Restructuring {
                rectangles_above: 32,
                largest_below: Share::NONE,
                only_if_better: false,
            },
            pods_max: 48,
        }
    }

    /// Checks that a packer can work with these settings.
    ///
    /// # Errors
    /// Returns the first problem found.
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
                write!(f, "sm_limit must be at most {max} hundredths of a percent")
            }
        }
    }
}

impl std::error::Error for SettingsError {}
