//! The throughput of each pod shape, from rows that a profiler measured (M4.2, M4.3, mechanisms §4.5), and the shapes that
//! meet an objective.
//!
//! # Examples
//!
//! ```
//! use policy::footprint::Footprint;
//! use policy::rectangles::FunctionId;
//! use policy::scaling::Rate;
//! use policy::scaling::profile::{DriverId, GpuModelId, ImageId, Latency, Origin, Points, Row, Rows, Subject};
//! use policy::tokens::Share;
//!
//! let (function, gpu, driver, image) = (FunctionId(0), GpuModelId(0), DriverId(0), ImageId(0));
//! let subject = Subject { function, gpu, driver, batch: 1, image };
//! let (quota, throughput, latency) = (Share::WHOLE, Rate::per_second(40), Latency::default());
//! let (memory, origin) = (Footprint::unshared(1 << 30), Origin::Measured);
//! let mut rows = Rows::new();
//! rows.insert(Row { subject, sm: 5_000, quota, throughput, latency, memory, origin }).unwrap();
//!
//! let points = Points::select(rows.of(&subject), None, 16 << 30).unwrap();
//! assert_eq!(points.efficient().throughput, throughput);
//! ```

mod points;
mod reduce;

pub use points::{Basis, Objective, Point, Points};
pub use reduce::{Grid, GridError, Plan, Trial, plan};

use std::fmt;

use super::Rate;
use crate::Span;
use crate::footprint::Footprint;
use crate::rectangles::FunctionId;
use crate::tokens::{SM_WHOLE, Share};

/// Id of a GPU model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GpuModelId(pub u32);

/// Id of a driver version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DriverId(pub u32);

/// Digest of a container image, shortened by the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ImageId(pub u64);

/// Subject of a profile: rows of one subject are comparable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Subject {
    /// Function that was profiled.
    pub function: FunctionId,
    /// GPU model on which the function was profiled.
    pub gpu: GpuModelId,
    /// Driver version under which the function was profiled.
    pub driver: DriverId,
    /// Number of requests in one batch.
    pub batch: u16,
    /// Image that was profiled.
    pub image: ImageId,
}

/// Percentiles of the latency of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Latency {
    /// Median of the latency.
    pub p50: Span,
    /// 95th percentile of the latency.
    pub p95: Span,
    /// 98th percentile of the latency.
    pub p98: Span,
    /// 99th percentile of the latency.
    pub p99: Span,
}

/// Origin of a row; a larger one takes precedence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// Derived from other rows, by the law that throughput is proportional to quota.
    Derived,
    /// Measured in a trial.
    Measured,
}

/// Profile of pods of one shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Subject that was profiled.
    pub subject: Subject,
    /// SMs of a pod, in hundredths of a percent.
    pub sm: u32,
    /// Part of the window, which is both the guarantee and the limit.
    pub quota: Share,
    /// Throughput of one pod.
    pub throughput: Rate,
    /// Latency of a request at that throughput.
    pub latency: Latency,
    /// Device memory that the pod needs.
    pub memory: Footprint,
    /// Origin of the row.
    pub origin: Origin,
}

/// Reason why a row is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowError {
    /// The SMs are not between 1 and [`SM_WHOLE`] hundredths of a percent.
    Sm,
    /// The quota is zero.
    Quota,
    /// The throughput is zero, with which nothing can be computed.
    Throughput,
    /// A higher percentile is less than a lower one.
    Latency,
}

/// Rows of all functions, in order. Lookups are O(log n), changes O(n).
#[derive(Clone, Debug, Default)]
pub struct Rows {
    rows: Vec<Row>,
}

impl Latency {
    /// Returns the lowest known percentile that is not below `per_mille`, or the 99th above that.
    #[must_use]
    pub const fn at(&self, per_mille: u16) -> Span {
        match per_mille {
            0..=500 => self.p50,
            501..=950 => self.p95,
            951..=980 => self.p98,
            _ => self.p99,
        }
    }
}

impl Row {
    fn key(&self) -> (Subject, u32, Share) {
        (self.subject, self.sm, self.quota)
    }

    fn validate(&self) -> Result<(), RowError> {
        let Latency { p50, p95, p98, p99 } = self.latency;
        if self.sm == 0 || self.sm > SM_WHOLE {
            return Err(RowError::Sm);
        }
        if self.quota.is_none() {
            return Err(RowError::Quota);
        }
        if self.throughput == Rate::ZERO {
            return Err(RowError::Throughput);
        }
        if p50 > p95 || p95 > p98 || p98 > p99 {
            return Err(RowError::Latency);
        }
        Ok(())
    }
}

impl Rows {
    /// Creates an empty set of rows.
    #[must_use]
    pub const fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Adds a row, replacing the one of the same subject and shape. A derived row does not replace a measured one.
    ///
    /// # Errors
    /// Returns the first problem of the row.
    pub fn insert(&mut self, row: Row) -> Result<(), RowError> {
        row.validate()?;
        match self.rows.binary_search_by_key(&row.key(), Row::key) {
            Ok(at) if row.origin >= self.rows[at].origin => self.rows[at] = row,
            Ok(_) => {}
            Err(at) => self.rows.insert(at, row),
        }
        Ok(())
    }

    /// Drops the rows of other images, after the function has changed to this one.
    pub fn expire_other_images(&mut self, function: FunctionId, image: ImageId) {
        self.rows
            .retain(|row| row.subject.function != function || row.subject.image == image);
    }

    /// Returns the rows of a subject, ordered by SMs, then by quota.
    #[must_use]
    pub fn of(&self, subject: &Subject) -> &[Row] {
        let from = self.rows.partition_point(|row| row.subject < *subject);
        let count = self.rows[from..].partition_point(|row| row.subject == *subject);
        &self.rows[from..][..count]
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sm => write!(
                f,
                "sm must be between 1 and {SM_WHOLE} hundredths of a percent"
            ),
            Self::Quota => f.write_str("quota must not be zero"),
            Self::Throughput => f.write_str("throughput must not be zero"),
            Self::Latency => f.write_str("latency percentiles must not decrease"),
        }
    }
}

impl std::error::Error for RowError {}
