//! Routing: which instance of a function serves which of its requests, and when (M1.13, mechanisms §1.7; contracts §5).
//!
//! A [`Router`] holds one function's waiting requests and knows its instances. **Late binding**
//! ([`Rule::LateBinding`]): a request stays in the function's single deadline queue until an instance has a place, or
//! is expected to have one within the time that a hand-over takes. It is then bound to the instance on which it is
//! expected to end first, monoliths before pipelines. The most urgent request is bound first, unless it would be late
//! on every instance that has a place and in time on another instance that will soon have one: then the next request
//! that can meet its deadline takes the place.
//!
//! Where places are not limited, no request waits: each goes to the least loaded instance at once.
//!
//! | event | call |
//! |---|---|
//! | an instance is ready, or leaves | [`Router::add`], [`Router::remove`] |
//! | a request arrives, or its client leaves while it waits | [`Router::arrive`], [`Router::cancel`] |
//! | an answer has ended, or an exchange has failed | [`Router::complete`] |
//! | a request of which no byte was written is to be sent to another instance | [`Router::arrive_again`] |
//! | a probe was answered or missed | [`Router::probed`] |
//! | time has passed | [`Router::wake`], at [`Router::next_wake`] |
//!
//! Requests that can meet their deadline start in order of latest start time. A late request starts only if no request
//! that can meet its deadline has use for the place, except by aging (invariant 3, which concerns a single
//! instance).
//!
//! # Examples
//!
//! ```
//! use policy::gate::{Late, Order};
//! use policy::profile::ClassId;
//! use policy::routing::{Action, Decision, Places, Request, Router, Rule, Settings, Shape};
//! use policy::{RequestId, Span, Time};
//!
//! let (rule, order, late) = (Rule::LateBinding, Order::Deadline, Late::Serve);
//! let (depth, waiting_min, waiting_max, classes) = (10, 10, 100, 1);
//! let (margin_percent, hand_over, execution, slo) = (25, Span::ZERO, Span(500), None);
//! let mut router = Router::new(Settings {
//!     rule, order, late, depth, waiting_min, waiting_max, margin_percent, hand_over, execution, classes, slo,
//! });
//! let (id, at, deadline, class) = (RequestId(1), Time(0), Time(9_000), ClassId(0));
//! let request = Request { id, at, deadline, objective: None, class, execution: None };
//! let mut actions = Vec::new();
//! let decision = router.arrive(at, &request, 0, &mut actions);
//! assert!(matches!(decision, Decision::Waits(_)), "no instance is ready");
//! let added = router.add(Time(1), Shape::monolith(Places::Fixed(1), 0), &mut actions);
//! assert!(matches!(actions[..], [Action::Bind { instance, .. }] if instance == added));
//! ```

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
