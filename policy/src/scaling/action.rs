//! Orders of the scaler, with their reasons.

use super::Rate;
use super::profile::Point;
use crate::rectangles::InstanceId;

/// Order to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Start pods of one shape.
    Add {
        /// Shape of the pods.
        point: Point,
        /// Number of pods to start; at least one.
        count: u32,
        /// Reason for this shape.
        reason: AddReason,
    },
    /// Drain and remove a pod. It no longer counts.
    Remove {
        /// Id of the pod.
        instance: InstanceId,
        /// Reason for removing this pod.
        reason: RemoveReason,
    },
    /// The load exceeds what the largest allowed number of pods can serve.
    Shortfall {
        /// Excess of the load.
        by: Rate,
    },
}

/// Reason why a shape is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddReason {
    /// The shape serves the most for the part of a GPU that it takes.
    Efficient,
    /// Among the shapes that serve the rest of the gap, this one serves the least.
    Rest,
}

/// Reason why a pod is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoveReason {
    /// The other pods can serve the load without it, and serve more for the part of a GPU that they take.
    Surplus,
}
