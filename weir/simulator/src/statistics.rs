//! What came of a run, and what several seeds together say.
//!
//! | what | where it comes from |
//! |---|---|
//! | [`Histogram`]: latencies in fixed memory, merged over functions and seeds | workloads §5: nearest rank |
//! | [`Percentile`]: nearest rank over exact values, and whether a function keeps its objective | workloads §5, M2.13 |
//! | [`Interval`]: mean and 95 % interval over seeds | workloads §1: ten repetitions |
//! | [`Paired`], [`Held`]: two policies under the same arrivals, and in how many seeds an order holds | workloads §1: common random numbers |
//! | [`Timeline`]: the busy share of each slot over time, in bounded memory | M2.15 |
//! | [`Unit`]: what a number counts, and how people write it | – |
//!
//! Counts and times are integers; floats are ratios and means. The same values in the same order give the same
//! bits on every machine: only `+ − × ÷`, [`libm`] and rounding are used.

mod histogram;
mod percentile;
mod seeds;
mod student;
mod timeline;
mod unit;

pub use histogram::Histogram;
pub use percentile::{Percentile, PercentileError};
pub use seeds::{Held, Interval, Paired, SeedsError, place};
pub use student::two_sided_95;
pub use timeline::{Timeline, TimelineError};
pub use unit::Unit;
