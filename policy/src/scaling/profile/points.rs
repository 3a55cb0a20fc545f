//! The shapes that a function's pods may have, in order of efficiency (mechanisms §4.3).

use std::cmp::{Ordering, Reverse};

use super::{Latency, Row};
use crate::Span;
use crate::footprint::Footprint;
use crate::rectangles::{FunctionId, Pod};
use crate::scaling::Rate;
use crate::tokens::Share;

/// Percentage of the best efficiency from which a shape counts as equally efficient: throughput is proportional to
/// quota, so ties up to noise are the rule.
const AS_EFFICIENT_PERCENT: u128 = 98;

/// Objective for the latency of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Objective {
    /// Largest latency of a request that keeps the objective.
    pub latency: Span,
    /// Number of requests that have to keep the latency, of 1,000.
    pub per_mille: u16,
}

/// Shape of a pod, with its throughput.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// SMs of the pod, in hundredths of a percent.
    pub sm: u32,
    /// Part of the window.
    pub quota: Share,
    /// Throughput of one pod.
    pub throughput: Rate,
    /// Device memory that the pod needs.
    pub memory: Footprint,
}

/// Reason why points may be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// Every point meets the objective, or there is none.
    Meets,
    /// No point meets the objective: this is the one with the lowest latency. Worth an alert.
    Fastest,
}

/// Points of a function, at least one: the most efficient first; ties by the larger quota, then by the fewer SMs.
#[derive(Clone, Debug)]
pub struct Points {
    points: Vec<Point>,
    efficient: Point,
    basis: Basis,
}

impl Point {
    /// Returns the part of a GPU that the shape takes: window × SMs.
    #[must_use]
    pub fn area(&self) -> u64 {
        u64::from(self.quota.parts_per_million()) * u64::from(self.sm)
    }

    /// Compares two shapes by RPR, which is throughput ÷ (SMs × quota), exactly.
    #[must_use]
    pub fn compare_efficiency(&self, other: &Self) -> Ordering {
        let rpr = |one: &Self, by: &Self| u128::from(one.throughput.0) * u128::from(by.area());
        rpr(self, other).cmp(&rpr(other, self))
    }

    /// Returns a pod of this shape.
    #[must_use]
    pub const fn pod(&self, function: FunctionId) -> Pod {
        Pod {
            function,
            quota: self.quota,
            sm: self.sm,
            footprint: self.memory,
        }
    }

    fn is_as_efficient_as(&self, best: &Self) -> bool {
        let rpr = |one: &Self, by: &Self| u128::from(one.throughput.0) * u128::from(by.area());
        // The products fit into 128 bits: throughputs and areas take 64 + 34 + 7 bits.
        rpr(self, best) * 100 >= rpr(best, self) * AS_EFFICIENT_PERCENT
    }
}

impl From<&Row> for Point {
    fn from(row: &Row) -> Self {
        Self {
            sm: row.sm,
            quota: row.quota,
            throughput: row.throughput,
            memory: row.memory,
        }
    }
}

impl Points {
    /// Selects the shapes of the rows, which must be of one subject, that fit a GPU of `capacity` bytes and meet the
    /// objective; if none meets it, selects the one with the lowest latency. Returns `None` if none fits.
    #[must_use]
    pub fn select(rows: &[Row], objective: Option<Objective>, capacity: u64) -> Option<Self> {
        let fitting = || rows.iter().filter(|row| row.memory.of(1) <= capacity);
        let meets = |row: &&Row| {
            objective
                .is_none_or(|objective| row.latency.at(objective.per_mille) <= objective.latency)
        };
        let points: Vec<_> = fitting().filter(meets).map(Point::from).collect();
        if !points.is_empty() {
            return Self::ordered(points, Basis::Meets, true);
        }
        let latency = |row: &Row| {
            let Latency { p50, p99, .. } = row.latency;
            (
                objective.map_or(p50, |objective| row.latency.at(objective.per_mille)),
                p99,
            )
        };
        let fastest = fitting().min_by_key(|row| (latency(row), row.key()))?;
        Self::ordered(vec![fastest.into()], Basis::Fastest, true)
    }

    /// Selects the shapes of all rows as the listing does, without objective, memory, and tolerance. Returns `None` if
    /// there are no rows.
    #[must_use]
    pub fn as_printed(rows: &[Row]) -> Option<Self> {
        Self::ordered(rows.iter().map(Point::from).collect(), Basis::Meets, false)
    }

    fn ordered(mut points: Vec<Point>, basis: Basis, tolerant: bool) -> Option<Self> {
        points.sort_by(|one, other| {
            other
                .compare_efficiency(one)
                .then(other.quota.cmp(&one.quota))
                .then(one.sm.cmp(&other.sm))
        });
        let first = *points.first()?;
        let as_good = |point: &&Point| tolerant && point.is_as_efficient_as(&first);
        let efficient = (points.iter().filter(as_good))
            .min_by_key(|point| (Reverse(point.quota), point.sm))
            .copied()
            .unwrap_or(first);
        Some(Self {
            points,
            efficient,
            basis,
        })
    }

    /// Returns all points, most efficient first.
    #[must_use]
    pub fn all(&self) -> &[Point] {
        &self.points
    }

    /// Returns why these points may be chosen.
    #[must_use]
    pub const fn basis(&self) -> Basis {
        self.basis
    }

    /// Returns the most efficient point. Among those that are nearly as efficient it is the one with the largest quota,
    /// then with the fewest SMs: fewer pods with more throughput each.
    #[must_use]
    pub const fn efficient(&self) -> &Point {
        &self.efficient
    }

    /// Returns the point that serves the least among those that serve `rest`, then the one that takes the least, or
    /// `None` if none serves it. O(points).
    #[must_use]
    pub fn ideal(&self, rest: Rate) -> Option<&Point> {
        (self.points.iter())
            .filter(|point| point.throughput >= rest)
            .min_by_key(|point| (point.throughput, point.area(), point.sm))
    }
}
