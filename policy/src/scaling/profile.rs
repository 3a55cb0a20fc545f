//! What a shape of pod serves: rows that a profiler measured (M4.2, M4.3, papers 4.5), and which shapes meet an
//! objective.

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

/// A model of GPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GpuModelId(pub u32);

/// A version of the driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DriverId(pub u32);

/// The digest of a container image, shortened by the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ImageId(pub u64);

/// What was profiled where: rows of one subject can be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Subject {
    /// The function.
    pub function: FunctionId,
    /// On which GPUs.
    pub gpu: GpuModelId,
    /// Under which driver.
    pub driver: DriverId,
    /// Requests in one batch.
    pub batch: u16,
    /// Of which image.
    pub image: ImageId,
}

/// Percentiles of the latency of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Latency {
    /// The median.
    pub p50: Span,
    /// The 95th percentile.
    pub p95: Span,
    /// The 98th percentile.
    pub p98: Span,
    /// The 99th percentile.
    pub p99: Span,
}

/// Where a row comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// From others, by the law that throughput is proportional to quota.
    Derived,
    /// From a trial.
    Measured,
}

/// What pods of one shape serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Of what.
    pub subject: Subject,
    /// The SMs of a pod, in hundredths of a percent.
    pub sm: u32,
    /// Its part of the window, guaranteed and at most.
    pub quota: Share,
    /// What it serves.
    pub throughput: Rate,
    /// How fast.
    pub latency: Latency,
    /// The device memory it needs.
    pub memory: Footprint,
    /// How that is known.
    pub origin: Origin,
}

/// Why a row is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowError {
    /// A pod has between 1 and [`SM_WHOLE`] hundredths of a percent of the SMs.
    Sm,
    /// A pod has a part of the window.
    Quota,
    /// A pod that serves nothing cannot be reckoned with.
    Throughput,
    /// A higher percentile is less than a lower one.
    Latency,
}

/// The rows of all functions, in order. O(log n) to find, O(n) to change.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    rows: Vec<Row>,
}

impl Latency {
    /// The lowest percentile that is known and not below `per_mille`; above the 99th the 99th.
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
    /// No rows.
    #[must_use]
    pub const fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Adds a row in place of the one of the same subject and shape. A derived one does not take the place of a
    /// measured one.
    ///
    /// # Errors
    /// What is wrong with the row.
    pub fn insert(&mut self, row: Row) -> Result<(), RowError> {
        row.validate()?;
        match self.rows.binary_search_by_key(&row.key(), Row::key) {
            Ok(at) if row.origin >= self.rows[at].origin => self.rows[at] = row,
            Ok(_) => {}
            Err(at) => self.rows.insert(at, row),
        }
        Ok(())
    }

    /// The function runs this image now: rows of others say nothing any more.
    pub fn expire_other_images(&mut self, function: FunctionId, image: ImageId) {
        self.rows
            .retain(|row| row.subject.function != function || row.subject.image == image);
    }

    /// The rows of a subject, by SMs, then quota.
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
            Self::Sm => write!(f, "sm must be between 1 and {SM_WHOLE}"),
            Self::Quota => f.write_str("quota must not be zero"),
            Self::Throughput => f.write_str("throughput must not be zero"),
            Self::Latency => f.write_str("percentiles must not fall"),
        }
    }
}

impl std::error::Error for RowError {}
