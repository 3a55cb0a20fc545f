//! Format of the files in `weir/experiments/specs`.

use serde::{Deserialize, Serialize};

use simulator::rules::RuleName;

/// An experiment on pools of GPUs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    pub(super) about: String,
    /// Name of the workload's preset.
    pub(super) preset: String,
    /// Number of GPUs of a node, where it differs from Torpor's.
    pub(super) slots: Option<usize>,
    #[serde(default = "one")]
    pub(super) nodes: u32,
    /// Objective of all functions in milliseconds, where it differs from the preset's.
    pub(super) objective_ms: Option<f64>,
    /// Loads as numbers of functions, rising.
    pub(super) functions: Vec<u32>,
    pub(super) rules: Vec<RuleName>,
    pub(super) picture: Option<Picture>,
    pub(super) evidence: Vec<Evidence>,
}

const fn one() -> u32 {
    1
}

/// Run of which the ledger is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Picture {
    pub(super) rule: RuleName,
    pub(super) functions: u32,
}

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Figure {
    /// Number of functions with at least one executed request.
    Executed,
    /// Number of functions that keep their objectives.
    Compliant,
    /// Functions that keep their objectives, in percent of all.
    CompliantPercent,
    /// Requests answered in time, in percent.
    InTimePercent,
    /// Requests answered per second.
    Answered,
    /// 98th percentile of latency, in milliseconds.
    TailMs,
    /// 98th percentile of latency on the slot where it is largest, in milliseconds.
    WorstSlotTailMs,
    /// 98th percentile of latency divided by objective.
    TailOverObjective,
    /// Variance of the slots' loads divided by the largest load.
    Imbalance,
    /// Mean load of the slots, in percent.
    LoadPercent,
    /// Charged GPU time divided by the time of holding one GPU for each function that ran.
    Charged,
    /// Number of models evicted for each model loaded.
    EvictionsPerLoad,
    /// 98th percentile of waiting for device memory divided by execution; absent where memory is only counted in bytes.
    AllocationOverExecution,
}

impl Figure {
    /// All figures in the order of their rows.
    pub(super) const ALL: [Self; 13] = [
        Self::Executed,
        Self::Compliant,
        Self::CompliantPercent,
        Self::InTimePercent,
        Self::Answered,
        Self::TailMs,
        Self::WorstSlotTailMs,
        Self::TailOverObjective,
        Self::Imbalance,
        Self::LoadPercent,
        Self::Charged,
        Self::EvictionsPerLoad,
        Self::AllocationOverExecution,
    ];
}

/// Number of each seed by which a claim is judged.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Evidence {
    pub(super) claim: String,
    /// Number of functions in the second run that may explain a miss, for claims at a load which the paper does not name.
    pub(super) other_functions: Option<u32>,
    #[serde(flatten)]
    pub(super) number: Number,
}

/// Way in which the number of a seed is computed; see [`Evidence`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Number {
    /// A figure of one run.
    Figure {
        figure: Figure,
        rule: RuleName,
        functions: u32,
    },
    /// Largest load at which, as at all smaller loads, all functions keep their objectives.
    Largest { rule: RuleName },
    /// [`Largest`](Self::Largest), divided by the number of functions that ran under another rule at the largest load.
    LargestOverExecuted { rule: RuleName, over: RuleName },
    /// Rank of a rule among others by a figure; 1 is the smallest value without a tie.
    Place {
        figure: Figure,
        rule: RuleName,
        among: Vec<RuleName>,
        functions: u32,
    },
    /// One rule's figure divided by another's.
    Ratio {
        figure: Figure,
        rule: RuleName,
        over: RuleName,
        functions: u32,
    },
    /// One rule's figure minus another's.
    Difference {
        figure: Figure,
        rule: RuleName,
        over: RuleName,
        functions: u32,
    },
    /// 1 if all conditions hold, else 0.
    All {
        functions: u32,
        conditions: Vec<Condition>,
    },
}

impl Number {
    /// Returns this number for the load `other`; `None` if the number does not refer to a single load.
    pub(super) fn at(&self, other: u32) -> Option<Self> {
        let mut number = self.clone();
        match &mut number {
            Self::Figure { functions, .. }
            | Self::Place { functions, .. }
            | Self::Ratio { functions, .. }
            | Self::Difference { functions, .. }
            | Self::All { functions, .. } => *functions = other,
            Self::Largest { .. } | Self::LargestOverExecuted { .. } => return None,
        }
        Some(number)
    }

    /// Returns the load as a number of functions; `None` if the number does not refer to a single load.
    pub(super) const fn functions(&self) -> Option<u32> {
        match self {
            Self::Figure { functions, .. }
            | Self::Place { functions, .. }
            | Self::Ratio { functions, .. }
            | Self::Difference { functions, .. }
            | Self::All { functions, .. } => Some(*functions),
            Self::Largest { .. } | Self::LargestOverExecuted { .. } => None,
        }
    }
}

/// Bounds on the 98th percentile of a model's latency.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Condition {
    pub(super) rule: RuleName,
    pub(super) model: String,
    pub(super) at_most_ms: Option<f64>,
    pub(super) above_ms: Option<f64>,
}
