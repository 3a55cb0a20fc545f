//! Plans, and the check of their feasibility, which is written independently of the search so that it can reveal defects of
//! the search.

use policy::{Span, Time};
use thiserror::Error;

use super::case::{Case, members};
use super::solve::Objective;

/// Execution of a request on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index into [`Case::requests`].
    pub request: usize,
    /// Index of the slot.
    pub slot: usize,
    /// Time at which execution begins, a load included.
    pub from: Time,
    /// Time at which the request ends.
    pub to: Time,
    /// Whether the request loads its model.
    pub loads: bool,
    /// If so, the set of functions with models that stay resident beside it.
    pub keeps: u32,
}

/// Value of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Score {
    /// Number of requests that end by their deadline.
    pub in_time: u32,
    /// Number of requests of each function that end by their deadline.
    pub by_function: Vec<u32>,
}

impl Score {
    /// Returns the value by an objective.
    #[must_use]
    pub fn value(&self, case: &Case, objective: Objective) -> u32 {
        match objective {
            Objective::RequestsInTime => self.in_time,
            Objective::FunctionsCompliant(_) => {
                let wanted = objective.wanted(case);
                let compliant = self
                    .by_function
                    .iter()
                    .zip(wanted)
                    .filter(|&(&in_time, wanted)| wanted > 0 && in_time >= u32::from(wanted));
                u32::try_from(compliant.count()).unwrap_or(u32::MAX)
            }
        }
    }
}

/// Reason why a plan is infeasible; the first field is the index of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The request or the slot does not exist.
    #[error("step {0} refers to a request or slot that does not exist")]
    Nothing(usize),
    /// The request was already executed.
    #[error("step {0} runs a request a second time")]
    Twice(usize),
    /// The step begins before the request has arrived, or before its slot is free.
    #[error("step {0} begins too early")]
    Early(usize),
    /// The step's length, the second field, is not the required one, the third.
    #[error("step {0} takes {1:?} instead of {2:?}")]
    Length(usize, Span, Span),
    /// The step uses or keeps a model which is not resident, or loads one which is.
    #[error("step {0} uses a model that is not resident, or loads one that is")]
    Resident(usize),
    /// The models that stay exceed the slot's memory.
    #[error("step {0} leaves more models on its slot than fit")]
    Memory(usize),
}

/// Checks that a plan, with its steps in the order of each slot, is feasible, and returns its score.
///
/// # Errors
/// Returns a [`PlanError`] for the first infeasible step.
pub fn check(case: &Case, plan: &[Step]) -> Result<Score, PlanError> {
    let mut score = Score {
        in_time: 0,
        by_function: vec![0; case.functions().len()],
    };
    let mut slots = vec![(Time::ZERO, 0_u32); case.slots()];
    let mut ran = 0_u64;
    for (at, step) in plan.iter().enumerate() {
        let (Some(request), Some((free, resident))) =
            (case.requests().get(step.request), slots.get_mut(step.slot))
        else {
            return Err(PlanError::Nothing(at));
        };
        if ran >> step.request & 1 == 1 {
            return Err(PlanError::Twice(at));
        }
        ran |= 1 << step.request;
        if step.from < request.arrival || step.from < *free || step.to < step.from {
            return Err(PlanError::Early(at));
        }
        let function = case.functions()[request.function];
        let own = 1_u32 << request.function;
        let mut takes = function.execution;
        if step.loads {
            if *resident & own != 0 || step.keeps & !*resident != 0 {
                return Err(PlanError::Resident(at));
            }
            takes = function.swapped;
            *resident = step.keeps | own;
            let fits = members(u64::from(*resident))
                .try_fold(0_u64, |sum, own| {
                    sum.checked_add(case.functions()[own].bytes)
                })
                .is_some_and(|sum| sum <= case.memory());
            if !fits {
                return Err(PlanError::Memory(at));
            }
        } else if *resident & own == 0 {
            return Err(PlanError::Resident(at));
        }
        let took = step.to.since(step.from);
        if took != takes {
            return Err(PlanError::Length(at, took, takes));
        }
        *free = step.to;
        if step.to <= request.deadline {
            score.in_time += 1;
            score.by_function[request.function] += 1;
        }
    }
    Ok(score)
}
