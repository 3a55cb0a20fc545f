//! What an experiment is made of: the files of `weir/simulator/experiments`.

use serde::{Deserialize, Serialize};

use crate::rules::RuleName;

/// An experiment on pools of GPUs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    pub(super) about: String,
    /// The workload.
    pub(super) preset: String,
    /// GPUs of a node, where they differ from Torpor's.
    pub(super) slots: Option<usize>,
    #[serde(default = "one")]
    pub(super) nodes: u32,
    /// Of all functions, where it differs from the preset's.
    pub(super) objective_ms: Option<f64>,
    /// Loads, rising.
    pub(super) functions: Vec<u32>,
    pub(super) rules: Vec<RuleName>,
    pub(super) picture: Option<Picture>,
    pub(super) evidence: Vec<Evidence>,
}

const fn one() -> u32 {
    1
}

/// Which run is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Picture {
    pub(super) rule: RuleName,
    pub(super) functions: u32,
}

/// A number of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Figure {
    /// Functions of which anything ran.
    Executed,
    /// Functions that keep their objectives.
    Compliant,
    /// The same of all, in per cent.
    CompliantPercent,
    /// Requests in time, in per cent.
    InTimePercent,
    /// Requests that were answered, a second.
    Answered,
    /// The 98th percentile of latency, ms.
    TailMs,
    /// The same of the slot where it is largest.
    WorstSlotTailMs,
    /// The 98th percentile of latency over objective.
    TailOverObjective,
    /// Variance of the slots' loads over the largest.
    Imbalance,
    /// Mean load of the slots, in per cent.
    LoadPercent,
    /// GPU time that is charged, over that of holding a GPU for each function that ran.
    Charged,
    /// Models that gave way, for each that was loaded.
    EvictionsPerLoad,
    /// The 98th percentile of waiting for device memory over execution; where memory is not counted in bytes.
    AllocationOverExecution,
}

impl Figure {
    /// All.
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

/// What number of each seed a claim is judged by.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Evidence {
    pub(super) claim: String,
    /// At how many functions it is looked at again to explain a miss: of loads that the paper does not name.
    pub(super) other_functions: Option<u32>,
    #[serde(flatten)]
    pub(super) number: Number,
}

/// See [`Evidence`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Number {
    /// The figure itself.
    Figure {
        figure: Figure,
        rule: RuleName,
        functions: u32,
    },
    /// The largest load at which all functions keep their objectives, and at all below.
    Largest { rule: RuleName },
    /// That, over the functions that ran under another rule at the largest load.
    LargestOverExecuted { rule: RuleName, over: RuleName },
    /// The place of a rule among others by this figure, 1 is the smallest and alone.
    Place {
        figure: Figure,
        rule: RuleName,
        among: Vec<RuleName>,
        functions: u32,
    },
    /// One rule's figure over another's.
    Ratio {
        figure: Figure,
        rule: RuleName,
        over: RuleName,
        functions: u32,
    },
    /// One rule's figure less another's.
    Difference {
        figure: Figure,
        rule: RuleName,
        over: RuleName,
        functions: u32,
    },
    /// 1 if all hold, else 0.
    All {
        functions: u32,
        conditions: Vec<Condition>,
    },
}

impl Number {
    /// The same at another load; `None`: it is not of one load.
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

    /// At which load.
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

/// On the 98th percentile of a model's latency.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Condition {
    pub(super) rule: RuleName,
    pub(super) model: String,
    pub(super) at_most_ms: Option<f64>,
    pub(super) above_ms: Option<f64>,
}
