//! How a model is swapped into a slot and out of it: in groups, in the order of its first run, while it already
//! computes (M2.5–M2.8, mechanisms §2.6 and §2.7).
//!
//! - [`Tracking`] observes the first run of a model and learns which blocks are weights, in what order kernels touch
//!   them, what is state, and how much is scratch. It orders dirty blocks to be copied back before memory is taken.
//! - [`Groups`] cuts blocks into groups of the size at the [`elbow()`] of the link.
//! - [`timeline()`] computes when a request finishes whose groups are being transferred: compute waits only for the
//!   groups that it touches.
//! - [`Sources`] keeps a model that another slot copies from in place.
//!
//! The placement of blocks is decided in [`crate::memory`]; which link a model takes, and which models are evicted, is
//! decided elsewhere.
//!
//! # Examples
//!
//! ```
//! use std::num::NonZeroU64;
//!
//! use policy::Span;
//! use policy::swap::{Groups, ModelBlock, Step, timeline};
//!
//! let mut groups = Groups::new(NonZeroU64::new(4 << 20).unwrap());
//! groups.set([(ModelBlock(0), 8 << 20), (ModelBlock(1), 4 << 20)]);
//! assert_eq!(groups.count(), 3);
//!
//! let step = |block, ms| Step { needs: groups.needed([block]), compute: Span::from_millis(ms) };
//! let steps = [step(ModelBlock(0), 1), step(ModelBlock(1), 5)];
//! let transfers = groups.groups().iter().map(|_| Span::from_millis(1));
//! let swap = timeline(Span::ZERO, transfers, steps);
//! // Compute begins once the two groups of the first block are there.
//! assert_eq!(swap.began, Span::from_millis(2));
//! assert_eq!(swap.finished, Span::from_millis(8));
//! ```

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

/// Id of a block of a model: a small integer given by the caller, the same wherever the model is, and reused once the
/// block is freed. It is not a place in memory, which is [`crate::memory::BlockId`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ModelBlock(pub u32);
