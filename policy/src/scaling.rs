//! The number and shape of a function's pods, and the demand reported to the autoscaler (M4.2, M4.3, M4.10, M4.11,
//! mechanisms §4.3; contracts §9).
//!
//! | module | provides | source |
//! |---|---|---|
//! | [`profile`] | the throughput of each pod shape, and the shapes that meet an objective | M4.2, M4.3, mechanisms §4.5 |
//! | `load` | the expected load: [`Load`] | M4.10 |
//! | `scaler` | which pods to add and to remove: [`Scaler`] | M4.10, M4.11, mechanisms §4.3 |
//! | `placing` | another shape where the wanted one has no place: [`place`] | M4.11, mechanisms §4.3 |
//! | `shed` | the concurrency that shed requests would have added: [`shed_concurrency`] | contracts §9 |
//!
//! # Examples
//!
//! ```
//! use policy::scaling::{Load, LoadSettings};
//! use policy::{Span, Time};
//!
//! let now = Time::ZERO.after(Span::from_secs(1));
//! let mut load = Load::new(Time::ZERO, LoadSettings::default());
//! load.arrive(50);
//! // 50 requests per second, a margin of 10 %, and a backlog of 20 requests to be served within 10 s.
//! let predicted = load.predict(now, 20);
//! assert!((predicted.as_f64() - 57.0).abs() < 0.001);
//! ```

mod action;
mod load;
mod placing;
pub mod profile;
mod rate;
mod scaler;
mod settings;
mod shed;

pub use action::{Action, AddReason, RemoveReason};
pub use load::{Load, LoadSettings};
pub use placing::place;
pub use rate::Rate;
pub use scaler::{Refusal, Scaler};
pub use settings::{Rule, Settings};
pub use shed::shed_concurrency;
