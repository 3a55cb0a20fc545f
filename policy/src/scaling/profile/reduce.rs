//! The trials that a profile needs (mechanisms §4.5): nine of thirty-five, as throughput is proportional to quota.
//!
//! All SM shares are measured with the whole window, and two of them with 40 % of it as well. If the throughput of
//! those two is within 5 % of 40 % of the whole one, the other rows are derived; otherwise all rows are measured.

use std::fmt;

use super::{Latency, Origin, Row};
use crate::Span;
use crate::scaling::Rate;
use crate::tokens::{SHARE_WHOLE, SM_WHOLE, Share};

/// Quota at which the law is tested.
const TEST_QUOTA: Share = Share::from_percent(40);
/// Tolerance of the law, as one part in this many.
const TOLERANCE_PART: u64 = 20;

/// Shapes that a profile should have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grid {
    quotas: Vec<Share>,
    sms: Vec<u32>,
}

/// Reason why a grid is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GridError {
    /// There is no SM share, or one is not between 1 and [`SM_WHOLE`], or not larger than the one before.
    Sms,
    /// There is no quota, or one is not larger than the one before, or the last one is not the whole window.
    Quotas,
}

/// Shape to be measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Trial {
    /// SMs of the pod, in hundredths of a percent.
    pub sm: u32,
    /// Part of the window.
    pub quota: Share,
}

/// Remaining work for a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Measure these shapes, then plan again.
    Measure(Vec<Trial>),
    /// The law holds: these derived rows complete the profile. Empty if all rows were measured.
    Derive(Vec<Row>),
}

impl Default for Grid {
    /// Returns the grid of FaST-GShare §5.2: 5 quotas × 7 SM shares.
    fn default() -> Self {
        Self {
            quotas: [20, 40, 60, 80, 100].map(Share::from_percent).to_vec(),
            sms: [6, 12, 24, 50, 60, 80, 100].map(|sm| sm * 100).to_vec(),
        }
    }
}

impl Grid {
    /// Creates a grid of other shares.
    ///
    /// # Errors
    /// Returns the first problem found.
    pub fn new(quotas: Vec<Share>, sms: Vec<u32>) -> Result<Self, GridError> {
        let rises = quotas.is_sorted_by(|one, next| one < next);
        if !rises || quotas.first().is_none_or(|first| first.is_none()) {
            return Err(GridError::Quotas);
        }
        if quotas.last().is_none_or(|last| !last.is_whole()) {
            return Err(GridError::Quotas);
        }
        let rises = sms.is_sorted_by(|one, next| one < next);
        if !rises || sms.first().is_none_or(|&sm| sm == 0) || sms.last() > Some(&SM_WHOLE) {
            return Err(GridError::Sms);
        }
        Ok(Self { quotas, sms })
    }

    fn trials(&self) -> impl Iterator<Item = Trial> {
        (self.sms.iter()).flat_map(|&sm| self.quotas.iter().map(move |&quota| Trial { sm, quota }))
    }

    /// Returns a small and a large share, on both sides of the point at which throughput stops growing.
    fn test_sms(&self) -> [u32; 2] {
        let last = self.sms.len() - 1;
        [self.sms[1.min(last)], self.sms[last.saturating_sub(1)]]
    }
}

/// Returns the next step for a profile of this grid, given the rows measured so far, which must be of one subject.
/// Derived rows are ignored.
#[must_use]
pub fn plan(rows: &[Row], grid: &Grid) -> Plan {
    let measured = |trial: Trial| {
        (rows.iter()).find(|row| {
            row.origin == Origin::Measured && (row.sm, row.quota) == (trial.sm, trial.quota)
        })
    };
    let missing = |trials: &mut dyn Iterator<Item = Trial>| {
        let trials: Vec<_> = trials.filter(|&trial| measured(trial).is_none()).collect();
        (!trials.is_empty()).then_some(Plan::Measure(trials))
    };
    let whole = |sm| Trial {
        sm,
        quota: Share::WHOLE,
    };
    let [small, large] = grid.test_sms();
    let large = (large != small).then_some(large);
    let tests = || {
        let sms = std::iter::once(small).chain(large);
        sms.map(|sm| Trial {
            sm,
            quota: TEST_QUOTA,
        })
    };
    if let Some(plan) = missing(&mut grid.sms.iter().copied().map(whole)) {
        return plan;
    }
    if let Some(plan) = missing(&mut tests()) {
        return plan;
    }
    // Slowdown relative to the law, in millionths: the worst that any percentile of a test shows.
    let mut slower = u64::from(SHARE_WHOLE);
    for test in tests() {
        let (Some(part), Some(all)) = (measured(test), measured(whole(test.sm))) else {
            continue;
        };
        let expected = scaled(all.throughput, TEST_QUOTA);
        if part.throughput.0.abs_diff(expected.0) > expected.0 / TOLERANCE_PART {
            return missing(&mut grid.trials()).unwrap_or_else(|| Plan::Derive(Vec::new()));
        }
        let percentiles = |of: &Row| [500, 950, 980, 990].map(|at| of.latency.at(at));
        for (part, all) in percentiles(part).into_iter().zip(percentiles(all)) {
            let by_law = slowed(all, TEST_QUOTA, u64::from(SHARE_WHOLE)).0.max(1);
            let found = u128::from(part.0) * u128::from(SHARE_WHOLE) / u128::from(by_law);
            slower = slower.max(u64::try_from(found).unwrap_or(u64::MAX));
        }
    }
    let derived = grid.trials().filter(|&trial| measured(trial).is_none());
    let derived = derived.filter_map(|trial| {
        let all = measured(whole(trial.sm))?;
        let latency = |percentile| slowed(percentile, trial.quota, slower);
        let Latency { p50, p95, p98, p99 } = all.latency;
        Some(Row {
            quota: trial.quota,
            throughput: scaled(all.throughput, trial.quota),
            latency: Latency {
                p50: latency(p50),
                p95: latency(p95),
                p98: latency(p98),
                p99: latency(p99),
            },
            origin: Origin::Derived,
            ..*all
        })
    });
    Plan::Derive(derived.collect())
}

fn scaled(rate: Rate, quota: Share) -> Rate {
    rate.times(u64::from(quota.parts_per_million()), u64::from(SHARE_WHOLE))
}

/// Returns the latency at a part of the throughput: with as many requests in flight each takes longer by that factor
/// (Little's law), and by `slower` millionths in addition.
fn slowed(latency: Span, quota: Share, slower: u64) -> Span {
    let wide = u128::from(quota.time_to_accrue(latency).0) * u128::from(slower);
    Span(u64::try_from(wide / u128::from(SHARE_WHOLE)).unwrap_or(u64::MAX))
}

impl fmt::Display for GridError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sms => write!(
                f,
                "SM shares must increase from at least 1 to at most {SM_WHOLE}"
            ),
            Self::Quotas => f.write_str("quotas must increase from above zero to the whole window"),
        }
    }
}

impl std::error::Error for GridError {}
