//! How many pods of which shape a function gets, and what the autoscaler is told (M4.2, M4.3, M4.10, M4.11, papers
//! 4.3; design 4.9).
//!
//! | module | does | source |
//! |---|---|---|
//! | [`profile`] | what a shape of pod serves, and which shapes meet an objective | M4.2, M4.3, papers 4.5 |
//! | `load` | what will come: [`Load`] | M4.10 |
//! | `scaler` | which pods to add and to remove: [`Scaler`] | M4.10, M4.11, papers 4.3 |
//! | `placing` | another shape where the wanted one fits nowhere: [`place`] | M4.11, papers 4.3 |
//! | `shed` | what requests that were shed add to a mean: [`shed_concurrency`] | design 4.9 |

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
