//! What tracking is told, and what it answers.

use std::fmt;

use super::ModelBlock;

/// A block among the arguments of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Which.
    pub block: ModelBlock,
    /// Whether the kernel may write to it. Copies and fills on the device are launches that do.
    pub writes: bool,
    /// Whether it had to wait for a group of it that was not there.
    pub waited: bool,
}

/// What a model's runs are watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// This run tells the order.
    Recording,
    /// The order is known.
    Tracked,
}

/// What a response brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A run was recorded: the order is new.
    Learned,
    /// Blocks came, went or were written: the order was mended.
    Changed,
    /// All as before.
    Kept,
    /// Too much was mispredicted: the next run is recorded.
    RecordNext,
}

/// There is a block of that id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTaken {
    /// Which.
    pub block: ModelBlock,
}

impl fmt::Display for BlockTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} is there already", self.block.0)
    }
}

impl std::error::Error for BlockTaken {}
