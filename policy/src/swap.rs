//! How a model comes to a slot and leaves it: in groups, in the order of its first run, while it computes already
//! (M2.5–M2.8, papers 2.6 and 2.7).
//!
//! - [`Tracking`] watches the first run of a model and learns which blocks are weights, in what order kernels touch
//!   them, what is state, and how much is scratch. It orders dirty blocks copied back before memory is taken.
//! - [`Groups`] cuts blocks into groups of the size at the [`elbow()`] of the link.
//! - [`timeline()`] tells when a request finishes whose groups are under way: compute waits only for groups that it
//!   touches.
//! - [`Sources`] keeps a model that another slot copies from where it is.
//!
//! Where blocks lie is [`crate::memory`]'s; which link a model takes, and who has to go, is decided elsewhere.

mod elbow;
mod groups;
mod order;
mod outcome;
mod records;
mod sources;
mod timeline;
mod tracking;
mod write_back;

pub use elbow::{Elbow, GROUP_MAX, GROUP_MIN, Sample, SweepError, elbow, median};
pub use groups::{Group, Groups};
pub use outcome::{BlockTaken, Phase, Touch, Verdict};
pub use sources::{
    SourceId, Sources, StartReason, StopReason, TransferAction, TransferId, TransferTaken,
};
pub use timeline::{Link, Step, Timeline, equal_groups, timeline};
pub use tracking::Tracking;
pub use write_back::{SwapAction, WrittenBy};

/// A block of a model: a small integer that the caller gives, the same wherever the model is; free again when the
/// block is freed. Not a place in memory: that is [`crate::memory::BlockId`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ModelBlock(pub u32);
