//! Distance from the best possible: small cases of a node's pool (mechanisms §2.2–§2.3b), solved offline with all requests known,
//! compared with the results of the online policies on the same cases.
//!
//! | module | content | source |
//! |---|---|---|
//! | [`case`] | requests, slots and models of a small case | workloads §9 |
//! | [`plan`] | plans, and the check of their feasibility | M2.1, M2.6 |
//! | [`mod@solve`] | the best plan, or a plan and a bound | M1.10, M2.19 |
//! | [`mod@draw`] | random cases on a node of given hardware | workloads §1 |
//! | [`online`] | runs of the same cases through [`simulator::node`] | M2.21 |
//! | [`mod@distance`] | ratio of online to optimum, over many cases | – |
//!
//! **The problem.** Each slot runs one request at a time, without preemption. A request with a resident model
//! takes its execution C; otherwise L = max(C, W/B) + a, and the model stays until it is evicted, which costs nothing. A
//! model is loaded only by a request that runs. No request has to run: the best plan may omit one, and it may run one
//! that is already late because it loads a model for others. Slots begin empty.
//!
//! **Why it bounds every online policy.** Loads do not slow each other, so slots only interact by sharing requests: a plan
//! is a sequence for each slot, in which each request begins as soon as it has arrived and its slot is free; a later start never
//! helps. Every schedule of [`policy::pool`] is such a plan. On a node without links between slots and
//! without contention the law is the node's own and the optimum is exact for it. On a node with either, the case assumes
//! the fastest path for each load, so the optimum is that of an easier node: a bound that may be unreachable
//! (see [`Loads`]).
//!
//! **Cost.** The problem is NP-hard: cost grows exponentially with the number of requests, so the number of states that the
//! search may open is limited. When the limit is reached, the best plan found and a proven bound are returned ([`Answer`]).

pub mod case;
pub mod distance;
pub mod draw;
pub mod online;
pub mod plan;
pub mod solve;

mod bound;
mod state;
mod visited;

pub use case::{Case, CaseError, Function, Request};
pub use distance::{Distance, DistanceError, PolicyDistance, Tally, distance};
pub use draw::{DrawError, DrawnCase, Loads, Settings, draw};
pub use online::{Online, OnlineOutcome};
pub use plan::{PlanError, Score, Step};
pub use solve::{Answer, Objective, solve};
