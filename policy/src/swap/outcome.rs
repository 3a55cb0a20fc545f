//! Inputs and results of tracking.

use std::fmt;

use super::ModelBlock;

/// Block among the arguments of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Id of the block.
    pub block: ModelBlock,
    /// Whether the kernel may write to the block. Copies and fills on the device count as launches that write.
    pub writes: bool,
    /// Whether the launch had to wait for a group of the block that had not been transferred.
    pub waited: bool,
}

/// Purpose for which a model's runs are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// This run determines the order.
    Recording,
    /// The order is known, and runs are compared with it.
    Tracked,
}

/// Result of a response for the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A run was recorded: the order is new.
    Learned,
    /// Blocks were added, freed, or written: the order was adjusted.
    Changed,
    /// The order is unchanged.
    Kept,
    /// Too much was mispredicted: the next run is recorded.
    RecordNext,
}

/// Error of an allocation with the id of an existing block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTaken {
    /// Id of the block.
    pub block: ModelBlock,
}

impl fmt::Display for BlockTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} already exists", self.block.0)
    }
}

impl std::error::Error for BlockTaken {}
