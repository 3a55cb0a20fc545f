//! Who runs where and when, and the check that it can be so: written apart from the search, so that it can be trusted
//! where the search is wrong.

use policy::{Span, Time};
use thiserror::Error;

use super::case::{Case, members};
use super::solve::Objective;

/// A request on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Index into [`Case::requests`].
    pub request: usize,
    /// Where.
    pub slot: usize,
    /// From when.
    pub from: Time,
    /// Until when.
    pub to: Time,
    /// It brings its model.
    pub loads: bool,
    /// If so, the functions whose models stay beside it, as a set.
    pub keeps: u32,
}

/// What a plan reaches.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Score {
    /// Requests that end by their deadline.
    pub in_time: u32,
    /// The same by function.
    pub by_function: Vec<u32>,
}

impl Score {
    /// By an objective.
    #[must_use]
    pub fn value(&self, case: &Case, objective: Objective) -> u32 {
        match objective {
            Objective::RequestsInTime => self.in_time,
            Objective::FunctionsCompliant(_) => {
                let wanted = objective.wanted(case);
                let met = self
                    .by_function
                    .iter()
                    .zip(wanted)
                    .filter(|&(&in_time, wanted)| wanted > 0 && in_time >= u32::from(wanted));
                u32::try_from(met.count()).unwrap_or(u32::MAX)
            }
        }
    }
}

/// Why a plan cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// There is no such request or slot.
    #[error("step {0} is of a request or slot that is not there")]
    Nothing(usize),
    /// A request runs once.
    #[error("step {0} runs a request a second time")]
    Twice(usize),
    /// It begins before it has arrived, or before its slot is free.
    #[error("step {0} begins too early")]
    Early(usize),
    /// It does not take as long as it must.
    #[error("step {0} takes {1:?} and not {2:?}")]
    Length(usize, Span, Span),
    /// It counts on a model, its own or one that it keeps, that is not there, or loads one that is.
    #[error("step {0} is wrong about what is on its slot")]
    Resident(usize),
    /// More stays than fits.
    #[error("step {0} leaves more on its slot than fits")]
    Memory(usize),
}

/// Whether a plan, its steps in the order of each slot, can be, and what it reaches.
///
/// # Errors
/// See [`PlanError`].
pub fn check(case: &Case, plan: &[Placed]) -> Result<Score, PlanError> {
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
