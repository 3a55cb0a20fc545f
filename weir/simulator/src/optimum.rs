//! How far from the best possible: small cases of a node's pool (papers 2.2–2.3b) solved by one who knows all requests
//! beforehand, and what the online policies make of the same cases.
//!
//! | module | what | source |
//! |---|---|---|
//! | [`case`] | requests, slots and models of a small case | workloads 9 |
//! | [`plan`] | who runs where and when, and the check that it can be so | M2.1, M2.6 |
//! | [`mod@solve`] | the best plan, or a plan and a bound | M1.10, M2.19 |
//! | [`mod@draw`] | random cases on a node of given hardware | workloads 1 |
//! | [`online`] | the same cases through [`crate::node`] | M2.21 |
//! | [`mod@distance`] | online over optimum, over many cases | – |
//!
//! **The problem.** Each slot runs one request at a time and never breaks one off. A request of a model that is there
//! takes its execution C; else L = max(C, W/B) + a, and the model stays until it is evicted, which costs nothing. A
//! model is loaded only by a request that runs. No request has to run: the best plan may leave it, and it may run one
//! that is late already because that loads a model for others. Slots begin empty.
//!
//! **Why it bounds every online policy.** Loads do not slow each other, so slots meet only in sharing requests: a plan
//! is a sequence for each slot, each request beginning when it is there and its slot is free, and running it later never
//! helps. Whatever a policy of [`policy::pool`] does is such a plan. On a node without links between slots and
//! without contention the law is the node's own and the optimum is exact for it; on a node with either, the case takes
//! each load as fast as the fastest path, and the optimum is one for an easier node: a bound that need not be reached
//! (see [`Loads`]).
//!
//! **Cost.** The problem is NP-hard: cost grows exponentially with the requests, so the search is given how many states
//! it may open. When they are used up it still gives the best plan found and a proven bound ([`Answer`]).

pub mod case;
pub mod distance;
pub mod draw;
pub mod online;
pub mod plan;
pub mod solve;

mod bound;
mod seen;
mod state;

pub use case::{Case, CaseError, Function, Request};
pub use distance::{Distance, DistanceError, PolicyDistance, Tally, distance};
pub use draw::{DrawError, Drawn, Loads, Settings, draw};
pub use online::{Met, Online};
pub use plan::{Placed, PlanError, Score};
pub use solve::{Answer, Objective, solve};
