//! Decisions of the packer, with their reasons.

use std::fmt;

use super::shape::{InstanceId, Rectangle, SlotId};

/// Place of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Slot on which the pod is placed.
    pub slot: SlotId,
    /// Rectangle of the slot that the pod takes.
    pub rectangle: Rectangle,
    /// Reason for the choice of the place.
    pub reason: PlaceReason,
}

/// Reason why a pod is placed where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceReason {
    /// A pod of the same function and shape left this rectangle.
    Reused,
    /// Among the free rectangles that are large enough, on slots with the memory, this one leaves the least area.
    BestArea,
    /// The caller reported that the pod is on this slot.
    Reported,
}

/// Outcome for a pod of a batch, or of a slot that is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The pod has a place.
    Place {
        /// Id of the pod.
        instance: InstanceId,
        /// Place of the pod.
        placement: Placement,
    },
    /// The pod has no place.
    Refuse {
        /// Id of the pod.
        instance: InstanceId,
        /// Reason why the pod has no place.
        reason: Refusal,
    },
    /// The pod was on a slot that has been removed.
    Lost {
        /// Id of the pod.
        instance: InstanceId,
    },
}

/// Result of removing a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removal {
    /// Slot on which the pod was.
    pub slot: SlotId,
    /// Whether the remaining pods of the slot have other rectangles now. Nothing moves physically: rectangles are
    /// bookkeeping.
    pub restructured: bool,
}

/// Reason why a pod or slot is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No slot has a free rectangle that is large enough: a new slot is required.
    NoArea,
    /// Slots have rectangles that are large enough, but none of these slots has the memory.
    NoMemory,
    /// The id is not below this bound; ids are indices into tables.
    IdTooLarge {
        /// Exclusive upper bound of the id.
        bound: u32,
    },
    /// The pod is already placed.
    InstanceTaken,
    /// A slot of this id already exists.
    SlotTaken,
    /// No slot of this id exists.
    NoSuchSlot,
    /// The pod requests no part of the window.
    NoQuota,
    /// The pod requests no SMs, or more than an empty slot has.
    SmOutOfRange {
        /// Largest number of SMs, in hundredths of a percent.
        limit: u32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArea => f.write_str("no slot has a free rectangle that is large enough"),
            Self::NoMemory => {
                f.write_str("no slot with a large enough free rectangle has enough memory")
            }
            Self::IdTooLarge { bound } => write!(f, "ids must be below {bound}"),
            Self::InstanceTaken => f.write_str("instance is already placed"),
            Self::SlotTaken => f.write_str("slot already exists"),
            Self::NoSuchSlot => f.write_str("slot does not exist"),
            Self::NoQuota => f.write_str("quota must not be zero"),
            Self::SmOutOfRange { limit } => write!(
                f,
                "sm must be between 1 and {limit} hundredths of a percent"
            ),
        }
    }
}

impl std::error::Error for Refusal {}
