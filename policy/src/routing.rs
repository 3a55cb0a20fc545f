//! Which instance of a function serves which of its requests, and when (M1.13, papers 1.7; design §3, step 2).
//!
//! A [`Router`] holds one function's waiting requests and knows its instances. **Late binding** ([`Rule::LateBinding`]): a
//! request stays in the function's one deadline queue until an instance has a place, or is expected to have one within the
//! time that a hand-over takes. It then goes to the instance on which it is expected to end first, monoliths before
//! pipelines. The most urgent request goes first, unless it would be late on every instance that has a place and in time
//! on another that will soon have one: then the next one that can make it takes the place.
//!
//! Where places are not limited nothing waits: a request goes at once to the least loaded instance.
//!
//! | event | call |
//! |---|---|
//! | an instance is ready, or leaves | [`Router::add`], [`Router::remove`] |
//! | a request arrives, or its client leaves while it waits | [`Router::arrive`], [`Router::cancel`] |
//! | an answer has ended, or an exchange has failed | [`Router::complete`] |
//! | a request of which no byte was written is to go elsewhere | [`Router::arrive_again`] |
//! | a probe was answered or missed | [`Router::probed`] |
//! | time has passed | [`Router::wake`], at [`Router::next_wake`] |
//!
//! Requests that can make it start in order of latest start time, a late one only when none that can make it has use for
//! the place, except by ageing (design 4.5, invariant 3, which speaks of one instance).

mod action;
mod bindings;
mod choice;
mod health;
mod instance;
mod router;
mod settings;

pub use action::{Action, Decision, EjectReason, RefuseReason, RouteReason};
pub use bindings::BindingId;
pub use health::is_silent;
pub use instance::InstanceId;
pub use router::{Completion, Router};
pub use settings::{
    MARGIN_PERCENT, Places, Request, Rule, Settings, Shape, Share, serving_capacity,
};
