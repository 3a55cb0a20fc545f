//! The shapes that a function may have, in the order of what they serve for what they take (papers 4.3).

use std::cmp::{Ordering, Reverse};

use super::{Latency, Row};
use crate::Span;
use crate::footprint::Footprint;
use crate::rectangles::{FunctionId, Pod};
use crate::scaling::Rate;
use crate::tokens::Share;

/// Shapes that serve at least this many percent of the most efficient one for what they take are as good:
/// throughput is proportional to quota, so ties up to noise are the rule.
const AS_EFFICIENT_PERCENT: u128 = 98;

/// What a request may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Objective {
    /// At most this long …
    pub latency: Span,
    /// … for this many of 1,000 requests.
    pub per_mille: u16,
}

/// A shape that a pod can have, and what it serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// Its SMs, in hundredths of a percent.
    pub sm: u32,
    /// Its part of the window.
    pub quota: Share,
    /// What it serves.
    pub throughput: Rate,
    /// The device memory it needs.
    pub memory: Footprint,
}

/// Why these points may be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// Each meets the objective, or there is none.
    Meets,
    /// None does: this is the one of the lowest latency. Worth an alert.
    Fastest,
}

/// The points of a function, at least one: most efficient first; ties: the larger quota, the fewer SMs.
#[derive(Clone, Debug)]
pub struct Points {
    points: Vec<Point>,
    efficient: Point,
    basis: Basis,
}

impl Point {
    /// What it takes of a GPU: window × SMs.
    #[must_use]
    pub fn area(&self) -> u64 {
        u64::from(self.quota.parts_per_million()) * u64::from(self.sm)
    }

    /// By RPR, throughput ÷ (SMs × quota), exactly.
    #[must_use]
    pub fn compare_efficiency(&self, other: &Self) -> Ordering {
        let rpr = |one: &Self, by: &Self| u128::from(one.throughput.0) * u128::from(by.area());
        rpr(self, other).cmp(&rpr(other, self))
    }

    /// A pod of this shape.
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
        // Throughputs and areas are far from the ends of 128 bits together: 64 + 34 + 7.
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
    /// The shapes of the rows, which are of one subject, that fit a GPU of `capacity` bytes and meet the
    /// objective; if none does, the one of the lowest latency. `None` if none fits.
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

    /// The shapes of all rows, as the listing has them: without objective, memory and tolerance. `None` if
    /// there are none.
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

    /// All of them, most efficient first.
    #[must_use]
    pub fn all(&self) -> &[Point] {
        &self.points
    }

    /// Why they may be chosen.
    #[must_use]
    pub const fn basis(&self) -> Basis {
        self.basis
    }

    /// The most efficient one; of those that are nearly as efficient the one of the largest quota, then of
    /// the fewest SMs: fewer pods with more throughput each.
    #[must_use]
    pub const fn efficient(&self) -> &Point {
        &self.efficient
    }

    /// Of those that serve `rest`, the one that serves least, then takes least; `None` if none serves it.
    /// O(points).
    #[must_use]
    pub fn ideal(&self, rest: Rate) -> Option<&Point> {
        (self.points.iter())
            .filter(|point| point.throughput >= rest)
            .min_by_key(|point| (point.throughput, point.area(), point.sm))
    }
}
