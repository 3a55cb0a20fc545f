//! The best plan: branch and bound over states, the most promising first.
//!
//! A state is given up if its bound is no more than the best plan found, or if one was met that is no worse. When as many
//! states were opened as may be, those that are left count by their bounds: no plan reaches more than the greatest of
//! them or the best plan.

use std::cmp::Reverse;

use super::case::{Case, FUNCTIONS_MAX};
use super::plan::Placed;
use super::seen::Seen;
use super::state::{Problem, State, Way};
use crate::statistics::Percentile;

/// What counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Requests in time (M1.10).
    RequestsInTime,
    /// Functions with so many of their requests in time (M2.19). Those without a request do not count.
    FunctionsCompliant(Percentile),
}

impl Objective {
    /// Of each function, the requests in time that it needs to count; none where requests count.
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

/// The best that can be, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What the plan reaches.
    pub value: u32,
    /// No plan reaches more.
    pub bound: u32,
    /// Its steps, each slot's in their order.
    pub plan: Vec<Placed>,
    /// States that were opened.
    pub states: u64,
}

impl Answer {
    /// Whether the plan is the best.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.value == self.bound
    }
}

/// Solves a case, opening at most `states_max` states. The work is exponential in the requests; each state costs up to
/// O(n³) of them for its bound and its comparison with states met, and is remembered.
#[must_use]
pub fn solve(case: &Case, objective: Objective, states_max: u64) -> Answer {
    let by_function = matches!(objective, Objective::FunctionsCompliant(_));
    let problem = Problem::new(case, by_function);
    let root = problem.root(objective.wanted(case));
    let bound = problem.bound(&root);
    let mut search = Search {
        problem,
        seen: Seen::default(),
        best: 0,
        plan: Vec::new(),
        path: Vec::with_capacity(case.requests().len()),
        ways: vec![Vec::new(); case.requests().len() + 1],
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
    seen: Seen,
    best: u32,
    plan: Vec<Placed>,
    /// How the state that is open was reached.
    path: Vec<Placed>,
    /// By depth, kept for their memory.
    ways: Vec<Vec<Way>>,
    states: u64,
    states_max: u64,
    /// The greatest bound of a state that was left unopened.
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
        let mut ways = std::mem::take(&mut self.ways[depth]);
        ways.clear();
        self.problem.expand(state, &mut ways);
        for (reached, _, after) in &mut ways {
            *reached = self.problem.bound(after).min(bound);
        }
        // Then what is done in time, what has least to spare, and the order of slots and requests.
        ways.sort_by_key(|(bound, placed, after)| {
            let request = self.problem.case.requests()[placed.request];
            let spare = request.deadline.since(placed.to);
            (Reverse(*bound), Reverse(after.value), placed.from, spare)
        });
        for (bound, placed, after) in &ways {
            if *bound > self.best && self.seen.is_new(after) {
                self.path.push(*placed);
                self.open(after, *bound);
                self.path.pop();
            }
        }
        self.ways[depth] = ways;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Settings, draw};
    use super::*;

    /// All that can be reached, without a bound and without a memory of states.
    fn most(problem: &Problem<'_>, state: &State) -> u32 {
        let mut ways = Vec::new();
        problem.expand(state, &mut ways);
        let after = ways.iter().map(|(_, _, after)| most(problem, after));
        after.max().unwrap_or_default().max(state.value)
    }

    /// Larger cases than an enumeration of everything allows: what is given up is never needed.
    #[test]
    fn bounds_and_states_that_were_met_change_no_answer() {
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
