//! Statistics of a run, and over several seeds.
//!
//! | type | source |
//! |---|---|
//! | [`Histogram`]: latencies in fixed memory, merged over functions and seeds | workloads §5: nearest rank |
//! | [`Percentile`]: nearest rank over exact values, and compliance of a function | workloads §5, M2.13 |
//! | [`Interval`]: mean and 95 % interval over seeds | workloads §1: ten repetitions |
//! | [`Paired`], [`HeldCount`]: two policies with the same arrivals, seeds in which an order holds | workloads §1: common random numbers |
//! | [`Timeline`]: the busy share of each slot over time, in bounded memory | M2.15 |
//! | [`Unit`]: unit of a number, and its format for people | – |
//!
//! Counts and times are integers; floats are ratios and means. The same values in the same order yield the same
//! bits on every machine: only `+ − × ÷`, [`libm`] and rounding are used.

mod histogram;
mod percentile;
mod seeds;
mod student;
mod timeline;
mod unit;

pub use histogram::Histogram;
pub use percentile::{Percentile, PercentileError};
pub use seeds::{HeldCount, Interval, Paired, SeedsError, place};
pub use student::two_sided_95;
pub use timeline::{Timeline, TimelineError};
pub use unit::Unit;
