//! What the packer decides, and why.

use std::fmt;

use super::shape::{InstanceId, Rectangle, SlotId};

/// Where a pod goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The slot.
    pub slot: SlotId,
    /// What it has of it.
    pub rectangle: Rectangle,
    /// Why there.
    pub reason: PlaceReason,
}

/// Why a pod goes where it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceReason {
    /// A pod of the same function and shape left this rectangle.
    Reused,
    /// Of the free rectangles that are large enough, on slots with memory, it leaves the least area.
    BestArea,
    /// The caller said that the pod is on this slot.
    Told,
}

/// What became of a pod of a batch, or of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The pod has a place.
    Place {
        /// Which.
        instance: InstanceId,
        /// Where.
        placement: Placement,
    },
    /// The pod has none.
    Refuse {
        /// Which.
        instance: InstanceId,
        /// Why not.
        reason: Refusal,
    },
    /// The pod was on a slot that has gone.
    Lost {
        /// Which.
        instance: InstanceId,
    },
}

/// What came of a pod's going.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed {
    /// Where it was.
    pub slot: SlotId,
    /// Whether the pods that stay there have other rectangles now. Nothing moves: rectangles are bookkeeping.
    pub restructured: bool,
}

/// Why a pod or slot is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No slot has a free rectangle that is large enough: a new slot is required.
    NoArea,
    /// Slots have rectangles that are large enough, but none of these slots has the memory.
    NoMemory,
    /// Ids are indices: they have to be below this.
    IdTooLarge {
        /// The bound.
        bound: u32,
    },
    /// The pod is placed already.
    InstanceTaken,
    /// The slot is there already.
    SlotTaken,
    /// There is no such slot.
    NoSuchSlot,
    /// A pod must have a part of the window.
    NoQuota,
    /// A pod must have SMs, and must fit on an empty slot.
    SmOutOfRange {
        /// What there is, in hundredths of a percent.
        limit: u32,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArea => f.write_str("no slot has a free rectangle that is large enough"),
            Self::NoMemory => f.write_str("no slot with a free rectangle has the memory"),
            Self::IdTooLarge { bound } => write!(f, "ids must be below {bound}"),
            Self::InstanceTaken => f.write_str("the instance is placed already"),
            Self::SlotTaken => f.write_str("the slot is there already"),
            Self::NoSuchSlot => f.write_str("there is no such slot"),
            Self::NoQuota => f.write_str("a pod must request a part of the window"),
            Self::SmOutOfRange { limit } => write!(
                f,
                "a pod has between 1 and {limit} hundredths of a percent of the SMs"
            ),
        }
    }
}

impl std::error::Error for Refusal {}
