//! Finds the best plan by branch and bound over states, the most promising first.
//!
//! A state is pruned if its bound is at most the value of the best plan found, or if a visited state dominates it. When the
//! limit of opened states is reached, the remaining states count by their bounds: no plan exceeds the greatest of
//! them or the best plan.

use std::cmp::Reverse;

use super::case::{Case, FUNCTIONS_MAX};
use super::plan::Step;
use super::state::{Branch, Problem, State};
use super::visited::Visited;
use simulator::statistics::Percentile;

/// Value to be maximized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Number of requests in time (M1.10).
    RequestsInTime,
    /// Number of functions with this share of their requests in time (M2.19). Functions without a request are not counted.
    FunctionsCompliant(Percentile),
}

impl Objective {
    /// Returns, for each function, the number of requests in time that it needs to be counted; zero where requests are counted.
    pub(super) fn wanted(self, case: &Case) -> [u8; FUNCTIONS_MAX] {
        let mut wanted = [0; FUNCTIONS_MAX];
        if let Self::FunctionsCompliant(percentile) = self {
            for request in case.requests() {
                wanted[request.function] += 1;
            }
            for count in &mut wanted {
                let rank = percentile.rank(u64::from(*count));
                *count = u8::try_from(rank).unwrap_or(u8::MAX);
            }
        }
        wanted
    }
}

/// Best plan found, and a proven bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Value of the plan.
    pub value: u32,
    /// Upper bound on the value of any plan.
    pub bound: u32,
    /// Steps of the plan, with those of each slot in their order.
    pub plan: Vec<Step>,
    /// Number of states opened.
    pub states: u64,
}

impl Answer {
    /// Returns whether the plan is proven to be the best.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.value == self.bound
    }
}

/// Solves a case, opening at most `states_max` states. The work is exponential in the number n of requests; each state costs up
/// to O(n³) for its bound and the comparison with visited states, and is kept in memory.
#[must_use]
pub fn solve(case: &Case, objective: Objective, states_max: u64) -> Answer {
    let by_function = matches!(objective, Objective::FunctionsCompliant(_));
    let problem = Problem::new(case, by_function);
    let root = problem.root(objective.wanted(case));
    let bound = problem.bound(&root);
    let mut search = Search {
        problem,
        visited: Visited::default(),
        best: 0,
        plan: Vec::new(),
        path: Vec::with_capacity(case.requests().len()),
        branches: vec![Vec::new(); case.requests().len() + 1],
        states: 0,
        states_max,
        unopened: 0,
    };
    search.open(&root, bound);
    Answer {
        value: search.best,
        bound: search.best.max(search.unopened),
        plan: search.plan,
        states: search.states,
    }
}

struct Search<'a> {
    problem: Problem<'a>,
    visited: Visited,
    best: u32,
    plan: Vec<Step>,
    /// Steps that lead to the current state.
    path: Vec<Step>,
    /// Buffers by depth, reused to avoid allocations.
    branches: Vec<Vec<Branch>>,
    states: u64,
    states_max: u64,
    /// Greatest bound of a state which was not opened because of the limit.
    unopened: u32,
}

impl Search<'_> {
    fn open(&mut self, state: &State, bound: u32) {
        if state.value > self.best {
            self.best = state.value;
            self.plan.clone_from(&self.path);
        }
        if bound <= self.best {
            return;
        }
        if self.states >= self.states_max {
            self.unopened = self.unopened.max(bound);
            return;
        }
        self.states += 1;
        let depth = self.path.len();
        let mut branches = std::mem::take(&mut self.branches[depth]);
        branches.clear();
        self.problem.expand(state, &mut branches);
        for (reached, _, after) in &mut branches {
            *reached = self.problem.bound(after).min(bound);
        }
        // Then by value, by start, and by slack; the sort is stable, so ties keep the order of slots and requests.
        branches.sort_by_key(|(bound, placed, after)| {
            let request = self.problem.case.requests()[placed.request];
            let spare = request.deadline.since(placed.to);
            (Reverse(*bound), Reverse(after.value), placed.from, spare)
        });
        for (bound, placed, after) in &branches {
            if *bound > self.best && self.visited.is_new(after) {
                self.path.push(*placed);
                self.open(after, *bound);
                self.path.pop();
            }
        }
        self.branches[depth] = branches;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Settings, draw};
    use super::*;

    /// Returns the largest value that can be reached, by exhaustive search without bounds and without visited states.
    fn most(problem: &Problem<'_>, state: &State) -> u32 {
        let mut branches = Vec::new();
        problem.expand(state, &mut branches);
        let after = branches.iter().map(|(_, _, after)| most(problem, after));
        after.max().unwrap_or_default().max(state.value)
    }

    /// Larger cases than full enumeration of plans allows: pruning must never remove the best plan.
    #[test]
    fn pruning_does_not_change_the_value() {
        let mut states = 0;
        for seed in 0..120 {
            let settings = Settings {
                functions: 5,
                requests: 8,
                // Some CNNs beside each other, but not all.
                memory_gb: 0.36,
                objective: (0.6, 4.0),
                ..Settings::torpor(2.0)
            };
            let case = draw(&settings, seed).unwrap().case;
            for objective in [
                Objective::RequestsInTime,
                Objective::FunctionsCompliant(Percentile::P50),
            ] {
                let by_function = objective != Objective::RequestsInTime;
                let problem = Problem::new(&case, by_function);
                let root = problem.root(objective.wanted(&case));
                let answer = solve(&case, objective, u64::MAX);
                assert_eq!(answer.value, most(&problem, &root), "seed {seed}");
                states += answer.states;
            }
        }
        assert!(states > 1_000, "{states}");
    }
}
