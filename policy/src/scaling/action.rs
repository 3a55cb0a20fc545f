//! What the scaler orders, and why.

use super::Rate;
use super::profile::Point;
use crate::rectangles::InstanceId;

/// An order to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Pods of one shape are to be started.
    Add {
        /// The shape.
        point: Point,
        /// How many, at least one.
        count: u32,
        /// Why this shape.
        reason: AddReason,
    },
    /// A pod is to be drained and removed. It does not count any more.
    Remove {
        /// Which.
        instance: InstanceId,
        /// Why it.
        reason: RemoveReason,
    },
    /// The load is more than the most pods that are allowed can serve.
    Short {
        /// By so much.
        by: Rate,
    },
}

/// Why a shape is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddReason {
    /// It serves most for what it takes of a GPU.
    Efficient,
    /// Of those that serve what is left it serves the least.
    Rest,
}

/// Why a pod goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoveReason {
    /// The others can serve the load without it, and serve more for what they take of a GPU.
    Surplus,
}
